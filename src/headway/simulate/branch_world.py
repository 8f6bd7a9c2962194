"""The clock, the chance and the network of a run of branches, and threads and clocks that go by them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from headway.runtimes.virtual import VirtualLoop
from headway.simulate.branched_shape import Branched


class BusyThread:
    """Does one thing at a time, each of which takes time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._free_at = 0.0
        self._given_s = 0.0

    @property
    def busy_s(self) -> float:
        """How long it has worked; what it still has before it does not count."""
        return self._given_s - max(0.0, self._free_at - self._loop.time())

    def do(self, seconds: float, then: Callable[[], object]) -> None:
        """Work for so long when everything before is done, and then say so."""
        self._given_s += seconds
        self._free_at = max(self._free_at, self._loop.time()) + seconds
        if seconds:
            self._loop.call_at(self._free_at, then)
        else:
            then()


@dataclass(slots=True)
class WrongClock:
    """One that goes `rate` times as fast as time, and began somewhere."""

    loop: VirtualLoop
    rate: float
    offset_s: float

    def now(self) -> float:
        return self.offset_s + self.rate * self.loop.time()


class BranchWorld:
    """What happens later, what goes wrong, and what becomes of a message."""

    def __init__(self, shape: Branched) -> None:
        self.shape = shape
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it does no input or output
        self.rng = random.Random(f"branches {shape.seed}")

    @property
    def is_bad(self) -> bool:
        """May anything go wrong now?"""
        return self.loop.time() < self.shape.faults.until_s

    def clock(self, up_to_s: float) -> WrongClock:
        """One that goes too fast or too slow, as clocks may in this run, and began at some time up to this."""
        clocks = self.shape.faults.clocks
        rate = 1 + self.rng.uniform(-clocks, clocks)
        return WrongClock(self.loop, rate, self.rng.uniform(0, up_to_s) if up_to_s else 0.0)

    def later(self, seconds: float, then: Callable[[], object]) -> None:
        self.loop.call_later(seconds, then)

    def send(self, is_cut: Callable[[], bool], deliver: Callable[[], object]) -> None:
        """A message: it may be late, lost or doubled."""
        network, rng = self.shape.network, self.rng
        if is_cut() or rng.random() < network.lose:
            return
        for _ in range(2 if rng.random() < network.double else 1):
            self.later(network.delay.quantile(rng.random()), lambda: None if is_cut() else deliver())
