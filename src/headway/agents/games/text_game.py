"""What our own games share: turns are counted, the end is the end, a reply that is not understood costs a turn.

    begun by reset ──step──> goes on ──step──> over: won, lost, or out of turns
                               └──step──┘

A game says what it must know of itself in four methods: `begin`, `answer`, `state_key` and `texts`.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

from headway.agents.env import BadEnvironment, Step
from headway.core.types_opaque import SettingValue

WORD = re.compile(r"\w+|[^\w\s]")
"""A word of a word-level tokenizer: letters and digits that stand together, or one other character."""
NUMBER = re.compile(r"-?\d{1,9}(?!\d)")
OUT_OF_TURNS = "There are no turns left."


def words_of(text: str) -> list[str]:
    """Splits a text into the words of a word-level tokenizer; spaces and line ends only separate them."""
    return WORD.findall(text)


def first_of(reply: str, allowed: Iterable[str]) -> str | None:
    """Returns the first word of the reply that is allowed, whatever its case; None where there is none."""
    known = set(allowed)
    return next((word for word in words_of(reply.lower()) if word in known), None)


def first_number(reply: str) -> int | None:
    """Returns the first whole number in the reply, None where there is none (or only one of ten digits and more)."""
    found = NUMBER.search(reply)
    return None if found is None else int(found[0])


def require_at_least(least: int, **options: int) -> None:
    """Refuses options that are no whole numbers or too small, by name."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number >= {least}, received {value!r}")


class TextGame(ABC):
    """Counts the turns of a game, and refuses to go on after its end."""

    def __init__(self, max_turns: int) -> None:
        require_at_least(1, turns=max_turns)
        self.max_turns = max_turns
        self.turn = 0
        self._rng: random.Random | None = None
        self._is_over = True

    @property
    def rng(self) -> random.Random:
        """Returns the generator that only this episode draws from."""
        assert self._rng is not None
        return self._rng

    @property
    def turns_left(self) -> int:
        return self.max_turns - self.turn

    def reset(self, seed: int) -> str:
        """Begins the game of this seed."""
        self._rng = random.Random(seed)
        self.turn, self._is_over = 0, False
        return self.begin()

    def step(self, reply: str) -> Step:
        """Takes a reply. The last turn ends the game, whatever came of it."""
        if self._is_over:
            raise BadEnvironment(f"{type(self).__name__} is over, or was never begun: call reset before the next step")
        self.turn += 1
        step = self.answer(reply)
        if not step.done and not self.turns_left:
            step = replace(step, text=OUT_OF_TURNS, done=True, success=False)
        self._is_over = step.done
        return step

    @abstractmethod
    def begin(self) -> str:
        """Draws a game and returns what is said first."""

    @abstractmethod
    def answer(self, reply: str) -> Step:
        """Returns what comes of a reply; whether turns are left is not its business."""

    @abstractmethod
    def state_key(self) -> str:
        """Returns a text that is the same for equal states."""

    @abstractmethod
    def random_reply(self, rng: random.Random) -> str:
        """Returns a reply that is understood, drawn from this generator."""

    @abstractmethod
    def expert_reply(self) -> str:
        """Returns the best reply to what was said last."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Yields texts that hold, between them, every word that is ever said or replied."""

    @classmethod
    def vocabulary(cls, **options: SettingValue) -> list[str]:
        """Lists the words of all texts and replies of the game with these options, each once, in order."""
        game = cls(**options)
        prefix = str(getattr(game, "reply_prefix", ""))
        return sorted({word for text in (*game.texts(), prefix, OUT_OF_TURNS) for word in words_of(text)})
