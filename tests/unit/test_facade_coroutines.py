"""The coordinator for a loop of one's own, given coroutines: the same bounds and counts, in the caller's event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from waiting import patient

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.facade import AsyncTrainingCoordinator, CollectFailed, EvalFailed

pytestmark = pytest.mark.timeout(60)

WAIT_S = patient(10)  # bounds every wait of a test; nothing below depends on how long anything takes


def quiet(degree: int = 0, **settings: Any) -> AsyncTrainingCoordinator:
    told = {"print_on_exit": False, "deadline_s": WAIT_S, "buffer_size": 400, "batch_size": 10, **settings}
    return AsyncTrainingCoordinator(degree, **told)


async def of(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def same(batch: Any) -> Any:
    return batch


async def fail() -> None:
    raise ZeroDivisionError("the simulator is gone")


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await work

    asyncio.run(bounded())


@pytest.mark.parametrize("degree", [0, 3, 20, -1])
def test_every_batch_is_trained_on_once_and_in_order(degree: int) -> None:
    async def loop() -> None:
        coordinator, trained = quiet(degree), []

        async def collect_all() -> None:
            for number in range(30):
                await coordinator.run_collect(functools.partial(of, number))
                assert coordinator.collect_train_lag <= coordinator.off_policy_degree + 1 or degree == -1

        collecting = asyncio.create_task(collect_all())
        while coordinator.train_count < 30:
            trained.append(await coordinator.run_train(same))
        await collecting
        assert trained == list(range(30))
        assert (coordinator.collect_count, coordinator.collect_train_lag) == (30, 0)
        assert coordinator.get_statistics()["train_count"] == 30
        coordinator.shutdown()

    run(loop())


def test_collection_goes_on_while_a_train_awaits_and_no_further_than_the_degree() -> None:
    async def loop() -> None:
        coordinator, may_end = quiet(2), asyncio.Event()
        await coordinator.run_collect(functools.partial(of, 0))
        training = asyncio.create_task(coordinator.run_train(may_end.wait))
        for _ in range(2):
            await coordinator.run_collect(functools.partial(of, 1))
        assert not coordinator.can_collect()
        one_more = asyncio.create_task(coordinator.run_collect(functools.partial(of, 2)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert coordinator.collect_count == 3
        may_end.set()
        await training
        assert await one_more == 2

    run(loop())


def test_what_waits_for_a_batch_hears_of_one_that_a_thread_collected() -> None:
    async def loop() -> None:
        coordinator, may_end = quiet(2), threading.Event()

        def collect() -> str:
            may_end.wait(WAIT_S)
            return "from a thread"

        coordinator.run_collect(collect)
        training = asyncio.create_task(coordinator.run_train(same))
        for _ in range(5):
            await asyncio.sleep(0)
        may_end.set()
        assert await training == "from a thread"
        coordinator.shutdown()

    run(loop())


def test_a_coroutine_that_raises_frees_its_slot_and_is_raised_here_and_by_the_next_call() -> None:
    async def loop() -> None:
        coordinator = quiet(2)
        with pytest.raises(ZeroDivisionError):
            await coordinator.run_collect(fail)
        with pytest.raises(CollectFailed, match="collect raised ZeroDivisionError: the simulator is gone"):
            await coordinator.run_train(same)
        await coordinator.run_collect(functools.partial(of, 1))
        with pytest.raises(ZeroDivisionError):
            await coordinator.run_train(fail)
        assert coordinator.get_statistics()["dropped"] == {"failed": 2}
        assert coordinator.why() == "degree 2: 0 of 3 slots occupied (0 collecting, 0 collected, 0 training)"
        coordinator.shutdown()

    run(loop())


def test_a_collect_that_is_cancelled_frees_its_slot_and_is_no_failure() -> None:
    async def loop() -> None:
        coordinator = quiet(1)
        collecting = asyncio.create_task(coordinator.run_collect(asyncio.Event().wait))
        await asyncio.sleep(0)
        collecting.cancel()
        await asyncio.wait([collecting])
        assert collecting.cancelled()
        await coordinator.run_collect(functools.partial(of, 1))
        assert await coordinator.run_train(same) == 1
        assert coordinator.get_statistics()["dropped"] == {"failed": 1}

    run(loop())


def test_evaluations_in_the_background_run_one_after_another_and_none_is_lost() -> None:
    async def loop() -> None:
        coordinator, may_end, order = quiet(1, enable_async_eval=True), asyncio.Event(), []

        async def first() -> float:
            await may_end.wait()
            order.append(1)
            return 1.0

        async def second() -> float:
            order.append(2)
            return 2.0

        assert await coordinator.run_eval(first) is None
        await coordinator.run_collect(functools.partial(of, 0))
        await coordinator.run_train(same)
        assert await coordinator.run_eval(second) is None
        with pytest.raises(RuntimeError, match="an evaluation runs in your event loop: await wait_for_eval"):
            coordinator.shutdown()
        may_end.set()
        assert await coordinator.wait_for_eval() == 2.0
        assert order == [1, 2]
        assert [(score.version, score.value) for score in coordinator.scores] == [(0, 1.0), (1, 2.0)]
        coordinator.shutdown()

    run(loop())


def test_an_evaluation_that_raises_raises_here_or_when_it_is_waited_for() -> None:
    async def loop() -> None:
        with pytest.raises(ZeroDivisionError):
            await quiet().run_eval(fail)
        coordinator = quiet(enable_async_eval=True)
        await coordinator.run_eval(fail)
        with pytest.raises(EvalFailed, match="evaluate raised ZeroDivisionError: the simulator is gone"):
            await coordinator.wait_for_eval()
        coordinator.shutdown()

    run(loop())


def test_a_wait_past_the_deadline_says_what_was_under_way() -> None:
    async def loop() -> None:
        coordinator = quiet(2, deadline_s=0.01)
        with pytest.raises(Stalled, match=r"waited 0.01 s for a batch for run_train; degree 2: 0 of 3 slots occupied"):
            await coordinator.run_train(same)

    run(loop())


def test_an_object_with_an_async_call_is_awaited() -> None:
    class Simulator:
        async def __call__(self) -> str:
            return "played"

    async def loop() -> None:
        assert await quiet().run_collect(Simulator()) == "played"

    run(loop())


@pytest.mark.parametrize("call", ["collect", "train", "eval"])
def test_a_function_that_returns_a_coroutine_nobody_awaits_is_refused(call: str) -> None:
    coordinator = quiet()
    if call == "train":
        coordinator.run_collect(lambda: None)
    with pytest.raises(
        TypeError, match=f"{call} returned a coroutine that nobody awaits: hand over the async function"
    ):
        getattr(coordinator, f"run_{call}")(lambda: fail())
    assert coordinator.collect_train_lag == 0
