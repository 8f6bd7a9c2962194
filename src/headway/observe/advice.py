"""What to change about a run, from its story: `headway doctor`.

    story, accounts ---> signs (shares of the time) ---> one function a disease ---> findings: first what keeps the run
                                                                                   from learning, then the largest gain

A finding has its evidence in numbers and the exact option to change. Its gain is the share of the wall clock (or of the
data) that is lost to it now: the most that the change can bring. Nothing here knows the clock or the disk.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from headway.core.rules import slots_for
from headway.observe.alarms import DEFAULT_ALARMS
from headway.observe.run_history import LEARNER, Story
from headway.observe.time_report import Accounts

NEGLIGIBLE = 0.02
NOTICEABLE = 0.05
MIN_UPDATES = 5
RECENT = 10  # updates in which a run that does not learn is looked at
MOST = 0.9


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs time or data."""

    about: str
    """Which disease, in a word or two."""
    title: str
    evidence: str
    change: str
    """The option to change, as it is written on the command line; empty where there is none."""
    gain: float
    """The share of the time, or of the data, that this costs."""
    gains: str = "of the time"
    stops_learning: bool = False
    """As long as this is so, it does not matter how fast the run is."""

    def gain_text(self) -> str:
        return f"up to {100 * self.gain:.0f} % {self.gains}" if self.gain >= 0.005 else ""


def advise(story: Story, accounts: Accounts, *, recommended_lead: float | None = None) -> list[Finding]:
    """What to change: first what keeps the run from learning, then the largest gain; nothing if all is well or if there
    is too little to tell.

    `recommended_lead` is what a simulation of this run recommends, where there is one.
    """
    if len(story.updates) < MIN_UPDATES or LEARNER not in accounts.roles:
        return []
    signs = _read_signs(story, accounts, recommended_lead)
    findings = [found for look in DISEASES if (found := look(signs)) is not None]
    return sorted(findings, key=lambda found: (not found.stops_learning, -found.gain))


def bottleneck(story: Story, accounts: Accounts) -> str:
    """Which side decides how fast the run is, in one sentence."""
    if len(story.updates) < MIN_UPDATES or LEARNER not in accounts.roles:
        return f"too early to tell: {len(story.updates)} updates so far"
    signs = _read_signs(story, accounts, None)
    shares = (
        f"the learner worked {_percent(signs.learning)} of the time and waited {_percent(signs.idle)} for rollouts; "
        f"collectors worked {_percent(signs.collecting)} and stood before occupied slots {_percent(signs.blocked)}"
    )
    if signs.paused > max(signs.learning, 0.5):
        return (
            f"evaluations are the bottleneck: {_percent(signs.paused)} of the time everything waits for one; {shares}"
        )
    if signs.idle <= NOTICEABLE or signs.learning >= 0.9:
        return f"the learner is the bottleneck: {shares}"
    if signs.blocked <= NEGLIGIBLE:
        return f"collection is the bottleneck: {shares}"
    return f"neither side: they wait for each other; {shares}"


# -- signs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Signs:
    """Shares of the time between start and end, unless they say otherwise."""

    story: Story
    accounts: Accounts
    recommended_lead: float | None
    lead: float
    learning: float
    idle: float
    """The learner waited for rollouts."""
    out_of_turn: float
    """The part of it in which a whole batch was ready, but not the rollouts whose turn it was."""
    paused: float
    """The learner waited for evaluations."""
    saving: float
    between: float
    """Neither busy nor waiting: hand-overs."""
    collecting: float
    blocked: float
    """Collectors waited for a slot."""
    for_weights: float
    """Collectors waited for weights, or applied them."""
    pacing: float

    @property
    def tickets_per_version(self) -> int:
        settings = self.story.settings
        return int(settings["tickets_per_batch"] * settings["publish_every"])

    @property
    def seats(self) -> int:
        return int(self.story.settings["collectors"] * self.story.settings.get("lanes", 1))

    @property
    def is_auto(self) -> bool:
        return self.story.settings.get("max_lead") == "auto"

    def learner_says(self, name: str) -> float | None:
        return self.accounts.learner.get(name)

    def lately(self, name: str) -> float | None:
        """The mean over the last updates that reported it."""
        said = [u.metrics[name] for u in self.story.updates[-RECENT:] if isinstance(u.metrics.get(name), int | float)]
        return sum(said) / len(said) if said else None


