"""Copies of what is made on other nodes, in the store of the driver's node: the one node a run cannot do without.

stored on node b --pulled by Ray--> stored here as well --> its answer counts as here
                 `--b died--> only the error is here --> RoleDied, for whoever made it
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import ray
from ray.exceptions import ObjectLostError

from headway.core.protocols import RoleDied
from headway.runtimes.loop_threads_own_thread import beside
from headway.runtimes.ray_role import RoleActor
from headway.runtimes.ray_role_ray_stored import places_of

MAX_PULLS = 32
"""How many payloads of other nodes are waited for at the same time."""


class DriverCopies:
    """Waits until payloads of other nodes are in the store of the driver's node."""

    def __init__(self) -> None:
        self._pulls = ThreadPoolExecutor(MAX_PULLS, "headway ray pull")

    async def wait_for(self, actor: RoleActor, method: str, stored: ray.ObjectRef) -> None:
        """Wait until the store of the driver's node holds a copy."""
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(self._pulls, _is_here, stored):
            pass
        while not places_of(stored):  # the driver may learn of it a moment after it has the answer
            await asyncio.sleep(0.001)
        if actor.node not in places_of(stored):  # its node died meanwhile: ours may hold no more than the error
            try:
                await loop.run_in_executor(self._pulls, ray.get, stored)
            except ObjectLostError:
                actor.kill("was lost with its node")
                raise RoleDied(actor.role, method, f"what it returned was lost with node {actor.node}") from None

    async def close(self) -> None:
        await beside(partial(self._pulls.shutdown, cancel_futures=True))


def _is_here(stored: ray.ObjectRef) -> bool:
    """Waits a second at most, so that a thread that nobody waits for is soon free."""
    return bool(ray.wait([stored], timeout=1.0, fetch_local=True)[0])
