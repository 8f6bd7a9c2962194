"""Links that are slow, lossy or deaf in one direction; nodes that come, go and are told to go; a head that is gone."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_driver import ANY, FAR, HEAD, WORKER, Job
from cluster_runs import RayCluster, assert_nothing_lost_or_doubled, undisturbed_hash
from waiting import patient, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_200_ms_and_5_percent_loss_cost_time_and_nothing_else(cluster: RayCluster, run_folder: str) -> None:
    cluster.bring_up(FAR)
    with cluster.run(Job(run_folder, updates=30, collector_at=FAR, ballast=30_000)) as run:
        run.wait_for_update(3)
        cluster.degrade(FAR, delay_s=0.1, loss=0.05)  # 200 ms there and back
        try:
            result = run.finish(200)
        finally:
            cluster.degrade(FAR)
        assert_nothing_lost_or_doubled(run, result)
        assert result["restarts"] == 0


@pytest.mark.parametrize("way", ["deaf", "mute"])
def test_a_node_that_only_hears_or_only_speaks_is_replaced(cluster: RayCluster, run_folder: str, way: str) -> None:
    cluster.bring_up(FAR)
    far = cluster.nodes[FAR]
    job = Job(run_folder, collectors=4, max_lead=4, updates=60, collect_ms=150, collector_at=ANY)
    with cluster.run(replace(job, deadlines={"collect_s": patient(2)})) as run:
        run.wait_for_update(10)
        assert far.processes("ray::RoleHost")
        cluster.degrade(FAR, **{way: True})
        try:
            result = run.finish(150)
        finally:
            cluster.degrade(FAR)
        assert_nothing_lost_or_doubled(run, result)
        assert result["restarts"] >= 1


def test_a_node_that_joins_later_takes_over_from_one_that_was_lost(cluster: RayCluster, run_folder: str) -> None:
    cluster.bring_up(WORKER)
    worker = cluster.nodes[WORKER]
    with cluster.run(Job(run_folder, updates=300, collect_ms=300)) as run:
        run.wait_for_update(10)
        worker.end()
        run.wait_for(lambda event: event["e"] == "restart")
        cluster.bring_up(WORKER)
        result = run.finish(150)
        assert_nothing_lost_or_doubled(run, result)
        assert result["restarts"] >= 2, "both collectors were there"


def test_a_head_that_is_killed_ends_the_run_and_resume_goes_on_with_the_same_bits(
    cluster: RayCluster, run_folder: str
) -> None:
    cluster.bring_up(WORKER)
    job = Job(run_folder, updates=200, collect_ms=50, save_every=5, learner_at=HEAD)
    with cluster.run(job) as run:
        run.wait_for_update(12)
        killed_at = time.monotonic()
        cluster.head.end()
        wait_until(lambda: run.is_over, 60, "the end of the run")
        assert time.monotonic() - killed_at < patient(60)
    for node in cluster.nodes.values():
        node.end()
    cluster.bring_up(WORKER)
    with cluster.run(replace(job, resume=True)) as run:
        result = run.finish()
    assert (result.get("updates"), result.get("hash")) == (200, undisturbed_hash(job)), result


def test_a_head_that_shuts_down_without_its_control_store_ends_the_run_before_ray_ends_its_driver(
    cluster: RayCluster, run_folder: str
) -> None:
    """Ray ends what runs on the head, and would end the driver, which cannot reach the store, a minute later."""
    cluster.bring_up(WORKER)
    job = Job(run_folder, updates=20_000, collect_ms=5, save_every=5, learner_at=HEAD)
    with cluster.run(job) as run:
        run.wait_for_update(12)
        [store] = cluster.head.processes("gcs_server")
        os.kill(store, signal.SIGKILL)
        wait_until(lambda: run.is_over, 120, "the end of the run")
        fails = [event for event in run.events() if event["e"] == "fail"]
        # The learner and the raylet of the driver's node end together.
        assert fails and re.search("learner|the raylet .* has ended$", fails[0]["why"]), run.said()
    for node in cluster.nodes.values():
        node.end()
    cluster.bring_up(WORKER)
    last = max(int(folder.name.partition("-v")[2]) for folder in Path(run_folder, "checkpoints").glob("*-v*"))
    short = replace(job, updates=last + 10, resume=True)
    with cluster.run(short) as run:
        result = run.finish()
    assert (result.get("updates"), result.get("hash")) == (last + 10, undisturbed_hash(short)), result
