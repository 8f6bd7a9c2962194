"""What had landed is gone, with the node that held it: it is collected again, and everything else goes on.

The runtime here hands out references like a cluster's, and can be told to lose what one of them stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_totals import audit

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Retries, Settings
from headway.core.protocols import PayloadLost, RoleDied
from headway.core.rules import ReplayRatio
from headway.core.rules_order import OLDEST, READY
from headway.core.types import Rollout, Snapshot, Ticket, carriers, map_payloads
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.inline import Inline
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import (
    ToyCollector,
    ToyLearner,
    ToyReplayLearner,
    pinned_loop,
    plain_loop,
    toy_stations,
)
from headway.tools.simulate.workloads import Exponential, FaultyWorkload, Lognormal


class Ref:
    """Stands for a payload."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload
        self.is_lost = False


class Cluster(Inline):
    """Inline, but payloads are references, and what they stand for can be lost."""

    def __init__(self) -> None:
        super().__init__()
        self._rollouts: dict[int, Ref] = {}
        self._snapshots: dict[int, Ref] = {}
        self.released: list[Any] = []
        self.gone: set[str] = set()  # roles that are not running

    def lose_rollout(self, ticket: int) -> None:
        self._rollouts[ticket].is_lost = True

    def lose_snapshot(self, version: int) -> None:
        self._snapshots[version].is_lost = True

    async def restart(self, role: str) -> None:
        self.gone.discard(role)
        await super().restart(role)

    async def call(self, role: str, method: str, *args: Any, deadline_s: float) -> Any:
        if role in self.gone:
            raise RoleDied(role, method, "lost with its node", never_began=True)
        lost = [carrier for carrier in carriers(args) if isinstance(carrier.payload, Ref) and carrier.payload.is_lost]
        if lost:
            tickets = [carrier.ticket for carrier in lost if isinstance(carrier, Rollout)]
            versions = [carrier.version for carrier in lost if isinstance(carrier, Snapshot)]
            raise PayloadLost(role, method, "lost with its node", tickets=tickets, versions=versions)
        result = await super().call(role, method, *map_payloads(args, _inside), deadline_s=deadline_s)
        answer = map_payloads(result, Ref)
        for carrier in carriers(answer):
            if isinstance(carrier, Rollout):
                self._rollouts[carrier.ticket] = carrier.payload
            else:
                self._snapshots[carrier.version] = carrier.payload
        return answer

    def fetch(self, payload: Any) -> Any:
        if isinstance(payload, Ref) and payload.is_lost:
            raise PayloadLost("driver", "fetch", "lost with its node")
        return _inside(payload)

    def release(self, payload: Any) -> None:
        self.released.append(payload)


def _inside(payload: Any) -> Any:
    return payload.payload if isinstance(payload, Ref) else payload


class Accident(MemoryRecorder):
    """Does something when an event of this kind happens for the n-th time."""

    def __init__(self, kind: str, times: int, what: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._kind, self._times, self._what = kind, times, what

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == self._kind:
            self._times -= 1
            if not self._times:
                self._what(fields)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["e"] == kind]


class Stateless:
    """A collector that carries nothing."""

    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        noise = np.random.default_rng(ticket.seed).normal(size=16)
        return Rollout({"seen": np.sin(snapshot.payload["weights"]) + noise, "ticket": np.array([ticket.index])})


def run(
    settings: Settings, runtime: Cluster, log: MemoryRecorder, stations: Stations | None = None, **more: Any
) -> RunResult:
    stations = stations or toy_stations(evaluates=False)
    return runtime.run(Coordinator(stations, settings, runtime, recorder=log, **more).run())


# -- rollouts ---------------------------------------------------------------------------------------


def test_of_a_batch_that_lost_a_rollout_the_rest_stays_ready_and_the_lost_one_is_collected_again() -> None:
    settings = Settings(plan=Plan(updates=6), tickets_per_batch=3, collectors=2, max_lead=2)
    runtime = Cluster()
    log = Accident("land", 5, lambda landing: runtime.lose_rollout(landing["k"]))
    result = run(settings, runtime, log)
    assert [(event["k"], event["why"]) for event in log.of_kind("lose")] == [(4, "lost with its node")]
    starts = [event["k"] for event in log.of_kind("start")]
    assert sorted(starts) == sorted([*range(18), 4]), "only the lost one flies again"
    seen = audit(log.events)
    assert [event["k"] for event in log.of_kind("learn")][1] == [3, 4, 5], "with the rest of its batch"
    assert set(seen.learned.values()) == {1}
    assert seen.max_live <= 9
    assert (result.ledger.lost, result.ledger.landed, result.ledger.reissued) == (1, 19, 0)
    assert result.ledger.closes
    assert sum(ref.is_lost for ref in runtime.released) == 1, "the lost one too is released, once"


