"""The board: one activity per role at a time, so the times add up; and words for what everybody does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.coordinator.activities_waits import BETWEEN, Board, Stalled, TimeSpent
from headway.runtimes.virtual import Deadlock, VirtualLoop

stable = settings(max_examples=100, deadline=None, derandomize=True)


class Bench:
    """A board on a clock that jumps."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]
        self.board = Board(self.loop.time)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(main)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- times ------------------------------------------------------------------------------------------


async def live(board: Board, role: str, activities: list[tuple[str, str, int]]) -> None:
    """Work and wait as told, in units of 1/8 second, so that sums of times are exact."""
    loop = asyncio.get_running_loop()
    for kind, name, eighths in activities:
        if kind == "work":
            board.begin(role, name, "something", 60.0)
            await asyncio.sleep(eighths / 8)
            board.end(role)
        elif kind == "wait":
            loop.call_later(eighths / 8, board.wake, role)
            await board.wait(role, name, "something", 1e6)
        else:
            await asyncio.sleep(eighths / 8)


activity = st.tuples(st.sampled_from(["work", "wait", "rest"]), st.sampled_from("abc"), st.integers(0, 80))


@stable
@given(st.lists(st.lists(activity, min_size=1, max_size=12), min_size=1, max_size=5), st.integers(0, 100))
def test_the_times_of_a_role_add_up_to_the_wall_clock_exactly(
    lives: list[list[tuple[str, str, int]]], look_at: int
) -> None:
    bench = Bench()
    first_seen: dict[str, float] = {}

    async def role(number: int, activities: list[tuple[str, str, int]]) -> None:
        name = f"role-{number}"
        first_seen[name] = bench.loop.time()
        bench.board.begin(name, "start", "", 60.0)
        bench.board.end(name)
        await live(bench.board, name, activities)

    def check() -> None:
        now = bench.loop.time()
        for name, by_activity in bench.board.time_spent().seconds.items():
            assert sum(by_activity.values()) == now - first_seen[name]
            assert min(by_activity.values()) >= 0

    async def main() -> None:
        bench.loop.call_later(look_at / 8, check)  # in the middle of whatever goes on
        async with asyncio.TaskGroup() as group:
            for number, activities in enumerate(lives):
                group.create_task(role(number, activities))
        check()

    bench.run(main())
    spent = bench.board.time_spent()
    for number, activities in enumerate(lives):
        by_activity = spent.seconds[f"role-{number}"]
        for letter in "abc":
            told = sum(n for kind, name, n in activities if kind != "rest" and name == letter)
            assert by_activity.get(letter, 0.0) == told / 8


def test_time_spent_sums_over_the_roles_with_a_prefix() -> None:
    spent = TimeSpent(
        {"collector-0": {"collect": 2.0}, "collector-1": {"collect": 4.0, "slot": 1.0}, "learner": {"learn": 8.0}},
        {"collector-0": {"collect": 1}, "collector-1": {"collect": 2}, "learner": {"learn": 4}},
    )
    assert spent.total("collector", "collect") == 6.0
    assert spent.count("collector", "collect") == 3
    assert spent.mean("collector", "collect") == 2.0
    assert spent.mean("learner", "learn") == 2.0
    assert spent.mean("evaluator", "evaluate") == 0.0


def test_an_activity_is_counted_once_it_is_over(bench: Bench) -> None:
    async def main() -> None:
        for _ in range(3):
            bench.board.begin("learner", "learn", "", 60.0)
            await asyncio.sleep(1)
            bench.board.end("learner")
        bench.board.begin("learner", "learn", "", 60.0)
        await asyncio.sleep(1)

    bench.run(main())
    spent = bench.board.time_spent()
    assert spent.count("learner", "learn") == 3
    assert spent.total("learner", "learn") == 4.0  # what is under way counts as time


# -- why --------------------------------------------------------------------------------------------


def test_why_says_who_does_what_since_when_and_until_when_at_most(bench: Bench) -> None:
    board = bench.board
    seen = []

    async def main() -> None:
        tickets = {"open": 0}
        board.begin("learner", "learn", "2 rollouts at version 7", 600.0)
        board.begin("evaluator", "start", "starting", 120.0)
        board.end("evaluator")
        waiting = asyncio.create_task(
            board.wait("collector-0", "slot", lambda: f"a ticket ({tickets['open']} open)", 60.0)
        )
        idle = asyncio.create_task(board.wait("reanalyzer", "version", "a newer version", float("inf")))
        await asyncio.sleep(2.5)
        tickets["open"] = 3
        seen.append(board.why())
        board.wake_all()
        await waiting
        await idle

    bench.run(main())
    assert seen[0].splitlines() == [
        "collector-0 waits for a ticket (3 open) (since 2.5 s, at most 60 s)",
        "evaluator is idle",
        "learner is busy: learn, 2 rollouts at version 7 (since 2.5 s, at most 600 s)",
        "reanalyzer waits for a newer version (since 2.5 s)",
    ]


def test_why_of_an_empty_board_is_empty(bench: Bench) -> None:
    assert bench.board.why() == ""


