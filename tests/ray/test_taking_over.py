"""A role is built a second time, and the second takes over: which calls go where, and what ends when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import ray
from running_processes import wait_until_gone
from waiting import patient

from headway.core.protocols import GivesNotice, Placement, Role
from headway.runtimes.ray_actors import RayActors
from headway.runtimes.ray_cluster_ray_doubts import Doubts, rooms
from headway.testing.runtime_contract import SOON_S
from headway.testing.toy_stations import Echo

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("local_ray")]


class Slow(Echo):
    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.count()


def with_role(main: Callable[[RayActors], Awaitable[Any]]) -> Any:
    runtime = RayActors(start_s=patient(50))

    async def body() -> Any:
        try:
            await runtime.start(Role("slow", Slow, Placement(num_cpus=0.1)))
            return await main(runtime)
        finally:
            await runtime.close()

    return runtime.run(body())


def test_calls_under_way_end_where_they_began_and_later_ones_go_to_the_second() -> None:
    async def main(runtime: RayActors) -> None:
        assert isinstance(runtime, GivesNotice)
        first = runtime.pid("slow")
        assert not await runtime.move("slow"), "nothing was prepared"
        assert await runtime.prepare("slow")
        assert runtime.pid("slow") == first, "the first works on"
        assert await runtime.call("slow", "count", deadline_s=SOON_S) == 1
        under_way = asyncio.create_task(runtime.call("slow", "sleep", 0.5, deadline_s=SOON_S))
        await asyncio.sleep(0)
        assert await runtime.move("slow")
        assert runtime.pid("slow") != first
        assert await runtime.call("slow", "count", deadline_s=SOON_S) == 1, "nothing is carried over"
        assert await under_way == 2, "of the first"
        wait_until_gone([first])
        assert await runtime.call("slow", "count", deadline_s=SOON_S) == 2

    with_role(main)


def test_a_restart_takes_what_was_prepared() -> None:
    async def main(runtime: RayActors) -> None:
        first = runtime.pid("slow")
        assert await runtime.prepare("slow")
        await runtime.restart("slow")
        second = runtime.pid("slow")
        assert second != first and not await runtime.move("slow"), "it has taken over already"
        await runtime.restart("slow")
        assert runtime.pid("slow") not in (first, second)

    with_role(main)


def test_closing_ends_what_was_prepared_too() -> None:
    async def main(runtime: RayActors) -> list[int]:
        assert await runtime.prepare("slow")
        return [runtime.pid("slow"), runtime._successors["slow"].pid]

    wait_until_gone(with_role(main))


def test_a_role_can_be_placed_where_the_doubts_say() -> None:
    here = ray.get_runtime_context().get_node_id()
    doubts = Doubts()
    doubts.add("a node that is cut off")
    [room] = rooms()
    assert room.node == here and room.free["CPU"] > 0
    assert doubts.way_around({"CPU": 0.1, "GPU": 0.0}, [room], []) == (here, {"CPU": 0.1, "GPU": 0.0})

    async def main(runtime: RayActors) -> None:
        runtime._doubts.add("a node that is cut off")
        await runtime.restart("slow")
        assert runtime.node("slow") == here
        assert await runtime.call("slow", "count", deadline_s=SOON_S) == 1

    with_role(main)