def _read_signs(story: Story, accounts: Accounts, recommended_lead: float | None) -> _Signs:
    learner = accounts.roles[LEARNER]
    active = learner.wall_s - learner.blocked.get("starting", 0.0) - learner.blocked.get("ending", 0.0)
    active = max(active, 1e-9)
    collectors = [account for role, account in accounts.roles.items() if role.startswith("collector")]
    seconds = active * max(1, len(collectors))

    def of_learner(names: Sequence[str]) -> float:
        return sum(learner.busy.get(name, 0.0) + learner.blocked.get(name, 0.0) for name in names) / active

    def of_collectors(names: Sequence[str]) -> float:
        spent = (one.busy.get(name, 0.0) + one.blocked.get(name, 0.0) for one in collectors for name in names)
        return sum(spent) / seconds

    return _Signs(
        story=story,
        accounts=accounts,
        recommended_lead=recommended_lead,
        lead=story.leads[-1][1] if story.leads else 0.0,
        learning=of_learner(["learn"]),
        idle=of_learner(["data"]),
        out_of_turn=_out_of_turn_s(story) / active,
        paused=of_learner(["evaluation"]),
        saving=of_learner(["save", "state"]),
        between=learner.between_s / active,
        collecting=of_collectors(["collect"]),
        blocked=of_collectors(["slot"]),
        for_weights=of_collectors(["weights", "apply"]),
        pacing=of_collectors(["pause"]),
    )


def _out_of_turn_s(story: Story) -> float:
    """How long the learner waited for rollouts while a whole batch of others was ready."""
    if story.settings.get("replay") is not None or not story.queue:
        return 0.0
    batch = story.settings["tickets_per_batch"]
    times = [moment[0] for moment in story.queue]
    total = 0.0
    for interval in story.intervals:
        if interval.role != LEARNER or interval.what != "data":
            continue
        place = max(0, bisect_right(times, interval.begin) - 1)
        while place < len(times) and times[place] < interval.end:
            until = times[place + 1] if place + 1 < len(times) else interval.end
            if story.queue[place][3] >= batch:
                total += max(0.0, min(until, interval.end) - max(times[place], interval.begin))
            place += 1
    return total


# -- diseases ---------------------------------------------------------------------------------------


def _nothing_to_learn(signs: _Signs) -> Finding | None:
    share, spread = signs.lately("without_signal"), signs.lately("reward_std")
    if share is None or share < MOST:
        return None
    reward = signs.lately("reward") or 0.0
    title = "Nothing to learn from: the replies to a prompt are all worth the same"
    if not spread:
        title = "Nothing to learn from: every reply is worth the same"
    return Finding(
        "nothing to learn",
        title,
        f"In the last {min(RECENT, len(signs.story.updates))} updates {_percent(share)} of the replies had only equals "
        f"to be compared with (mean reward {reward:.3g}, deviation {spread or 0.0:.3g}). What helps is a task that is "
        "neither too hard nor too easy, a reward with steps in between, or more replies per prompt; `headway samples` "
        "shows what is rewarded.",
        "",
        share,
        "of the data",
        stops_learning=True,
    )


def _filtered(signs: _Signs) -> Finding | None:
    filtered, landed = signs.accounts.drops["filtered"], signs.accounts.collect_s.count
    if filtered < MOST * max(1, landed):
        return None
    return Finding(
        "filtered",
        "Nearly everything is filtered before it is learned from",
        f"{filtered} of {landed} rollouts were filtered: groups whose rewards are all equal, or prompts that are too "
        "long.",
        "",
        filtered / landed,
        "of the data",
        stops_learning=True,
    )


def _replies_cut_off(signs: _Signs) -> Finding | None:
    share, longest = signs.lately("cut_off"), signs.lately("reply_tokens_max")
    if share is None or share < 0.99 or longest is None:
        return None
    return Finding(
        "replies cut off",
        "Replies are cut off before they end",
        f"In the last {min(RECENT, len(signs.story.updates))} updates {_percent(share)} of the replies had no end of "
        f"their own: they were cut off after at most {longest:.0f} tokens.",
        f"--max_tokens {2 * round(longest)}",
        share,
        "of the data",
        stops_learning=(signs.lately("without_signal") or 0.0) >= 0.5,  # what is cut off may be worth something too
    )


