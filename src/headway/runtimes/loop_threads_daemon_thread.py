"""Work in a thread of its own, which nobody has to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_daemon_thread(work: Callable[[], T], name: str) -> Future[T]:
    """What becomes of `work`. Nothing waits for it at the end: what never returns keeps no process alive."""
    done: Future[T] = Future()
    daemon_thread(work, name, done).start()
    return done


def daemon_thread(work: Callable[[], T], name: str, done: Future[T]) -> threading.Thread:
    """The same for whoever starts the thread."""
    done.set_running_or_notify_cancel()  # from here on nobody can cancel it

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    return threading.Thread(target=run, name=name, daemon=True)