def test_whoever_comes_first_need_not_wait_for_what_is_lost() -> None:
    settings = Settings(plan=Plan(updates=20), collectors=1, max_lead=4, order=READY, max_staleness=6)
    runtime = Cluster()
    log = Accident("land", 3, lambda landing: runtime.lose_rollout(landing["k"]))
    result = run(settings, runtime, log)
    assert (result.updates, result.ledger.lost) == (20, 1)
    lost = log.of_kind("lose")[0]["k"]
    order = [event["k"][0] for event in log.of_kind("learn")]
    assert order.index(lost) > order.index(lost + 1), "the next one went before it"


def test_a_replay_that_could_not_be_filled_is_filled_again() -> None:
    ratio = ReplayRatio(2, min_size=4, samples_per_update=4, steps_per_ticket=4)
    settings = Settings(plan=Plan(updates=10), replay=ratio, max_lead=3)
    runtime = Cluster()
    log = Accident("land", 4, lambda landing: runtime.lose_rollout(landing["k"]))
    stations = Stations(collector=ToyCollector, learner=ToyReplayLearner)
    result = run(settings, runtime, log, stations)
    assert (result.updates, result.ledger.lost) == (10, 1)
    inserted = [index for event in log.of_kind("insert") for index in event["k"]]
    assert inserted == sorted(set(inserted)), "each once, in order, the lost one too"
    assert fingerprint(replay(stations, log.events).weights) == fingerprint(result.weights)


@pytest.mark.parametrize("publish_every", [1, 3])
def test_without_a_lead_and_without_a_state_a_loss_changes_no_bit(publish_every: int) -> None:
    settings = Settings(plan=Plan(updates=9), tickets_per_batch=3, max_lead=0, publish_every=publish_every)
    stations = Stations(collector=Stateless, learner=ToyLearner)
    runs = []
    for times in (0, 8):
        runtime = Cluster()
        log = Accident("land", times, lambda landing, runtime=runtime: runtime.lose_rollout(landing["k"]))
        runs.append(run(settings, runtime, log, stations))
    assert [result.ledger.lost for result in runs] == [0, 1]
    assert fingerprint(runs[0].weights) == fingerprint(runs[1].weights)


def test_a_pinned_ticket_that_is_lost_is_born_anew_on_its_own_collector() -> None:
    settings = Settings(plan=Plan(updates=20), collectors=2, max_lead=3)
    runtime = Cluster()
    log = Accident("land", 9, lambda landing: runtime.lose_rollout(landing["k"]))
    result = run(settings, runtime, log)
    lost = log.of_kind("lose")[0]["k"]
    first, second = [event for event in log.of_kind("start") if event["k"] == lost]
    assert first["c"] == second["c"]
    assert second["v"] > first["v"]
    assert fingerprint(result.weights) != fingerprint(pinned_loop(settings)), "from there on it is another run"
    assert fingerprint(replay(toy_stations(), log.events).weights) == fingerprint(result.weights), "but a recorded one"


@pytest.mark.parametrize("on_failure", ["stop", "drop"])
def test_a_ticket_whose_rollout_is_lost_time_and_again_is_given_up(on_failure: Any) -> None:
    class Cursed(MemoryRecorder):
        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            super().record(time_s, kind, fields)
            if kind == "land" and fields["k"] == 4:
                runtime.lose_rollout(4)

    settings = Settings(plan=Plan(updates=10), retries=Retries(attempts_on_loss=3, on_failure=on_failure), seed=1)
    runtime, log = Cluster(), Cursed()
    if on_failure == "stop":
        with pytest.raises(RunFailed, match=r"^ticket 4 .*\(attempt 3\) failed after 3 attempts: lost with its node$"):
            run(settings, runtime, log)
    else:
        result = run(settings, runtime, log)
        assert (result.updates, result.ledger.lost, result.ledger.dropped) == (10, 2, {"failed": 1})
        assert result.ledger.closes
    assert sum(event["e"] == "start" and event["k"] == 4 for event in log.events) == 3


@pytest.mark.parametrize("order", [OLDEST, READY], ids=str)
def test_collectors_that_were_gone_before_a_ticket_came_cost_it_no_attempt(order: Any) -> None:
    settings = Settings(
        plan=Plan(updates=20), collectors=6, max_lead=6, order=order, retries=Retries(attempts_on_loss=1)
    )
    runtime = Cluster()
    log = Accident("land", 8, lambda landing: runtime.gone.update(f"collector-{number}" for number in range(5)))
    result = run(settings, runtime, log)
    assert result.updates == 20
    assert result.restarts == result.ledger.reissued == 5
    assert [event["a"] for event in log.of_kind("reissue")] == [0] * 5
    if order is OLDEST:
        assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


# -- saving -----------------------------------------------------------------------------------------


