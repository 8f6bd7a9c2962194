"""Nodes that say beforehand that they go: spot instances, autoscalers, Kubernetes."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_driver import ANY, HEAD, WORKER, Job
from cluster_runs import RayCluster, assert_nothing_lost_or_doubled, undisturbed_hash
from waiting import patient, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("how", ["drain-node", "SIGTERM"])
def test_collectors_leave_a_node_that_is_drained_before_it_has_gone_and_no_ticket_flies_twice(
    cluster: RayCluster, run_folder: str, how: str
) -> None:
    cluster.bring_up(WORKER)
    worker = cluster.nodes[WORKER]
    job = Job(run_folder, collectors=4, max_lead=4, updates=1500, collect_ms=150, collector_at=ANY)
    with cluster.run(job) as run:
        run.wait_for_update(10)
        there = len(worker.processes("ray::RoleHost"))
        assert there, "Ray spread the collectors over both machines"
        if how == "SIGTERM":
            worker.send(signal.SIGTERM)
        else:
            cluster.drain(WORKER, int(patient(60)))
        run.wait_for(lambda event: event["e"] == "notice")
        wait_until(lambda: sum(event["e"] == "move" for event in run.events()) == there, 60, "all to have left")
        if how == "drain-node":
            worker.end()  # the cloud takes it
        worker.wait_until_over()
        assert not run.is_over, "the node is gone, and the run goes on"
        result = run.finish(150)
        assert_nothing_lost_or_doubled(run, result)
        assert (result["restarts"], result["reissued"]) == (0, 0)
        notices, moves = ([e for e in run.events() if e["e"] == kind] for kind in ("notice", "move"))
        assert len(moves) == len(notices) == there
        assert notices[0]["why"].startswith(f"node {worker.machine.address} is drained and goes in")


def test_a_drained_learner_ends_the_run_with_a_checkpoint_and_resume_has_the_same_bits(
    cluster: RayCluster, run_folder: str
) -> None:
    cluster.bring_up(WORKER)
    job = Job(run_folder, updates=300, learner_at=WORKER, collector_at=HEAD, collect_ms=100)
    with cluster.run(job) as run:
        run.wait_for_update(10)
        cluster.drain(WORKER, int(patient(60)))
        result = run.finish()
    assert result["stopped"].startswith("interrupted: node 10.77.0.2 is drained"), result
    assert result["stopped"].endswith("and learner cannot go elsewhere") and result["closes"]
    assert list(Path(run_folder, "checkpoints").glob(f"*-v{result['updates']}"))
    cluster.bring_up(WORKER)
    short = replace(job, updates=result["updates"] + 10, resume=True)
    with cluster.run(short) as run:
        rest = run.finish()
    assert (rest.get("updates"), rest.get("hash")) == (short.updates, undisturbed_hash(short)), rest
