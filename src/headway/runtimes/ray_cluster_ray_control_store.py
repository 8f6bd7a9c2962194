"""Questions to Ray's control store (gcs_server), which may be gone.

    await ask(ray.nodes, limit_s)      does it answer at all, within the limit? --> the question, in a daemon thread

Ray's own functions ask without a limit. Whoever still waits for an answer keeps a connection open behind
`ray.shutdown`, and Ray ends the whole process, a notebook's kernel too, when a connection has looked for its control
store in vain for RECONNECT_S. So what may have no answer is asked for with a limit first.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import RpcError

from headway.runtimes.loop_threads_own_thread import beside

T = TypeVar("T")

RECONNECT_S = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", "60"))  # noqa: SIM112 - Ray's own name
"""After so long without its control store Ray ends the process."""
SLICE_S = 2.0
"""Nobody waits for longer at once, and so not for long behind `ray.shutdown`."""
AGAIN_S = 0.5
KEY = b"headway"
"""Nobody has this key; that is an answer too."""


async def ask(question: Callable[[], T], limit_s: float) -> T:
    """Returns the answer; TimeoutError, with a line for people, where the control store says nothing for so long."""
    try:
        async with asyncio.timeout(limit_s):
            return await beside(partial(_answer, question, limit_s))
    except TimeoutError:
        raise TimeoutError(
            f"the control store of the Ray cluster (gcs_server) has not answered for {limit_s:g} s"
        ) from None


def _answer(question: Callable[[], T], limit_s: float) -> T:
    """Blocks."""
    ends_at = time.monotonic() + limit_s
    while ray.is_initialized() and (left_s := ends_at - time.monotonic()) > 0:
        try:
            store: GcsClient = ray._private.worker.global_worker.gcs_client  # type: ignore[attr-defined]
            store.internal_kv_exists(KEY, timeout=min(SLICE_S, left_s))
        except RpcError:  # not in time, or a refusal at once by a machine on which it may be started again
            time.sleep(min(AGAIN_S, max(0.0, ends_at - time.monotonic())))
        else:
            return question()
    raise TimeoutError