def _engine_disagrees(signs: _Signs) -> Finding | None:
    gap, limit = signs.lately("mismatch_mean"), DEFAULT_ALARMS["engine_mismatch"]
    if gap is None or gap <= limit:
        return None
    return Finding(
        "engine mismatch",
        "Engine and trainer compute different policies",
        f"For the same weights their log-probabilities are {gap:.2g} apart on average, which is more than rounding "
        f"({limit:g}): the engine has other weights, another precision or another template.",
        "",
        min(1.0, 1 - math.exp(-gap)),
        "of the data",
        stops_learning=True,
    )


def _engine_not_compared(signs: _Signs) -> Finding | None:
    """Only where there is an engine: its tokens have an age."""
    if signs.learner_says("token_staleness") is None or signs.learner_says("mismatch_mean") is not None:
        return None
    return Finding(
        "engine not compared",
        "Engine and trainer were not compared, so the alarm engine_mismatch could not ring",
        f"In the last {min(100, len(signs.story.updates))} updates no tokens came whose weights the trainer still had.",
        "--check_engine_every 4",
        0.0,
    )


def _lead_too_small(signs: _Signs) -> Finding | None:
    idle = signs.idle - signs.out_of_turn
    if signs.is_auto or idle <= NEGLIGIBLE or signs.blocked <= NEGLIGIBLE or _ratio_binds(signs):
        return None
    lead = signs.recommended_lead
    if lead is None or lead <= signs.lead:
        if lead is not None and signs.lead > 0:
            return None  # simulated: more brings less than it is worth
        lead = max(signs.lead + 1, 2 * signs.lead, math.ceil(signs.seats / signs.tickets_per_version))
    return Finding(
        "lead too small",
        f"A lead of {signs.lead:g} is too small: both sides wait for each other",
        f"The learner waited {_percent(idle)} of the time for rollouts while collectors stood before occupied slots "
        f"{_percent(signs.blocked)} of theirs ({_slots(signs)} slots for {signs.seats} collecting at once).",
        f"--max_lead {lead:g}",
        min(idle, signs.blocked),
    )


def _ratio_binds(signs: _Signs) -> bool:
    """In a replay run: is it the ratio that holds tickets back, rather than the lead?"""
    if signs.story.settings.get("replay") is None:
        return False
    full = sum(1 for moment in signs.story.queue if sum(moment[1:]) >= _slots(signs))
    return full < len(signs.story.queue) / 2


def _ratio_too_low(signs: _Signs) -> Finding | None:
    if signs.story.settings.get("replay") is None or not _ratio_binds(signs) or signs.blocked <= NOTICEABLE:
        return None
    ratio = signs.story.settings["replay"]["samples_per_insert"]
    if signs.idle <= NOTICEABLE:
        return None
    return Finding(
        "replay ratio",
        "The replay ratio holds both sides back in turn",
        f"Collectors stood {_percent(signs.blocked)} of the time before a ratio of {ratio:g} samples per step, and the "
        f"learner waited {_percent(signs.idle)} for steps to draw from; slots were free.",
        f"--samples_per_insert {2 * ratio:g}",
        min(signs.idle, signs.blocked),
    )


def _collection_too_slow(signs: _Signs) -> Finding | None:
    idle = signs.idle - signs.out_of_turn
    if idle <= 0.1 or signs.blocked > NEGLIGIBLE:
        return None
    settings = signs.story.settings
    has_lanes = settings.get("lanes", 1) > 1
    name = "lanes" if has_lanes else "collectors"
    now = settings["lanes"] if has_lanes else settings["collectors"]
    wanted = max(now + 1, math.ceil(now * min(8.0, 1 / max(1e-9, signs.learning)) - 0.2))
    cpus = signs.story.environment.get("cpus")
    cores = f" This machine has {cpus} cores." if cpus and not has_lanes else ""
    lead = math.ceil(wanted * settings["collectors"] / signs.tickets_per_version) if has_lanes else 0
    lead = lead or math.ceil(wanted * settings.get("lanes", 1) / signs.tickets_per_version)
    more = f" --max_lead {lead}" if lead > signs.lead and not signs.is_auto else ""
    return Finding(
        "collection too slow",
        "Collection is slower than learning, and no lead helps",
        f"The learner waited {_percent(idle)} of the time for rollouts and collectors never for a slot "
        f"({_percent(signs.blocked)}); one rollout takes {_seconds(signs.accounts.collect_s.mean)}, one update "
        f"{_seconds(signs.accounts.learn_s.mean)}.{cores}",
        f"--{name} {wanted}{more}",
        idle * (1 - now / wanted) if wanted > now else 0.0,
    )


