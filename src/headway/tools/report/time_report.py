"""Where the time of a run went, and what asynchrony cost: sums over its story.

    role       |<---------------------------- wall clock ---------------------------->|
    learner    | starting | data | learn | data | learn | evaluation | learn | ending |
               |  blocked |      |  busy |      |       |   blocked  |       |        |

Times are integrated over intervals. Per role, busy and blocked time and the coordinator's own moments between two
activities (`between_s`) are the wall clock; the last of the three is what the coordination itself costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headway.coordinator.activities import CAUSES
from headway.core.events import Left, Looked, Scaled
from headway.core.history_records import TicketLife
from headway.core.types_opaque import JsonObject
from headway.tools.report.recorded_run_story_records import LineStory, Story

LAST_UPDATES = 100  # what the learner reported over these many


@dataclass(frozen=True, slots=True)
class RoleAccount:
    """One role's time, in seconds."""

    role: str
    wall_s: float
    busy: dict[str, float]
    """By what it did: `collect`, `learn`, `evaluate`, ..."""
    blocked: dict[str, float]
    """By cause: `slot`, `data`, `weights`, `evaluation`, `pause`, `starting`, `ending`, `nothing to do`."""

    @property
    def busy_s(self) -> float:
        return sum(self.busy.values())

    @property
    def blocked_s(self) -> float:
        return sum(self.blocked.values())

    @property
    def between_s(self) -> float:
        return self.wall_s - self.busy_s - self.blocked_s

    def share(self, seconds: float) -> float:
        return seconds / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """Many values in three. All are 0 if there is none."""

    count: int
    mean: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        ordered = sorted(values)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0)
        last = len(ordered) - 1
        return cls(len(ordered), sum(ordered) / len(ordered), ordered[round(0.95 * last)], ordered[last])


@dataclass(frozen=True, slots=True)
class Ages:
    """How old the rollouts of a line were when they were taken."""

    staleness: Distribution
    in_flight: float
    """Mean, in versions: what had come up when the rollout landed."""
    in_queue: float
    """Mean, in versions: what came up while it waited for the learner. The two add up to the mean staleness."""
    counts: Counter[int]
    """Staleness -> rollouts."""

    @classmethod
    def of(cls, taken: Sequence[TicketLife]) -> Ages:
        num = max(1, len(taken))
        return cls(
            Distribution.of(float(ticket.staleness or 0) for ticket in taken),
            sum(ticket.stale_in_flight or 0 for ticket in taken) / num,
            sum(ticket.stale_in_queue or 0 for ticket in taken) / num,
            Counter(ticket.staleness for ticket in taken if ticket.staleness is not None),
        )


def taken_in(line: LineStory) -> list[TicketLife]:
    """The rollouts of a line that landed and were taken."""
    return [ticket for ticket in line.tickets.values() if ticket.ended is not None and ticket.staleness is not None]


@dataclass(frozen=True, slots=True)
class Accounts:
    """A run in numbers. Rates are per second of the wall clock."""

    wall_s: float
    roles: dict[str, RoleAccount]
    staleness: Distribution
    stale_in_flight: float
    """Mean, in versions: what had come up when the rollout landed."""
    stale_in_queue: float
    """Mean, in versions: what came up while it waited for the learner. The two add up to the mean staleness."""
    ages: Counter[int]
    """Staleness -> rollouts."""
    publish_lag_s: Distribution
    """From the end of an update to the first rollout that took off with its version."""
    queue_s: Distribution
    """How long rollouts waited for the learner."""
    collect_s: Distribution
    learn_s: Distribution
    evaluate_s: Distribution
    length_bias: float
    """How much shorter the trained rollouts are than the offered ones."""
    updates_per_s: float
    rollouts_per_s: float
    """That came in."""
    steps_per_s: float
    """Environment steps (or tokens) that came in."""
    trained_steps_per_s: float
    drops: Counter[str]
    errors: int
    """Flights that failed, rollouts that were lost, tickets given up."""
    restarts: int
    learner: dict[str, float]
    """Mean of what the learner reported over the last hundred updates: `ess`, `kl`, `clip_fraction`, ..."""
    cores: float | None = None
    """Processor cores in use on the coordinator's machine, mean of the last session; None where nobody looked."""
    memory: dict[str, int] = field(default_factory=dict)
    """The most bytes that were seen: `run` for the coordinator's process, then the roles with processes of their own.
    Empty where the system does not say."""


