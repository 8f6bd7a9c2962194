"""A number is to be guessed; each guess is answered with higher or lower. Halving what is left always wins in time."""

from __future__ import annotations

import random
from collections.abc import Iterator

from headway.agents.env import Step
from headway.agents.games.text_game import TextGame, first_number, require_at_least

RULES = "I think of a number from {low} to {high}. You have {turns} guesses. Reply with only a number."
NO_NUMBER = "I read no number. Reply with only a number from {low} to {high}."
OUTSIDE = "That number is not from {low} to {high}."
HIGHER = "My number is higher than {guess}."
LOWER = "My number is lower than {guess}."
RIGHT = "Right, my number is {guess}."


class Guess(TextGame):
    """The number is one of `low` to `high`; the right guess is worth 1."""

    reply_prefix = "My guess is"

    def __init__(self, low: int = 1, high: int = 20, turns: int = 5) -> None:
        require_at_least(0, low=low)
        require_at_least(low + 1, high=high)
        super().__init__(turns)
        self.low, self.high = low, high
        self._number = low
        self._known = (low, high)  # the number is not outside of these

    def begin(self) -> str:
        self._number = self.rng.randint(self.low, self.high)
        self._known = (self.low, self.high)
        return self._said(RULES)

    def answer(self, reply: str) -> Step:
        guess = first_number(reply)
        if guess is None:
            return Step(self._said(NO_NUMBER))
        if not self.low <= guess <= self.high:
            return Step(self._said(OUTSIDE))
        if guess == self._number:
            return Step(RIGHT.format(guess=guess), reward=1.0, done=True, success=True)
        lowest, highest = self._known
        if guess < self._number:
            self._known = (max(lowest, guess + 1), highest)
            return Step(HIGHER.format(guess=guess))
        self._known = (lowest, min(highest, guess - 1))
        return Step(LOWER.format(guess=guess))

    def state_key(self) -> str:
        return "{} to {}".format(*self._known)

    def random_reply(self, rng: random.Random) -> str:
        return str(rng.randint(self.low, self.high))

    def expert_reply(self) -> str:
        return str(sum(self._known) // 2)

    def texts(self) -> Iterator[str]:
        yield from (self._said(text) for text in (RULES, NO_NUMBER, OUTSIDE))
        for guess in range(self.low, self.high + 1):
            yield from (text.format(guess=guess) for text in (HIGHER, LOWER, RIGHT))

    def _said(self, text: str) -> str:
        return text.format(low=self.low, high=self.high, turns=self.max_turns)