def _lead_too_large(signs: _Signs) -> Finding | None:
    waits, age = signs.accounts.stale_in_queue, signs.accounts.staleness.mean
    if signs.is_auto or signs.idle > NOTICEABLE or signs.lead <= 1:
        return None
    if signs.recommended_lead is None:
        lead, simulated = max(1.0, signs.lead - math.floor(waits)), ""
    else:
        lead = signs.recommended_lead
        simulated = f" Simulated with a lead of {lead:g} the run is as fast."
    if lead >= signs.lead or age < lead + 1:
        return None
    ess = signs.learner_says("ess")
    lost = 0.0 if ess is None else (1 - ess) * (1 - lead / signs.lead)
    return Finding(
        "lead too large",
        f"A lead of {signs.lead:g} is larger than it needs to be: the data are older for nothing",
        f"The learner waited {_percent(signs.idle)} of the time for rollouts, which were {age:.1f} versions old "
        f"({signs.accounts.stale_in_flight:.1f} came up on the way, {waits:.1f} while they waited "
        f"{_seconds(signs.accounts.queue_s.mean)} for the learner).{simulated}",
        f"--max_lead {lead:g}",
        max(0.0, lost),
        "of the data",
    )


def _staleness_hurts(signs: _Signs) -> Finding | None:
    age = signs.accounts.staleness.mean
    if age <= 0 or signs.lead <= 0:
        return None
    target = signs.story.settings.get("target_effective_sample_size", 0.7)
    ess, clipped = signs.learner_says("ess"), signs.learner_says("clip_fraction")
    parts = []
    if ess is not None and ess < target:
        parts.append(f"the effective sample size is {ess:.2f} over the last updates, under {target:g}")
    if clipped is not None and clipped > 0.3:
        parts.append(f"{_percent(clipped)} of the ratios are clipped")
    falls = _trend(signs.story, "ess")
    if ess is not None and falls < -0.1:
        parts.append(f"the effective sample size fell by {-falls:.2f} from the first quarter of the run to the last")
    if not parts:
        return None
    smaller = math.floor(signs.lead / 2)
    if signs.recommended_lead is not None and signs.recommended_lead < signs.lead:
        smaller = math.floor(signs.recommended_lead)  # it knows the sample size that was aimed at
    change = f"--max_lead {smaller}" if not signs.is_auto else f"--lead_limit {max(1, smaller)}"
    return Finding(
        "staleness hurts",
        "The data are too old for the learner",
        f"With a mean age of {age:.1f} versions, {' and '.join(parts)}.",
        change,
        max(0.0, 1 - ess if ess is not None else clipped or 0.0),
        "of the data",
    )


def _evaluation_blocks(signs: _Signs) -> Finding | None:
    if signs.paused <= NOTICEABLE:
        return None
    settings = signs.story.settings
    if not settings["evaluate_in_background"]:
        change = "--evaluate_in_background true"
    elif settings["dispatch"] == "pinned" and settings.get("target_score") is not None:
        change = "--dispatch free"  # a pinned run may not depend on when a score comes
    else:
        change = f"--evaluate_every {2 * (settings.get('evaluate_every') or 1)}"
    return Finding(
        "evaluation blocks",
        "Learning stands still for evaluations",
        f"The learner waited {_percent(signs.paused)} of the time for {len(signs.story.evaluations)} evaluations of "
        f"{_seconds(signs.accounts.evaluate_s.mean)} each.",
        change,
        signs.paused,
    )


def _evaluations_skipped(signs: _Signs) -> Finding | None:
    done, skipped = len(signs.story.evaluations), len(signs.story.skipped)
    if skipped <= max(1, done):
        return None
    every = signs.story.settings.get("evaluate_every") or 1
    return Finding(
        "evaluations skipped",
        "Evaluations are slower than they come due",
        f"{skipped} of {done + skipped} evaluations were skipped because the one before still ran "
        f"({_seconds(signs.accounts.evaluate_s.mean)} each).",
        f"--evaluate_every {every * math.ceil((done + skipped) / max(1, done))}",
        0.0,
    )


