"""The blocking facade: a plain loop at degree 0, a bounded lead otherwise, whoever calls it from wherever."""

from __future__ import annotations

import functools
import math
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import patient

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.facade import AsyncTrainingCoordinator, CollectFailed, EvalFailed
from headway.coordinator.facade_times import LOOK_EVERY
from headway.core.types import Score

pytestmark = pytest.mark.timeout(30)

WAIT_S = patient(10)  # bounds every wait of a test; nothing below depends on how long anything takes

SYNC: dict[str, Any] = {"off_policy_degree": 0}
ASYNC_LOW: dict[str, Any] = {"off_policy_degree": 3}
ASYNC_HIGH: dict[str, Any] = {"off_policy_degree": 60, "num_workers": 4}
ASYNC_EVAL: dict[str, Any] = {"off_policy_degree": 2, "enable_async_eval": True}
AUTO_TUNE: dict[str, Any] = {"off_policy_degree": -1, "buffer_size": 400, "batch_size": 10}
MODES = {
    "sync": SYNC,
    "async_low": ASYNC_LOW,
    "async_high": ASYNC_HIGH,
    "async_eval": ASYNC_EVAL,
    "auto_tune": AUTO_TUNE,
}


def quiet(**settings: Any) -> AsyncTrainingCoordinator:
    return AsyncTrainingCoordinator(**{"print_on_exit": False, "deadline_s": WAIT_S, **settings})


def wait_for(event: threading.Event) -> None:
    assert event.wait(WAIT_S), "nobody set the event"


def in_threads(*works: Callable[[], None]) -> None:
    """Run all at once from a common start; what one of them raises fails the test."""
    start = threading.Barrier(len(works))
    raised: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            start.wait(WAIT_S)
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a thread did not end"
    if raised:
        raise raised[0]


def same(batch: Any) -> Any:
    return batch


def plain_loop(updates: int, seed: int) -> list[float]:
    """Collect and train by hand: the weights after each update."""
    rng, weight, history = random.Random(seed), 0.0, []
    for _ in range(updates):
        collected = weight + rng.gauss(0, 1)
        weight = 0.9 * weight + 0.1 * collected
        history.append(weight)
    return history


# -- every mode -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
def test_every_mode_trains_on_each_batch_once_and_in_order(settings: dict[str, Any]) -> None:
    trained: list[int] = []
    with quiet(**settings) as coordinator:
        number = 0
        while coordinator.train_count < 50:
            while coordinator.can_collect():
                coordinator.run_collect(functools.partial(int, number))
                number += 1
                assert coordinator.collect_train_lag <= coordinator.off_policy_degree + 1
            coordinator.run_train(trained.append)  # after which auto may allow less than is under way
            assert coordinator.collect_train_lag >= 0
            if coordinator.train_count % 10 == 0:
                coordinator.run_eval(lambda: 1.0)
    assert trained == list(range(50))
    assert [score.version for score in coordinator.scores] == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
