"""Three nodes, and then fewer: what a run survives, and what it says about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from log_totals import audit
from ray.cluster_utils import Cluster
from waiting import wait_until

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.protocols import PayloadLost, Placement, Role, RoleDied, RoleLate
from headway.core.rules_order import READY
from headway.core.types import Batch, Rollout, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.ray_actors import RayActors
from headway.testing.runtime_contract import SOON_S
from headway.testing.toy_stations import Echo, Pause, ToyCollector, ToyLearner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

BALLAST = 40_000  # numbers: enough for a rollout to stay in the store of its node
MEMORY = {"object_store_memory": 100 << 20}


class Heavy(ToyCollector):
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        return Rollout({**rollout.payload, "ballast": np.full(BALLAST, ticket.index)}, steps=rollout.steps)


class Weighing(ToyLearner):
    def learn(self, batch: Batch) -> Any:
        for rollout in batch.rollouts:
            assert rollout.payload["ballast"].sum() == BALLAST * rollout.payload["ticket"][0]
        return super().learn(batch)


class Slow(Weighing):
    """Lets rollouts pile up."""

    def learn(self, batch: Batch) -> Any:
        time.sleep(0.05)
        return super().learn(batch)


def heavy_collector(number: int) -> Heavy:
    return Heavy(number, Pause(0.02))


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    """A cluster of one node, where drivers and learners are."""
    ray.shutdown()
    quick = {
        "health_check_initial_delay_ms": 500,
        "health_check_period_ms": 300,
        "health_check_timeout_ms": 20_000,  # of a node that is merely slow: a dead one refuses at once
        "health_check_failure_threshold": 3,
    }
    args = {"num_cpus": 2, "resources": {"head": 100}, "include_dashboard": False, "_system_config": quick, **MEMORY}
    nodes = Cluster(initialize_head=True, head_node_args=args)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def cluster(head: Cluster) -> Cluster:
    """With two more nodes, for collectors."""
    while len(head.worker_nodes) < 2:
        head.add_node(num_cpus=2, resources={"worker": 100}, **MEMORY)
    return head


def remove_node(cluster: Cluster, node_id: str) -> None:
    cluster.remove_node(next(n for n in cluster.worker_nodes if n.node_id == node_id), allow_graceful=False)


def alive_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


class NodeLoss(MemoryRecorder):
    """Takes the node of a role away at a given landing."""

    def __init__(self, cluster: Cluster, runtime: RayActors, ticket: int, role: str) -> None:
        super().__init__()
        self._cluster, self._runtime, self._ticket, self._role = cluster, runtime, ticket, role
        self.on_it: list[str] = []

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "land" and fields["k"] == self._ticket and not self.on_it:
            node = self._runtime.node(self._role)
            self.on_it = [role for role in self._runtime.roles() if self._runtime.node(role) == node]
            remove_node(self._cluster, node)


def stations(learner: type[ToyLearner]) -> Stations:
    return Stations(
        collector=heavy_collector,
        learner=learner,
        collector_placement=Placement(num_cpus=0.2, resources={"worker": 1}),
        learner_placement=Placement(resources={"head": 1}),
    )


def test_a_node_lost_in_the_middle_is_survived_and_nothing_is_lost(cluster: Cluster) -> None:
    settings = Settings(plan=Plan(updates=60), collectors=8, max_lead=10, order=READY)
    runtime = RayActors(cluster.address)
    log = NodeLoss(cluster, runtime, 30, "collector-0")
    result = runtime.run(Coordinator(stations(Weighing), settings, runtime, recorder=log).run())
    assert 2 <= len(log.on_it) <= 6, "Ray spread the collectors over both nodes"
    seen = audit(log.events)
    assert result.updates == 60
    assert result.ledger.closes
    assert seen.kinds["restart"] == result.restarts == len(log.on_it)
    assert 1 <= seen.kinds["reissue"] == result.ledger.reissued <= len(log.on_it)
    assert (result.ledger.lost, result.ledger.dropped) == (0, {}), "the driver's node has copies"
    assert sorted(seen.learned) == list(range(60))
    assert set(seen.learned.values()) == {1}
    assert sorted(seen.settled) == sorted(seen.learned)
    assert runtime.driver_payload_bytes < 61 * 1024, "61 tiny snapshots, and no rollout"
    assert not ray.is_initialized(), "disconnected"
    assert all(node.remaining_processes_alive() for node in cluster.list_all_nodes()), "the cluster is not ours"


def test_rollouts_that_are_lost_with_their_node_are_collected_again(cluster: Cluster, tmp_path: Path) -> None:
    settings = Settings(plan=Plan(updates=60, save_every=20), collectors=8, max_lead=15, order=READY)
    runtime, store = RayActors(cluster.address, keeps_copies=False), CheckpointStore(tmp_path)
    log = NodeLoss(cluster, runtime, 30, "collector-0")
    coordinator = Coordinator(stations(Slow), settings, runtime, recorder=log, checkpoints=store)
    result = runtime.run(coordinator.run())
    seen = audit(log.events)
    assert (result.updates, result.ledger.dropped) == (60, {})
    assert result.ledger.closes
    assert seen.kinds["lose"] == result.ledger.lost >= 1
    assert sorted(seen.learned) == list(range(60))
    assert set(seen.learned.values()) == {1}
    assert seen.max_live <= 16, "the slot stays occupied"
    assert store.load().ledger["learned"] == 60


def test_a_payload_that_is_lost_is_named(cluster: Cluster) -> None:
    runtime = RayActors(cluster.address, keeps_copies=False)

    async def main() -> None:
        rollout = await runtime.call("far", "rollout", BALLAST, 1.0, deadline_s=SOON_S)
        kept = await runtime.call("near", "rollout", BALLAST, 2.0, deadline_s=SOON_S)
        batch = Batch(0, (Rollout(kept.payload, ticket=6), Rollout(rollout.payload, ticket=7)))
        weights = Snapshot(3, rollout.payload)
        remove_node(cluster, runtime.node("far"))
        with pytest.raises(
            PayloadLost, match=r"^near\.total: the payload of ticket 7 was lost with the node"
        ) as caught:
            await runtime.call("near", "total", batch, deadline_s=SOON_S)
        assert (caught.value.tickets, caught.value.versions) == ((7,), ())
        with pytest.raises(PayloadLost, match="the payload of version 3 was lost") as caught:
            await runtime.call("near", "weigh", weights, deadline_s=SOON_S)
        assert (caught.value.tickets, caught.value.versions) == ((), (3,))
        with pytest.raises(PayloadLost, match="lost with the node"):
            runtime.fetch(rollout.payload)
        with pytest.raises(RoleDied, match=r"^far\.count: its actor died because its node has died"):
            await runtime.call("far", "count", deadline_s=SOON_S)
        assert await runtime.call("near", "total", Batch(0, (kept,)), deadline_s=SOON_S) == 2.0 * BALLAST

    async def body() -> None:
        try:
            far = Role("far", Echo, Placement(num_gpus=1, resources={"worker": 1}))  # not waited for: there is none
            near = Role("near", Echo, Placement(resources={"head": 1}))
            await asyncio.gather(runtime.start(far), runtime.start(near))
            await main()
        finally:
            await runtime.close()

    runtime.run(body())


def test_a_role_that_missed_a_deadline_is_built_anew_on_another_node_while_its_own_is_in_doubt(
    cluster: Cluster,
) -> None:
    runtime = RayActors(cluster.address)

    async def body() -> None:
        try:
            await runtime.start(Role("far", Echo, Placement(resources={"worker": 1})))
            for _ in range(3):  # from the second time on both are in doubt, and it goes to the one that was so first
                before = runtime.node("far")
                with pytest.raises(RoleLate, match="no answer within"):
                    await runtime.call("far", "hang", deadline_s=0.2)
                await runtime.restart("far")
                assert runtime.node("far") != before
                assert await runtime.call("far", "count", deadline_s=SOON_S) == 1
            with pytest.raises(RoleLate):
                await runtime.call("far", "hang", deadline_s=0.2)
            there = runtime.node("far")
            gone = next(n.node_id for n in cluster.worker_nodes if n.node_id != there)
            remove_node(cluster, gone)
            wait_until(lambda: gone not in alive_nodes(), what="Ray to notice that the node is gone")
            await runtime.restart("far")  # nobody else can take it
            assert runtime.node("far") == there
        finally:
            await runtime.close()

    runtime.run(body())
