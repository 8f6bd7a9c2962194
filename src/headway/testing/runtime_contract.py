"""What every runtime must do. A new one is accepted when it passes: subclass and say how to make it.

class TestMine(RuntimeContract):
    def make(self): return Mine()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from headway.core.protocols import Role, RoleDied, RoleError, RoleLate, RoleRaised, Runtime
from headway.core.types import Batch, Rollout, Snapshot
from headway.testing.fakes import Broken, Echo

SOON_S = 60.0


class RuntimeContract:
    """Tests of the `Runtime` protocol, without a coordinator."""

    overlaps = True
    """Do calls to two roles run at the same time?"""
    has_deadlines = True
    """Can a call that never returns be given up?"""

    def make(self) -> Runtime:
        raise NotImplementedError

    def run(self, main: Callable[[Runtime], Awaitable[Any]], *roles: str) -> Any:
        """`main` with the named Echo roles running, closed afterwards."""
        runtime = self.make()

        async def body() -> Any:
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

    def test_two_roles_work_at_the_same_time(self) -> None:
        if not self.overlaps:
            pytest.skip("this runtime does one thing at a time")

        async def main(runtime: Runtime) -> None:
            stuck = asyncio.ensure_future(runtime.call("a", "hang", deadline_s=1.0))
            assert await runtime.call("b", "count", deadline_s=SOON_S) == 1
            assert not stuck.done()
            with pytest.raises(RoleLate):
                await stuck

        self.run(main, "a", "b")

    def test_a_call_that_never_returns_is_given_up_and_the_role_can_be_restarted(self) -> None:
        if not self.has_deadlines:
            pytest.skip("this runtime cannot interrupt a call")

        async def main(runtime: Runtime) -> None:
            with pytest.raises(RoleLate, match=r"echo\.hang: no answer within 0\.3 s"):
                await runtime.call("echo", "hang", deadline_s=0.3)
            await runtime.restart("echo")
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

    def test_a_role_that_leaves_is_noticed(self) -> None:
        if not self.has_deadlines:
            pytest.skip("here the role shares the thread of the run")

        async def main(runtime: Runtime) -> None:
            with pytest.raises(RoleDied):
                await runtime.call("echo", "leave", deadline_s=SOON_S)
            await runtime.restart("echo")
            assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

        self.run(main)

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