def test_lag_stays_in_its_bounds_whichever_threads_call(settings: dict[str, Any]) -> None:
    coordinator = quiet(**settings)
    total, lags, trained = 120, [], []
    most = coordinator.off_policy_degree + 1  # an auto degree may move, within the buffer
    if coordinator.off_policy_degree != settings["off_policy_degree"]:
        most = settings["buffer_size"] // settings["batch_size"] + 1

    def collect() -> None:
        for _ in range(total // 4):
            coordinator.run_collect(lambda: lags.append(coordinator.collect_train_lag))

    def train() -> None:
        for _ in range(total // 2):
            coordinator.run_train(lambda batch: trained.append(batch))
            lags.append(coordinator.collect_train_lag)

    def look() -> None:
        while len(trained) < total:
            lags.append(coordinator.collect_train_lag)
            statistics = coordinator.get_statistics()
            assert 0 <= statistics["final_lag"] <= most
            assert statistics["collect_iterations"] - statistics["train_iterations"] == statistics["final_lag"]

    in_threads(collect, collect, collect, collect, train, train, look)
    coordinator.shutdown()
    assert min(lags) >= 0
    assert max(lags) <= most
    assert (coordinator.collect_count, coordinator.train_count, coordinator.collect_train_lag) == (total, total, 0)


# -- degree 0 ---------------------------------------------------------------------------------------


def test_degree_zero_equals_the_plain_loop() -> None:
    rng, weight, history = random.Random(5), 0.0, []

    def train(collected: float) -> None:
        nonlocal weight
        weight = 0.9 * weight + 0.1 * collected
        history.append(weight)

    with quiet() as coordinator:
        for _ in range(40):
            coordinator.run_collect(lambda: weight + rng.gauss(0, 1))
            coordinator.run_train(train)
    assert history == plain_loop(40, seed=5)
    assert coordinator.get_statistics()["max_staleness"] == 0


def test_degree_zero_runs_everything_in_the_calling_thread_and_starts_no_other() -> None:
    before = threading.active_count()
    seen = []
    with quiet() as coordinator:
        assert threading.active_count() == before
        coordinator.run_collect(lambda: seen.append(threading.current_thread()))
        coordinator.run_train(lambda: seen.append(threading.current_thread()))
        coordinator.run_eval(lambda: seen.append(threading.current_thread()))
    assert seen == [threading.current_thread()] * 3


def test_degree_zero_alternates_collect_and_train() -> None:
    coordinator = quiet()
    assert coordinator.can_collect()
    assert not coordinator.can_train()
    assert coordinator.run_collect(lambda: "batch").result(0) == "batch"
    assert not coordinator.can_collect()
    assert coordinator.can_train()
    assert coordinator.run_train(str.upper) == "BATCH"
    assert coordinator.can_collect()


def test_degree_zero_is_the_default() -> None:
    coordinator = AsyncTrainingCoordinator()
    assert coordinator.off_policy_degree == 0
    assert not coordinator.enable_async_eval


# -- overlap ----------------------------------------------------------------------------------------


def test_collect_goes_on_while_train_runs() -> None:
    training, collected = threading.Event(), threading.Event()

    def second_collect() -> None:
        wait_for(training)
        collected.set()

    with quiet(**ASYNC_LOW) as coordinator:
        coordinator.run_collect(lambda: None)
        coordinator.run_collect(second_collect)

        def train() -> None:
            training.set()
            wait_for(collected)  # only a collect that runs meanwhile can set it

        coordinator.run_train(train)
    assert coordinator.train_count == 1


def test_workers_collect_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    with quiet(off_policy_degree=3, num_workers=3) as coordinator:
        futures = [coordinator.run_collect(functools.partial(meeting.wait, WAIT_S)) for _ in range(3)]
        assert sorted(future.result(WAIT_S) for future in futures) == [0, 1, 2]


def test_collection_never_runs_further_ahead_than_the_degree() -> None:
    go = threading.Event()
    with quiet(off_policy_degree=2) as coordinator:
        for _ in range(3):  # the one to be trained next, and two ahead of it
            assert coordinator.can_collect()
            coordinator.run_collect(go.wait)
        assert not coordinator.can_collect()
        assert coordinator.why() == "degree 2: 3 of 3 slots occupied (3 collecting, 0 collected, 0 training)"
        go.set()
        coordinator.run_train(lambda: None)
        assert coordinator.can_collect()


def test_run_collect_waits_until_a_batch_is_trained() -> None:
    with quiet(off_policy_degree=1) as coordinator:
        order: list[str] = []
        for _ in range(2):
            coordinator.run_collect(lambda: None).result(WAIT_S)

        def collect() -> None:
            coordinator.run_collect(lambda: order.append("collect")).result(WAIT_S)

        def train() -> None:
            coordinator.run_train(lambda: order.append("train"))

        in_threads(collect, train)
    assert order == ["train", "collect"]


def test_a_slow_first_batch_is_not_overtaken() -> None:
    go = threading.Event()

    def slow() -> str:
        wait_for(go)
        return "slow"

    with quiet(off_policy_degree=2, num_workers=2) as coordinator:
        coordinator.run_collect(slow)
        coordinator.run_collect(lambda: "fast").result(WAIT_S)
        assert not coordinator.can_train()
        go.set()
        assert [coordinator.run_train(same) for _ in range(2)] == ["slow", "fast"]


def test_threads_train_one_after_another() -> None:
    inside, most = 0, []
    lock = threading.Lock()

    def train(batch: Any) -> None:
        nonlocal inside
        with lock:
            inside += 1
            most.append(inside)
        assert not coordinator.can_train()
        with lock:
            inside -= 1

    with quiet(**ASYNC_LOW) as coordinator:
        for _ in range(4):
            coordinator.run_collect(lambda: None).result(WAIT_S)
        in_threads(*[lambda: coordinator.run_train(train)] * 4)
    assert most == [1, 1, 1, 1]
    assert coordinator.get_statistics()["max_staleness"] == 3  # each batch met a version of its own


# -- what train is given ----------------------------------------------------------------------------


class Trainer:
    """Callable with and without what was collected."""

    def with_batch(self, batch: Any) -> Any:
        return batch

    def without(self) -> str:
        return "nothing"

    def __call__(self, batch: Any, /) -> Any:
        return batch


@pytest.mark.parametrize(
    ("train", "result"),
    [
        (lambda batch: batch, "data"),
        (lambda: "nothing", "nothing"),
        (lambda batch=None: batch, None),
        (lambda *batches: batches, ()),
        (lambda *, flag=1: flag, 1),
        (functools.partial(lambda scale, batch: scale * batch, 2), "datadata"),
        (Trainer().with_batch, "data"),
        (Trainer().without, "nothing"),
        (Trainer(), "data"),
        (str, ""),  # a builtin that does not say what it takes
    ],
)
def test_train_gets_the_batch_if_it_needs_an_argument(train: Callable[..., Any], result: Any) -> None:
    coordinator = quiet()
    coordinator.run_collect(lambda: "data")
    assert coordinator.run_train(train) == result


# -- evaluation -------------------------------------------------------------------------------------


def test_a_blocking_evaluation_is_usable_at_once() -> None:
    with quiet(**ASYNC_LOW) as coordinator:
        coordinator.run_collect(lambda: None)
        coordinator.run_train(lambda: None)
        assert coordinator.run_eval(lambda: 3).result(0) == 3
        assert coordinator.scores == (Score(1, 3.0),)


def test_a_background_evaluation_does_not_stop_training_and_keeps_its_version() -> None:
    go = threading.Event()

    def evaluate() -> float:
        wait_for(go)
        return 0.5

    with quiet(**ASYNC_EVAL) as coordinator:
        answer = coordinator.run_eval(evaluate)
        for _ in range(5):
            coordinator.run_collect(lambda: None)
            coordinator.run_train(lambda: None)
        assert not answer.done()
        assert coordinator.scores == ()
        go.set()
        assert answer.result(WAIT_S) == 0.5
    assert coordinator.scores == (Score(0, 0.5),)


def test_a_slow_evaluation_delays_the_next_and_is_never_cancelled() -> None:
    go, second_began = threading.Event(), threading.Event()

    def slow() -> float:
        wait_for(go)
        return 1.0

    def second() -> float:
        second_began.set()
        return 2.0

    with quiet(enable_async_eval=True) as coordinator:
        first_answer = coordinator.run_eval(slow)
        coordinator.run_collect(lambda: None)
        coordinator.run_train(lambda: None)
        second_answer = coordinator.run_eval(second)
        assert not second_began.is_set()
        assert not first_answer.cancelled()
        go.set()
        assert (first_answer.result(WAIT_S), second_answer.result(WAIT_S)) == (1.0, 2.0)
    assert coordinator.scores == (Score(0, 1.0), Score(1, 2.0))


def test_the_last_evaluation_is_not_lost_at_shutdown() -> None:
    go = threading.Event()

    def evaluate() -> float:
        wait_for(go)
        return 7.0

    coordinator = quiet(**ASYNC_EVAL)
    coordinator.run_eval(evaluate)
    coordinator.run_eval(lambda: 8.0)

    def shut_down() -> None:
        coordinator.shutdown()
        assert [score.value for score in coordinator.scores] == [7.0, 8.0]

    in_threads(shut_down, go.set)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float64(2), np.int64(2)])
