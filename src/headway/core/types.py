"""What moves through a run.

        open ------> in flight ------> ready ------> taken ------> learned
         ^  \\           |  \\            |  \\        |   (the batch was trained on
         |   \\          |   \\           |<--\\-put---+    and its version published)
         +----\\-reissue-+----\\-requeue,-+    \\ back
               \\               \\ lose         \\
                +---------------+---------------+--> dropped(reason)

A *ticket* is the permission to collect one unit of experience. It occupies a slot from `open` until it
settles, and it settles exactly once, as learned or as dropped. `reissue` (the collector died), `requeue` (the
rollout came too late) and `lose` (it was here, and is gone with the node that held it) send the same ticket, with
the same seed, back to the start. A batch of which a rollout is lost is *put back*: the learner never saw it.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headway.core.types_lent import Lent
from headway.core.types_opaque import Payload, RoleAnswer


class Phase(enum.Enum):
    """Where a ticket is in its life. `LEARNED` and `DROPPED` are settled: final, the slot is free."""

    OPEN = "open"
    IN_FLIGHT = "in_flight"
    READY = "ready"
    TAKEN = "taken"
    LEARNED = "learned"
    DROPPED = "dropped"


class DropReason(enum.Enum):
    """Why a ticket ended without being learned from. Every drop is counted under one of these."""

    STALE = "stale"
    """Its rollout was older than `max_staleness` when the learner came to take it."""
    EXPIRED = "expired"
    """Its rollout had waited longer than `max_age_s` when the learner came to take it."""
    FILTERED = "filtered"
    """The collector judged its rollout to carry no signal."""
    FAILED = "failed"
    """Its collection failed on every permitted attempt."""
    CLOSED = "closed"
    """The run ended, and nothing will resume it."""


@dataclass(frozen=True, slots=True)
class Span:
    """The versions that made a rollout: they differ where weights may change in the middle of it."""

    oldest: int
    newest: int

    def __post_init__(self) -> None:
        if not 0 <= self.oldest <= self.newest:
            raise ValueError(f"a span needs 0 <= oldest <= newest, received {self.oldest}..{self.newest}")

    def __reduce__(self) -> tuple[object, ...]:
        return Span, (self.oldest, self.newest)


@dataclass(frozen=True, slots=True)
class Ticket:
    """The permission to collect one unit of experience.

    `seed` depends on the run's seed and on `index` alone, so a reissued ticket asks the same question.
    `version` and `collector` are fixed at opening in a pinned run; in a free run they are filled in when
    the ticket takes off, with the newest snapshot and whichever collector is idle. Where collectors have
    lanes, `collector` is the number of a seat.
    """

    index: int
    seed: int
    version: int | None = None
    collector: int | None = None
    attempt: int = 0

    def __str__(self) -> str:
        version = "" if self.version is None else f" at version {self.version}"
        attempt = "" if not self.attempt else f" (attempt {self.attempt + 1})"
        return f"ticket {self.index}{version}{attempt}"

    def __reduce__(self) -> tuple[object, ...]:
        """As with rollouts and snapshots: a third of the time that the way of all dataclasses takes."""
        return Ticket, (self.index, self.seed, self.version, self.collector, self.attempt)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The immutable weights of one version. `payload` is the weights, a runtime's reference to them, or a handle of
    the learner's own (`Lent`). In a run with several lines it is of the first one, and brings those of the others."""

    version: int
    payload: Payload
    others: Mapping[str, Snapshot] = field(default_factory=dict)

    def __reduce__(self) -> tuple[object, ...]:
        return Snapshot, (self.version, self.payload, *((self.others,) if self.others else ()))


State = dict[str, Any]
"""What an object needs to go on after a restart: numbers, strings and arrays, in dictionaries and lists."""

HEALTH = "health"
"""In the info of a rollout: what the engine that made it says of itself, as names and numbers."""

MEASURES = "measures"
"""In the info of a rollout: what its collector measured, as names and numbers. Their means over a batch join the
metrics of its update."""

MAX_REWARD = 3.4e38
"""Rewards of language models are kept as float32, which holds no larger ones."""

