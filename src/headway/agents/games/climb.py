"""Numbers that grow: each must be larger than the one before, and smaller than a bound that leaves room for all."""

from __future__ import annotations

import random
from collections.abc import Iterator

from headway.agents.env import Step
from headway.agents.games.text_game import TextGame, first_number, require_at_least

RULES = "Reply with only a number that is larger than {last} and smaller than {bound}."
NO_NUMBER = "I read no number."
WRONG = "That was wrong."
DONE = "All right."


class Climb(TextGame):
    """A right number is worth 0.3, the last of `turns` right ones 1. Who answers `bound` - 1 too early is stuck."""

    def __init__(self, turns: int = 3, bound: int = 100, first: int = 80) -> None:
        require_at_least(1, first=first)
        super().__init__(turns)
        require_at_least(first + turns + 1, bound=bound)
        self.bound, self.first = bound, first
        self._last = self._num_right = 0

    def begin(self) -> str:
        self._last, self._num_right = self.rng.randint(1, self.first), 0
        return self._rules()

    def answer(self, reply: str) -> Step:
        number = first_number(reply)
        if number is None:
            return Step(f"{NO_NUMBER} {self._rules()}")
        if not self._last < number < self.bound:
            return Step(f"{WRONG} {self._rules()}")
        self._last = number
        self._num_right += 1
        if self._num_right == self.max_turns:
            return Step(DONE, reward=1.0, done=True, success=True)
        return Step(self._rules(), reward=0.3)

    def state_key(self) -> str:
        return str(self._last)

    def random_reply(self, rng: random.Random) -> str:
        return str(rng.randint(1, self.bound))

    def expert_reply(self) -> str:
        return str(self._last + 1)

    def texts(self) -> Iterator[str]:
        yield from (RULES.format(last=number, bound=self.bound) for number in range(self.bound + 1))
        yield from (NO_NUMBER, WRONG, DONE)

    def _rules(self) -> str:
        return RULES.format(last=self._last, bound=self.bound)