# -- waking -----------------------------------------------------------------------------------------


def test_waking_ends_the_wait_of_that_role_only(bench: Bench) -> None:
    ended: list[tuple[str, float]] = []

    async def wait(role: str) -> None:
        await bench.board.wait(role, "slot", "", 100.0)
        ended.append((role, bench.loop.time()))

    async def main() -> None:
        tasks = [asyncio.create_task(wait(role)) for role in ("a", "b")]
        await asyncio.sleep(1)
        bench.board.wake("b")
        await asyncio.sleep(1)
        bench.board.wake("a")
        await asyncio.gather(*tasks)

    bench.run(main())
    assert ended == [("b", 1.0), ("a", 2.0)]


def test_waking_before_the_wait_does_not_end_it(bench: Bench) -> None:
    """Whoever waits must look first whether there is anything to wait for."""

    async def main() -> None:
        bench.board.wake("learner")  # nobody of that name
        bench.board.begin("learner", "learn", "", 60.0)
        bench.board.wake("learner")  # busy
        bench.board.end("learner")
        bench.board.wake("learner")  # between
        await bench.board.wait("learner", "data", "a batch", 5.0)

    with pytest.raises(Stalled):
        bench.run(main())
    assert bench.loop.time() == 5.0


def test_waking_twice_is_waking_once(bench: Bench) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(bench.board.wait("learner", "data", "", 60.0))
        await asyncio.sleep(1)
        bench.board.wake("learner")
        bench.board.wake("learner")
        await waiting
        bench.board.wake("learner")  # too late: the wait is over
        await bench.board.wait("learner", "data", "", 60.0)

    with pytest.raises(Stalled):
        bench.run(main())


def test_wake_all_wakes_all(bench: Bench) -> None:
    async def main() -> list[None]:
        tasks = [asyncio.create_task(bench.board.wait(role, "slot", "", 9.0)) for role in "abc"]
        await asyncio.sleep(1)
        bench.board.wake_all()
        return await asyncio.gather(*tasks)

    assert bench.run(main()) == [None] * 3


# -- deadlines --------------------------------------------------------------------------------------


def test_a_wait_past_its_deadline_says_who_waited_for_what_and_what_all_others_did(bench: Bench) -> None:
    async def main() -> None:
        bench.board.begin("collector-0", "collect", "ticket 7 at version 3", 600.0)
        await bench.board.wait("learner", "data", "the rollout of ticket 7", 30.0)

    with pytest.raises(Stalled) as stalled:
        bench.run(main())
    assert str(stalled.value).splitlines() == [
        "learner waits for the rollout of ticket 7 (since 30.0 s, at most 30 s): deadline passed; everybody:",
        "collector-0 is busy: collect, ticket 7 at version 3 (since 30.0 s, at most 600 s)",
        "learner waits for the rollout of ticket 7 (since 30.0 s, at most 30 s)",
    ]
    assert bench.loop.time() == 30.0
    assert bench.board.time_spent().seconds["learner"] == {BETWEEN: 0.0, "data": 30.0}


@stable
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=8))
def test_every_wait_ends_at_its_own_deadline(waits: list[tuple[int, int]]) -> None:
    bench = Bench()
    ended: dict[int, float] = {}

    async def wait(number: int, begins: int, lasts: int) -> None:
        await asyncio.sleep(begins)
        with pytest.raises(Stalled, match=f"^role-{number} waits for "):
            await bench.board.wait(f"role-{number}", "x", "nothing", lasts)
        ended[number] = bench.loop.time()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number, (begins, lasts) in enumerate(waits):
                group.create_task(wait(number, begins, lasts))

    bench.run(main())
    assert ended == {number: begins + lasts for number, (begins, lasts) in enumerate(waits)}


def test_a_wait_that_was_woken_in_time_is_not_stalled_later(bench: Bench) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(bench.board.wait("a", "x", "", 2.0))
        await asyncio.sleep(1)
        bench.board.wake("a")
        await waiting
        bench.board.begin("a", "work", "", 60.0)
        await asyncio.sleep(10)  # the old deadline passes while it works
        bench.board.end("a")

    bench.run(main())
    assert bench.loop.time() == 11.0


def test_a_wait_without_a_deadline_sets_no_timer(bench: Bench) -> None:
    async def main() -> None:
        await bench.board.wait("evaluator", "due", "an evaluation", float("inf"))

    with pytest.raises(Deadlock):  # with a timer, virtual time would have gone on
        bench.run(main())


def test_after_the_end_no_deadline_strikes(bench: Bench) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(bench.board.wait("a", "x", "", 2.0))
        await asyncio.sleep(1)
        bench.board.stop_checking()
        bench.board.stop_checking()
        await asyncio.sleep(9)
        assert not waiting.done()
        bench.board.wake("a")
        await waiting

    bench.run(main())


def test_a_cancelled_wait_leaves_the_role_idle(bench: Bench) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(bench.board.wait("a", "x", "", 60.0))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert bench.board.why() == "a is idle"

    bench.run(main())
    assert bench.board.time_spent().seconds["a"] == {BETWEEN: 0.0, "x": 1.0}
