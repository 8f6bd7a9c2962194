"""Numbers of a run over time, few enough to draw: at most `MAX_POINTS` a line, however long the run was.

A line with more points is cut into stretches of equally many, and each becomes its mean. What has a rate (updates,
rollouts, steps) is counted in equal stretches of time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from headway.core.events import Looked
from headway.core.history_records import Evaluation, TicketLife
from headway.core.types_opaque import JsonObject
from headway.tools.report.recorded_run_story_records import LineStory, Story
from headway.tools.report.series_notable_moments import failed_evaluations

MAX_POINTS = 300
MIB = 2**20
MAX_STRETCHES = 100
UPDATES_PER_STRETCH = 4
FLOWS = {
    "updates_per_s": "Updates per second",
    "rollouts_per_s": "Rollouts per second",
    "steps_per_s": "Steps or tokens per second",
    "ready": "Rollouts that wait for the learner",
    "in_flight": "Tickets being collected",
    "lead": "Lead, in versions",
    "staleness": "Mean staleness when taken",
    "waiting_mib": "Rollouts that wait for the learner, MiB",
    "memory": "Memory of the coordinator's process, MiB",
}
MEMORY = "memory/"  # of the roles with processes of their own; those of one kind together
TRAINED = ("return", "reward", "score", "accuracy")
DIAGNOSTICS = {
    "ess": "Effective sample size",
    "kl": "KL divergence",
    "clip_fraction": "Clip fraction",
    "entropy": "Entropy",
}
Line = dict[str, list[float | None]]


def finite(value: object) -> float | None:
    """A number that JSON has a word for; None otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.7g}")


def thin(*columns: Sequence[float | None], most: int = MAX_POINTS) -> list[list[float | None]]:
    """The columns of a line with at most this many points. What is missing does not count in a mean."""
    count = len(columns[0])
    if count <= most:
        return [[finite(value) for value in column] for column in columns]
    cuts = [round(place * count / most) for place in range(most + 1)]
    return [[_mean(column[first:last]) for first, last in pairwise(cuts) if last > first] for column in columns]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return finite(sum(known) / len(known)) if known else None


def scores(story: Story) -> Line:
    """Evaluations that have a score: when, at which update and version."""
    done = [e for e in story.evaluations if e.end is not None and finite(e.value) is not None]
    return _at_versions(story, done, [e.value for e in done])


def score_lengths(story: Story) -> Line | None:
    """The mean length of the episodes of evaluations that say it."""
    told = [(e, finite(e.metrics.get("length"))) for e in story.evaluations if e.end is not None]
    known = [(e, length) for e, length in told if length is not None]
    return _at_versions(story, [e for e, _ in known], [length for _, length in known]) if known else None


def failures(story: Story) -> list[JsonObject]:
    """Evaluations that ended without a score: where they belong on each axis, and why."""
    failed = failed_evaluations(story)[:MAX_POINTS]
    line = _at_versions(story, failed, [None] * len(failed))
    return [
        {"t": line["t"][at], "u": line["u"][at], "s": line["s"][at], "v": e.version, "why": e.error or "no score"}
        for at, e in enumerate(failed)
    ]


def _at_versions(story: Story, evaluations: Sequence[Evaluation], values: Sequence[float | None]) -> Line:
    """Something of evaluations: when they ended, and the update, the environment steps and the version they are of."""
    made_by = {version.number: version.update or 0 for version in story.versions}
    behind = {version.number: version.steps for version in story.versions}
    columns = (
        [e.end for e in evaluations],
        [float(made_by.get(e.version, e.version)) for e in evaluations],
        [float(behind[e.version]) if e.version in behind else None for e in evaluations],
        [float(e.version) for e in evaluations],
        values,
    )
    return dict(zip(("t", "u", "s", "v", "y"), thin(*columns), strict=True))


def training(story: Story) -> JsonObject | None:
    """What the learner says about how well the policy does, if it does."""
    for name in TRAINED:
        line = reported(story.first, name)
        if line is not None:
            return {"name": name, **line}
    return None


def training_lengths(story: Story) -> Line | None:
    """How long the episodes are while training, if the learner says it."""
    return reported(story.first, "length")


def step_word(story: Story) -> str:
    """What the steps of a run are: of an environment, or tokens that a language model has written."""
    if "model" in story.config and "num_simulations" not in story.config:
        return "tokens"
    if not story.recipe:
        return "steps"
    frames = story.config.get("frame_skip", 1)
    return "environment steps" if frames == 1 else f"environment steps of {frames} frames"


def reported(line: LineStory, name: str) -> Line | None:
    """One of the metrics of a line's learner, over the updates that have it."""
    seen = [update for update in line.updates if finite(update.metrics.get(name)) is not None]
    if not seen:
        return None
    columns = (
        [update.end for update in seen],
        [float(update.number) for update in seen],
        [float(update.steps) for update in seen],
        [float(update.metrics[name]) for update in seen],
    )
    return dict(zip(("t", "u", "s", "y"), thin(*columns), strict=True))


def learner(line: LineStory, *, with_losses: bool = False) -> tuple[dict[str, Line], list[str]]:
    """Everything the learner of a line reports, and the names of what tells whether staleness hurts; `with_losses`: and
    of what it trains on."""
    names = {name: None for update in line.updates for name in update.metrics}
    lines = {name: curve for name in names if (curve := reported(line, name)) is not None}
    first = [name for name in DIAGNOSTICS if name in lines]
    first += [name for name in lines if name not in first and ("kl" in name.split("_") or "clip" in name)]
    first += [name for name in lines if name not in first and with_losses and "loss" in name.split("_")]
    return lines, first


