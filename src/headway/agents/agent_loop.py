"""The event loop in which asynchronous agents run, all of a player together, in a thread of its own.

    agent's thread:  begin(coroutine) --> task in the loop --> result(): waits
                                            +-- cancel()   its run is abandoned

One loop for all of them, because clients that a library shares between its agents (connection pools) belong to a loop.
Invariant: when `close` returns every task is cancelled and the loop is closed, unless an agent blocks the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future

from headway.core.text_one_line import in_a_line

CLOSE_S = 5.0


class AgentLoop:
    """Runs the coroutines of agents. The loop is started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._over: asyncio.Event | None = None

    def begin(self, wanted: Awaitable[object]) -> Future[object]:
        """Begins to await it, from any thread."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="asynchronous agents", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(_awaited(wanted), self._begun.result())

    def close(self) -> None:
        """Cancels running agents. An agent that blocks the loop is left behind: it ends with the process."""
        if self._thread is not None:
            assert self._over is not None
            self._begun.result().call_soon_threadsafe(self._over.set)
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        asyncio.run(self._until_closed())  # cancels all that is left

    async def _until_closed(self) -> None:
        self._over = asyncio.Event()
        self._begun.set_result(asyncio.get_running_loop())
        await self._over.wait()


async def _awaited(wanted: Awaitable[object]) -> object:
    try:
        return await wanted
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop of all agents
        raise RuntimeError(in_a_line(error)) from error