SAMPLES = "samples"
"""In the info of a rollout: some of it for people to read, a mapping each, with at least `reward` and `versions`."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one ticket brought back.

    `steps` counts environment steps (or tokens) for budgets and throughput; `length` is whatever makes one
    rollout slower than another, and is what the length bias is measured on (default: `steps`).
    `filtered` marks a rollout that carries no signal: it is dropped, counted, and never trained on. A text says why in
    a word, under which it is counted too. `size` is the payload in bytes; where a collector does not say it, it is
    measured there.
    """

    payload: Payload
    steps: int = 1
    length: float | None = None
    span: Span | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    filtered: bool | str = False
    ticket: int = -1
    size: int | None = None
    spans: Mapping[str, Span] = field(default_factory=dict)
    """Those of the other lines of a run, where weights may change in the middle."""

    def __reduce__(self) -> tuple[object, ...]:
        return Rollout, self._values(self.payload)

    def with_payload(self, payload: Payload) -> Rollout:
        """The same with another payload: `replace`, at a tenth of its time."""
        return Rollout(*self._values(payload))

    def _values(self, payload: Payload) -> tuple[Any, ...]:
        return (
            payload,
            self.steps,
            self.length,
            self.span,
            self.info,
            self.filtered,
            self.ticket,
            self.size,
            self.spans,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """What one learn call consumes: rollouts in ticket order, and the version they are trained at."""

    version: int
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class LearnReport:
    """What one learn call says about itself. `samples` counts toward a replay ratio (default: rollouts,
    or the steps of a draw).

    `feedback` goes back to the replay that drew the batch: new priorities, say. Like the payload of a rollout it may
    be replaced by a reference on its way.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: float | None = None
    feedback: Payload = None

    @property
    def effective_sample_size(self) -> float | None:
        """Share of the batch that still counts after importance weighting, if the learner measured it."""
        return self.metrics.get("ess")


@dataclass(frozen=True, slots=True)
class Score:
    """One evaluation of one version. `value` is None when the evaluation failed; `error` says why."""

    version: int
    value: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    samples: tuple[Mapping[str, Any], ...] = ()
    """Some of what was evaluated, for people to read, as in the info of a rollout (SAMPLES)."""


CUT_EPISODES = "cut_episodes"
"""In the metrics of a score: how many of its episodes did not end by themselves within the steps they were allowed."""


def derive_seed(seed: int, *path: int | str) -> int:
    """A 63-bit seed that depends on nothing but its arguments: the same on every machine and runtime."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def anew_seed(ticket_seed: int, attempt: int) -> int:
    """What a collector begins anew from after this ticket was dropped, on its first, second, ... attempt to do so."""
    return derive_seed(ticket_seed, "anew", attempt)


def size_of(payload: object) -> int:
    """Bytes of the arrays, tensors, strings and numbers in a payload; of what else there is, nothing is known."""
    if type(payload) is dict:  # what most payloads are, and every rollout comes by here
        return sum([size_of(value) for value in payload.values()])
    if payload is None:
        return 0
    size = getattr(payload, "nbytes", None)
    if size is not None:
        return int(size)
    if isinstance(payload, Mapping):
        return sum(map(size_of, payload.values()))
    if isinstance(payload, list | tuple | set | frozenset):
        return sum(map(size_of, payload))
    if isinstance(payload, str | bytes | bytearray):
        return len(payload)
    if isinstance(payload, int | float):
        return 8
    fields = getattr(payload, "__dataclass_fields__", None)
    return 0 if fields is None else sum(size_of(getattr(payload, name)) for name in fields)


def carriers(value: object) -> Iterator[Rollout | Snapshot]:
    """Every Rollout and Snapshot in `value`, tuples and batches too: what `map_payloads` changes the payloads of."""
    if isinstance(value, Rollout | Snapshot) and not isinstance(value.payload, Lent):
        yield value
    if isinstance(value, Snapshot):
        for other in value.others.values():
            yield from carriers(other)
    for item in value.rollouts if isinstance(value, Batch) else value if type(value) is tuple else ():
        yield from carriers(item)


def map_payloads(value: RoleAnswer, change: Callable[[Payload], Payload]) -> RoleAnswer:
    """`value` with the payload of every Rollout and Snapshot in it (tuples and batches too) changed,
    and the feedback of a LearnReport.

    This is how runtimes put references in place of big values and back, without knowing the stations. What is lent is
    a reference already and stays as it is.
    """
    if type(value) is tuple:
        return tuple([map_payloads(item, change) for item in value])
    if isinstance(value, Rollout):
        return value if isinstance(value.payload, Lent) else value.with_payload(change(value.payload))
    if isinstance(value, Snapshot):
        others = {name: map_payloads(other, change) for name, other in value.others.items()}
        payload = value.payload if isinstance(value.payload, Lent) else change(value.payload)
        return Snapshot(value.version, payload, others)
    if isinstance(value, Batch):
        return Batch(value.version, tuple([map_payloads(r, change) for r in value.rollouts]))
    if isinstance(value, LearnReport) and value.feedback is not None:
        return replace(value, feedback=change(value.feedback))
    return value
