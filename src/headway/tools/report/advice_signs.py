"""What a run shows of itself, as shares of its time: the signs from which advice is made; and a finding."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from headway.tools.report.recorded_run_story_records import LEARNER, Story
from headway.tools.report.time_report import Accounts

NEGLIGIBLE = 0.02
NOTICEABLE = 0.05
RECENT = 10  # updates in which a run that does not learn is looked at


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


@dataclass(frozen=True, slots=True)
class Signs:
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


def read_signs(story: Story, accounts: Accounts, recommended_lead: float | None) -> Signs:
    learner = accounts.roles[LEARNER]
    active = learner.wall_s - learner.blocked.get("starting", 0.0) - learner.blocked.get("ending", 0.0)
    active = max(active, 1e-9)
    collectors = [account for role, account in accounts.roles.items() if role.startswith("collector")]
    there = sum(one.wall_s for one in collectors) / learner.wall_s if story.scaled else len(collectors)
    seconds = active * max(1, there)

    def of_learner(names: Sequence[str]) -> float:
        return sum(learner.busy.get(name, 0.0) + learner.blocked.get(name, 0.0) for name in names) / active

    def of_collectors(names: Sequence[str]) -> float:
        spent = (one.busy.get(name, 0.0) + one.blocked.get(name, 0.0) for one in collectors for name in names)
        return sum(spent) / seconds

    return Signs(
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


def rarer(every: int, done: int, skipped: int) -> int | None:
    """Versions between two of what comes due every so many, if more are skipped than are done; None if not."""
    return every * math.ceil((done + skipped) / max(1, done)) if skipped > max(1, done) else None


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


def in_seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"