def test_any_real_number_is_a_score(value: Any) -> None:
    coordinator = quiet()
    coordinator.run_eval(lambda: value)
    assert coordinator.scores == (Score(0, 2.0),)


def test_an_evaluation_that_returns_no_number_leaves_no_score() -> None:
    coordinator = quiet()
    assert coordinator.run_eval(lambda: {"reward": 1}).result(0) == {"reward": 1}
    assert coordinator.scores == ()


def test_an_evaluation_that_raises_raises_here_or_in_its_future() -> None:
    def evaluate() -> float:
        raise KeyError("no environment")

    with pytest.raises(KeyError, match="no environment"):
        quiet().run_eval(evaluate)
    coordinator = quiet(**ASYNC_EVAL)
    with pytest.raises(KeyError, match="no environment"):
        coordinator.run_eval(evaluate).result(WAIT_S)
    assert coordinator.run_eval(lambda: 1.0).result(WAIT_S) == 1.0  # the evaluator's thread lives on
    with pytest.raises(EvalFailed, match="evaluate raised KeyError"):
        coordinator.shutdown()


def test_a_collect_that_failed_after_the_last_call_is_raised_at_the_end() -> None:
    coordinator = quiet(**ASYNC_LOW)
    with pytest.raises(ZeroDivisionError):
        coordinator.run_collect(fail).result(WAIT_S)
    with pytest.raises(CollectFailed, match="the simulator is gone"):
        coordinator.shutdown()


