"""What Ray's control store says beforehand: which nodes are being drained; and which part of Ray is silent.

    every LOOK_S   which nodes are drained?  --> another one --> a notice for the roles there
                   no answer for SILENT_S    --> a notice for all roles: Ray will end this process soon
                   does the raylet of the driver's node answer?
                   it has ended, or no answer for RAYLET_S --> the run ends

A node is drained by `ray drain-node`, by an autoscaler, and by SIGTERM to `ray start --block`, which then waits
RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S (30 s by default) for it to be empty. Ray places nothing there from then on, and
leaves what is there alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import ray
from ray._private.state import state

from headway.core.protocols import Notice
from headway.runtimes.loop_threads_own_thread import beside
from headway.runtimes.ray_cluster import GREETING_S, greet
from headway.runtimes.ray_cluster_ray_control_store import RECONNECT_S, ask

LOOK_S = 1.0
SILENT_S = RECONNECT_S / 2
RAYLET_S = 30.0
"""Ray itself gives up a node whose raylet does not answer after about a minute by default, with all that runs there."""


def draining_nodes() -> dict[str, int]:
    """Node -> when it goes, in milliseconds since 1970; 0: it was not said."""
    found: dict[str, int] = state.get_draining_nodes()
    return found


class Notices:
    """Asks, and tells each thing once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    async def next(self, places: Callable[[], Mapping[str, str]], raylet: str) -> Notice:
        """The next notice that concerns a role; `places` says on which node each one is. `raylet` is the driver's."""
        while True:
            try:
                draining = await ask(draining_nodes, SILENT_S)
                for node, goes_at_ms in draining.items():
                    roles = tuple(role for role, place in places().items() if place == node)
                    if node not in self._told and roles:
                        self._told.add(node)
                        return Notice(roles, await ask(partial(_why, node, goes_at_ms), SILENT_S))
            except TimeoutError as silence:
                return Notice(tuple(places()), f"{silence}, and Ray ends the driver after {RECONNECT_S:g} s")
            await hear(raylet)
            await asyncio.sleep(LOOK_S)


async def hear(raylet: str, limit_s: float = RAYLET_S) -> None:
    """Wait for an answer of the raylet of the driver's node. ConnectionError, which ends the run, if there is none:
    rollouts and weights cannot be handed on without it."""
    what = f"the raylet of the driver's node, {raylet},"
    for _ in range(
        math.ceil(limit_s / GREETING_S)
    ):  # not by the clock: this process may have been stopped meanwhile too
        try:
            await beside(partial(greet, raylet, GREETING_S))
        except TimeoutError:
            continue
        except ConnectionError:
            raise ConnectionError(f"{what} has ended") from None
        except OSError:  # this process is short of something
            await asyncio.sleep(GREETING_S)
        else:
            return
    raise ConnectionError(f"{what} has not answered for {limit_s:g} s")


def _why(node: str, goes_at_ms: int) -> str:
    address = next((known["NodeManagerAddress"] for known in ray.nodes() if known["NodeID"] == node), node)
    left_s = goes_at_ms / 1000 - time.time()
    return f"node {address} is drained" + (f" and goes in {left_s:.0f} s" if goes_at_ms else "")