def _evaluations_failed(signs: _Signs) -> Finding | None:
    whys = [evaluation.error for evaluation in signs.story.evaluations if evaluation.error]
    if not whys:
        return None
    return Finding(
        "evaluations failed",
        "Evaluations end without a score",
        f"{len(whys)} of {len(signs.story.evaluations)} evaluations failed; most often: "
        f"{Counter(whys).most_common(1)[0][0]}.",
        "",
        0.0,
    )


def _stale_drops(signs: _Signs) -> Finding | None:
    too_old = signs.accounts.drops["stale"] + signs.accounts.drops["expired"] + len(signs.story.requeued)
    landed = max(1, signs.accounts.collect_s.count + len(signs.story.requeued))
    if too_old / landed <= NOTICEABLE:
        return None
    limit, age_s = signs.story.settings["max_staleness"], signs.story.settings.get("max_age_s")
    if limit is not None:
        change, under = f"--max_staleness {2 * limit + 1}", f"max_staleness={limit}"
    else:
        change, under = f"--max_age_s {2 * (age_s or 0):g}", f"max_age_s={age_s}"
    lead = math.floor(signs.lead / 2)
    return Finding(
        "drops",
        "Much of what is collected is thrown away as too old",
        f"{too_old} of {landed} rollouts were over the limit ({under}, lead {signs.lead:g}) when their turn came; "
        f"length bias {100 * signs.accounts.length_bias:+.1f} %.",
        f"--max_lead {lead}  (or {change})" if lead >= 1 and not signs.is_auto else change,
        too_old / landed * signs.collecting,
    )


def _failures(signs: _Signs) -> Finding | None:
    flights = max(1, sum(ticket.flights for ticket in signs.story.tickets.values()))
    errors = signs.accounts.errors
    if errors / flights <= NEGLIGIBLE:
        return None
    whys = [why for _, _, why in signs.story.reissued + signs.story.lost]
    whys += [ticket.why for ticket in signs.story.tickets.values() if ticket.reason == "failed"]
    common = Counter(whys).most_common(1)[0][0] if whys else "unknown"
    return Finding(
        "failures",
        "Collections fail",
        f"{errors} of {flights} flights failed or were lost, with {signs.accounts.restarts} restarts; most often: "
        f"{common}.",
        "",
        errors / flights * signs.collecting,
    )


def _stragglers(signs: _Signs) -> Finding | None:
    """The learner waits for one slow rollout although others are ready, or one collector is slower than the rest."""
    if signs.out_of_turn <= NOTICEABLE:
        return None
    settings = signs.story.settings
    slow = _slow_collector(signs.story)
    collect = signs.accounts.collect_s
    evidence = (
        f"{_percent(signs.out_of_turn)} of the time the learner waited for a rollout whose turn it was while a whole "
        f"batch of others was ready. A rollout takes {_seconds(collect.mean)} on average, one in twenty more than "
        f"{_seconds(collect.p95)}, the longest {_seconds(collect.max)}."
    )
    if slow is not None and settings["dispatch"] == "pinned":
        role, factor = slow
        return Finding(
            "slow collector",
            f"{role} holds the others up",
            f"{evidence} {role} takes {factor:.1f} times as long as the others.",
            f"--order 'window({2 * signs.seats})'",
            signs.out_of_turn,
        )
    return Finding(
        "stragglers",
        "Slow rollouts hold up those that are ready",
        evidence,
        f"--order 'window({2 * signs.tickets_per_version + signs.seats})'",
        signs.out_of_turn,
    )


def _slow_collector(story: Story) -> tuple[str, float] | None:
    """A collector whose typical rollout takes half as long again as that of the others, and nearly each of them longer
    than most."""
    seconds: dict[str, list[float]] = {}
    for ticket in story.tickets.values():
        if ticket.role is not None and ticket.began is not None and ticket.ended is not None:
            seconds.setdefault(ticket.role.partition("/")[0], []).append(ticket.ended - ticket.began)
    if len(seconds) < 2 or min(map(len, seconds.values())) < 4:
        return None
    typical = {role: median(values) for role, values in seconds.items()}
    slowest = max(typical, key=lambda role: typical[role])
    others = median(value for role, value in typical.items() if role != slowest)
    usual = median(value for values in seconds.values() for value in values)
    late = sum(value > usual for value in seconds[slowest]) / len(seconds[slowest])
    is_slow = others > 0 and typical[slowest] > 1.5 * others and late >= 0.85
    return (slowest, typical[slowest] / others) if is_slow else None