def test_an_error_in_the_loop_is_not_hidden_by_one_in_the_background() -> None:
    with pytest.raises(ArithmeticError, match="mine"), quiet(**ASYNC_LOW) as coordinator:  # noqa: PT012
        coordinator.run_collect(fail)
        raise ArithmeticError("mine")


# -- failures ---------------------------------------------------------------------------------------


def fail(kind: type[BaseException] = ZeroDivisionError) -> None:
    raise kind("the simulator is gone")


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("call", ["run_collect", "run_train"])
def test_a_collect_that_raises_behind_our_back_is_raised_by_the_next_call(call: str, kind: type[BaseException]) -> None:
    with quiet(**ASYNC_LOW) as coordinator:
        future = coordinator.run_collect(functools.partial(fail, kind))
        with pytest.raises(kind, match="the simulator is gone"):
            future.result(WAIT_S)
        with pytest.raises(CollectFailed, match=f"collect raised {kind.__name__}: the simulator is gone") as raised:
            getattr(coordinator, call)(lambda: None)
        assert isinstance(raised.value.__cause__, kind)
        assert coordinator.why() == "degree 3: 0 of 4 slots occupied (0 collecting, 0 collected, 0 training)"
        coordinator.run_collect(lambda: "fine")  # raised once, not for ever
        assert coordinator.run_train(same) == "fine"
        assert coordinator.get_statistics()["dropped"] == {"failed": 1}


def test_a_collect_that_raises_wakes_a_train_that_waits() -> None:
    waiting = threading.Event()

    def collect() -> None:
        wait_for(waiting)
        fail()

    with quiet(**ASYNC_LOW) as coordinator:
        coordinator.run_collect(collect)
        waiting.set()
        with pytest.raises(CollectFailed):
            coordinator.run_train(lambda: None)


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_a_collect_that_raises_at_degree_zero_raises_here_and_frees_its_slot(kind: type[BaseException]) -> None:
    coordinator = quiet()
    with pytest.raises(kind, match="the simulator is gone"):
        coordinator.run_collect(functools.partial(fail, kind))
    assert coordinator.collect_train_lag == 0
    coordinator.run_collect(lambda: None)
    coordinator.run_train(lambda: None)
    assert coordinator.get_statistics()["dropped"] == {"failed": 1}


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("settings", [SYNC, ASYNC_LOW], ids=["sync", "async"])
def test_a_train_that_raises_frees_its_slot_and_the_counts_stay_right(
    settings: dict[str, Any], kind: type[BaseException]
) -> None:
    with quiet(**settings) as coordinator:
        for _ in range(10):  # more often than there are slots
            coordinator.run_collect(lambda: None)
            with pytest.raises(kind, match="the simulator is gone"):
                coordinator.run_train(functools.partial(fail, kind))
            assert coordinator.collect_train_lag == 0
        coordinator.run_collect(lambda: None)
        coordinator.run_train(lambda: None)
        statistics = coordinator.get_statistics()
    assert (statistics["collect_iterations"], statistics["train_iterations"]) == (11, 1)
    assert (statistics["final_lag"], statistics["dropped"]) == (0, {"failed": 10})


def test_a_wait_for_data_past_the_deadline_says_what_was_under_way() -> None:
    go = threading.Event()
    with quiet(off_policy_degree=1, deadline_s=0.01) as coordinator:
        coordinator.run_collect(functools.partial(go.wait, WAIT_S))
        with pytest.raises(
            Stalled,
            match=r"waited 0.01 s for a batch for run_train; degree 1: 1 of 2 slots occupied "
            r"\(1 collecting, 0 collected, 0 training\)",
        ):
            coordinator.run_train(lambda: None)
        go.set()
        coordinator._collectors.close(WAIT_S)  # the short deadline was for run_train only


