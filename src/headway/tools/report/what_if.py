"""What another lead would have given a recorded run, and which one to choose.

story --fit--> workshop --simulate--> the same run again: is the model right about what it has seen?
                        --simulate--> each other lead --> the smallest that is as fast as any, if its data is young
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.simulation import WORTH_A_VERSION, Outcome, Workshop, recommend, simulate

LEADS: tuple[float | Literal["auto"], ...] = (0, 0.5, 1, 2, 4, 8, "auto")
LEFT_OUT = (
    "The model knows durations, not learning, and takes them as they were: where roles share cores or an engine, work "
    "takes longer the more of it overlaps, so on a full machine a larger lead gives less than this table says and a "
    "smaller one more. Failures and restarts, the reanalyzer and limits in bytes are left out."
)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run as it was, in the words of an `Outcome`."""

    updates: int
    wall_s: float
    """From the first ticket to the last update or score, without the time between two sessions."""
    staleness_mean: float

    @property
    def updates_per_s(self) -> float:
        return self.updates / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Repeated:
    """The recorded run beside the same run simulated."""

    lead: float | str
    measured: MeasuredRun
    simulated: Outcome

    @property
    def rate_error(self) -> float:
        """How much faster the simulated run is (0.01: one percent)."""
        return self.simulated.updates_per_s / self.measured.updates_per_s - 1

    @property
    def staleness_error(self) -> float:
        """The same for the mean staleness, of at least a tenth of a version: a share of nothing says nothing."""
        measured = self.measured.staleness_mean
        return (self.simulated.staleness_mean - measured) / max(measured, 0.1)

    def sentence(self) -> str:
        return (
            f"Simulated with its own lead, the run makes {self.simulated.updates_per_s:.4g} updates/s where "
            f"{self.measured.updates_per_s:.4g} were measured ({100 * self.rate_error:+.1f} %), on data "
            f"{self.simulated.staleness_mean:.2f} versions old where they were {self.measured.staleness_mean:.2f}."
        )


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Every lead, the one to choose, and why."""

    rows: tuple[tuple[float | str, Outcome], ...]
    best: float | str
    reason: str
    repeated: Repeated
    refused: dict[str, str]
    """Leads that these settings do not allow, with the reason."""


def what_if(story: Story, leads: Sequence[float | Literal["auto"]] = LEADS) -> WhatIf:
    """The run under each lead, and the recommendation; a run that tells too little is a `ValueError`."""
    workshop = fit(story)
    rows: list[tuple[float | str, Outcome]] = []
    refused: dict[str, str] = {}
    for lead in leads:
        try:
            rows.append((lead, simulate(workshop, lead)))
        except ValueError as error:
            refused[str(lead)] = str(error)
    if not rows:
        raise ValueError(f"no lead can be simulated: {next(iter(refused.values()))}")
    best, reason = _choose(rows, workshop)
    return WhatIf(tuple(rows), best, reason, repeat(story, workshop), refused)


def repeat(story: Story, workshop: Workshop | None = None) -> Repeated:
    """Simulate the run with its own lead: what the model gets wrong there, it gets wrong elsewhere."""
    workshop = workshop or fit(story)
    lead = story.settings["max_lead"]
    return Repeated(lead, measure(story), simulate(workshop, lead))


def _choose(rows: Sequence[tuple[float | str, Outcome]], workshop: Workshop) -> tuple[float | str, str]:
    """The smallest lead that is as fast as any, unless the data would be too old for it."""
    fixed = [outcome for lead, outcome in rows if lead != "auto"] or [outcome for _, outcome in rows]
    best, base = recommend(fixed), fixed[0]
    gain = best.updates_per_s / base.updates_per_s
    if best is base:
        reason = f"no larger fixed lead brings {100 * WORTH_A_VERSION:g} % more throughput"
    else:
        reason = (
            f"the smallest fixed lead within {100 * WORTH_A_VERSION:g} % of the best, {gain:.2f} times as fast as lead "
            f"{base.lead:g}, on data {best.staleness_mean:.2f} versions old"
        )
    target = workshop.target_effective_sample_size
    if workshop.decay and _sample_size(workshop, best) < target:
        young = [outcome for outcome in fixed if _sample_size(workshop, outcome) >= target]
        if young:
            best, fastest = recommend(young), best
            reason = (
                f"lead {fastest.lead:g} would be {fastest.updates_per_s / best.updates_per_s:.2f} times as fast, but "
                f"with an effective sample size of about {_sample_size(workshop, fastest):.2f}, under the "
                f"target of {target:g}"
            )
    return best.lead, reason


def _sample_size(workshop: Workshop, outcome: Outcome) -> float:
    return math.exp(-workshop.decay * outcome.staleness_mean)


def measure(story: Story) -> MeasuredRun:
    """Throughput and age of the recorded run, as the simulator counts them."""
    ages = [ticket.staleness for ticket in story.tickets.values() if ticket.staleness is not None]
    ends = [update.end for update in story.updates]
    ends += [evaluation.end for evaluation in story.evaluations if evaluation.end is not None]
    begins = [ticket.began for ticket in story.tickets.values() if ticket.began is not None]
    wall_s = 0.0
    for session in story.sessions:
        began = [at for at in begins if session.begin <= at <= session.end]
        ended = [at for at in ends if session.begin <= at <= session.end]
        if began and ended:
            wall_s += max(ended) - min(began)
    return MeasuredRun(len(story.updates), wall_s, sum(ages) / len(ages) if ages else 0.0)
