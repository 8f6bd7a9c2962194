"""Roles with whole GPUs get them before any role starts: by node, the largest first, or a line that says why not.

A GPU is a number to Ray, so clusters with many can be had on a machine with none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from running_processes import wait_until_gone
from scripted_learner import Toy, told
from waiting import patient

from headway.core.protocols import Placement, Reserves, Role, RoleLate
from headway.ranks.ranked_learner import RankedLearner
from headway.ranks.ray_ranks import RayRanks
from headway.runtimes.ray_actors import RayActors
from headway.runtimes.ray_cluster_ray_reservations import CannotPlace, check_room

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
MEMORY = {"object_store_memory": 100 << 20}


def role(name: str, num_gpus: float, processes: int = 1, factory: Any = dict) -> Role:
    return Role(name, factory, Placement(num_cpus=0, num_gpus=num_gpus, processes=processes))


# -- what can never be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "nodes", "line"),
    [
        ([role("engine", 4)], [2, 2], r"engine asks for 4 GPUs of one node; the cluster has 4 in 2 nodes \(2, 2\)"),
        ([role("learner", 1, 5)], [4], r"learner 5 x 1: 5 GPUs in all; the cluster has 4 in 1 nodes \(4\)"),
        ([role("learner", 1, 3), role("a", 1), role("b", 1)], [4], r"learner 3 x 1, a 1, b 1: 5 GPUs in all; .*"),
        ([role("a", 2), role("b", 2)], [3, 1], r"a 2, b 2: 4 GPUs in all; .*\(3, 1\)"),
    ],
)
def test_gpus_that_no_division_gives_are_refused_at_once(roles: list[Role], nodes: list[int], line: str) -> None:
    with pytest.raises(CannotPlace, match=f"^{line}$"):
        check_room(roles, nodes)


def test_what_fits_is_let_through() -> None:
    check_room([role("learner", 1, 4), role("a", 2), role("b", 2)], [4, 4])
    check_room([role("learner", 1, 6), role("a", 2)], [4, 4])


# -- on a cluster -----------------------------------------------------------------------------------


class Holder:
    """A role with ranks of its own."""

    def __init__(self, size: int) -> None:
        self.learner = RankedLearner(Toy, size, partial(RayRanks, placement=Placement(num_cpus=0, num_gpus=1)))

    def nodes(self) -> list[str]:
        """Of every rank: its own first."""
        self.learner.learn(told())
        peers = self.learner._peers
        assert isinstance(peers, RayRanks)
        others = ray.get([host.where.remote() for host in peers._hosts.values()])
        return [ray.get_runtime_context().get_node_id(), *others]

    def pids(self) -> list[int]:
        peers = self.learner._peers
        assert isinstance(peers, RayRanks)
        return list(peers.pids.values())


class Seer:
    """A role that says which GPUs it was given."""

    def gpus(self) -> list[str]:
        return list(ray.get_runtime_context().get_accelerator_ids()["GPU"])


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    """Three GPUs in each of two nodes."""
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 3, **MEMORY})
    cluster.add_node(num_cpus=1, num_gpus=3, **MEMORY)
    ray.init(cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def states() -> Counter[str]:
    """Of all placement groups that there are or were."""
    return Counter(group["state"] for group in ray.util.placement_group_table().values())


def test_ranks_are_together_engines_have_their_node_and_everything_is_given_back(two_nodes: None) -> None:
    runtime = RayActors(start_s=patient(60))
    assert isinstance(runtime, Reserves)
    narrow, wide = role("narrow", 1, factory=Seer), role("wide", 2, factory=Seer)
    learner = role("learner", 1, 3, factory=partial(Holder, 3))
    roles = [narrow, wide, learner]  # those of whole nodes last: nobody has scattered before

    async def main() -> tuple[list[str], dict[str, list[str]], list[int], dict[str, str]]:
        try:
            await runtime.reserve(roles)
            await asyncio.gather(*(runtime.start(one) for one in roles))
            nodes = await runtime.call("learner", "nodes", deadline_s=patient(60))
            seen = {one.name: await runtime.call(one.name, "gpus", deadline_s=60) for one in (narrow, wide)}
            pids = await runtime.call("learner", "pids", deadline_s=60)
            await runtime.restart("narrow")
            assert len(await runtime.call("narrow", "gpus", deadline_s=60)) == 1
            return nodes, seen, pids, {one.name: runtime.node(one.name) for one in roles}
        finally:
            await runtime.close()

    nodes, seen, pids, where = runtime.run(main())
    assert len(nodes) == 3
    assert len(set(nodes)) == 1
    assert [len(seen[name]) for name in ("narrow", "wide")] == [1, 2]
    assert where["wide"] == where["narrow"] != nodes[0]
    wait_until_gone(pids)
    assert states()["CREATED"] == 0


def test_ranks_of_two_nodes_are_neighbours_by_node(two_nodes: None) -> None:
    runtime = RayActors(start_s=patient(60))
    learner = role("learner", 1, 4, factory=partial(Holder, 4))

    async def main() -> list[str]:
        try:
            await runtime.reserve([learner])
            await runtime.start(learner)
            nodes: list[str] = await runtime.call("learner", "nodes", deadline_s=patient(60))
            return nodes
        finally:
            await runtime.close()

    nodes = runtime.run(main())
    assert sorted(Counter(nodes).values()) == [1, 3]
    assert sum(one != other for one, other in pairwise(nodes)) == 1  # one change of node


def test_what_is_occupied_is_waited_for_within_the_deadline_and_leaves_nothing(two_nodes: None) -> None:
    taken = ray.util.placement_group([{"GPU": 3}, {"GPU": 2}])
    ray.get(taken.ready(), timeout=30)
    runtime = RayActors(start_s=1.0)

    async def main() -> None:
        try:
            await runtime.reserve([role("learner", 1, 2)])
        finally:
            await runtime.close()

    with pytest.raises(
        RoleLate, match=r"learner.start: not placed \(asked for GPU 1; the cluster has GPU 1 of 6 free\)"
    ):
        runtime.run(main())
    assert states()["CREATED"] == 1
    assert states()["PENDING"] == 0
    ray.util.remove_placement_group(taken)


def test_without_gpus_in_the_cluster_nobody_asks_for_one(no_ray: None) -> None:
    ray.init("local", num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False, configure_logging=False)
    runtime = RayActors(start_s=patient(60))

    async def main() -> list[str]:
        try:
            await runtime.reserve([role("engine", 1, factory=Seer)])
            await runtime.start(role("engine", 1, factory=Seer))
            found: list[str] = await runtime.call("engine", "gpus", deadline_s=60)
            return found
        finally:
            await runtime.close()

    try:
        assert runtime.run(main()) == []
    finally:
        ray.shutdown()
