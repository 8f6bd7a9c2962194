"""Environments for agents that break one rule each, to see them caught."""

from __future__ import annotations

import math
import os
import random
import threading
import time

from headway.agents import Step


class Coin:
    """Keeps every rule."""

    max_turns = 2

    def __init__(self) -> None:
        self._rng = random.Random()
        self._turns = 0

    def reset(self, seed: int) -> str:
        self._rng = random.Random(seed)
        self._turns = self.max_turns
        return f"Heads or tails? {self._rng.randrange(10**9)}"

    def step(self, reply: str) -> Step:
        if not self._turns:
            raise RuntimeError("the game is over")
        self._turns -= 1
        return Step(f"It was {self._rng.randrange(10**9)}", reward=self._rng.random(), done=not self._turns)


class GloballySeeded(Coin):
    """Draws from the generator that all threads share."""

    def reset(self, seed: int) -> str:
        random.seed(seed)
        time.sleep(0)  # as any work would, it lets another thread go on here
        self._turns = self.max_turns
        return f"Heads or tails? {random.random()}"

    def step(self, reply: str) -> Step:
        super().step(reply)
        return Step(f"It was {random.random()}", done=not self._turns)


class SaysSo(GloballySeeded):
    seeds_globally = True


class Unseeded(Coin):
    def reset(self, seed: int) -> str:
        return super().reset(random.SystemRandom().randrange(10**9))


class OfItsProcess(Coin):
    """Says something else in every process."""

    def reset(self, seed: int) -> str:
        return f"{super().reset(seed)} {os.getpid()}"


class OfItsThread(Coin):
    """Says something else in threads that play at once."""

    def reset(self, seed: int) -> str:
        return f"{super().reset(seed)} {threading.current_thread().name.startswith('game')}"


class Remembering(Coin):
    """Goes on with the generator of the game before."""

    def __init__(self) -> None:
        super().__init__()
        self._games = 0

    def reset(self, seed: int) -> str:
        self._games += 1
        return super().reset(seed + 1000 * self._games)


class GoesOn(Coin):
    def step(self, reply: str) -> Step:
        self._turns = max(self._turns, 1)
        return super().step(reply)


class Unending(Coin):
    def step(self, reply: str) -> Step:
        return Step("and so on")


class Silent(Coin):
    def step(self, reply: str) -> Step:
        return Step("", done=False)


class NotANumber(Coin):
    def step(self, reply: str) -> Step:
        return Step("hm", reward=math.nan)


class Fragile(Coin):
    """Expects a number of a policy."""

    def random_reply(self, rng: random.Random) -> str:
        return "7"

    def step(self, reply: str) -> Step:
        int(reply)
        return super().step(reply)


class Dying(Coin):
    """Ends any process but the first."""

    def __init__(self) -> None:
        super().__init__()
        if "HEADWAY_TEST_PID" in os.environ and os.environ["HEADWAY_TEST_PID"] != str(os.getpid()):
            os._exit(3)


class Hanging(Coin):
    def reset(self, seed: int) -> str:
        threading.Event().wait()
        return ""
