"""What ends a run at once: a collector that says it cannot go on, and an update that is not finite."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway import CannotGoOn, Plan, Retries, RunFailed, Settings, Stations
from headway.coordinator.checkpoint import CheckpointStore
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.testing.toy_stations import ToyCollector, ToyEngine, ToyLearner

DROPS = Retries(on_failure="drop", attempts_on_error=3)


class Tiring(ToyCollector):
    """Raises one of two errors from ticket 5 on."""

    def __init__(self, is_final: bool, number: int) -> None:
        super().__init__(number)
        self._error = CannotGoOn if is_final else ValueError

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if 5 <= ticket.index < 8:
            raise self._error("the licence is over")
        return super().collect(ticket, snapshot)


def run(runtime: str, *, is_final: bool) -> int:
    stations = Stations(partial(Tiring, is_final), ToyLearner)
    settings = Settings(plan=Plan(updates=12), max_lead=1, retries=DROPS, dispatch="free")
    return launch(stations, settings, runtime=runtime).ledger.dropped["failed"]


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_run_ends_with_one_line_where_it_would_have_dropped_tickets(runtime: str) -> None:
    if runtime == "ray":
        pytest.importorskip("ray")
    assert run(runtime, is_final=False) == 3
    with pytest.raises(RunFailed, match=r"^collector-0 cannot go on: CannotGoOn: the licence is over$"):
        run(runtime, is_final=True)


class TiredOfWeights(ToyEngine):
    """Takes two versions and no more."""

    def apply(self, snapshot: Snapshot) -> None:
        if snapshot.version >= 2:
            raise CannotGoOn("the licence is over")
        super().apply(snapshot)


@pytest.mark.parametrize("on_publish", ["drain", "partial"])
def test_the_run_ends_where_weights_would_have_been_offered_again(on_publish: Any) -> None:
    settings = Settings(
        plan=Plan(updates=12), max_lead=1, lanes=2, on_publish=on_publish, retries=replace(DROPS, publish_attempts=1000)
    )
    with pytest.raises(RunFailed, match=r"^collector-0 cannot go on: CannotGoOn: the licence is over$"):
        launch(Stations(TiredOfWeights, ToyLearner), settings, runtime="threads")


class Diverges(ToyLearner):
    """Its weights become NaN in the update with ticket 5, and the loss says so."""

    def learn(self, batch: Batch) -> LearnReport:
        report = super().learn(batch)
        if any(rollout.ticket == 5 for rollout in batch.rollouts):
            self._weights[0] = np.nan
            return LearnReport({"reward": 1.0, "policy_loss": float("nan"), "grad_norm": float("inf"), "entropy": 0.0})
        return LearnReport({**report.metrics, "explained_variance": float("nan")})


@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_an_update_that_is_not_finite_ends_the_run_with_the_last_checkpoint_kept(tmp_path: Path, runtime: str) -> None:
    settings = Settings(plan=Plan(updates=8, save_every=1), max_lead=1, tickets_per_batch=2)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunFailed) as failed:
        launch(Stations(ToyCollector, Diverges), settings, runtime=runtime, folder=folder)
    assert str(failed.value).startswith(
        "learner.learn: FloatingPointError: the update on tickets 4, 5 at version 2 is not finite: "
        "policy_loss is nan, grad_norm is inf; "
    )
    assert str(failed.value).endswith(f"; `headway resume {folder.path}` goes back to checkpoint 000001-v2")
    assert "\n" not in str(failed.value)
    kept = CheckpointStore(folder.checkpoints).load()
    assert kept.version == 2
    assert np.isfinite(kept.snapshots[2]["weights"]).all() and np.isfinite(kept.learner["weights"]).all()

    healthy = Stations(ToyCollector, ToyLearner)
    resumed = launch(healthy, settings, runtime=runtime, folder=folder, resume=True)
    undisturbed = launch(healthy, settings, runtime=runtime)
    assert fingerprint(resumed.weights) == fingerprint(undisturbed.weights)


def test_an_update_that_is_not_finite_before_the_first_checkpoint_begins_the_run_again(tmp_path: Path) -> None:
    settings = Settings(plan=Plan(updates=8), max_lead=1, tickets_per_batch=2)
    folder, healthy = RunFolder(tmp_path / "run"), Stations(ToyCollector, ToyLearner)
    with pytest.raises(RunFailed, match=r"tickets 4, 5 at version 2 .*; no checkpoint was saved yet$"):
        launch(Stations(ToyCollector, Diverges), settings, runtime="inline", folder=folder)
    resumed = launch(healthy, settings, runtime="inline", folder=folder, resume=True)
    assert fingerprint(resumed.weights) == fingerprint(launch(healthy, settings, runtime="inline").weights)


def test_many_tickets_of_an_update_that_is_not_finite_are_cut_short() -> None:
    settings = Settings(plan=Plan(updates=2), max_lead=1, tickets_per_batch=20)
    with pytest.raises(RunFailed, match=r"the update on tickets 0, 1, 2, 3, 4, 5, 6, 7 and 12 more at version 0 is"):
        launch(Stations(ToyCollector, Diverges), settings, runtime="inline")
