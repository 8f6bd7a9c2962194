"""Games for runs of agents: short texts, rewards that depend on every reply, and faults that come once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

from headway.agents.env import Step


class Counting:
    """Says how many turns are left; a reply is worth the share of different letters in it.

    `fault` (raise, hang, kill, differ) strikes once in each of the first `times` environments that come to turn `at`
    of the game with a seed that is a multiple of `only`; files in `folder` remember it, whatever process it was.
    """

    def __init__(
        self,
        turns: int = 3,
        *,
        fault: str = "",
        at: int = 2,
        times: int = 1,
        only: int = 1,
        folder: str = "",
        uneven_s: float = 0.0,
    ) -> None:
        self.max_turns = turns
        self._fault, self._at, self._times, self._only = fault, at, times, only
        self._folder = Path(folder)
        self._uneven_s = uneven_s
        self._seed = self._turn = 0

    def reset(self, seed: int) -> str:
        self._seed, self._turn = seed, 0
        return f"{random.Random(seed).randrange(100)}: {self.max_turns} left"

    def step(self, reply: str) -> Step:
        self._turn += 1
        if self._fault and self._turn == self._at and self._seed % self._only == 0:
            self._strike()
        if self._uneven_s:
            time.sleep(self._uneven_s * random.Random(reply).random())
        left = self.max_turns - self._turn
        reward = len(set(reply)) / (1 + len(reply))
        return Step(f"{left} left{self._mood}", reward, done=not left, info={"letters": float(len(reply))})

    def state_key(self) -> str:
        return str(self._turn)

    @property
    def _mood(self) -> str:
        """Of a game that is not the same again: it says how often it was hit before."""
        return "" if self._fault != "differ" else f" {len(list(self._folder.glob('hit*')))}"

    def _strike(self) -> None:
        for number in range(self._times):
            try:
                (self._folder / f"hit{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if self._fault == "hang":
                threading.Event().wait()
            if self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the server is gone")


class Wordless(Counting):
    """Says nothing to the first reply."""

    def step(self, reply: str) -> Step:
        return Step("")


class Priceless(Counting):
    """Gives a reward that is no number."""

    def step(self, reply: str) -> Step:
        return Step("thank you", reward=float("nan"))


class Moody(Counting):
    """Begins another game with the same seed."""

    begun = 0

    def reset(self, seed: int) -> str:
        type(self).begun += 1
        return f"game {self.begun}"
