"""One call may bring several tickets to a collector: cheaper, and the same run."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Literal

import pytest

from headway.coordinator.collecting import NOT_BEGUN
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Retries, Settings
from headway.core.protocols import Runtime
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.core.types_opaque import RoleAnswer
from headway.runs.config import RunConfig
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.build import build_runtime
from headway.runtimes.inline import Inline
from headway.runtimes.virtual import Virtual
from headway.testing.auditor import audit
from headway.tools.simulate.workloads import Constant, FaultyWorkload, Lognormal, SteadyWorkload


class Walker:
    """Carries a number from ticket to ticket, so that order matters; `fails` is a ticket that fails at first."""

    def __init__(self, fails: int, number: int) -> None:
        self._total = number
        self._fails = fails

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if ticket.index == self._fails and ticket.attempt == 0:
            raise RuntimeError("not this time")
        self._total = (31 * self._total + ticket.seed + snapshot.payload) % 1_000_003
        return Rollout(self._total)

    def state_dict(self) -> dict[str, int]:
        return {"total": self._total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._total = state["total"]


class Adder:
    def __init__(self) -> None:
        self.weights = 1

    def learn(self, batch: Batch) -> LearnReport:
        for rollout in batch.rollouts:
            self.weights = (7 * self.weights + rollout.payload) % 1_000_003
        return LearnReport(metrics={"weights": float(self.weights)})

    def snapshot(self) -> int:
        return self.weights

    def state_dict(self) -> int:
        return self.weights

    def load_state_dict(self, state: int) -> None:
        self.weights = state


class Sending(Virtual):
    """Says that its calls have a way to go; that way is all the time a call takes."""

    name = "sending"
    sends_calls = True


class Hurried(Inline):
    """Finds that every ticket took long: no other one of its call is begun."""

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer:
        given = (args[0], 0.0) if method == "collect_several" else args
        return await super().call(role, method, *given, deadline_s=deadline_s)


def weights(
    runtime_name: str, per_call: int | Literal["auto"], fails: int = -1, own: Runtime | None = None
) -> tuple[float, MemoryRecorder]:
    recorder = MemoryRecorder()
    settings = Settings(
        plan=Plan(updates=24),
        max_lead=3,
        collectors=2,
        tickets_per_batch=4,
        tickets_per_call=per_call,
        retries=Retries(attempts_on_error=2),
    )
    workload = SteadyWorkload(Lognormal(1.0, 0.5), Constant(0.2))
    runtime = own or (Sending(workload) if runtime_name == "virtual" else build_runtime(runtime_name))
    coordinator = Coordinator(Stations(partial(Walker, fails), Adder), settings, runtime, recorder=recorder)
    runtime.run(coordinator.run())
    learned = [event for event in recorder.events if event["e"] == "learn"]
    return learned[-1]["m"]["weights"], recorder


@pytest.mark.parametrize("per_call", [4, "auto"])
@pytest.mark.parametrize("runtime", ["inline", "virtual", "threads", "processes"])
def test_a_pinned_run_has_the_same_bits_with_any_number_of_tickets_a_call(
    runtime: str, per_call: int | Literal["auto"]
) -> None:
    alone, _ = weights("inline", 1)
    together, recorder = weights(runtime, per_call)
    assert together == alone
    assert audit(recorder.events) == []


def test_tickets_that_were_not_begun_because_another_took_long_fly_again_and_nobody_is_blamed() -> None:
    alone, _ = weights("inline", 1)
    together, recorder = weights("", 4, own=Hurried())
    assert together == alone
    assert audit(recorder.events) == []
    again = [event for event in recorder.events if event["e"] == "reissue"]
    assert {event["a"] for event in again} == {0}
    assert {event["why"] for event in again} == {NOT_BEGUN}


@pytest.mark.parametrize(("runtime", "together"), [("inline", False), ("threads", False), ("processes", True)])
def test_tickets_come_together_by_themselves_where_calls_leave_the_process(runtime: str, together: bool) -> None:
    _, recorder = weights(runtime, "auto")
    assert do_fly_together(recorder) == together


def do_fly_together(recorder: MemoryRecorder) -> bool:
    """Does a collector start a ticket before the last one has landed?"""
    flying: Counter[int] = Counter()
    for event in recorder.events:
        if event["e"] == "start":
            flying[event["c"]] += 1
            if flying[event["c"]] > 1:
                return True
        elif event["e"] == "land":
            flying[event["k"] % 2] -= 1  # pinned: ticket k flies on collector k mod 2
    return False


@pytest.mark.parametrize("per_call", [4, "auto"])
def test_several_tickets_do_fly_in_one_call(per_call: int | Literal["auto"]) -> None:
    _, recorder = weights("virtual", per_call)
    kinds = [event["e"] for event in recorder.events if event["e"] in ("start", "land")]
    assert "start start" in " ".join(kinds)
    landed = [event["t"] for event in recorder.events if event["e"] == "land"]
    assert len(set(landed)) < len(landed)


def test_of_a_call_that_fails_what_was_made_before_is_kept_and_the_rest_flies_again() -> None:
    alone, _ = weights("inline", 1)
    together, recorder = weights("virtual", 4, fails=9)
    assert together == alone
    assert audit(recorder.events) == []
    attempts = {event["k"]: event["a"] for event in recorder.events if event["e"] == "reissue"}
    assert attempts.pop(9) == 1
    assert set(attempts.values()) <= {0}


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_or_doubled_whatever_fails(seed: int, dispatch: str) -> None:
    recorder = MemoryRecorder()
    settings = Settings(
        plan=Plan(updates=30),
        max_lead=4,
        collectors=3,
        tickets_per_batch=5,
        tickets_per_call="auto" if seed % 2 else 1 + seed % 5,
        dispatch="pinned" if dispatch == "pinned" else "free",
        retries=Retries(attempts_on_error=50, attempts_on_loss=50, max_restarts=1000),
        seed=seed,
    )
    workload = FaultyWorkload(
        Lognormal(1.0, 0.7), Constant(0.3), seed=seed, crash=0.02, hang=0.01, error=0.05, slow=0.02, lose=0.01
    )
    runtime = Sending(workload)
    coordinator = Coordinator(Stations(partial(Walker, -1), Adder), settings, runtime, recorder=recorder)
    result = runtime.run(coordinator.run())
    assert result.ledger.learned == 150
    assert audit(recorder.events) == []


def test_lanes_have_a_call_of_their_own_for_each_ticket() -> None:
    with pytest.raises(ValueError, match="tickets_per_call=2 is for collectors with one lane"):
        Settings(plan=Plan(updates=1), lanes=2, tickets_per_call=2)


def test_a_recipe_hands_the_setting_on() -> None:
    assert RunConfig(tickets_per_call=3, updates=1).settings().tickets_per_call == 3
