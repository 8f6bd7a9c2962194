"""Collectors are added and taken away while a run goes on: no ticket is lost or trained on twice, and what a seed
decided it still decides."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scaled_runs import ScaledRun, scaled_loop

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.rerun import replay
from headway.coordinator.saving import check_same_run, with_number_in_force
from headway.coordinator.scaling import MOST, ScaleRefused
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.protocols import Runtime
from headway.core.rules_order import READY
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Fault, Virtual
from headway.testing.auditor import audit
from headway.testing.toy_stations import Pause, engine_stations, toy_stations
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.series_notable_moments import notable_moments
from headway.tools.report.status_log_end import read_end
from headway.tools.report.time_report import account
from headway.tools.simulate.workloads import Constant, Duration, Lognormal, SteadyWorkload

REAL = ["threads", "processes"]
UPDATES = 30


def free(**more: Any) -> Settings:
    return Settings(**{"plan": Plan(updates=UPDATES), "max_lead": 6, "collectors": 2, "dispatch": "free", **more})


def pinned(**more: Any) -> Settings:
    return Settings(**{"plan": Plan(updates=UPDATES), "max_lead": 6, "collectors": 3, **more})


class Steady(SteadyWorkload):
    """Calls of a role may go wrong, from its first one on."""

    def __init__(self, collect: Duration, faults: dict[tuple[str, str], Fault] | None = None) -> None:
        super().__init__(collect, Constant(0.3), Constant(1.0), 7)
        self._faulty = faults or {}

    def fault(self, role: str, method: str, args: tuple[object, ...]) -> Fault | None:
        return self._faulty.get((role, method))


def virtual(
    faults: dict[tuple[str, str], Fault] | None = None,
    collect: Duration = Lognormal(1.0, 0.5),  # noqa: B008 - frozen
) -> Virtual:
    return Virtual(Steady(collect, faults))


def runtime_of(name: str) -> Runtime:
    return virtual() if name == "virtual" else build_runtime(name)


def learned(run: ScaledRun) -> list[int]:
    return sorted(ticket for event in run.of("settle") for ticket in event["k"])


def seats(run: ScaledRun) -> set[int]:
    return {event["c"] for event in run.of("start")}


# -- free runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["virtual", *REAL])
def test_collectors_come_and_go_and_every_ticket_is_learned_once(name: str) -> None:
    settings = free(plan=Plan(updates=100_000), order=READY)
    run = ScaledRun(
        runtime_of(name), toy_stations(Pause(0.01)), settings, at_versions={2: 4, 12: 1, 20: 3}, ends_after=20
    )
    assert [answer.result().now for answer in run.answers] == [4, 1, 3]
    assert len(learned(run)) == len(set(learned(run))) == run.result.ledger.learned
    assert seats(run) == {0, 1, 2, 3}
    assert {event["role"] for event in run.of("leave")} == {"collector-1", "collector-2", "collector-3"}
    assert audit(run.events) == []
    again = replay(toy_stations(), run.events)
    assert fingerprint(again.weights) == fingerprint(run.result.weights)


@pytest.mark.parametrize("on_publish", ["drain", "partial"])
def test_collectors_with_lanes_that_hold_weights_come_and_go(on_publish: Any) -> None:
    settings = free(lanes=2, on_publish=on_publish, plan=Plan(updates=80))
    run = ScaledRun(virtual(), engine_stations(), settings, at_versions={2: 3, 10: 1, 20: 4})
    assert [answer.result().now for answer in run.answers] == [3, 1, 4]
    assert learned(run) == list(range(80))
    assert seats(run) == set(range(8))
    assert audit(run.events) == []


def test_a_collector_that_is_added_takes_off_with_the_newest_version() -> None:
    run = ScaledRun(virtual(), engine_stations(), free(max_lead=2), at_versions={9: 3})
    at = run.events.index(run.of("scale")[0])
    first = next(event for event in run.events[at:] if event["e"] == "start" and event["c"] == 2)
    newest = max(event["v"] for event in run.events[: run.events.index(first)] if event["e"] == "publish")
    assert newest >= 9
    assert first["v"] == newest
    assert audit(run.events) == []


def test_a_collector_that_fails_while_it_leaves_hands_its_ticket_on_and_is_not_built_anew() -> None:
    hangs = virtual({("collector-1", "collect"): Fault.HANG})
    settings = free(deadlines=Deadlines(collect_s=20))
    run = ScaledRun(hangs, toy_stations(), settings, at_versions={1: 1})
    (left,) = run.of("leave")
    (reissued,) = run.of("reissue")
    assert reissued["c"] == 1
    assert [event["c"] for event in run.of("start") if event["k"] == reissued["k"]] == [1, 0]
    assert left["t"] >= reissued["t"] == 20
    assert run.of("restart") == []
    assert learned(run) == list(range(UPDATES))
    assert audit(run.events) == []


def test_when_one_that_is_to_be_added_cannot_be_built_the_number_stays() -> None:
    broken = virtual({("collector-3", "start"): Fault.CRASH})
    run = ScaledRun(broken, toy_stations(), free(), at_versions={3: 4, 9: 3})
    refused, made = run.answers
    assert isinstance(refused.exception(), ScaleRefused)
    assert str(refused.exception()) == "there are still 2 collectors: collector-3.start: crashed while starting"
    assert (made.result().before, made.result().now) == (2, 3)
    assert [event["collectors"] for event in run.of("scale")] == [3]
    assert learned(run) == list(range(UPDATES))


def test_one_that_comes_back_before_it_has_left_is_waited_for() -> None:
    slow = virtual({("collector-1", "collect"): Fault.HANG})
    settings = free(deadlines=Deadlines(collect_s=10), retries=Retries(max_restarts=90, attempts_on_loss=90))
    run = ScaledRun(slow, toy_stations(), settings, at_versions={1: 1, 2: 2})
    kinds = [event["e"] for event in run.of("scale", "leave")]
    assert kinds == ["scale", "leave", "scale"]
    assert audit(run.events) == []


# -- numbers that cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (0, f"a run has 1 to {MOST} collectors, received 0"),
        (-2, f"a run has 1 to {MOST} collectors, received -2"),
        (MOST + 1, f"a run has 1 to {MOST} collectors, received {MOST + 1}"),
        (2, "there are 2 collectors already"),
    ],
)
def test_a_number_that_cannot_be_is_refused_in_a_line(number: int, why: str) -> None:
    run = ScaledRun(virtual(), toy_stations(), free(), at_versions={3: number})
    assert str(run.answers[0].exception()) == why
    assert run.of("scale") == []


def test_a_change_is_refused_while_another_is_under_way_and_when_the_run_is_over() -> None:
    run = ScaledRun(virtual(), toy_stations(), free(), at_versions={3: [4, 5]})
    assert run.answers[0].result().now == 4
    assert str(run.answers[1].exception()) == "another change of the collectors is under way"
    late: Future[Any] = Future()
    run.coordinator.scale(5, late)
    assert str(late.exception()) == "the run is over or about to end: reached 30 updates"


def test_no_more_are_added_than_there_are_places_for() -> None:
    stations = replace(toy_stations(), most_collectors=3)
    run = ScaledRun(virtual(), stations, free(collectors=3), at_versions={2: 4, 5: 2, 9: 3})
    refused, *made = run.answers
    assert str(refused.exception()) == "this run began with places for 3 collectors, received 4"
    assert [answer.result().now for answer in made] == [2, 3]


def test_inline_keeps_its_collectors() -> None:
    run = ScaledRun(build_runtime("inline"), toy_stations(), free(), at_versions={3: 4})
    assert str(run.answers[0].exception()).startswith("the runtime 'inline' keeps the collectors it began with")
    assert learned(run) == list(range(UPDATES))


# -- pinned runs --------------------------------------------------------------------------------------

CHANGES = [(9, 5), (18, 2), (30, 4)]


@pytest.mark.parametrize("collect", [Constant(0.1), Lognormal(1.0, 1.5)], ids=["quick", "uneven"])
@pytest.mark.parametrize("lead", [0, 3])
def test_a_pinned_run_whose_collectors_change_at_the_same_tickets_has_the_same_bits(
    lead: int, collect: Duration
) -> None:
    settings = pinned(max_lead=lead, plan=Plan(updates=40))
    run = ScaledRun(virtual(collect=collect), toy_stations(), settings, at_tickets=CHANGES)
    assert [(event["k"], event["collectors"]) for event in run.of("scale")] == CHANGES
    assert fingerprint(run.result.weights) == fingerprint(scaled_loop(settings, CHANGES))
    assert audit(run.events) == []


@pytest.mark.parametrize("name", ["virtual", *REAL])
def test_a_change_of_a_pinned_run_is_in_the_log_at_its_ticket_and_decides_its_bits(name: str) -> None:
    settings = pinned(plan=Plan(updates=100_000))
    run = ScaledRun(
        runtime_of(name), toy_stations(Pause(0.01)), settings, at_versions={4: 5, 12: 2, 24: 4}, ends_after=20
    )
    changes = [(event["k"], event["collectors"]) for event in run.of("scale")]
    assert [collectors for _, collectors in changes] == [5, 2, 4]
    assert audit(run.events) == []
    as_one_loop = scaled_loop(replace(settings, plan=Plan(updates=run.result.updates)), changes)
    assert fingerprint(run.result.weights) == fingerprint(as_one_loop)
    assert fingerprint(replay(toy_stations(), run.events).weights) == fingerprint(run.result.weights)


def test_a_collector_of_a_pinned_run_leaves_when_its_last_ticket_has_settled() -> None:
    run = ScaledRun(virtual(), toy_stations(), pinned(), at_versions={4: 1})
    since = run.of("scale")[0]["k"]
    for left in run.of("leave"):
        number = int(left["role"].partition("-")[2])
        own = {ticket for ticket in range(since) if ticket % 3 == number}
        settled = {ticket for event in run.of("settle") if event["t"] <= left["t"] for ticket in event["k"]}
        assert own <= settled
    assert len(run.of("leave")) == 2


def test_a_ticket_that_is_open_already_cannot_be_the_first_of_a_change() -> None:
    run = ScaledRun(virtual(), toy_stations(), pinned(), at_tickets=[(3, 5)])
    assert "ticket 3 is open or done already" in str(run.answers[0].exception())


# -- going on -----------------------------------------------------------------------------------------


def saved(tmp_path: Path, settings: Settings, **told: Any) -> tuple[ScaledRun, CheckpointStore]:
    store = CheckpointStore(tmp_path / "checkpoints", keep=99)
    return ScaledRun(virtual(), toy_stations(), settings, checkpoints=store, **told), store


def test_a_run_goes_on_with_the_number_it_had(tmp_path: Path) -> None:
    settings = free(plan=Plan(updates=UPDATES, save_every=1))
    _, store = saved(tmp_path, settings, at_versions={3: 5})
    longer = free(plan=Plan(updates=UPDATES + 10, save_every=1))
    run = ScaledRun(virtual(), toy_stations(), longer, checkpoints=store, resume=store.load())
    assert run.of("run")[0]["collectors"] == 5
    assert seats(run) == set(range(5))
    third = ScaledRun(
        virtual(), toy_stations(), free(plan=Plan(updates=UPDATES + 20), collectors=3), resume=store.load()
    )
    assert third.of("run")[0]["collectors"] == 3  # it is told another number than it was configured with


def test_a_pinned_run_goes_on_with_those_that_were_leaving_and_has_the_same_bits(tmp_path: Path) -> None:
    settings = pinned(plan=Plan(updates=UPDATES, save_every=1), collectors=4)
    whole, store = saved(tmp_path, settings, at_versions={5: 2})
    at = whole.of("scale")[0]["t"]
    leaves = whole.of("leave")[-1]["t"]
    versions = [event["v"] for event in whole.of("save") if at < event["t"] < leaves]
    assert versions, "no checkpoint while they were leaving"
    state = store.load(store.find(versions[0]))
    check_same_run(state, with_number_in_force(settings, state))
    run = ScaledRun(virtual(), toy_stations(), settings, resume=pickle.loads(pickle.dumps(state)))
    assert run.of("run")[0]["collectors"] == 2
    assert run.of("leave")
    assert {event["c"] for event in run.of("start")} >= {0, 1}
    assert fingerprint(run.result.weights) == fingerprint(whole.result.weights)


def test_a_pinned_run_goes_on_with_those_that_were_leaving_and_have_tickets_that_nobody_has_opened(
    tmp_path: Path,
) -> None:
    settings, changes = pinned(plan=Plan(updates=UPDATES, save_every=1), max_lead=1), [(3, 5), (20, 3)]
    whole, store = saved(tmp_path, settings, at_tickets=changes)
    at = whole.of("scale")[1]["t"]
    save = next(event for event in whole.of("save") if event["t"] > at)
    opened = [event["k"] for event in whole.of("open") if event["t"] <= save["t"]]
    assert max(opened) < 19, "those after it belong to five collectors, too"
    state = store.load(store.find(save["v"]))
    run = ScaledRun(virtual(), toy_stations(), settings, resume=pickle.loads(pickle.dumps(state)))
    assert {event["role"] for event in run.of("leave")} == {"collector-3", "collector-4"}
    assert fingerprint(run.result.weights) == fingerprint(scaled_loop(settings, changes))
    whole_log = [*whole.events[: state.events_position], *run.events]
    assert audit(whole_log) == []


class SlowToRestore(Steady):
    """A collector that is brought back takes long to be what it was."""

    def duration_s(self, role: str, method: str, args: tuple[object, ...]) -> float:
        return 100.0 if method == "restore" and role.startswith("collector") else super().duration_s(role, method, args)


def test_bringing_those_back_that_were_leaving_makes_no_rollout_older(tmp_path: Path) -> None:
    settings = pinned(plan=Plan(updates=UPDATES, save_every=1), collectors=4)
    whole, store = saved(tmp_path, settings, at_versions={5: 2})
    at, leaves = whole.of("scale")[0]["t"], whole.of("leave")[-1]["t"]
    state = store.load(store.find(next(event["v"] for event in whole.of("save") if at < event["t"] < leaves)))
    assert state.rollouts, "none was waiting"
    runtime = Virtual(SlowToRestore(Lognormal(1.0, 0.5)))
    run = ScaledRun(runtime, toy_stations(), settings, resume=state)
    assert run.of("resume")[0]["t"] > run.of("run")[0]["t"] + 150, "the others, and then those that were leaving"
    assert run.result.ledger.max_age_s < 60


# -- what is seen of it -------------------------------------------------------------------------------


def test_the_story_knows_who_was_there_and_its_times_add_up() -> None:
    run = ScaledRun(virtual(), toy_stations(), free(), at_versions={4: 4, 14: 1})
    story = tell(run.events)
    accounts = account(story)
    joined, parted = (event["t"] for event in run.of("scale"))
    left = next(event["t"] for event in run.of("leave") if event["role"] == "collector-3")
    there = accounts.roles["collector-3"]
    assert there.wall_s == pytest.approx(left - joined)
    assert there.busy_s + there.blocked_s <= there.wall_s + 1e-9
    assert parted <= left < accounts.wall_s
    assert accounts.roles["collector-0"].wall_s == pytest.approx(accounts.wall_s)
    assert story.settings["collectors"] == 1
    assert [moment.text for moment in notable_moments(story) if moment.kind == "collectors"] == [
        "2 -> 4 collectors",
        "4 -> 1 collectors",
    ]
    assert "collector-3" not in run.coordinator.why()


@pytest.mark.parametrize("tail_bytes", [200, 100_000])
def test_the_end_of_a_log_says_who_is_there(tmp_path: Path, tail_bytes: int) -> None:
    run = ScaledRun(virtual(), toy_stations(), free(), at_versions={4: 5, 20: 3})
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in run.events[:-10]))
    story = read_end(log, tail_bytes=tail_bytes)
    assert story is not None
    assert sorted(story.under_way) == ["collector-0", "collector-1", "collector-2", "learner"]
    assert story.settings["collectors"] == 3


def test_patience_grows_with_what_fewer_collectors_have_to_do() -> None:
    """With one collector in place of six a rollout may wait six times as long: nobody gives the run up for that."""
    settings = free(
        plan=Plan(updates=4),
        collectors=6,
        max_lead=0.5,
        dispatch="free",
        tickets_per_batch=24,
        deadlines=Deadlines(collect_s=12, learn_s=1, publish_s=1, start_s=1, evaluate_s=1),
        retries=Retries(attempts_on_loss=1, max_restarts=0),
    )
    assert settings.patience_s < 24 * 8
    run = ScaledRun(virtual(collect=Constant(8.0)), toy_stations(), settings, at_versions={1: 1})
    assert learned(run) == list(range(4 * 24))