def test_a_wait_for_a_slot_past_the_deadline_says_what_was_under_way() -> None:
    coordinator = quiet(deadline_s=0.01)
    coordinator.run_collect(lambda: None)
    with pytest.raises(Stalled, match=r"for a slot for run_collect; degree 0: 1 of 1 slots .*1 collected, 0 training"):
        coordinator.run_collect(lambda: None)
    coordinator.run_train(lambda: None)  # a stall breaks nothing


def test_shutdown_past_the_deadline_names_the_thread() -> None:
    go = threading.Event()
    coordinator = quiet(off_policy_degree=1, deadline_s=0.01)
    coordinator.run_collect(functools.partial(go.wait, WAIT_S))
    with pytest.raises(Stalled, match=r"collect-0 did not finish within 0.01 s"):
        coordinator.shutdown()
    go.set()


def test_after_shutdown_nothing_more_starts_in_the_background() -> None:
    coordinator = quiet(**ASYNC_EVAL)
    coordinator.run_collect(lambda: "late")
    coordinator.shutdown()
    coordinator.shutdown()  # twice is once
    with pytest.raises(RuntimeError, match="the coordinator is shut down"):
        coordinator.run_collect(lambda: None)
    with pytest.raises(RuntimeError, match="the coordinator is shut down"):
        coordinator.run_eval(lambda: None)
    assert coordinator.run_train(same) == "late"  # what was collected can still be trained on


def test_leaving_the_block_with_an_error_keeps_the_error_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LookupError), AsyncTrainingCoordinator(**ASYNC_LOW):
        raise LookupError
    assert capsys.readouterr().out == ""


# -- arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"off_policy_degree": -2}, "off_policy_degree must be 0 .* received -2"),
        ({"off_policy_degree": 1.5}, "off_policy_degree must be 0 .* received 1.5"),
        ({"off_policy_degree": True}, "off_policy_degree must be 0 .* received True"),
        ({"off_policy_degree": "4"}, "off_policy_degree must be 0 .* received '4'"),
        ({"off_policy_degree": None}, "off_policy_degree must be 0 .* received None"),
        ({"off_policy_degree": -1}, "give buffer_size and batch_size"),
        ({"off_policy_degree": -1, "buffer_size": 100}, "give buffer_size and batch_size"),
        ({"off_policy_degree": -1, "batch_size": 100}, "give buffer_size and batch_size"),
        ({"off_policy_degree": -1, "buffer_size": -100, "batch_size": 10}, "buffer_size must be >= 1, received -100"),
        ({"off_policy_degree": -1, "buffer_size": 100, "batch_size": 0}, "batch_size must be >= 1, received 0"),
        ({"num_workers": 0}, "num_workers must be >= 1, received 0"),
        ({"deadline_s": 0}, "deadline_s must be a finite number > 0, received 0"),
        ({"deadline_s": math.nan}, "deadline_s must be a finite number > 0, received nan"),
        ({"deadline_s": math.inf}, "deadline_s must be a finite number > 0, received inf"),
    ],
)
def test_arguments_that_cannot_work_are_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        AsyncTrainingCoordinator(**arguments)
    assert "\n" not in str(refused.value)


# -- statistics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SYNC, ASYNC_LOW], ids=["sync", "async"])
def test_statistics_count_and_time_in_both_modes(settings: dict[str, Any]) -> None:
    with quiet(**settings) as coordinator:
        for _ in range(6):
            coordinator.run_collect(lambda: sum(range(20_000)))
            coordinator.run_train(lambda: sum(range(20_000)))
        coordinator.run_eval(lambda: float(sum(range(20_000))))
        coordinator.run_collect(lambda: None).result(WAIT_S)
        statistics = coordinator.get_statistics()
    assert statistics["mode"] == ("ASYNCHRONOUS" if settings["off_policy_degree"] else "SYNCHRONOUS")
    counts = ("collect_iterations", "train_iterations", "eval_iterations", "final_lag", "dropped")
    assert [statistics[name] for name in counts] == [7, 6, 1, 1, {}]
    for name in ("avg_collect_time", "avg_train_time", "avg_eval_time"):
        assert 0 < statistics[name] < WAIT_S
    assert statistics["mean_staleness"] == statistics["max_staleness"] == 0