def account(story: Story) -> Accounts:
    """Add up a story."""
    wall_s = sum(session.end - session.begin for session in story.sessions)
    landed = [ticket for ticket in story.tickets.values() if ticket.ended is not None]
    taken = taken_in(story.first)
    ages = Ages.of(taken)
    per_s = 1 / wall_s if wall_s > 0 else 0.0
    given_up = sum(1 for ticket in story.tickets.values() if ticket.reason == "failed")
    return Accounts(
        wall_s=wall_s,
        roles=_roles(story, wall_s),
        staleness=ages.staleness,
        stale_in_flight=ages.in_flight,
        stale_in_queue=ages.in_queue,
        ages=ages.counts,
        publish_lag_s=Distribution.of(v.lag_s for v in story.versions if v.lag_s is not None and v.update is not None),
        queue_s=Distribution.of(ticket.queue_s for ticket in taken if ticket.queue_s is not None),
        collect_s=Distribution.of(t.ended - t.began for t in landed if t.ended is not None and t.began is not None),
        learn_s=Distribution.of(update.seconds for update in story.updates),
        evaluate_s=Distribution.of(e.end - e.begin for e in story.evaluations if e.end is not None),
        length_bias=length_bias_of(story.first),
        updates_per_s=len(story.updates) * per_s,
        rollouts_per_s=(len(landed) + len(story.requeued) + len(story.lost)) * per_s,
        steps_per_s=sum(ticket.steps for ticket in landed) * per_s,
        trained_steps_per_s=sum(ticket.steps for ticket in taken) * per_s,
        drops=Counter(story.drops),
        errors=len(story.reissued) + len(story.lost) + given_up,
        restarts=len(story.restarts),
        learner=_last_reports([update.metrics for update in story.updates[-LAST_UPDATES:]]),
        cores=_cores(story),
        memory=_most_memory(story.looks),
    )


def _roles(story: Story, wall_s: float) -> dict[str, RoleAccount]:
    roles = {role: RoleAccount(role, wall_s - _away_s(story, role), {}, {}) for role in story.roles}
    for interval in story.intervals:
        of_role = roles[interval.role]
        if interval.kind == "busy":
            by, name = of_role.busy, interval.what
        else:
            by, name = of_role.blocked, CAUSES.get(interval.what, interval.what)
        by[name] = by.get(name, 0.0) + interval.seconds
    return roles


def _away_s(story: Story, role: str) -> float:
    """How long a collector was not there: before it was added, or after it left."""
    kind, _, rest = role.partition("-")
    if kind != "collector" or not story.scaled:
        return 0.0
    number, away_s = int(rest.partition("/")[0]), 0.0
    changes: list[Scaled | Left] = sorted([*story.scaled, *story.left], key=lambda change: change.time_s)
    for session in story.sessions:
        within = [change for change in changes if session.begin <= change.time_s <= session.end]
        counts = [change.before for change in within if isinstance(change, Scaled)]
        is_there, since = number < (counts[0] if counts else session.settings["collectors"]), session.begin
        for change in within:
            joins = isinstance(change, Scaled) and change.before <= number < change.collectors
            if joins and not is_there:
                away_s, is_there = away_s + change.time_s - since, True
            elif isinstance(change, Left) and change.role == f"collector-{number}":
                is_there, since = False, change.time_s
        if not is_there:
            away_s += session.end - since
    return away_s


def length_bias_of(line: LineStory) -> float:
    """How much shorter the rollouts are that a line trained on than those that it was offered."""
    trained = [ticket.length for ticket in taken_in(line)]
    offered = [ticket.length for ticket in line.tickets.values() if ticket.ended is not None]
    if not trained or sum(offered) <= 0:
        return 0.0
    return (sum(trained) / len(trained)) / (sum(offered) / len(offered)) - 1


def _last_reports(reports: Sequence[JsonObject]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            if isinstance(value, int | float):
                values.setdefault(name, []).append(float(value))
    return {name: sum(seen) / len(seen) for name, seen in values.items()}


def _cores(story: Story) -> float | None:
    began = story.sessions[-1].begin if story.sessions else 0.0
    looks = [(look.cpu_s, look.time_s) for look in story.looks if look.cpu_s is not None and look.time_s > began]
    return looks[-1][0] / (looks[-1][1] - began) if looks else None


def _most_memory(looks: Sequence[Looked]) -> dict[str, int]:
    most: dict[str, int] = {}
    for look in looks:
        seen = {"run": look.rss, **look.memory}
        for name, size in seen.items():
            if size is not None:
                most[name] = max(most.get(name, 0), int(size))
    return most