def ladder(line: LineStory) -> Line:
    """The newest version of a line over time."""
    columns = ([one.published for one in line.versions], [float(one.number) for one in line.versions])
    return dict(zip("ty", thin(*columns), strict=True))


def flows(story: Story) -> dict[str, Line]:
    """Throughput, queue, lead and age of the first line over time, and the memory of the run."""
    lines = line_flows(story.first, story.begin_s, story.end_s)
    return lines | _memory(story.looks) if lines and len(story.looks) > 1 else lines


def line_flows(line: LineStory, begin_s: float, end_s: float) -> dict[str, Line]:
    """Throughput, queue, lead and age of one line over time, in a run that lasted from `begin_s` to `end_s`."""
    begin = min((ticket.opened for ticket in line.tickets.values()), default=begin_s)
    end = max([update.end for update in line.updates], default=begin)
    if end <= begin:
        return {}
    count = max(1, min(MAX_STRETCHES, len(line.updates) // UPDATES_PER_STRETCH))
    stretch = (end - begin) / count
    middles = [finite(begin + (place + 0.5) * stretch) for place in range(count)]

    def per_second(moments: Iterable[tuple[float, float]]) -> Line:
        totals = [0.0] * count
        for at, amount in moments:
            if begin <= at <= end:
                totals[min(count - 1, int((at - begin) / stretch))] += amount
        return {"t": middles, "y": [finite(total / stretch) for total in totals]}

    landed = [ticket for ticket in line.tickets.values() if ticket.ended is not None]
    lines = {
        "updates_per_s": per_second((update.end, 1.0) for update in line.updates),
        "rollouts_per_s": per_second((ticket.ended or 0.0, 1.0) for ticket in landed),
        "steps_per_s": per_second((ticket.ended or 0.0, float(ticket.steps)) for ticket in landed),
        "ready": {"t": middles, "y": _levels([(q[0], q[3]) for q in line.queue], begin, stretch, count)},
        "in_flight": {"t": middles, "y": _levels([(q[0], q[2]) for q in line.queue], begin, stretch, count)},
        "staleness": {"t": middles, "y": _ages(line, begin, stretch, count)},
    }
    if line.leads:
        leads = [*line.leads, (end_s, line.leads[-1][1])]
        lines["lead"] = dict(zip("ty", thin([at for at, _ in leads], [lead for _, lead in leads]), strict=True))
    if any(ticket.num_bytes for ticket in landed):
        lines["waiting_mib"] = {"t": middles, "y": _levels(_bytes_waiting(landed), begin, stretch, count)}
    return lines


def titles(lines: Iterable[Mapping[str, Line]]) -> list[tuple[str, str]]:
    """The flows of some runs, each with its title, in order."""
    found = dict.fromkeys(name for of_run in lines for name in of_run if name.startswith(MEMORY))
    kinds = {name: f"Memory of the {name.removeprefix(MEMORY)}'s process, MiB" for name in found}
    kinds |= {name: "Memory of the collectors' processes together, MiB" for name in found if "collector" in name}
    return [*FLOWS.items(), *kinds.items()]


def _memory(looks: Sequence[Looked]) -> dict[str, Line]:
    """The coordinator's process, and the processes of each kind of role."""
    parts: dict[str, list[float | None]] = {"memory": [look.rss / MIB for look in looks]}
    for place, look in enumerate(looks):
        for role, size in look.memory.items():
            part = parts.setdefault(MEMORY + role.partition("-")[0], [None] * len(looks))
            part[place] = (part[place] or 0.0) + size / MIB
    times = [look.time_s for look in looks]
    return {name: dict(zip("ty", thin(times, part), strict=True)) for name, part in parts.items()}


def _bytes_waiting(landed: Iterable[TicketLife]) -> list[tuple[float, float]]:
    """(time, MiB) after each change: from its landing until it is taken, or thrown away."""
    changes = []
    for ticket in landed:
        until = ticket.settled if ticket.taken is None else ticket.taken
        changes.append((ticket.ended or 0.0, ticket.num_bytes / MIB))
        if until is not None:
            changes.append((until, -ticket.num_bytes / MIB))
    changes.sort()
    return list(zip((at for at, _ in changes), accumulate(size for _, size in changes), strict=True))


def _levels(levels: Sequence[tuple[float, float]], begin: float, stretch: float, count: int) -> list[float | None]:
    """Mean over each stretch of something that holds from one moment, (time, level), to the next."""
    totals = [0.0] * count
    ends = [at for at, _ in levels[1:]] + [begin + count * stretch]
    for (since, value), until in zip(levels, ends, strict=True):
        at = max(begin, since)
        while value and at < until:
            place = int((at - begin) / stretch)
            if place >= count:
                break
            edge = begin + (place + 1) * stretch
            edge = min(until, edge if edge > at else begin + (place + 2) * stretch)
            totals[place] += value * (edge - at)
            at = edge
    return [finite(total / stretch) for total in totals]


def _ages(line: LineStory, begin: float, stretch: float, count: int) -> list[float | None]:
    ages: list[list[float | None]] = [[] for _ in range(count)]
    for ticket in line.tickets.values():
        if ticket.staleness is not None and ticket.taken is not None and ticket.taken >= begin:
            place = int((ticket.taken - begin) / stretch)
            if place < count:
                ages[place].append(float(ticket.staleness))
    return [_mean(values) for values in ages]