def test_statistics_before_anything_happened_are_zero() -> None:
    statistics = quiet().get_statistics()
    assert {name: value for name, value in statistics.items() if value} == {"mode": "SYNCHRONOUS"}


def test_staleness_is_counted_from_the_version_a_collect_began_with() -> None:
    with quiet(off_policy_degree=2) as coordinator:
        for _ in range(3):
            coordinator.run_collect(lambda: None).result(WAIT_S)
        for _ in range(3):
            coordinator.run_train(lambda: None)
    statistics = coordinator.get_statistics()
    assert (statistics["mean_staleness"], statistics["max_staleness"]) == (1.0, 2)


KNOWN_LINES = [
    "Mode: ",
    "Collect iterations: 2",
    "Train iterations: 2",
    "Final lag: 0",
    "Avg collect time: ",
    "Avg train time: ",
    "Avg eval time: ",
]


@pytest.mark.parametrize("settings", [SYNC, ASYNC_LOW], ids=["sync", "async"])
def test_the_block_ends_with_the_lines_its_users_know(
    settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with AsyncTrainingCoordinator(**settings) as coordinator:
        for _ in range(2):
            coordinator.run_collect(lambda: None)
            coordinator.run_train(lambda: None)
        assert capsys.readouterr().out == ""
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("=" * 80, "=" * 80)
    assert lines[1] == "Async Training Statistics:"
    for line, start in zip(lines[2:], KNOWN_LINES, strict=False):
        assert line.startswith(f"  {start}")
    mode = "ASYNCHRONOUS" if settings["off_policy_degree"] else "SYNCHRONOUS"
    assert f"  Mode: {mode}" in lines
    assert "  Dropped: none" in lines


# -- auto -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buffer_size", "batch_size", "start"), [(400, 10, 4), (100_000, 128, 78), (50, 10, 1), (5, 10, 1), (199, 10, 1)]
)
def test_auto_starts_from_a_tenth_of_the_buffer(buffer_size: int, batch_size: int, start: int) -> None:
    with quiet(off_policy_degree=-1, buffer_size=buffer_size, batch_size=batch_size) as coordinator:
        assert coordinator.is_async
        assert coordinator.off_policy_degree == start == max(1, (buffer_size // batch_size) // 10)


def test_auto_comes_down_while_nobody_waits() -> None:
    """The batches are there before they are asked for: a smaller lead would do."""
    with quiet(**AUTO_TUNE) as coordinator:
        seen = [coordinator.off_policy_degree]
        for _ in range(20 * LOOK_EVERY):
            coordinator.run_collect(lambda: None).result(WAIT_S)
            coordinator.run_train(lambda: sum(range(100_000)))
            seen.append(coordinator.off_policy_degree)
    assert seen[0] == 4
    assert seen[-1] == 1
    assert sorted(seen, reverse=True) == seen


def test_auto_goes_up_when_slots_hold_collection_back_and_training_waits() -> None:
    """Bursts: nothing for a while, then everything at once. `buffer` 100 of 10: it starts at 1, and may reach 10."""
    with quiet(off_policy_degree=-1, buffer_size=100, batch_size=10, num_workers=4) as coordinator:
        assert coordinator.off_policy_degree == 1

        def collect() -> None:
            for _ in range(2 * LOOK_EVERY):
                coordinator.run_collect(functools.partial(threading.Event().wait, 0.002))

        def train() -> None:
            for _ in range(2 * LOOK_EVERY):
                coordinator.run_train(lambda: None)

        in_threads(collect, train)
        assert 1 < coordinator.off_policy_degree <= 10


def test_auto_goes_up_in_the_documented_loop_where_nobody_waits_for_a_slot() -> None:
    """`can_collect()` is asked first, so `run_collect` never waits; the slots are the limit all the same."""
    with quiet(off_policy_degree=-1, buffer_size=100, batch_size=10, num_workers=4) as coordinator:
        for _ in range(3 * LOOK_EVERY):
            while coordinator.can_collect():
                coordinator.run_collect(functools.partial(threading.Event().wait, 0.004))
            coordinator.run_train(lambda: None)
        assert 1 < coordinator.off_policy_degree <= 10


def test_a_fixed_degree_never_moves() -> None:
    with quiet(**ASYNC_LOW) as coordinator:
        for _ in range(3 * LOOK_EVERY):
            coordinator.run_collect(lambda: None)
            coordinator.run_train(lambda: None)
            assert coordinator.off_policy_degree == 3