def _publish_exposed(signs: _Signs) -> Finding | None:
    if signs.for_weights <= NOTICEABLE:
        return None
    every = signs.story.settings["publish_every"]
    drains = sum(i.seconds for i in signs.story.intervals if i.what == "drain")
    applies = sum(i.seconds for i in signs.story.intervals if i.what in ("apply", "applying", "weights"))
    lag = signs.accounts.publish_lag_s.mean
    partial = drains > applies and signs.story.settings.get("on_publish") == "drain"
    return Finding(
        "publish exposed",
        "Collectors stand still for new weights",
        f"{_percent(signs.for_weights)} of their time collectors waited for weights or applied them "
        f"({_seconds(drains)} until their lanes were empty, {_seconds(applies)} for the weights themselves); a version "
        f"was first used {_seconds(lag)} after its update.",
        "--on_publish partial" if partial else f"--publish_every {2 * every}",
        signs.for_weights if partial else signs.for_weights / 2,
    )


def _saving_blocks(signs: _Signs) -> Finding | None:
    every, every_s = (signs.story.settings.get(name, 0) for name in ("save_every", "save_every_s"))
    if signs.saving <= NOTICEABLE or not (every or every_s):
        return None
    return Finding(
        "checkpoints block",
        "Learning stands still for checkpoints",
        f"{_percent(signs.saving)} of the learner's time went into {len(signs.story.saves)} checkpoints.",
        f"--save_every {4 * every}" if every else f"--save_every_s {4 * every_s:g}",
        0.75 * signs.saving,
    )


def _tickets_too_small(signs: _Signs) -> Finding | None:
    """What is left is the coordinator's, and the hand-over between roles."""
    if signs.between <= 0.1 or signs.accounts.learn_s.mean > 0.02:
        return None
    batch = signs.story.settings["tickets_per_batch"]
    return Finding(
        "tickets too small",
        "Tickets are so small that handing them over costs more than it should",
        f"{_percent(signs.between)} of the learner's time lay between two calls; an update takes "
        f"{_seconds(signs.accounts.learn_s.mean)}, a rollout {_seconds(signs.accounts.collect_s.mean)}.",
        f"--tickets_per_batch {4 * batch}  (or longer rollouts)",
        signs.between,
    )


def _paced(signs: _Signs) -> Finding | None:
    pacing = signs.story.settings.get("pacing_s", 0.0)
    if not pacing or signs.pacing <= NOTICEABLE or signs.idle <= NOTICEABLE:
        return None
    return Finding(
        "pacing",
        "Collectors are paced while the learner waits",
        f"Collectors waited {_percent(signs.pacing)} of the time for pacing_s={pacing:g}, the learner "
        f"{_percent(signs.idle)} for rollouts.",
        f"--pacing_s {pacing / 2:g}",
        min(signs.pacing, signs.idle),
    )


DISEASES: tuple[Callable[[_Signs], Finding | None], ...] = (
    _nothing_to_learn,
    _filtered,
    _replies_cut_off,
    _engine_disagrees,
    _lead_too_small,
    _ratio_too_low,
    _collection_too_slow,
    _stragglers,
    _evaluation_blocks,
    _staleness_hurts,
    _publish_exposed,
    _stale_drops,
    _failures,
    _saving_blocks,
    _tickets_too_small,
    _paced,
    _lead_too_large,
    _evaluations_skipped,
    _evaluations_failed,
    _engine_not_compared,
)


def _trend(story: Story, name: str) -> float:
    """The mean over the last quarter of the updates minus that over the first."""
    values = [u.metrics[name] for u in story.updates if isinstance(u.metrics.get(name), int | float)]
    quarter = len(values) // 4
    return sum(values[-quarter:]) / quarter - sum(values[:quarter]) / quarter if quarter else 0.0


def _slots(signs: _Signs) -> int:
    return slots_for(signs.lead, signs.tickets_per_version)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"
