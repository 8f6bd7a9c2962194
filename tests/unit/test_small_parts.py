"""The small parts of the coordinator: the desk, the shelf, the evaluations; and functions as stations."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.coordinator.functions import stations_from_functions
from headway.coordinator.publishing_snapshots import HeldSnapshots
from headway.coordinator.roles import LEARNER, Stations
from headway.coordinator.run_result_evaluations import Evaluations
from headway.coordinator.tickets_idle_seats import IdleSeats
from headway.coordinator.tickets_ticket_queue import TicketQueue
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket

stable = settings(max_examples=150, deadline=None, derandomize=True)


def ticket(index: int, collector: int | None = None) -> Ticket:
    return Ticket(index, seed=index, collector=collector)


# -- TicketQueue -------------------------------------------------------------------------------------------


def test_in_a_free_run_whoever_comes_first_takes_the_first_ticket() -> None:
    desk = TicketQueue(3, pinned=False)
    for index in range(3):
        assert desk.put(ticket(index)) is None  # nobody waits
    assert [desk.take(collector).index for collector in (2, 0, 1)] == [0, 1, 2]  # type: ignore[union-attr]


def test_in_a_free_run_the_one_who_waited_longest_is_woken() -> None:
    desk = TicketQueue(3, pinned=False)
    assert [desk.take(collector) for collector in (1, 2, 0)] == [None] * 3
    assert [desk.put(ticket(index)) for index in range(4)] == [1, 2, 0, None]


def test_in_a_pinned_run_every_collector_has_its_own_line() -> None:
    desk = TicketQueue(2, pinned=True)
    assert desk.take(1) is None
    assert desk.put(ticket(0, 0)) is None  # collector 0 does not wait
    assert desk.put(ticket(1, 1)) == 1
    assert desk.put(ticket(3, 1)) is None  # it was woken already
    assert desk.take(0) == ticket(0, 0)
    assert desk.take(0) is None
    assert [desk.take(1), desk.take(1)] == [ticket(1, 1), ticket(3, 1)]


@stable
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "pop"]), st.integers(0, 19)), max_size=300),
)
def test_with_lanes_the_next_ticket_goes_where_most_lanes_are_idle(
    collectors: int, lanes: int, calls: list[tuple[str, int]]
) -> None:
    idle = IdleSeats((lambda seat: seat % collectors) if lanes > 1 else None)
    waiting: list[int] = []  # longest first
    for call, number in calls:
        seat = number % (collectors * lanes)
        if call == "pop":
            many = [sum(other % collectors == one % collectors for other in waiting) for one in waiting]
            wanted = waiting[many.index(max(many)) if lanes > 1 else 0] if waiting else None
            assert idle.pop() == wanted
            waiting = [one for one in waiting if one != wanted]
        elif call == "add":
            idle.add(seat)
            waiting += [seat] if seat not in waiting else []
        elif seat in waiting:
            idle.remove(seat)
            waiting.remove(seat)
        assert list(idle) == waiting
        assert (seat in idle) == (seat in waiting)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_ticket_that_flies_again_goes_to_the_front(pinned: bool) -> None:
    desk = TicketQueue(1, pinned=pinned)
    desk.put(ticket(4, 0))
    desk.put(ticket(3, 0), first=True)
    assert [desk.take(0), desk.take(0)] == [ticket(3, 0), ticket(4, 0)]


@pytest.mark.parametrize("pinned", [True, False])
def test_tickets_that_fly_again_keep_their_order(pinned: bool) -> None:
    desk = TicketQueue(1, pinned=pinned)
    desk.put(ticket(7, 0))
    for index in (3, 5, 4):
        desk.put(ticket(index, 0), first=True)
    assert [desk.take(0) for _ in range(4)] == [ticket(index, 0) for index in (3, 4, 5, 7)]


def test_after_a_pause_as_many_are_woken_as_have_work() -> None:
    free = TicketQueue(3, pinned=False)
    for index in range(2):
        free.put(ticket(index))
    for collector in (2, 0, 1):
        free.note_idle(collector)
    assert free.idle_with_work() == [2, 0]
    assert free.put(ticket(2)) == 1  # the third is still noted as idle
    pinned = TicketQueue(3, pinned=True)
    pinned.put(ticket(0, 0))
    pinned.put(ticket(2, 2))
    for collector in (0, 1, 2):
        pinned.note_idle(collector)
    assert pinned.idle_with_work() == [0, 2]
    assert pinned.idle_with_work() == []


desk_actions = st.lists(st.tuples(st.sampled_from(["put", "first", "take"]), st.integers(0, 3)), max_size=60)


@stable
@given(desk_actions, st.booleans())
def test_no_ticket_waits_while_a_collector_that_may_have_it_is_idle(
    actions: list[tuple[str, int]], pinned: bool
) -> None:
    """A collector that was told to wake takes its ticket, or is idle again; nothing is lost or handed out twice."""
    desk = TicketQueue(4, pinned=pinned)
    lines: dict[int, deque[int]] = {number: deque() for number in range(4)}  # a model: the line(s) by hand
    idle: list[int] = []
    number = 0
    for action, collector in actions:
        line = lines[collector if pinned else 0]
        if action == "take":
            if collector in idle:
                continue  # it waits; it cannot ask
            taken = desk.take(collector)
            assert (taken.index if taken else None) == (line.popleft() if line else None)
            if taken is None:
                idle.append(collector)
            continue
        number += 1
        index = -number if action == "first" else number  # what flies again is older
        woken = desk.put(ticket(index, collector if pinned else None), first=action == "first")
        (line.appendleft if action == "first" else line.append)(index)
        able = [c for c in idle if c == collector or not pinned]
        assert woken == (able[0] if able else None)
        if woken is not None:
            idle.remove(woken)
            taken = desk.take(woken)  # it comes at once
            assert taken is not None
            assert taken.index == line.popleft()
        assert not (line and [c for c in idle if c == collector or not pinned])


# -- HeldSnapshots ------------------------------------------------------------------------------------------


def test_the_newest_snapshot_stays_and_the_one_before_goes() -> None:
    released: list[Any] = []
    shelf = HeldSnapshots(released.append)
    for version in range(3):
        shelf.put(Snapshot(version, f"w{version}"))
        assert shelf.newest == Snapshot(version, f"w{version}")
    assert released == ["w0", "w1"]


def test_a_held_snapshot_stays_until_the_last_one_lets_go() -> None:
    released: list[Any] = []
    shelf = HeldSnapshots(released.append)
    shelf.put(Snapshot(0, "w0"))
    assert shelf.hold(0) == shelf.hold(0) == Snapshot(0, "w0")
    shelf.put(Snapshot(1, "w1"))
    shelf.let_go(0)
    assert released == []
    assert shelf.get(0).payload == "w0"
    shelf.let_go(0)
    assert released == ["w0"]
    with pytest.raises(KeyError):
        shelf.get(0)


def test_letting_go_of_the_newest_does_not_release_it() -> None:
    released: list[Any] = []
    shelf = HeldSnapshots(released.append)
    shelf.put(Snapshot(0, "w0"))
    shelf.hold(0)
    shelf.let_go(0)
    assert (released, shelf.newest.payload) == ([], "w0")


def test_letting_go_of_what_nobody_holds_is_a_bug_and_says_so() -> None:
    shelf = HeldSnapshots(lambda payload: None)
    shelf.put(Snapshot(0, "w0"))
    with pytest.raises(RuntimeError, match="nobody holds version 0"):
        shelf.let_go(0)


def test_a_resumed_shelf_keeps_what_is_held_and_forgets_the_rest() -> None:
    released: list[Any] = []
    shelf = HeldSnapshots(released.append)
    for version in (3, 4):
        shelf.put_older(Snapshot(version, f"w{version}"))
    shelf.put(Snapshot(5, "w5"))
    shelf.hold(4)
    shelf.forget_unheld()
    assert released == ["w3"]
    assert [snapshot.version for snapshot in shelf.all()] == [4, 5]


@stable
@given(st.lists(st.tuples(st.sampled_from(["put", "hold", "let_go"]), st.integers(0, 5)), max_size=60))
def test_a_snapshot_is_released_exactly_once_when_nobody_needs_it(actions: list[tuple[str, int]]) -> None:
    released: list[int] = []
    shelf = HeldSnapshots(released.append)
    shelf.put(Snapshot(0, 0))
    holders: Counter[int] = Counter()
    newest = 0
    for action, back in actions:
        version = max(0, newest - back)
        if action == "put":
            newest += 1
            shelf.put(Snapshot(newest, newest))
        elif action == "hold" and version not in released:
            shelf.hold(version)
            holders[version] += 1
        elif action == "let_go" and holders[version]:
            shelf.let_go(version)
            holders[version] -= 1
        needed = {newest} | {v for v, n in holders.items() if n}
        assert {snapshot.version for snapshot in shelf.all()} == needed
        assert sorted(released) == [v for v in range(newest + 1) if v not in needed]


# -- Evaluations ------------------------------------------------------------------------------------


def test_every_nth_version_is_due_and_the_initial_one_never() -> None:
    assert [version for version in range(10) if Evaluations(3).is_due(version)] == [3, 6, 9]
    assert not any(Evaluations(0).is_due(version) for version in range(10))


def test_a_later_version_takes_the_place_of_the_one_that_waits_not_of_the_one_that_runs() -> None:
    evaluations = Evaluations(1)
    assert evaluations.ask(1) is None
    assert evaluations.begin() == 1
    assert evaluations.ask(2) is None
    assert evaluations.ask(3) == 2
    assert evaluations.unfinished == (1, 3)
    evaluations.end(Score(1, 0.1))
    assert evaluations.begin() == 3
    evaluations.end(Score(3, 0.3))
    assert (evaluations.unfinished, evaluations.skipped) == ((), 1)
    assert [score.version for score in evaluations.scores] == [1, 3]


def test_the_first_score_that_reaches_a_target_is_none_of_a_failed_evaluation() -> None:
    evaluations = Evaluations(1)
    assert evaluations.first_to_reach(-9.0) is None
    evaluations.end(Score(1, None, error="late"))
    assert evaluations.first_to_reach(-9.0) is None
    for version, value in ((2, -3.0), (3, -1.0), (4, -0.5)):
        evaluations.end(Score(version, value))
    assert evaluations.first_to_reach(-1.0) == Score(3, -1.0)
    assert evaluations.first_to_reach(0.0) is None
    assert evaluations.has_seen(1)  # seen, though it failed
    assert not evaluations.has_seen(5)


@stable
@given(st.lists(st.sampled_from(["ask", "begin", "end"]), max_size=60))
def test_every_version_asked_for_is_scored_skipped_or_unfinished_once(actions: list[str]) -> None:
    evaluations = Evaluations(1)
    asked: list[int] = []
    skipped: list[int] = []
    for action in actions:
        if action == "ask":
            asked.append(len(asked) + 1)
            replaced = evaluations.ask(asked[-1])
            skipped += [] if replaced is None else [replaced]
        elif action == "begin" and evaluations.waiting and evaluations.running is None:
            evaluations.begin()
        elif action == "end" and evaluations.running is not None:
            evaluations.end(Score(evaluations.running, 0.0))
        scored = [score.version for score in evaluations.scores]
        assert sorted([*scored, *skipped, *evaluations.unfinished]) == asked
        assert len(evaluations.waiting) <= 1
        assert evaluations.skipped == len(skipped)
        if asked:
            assert asked[-1] not in skipped  # the newest is never the one that is left out


# -- functions as stations --------------------------------------------------------------------------


def functions(collect: Any = None, train: Any = None, evaluate: Any = None, weights: Any = 0) -> Stations:
    return stations_from_functions(
        collect or (lambda weights, ticket: ticket.index), train or (lambda weights, batch: weights), evaluate,
        weights=weights,
    )  # fmt: skip


def batch(*payloads: Any) -> Batch:
    return Batch(0, tuple(Rollout(payload) for payload in payloads))


def test_what_collect_returns_is_the_payload_unless_it_is_a_rollout() -> None:
    plain = functions(collect=lambda weights, ticket: (weights, ticket.index)).collector(0)
    assert plain.collect(ticket(3), Snapshot(1, "w")) == Rollout(("w", 3))
    ready = functions(collect=lambda weights, ticket: Rollout("p", steps=9)).collector(0)
    assert ready.collect(ticket(3), Snapshot(1, "w")) == Rollout("p", steps=9)


def test_train_gets_weights_and_payloads_and_returns_the_next_weights() -> None:
    learner = functions(train=lambda weights, rollouts: weights + sum(rollouts), weights=10).learner()
    assert learner.learn(batch(1, 2)) == LearnReport()
    assert learner.learn(batch(5)) == LearnReport()
    assert learner.snapshot() == learner.state_dict() == 18
    learner.load_state_dict(3)
    assert learner.snapshot() == 3


def test_train_may_return_metrics_beside_the_weights() -> None:
    learner = functions(train=lambda weights, rollouts: (weights, {"loss": np.float32(0.5)})).learner()
    report = learner.learn(batch(1))
    assert report.metrics == {"loss": 0.5}
    assert type(report.metrics["loss"]) is float
    pair = functions(train=lambda weights, rollouts: (1, 2)).learner()
    pair.learn(batch(1))
    assert pair.snapshot() == (1, 2)  # a pair of weights is no metrics


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        (1, Score(4, 1.0)),
        (np.float32(0.5), Score(4, 0.5)),
        ((0.5, {"length": 3.0}), Score(4, 0.5, {"length": 3.0})),
        (Score(99, 0.5), Score(4, 0.5)),  # the version measured, whatever it claims
    ],
)
def test_evaluate_may_return_a_number_metrics_or_a_score(returned: Any, score: Score) -> None:
    evaluator = functions(evaluate=lambda weights: returned).evaluator
    assert evaluator is not None
    assert evaluator().evaluate(Snapshot(4, None), 0) == score


def test_functions_that_return_nothing_are_told_what_to_return() -> None:
    with pytest.raises(TypeError, match="collect must return what was collected, received None"):
        functions(collect=lambda weights, ticket: None).collector(0).collect(ticket(0), Snapshot(0, 0))
    with pytest.raises(TypeError, match="train must return the new weights, received None"):
        functions(train=lambda weights, rollouts: None).learner().learn(batch(1))
    with pytest.raises(TypeError, match="train must return the new weights, received None"):
        functions(train=lambda weights, rollouts: (None, {"loss": 1.0})).learner().learn(batch(1))
    evaluator = functions(evaluate=lambda weights: "good").evaluator
    assert evaluator is not None
    with pytest.raises(TypeError, match="evaluate must return a number, received str"):
        evaluator().evaluate(Snapshot(0, 0), 0)


@pytest.mark.parametrize("name", ["collect", "train", "evaluate"])
def test_what_is_no_function_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a function, received int"):
        functions(**{name: 5})


def test_without_an_evaluate_function_there_is_no_evaluator() -> None:
    stations = functions()
    assert stations.evaluator is None
    assert [role.name for role in stations.roles(2)] == [LEARNER, "collector-0", "collector-1"]
