"""Environments for agents that behave and misbehave as tests need it."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

from headway.agents.env import Step

LET_GO = threading.Event()
"""Ends what hangs in a thread of this process, which nothing can kill."""


class Dice:
    """Says numbers drawn from its seed. Does what a reply asks for: hang, crash, raise, leave, nan, say nothing."""

    max_turns = 4

    def __init__(self, close_note: str = "") -> None:
        self._close_note = close_note
        self._rng = random.Random()
        self._turn = 0

    def reset(self, seed: int) -> str:
        if seed == 666:
            LET_GO.wait(600)
        self._rng = random.Random(seed)
        self._turn = 0
        return f"The die shows {self._rng.randrange(1000)}."

    def step(self, reply: str) -> Step:
        self._turn += 1
        if reply.startswith("wait for "):
            while not Path(reply.removeprefix("wait for ")).exists() and not LET_GO.wait(0.005):
                pass
        if reply == "hang":
            LET_GO.wait(600)
        if reply == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if reply == "raise":
            raise KeyError("a key that is not there")
        if reply == "leave":
            raise SystemExit(3)
        if reply == "nan":
            return Step("x", float("nan"))
        if reply == "say nothing":
            return Step("")
        done = self._turn == self.max_turns
        return Step(f"{reply}: {self._rng.randrange(1000)}", self._turn / 4, done, info={"turn": self._turn})

    def state_key(self) -> str:
        return f"turn {self._turn}"

    def close(self) -> None:
        if self._close_note == "hang":
            LET_GO.wait(600)
        elif self._close_note:
            with open(self._close_note, "a") as file:
                file.write("closed\n")


class Tooled(Dice):
    system_prompt, reply_prefix, tools = "Play.", "I say", [{"name": "roll"}]


class GlobalDice:
    """Seeds the random generator that everybody in the process shares, as some libraries do."""

    max_turns = 4
    seeds_globally = True

    def reset(self, seed: int) -> str:
        random.seed(seed)
        return f"The die shows {random.randrange(1000)}."

    def step(self, reply: str) -> Step:
        return Step(f"The die shows {random.randrange(1000)}.", 0.5)


class Mute:
    """Has no text to begin with."""

    max_turns = 1

    def reset(self, seed: int) -> str:
        return ""

    def step(self, reply: str) -> Step:
        return Step("")


class Unmade:
    """Cannot be made."""

    max_turns = 1

    def __init__(self) -> None:
        raise ValueError("no board\nof this size")


class Unreachable(Unmade):
    """Cannot be made just now."""

    def __init__(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


class SlowToMake(Dice):
    def __init__(self) -> None:
        LET_GO.wait(600)


class Interrupting(Dice):
    """Raises what is no Exception, and cannot even be told."""

    class Riddle(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def step(self, reply: str) -> Step:
        raise KeyboardInterrupt if reply == "interrupt" else self.Riddle


class NotThere:
    """A factory that another process cannot unpickle."""

    def __call__(self) -> Dice:
        return Dice()

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__, ("no_such_module_anywhere",)
