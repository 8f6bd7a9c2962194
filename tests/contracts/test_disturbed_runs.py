"""A run that is stopped, killed, resumed or hit by faults is the run that was not, wherever that can be asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fault_schedules import Ending
from hash_chain_stations import SAMPLES, Nature, Notes
from schedule_runs import Killed, Log, MemoryCheckpoints

from headway.coordinator.checkpoint import RunState
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Retries, Settings
from headway.core.rules import ReplayRatio
from headway.core.rules_order import OLDEST, OnStale, Order, window
from headway.runtimes.virtual import Fault, Virtual, Workload
from headway.testing.auditor import audit
from headway.tools.simulate.workloads import Constant, Exponential, Lognormal, SteadyWorkload

RATIO = ReplayRatio(2, min_size=3, samples_per_update=SAMPLES, steps_per_ticket=1)
LOOSE = ReplayRatio(3, min_size=4, samples_per_update=SAMPLES, steps_per_ticket=1)


class Taking(SteadyWorkload):
    """Every call takes as long as it is told, by method."""

    def __init__(self, **seconds: float) -> None:
        super().__init__(Constant(seconds.pop("collect", 1.0)), Constant(seconds.pop("learn", 1.0)))
        self.seconds = seconds

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        return self.seconds.get(method, super().duration_s(role, method, args))


def session(
    settings: Settings,
    nature: Nature,
    workload: Workload | None = None,
    *,
    events: list[dict[str, Any]] | None = None,
    checkpoints: MemoryCheckpoints | None = None,
    ending: Ending | None = None,
    rng: Any = None,
) -> tuple[list[dict[str, Any]], RunResult | None]:
    """One session: from the last checkpoint, if there is one, to the end, a stop or a kill."""
    state: RunState | None = checkpoints.load() if checkpoints is not None and checkpoints.all() else None
    log = Log((events or [])[: state.events_position if state else 0], ending, float("inf"))
    runtime = Virtual(workload or Taking())
    stations = nature.stations(Notes(), rng or random.Random(0), lambda name: None)
    coordinator = Coordinator(stations, settings, runtime, recorder=log, checkpoints=checkpoints, resume=state)
    try:
        return log.events, runtime.run(log.follow(coordinator))
    except Killed:
        return log.events, None


PINNED = {
    "a queue": (Nature(publish_every=2, collector="stateful"), {}),
    "a filter": (Nature(publish_every=2, filters=True), {"tickets_per_batch": 2}),
    "a replay inside": (Nature(publish_every=2, replay="inside"), {"replay": LOOSE}),
    "a shared replay": (Nature(publish_every=3, replay="shared"), {"replay": LOOSE}),
    "targets": (Nature(publish_every=1, replay="shared", reanalyzer="targets"), {"replay": RATIO}),
    "targets inside": (Nature(publish_every=2, replay="inside", reanalyzer="targets"), {"replay": RATIO}),
}


@pytest.mark.parametrize("lead", [0, 4])
@pytest.mark.parametrize("kind", ["stop", "kill"])
@pytest.mark.parametrize("what", PINNED)
def test_a_pinned_run_that_ends_after_any_event_goes_on_to_the_same_bits(what: str, kind: str, lead: int) -> None:
    nature, more = PINNED[what]
    settings = Settings(
        plan=Plan(updates=8, save_every=2),
        max_lead=lead,
        collectors=2,
        publish_every=nature.publish_every,
        dispatch="pinned",
        **more,
    )
    workload = Taking(collect=1.3, learn=0.7, reanalyze_work=0.4, insert=0.2)
    whole, result = session(settings, nature, workload)
    assert result is not None
    for after in range(1, len(whole), 2):
        checkpoints = MemoryCheckpoints()
        events, _ = session(settings, nature, workload, checkpoints=checkpoints, ending=Ending(kind, after))
        events, resumed = session(settings, nature, workload, events=events, checkpoints=checkpoints)
        assert resumed is not None
        assert resumed.weights == result.weights, f"{kind} after event {after}"
        assert not audit(events)


# -- the log, executed again --------------------------------------------------------------------------


def weights_again(events: list[dict[str, Any]], nature: Nature) -> Any:
    return replay(nature.stations(Notes(), random.Random(0), lambda name: None), events).weights


def test_feedback_that_comes_while_targets_are_refreshed_reaches_the_replay_after_them_again() -> None:
    nature = Nature(replay="shared", reanalyzer="targets")
    settings = Settings(plan=Plan(updates=12), max_lead=2, collectors=3, dispatch="free", replay=RATIO)
    workload = Taking(collect=0.3, learn=1.0, reanalyze_work=0.6, refresh=0.7)
    events, result = session(settings, nature, workload)
    assert result is not None
    asked = [(event["t"] - 0.7, event["t"]) for event in events if event["e"] == "refresh"]
    ended = [event["t"] for event in events if event["e"] == "learn"]
    assert any(first < t < last for first, last in asked for t in ended), "or nothing was tested"
    assert weights_again(events, nature) == result.weights


class Link:
    """Publishing fails once, at the given call; from then on the next collection finds its weights lost."""

    def __init__(self, fails_at: int) -> None:
        self._left = fails_at
        self.is_down = False

    def random(self) -> float:
        self._left -= 1
        self.is_down = self.is_down or not self._left
        return 0.0 if not self._left else 1.0


class LosesOnce(Taking):
    def __init__(self, link: Link) -> None:
        super().__init__(collect=3.0, learn=0.2)
        self._link = link
        self.has_lost = False

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        if method == "collect" and self._link.is_down and not self.has_lost:
            self.has_lost = True
            return Fault.LOSE
        return None


def test_an_update_is_recorded_before_its_weights_are_given_to_anybody() -> None:
    """The link is down when version 2 is due; meanwhile version 1 is lost, and staged again with that update in it."""
    link = Link(fails_at=3)
    workload = LosesOnce(link)
    nature = Nature(publish_every=2, publish_fails=0.5, loses=True)
    settings = Settings(
        plan=Plan(updates=10),
        max_lead=2,
        collectors=2,
        publish_every=2,
        dispatch="free",
        retries=Retries(publish_delay_s=5.0),
    )
    events, result = session(settings, nature, workload, rng=link)
    kinds = [event["e"] for event in events]
    assert result is not None
    retried = kinds.index("publish_retry")
    assert "restage" in kinds[retried : kinds.index("publish", retried)], "or nothing was tested"
    assert weights_again(events, Nature(publish_every=2)) == result.weights


class LosesWeights(SteadyWorkload):
    def __init__(self, seed: int) -> None:
        super().__init__(Exponential(1.0), Exponential(0.5), seed=seed)
        self._faults = random.Random(seed)

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        return 1.5 if method == "reanalyze_work" else super().duration_s(role, method, args)

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        return Fault.LOSE if method == "collect" and self._faults.random() < 0.15 else None


def test_targets_are_made_again_with_the_weights_they_were_made_with() -> None:
    """Also where these were lost and staged again, newer, before they had been used."""
    nature = Nature(publish_every=3, replay="shared", reanalyzer="targets", loses=True)
    tight = ReplayRatio(3, 1, (SAMPLES + 3) / 2, samples_per_update=SAMPLES)  # no draw is made ahead
    settings = Settings(plan=Plan(updates=12), max_lead=2, collectors=3, publish_every=3, dispatch="free", replay=tight)
    restaged = 0
    for seed in range(20):
        events, result = session(settings, nature, LosesWeights(seed))
        assert result is not None
        working = None
        for event in events:
            working = event["e"] == "work" or (working and event["e"] != "refresh")
            restaged += bool(working and event["e"] == "restage")
        assert weights_again(events, nature) == result.weights
    assert restaged > 5


# -- resumed with other settings ----------------------------------------------------------------------


def resumed_with(first: Settings, second: Settings, nature: Nature) -> RunResult:
    checkpoints = MemoryCheckpoints()
    events, _ = session(first, nature, checkpoints=checkpoints, ending=Ending("stop", 60))
    events, result = session(second, nature, events=events, checkpoints=checkpoints)
    assert result is not None
    assert not audit(events)
    return result


def free(**more: Any) -> Settings:
    return Settings(plan=Plan(updates=14), dispatch="free", **more)


def test_a_free_run_goes_on_with_fewer_collectors_that_carry_something() -> None:
    result = resumed_with(free(collectors=4), free(collectors=2), Nature(collector="stateful"))
    assert result.updates == 14


def test_what_a_collector_carried_waits_for_the_session_that_has_it_again() -> None:
    nature, checkpoints = Nature(collector="stateful"), MemoryCheckpoints()
    events, _ = session(free(collectors=3), nature, checkpoints=checkpoints, ending=Ending("stop", 60))
    carried = checkpoints.load().collectors
    assert set(carried) == {0, 1, 2}
    events, _ = session(free(collectors=1), nature, events=events, checkpoints=checkpoints, ending=Ending("stop", 40))
    assert checkpoints.load().collectors[2] == carried[2]
    events, result = session(free(collectors=3), nature, events=events, checkpoints=checkpoints)
    assert result is not None
    assert weights_again(events, nature) == result.weights


@pytest.mark.parametrize(("before", "after"), [(1, "auto"), ("auto", 2)])
def test_a_free_run_goes_on_with_another_kind_of_lead(before: Any, after: Any) -> None:
    assert resumed_with(free(max_lead=before), free(max_lead=after), Nature()).updates == 14


# -- ends and orders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("inserts", [1.0, 0.5])
def test_a_replay_run_ends_when_its_steps_are_in_the_replay_even_if_they_are_not_enough_for_an_update(
    inserts: float,
) -> None:
    ratio = ReplayRatio(inserts, min_size=4, samples_per_update=SAMPLES, steps_per_ticket=1)
    for steps in range(10, 20):
        settings = Settings(plan=Plan(steps=steps), max_lead=2, dispatch="free", replay=ratio)
        _, result = session(settings, Nature(replay="inside"))
        assert result is not None
        assert result.stop_reason == f"reached {steps} steps"


@pytest.mark.parametrize("order", [OLDEST, window(3)])
def test_a_ticket_that_is_collected_again_is_not_overtaken_by_more_than_the_order_allows(order: Order) -> None:
    settings = Settings(
        plan=Plan(updates=40),
        max_lead=4,
        collectors=3,
        order=order,
        max_staleness=1,
        on_stale=OnStale.REQUEUE,
        dispatch="free",
    )
    requeued = 0
    for seed in range(10):
        events, _ = session(settings, Nature(), SteadyWorkload(Lognormal(1.0, 2.0), Constant(0.2), seed=seed))
        requeued += sum(event["e"] == "requeue" for event in events)
        assert not audit(events)
    assert requeued > 20
