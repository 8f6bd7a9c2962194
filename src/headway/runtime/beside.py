"""Work of the coordinator itself that waits for something: in a thread of its own, which nobody has to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def beside(work: Callable[[], T]) -> T:
    """The result of `work`, done in a daemon thread.

    Unlike `asyncio.to_thread`, nothing waits for it at the end: a disk that never answers keeps no process alive.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():  # whoever asked has given up
            return
        if error is None:
            answer.set_result(result)  # type: ignore[arg-type]
        else:
            answer.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop is closed: whoever asked is gone

    threading.Thread(target=run, name="beside the coordinator", daemon=True).start()
    return await answer
