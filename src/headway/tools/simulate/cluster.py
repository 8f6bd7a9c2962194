"""What a run stands on when it is large: engines that many share, parts that fail, weights that travel.

    collect   |-- waits for a place --|== generates ==|-- the rest --|      the engine has `engine_slots` places
    failure                                     X  its flight is lost, its collector is built anew when all is repaired
    publish   learner |--- broadcast --->| collector: its next flight waits for the weights of its version

A workload for the virtual runtime: the coordinator is the real one and hears of all this as of real calls that take
long, and of roles that die. A collector goes down with its engine and with its node; a failed learner ends the session
(`sessions.py` resumes it).

Left out: what is slower because more of it goes on at once (an engine's tokens, a link that several broadcasts share);
parts that fail together without being on one node; a generation that goes on at an engine whose collector is gone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.coordinator.roles import LEARNER
from headway.core.protocols import Collector
from headway.core.text_naming import unknown
from headway.core.types import Rollout, Snapshot, Ticket, derive_seed
from headway.runtimes.virtual import Fault
from headway.tools.simulate.cluster_broadcast import Broadcast
from headway.tools.simulate.cluster_parts import KINDS, Failing, Part
from headway.tools.simulate.workloads import Constant, Duration, SteadyWorkload, unit

COLLECTOR = "collector-"
NO_TIME = Constant(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Engines, nodes, failures, links, and a coordinator that needs its time."""

    engines: int = 0
    """Collector c asks engine c mod engines; 0: rollouts need none."""
    engine_slots: int = 64
    """Rollouts an engine generates at once; others wait for a place, first come first served."""
    generate: Duration = NO_TIME
    """Seconds of a place that a rollout needs, before what it takes besides."""
    collectors_per_node: int = 8
    failing: Mapping[str, Failing] = field(default_factory=dict)
    """By kind of part."""
    broadcast: Broadcast | None = None
    """How weights reach the engines, or the collectors where there are none; None: at once."""
    ticket_s: float = 0.0
    """What a ticket costs the coordinator, which does one thing at a time."""

    def __post_init__(self) -> None:
        for name, least in (("engines", 0), ("engine_slots", 1), ("collectors_per_node", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, received {getattr(self, name)!r}")
        for kind in self.failing:
            if kind not in KINDS:
                raise ValueError(unknown("kind of part", kind, KINDS))
        if self.engines == 0 and self.generate.mean > 0:
            raise ValueError("generate is time at an engine: it needs engines")
        if self.engines == 0 and "engine" in self.failing:
            raise ValueError("engine_mtbf_s is about engines: it needs engines")


class _Engine:
    """The places of one engine, by when they come free."""

    __slots__ = ("failed_at", "free_at")

    def __init__(self, slots: int) -> None:
        self.free_at = [0.0] * slots
        self.failed_at = -math.inf

    def generate(self, now: float, seconds: float) -> float:
        """Take the first place that comes free; returns when the rollout is generated."""
        ends_at = max(now, self.free_at[0]) + seconds
        heapq.heapreplace(self.free_at, ends_at)
        return ends_at

    def begin_anew(self, part: Part) -> None:
        """It has failed: what it did and what waited for it is gone."""
        self.failed_at = part.failed_at
        self.free_at = [part.up_at] * len(self.free_at)


class _Place:
    """Where one role stands: the parts it goes down with, and its engine."""

    __slots__ = ("engine", "engine_part", "number", "parts", "up_since")

    def __init__(self, number: int, parts: tuple[Part, ...], engine: _Engine | None, engine_part: Part | None) -> None:
        self.number = number
        self.parts = parts
        self.engine = engine
        self.engine_part = engine_part
        self.up_since = 0.0
        """When what runs here was built."""


class ClusterWorkload(SteadyWorkload):
    """Durations and faults of a run on a cluster; keeps account of what failures cost."""

    def __init__(
        self,
        cluster: Cluster,
        collectors: int,
        collect: Duration,
        learn: Duration,
        evaluate: Duration | None = None,
        seed: int = 0,
        **others: Any,
    ) -> None:
        """All but the first two are those of a `SteadyWorkload`."""
        super().__init__(collect, learn, evaluate, seed, **others)
        self.now: Callable[[], float] = lambda: 0.0
        """The clock of the runtime."""
        self.cluster = cluster
        self.landed_s = 0.0
        """Seconds of flights that have landed."""
        self.has_ended_session = False
        """Has somebody died whom this session cannot do without: the learner, or anybody while it was set up?"""
        self._seed = seed
        self._flight_s: dict[int, float] = {}  # ticket -> seconds of its flight that is under way
        self._doomed: list[tuple[float, float]] = []  # flights that will not land: when they began, when they end
        self._fault: Fault | None = None  # of the call that was looked at last
        self._staged: dict[int, float] = {}  # version -> when its broadcast begins
        self._sender_free_at = 0.0
        self._receivers = cluster.engines or collectors
        self._by_kind: dict[str, list[Part]] = {
            kind: [Part(failing, seed, kind, number) for number in range(self._count(kind, collectors))]
            for kind, failing in cluster.failing.items()
        }
        self._places = self._all_places(collectors)

    def _count(self, kind: str, collectors: int) -> int:
        nodes = -(-collectors // self.cluster.collectors_per_node)
        return {"collector": collectors, "engine": self.cluster.engines, "node": nodes, "learner": 1}[kind]

    def _all_places(self, collectors: int) -> dict[str, _Place]:
        cluster, by_kind = self.cluster, self._by_kind
        engines = [_Engine(cluster.engine_slots) for _ in range(cluster.engines)]
        places = {LEARNER: _Place(0, tuple(by_kind.get("learner", ())), None, None)}
        for number in range(collectors):
            its = {"collector": number, "node": number // cluster.collectors_per_node}
            if engines:
                its["engine"] = number % len(engines)
            parts = {kind: by_kind[kind][place] for kind, place in its.items() if kind in by_kind}
            engine = engines[its["engine"]] if engines else None
            places[f"{COLLECTOR}{number}"] = _Place(number, tuple(parts.values()), engine, parts.get("engine"))
        return places

    # -- what the runtime asks ------------------------------------------------------------------------

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        self._fault = None
        place = self._places.get(role)
        if place is None:  # an evaluator, say
            return super().duration_s(role, method, args)
        now = self.now()
        dies_at = math.inf
        for part in place.parts:
            part.look(now)
            dies_at = min(dies_at, part.next_at)
        if method in ("start", "restart"):
            return self._build(place, now)
        if any(part.failed_at >= place.up_since or part.up_at > now for part in place.parts):
            return self._die(role, method, Fault.GONE, now, now)
        if method == "collect":
            seconds = self._collect_s(place, now, role, args)
        elif method == "apply":
            seconds = self._apply_s(place, now, args[0])
        else:
            seconds = super().duration_s(role, method, args)
        if now + seconds > dies_at:
            return self._die(role, method, Fault.CRASH, now, dies_at)
        if method == "collect":
            self._flight_s[args[0].index] = seconds
        elif method == "learn" and args[1] is not None:
            self._stage(args[1], now + seconds)
        return seconds

    def fault(self, role: str, method: str, args: tuple[object, ...]) -> Fault | None:
        return self._fault

    def _build(self, place: _Place, now: float) -> float:
        """When everything it stands on is up again."""
        place.up_since = max([now, *(part.up_at for part in place.parts)])
        return place.up_since - now

    def _die(self, role: str, method: str, fault: Fault, now: float, at: float) -> float:
        self._fault = fault
        if role == LEARNER or method not in ("collect", "apply"):
            self.has_ended_session = True
        if method == "collect":
            self._doomed.append((now, at))
        return at - now

    def _collect_s(self, place: _Place, now: float, role: str, args: tuple[Any, ...]) -> float:
        own_s = super().duration_s(role, "collect", args)
        engine, part = place.engine, place.engine_part
        if engine is None:
            return own_s
        if part is not None and part.failed_at > engine.failed_at:
            engine.begin_anew(part)
        drawn = unit(derive_seed(args[0].seed, "generate"))
        return engine.generate(now, self.cluster.generate.quantile(drawn)) + own_s - now

    # -- weights --------------------------------------------------------------------------------------

    def _stage(self, version: int, now: float) -> None:
        """The learner begins to send a version when it has sent those before."""
        broadcast = self.cluster.broadcast
        if broadcast is not None:
            begins_at = max(now, self._sender_free_at)
            self._staged[version] = begins_at
            self._sender_free_at = begins_at + broadcast.sender_s(self._receivers)

    def _apply_s(self, place: _Place, now: float, snapshot: Snapshot) -> float:
        """Until the weights are there. Who was built since gets them from a neighbour."""
        broadcast = self.cluster.broadcast
        if broadcast is None:
            return 0.0
        if snapshot.version not in self._staged:
            self._stage(snapshot.version, now)
        begins_at = self._staged[snapshot.version]
        number = place.number % self._receivers
        arrives_at = begins_at + broadcast.arrival_s(number, self._receivers)
        if arrives_at < place.up_since:
            return broadcast.alone_s
        return max(0.0, arrives_at - now)

    def begin_session(self) -> None:
        """A run that is resumed sends its weights again."""
        now = self.now()
        self.has_ended_session = False
        self._doomed = [(begin, min(end, now)) for begin, end in self._doomed]
        self._staged.clear()
        self._flight_s.clear()
        self._sender_free_at = now

    # -- accounts -------------------------------------------------------------------------------------

    def land(self, ticket: int) -> None:
        self.landed_s += self._flight_s.pop(ticket)

    def lost_s(self) -> float:
        """Seconds of flights that their own failures have ended so far."""
        now = self.now()
        return sum(min(end, now) - begin for begin, end in self._doomed)

    def failures(self) -> dict[str, int]:
        """How often parts of each kind have failed so far, whether anybody noticed or not."""
        now = self.now()
        for parts in self._by_kind.values():
            for part in parts:
                part.look(now)
        return {kind: sum(part.failures for part in parts) for kind, parts in self._by_kind.items()}


class ClusterCollector:
    """Tells when a rollout is here; which one it is, another collector says."""

    is_concurrent = True

    def __init__(self, collector: Collector, work: ClusterWorkload) -> None:
        self._collector = collector
        self._work = work

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        self._work.land(ticket.index)
        return self._collector.collect(ticket, snapshot)


class HoldingClusterCollector(ClusterCollector):
    """The same with weights of its own, which have to reach it."""

    def apply(self, snapshot: Snapshot) -> None:
        pass
