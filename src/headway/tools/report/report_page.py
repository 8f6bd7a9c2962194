"""A page about runs, for people.

    run folder --read_story--> story --account--> accounts --advise--> findings
               --metrics.jsonl, of a long run--> totals and curves of all of it
                                     --what_if--> the simulator, fitted to it
                                     all together --page--> report.html

The page appears whole or not at all. Whatever the run is doing meanwhile (or has stopped doing), it is valid up to the
last event in its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headway.coordinator.state_files_whole_files import write_whole
from headway.core.os_errors import refusal
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.runs.folder_environment import process_is_alive
from headway.runs.recipes_package import RECIPES, load_recipe
from headway.runs.samples import EVAL, TRAIN, Sample, choose, read_samples
from headway.tools.report.advice import advise, bottleneck
from headway.tools.report.agent_report import newest_groups
from headway.tools.report.recorded_run_run_history import ONLY_ITS_END, read_story
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.report import Seen, Setting, Simulated, document, page
from headway.tools.report.series_whole_run import WholeRun, read_points, whole_of_points
from headway.tools.report.time_report import Accounts, account
from headway.tools.report.what_if import LEFT_OUT, WhatIf, what_if
from headway.tools.simulate.simulation import WORTH_A_VERSION

REPORT = "report.html"
ENOUGH_UPDATES = 10
NUM_SAMPLES = 3
NOT_SIMULATED = "A long run is not simulated here, so that its page comes at once: headway doctor RUN does it."
SHARED_THREADS = 0.5  # cores
SHARED_MACHINE = 0.8  # of all cores


def write_report(folders: Sequence[Path], output: Path | None = None, *, whole: bool = False) -> Path:
    """One page about these runs, side by side; in the folder of the first unless `output` says where. With `whole` all
    of a long log is read."""
    path = output or folders[0] / REPORT
    text = page(document(see(folders, whole=whole)))
    try:
        write_whole(path, text)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    return path


def leave_report(folder: RunFolder) -> str:
    """The page at the end of a run, however it ended: a line that names it, or says why there is none."""
    try:
        return f"report: {write_report([folder.path])}"
    except ValueError as error:
        return f"no report: {error}"
    except (OSError, MemoryError) as error:
        return f"no report: {refusal(error)}; to write it: headway report {folder.path}"


def see(folders: Sequence[Path], *, whole: bool = False) -> list[Seen]:
    """Everything about these runs. Long ones are told by their end and their numbers, and not simulated, unless it is
    to be the `whole`: so they take as long whatever their length."""
    stories = [read_story(folder, whole=whole) for folder in folders]
    named = zip(stories, names_of(folders), strict=True)
    return [look(story, name, unsimulated=NOT_SIMULATED if is_only_end(story) else "") for story, name in named]


def names_of(folders: Sequence[Path]) -> list[str]:
    """Runs whose folders have the same name are told apart by their place."""
    names = [folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def look(story: Story, name: str, *, unsimulated: str = "") -> Seen:
    """One run with everything that follows from its story. The simulator takes seconds: with `unsimulated`, which says
    why, it is left out."""
    called = story.config.get("name")
    accounts = account(story)
    simulated, recommended = (Simulated(note=unsimulated), None) if unsimulated else _simulate(story, accounts)
    samples = _samples(story)
    return Seen(
        name=f"{called} ({name})" if called else name,
        story=story,
        accounts=accounts,
        findings=advise(story, accounts, recommended_lead=recommended),
        bottleneck=bottleneck(story, accounts),
        simulated=simulated,
        settings=_settings(story.recipe),
        is_alive=is_alive(story),
        samples=[one for split in (EVAL, TRAIN) for one in choose(samples, at_most=NUM_SAMPLES, split=split)],
        groups=newest_groups(samples),
        whole=_whole(story),
    )


def is_only_end(story: Story) -> bool:
    """Whether it was told from the end of a long log."""
    return story.gap == ONLY_ITS_END


def _whole(story: Story) -> WholeRun | None:
    """Of a long run: what its numbers say, where there are any."""
    if not is_only_end(story) or story.folder is None:
        return None
    return whole_of_points(read_points(RunFolder(story.folder).metrics), story)


def _samples(story: Story) -> list[Sample]:
    if story.folder is None or not (path := RunFolder(story.folder).samples).is_file():
        return []
    return list(read_samples(path))


def is_alive(story: Story) -> bool | None:
    """Whether the process of a run is there; None once the run is over."""
    return None if story.is_over else process_is_alive(story.environment)


def _settings(recipe: str) -> dict[str, Setting]:
    """The defaults of a recipe. Of one that lacks a package here, or of your own (whose code is not run for this), what
    all recipes share."""
    fields = RunConfig.model_fields
    if recipe in RECIPES:
        try:
            fields = load_recipe(recipe).config.model_fields
        except ImportError:
            pass
    return {
        name: Setting(field.get_default(call_default_factory=True), field.description or "")
        for name, field in fields.items()
    }


# -- what if ----------------------------------------------------------------------------------------


def _simulate(story: Story, accounts: Accounts) -> tuple[Simulated, float | None]:
    if len(story.updates) < ENOUGH_UPDATES:
        return Simulated(note=f"{len(story.updates)} updates are too few to simulate anything from."), None
    try:
        found = what_if(story)
    except ValueError as error:
        return Simulated(note=f"There is nothing to simulate: {error}."), None
    serial = next((outcome.updates_per_s for lead, outcome in found.rows if lead == 0), None)
    recommended = found.best if isinstance(found.best, int | float) else None
    table = _as_table(found, serial, story)
    return replace(table, is_shared=_is_shared(story, accounts)), recommended


def _as_table(found: WhatIf, serial: float | None, story: Story) -> Simulated:
    base = serial or found.rows[0][1].updates_per_s
    rows = [
        {
            "lead": f"auto (ends at {outcome.lead:g})" if lead == "auto" else f"{lead:g}",
            "updates_per_s": outcome.updates_per_s,
            "speedup": outcome.updates_per_s / base,
            "staleness_mean": outcome.staleness_mean,
            "staleness_max": outcome.staleness_max,
            "learner_idle": outcome.learner_idle,
            "is_best": lead == found.best,
        }
        for lead, outcome in found.rows
    ]
    best = next(row for row in rows if row["is_best"])
    rates = {lead: outcome.updates_per_s for lead, outcome in found.rows}
    faster = rates.get("auto", 0.0) / rates[found.best]
    also = f" max_lead=auto would be {faster:.2f} times as fast as that." if faster > 1 + WORTH_A_VERSION else ""
    now = story.settings["max_lead"]
    is_now = now == found.best
    refused = "".join(f" Lead {lead} is refused: {why}." for lead, why in found.refused.items())
    return Simulated(
        rows=rows,
        serial_updates_per_s=serial,
        own_updates_per_s=found.repeated.simulated.updates_per_s,
        recommendation=f"Recommended: max_lead={best['lead']}{', as it is' if is_now else ''}: {found.reason}.{also}",
        caption="The coordinator on a virtual clock, with the durations of this run",
        fit=found.repeated.sentence(),
        note=LEFT_OUT + refused,
    )


def _is_shared(story: Story, accounts: Accounts) -> bool:
    """Did roles compute in each other's way? Threads do from half a core on, as one of them runs Python at a time;
    processes when the machine is nearly full. Where nobody looked at it they may have."""
    runtime, cpus, cores = story.settings.get("runtime"), story.environment.get("cpus"), accounts.cores
    if runtime == "threads":
        return cores is None or cores > SHARED_THREADS
    if cores is None or not cpus:
        return False
    return runtime in ("processes", "ray") and cores > SHARED_MACHINE * cpus
