"""One wake-up for many answers, one timer for many deadlines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from headway.runtimes.loop_threads_deadlines import AnswerDeadlines
from headway.runtimes.loop_threads_landings import Landings

SOON_S = 30.0


def test_what_lands_before_the_loop_looks_is_settled_in_its_order_by_one_wake_up() -> None:
    async def main() -> None:
        loop, woken = asyncio.get_running_loop(), 0
        wake = loop.call_soon_threadsafe

        def counted(*args: object) -> asyncio.Handle:
            nonlocal woken
            woken += 1
            return wake(*args)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        landings, settled, all_here = Landings(), [], asyncio.Event()

        def settle(number: int) -> None:
            settled.append(number)
            if number == 99:
                all_here.set()

        thread = threading.Thread(target=lambda: [landings.put(settle, number) for number in range(100)])
        thread.start()
        thread.join()  # the loop stands still meanwhile
        await asyncio.wait_for(all_here.wait(), SOON_S)
        assert (settled, woken) == (list(range(100)), 1)

    asyncio.run(main())


def test_nothing_that_lands_is_left_however_many_threads_there_are() -> None:
    async def main() -> int:
        landings, settled, all_here = Landings(), 0, asyncio.Event()

        def settle() -> None:
            nonlocal settled
            settled += 1
            if settled == 8 * 500:
                all_here.set()

        threads = [threading.Thread(target=lambda: [landings.put(settle) for _ in range(500)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(all_here.wait(), SOON_S)
        for thread in threads:
            thread.join()
        return settled

    assert asyncio.run(main()) == 4000


def test_what_lands_when_the_loop_is_closed_is_refused() -> None:
    async def made() -> Landings:
        return Landings()

    landings = asyncio.run(made())
    assert not landings.put(print)
    assert not landings.put(print)


def watched(watch: Callable[[AnswerDeadlines, Callable[[str], None]], object], names: int) -> list[str]:
    """Who was late, in order, up to so many."""

    async def main() -> list[str]:
        deadlines, late, all_late = AnswerDeadlines(), [], asyncio.Event()

        def note(name: str) -> None:
            late.append(name)
            if len(late) == names:
                all_late.set()

        watch(deadlines, note)
        await asyncio.wait_for(all_late.wait(), SOON_S)
        deadlines.close()
        return late

    return asyncio.run(main())


def test_whoever_is_late_is_told_in_the_order_of_deadlines_whatever_the_order_of_calls() -> None:
    def watch(deadlines: AnswerDeadlines, note: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        loop.time = lambda: asked_at  # type: ignore[method-assign]  # all of them at one moment, however busy it is
        for name, seconds in (("long", 0.03), ("short", 0.01), ("never", 1000.0), ("middle", 0.02)):
            deadlines.watch(loop.create_future(), seconds, note, name)
        del loop.time  # type: ignore[attr-defined]

    assert watched(watch, 3) == ["short", "middle", "long"]


def test_what_is_forgotten_is_not_late_and_hides_nobody() -> None:
    def watch(deadlines: AnswerDeadlines, note: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        deadlines.watch(first, 0.01, note, "forgotten")
        deadlines.watch(second, 0.02, note, "late")
        deadlines.forget(first)
        deadlines.forget(first)

    assert watched(watch, 1) == ["late"]


@pytest.mark.parametrize("calls", [1, 1000])
def test_there_is_one_timer_however_many_calls_are_under_way(calls: int) -> None:
    async def main() -> int:
        loop, deadlines, made = asyncio.get_running_loop(), AnswerDeadlines(), 0
        call_at = loop.call_at

        def counted(*args: object) -> asyncio.TimerHandle:
            nonlocal made
            made += 1
            return call_at(*args)  # type: ignore[arg-type]

        loop.call_at = counted  # type: ignore[method-assign, assignment]
        answers = [loop.create_future() for _ in range(calls)]
        for answer in answers:
            deadlines.watch(answer, 1000.0, print)
        for answer in answers:
            deadlines.forget(answer)
        deadlines.close()
        return made

    assert asyncio.run(main()) == 1
