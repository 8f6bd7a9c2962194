"""Calls that overlap in one process: what they share is never freed too early, and all of it comes back."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from waiting import patient

from headway.core.protocols import Role, RoleDied, RoleError
from headway.core.types import Rollout, Snapshot
from headway.runtimes.processes import Processes
from headway.runtimes.shared_memory_arena import Arena, GuardedArena

pytestmark = pytest.mark.timeout(120)

DEADLINE_S = patient(60)
KEPT = 6


class Keeper:
    """Reads what it is given, twice, and keeps views of some of it for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[int, np.ndarray]] = OrderedDict()  # call -> (what is in it, view)

    def collect(self, number: int, size: int, given: tuple[Rollout, ...], snapshot: Snapshot) -> tuple[Rollout, int]:
        rng = random.Random(number)
        for _ in range(2):
            for rollout in given:
                expect(rollout.payload["values"], rollout.info["fill"])
            expect(snapshot.payload["weights"], snapshot.version)
            time.sleep(rng.random() * 0.002)  # so that others come in between
        if given and rng.random() < 0.3:
            self._keep(number, given[0].info["fill"], given[0].payload["values"][3:])
        if rng.random() < 0.1:
            self._keep(-number, snapshot.version, snapshot.payload["weights"][5:])
        self.look()
        if rng.random() < 0.1:
            raise ValueError("injected")
        made = Rollout({"values": np.full(size, number), "small": np.zeros(3)}, info={"fill": number})
        return made, number

    def apply(self, snapshot: Snapshot) -> int:
        """Holds the newest weights, as an engine does, and none before."""
        weights = snapshot.payload["weights"]
        expect(weights, snapshot.version)
        self._keep(10**9, snapshot.version, weights)
        return snapshot.version

    def look(self) -> int:
        with self._lock:
            for fill, view in self._kept.values():
                expect(view, fill)
            return len(self._kept)

    def drop(self) -> None:
        with self._lock:
            self._kept.clear()

    def live_blocks(self) -> int:
        """How many blocks of this process are in use, as its arena sees it."""
        gc.collect()
        (arena,) = [thing for thing in gc.get_objects() if isinstance(thing, Arena)]
        assert isinstance(arena, GuardedArena)
        return len(arena._live)

    def snapshot(self, version: int, size: int) -> Snapshot:
        return Snapshot(version, {"weights": np.full(size, version), "bias": np.zeros(2)})

    def _keep(self, name: int, fill: int, view: np.ndarray) -> None:
        with self._lock:
            self._kept[name] = fill, view
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)


def expect(values: np.ndarray, fill: int) -> None:
    assert values.min() == values.max() == fill, f"{fill} was overwritten with {values.min()}..{values.max()}"


async def drive(runtime: Processes, role: str, numbers: list[int], pool: list[Rollout], weights: list[Snapshot]) -> int:
    """One lane's worth of calls: rollouts come from the pool and go there, and are released at odd moments."""
    rng, failures = random.Random(numbers[0]), 0
    for number in numbers:
        rng.shuffle(pool)
        given = tuple(pool.pop() for _ in range(min(len(pool), rng.randrange(3))))
        call = asyncio.ensure_future(
            runtime.call(
                role, "collect", number, rng.choice([50, 4000, 60_000]), given, weights[-1], deadline_s=DEADLINE_S
            )
        )
        await asyncio.sleep(0)
        for rollout in given:  # while this call looks at it, another may, or it is released
            if rng.random() < 0.5:
                pool.append(rollout)
            else:
                runtime.release(rollout.payload)
        (answer,) = await asyncio.gather(call, return_exceptions=True)
        if isinstance(answer, RoleError):
            assert answer.what == "ValueError: injected", answer
            failures += 1
        else:
            made, same = answer
            assert same == number
            pool.append(made)
    return failures


async def publish(runtime: Processes, weights: list[Snapshot], until: asyncio.Event) -> None:
    """New weights while the lanes work; the old ones are released at once."""
    while not until.is_set():
        made = await runtime.call("a", "snapshot", weights[-1].version + 1, 50_000, deadline_s=DEADLINE_S)
        before = weights[-1]
        weights.append(made)
        for role in "ab":
            assert await runtime.call(role, "apply", made, deadline_s=DEADLINE_S) == made.version
        runtime.release(before.payload)
        weights.remove(before)


def test_no_block_is_freed_too_early_and_all_come_back() -> None:
    async def main() -> None:
        try:
            await asyncio.gather(*(runtime.start(Role(name, Keeper, lanes=4)) for name in "ab"))
            weights = [await runtime.call("a", "snapshot", 1, 50_000, deadline_s=DEADLINE_S)]
            pool: list[Rollout] = []
            over = asyncio.Event()
            publishing = asyncio.ensure_future(publish(runtime, weights, over))
            lanes = [
                drive(runtime, "ab"[lane % 2], list(range(1 + 1000 * lane, 120 + 1000 * lane)), pool, weights)
                for lane in range(8)
            ]
            failures = await asyncio.gather(*lanes)
            over.set()
            await publishing
            assert sum(failures) > 30
            assert weights[-1].version > 10
            for rollout in [*pool, *weights]:
                runtime.release(rollout.payload)
            for _ in range(2):  # what was let go is told with a reply, what is free with a call
                for role in "ab":
                    await runtime.call(role, "drop", deadline_s=DEADLINE_S)
            assert not runtime._loans._blocks
            assert not any(member.borrowed for member in runtime._loans._members.values())
            assert [await runtime.call(role, "live_blocks", deadline_s=DEADLINE_S) for role in "ab"] == [0, 0]
        finally:
            await runtime.close()

    runtime = Processes()
    runtime.run(main())


def test_what_a_killed_process_borrowed_in_all_its_lanes_is_back() -> None:
    async def main() -> None:
        try:
            await asyncio.gather(*(runtime.start(Role(name, Keeper, lanes=4)) for name in "ab"))
            weights = await runtime.call("a", "snapshot", 1, 50_000, deadline_s=DEADLINE_S)
            for round_ in range(3):
                calls: list[asyncio.Future[Any]] = [
                    asyncio.ensure_future(
                        runtime.call("b", "collect", 7 + 100 * round_ + n, 9000, (), weights, deadline_s=DEADLINE_S)
                    )
                    for n in range(12)
                ]
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                os.kill(runtime.pid("b"), signal.SIGKILL)
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert any(isinstance(answer, RoleDied) for answer in answers)
                for answer in answers:
                    if isinstance(answer, tuple):
                        expect(runtime.fetch(answer[0].payload)["values"], answer[1])
                        runtime.release(answer[0].payload)
                await runtime.restart("b")
            assert await runtime.call("b", "apply", weights, deadline_s=DEADLINE_S) == 1
            runtime.release(weights.payload)
            assert len(runtime._loans._blocks) == 1, "the engine still looks at it"
            for _ in range(2):
                for role in "ab":
                    await runtime.call(role, "drop", deadline_s=DEADLINE_S)
            assert not runtime._loans._blocks
            assert [await runtime.call(role, "live_blocks", deadline_s=DEADLINE_S) for role in "ab"] == [0, 0]
        finally:
            await runtime.close()

    runtime = Processes()
    runtime.run(main())
