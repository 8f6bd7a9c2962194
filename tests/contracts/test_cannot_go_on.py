"""A collector that says it cannot go on ends the run, even one that drops what fails."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from headway import CannotGoOn, Plan, Retries, RunFailed, Settings, Stations
from headway.core.types import Rollout, Snapshot, Ticket
from headway.launching import launch
from headway.testing.fakes import ToyCollector, ToyEngine, ToyLearner

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
