"""Every runtime passes the same suite."""

from __future__ import annotations

from typing import Any

from headway.core.protocols import Runtime
from headway.runtimes.inline import Inline
from headway.runtimes.processes import Processes
from headway.runtimes.threads import Threads
from headway.runtimes.virtual import Fault, Virtual
from headway.testing.runtime_contract import SOON_S, RuntimeContract
from headway.tools.simulate.workloads import Constant, SteadyWorkload


class TestInline(RuntimeContract):
    overlaps = False
    has_deadlines = False
    has_threads = False
    ends_roles = False

    def make(self) -> Runtime:
        return Inline()


class TestThreads(RuntimeContract):
    def make(self) -> Runtime:
        return Threads()


class TestProcesses(RuntimeContract):
    def make(self) -> Runtime:
        return Processes()


class HangsAndLeaves(SteadyWorkload):
    """What Echo does on its own elsewhere has to be injected in virtual time."""

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        if method == "collect":
            return 2.0 if args[0] == "wait" else 1.0
        return 1.0 if method == "rollout" else 0.0

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        return {"hang": Fault.HANG, "leave": Fault.CRASH}.get(args[0] if method == "collect" else method)


class TestVirtual(RuntimeContract):
    has_threads = False

    def make(self) -> Runtime:
        return Virtual(HangsAndLeaves(Constant(1.0), Constant(1.0)))

    def test_each_lane_takes_its_own_time(self) -> None:
        async def main(runtime: Runtime, ask: Any) -> None:
            began = runtime.now()
            slow, quick = ask("wait", 1), ask("rollout", 3, 1.0)
            await quick
            assert runtime.now() - began == 1.0
            await runtime.call("crossing", "apply", None, deadline_s=SOON_S)
            assert await slow == 1
            assert runtime.now() - began == 2.0

        self.run_with_lanes(main, lanes=2)
