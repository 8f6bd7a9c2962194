"""A corridor with a door: left makes the place smaller, right makes it larger."""

from __future__ import annotations

import random
from collections.abc import Iterator

from headway.agents.env import Step
from headway.agents.games.text_game import TextGame, first_of, require_at_least

MOVES = {"left": -1, "right": 1}
RULES = "You stand at {place}. The door is at {door}. Reply with only left or right."
NOT_UNDERSTOOD = "I read neither left nor right."
WALL = "There is a wall."
ARRIVED = "You are at the door."


class Corridor(TextGame):
    """The door, 3 to `turns` steps away, is worth 1. Places are 0 to `length` - 1."""

    reply_prefix = "I go"

    def __init__(self, length: int = 10, turns: int = 5) -> None:
        require_at_least(3, turns=turns)
        require_at_least(turns + 1, length=length)
        super().__init__(turns)
        self.length = length
        self._place = self._door = 0

    def begin(self) -> str:
        distance = self.rng.randint(3, self.max_turns)
        left_end = self.rng.randint(0, self.length - 1 - distance)
        self._place, self._door = self.rng.sample((left_end, left_end + distance), 2)
        return self._rules()

    def answer(self, reply: str) -> Step:
        move = first_of(reply, MOVES)
        if move is None:
            return Step(f"{NOT_UNDERSTOOD} {self._rules()}")
        place = self._place + MOVES[move]
        if not 0 <= place < self.length:
            return Step(f"{WALL} {self._rules()}")
        self._place = place
        if place == self._door:
            return Step(ARRIVED, reward=1.0, done=True, success=True)
        return Step(self._rules())

    def state_key(self) -> str:
        return f"{self._place} to {self._door}"

    def random_reply(self, rng: random.Random) -> str:
        return rng.choice(list(MOVES))

    def expert_reply(self) -> str:
        return "right" if self._door > self._place else "left"

    def texts(self) -> Iterator[str]:
        yield from (RULES.format(place=place, door=place) for place in range(self.length))
        yield from (NOT_UNDERSTOOD, WALL, ARRIVED)

    def _rules(self) -> str:
        return RULES.format(place=self._place, door=self._door)