def test_what_is_lost_when_a_checkpoint_is_written_is_open_in_it(tmp_path: Path) -> None:
    settings = Settings(plan=Plan(updates=12, save_every=4), collectors=1, max_lead=4, order=READY)
    runtime, store = Cluster(), CheckpointStore(tmp_path, keep=100)

    def lose_everything(publish: dict[str, Any]) -> None:
        if publish["v"] == 4:
            for entry in coordinator.ledger.live():
                if entry.phase.value == "ready":
                    runtime.lose_rollout(entry.ticket.index)
            runtime.lose_snapshot(4)

    log = Accident("publish", 5, lose_everything)
    stations = toy_stations(evaluates=False)
    coordinator = Coordinator(stations, settings, runtime, recorder=log, checkpoints=store)
    result = runtime.run(coordinator.run())
    assert result.ledger.lost >= 1
    assert [event["v"] for event in log.of_kind("restage")] == [4]
    lost = {event["k"] for event in log.of_kind("lose")}
    state = store.load(next(path for path in store.all() if path.name.endswith("-v4")))
    assert not lost & set(state.rollouts)
    saved = {ticket["index"]: ticket for ticket in state.ledger["live"]}
    assert all(saved[index]["span"] is None and saved[index]["attempt"] == 1 for index in lost)
    assert sorted(audit(log.events).learned) == list(range(12))

    resumed = run(settings, Cluster(), MemoryRecorder(), stations, resume=state)
    assert resumed.updates == 12
    assert resumed.ledger.lost == len(lost), "the count is kept"
    assert resumed.ledger.closes


# -- weights ----------------------------------------------------------------------------------------


def test_the_newest_weights_are_staged_again() -> None:
    settings = Settings(plan=Plan(updates=12), collectors=2, max_lead=0)
    runtime = Cluster()
    log = Accident("publish", 6, lambda publish: runtime.lose_snapshot(publish["v"]))
    result = run(settings, runtime, log)
    assert [event["v"] for event in log.of_kind("restage")] == [5]
    assert result.ledger.reissued == 1
    assert fingerprint(result.weights) == fingerprint(plain_loop(settings)), "the same weights, so the same bits"


def test_a_collector_that_holds_weights_is_given_those_that_were_staged_again() -> None:
    class Engine(ToyCollector):
        def apply(self, snapshot: Snapshot) -> None:
            self._held = snapshot.payload["weights"].copy()

        def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
            np.testing.assert_array_equal(self._held, snapshot.payload["weights"])
            return super().collect(ticket, snapshot)

    settings = Settings(plan=Plan(updates=12), max_lead=1)
    runtime = Cluster()
    log = Accident("publish", 6, lambda publish: runtime.lose_snapshot(publish["v"]))
    result = run(settings, runtime, log, Stations(collector=Engine, learner=ToyLearner))
    assert len(log.of_kind("restage")) == 1
    assert result.restarts == 0
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


def test_a_pinned_ticket_whose_older_weights_are_lost_flies_with_the_newest() -> None:
    settings = Settings(plan=Plan(updates=16), collectors=1, max_lead=4)
    runtime = Cluster()
    log = Accident("publish", 8, lambda publish: runtime.lose_snapshot(publish["v"] - 1))
    result = run(settings, runtime, log)
    again = log.of_kind("reissue")
    assert again
    assert not log.of_kind("restage"), "the learner no longer has them"
    for reissue in again:
        first, second = [event for event in log.of_kind("start") if event["k"] == reissue["k"]]
        assert first["v"] == 6
        assert second["v"] > 6
    assert result.updates == 16
    assert fingerprint(replay(toy_stations(), log.events).weights) == fingerprint(result.weights)


def test_the_final_weights_are_not_lost() -> None:
    runtime = Cluster()
    log = Accident("stop", 1, lambda stop: runtime.lose_snapshot(6))
    settings = Settings(plan=Plan(updates=6), max_lead=1)
    result = run(settings, runtime, log)
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


def test_weights_that_are_lost_whenever_they_are_staged_end_the_run() -> None:
    class Cursed(MemoryRecorder):
        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            super().record(time_s, kind, fields)
            if kind == "start" and fields["v"] == 2:
                runtime.lose_snapshot(2)

    settings = Settings(plan=Plan(updates=6), max_lead=0, retries=Retries(attempts_on_loss=99, publish_attempts=2))
    runtime = Cluster()
    with pytest.raises(RunFailed, match=r"^version 2 was lost more than publish_attempts times$"):
        run(settings, runtime, Cursed())


# -- the log ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_lead", [0, 1, 3])
@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_a_run_that_lost_payloads_replays_to_the_same_bits(dispatch: Any, max_lead: int) -> None:
    lost = staged = 0
    for seed in range(12):
        settings = Settings(
            plan=Plan(updates=24, evaluate_every=5),
            collectors=3,
            max_lead=max_lead,
            order=READY if dispatch == "free" else OLDEST,
            dispatch=dispatch,
            tickets_per_batch=2,
            publish_every=1 + seed % 3,
            evaluate_in_background=True,
            seed=seed,
            retries=Retries(attempts_on_loss=50, max_restarts=100, publish_attempts=50),
        )
        workload = FaultyWorkload(Lognormal(1, 1), Exponential(0.5), Exponential(2), seed=seed, crash=0.05, lose=0.1)
        runtime, log = Virtual(workload), MemoryRecorder()
        result = runtime.run(Coordinator(toy_stations(), settings, runtime, recorder=log).run())
        assert fingerprint(replay(toy_stations(), log.events).weights) == fingerprint(result.weights), seed
        lost += result.ledger.lost
        staged += sum(event["e"] == "restage" for event in log.events)
    assert lost > 20
    assert staged > 20
