"""What every runtime must do. A new one is accepted when it passes: subclass and say how to make it.

class TestMine(RuntimeContract):
    def make(self): return Mine()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np
import pytest

from headway.core.protocols import EndsRoles, Role, RoleDied, RoleError, RoleLate, RoleRaised, Runtime
from headway.core.types import Batch, Rollout, Snapshot
from headway.core.types_opaque import RoleAnswer
from headway.testing.toy_stations import Broken, Crossing, Echo

T = TypeVar("T")
SOON_S = 300.0
_Asker = Callable[..., asyncio.Future[RoleAnswer]]
_Test = Callable[["RuntimeContract"], None]


def _needs(feature: str) -> Callable[[_Test], _Test]:
    """A test of what not every runtime can do."""

    def mark(test: _Test) -> _Test:
        test.needs = feature  # type: ignore[attr-defined]
        return test

    return mark


class RuntimeContract:
    """Tests of the `Runtime` protocol, without a coordinator."""

    overlaps = True
    """Do calls to two roles run at the same time?"""
    has_deadlines = True
    """Can a call that never returns be given up?"""
    has_threads = True
    """Does the station's own code run in several threads, each of which may wait for another?"""

    ends_roles = True
    """Can a role end while the others go on?"""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for name in dir(cls):
            feature = getattr(getattr(cls, name), "needs", None)
            if feature is not None and not getattr(cls, feature):
                setattr(cls, name, None)  # so that pytest does not find it: there is nothing to be skipped

    def make(self) -> Runtime:
        raise NotImplementedError

    def run(self, main: Callable[[Runtime], Awaitable[T]], *roles: str) -> T:
        """`main` with the named Echo roles running, closed afterwards."""
        runtime = self.make()

        async def body() -> T:
            try:
                await asyncio.gather(*(runtime.start(Role(role, Echo)) for role in roles or ("echo",)))
                return await main(runtime)
            finally:
                await runtime.close()

        return runtime.run(body())

    def test_a_call_returns_what_the_role_returns(self) -> None:
        async def main(runtime: Runtime) -> None:
            assert await runtime.call("echo", "echo", {"a": [1, 2.5, "x"], "b": None}, deadline_s=SOON_S) == {
                "a": [1, 2.5, "x"],
                "b": None,
            }

        self.run(main)

    def test_calls_to_one_role_are_answered_in_order(self) -> None:
        async def main(runtime: Runtime) -> None:
            answers = [runtime.call("echo", "count", deadline_s=SOON_S) for _ in range(20)]
            assert await asyncio.gather(*answers) == list(range(1, 21))

        self.run(main)

    def test_roles_keep_their_own_state(self) -> None:
        async def main(runtime: Runtime) -> None:
            for _ in range(3):
                await runtime.call("a", "count", deadline_s=SOON_S)
            assert await runtime.call("b", "count", deadline_s=SOON_S) == 1
            assert await runtime.call("a", "count", deadline_s=SOON_S) == 4

        self.run(main, "a", "b")

    def test_an_exception_names_role_and_method_and_leaves_the_role_usable(self) -> None:
        async def main(runtime: Runtime) -> None:
            with pytest.raises(RoleRaised) as caught:
                await runtime.call("echo", "fail", "wrong seed", deadline_s=SOON_S)
            assert str(caught.value) == "echo.fail: ValueError: wrong seed"
            assert "in fail" in caught.value.details
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

    def test_an_exception_that_cannot_be_turned_into_text_is_told_by_its_class(self) -> None:
        async def main(runtime: Runtime) -> None:
            with pytest.raises(RoleRaised) as caught:
                await runtime.call("echo", "fail_without_words", deadline_s=SOON_S)
            assert str(caught.value) == "echo.fail_without_words: Wordless: <exception str() failed>"
            assert "in fail_without_words" in caught.value.details
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

    def test_a_snapshot_does_not_change_when_the_learner_goes_on(self) -> None:
        async def main(runtime: Runtime) -> None:
            snapshot = await runtime.call("echo", "snapshot", 7, deadline_s=SOON_S)
            assert isinstance(snapshot, Snapshot)
            assert snapshot.version == 7
            await runtime.call("echo", "change_weights", 1.0, deadline_s=SOON_S)
            assert await runtime.call("other", "weigh", snapshot, deadline_s=SOON_S) == 0.0
            newer = await runtime.call("echo", "snapshot", 8, deadline_s=SOON_S)
            assert await runtime.call("other", "weigh", newer, deadline_s=SOON_S) == 1000.0

        self.run(main, "echo", "other")

    def test_rollouts_go_from_one_role_to_another(self) -> None:
        async def main(runtime: Runtime) -> None:
            rollouts = [await runtime.call("a", "rollout", 5000, float(i), deadline_s=SOON_S) for i in range(4)]
            batch = Batch(0, tuple(rollouts))
            assert await runtime.call("b", "total", batch, deadline_s=SOON_S) == 5000 * (0 + 1 + 2 + 3)

        self.run(main, "a", "b")

    def test_feedback_goes_from_one_role_to_another(self) -> None:
        async def main(runtime: Runtime) -> None:
            report, nothing = await runtime.call("a", "report", 5000, 2.0, deadline_s=SOON_S)
            assert (report.metrics, nothing) == ({"loss": 2.0}, None)
            assert await runtime.call("b", "total_of_feedback", report, deadline_s=SOON_S) == 10000.0
            runtime.release(report.feedback)

        self.run(main, "a", "b")

    def test_a_payload_can_be_fetched_and_given_again(self) -> None:
        async def main(runtime: Runtime) -> None:
            rollout = await runtime.call("a", "rollout", 5000, 2.0, deadline_s=SOON_S)
            payload = runtime.fetch(rollout.payload)
            assert payload["name"] == "rollout"
            np.testing.assert_array_equal(payload["values"], np.full(5000, 2.0))
            runtime.release(rollout.payload)
            again = Batch(0, (Rollout(payload), Rollout(payload)))
            assert await runtime.call("b", "total", again, deadline_s=SOON_S) == 20000.0
            runtime.release(payload)

        self.run(main, "a", "b")

    def test_releasing_twice_is_harmless(self) -> None:
        async def main(runtime: Runtime) -> None:
            first = await runtime.call("a", "rollout", 5000, 1.0, deadline_s=SOON_S)
            runtime.release(first.payload)
            runtime.release(first.payload)
            second = await runtime.call("a", "rollout", 5000, 2.0, deadline_s=SOON_S)
            third = await runtime.call("a", "rollout", 5000, 3.0, deadline_s=SOON_S)
            assert await runtime.call("b", "total", Batch(0, (second, third)), deadline_s=SOON_S) == 25000.0

        self.run(main, "a", "b")

    def test_a_restarted_role_is_built_anew(self) -> None:
        async def main(runtime: Runtime) -> None:
            for _ in range(3):
                await runtime.call("echo", "count", deadline_s=SOON_S)
            await runtime.restart("echo")
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

    @_needs("ends_roles")
    def test_a_role_ends_while_others_go_on_and_what_it_made_stays(self) -> None:
        async def main(runtime: Runtime) -> None:
            assert isinstance(runtime, EndsRoles)
            made = await runtime.call("a", "rollout", 5000, 2.0, deadline_s=SOON_S)
            await runtime.call("a", "count", deadline_s=SOON_S)
            await runtime.end("a")
            await runtime.end("a")  # it is gone already
            assert await runtime.call("b", "total", Batch(0, (made,)), deadline_s=SOON_S) == 10000.0
            await runtime.start(Role("a", Echo))
            assert await runtime.call("a", "count", deadline_s=SOON_S) == 1

        self.run(main, "a", "b")

    def test_a_role_that_cannot_be_built_says_why(self) -> None:
        async def main(runtime: Runtime) -> None:
            with pytest.raises(RoleError, match=r"broken\.\w*start: .*no such simulator"):
                await runtime.start(Role("broken", Broken))
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

    def test_a_cancelled_call_is_forgotten(self) -> None:
        async def main(runtime: Runtime) -> None:
            call = asyncio.ensure_future(runtime.call("echo", "rollout", 5000, 1.0, deadline_s=SOON_S))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await runtime.call("echo", "echo", 5, deadline_s=SOON_S) == 5

        self.run(main)

    @_needs("overlaps")
    def test_two_roles_work_at_the_same_time(self) -> None:
        async def main(runtime: Runtime) -> None:
            stuck = asyncio.ensure_future(runtime.call("a", "hang", deadline_s=5.0))
            assert await runtime.call("b", "count", deadline_s=SOON_S) == 1
            assert not stuck.done()
            with pytest.raises(RoleLate):
                await stuck

        self.run(main, "a", "b")

    @_needs("has_deadlines")
    def test_a_call_that_never_returns_is_given_up_and_the_role_can_be_restarted(self) -> None:
        async def main(runtime: Runtime) -> None:
            with pytest.raises(RoleLate, match=r"echo\.hang: no answer within 0\.3 s"):
                await runtime.call("echo", "hang", deadline_s=0.3)
            await runtime.restart("echo")
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

    @_needs("has_deadlines")
    def test_a_role_that_leaves_is_noticed(self) -> None:
        async def main(runtime: Runtime) -> None:
            with pytest.raises(RoleDied):
                await runtime.call("echo", "leave", deadline_s=SOON_S)
            await runtime.restart("echo")
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

    # -- lanes --------------------------------------------------------------------------------------

    def run_with_lanes(self, main: Callable[[Runtime, _Asker], Awaitable[T]], lanes: int) -> T:
        """`main` with a Crossing of so many lanes, and a function that makes a call of `collect`."""
        runtime = self.make()

        def ask(*args: object, deadline_s: float = SOON_S) -> asyncio.Future[RoleAnswer]:
            return asyncio.ensure_future(runtime.call("crossing", "collect", *args, deadline_s=deadline_s))

        async def body() -> T:
            try:
                await runtime.start(Role("echo", Echo))
                await runtime.start(Role("crossing", Crossing, lanes=lanes))
                return await main(runtime, ask)
            finally:
                await runtime.close()

        return runtime.run(body())

    @_needs("has_threads")
    def test_lanes_work_at_the_same_time_on_one_object(self) -> None:
        async def main(runtime: Runtime, ask: _Asker) -> None:
            met_in = await asyncio.gather(*(ask("meet", 3) for _ in range(3)))
            assert len(set(met_in)) == 1

        self.run_with_lanes(main, lanes=3)

    @_needs("has_threads")
    def test_no_more_calls_overlap_than_there_are_lanes(self) -> None:
        async def main(runtime: Runtime, ask: _Asker) -> None:
            await asyncio.gather(*(ask("meet", 2) for _ in range(12)))
            assert await runtime.call("crossing", "most_inside", deadline_s=SOON_S) == 2

        self.run_with_lanes(main, lanes=2)

    @_needs("overlaps")
    def test_all_but_collecting_goes_on_in_order_while_every_lane_is_busy(self) -> None:
        async def main(runtime: Runtime, ask: _Asker) -> None:
            busy = [ask("wait", number) for number in range(3)]
            counts = [runtime.call("crossing", "count", deadline_s=SOON_S) for _ in range(20)]
            assert await asyncio.gather(*counts) == list(range(1, 21))
            assert not any(call.done() for call in busy)
            assert await runtime.call("crossing", "apply", "new weights", deadline_s=SOON_S) == "new weights"
            assert await asyncio.gather(*busy) == [0, 1, 2]

        self.run_with_lanes(main, lanes=3)

    @_needs("overlaps")
    def test_an_exception_in_one_lane_does_not_touch_the_others(self) -> None:
        async def main(runtime: Runtime, ask: _Asker) -> None:
            first, failing, last = ask("wait", 1), ask("fail", "wrong seed"), ask("wait", 3)
            with pytest.raises(RoleRaised, match=r"^crossing\.collect: ValueError: wrong seed"):
                await failing
            assert not first.done()
            assert not last.done()
            await runtime.call("crossing", "apply", None, deadline_s=SOON_S)
            assert await asyncio.gather(first, last, ask("wait", 4)) == [1, 3, 4]

        self.run_with_lanes(main, lanes=3)

    @_needs("overlaps")
    def test_a_role_that_dies_takes_all_its_lanes_along(self) -> None:
        async def main(runtime: Runtime, ask: _Asker) -> None:
            calls = [ask("wait", 1), ask("leave"), ask("wait", 3)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [RoleDied] * 3
            assert not any(isinstance(answer, RoleDied) and answer.never_began for answer in answers)
            await runtime.restart("crossing")
            await runtime.call("crossing", "apply", None, deadline_s=SOON_S)
            assert await asyncio.gather(*(ask("wait", number) for number in range(3))) == [0, 1, 2]

        self.run_with_lanes(main, lanes=3)

    @_needs("overlaps")
    def test_a_late_call_is_the_only_late_one_and_the_restart_ends_the_others(self) -> None:
        async def main(runtime: Runtime, ask: _Asker) -> None:
            first, late, last = ask("wait", 1), ask("hang", deadline_s=0.5), ask("wait", 3)
            with pytest.raises(RoleLate, match=r"^crossing\.collect: no answer within 0\.5 s$"):
                await late
            await runtime.restart("crossing")
            answers = await asyncio.gather(first, last, return_exceptions=True)
            assert [type(answer) for answer in answers] == [RoleDied] * 2
            assert await runtime.call("crossing", "count", deadline_s=SOON_S) == 1
            await runtime.call("crossing", "apply", None, deadline_s=SOON_S)
            assert await asyncio.gather(*(ask("wait", number) for number in range(3))) == [0, 1, 2]

        self.run_with_lanes(main, lanes=3)

    def test_payloads_of_overlapping_calls_are_not_mixed_up(self) -> None:
        async def main(runtime: Runtime, ask: _Asker) -> None:
            sizes = [10, 3000, 40_000]
            snapshot = await runtime.call("echo", "snapshot", 1, deadline_s=SOON_S)
            ones = Snapshot(1, runtime.fetch(snapshot.payload)[:1] + 1.0)
            made = await asyncio.gather(*(ask("rollout", sizes[i % 3], float(i)) for i in range(24)))
            more = await asyncio.gather(*(ask("add", rollout, ones) for rollout in made))
            for rollout in made:
                runtime.release(rollout.payload)
            for i, rollout in enumerate(more):
                np.testing.assert_array_equal(runtime.fetch(rollout.payload)["values"], np.full(sizes[i % 3], i + 1.0))
                runtime.release(rollout.payload)

        self.run_with_lanes(main, lanes=4)

    def test_offloaded_work_returns_its_result(self) -> None:
        async def main(runtime: Runtime) -> None:
            assert await runtime.offload(lambda: 6 * 7) == 42

        self.run(main)

    def test_the_clock_moves_forward(self) -> None:
        async def main(runtime: Runtime) -> None:
            before = runtime.now()
            await asyncio.sleep(0.01)
            assert runtime.now() >= before + 0.009

        self.run(main)

    def test_closing_twice_is_harmless(self) -> None:
        async def main(runtime: Runtime) -> None:
            await runtime.close()

        self.run(main)
