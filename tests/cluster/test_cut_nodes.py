"""A real cluster of two machines, one of which is cut off: the run neither hangs nor loses anything, and says so."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from cluster_driver import ANY, HEAD, WORKER, Job
from cluster_runs import ClusterRun, RayCluster, assert_nothing_lost_or_doubled, undisturbed_hash
from waiting import patient, wait_until

pytestmark = pytest.mark.timeout(240)
BEFORE_RAY_S = 8.0
"""Ray itself calls a node dead that has been silent for 12 s (`HEALTH`); a deadline that is to be first is shorter."""


def stands_still(run: ClusterRun, seconds: float) -> bool:
    """Whether nothing was said in the run's log for so long."""
    before = len(run.events())
    time.sleep(seconds)
    return len(run.events()) == before


def test_a_node_that_is_back_before_the_deadline_costs_time_and_nothing_else(
    cluster: RayCluster, run_folder: str
) -> None:
    cluster.bring_up(WORKER)
    with cluster.run(Job(run_folder, deadlines={"collect_s": patient(60)})) as run:
        run.wait_for_update(10)
        cluster.cut(WORKER)
        wait_until(lambda: stands_still(run, 2.5), what="a run that stands still, since nobody can be reached")
        assert not run.is_over
        cluster.mend(WORKER)
        result = run.finish()
        assert_nothing_lost_or_doubled(run, result)
        assert (result["restarts"], result["reissued"]) == (0, 0)


def test_a_node_that_stays_away_is_replaced_and_a_pinned_run_keeps_its_bits(
    cluster: RayCluster, run_folder: str
) -> None:
    cluster.bring_up(WORKER)
    worker = cluster.nodes[WORKER]
    job = Job(run_folder, collectors=4, max_lead=4, updates=60, collect_ms=150, collector_at=ANY)
    with cluster.run(replace(job, deadlines={"collect_s": min(patient(2), BEFORE_RAY_S)})) as run:
        run.wait_for_update(10)
        there = len(worker.processes("ray::RoleHost"))
        assert there, "Ray spread the collectors over both machines"
        cluster.cut(WORKER)
        run.wait_for(lambda event: event["e"] == "restart", 60)
        result = run.finish(120)
        assert_nothing_lost_or_doubled(run, result)
        assert result["reissued"] >= 1
        restarts = [event for event in run.events() if event["e"] == "restart"]
        assert len(restarts) == there, "none was sent back to a node that does not answer, in which Ray still believes"
        assert "no answer within" in restarts[0]["why"], "it says what happened"


@pytest.mark.parametrize("what", ["publish", "checkpoint"])
def test_the_learners_node_cut_in_the_middle_ends_the_run_with_a_line_and_resume_has_the_same_bits(
    cluster: RayCluster, run_folder: str, what: str
) -> None:
    cluster.bring_up(WORKER)
    limit_s = patient(2)
    pauses = {"publish_ms": 300.0} if what == "publish" else {"save_ms": 1500.0}
    job = Job(run_folder, updates=24, learner_at=WORKER, collector_at=HEAD, save_every=8, collect_ms=5, **pauses)
    with cluster.run(replace(job, deadlines={"learn_s": limit_s, "publish_s": limit_s})) as run:
        run.wait_for_update(12 if what == "publish" else 16)
        cut_at = time.monotonic()
        cluster.cut(WORKER)
        result = run.finish()
        noticed_s = time.monotonic() - cut_at
    assert result.get("failed", "").startswith("learner."), result
    assert noticed_s < patient(limit_s + 15)
    cluster.bring_up(WORKER)
    with cluster.run(replace(job, publish_ms=0.0, save_ms=0.0, resume=True)) as run:
        result = run.finish()
    assert (result.get("updates"), result.get("hash")) == (24, undisturbed_hash(job)), result
