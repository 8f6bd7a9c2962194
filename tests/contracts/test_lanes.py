"""Several tickets on one collector at once: the same bits, one version at a time or a span that is true, one restart.

(Thousands of schedules with faults are in test_faults_in_virtual_time, what runtimes must do in the runtime contract.)
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from log_totals import audit

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.collecting import Collecting
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import ReplayError, replay
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.protocols import Runtime
from headway.core.rules_order import READY
from headway.core.types import Rollout, Snapshot, Span, Ticket
from headway.runs.console_run_status import look_at
from headway.runs.event_log import MemoryRecorder
from headway.runs.files_run_summary import statistics_rows
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.runtimes.processes import Processes
from headway.runtimes.virtual import Fault, Virtual
from headway.testing.toy_stations import (
    Pause,
    ToyCollector,
    ToyEngine,
    ToyLearner,
    engine_stations,
    pinned_loop,
    toy_stations,
)
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.terminal_charts_timeline import intervals
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.simulation import Workshop, simulate
from headway.tools.simulate.workloads import Constant, Lognormal, SteadyWorkload

RUNTIMES = ["inline", "threads", "processes"]


class Log(MemoryRecorder):
    """Remembers, and does something at events of one kind."""

    def __init__(self, kind: str = "", what: Callable[[dict[str, Any]], None] = lambda event: None) -> None:
        super().__init__()
        self._kind, self._what = kind, what

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == self._kind:
            self._what(fields)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["e"] == kind]

    def most_in_flight(self) -> int:
        now = most = 0
        for event in self.events:
            now += {"start": 1, "land": -1, "reissue": -1}.get(event["e"], 0)
            most = max(most, now)
        return most


def run(
    settings: Settings, runtime: str | Runtime = "inline", stations: Stations | None = None, log: Log | None = None
) -> RunResult:
    place = build_runtime(runtime) if isinstance(runtime, str) else runtime
    return place.run(Coordinator(stations or engine_stations(), settings, place, recorder=log).run())


def settings_for(lead: float, *, updates: int = 16, lanes: int = 4, **more: Any) -> Settings:
    more = {"tickets_per_batch": 4, "seed": 3, **more}
    return Settings(plan=Plan(updates=updates), max_lead=lead, lanes=lanes, **more)


# -- the same bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("collectors", [1, 2])
@pytest.mark.parametrize("lead", [0, 1, 2.5])
def test_lanes_change_no_bit_of_a_pinned_run(runtime: str, collectors: int, lead: float) -> None:
    settings = settings_for(lead, collectors=collectors)
    log = Log()
    result = run(settings, runtime, engine_stations(Pause(0.004), evaluates=False), log)
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))
    if runtime != "inline":
        assert log.most_in_flight() > collectors, "they did overlap"


def test_with_any_number_of_lanes_a_pinned_run_has_the_same_bits() -> None:
    results = [run(settings_for(1, lanes=lanes, collectors=2)) for lanes in (1, 2, 3, 7)]
    assert len({fingerprint(result.weights) for result in results}) == 1


def test_tickets_go_round_the_collectors_first() -> None:
    log = Log()
    run(settings_for(0, collectors=3, lanes=2, tickets_per_batch=3), log=log)
    assert [event["c"] for event in log.of_kind("start")][:9] == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert {event["c"] % 3 for event in log.of_kind("start")[:3]} == {0, 1, 2}, "three slots occupy three collectors"


def test_idle_collectors_are_preferred_to_idle_lanes_of_busy_ones() -> None:
    log = Log()
    place = Virtual(SteadyWorkload(Lognormal(1.0, 1.0), Constant(0.1)))
    run(settings_for(0.5, collectors=4, lanes=4, updates=200, dispatch="free"), place, log=log)
    flying: dict[int, int] = {}
    most: Counter[int] = Counter()
    for event in log.events:
        if event["e"] == "start":
            flying[event["k"]] = event["c"] % 4
            most[max(Counter(flying.values()).values())] += 1
        elif event["e"] == "land":
            del flying[event["k"]]
    assert most[1] + most[2] > 0.95 * most.total(), f"six slots on sixteen seats, by the busiest collector: {most}"


# -- drain ------------------------------------------------------------------------------------------


class Engine(ToyEngine):
    """Writes down what it was given and how many it worked on at once. For threads and virtual."""

    def __init__(self, log: EngineLog, number: int) -> None:
        super().__init__(number, log.work)
        self._log = log
        self._inside = 0
        self._lock = threading.Lock()

    def apply(self, snapshot: Snapshot) -> None:
        self._log.applied.setdefault(self._number, []).append(snapshot.version)
        super().apply(snapshot)

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        with self._lock:
            self._inside += 1
            self._log.most_inside = max(self._log.most_inside, self._inside)
        try:
            return super().collect(ticket, snapshot)
        finally:
            with self._lock:
                self._inside -= 1


class EngineLog:
    """What the engines of one run tell."""

    def __init__(self) -> None:
        self.applied: dict[int, list[int]] = {}
        self.most_inside = 0
        self.work: Callable[[Ticket], None] | None = None

    def stations(self) -> Stations:
        return Stations(partial(Engine, self), ToyLearner)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("collectors", [1, 2])
def test_with_drain_no_rollout_is_made_by_two_versions(dispatch: Any, collectors: int) -> None:
    told, log = EngineLog(), Log()
    told.work = Pause(0.01)
    settings = settings_for(2, updates=30, collectors=collectors, lanes=6, dispatch=dispatch)
    run(settings, "threads", told.stations(), log)
    assert told.most_inside > 1
    starts = {event["k"]: event["v"] for event in log.of_kind("start")}
    assert all(event["v"] == [starts[event["k"]]] * 2 for event in log.of_kind("land"))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("pacing_s", [0.0, 0.7])
def test_a_pinned_run_never_goes_back_to_a_version_it_has_left(seed: int, pacing_s: float) -> None:
    """Tickets of two versions stand in line at one collector at the same time: the older ones go first."""
    told = EngineLog()
    settings = settings_for(2.5, updates=40, collectors=2, lanes=3, tickets_per_batch=2, pacing_s=pacing_s, seed=seed)
    result = run(settings, Virtual(SteadyWorkload(Lognormal(1.0, 1.5), Constant(0.3), seed=seed)), told.stations())
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))
    for versions in told.applied.values():
        assert versions == sorted(set(versions)), "each once, in order"


def test_a_free_ticket_waits_for_no_drain_where_another_collector_is_ready() -> None:
    """Collector 0 is stuck in a long rollout of version 0; all later tickets go to collector 1, and at once."""

    class Stuck(SteadyWorkload):
        def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
            return 50.0 if method == "collect" and args[0].index == 0 else super().duration_s(role, method, args)

    log = Log()
    settings = settings_for(3, updates=15, collectors=2, lanes=4, tickets_per_batch=2, order=READY)
    run(settings, Virtual(Stuck(Constant(1.0), Constant(3.0))), log=log)
    later = [event for event in log.of_kind("start") if event["v"] > 0 and event["t"] < 50]
    assert len(later) > 20
    assert {event["c"] % 2 for event in later} == {1}
    opened = {event["k"]: event["t"] for event in log.of_kind("open")}
    assert all(event["t"] == opened[event["k"]] for event in later)


def test_waiting_for_the_drain_says_what_it_waits_for() -> None:
    told: list[str] = []
    place = Virtual(SteadyWorkload(Lognormal(1.0, 1.0), Constant(0.1), seed=5))
    settings = settings_for(1, updates=20, lanes=5, tickets_per_batch=4)
    log = Log("land", lambda event: told.append(coordinator.why()))
    coordinator = Coordinator(engine_stations(), settings, place, recorder=log)
    result = place.run(coordinator.run())
    waits = [line for text in told for line in text.splitlines() if " to finish " in line]
    pattern = (
        r"collector-0/\d waits for collector-0 to finish (1 ticket|2 tickets) of version (\d+) before version (\d+)"
    )
    found = [re.fullmatch(pattern + r" is applied \(since [\d.]+ s, at most \d+ s\)", line) for line in waits]
    assert {match[1] for match in found if match} >= {"1 ticket", "2 tickets"}
    assert all(int(match[3]) > int(match[2]) for match in found if match)
    assert result.time_spent.total("collector", "drain") > 0


def test_a_drain_that_never_ends_is_a_stall_with_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Collecting._wanted

    def careless(self: Collecting, post: Any) -> Any:
        """Never sees the last one land."""
        post.in_flight = max(1, post.in_flight) if self.flights.first.version == 3 else post.in_flight
        return wanted(self, post)

    monkeypatch.setattr(Collecting, "_wanted", careless)
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(0.5)))
    with pytest.raises(
        Stalled, match=r"collector-0/0 waits for collector-0 to finish 1 ticket of version 2 before vers"
    ):
        place.run(Coordinator(engine_stations(), settings_for(1), place).run())


# -- partial ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_with_partial_a_rollout_says_which_versions_made_it(runtime: str) -> None:
    log = Log()
    settings = settings_for(2, updates=40, lanes=4, tickets_per_batch=2, on_publish="partial", collectors=2)
    assert not settings.is_pinned
    result = run(settings, runtime, engine_stations(Pause(0.02), evaluates=False), log)
    newest = 0
    mixed = 0
    starts = {}
    for event in log.events:
        if event["e"] == "publish":
            newest = event["v"]
        elif event["e"] == "start":
            assert event["v"] == newest
            starts[event["k"]] = newest
        elif event["e"] == "land":
            oldest, last = event["v"]
            assert starts[event["k"]] <= oldest <= last <= newest
            mixed += oldest < last
    assert mixed > 5
    assert set(audit(log.events).learned.values()) == {1}
    assert result.ledger.closes


def test_with_partial_weights_change_while_every_lane_is_busy_and_no_ticket_takes_off() -> None:
    told = EngineLog()

    class Long(SteadyWorkload):
        """After the first ones, rollouts take twenty times as long as an update."""

        def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
            if method == "collect":
                return 1.0 if args[0].index < 4 else 20.0
            return super().duration_s(role, method, args)

    settings = settings_for(7, updates=8, lanes=8, tickets_per_batch=1, on_publish="partial", order=READY)
    log = Log()
    run(settings, Virtual(Long(Constant(1.0), Constant(1.0))), told.stations(), log)
    assert told.applied[0] == list(range(8)), "each as it came, but for the last"
    lands = log.of_kind("land")
    assert [event["v"] for event in lands[:4]] == [[0, 0]] * 4
    published = {event["v"]: event["t"] for event in log.of_kind("publish")}
    assert published[4] < lands[4]["t"], "four versions came and went into the rollouts that were under way"


def test_with_partial_versions_only_go_up() -> None:
    told = EngineLog()

    class Slow(SteadyWorkload):
        def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
            return 3.0 if method == "apply" else super().duration_s(role, method, args)

    settings = settings_for(3, updates=40, lanes=4, tickets_per_batch=2, on_publish="partial", collectors=2)
    run(settings, Virtual(Slow(Lognormal(2.0, 1.0), Constant(0.7))), told.stations())
    for versions in told.applied.values():
        assert versions == sorted(set(versions))
        assert len(versions) < 40, "what is overtaken while another is applied is left out"


class Boaster(ToyEngine):
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        return replace(rollout, span=Span(snapshot.version, snapshot.version + 3)) if ticket.index == 6 else rollout


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_rollout_that_claims_a_version_its_collector_never_had_ends_the_run(lanes: int) -> None:
    line = "^ticket 6 on collector-0: its rollout claims version 4, but version 1 is the newest that was applied there$"
    with pytest.raises(RunFailed, match=line):
        run(settings_for(0, lanes=lanes), stations=Stations(Boaster, ToyLearner))


class Antique(ToyEngine):
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return replace(super().collect(ticket, snapshot), span=Span(0, snapshot.version))


def test_a_rollout_older_than_its_ticket_ends_the_run() -> None:
    with pytest.raises(
        RunFailed, match=r"^ticket 4 at version 1 on collector-0/0: ticket 4 was born at version 1, its"
    ):
        run(settings_for(0), stations=Stations(Antique, ToyLearner))


# -- healing ----------------------------------------------------------------------------------------


class Injected(SteadyWorkload):
    """Faults by the ticket and the attempt they strike. A rollout takes a second, and more with a higher index."""

    def __init__(self, faults: dict[tuple[int, int], Fault], apply_fails: set[int] | None = None) -> None:
        super().__init__(Constant(1.0), Constant(0.5))
        self._faults_at = faults
        self._apply_fails = apply_fails or set()
        self.applies = 0

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        if method == "apply":
            return 0.25
        return 1.0 + 0.001 * args[0].index if method == "collect" else super().duration_s(role, method, args)

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        if method == "apply":
            self.applies += 1
            return Fault.RAISE if self.applies in self._apply_fails else None
        return self._faults_at.get((args[0].index, args[0].attempt)) if method == "collect" else None


def heal(faults: dict[tuple[int, int], Fault], **more: Any) -> tuple[RunResult, Log, Settings]:
    settings = settings_for(0, updates=6, deadlines=Deadlines(collect_s=5.0), **more)
    log = Log()
    result = run(settings, Virtual(Injected(faults)), log=log)
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))
    assert set(audit(log.events).learned.values()) == {1}
    return result, log, settings


def test_a_crash_concerns_all_lanes_and_is_one_restart() -> None:
    result, log, _ = heal({(8, 0): Fault.CRASH})
    assert result.restarts == len(log.of_kind("restart")) == 1
    assert sorted((event["k"], event["a"]) for event in log.of_kind("reissue")) == [(8, 1), (9, 1), (10, 1), (11, 1)]


def test_whoever_was_not_late_is_not_charged_an_attempt() -> None:
    """Ticket 9 hangs twice; the others of its batch would be over by then, so they are made to hang later than it."""
    slow = {(index, 0): Fault.HANG for index in (8, 10, 11)}  # their deadlines pass at the same moment
    result, log, _ = heal({(9, 0): Fault.HANG, (9, 1): Fault.HANG, **slow}, retries=Retries(attempts_on_loss=4))
    again = [(event["k"], event["a"], event["why"]) for event in log.of_kind("reissue")]
    late = [(index, attempt) for index, attempt, why in again if why.startswith("no answer")]
    spared = [(index, attempt) for index, attempt, why in again if why.startswith("given up")]
    assert len(late) == result.restarts == len(log.of_kind("restart"))
    assert len(late) + len(spared) == len(again)
    assert len(spared) >= 3
    attempts: dict[int, int] = {}
    for index, attempt, why in again:
        assert attempt == attempts.get(index, 0) + why.startswith("no answer")
        attempts[index] = attempt


def test_a_ticket_that_always_hangs_is_given_up_and_the_others_are_not() -> None:
    faults = {(9, attempt): Fault.HANG for attempt in range(5)}
    settings = settings_for(
        3,
        updates=6,
        order=READY,
        deadlines=Deadlines(collect_s=5.0),
        retries=Retries(attempts_on_loss=2, on_failure="drop"),
    )
    log = Log()
    result = run(settings, Virtual(Injected(faults)), log=log)
    assert result.ledger.dropped == {"failed": 1}
    assert [event["k"] for event in log.of_kind("drop")] == [9]
    assert result.restarts == 2


def test_an_apply_that_fails_is_tried_again_before_anybody_takes_off() -> None:
    settings = settings_for(1, updates=8, collectors=1)
    log = Log()
    result = run(settings, Virtual(Injected({}, apply_fails={2, 3, 6})), log=log)
    assert len(log.of_kind("publish_retry")) == 3
    assert result.restarts == result.ledger.reissued == 0
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))


@pytest.mark.parametrize("on_publish", ["drain", "partial"])
def test_a_collector_that_cannot_apply_is_quarantined_and_restarted_once(on_publish: Any) -> None:
    settings = settings_for(2, updates=12, dispatch="free", on_publish=on_publish)
    settings = replace(settings, retries=Retries(publish_attempts=3, attempts_on_loss=2))
    log = Log()
    result = run(settings, Virtual(Injected({}, apply_fails={4, 5, 6})), log=log)
    assert [event["why"] for event in log.of_kind("restart")] == ["quarantined: injected error"]
    assert result.ledger.dropped == {}
    attempts = Counter(event["a"] for event in log.of_kind("reissue"))
    assert attempts[1] <= 1, f"whoever was in flight meanwhile has nothing to do with it: {attempts}"
    assert result.ledger.learned == 48


def test_a_killed_process_with_three_tickets_in_flight_is_replaced_once_and_nothing_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    """From ticket 24 on the first engine of collector 0 never answers; when it has three such tickets it is killed."""
    settings = settings_for(2, updates=15, lanes=3, collectors=2, tickets_per_batch=6)
    runtime = Processes()
    flying: list[int] = []

    def kill(event: dict[str, Any]) -> None:
        if event["k"] >= 24 and event["c"] % 2 == 0:
            flying.append(event["k"])
            if len(flying) == 3:
                asyncio.get_running_loop().call_later(0.2, os.kill, runtime.pid("collector-0"), signal.SIGKILL)

    log = Log("start", kill)
    stations = Stations(partial(Hesitant, tmp_path, 24, 99), ToyLearner)
    result = run(settings, runtime, stations, log)
    seen = audit(log.events)
    assert seen.kinds["restart"] == result.restarts == 1
    assert sorted(event["k"] for event in log.of_kind("reissue")) == sorted(flying[:3]) == [24, 26, 28]
    assert {(event["a"], event["why"]) for event in log.of_kind("reissue")} == {
        (1, "its process was killed by SIGKILL")
    }
    assert sorted(seen.learned) == list(range(90))
    assert set(seen.learned.values()) == {1}
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_a_late_lane_restarts_the_collector_and_the_others_fly_again(runtime: str, tmp_path: Path) -> None:
    """Ticket 0 hangs, the others go on beside it. When it is late, those under way have nothing to do with it."""
    settings = settings_for(
        3,
        updates=60,
        lanes=3,
        tickets_per_batch=1,
        order=READY,
        on_publish="partial",
        deadlines=Deadlines(collect_s=2.0),
        retries=Retries(attempts_on_loss=2),
    )
    log = Log()
    result = run(settings, runtime, Stations(partial(Hesitant, tmp_path, 0, 1), ToyLearner), log)
    assert result.restarts == len(log.of_kind("restart")) == 1
    again = {event["k"]: (event["a"], event["why"]) for event in log.of_kind("reissue")}
    assert again.pop(0) == (1, "no answer within 2 s")
    assert again, "some were under way"
    assert {attempt for attempt, _ in again.values()} == {0}
    seen = audit(log.events)
    assert set(seen.learned.values()) == {1}
    assert sorted(seen.learned) == list(range(60))


class Hesitant(ToyEngine):
    """Takes a tenth of a second. The first one built as collector 0 never answers to some tickets."""

    def __init__(self, notes: Path, first: int, count: int, number: int) -> None:
        super().__init__(number)
        self._hangs = range(first, first + count) if number == 0 and not (notes / "was built").exists() else ()
        if number == 0:
            (notes / "was built").touch()

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        threading.Event().wait(None if ticket.index in self._hangs else 0.1)
        return super().collect(ticket, snapshot)


# -- pause, stop, resume ----------------------------------------------------------------------------


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_a_blocking_evaluation_finds_nothing_in_flight(dispatch: Any) -> None:
    log = Log()
    place = Virtual(SteadyWorkload(Lognormal(1.0, 1.0), Constant(0.3), Constant(10.0)))
    settings = replace(settings_for(3, collectors=2, dispatch=dispatch), plan=Plan(updates=20, evaluate_every=3))
    result = place.run(Coordinator(engine_stations(), settings, place, recorder=log).run())
    assert [score.version for score in result.scores] == [3, 6, 9, 12, 15, 18, 20]
    flying: set[int] = set()
    for event in log.events:
        if event["e"] == "start":
            flying.add(event["k"])
        elif event["e"] == "land":
            flying.discard(event["k"])
        elif event["e"] in ("evaluate", "score"):
            assert not flying


@pytest.mark.parametrize("on_publish", ["drain", "partial"])
def test_a_stop_in_the_middle_ends_a_run_with_lanes(on_publish: Any) -> None:
    settings = settings_for(3, updates=10_000, dispatch="free", on_publish=on_publish, collectors=2)
    place = build_runtime("threads")
    log = Log("publish", lambda event: coordinator.request_stop() if event["v"] == 12 else None)
    coordinator = Coordinator(engine_stations(Pause(0.01), evaluates=False), settings, place, recorder=log)
    result = place.run(coordinator.run())
    assert result.stop_reason == "interrupted"
    assert result.version == 12
    assert result.ledger.closes


@pytest.mark.parametrize("lanes_after", [4, 1, 7])
@pytest.mark.parametrize("runtime", ["virtual", "threads"])
def test_a_pinned_run_resumes_to_the_same_bits_with_any_number_of_lanes(
    tmp_path: Path, runtime: str, lanes_after: int
) -> None:
    def session(settings: Settings, stop_at: int = -1) -> RunResult:
        place = Virtual(SteadyWorkload(Lognormal(1.0, 1.0), Constant(0.4))) if runtime == "virtual" else None
        place = place or build_runtime(runtime)
        log = Log("publish", lambda event: coordinator.request_stop() if event["v"] == stop_at else None)
        state = store.load() if store.all() else None
        stations = engine_stations(None if runtime == "virtual" else Pause(0.004))
        coordinator = Coordinator(stations, settings, place, recorder=log, checkpoints=store, resume=state)
        return place.run(coordinator.run())

    store = CheckpointStore(tmp_path)
    settings = settings_for(2.5, updates=24, collectors=2)
    assert session(settings, stop_at=7).stop_reason == "interrupted"
    assert session(replace(settings, lanes=lanes_after), stop_at=15).stop_reason == "interrupted"
    result = session(settings)
    assert result.updates == 24
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))
    assert result.ledger.opened == result.ledger.learned == 96


# -- what is seen of it -----------------------------------------------------------------------------


def test_seats_have_names_and_times_of_their_own() -> None:
    log = Log()
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(0.5)))
    settings = settings_for(1, collectors=2, lanes=2)
    coordinator = Coordinator(engine_stations(evaluates=False), settings, place, recorder=log)
    result = place.run(coordinator.run())
    assert sorted(result.time_spent.seconds) == [
        *("collector-0/0", "collector-0/1", "collector-1/0", "collector-1/1"),
        "learner",
    ]
    assert result.time_spent.total("collector", "collect") == pytest.approx(64.0)
    assert result.time_spent.count("collector-1", "collect") == 32
    assert statistics_rows(result)["Avg collect time"] == "1.00s"
    assert set(look_at(coordinator).spent) == {"collector", "learner"}
    assert list(intervals(log.events)) == sorted(result.time_spent.seconds)
    alone = run(settings_for(1, collectors=2, lanes=1))
    assert sorted(alone.time_spent.seconds) == ["collector-0", "collector-1", "learner"]


def test_lanes_are_as_good_as_collectors_where_weights_come_with_the_ticket() -> None:
    shop = Workshop(collect=Lognormal(1.0, 1.0), learn=Constant(0.3), collectors=4, tickets_per_batch=2, updates=200)
    assert simulate(shop, 2) == simulate(replace(shop, collectors=1, lanes=4), 2)


def test_a_recorded_run_with_lanes_is_simulated_with_lanes() -> None:
    log = Log()
    run(settings_for(1, collectors=2, lanes=3), Virtual(SteadyWorkload(Constant(1.0), Constant(0.5))), log=log)
    shop = fit(tell(log.events))
    assert (shop.collectors, shop.lanes) == (2, 3)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_a_recorded_run_with_lanes_replays_to_the_same_bits(dispatch: Any) -> None:
    log = Log()
    stations = engine_stations(Pause(0.01), evaluates=False)
    result = run(settings_for(2, collectors=2, lanes=3, dispatch=dispatch), "threads", stations, log)
    assert fingerprint(replay(stations, log.events).weights) == fingerprint(result.weights)


def test_a_recorded_run_whose_weights_changed_in_the_middle_is_not_replayed() -> None:
    log = Log()
    settings = settings_for(2, on_publish="partial", tickets_per_batch=1, updates=40)
    stations = engine_stations(Pause(0.01), evaluates=False)
    run(settings, "threads", stations, log)
    with pytest.raises(
        ReplayError, match=r"^ticket \d+ was made by versions \d+ to \d+: .*partial cannot be replayed$"
    ):
        replay(stations, log.events)


# -- refusals ---------------------------------------------------------------------------------------


class Memory(ToyCollector):
    is_concurrent = True


class Modest(ToyEngine):
    is_concurrent = False


class Plain:
    is_concurrent = True

    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(None)


@pytest.mark.parametrize(
    ("collector", "on_publish", "line"),
    [
        (
            ToyCollector,
            "drain",
            "lanes=4, but ToyCollector collects one ticket at a time: only a collector that says is_concurrent = True "
            "may have more than one lane",
        ),
        (
            Modest,
            "drain",
            "lanes=4, but Modest collects one ticket at a time: only a collector that says is_concurrent = True may "
            "have more than one lane",
        ),
        (
            Memory,
            "drain",
            "lanes=4, but Memory carries a state from one ticket to the next: with more than one lane it would depend "
            "on the order of arrival",
        ),
        (Plain, "partial", "on_publish='partial' is for collectors with an apply method; Plain has none"),
    ],
)
def test_a_collector_that_cannot_have_lanes_is_refused_with_one_line(
    collector: Any, on_publish: Any, line: str
) -> None:
    with pytest.raises(RunFailed) as refused:
        run(settings_for(1, on_publish=on_publish), stations=Stations(collector, ToyLearner))
    assert str(refused.value) == line


def test_what_cannot_have_lanes_may_still_have_one() -> None:
    assert run(settings_for(1, lanes=1), stations=toy_stations()).updates == 16
    assert math.isfinite(settings_for(1).patience_s)
