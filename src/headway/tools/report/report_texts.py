"""What a report says of a run in words: how it ended, what the overlap bought, the numbers looked for first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.history_records import settings_of_line
from headway.core.text_naming import learner_name
from headway.core.text_statistics import seconds
from headway.core.types_opaque import JsonObject, SettingValue
from headway.runs.folder_environment import not_known
from headway.runs.samples import Sample
from headway.tools.report.advice import Finding
from headway.tools.report.recorded_run_story_records import LEARNER, LineStory, Story
from headway.tools.report.series import step_word
from headway.tools.report.series_whole_run import LineTotals, WholeRun, whole_of_story
from headway.tools.report.time_report import Accounts, Ages, RoleAccount, taken_in


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the simulator says about a run, in plain values."""

    rows: Sequence[JsonObject] = ()
    """lead, updates_per_s, speedup, staleness_mean, staleness_max, learner_idle, is_best."""
    serial_updates_per_s: float | None = None
    """At lead 0."""
    own_updates_per_s: float | None = None
    """At the run's own lead."""
    is_shared: bool = False
    """The roles computed on the same cores, where work that overlaps takes longer than it would alone."""
    recommendation: str = ""
    caption: str = ""
    fit: str = ""
    note: str = ""
    """What the model leaves out; or why there is none."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's default and what it does, as far as the recipe says."""

    standard: SettingValue = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything a report says about one run."""

    name: str
    story: Story
    accounts: Accounts
    findings: Sequence[Finding] = ()
    bottleneck: str = ""
    simulated: Simulated = field(default_factory=Simulated)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    groups: Sequence[Sample] = ()
    """The newest samples that hold the times of a whole group of episodes."""
    is_alive: bool | None = None
    """Of a run whose log has no end: does its process run? None: it is not known here."""
    whole: WholeRun | None = None
    """Of a long run, whose story is that of its end."""

    @property
    def of_all(self) -> WholeRun:
        """Totals and curves of all of the run."""
        return self.whole or whole_of_story(self.story, self.accounts)

    @property
    def may_go_on(self) -> bool:
        return not self.story.is_over and self.is_alive is not False


NOT_COMPARED = ("staleness_bound", "queue_capacity", "report", "log_level")
"""What follows from other settings, or makes no difference to a run."""
MAX_DIFFERENCES = 3
SHOWN_CHANGES = 6  # of the number of collectors


def env_name(story: Story) -> str:
    """What is played, as a person calls it; empty where nothing is."""
    if story.recipe == "colorlines":
        return "Colour Lines"
    place, mark, name = str(story.config.get("env") or "").rpartition(":")
    return f"{Path(place).name}{mark}{name}"


def labels(runs: Sequence[Seen]) -> list[str]:
    """What a run is called beside others: the settings in which it differs from them. Alone: its name."""
    names = [run.name for run in runs]
    if len(runs) < 2:
        return names
    has_config = all(run.story.config for run in runs)
    given = [run.story.config if has_config else run.story.settings for run in runs]
    common = [name for name in given[0] if name not in NOT_COMPARED and all(name in values for values in given)]
    differ = [name for name in common if len({as_text(values[name]) for values in given}) > 1]
    differ.sort(key=lambda name: name == "seed")  # what was meant to differ comes first
    has_recipes = len({run.story.recipe for run in runs}) > 1
    told = [
        ", ".join(
            [run.story.recipe or "run"] * has_recipes
            + [f"{name}={as_text(values[name]) or 'none'}" for name in differ[:MAX_DIFFERENCES]]
        )
        for run, values in zip(runs, given, strict=True)
    ]
    counts = Counter(told)
    return [
        label if label and counts[label] == 1 else f"{label} ({name})" if label else name
        for label, name in zip(told, names, strict=True)
    ]


def comparison(run: Seen) -> list[list[str]]:
    """The numbers of a run that are compared with those of others."""
    story, accounts, whole = run.story, run.accounts, run.of_all
    learner = accounts.roles.get(LEARNER)
    values = whole.scores
    waited = "-" if learner is None else share_of_role(learner, learner.blocked.get("data", 0.0))
    serial, own = run.simulated.serial_updates_per_s, run.simulated.own_updates_per_s
    at_most = "at most " if run.simulated.is_shared else ""
    return [
        ["State", _state_in_a_word(run)],
        ["Updates", str(whole.first.updates)],
        ["Updates per second", f"{accounts.updates_per_s:.4g}" if story.updates else "-"],
        ["Environment steps or tokens", f"{whole.steps:,}" if story.updates else "-"],
        ["Speed-up over lead 0, simulated", f"{at_most}{own / serial:.2f}x" if serial and own else "-"],
        ["Staleness, mean / largest", f"{accounts.staleness.mean:.2f} / {accounts.staleness.max:g}"],
        ["Learner waited for rollouts", waited],
        ["Dropped", str(sum(whole.first.drops.values()))],
        ["Score, last / best", f"{values[-1]:.4g} / {max(values):.4g}" if values else "-"],
        ["Wall clock", seconds(whole.wall_s)],
    ]


def _state_in_a_word(run: Seen) -> str:
    if not run.story.sessions:
        return "empty"
    if run.story.is_over:
        return "failed" if run.story.sessions[-1].how == "fail" else "ended"
    return {True: "running", False: "cut off", None: "no end"}[run.is_alive]


def share_of_role(learner: RoleAccount, spent_s: float) -> str:
    """Of the time between start and end, as in the sentence about the bottleneck."""
    active_s = learner.wall_s - learner.blocked.get("starting", 0.0) - learner.blocked.get("ending", 0.0)
    if active_s <= 0:
        return "-"
    share = spent_s / active_s
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


def state(story: Story, is_alive: bool | None = None) -> str:
    """How it ended, or that it has not. `is_alive`: does its process run, where that is known?"""
    if not story.sessions:
        return "nothing is recorded yet"
    last = story.sessions[-1]
    if last.how == "fail":
        return f"failed after {seconds(story.end_s)}: {last.why}"
    if last.how == "end":
        return f"ended: {last.why}"
    valid = f"Valid up to its last event, at {seconds(story.end_s)}."
    if is_alive:
        return f"running. {valid}"
    if is_alive is False:
        to_go_on = f" To go on: headway resume {story.folder}" if story.recipe else ""
        return f"cut off: its process is gone. {valid}{to_go_on}"
    return f"no end in the log: still running, or cut off; {not_known(story.environment)}. {valid}"


def headline(run: Seen) -> list[str]:
    """What the overlap bought and what it cost."""
    story, accounts = run.story, run.accounts
    if not story.updates:
        return ["No update is finished yet."]
    lead = story.settings.get("max_lead", 0)
    busy_s = _working_s(story)
    said = [] if run.whole is None else [_of_a_long_run(run.whole)]
    said += [
        f"{len(story.updates)} updates in {seconds(accounts.wall_s)} with max_lead={_lead(lead)} "
        f"({story.settings.get('runtime', '?')}): {accounts.updates_per_s:.4g} updates/s."
    ]
    serial, own = run.simulated.serial_updates_per_s, run.simulated.own_updates_per_s
    at_most = "at most " if run.simulated.is_shared else ""
    if serial and own and lead != 0:
        factor = own / serial
        without_s = accounts.wall_s + busy_s * (factor - 1)
        said.append(
            f"What the overlap bought: without a lead the same work would have taken {at_most}"
            f"{seconds(without_s)} (simulated from this run's durations); the run was {at_most}{factor:.2f} "
            f"times as fast.{_sharing(run)}"
        )
    elif serial:
        best = next((row for row in run.simulated.rows if row["is_best"]), None)
        if best is not None and best["lead"] != "0":
            said.append(
                f"This run had no lead. With max_lead={best['lead']} the same work would be {at_most}"
                f"{best['speedup']:.2f} times as fast (simulated from this run's durations), on data "
                f"{best['staleness_mean']:.2f} versions old.{_sharing(run)}"
            )
    ess = accounts.learner.get("ess")
    size = "" if ess is None else f"; effective sample size {ess:.2f} over the last updates"
    said.append(
        f"What it cost: the data were {accounts.staleness.mean:.2f} versions old on average, at most "
        f"{accounts.staleness.max:g}{_bound(story.settings)}{size}."
    )
    said += [_of_line(run, name, line) for name, line in story.other_lines.items()]
    if run.bottleneck:
        said.append(f"{run.bottleneck[0].upper()}{run.bottleneck[1:]}.")
    return said


def _of_a_long_run(whole: WholeRun) -> str:
    opened, updates = whole.first.tickets["opened"], whole.first.updates
    return (
        f"A long run: {opened:,} tickets and {updates:,} updates in {seconds(whole.wall_s)}. Its totals and curves are "
        f"of all of it; everything else here is of {whole.only_end}."
    )


def _of_line(run: Seen, name: str, line: LineStory) -> str:
    """Another line than the first, in a sentence."""
    settings, ages = settings_of_line(run.story.settings, name), Ages.of(taken_in(line)).staleness
    learner, dropped = run.accounts.roles.get(learner_name(name)), sum(line.drops.values())
    worked = "" if learner is None else f"; its learner worked {share_of_role(learner, learner.busy.get('learn', 0.0))}"
    return (
        f"Line {name}: {len(line.updates)} updates, version {line.version}, with "
        f"max_lead={_lead(settings.get('max_lead', 0))}; its data were {ages.mean:.2f} versions old on average, at "
        f"most {ages.max:g}{_bound(settings)}{worked}{f'; {dropped} tickets dropped' if dropped else ''}."
    )


def _sharing(run: Seen) -> str:
    if not run.simulated.is_shared:
        return ""
    cpus, cores = run.story.environment.get("cpus"), run.accounts.cores
    used = "" if cores is None else f" (they used {cores:.1f} of {cpus})"
    return f" Its roles shared cores{used}, and work that overlaps there takes longer than it would alone."


def _bound(settings: Mapping[str, SettingValue]) -> str:
    bound = settings.get("staleness_bound")
    return " (no bound)" if bound is None else f" (bound {bound})"


def _lead(lead: object) -> str:
    return lead if isinstance(lead, str) else f"{lead:g}"


def _working_s(story: Story) -> float:
    """From the first ticket to the last update or score."""
    begin = min((ticket.opened for ticket in story.tickets.values()), default=story.begin_s)
    ends = [update.end for update in story.updates] + [e.end for e in story.evaluations if e.end is not None]
    return max(max(ends, default=begin) - begin, 1e-9)


def facts(run: Seen) -> list[list[str]]:
    """The numbers that are looked for first."""
    story, accounts, whole = run.story, run.accounts, run.of_all
    learner = accounts.roles.get(LEARNER)
    values = whole.scores
    worked = "-" if learner is None else share_of_role(learner, learner.busy.get("learn", 0.0))
    told = [
        ["Wall clock", seconds(whole.wall_s)],
        ["Updates", _of_each(whole, lambda line: str(line.updates))],
        ["Version", _of_each(whole, lambda line: str(line.version))],
        [_capital(step_word(story)), f"{whole.steps:,}" if story.updates else "0"],
        ["Staleness, mean / max", f"{accounts.staleness.mean:.2f} / {accounts.staleness.max:g}"],
        ["Learner worked", worked],
        ["Dropped", _of_each(whole, lambda line: str(sum(line.drops.values())))],
        ["Publish lag", seconds(accounts.publish_lag_s.mean)],
        ["Steps per second", _count(accounts.steps_per_s)],
    ]
    if values:
        told.insert(3, ["Score, last / best", f"{values[-1]:.4g} / {max(values):.4g}"])
    if accounts.cores is not None:
        cpus = story.environment.get("cpus")
        told.append(["Cores in use", f"{accounts.cores:.1f}" + (f" of {cpus}" if cpus else "")])
    if accounts.restarts or accounts.errors:
        told.append(["Restarts / errors", f"{accounts.restarts} / {accounts.errors}"])
    if story.scaled:
        told.append(["Collectors", ", then ".join(map(str, [story.scaled[0].before, *_numbers(story)]))])
    return told


def _numbers(story: Story) -> list[int | str]:
    """Of collectors, after each change; the last ones of many."""
    numbers = [change.collectors for change in story.scaled]
    return [*numbers] if len(numbers) <= SHOWN_CHANGES else ["...", *numbers[-SHOWN_CHANGES:]]


def _of_each(whole: WholeRun, told: Callable[[LineTotals], str]) -> str:
    """Of a run with several lines, that of each, the first one first."""
    return " / ".join(told(line) for line in whole.lines.values())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_text(value: object) -> str:
    """A setting as it is shown."""
    if isinstance(value, float) and value.is_integer():
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
