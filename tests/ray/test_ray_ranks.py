"""A learner whose ranks are Ray actors: the same bits, one line when one dies, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from running_processes import is_running, wait_until_gone
from scripted_learner import Toy, told
from waiting import patient

from headway.core.protocols import Placement, Role
from headway.ppo.recipe_ppo import PPOConfig, stations
from headway.ranks.rank import Rank
from headway.ranks.ranked_learner import RankedLearner, RankFailed
from headway.ranks.ray_ranks import RayRanks
from headway.runs.fingerprint import fingerprint
from headway.runs.launch_session import launch
from headway.runtimes.ray_actors import RayActors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
in_local_ray = pytest.mark.usefixtures("local_ray")
MEMORY = {"object_store_memory": 100 << 20}


def pids_of(learner: RankedLearner) -> list[int]:
    peers = learner._peers
    assert isinstance(peers, RayRanks)
    return list(peers.pids.values())


@pytest.mark.usefixtures("no_ray")
def test_without_ray_it_says_so() -> None:
    with pytest.raises(ValueError, match="need a process that is connected to Ray"):
        RankedLearner(Toy, 2, RayRanks)


@in_local_ray
def test_a_run_over_ranks_has_the_bits_it_has_without_ray() -> None:
    """Of all rollouts and all ranks, one on each of the two CPUs or wherever there is room."""
    prints = []
    for runtime in ("inline", "ray"):
        config = PPOConfig(
            num_envs=5,
            segment_steps=8,
            minibatch_size=16,
            updates=4,
            evaluate_every=0,
            normalise=True,
            learner_ranks=2,
            runtime=runtime,
            start_deadline_s=patient(120),
        )
        prints.append(fingerprint(launch(stations(config), config.settings(), runtime=runtime).weights))
    assert len(set(prints)) == 1


@in_local_ray
def test_every_rank_has_the_whole_batch_as_its_own_and_ends_when_nobody_holds_it() -> None:
    learner = RankedLearner(Toy, 3, partial(RayRanks, placement=Placement(num_threads=2)), check_every=1)
    learner.learn(told(size=100_000))
    report = learner.learn(told(size=10))
    assert learner.snapshot()["total"].item() == np.arange(100_000.0).sum() + 45
    for index in range(3):
        expected = np.arange(100_000.0).sum() + 45 + (1.0 + index) * 100_010
        assert report.metrics[str(index)] == pytest.approx(expected)
    learner.load_state_dict({"total": learner.snapshot()["total"] + 1})
    learner.learn(told())
    pids = pids_of(learner)
    assert len(pids) == 2 and all(map(is_running, pids))
    del learner
    gc.collect()
    wait_until_gone(pids)


@in_local_ray
@pytest.mark.parametrize(
    ("deed", "line"),
    [
        ("raises", r"rank 1 of 2: KeyError: 'reward'"),
        ("dies", r"rank 1 of 2 died because its worker process has died.*"),
        ("strays", r"rank 1 of 2: the ranks have different weights: \w{16} there, \w{16} here"),
    ],
)
def test_a_rank_that_fails_is_one_line_at_once(deed: str, line: str) -> None:
    learner = RankedLearner(Toy, 2, RayRanks, check_every=1)
    learner.learn(told())
    pids, began = pids_of(learner), time.monotonic()
    with pytest.raises(RankFailed) as caught:
        learner.learn(told(deed, (1,)))
    assert time.monotonic() - began < patient(10)
    assert re.fullmatch(line, str(caught.value))
    with pytest.raises(RankFailed):
        learner.snapshot()
    wait_until_gone(pids)
    learner.close()


class Sleeper(Toy):
    """Rank 1 never comes to the sum the others wait for."""

    def raises(self) -> None:
        time.sleep(600)


@in_local_ray
def test_of_ranks_that_wait_for_each_other_the_one_that_hangs_is_named() -> None:
    learner = RankedLearner(Sleeper, 3, RayRanks, deadline_s=8.0)
    learner.learn(told())
    pids = pids_of(learner)
    with pytest.raises(RankFailed) as caught:
        learner.learn(told("raises", (2,)))
    assert str(caught.value) == "rank 2 of 3 gave no answer within 8 s"
    wait_until_gone(pids)
    learner.close()


class Holder:
    """A role with ranks of its own."""

    def __init__(self) -> None:
        self.learner = RankedLearner(Toy, 2, RayRanks)

    def pids(self) -> list[int]:
        return pids_of(self.learner)


@in_local_ray
def test_when_the_learner_is_killed_its_ranks_go_too() -> None:
    runtime = RayActors(start_s=patient(50))

    async def main() -> list[int]:
        try:
            await runtime.start(Role("learner", Holder))
            pids: list[int] = await runtime.call("learner", "pids", deadline_s=60)
            assert all(map(is_running, pids))
            os.kill(runtime.pid("learner"), signal.SIGKILL)
            await asyncio.to_thread(wait_until_gone, pids)
            return pids
        finally:
            await runtime.close()

    assert len(runtime.run(main())) == 1
    assert ray.is_initialized()


def choosy(rank: Rank) -> Toy:
    if rank.index:
        raise OSError("no such simulator")
    return Toy(rank)


@in_local_ray
def test_a_rank_that_cannot_be_built_says_why() -> None:
    with pytest.raises(RankFailed, match=r"^rank 1 of 2: OSError: no such simulator"):
        RankedLearner(choosy, 2, RayRanks)


@pytest.fixture
def far_away(no_ray: None) -> Iterator[None]:
    """A second node, the only one with what a rank asks for."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **MEMORY})
    cluster.add_node(num_cpus=1, resources={"far": 1}, **MEMORY)
    ray.init(cluster.address, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.usefixtures("far_away")
def test_a_rank_on_another_node_learns_along() -> None:
    learner = RankedLearner(Toy, 2, partial(RayRanks, placement=Placement(resources={"far": 1})), check_every=1)
    for _ in range(3):
        learner.learn(told(size=100_000))
    assert learner.snapshot()["total"].item() == 3 * np.arange(100_000.0).sum()
    learner.close()
