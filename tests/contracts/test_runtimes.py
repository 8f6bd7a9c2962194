"""Every runtime passes the same suite."""

from __future__ import annotations

from typing import Any

from headway.core.protocols import Runtime
from headway.runtime.inline import Inline
from headway.runtime.processes import Processes
from headway.runtime.threads import Threads
from headway.runtime.virtual import Fault, Virtual
from headway.testing.runtime_contract import RuntimeContract
from headway.testing.workloads import Constant, SteadyWorkload


class TestInline(RuntimeContract):
    overlaps = False
    has_deadlines = False

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
        return 1.0 if method == "rollout" else 0.0

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        return {"hang": Fault.HANG, "leave": Fault.CRASH}.get(method)


class TestVirtual(RuntimeContract):
    def make(self) -> Runtime:
        return Virtual(HangsAndLeaves(Constant(1.0), Constant(1.0)))
