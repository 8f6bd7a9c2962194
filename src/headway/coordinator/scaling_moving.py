"""The moving loop: roles leave a place that is going away before it has gone.

    notice --+-- a collector, the evaluator, the reanalyzer --> built a second time elsewhere while the first works on,
             |                                                 then that takes over between two tickets, with its state
             +-- a learner, a replay --> the run stops as if it were interrupted: it is saved, and resumed elsewhere

A role that cannot be anywhere else stays while its place does, and is built anew when that is gone, as without notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from headway.coordinator.collectors_collector_calls import CollectorCalls
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.run_result_control import INTERRUPTED
from headway.core.events import Noticed
from headway.core.protocols import GivesNotice, Runtime


class Moving:
    """Hears what the runtime says beforehand."""

    def __init__(
        self, calls: RoleCalls, collectors: CollectorCalls, rooted: Collection[str], stop: Callable[[str], None]
    ) -> None:
        """`rooted` are the roles whose state is nowhere else."""
        self._calls = calls
        self._collectors = collectors
        self._rooted = rooted
        self._stop = stop

    @staticmethod
    def is_possible(runtime: Runtime) -> bool:
        return isinstance(runtime, GivesNotice)

    async def loop(self) -> None:
        """Consumes notices, produces roles that are ready to take over. Waits for: a notice. Ends: with the learn loop
        of the first line.
        """
        runtime = self._calls.runtime
        assert isinstance(runtime, GivesNotice)
        async with asyncio.TaskGroup() as group:
            while True:
                notice = await runtime.wait_for_notice()
                for role in notice.roles:
                    self._calls.journal.write(Noticed, role, notice.why)
                rooted = [role for role in notice.roles if role in self._rooted]
                if rooted:
                    self._stop(f"{INTERRUPTED}: {notice.why}, and {rooted[0]} cannot go elsewhere")
                    return
                for role in notice.roles:
                    group.create_task(self._move(runtime, role))

    async def _move(self, runtime: GivesNotice, role: str) -> None:
        if not await runtime.prepare(role):
            return
        if role in self._collectors.posts.roles:
            await self._collectors.move_soon(role)
        else:
            await self._calls.move(role)
