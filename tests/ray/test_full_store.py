"""A Ray whose object store holds 9 rollouts, and whose disk has no room for more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import ray
from log_totals import audit
from waiting import patient

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.core.protocols import Placement
from headway.core.types import Batch, Rollout, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.ray_actors import RayActors
from headway.testing.toy_stations import ToyCollector, ToyLearner, pinned_loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
STORE = 80 << 20  # the smallest Ray accepts
NUMBERS = 1 << 20  # of a rollout: 8 MB
DISK_IS_FULL = {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0001}


class Big(ToyCollector):
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        return Rollout({**rollout.payload, "ballast": np.full(NUMBERS, float(ticket.index))}, steps=rollout.steps)


class Slow(ToyLearner):
    def learn(self, batch: Batch) -> Any:
        for rollout in batch.rollouts:
            assert np.all(rollout.payload["ballast"] == float(rollout.payload["ticket"][0])), "another one's"
        time.sleep(0.1)
        return super().learn(batch)


@pytest.fixture(scope="module")
def small_ray() -> Iterator[None]:
    ray.shutdown()
    options = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(
        "local",
        num_cpus=2,
        object_store_memory=STORE,
        _system_config=DISK_IS_FULL,
        _node_ip_address="127.0.0.1",
        **options,
    )
    yield
    ray.shutdown()


def run(settings: Settings) -> tuple[Any, MemoryRecorder]:
    log, runtime = MemoryRecorder(), RayActors()
    stations = Stations(partial(Big), Slow, collector_placement=Placement(num_cpus=0.2))
    return runtime.run(Coordinator(stations, settings, runtime, recorder=log).run()), log


@pytest.mark.usefixtures("small_ray")
def test_collectors_wait_until_the_learner_has_made_room_and_a_pinned_run_keeps_its_bits() -> None:
    settings = Settings(plan=Plan(updates=30), collectors=2, max_lead=14)  # half of what may be live always has room
    result, log = run(settings)
    seen = audit(log.events)
    whys = {event["why"] for event in log.events if event["e"] == "reissue"}
    assert len(whys) == 1 and "Ray's object store has no room for what it returned" in whys.pop()
    assert (result.restarts, result.ledger.lost, result.ledger.dropped) == (0, 0, {})
    assert sorted(seen.learned) == list(range(30)) and set(seen.learned.values()) == {1}
    assert fingerprint({"weights": result.weights["weights"]}) == fingerprint(pinned_loop(settings))


@pytest.mark.usefixtures("small_ray")
def test_a_batch_that_is_larger_than_the_store_ends_the_run_within_the_deadline_and_with_one_line() -> None:
    limit_s = patient(2)
    settings = Settings(
        plan=Plan(updates=3), collectors=2, max_lead=0, tickets_per_batch=16, deadlines=Deadlines(collect_s=limit_s)
    )
    with pytest.raises(RunFailed) as caught:
        run(settings)
    assert f"for {limit_s:g} s (collect_deadline_s); fewer or smaller rollouts at once" in str(caught.value)
    assert "\n" not in str(caught.value)
