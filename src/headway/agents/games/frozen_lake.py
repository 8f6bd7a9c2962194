"""A frozen lake with holes: walk over the ice to the goal. On slippery ice a step may go sideways."""

from __future__ import annotations

import random
from collections.abc import Iterator

from headway.agents.env import Step
from headway.agents.games.text_game import TextGame, first_of, require_at_least
from headway.agents.games.text_game_grid import (
    ASK,
    MOVES,
    NOT_UNDERSTOOD,
    Cell,
    drawn,
    is_inside,
    moved,
    shortest_way,
)

RULES = "Walk over the ice to the goal. P is you, I is ice, H is a hole, G is the goal."
WENT = "You went {move}."
EDGE = "You are at the edge."
FELL = "You fell into a hole."
ARRIVED = "You are at the goal."
SIDEWAYS = {"left": ("up", "down"), "right": ("up", "down"), "up": ("left", "right"), "down": ("left", "right")}


class FrozenLake(TextGame):
    """The goal is worth 1; a hole ends the game. There is always a way over ice, of `size` - 1 steps or more.

    `slippery` is the probability that a step goes to one of the sides instead.
    """

    def __init__(self, size: int = 4, holes: int = 4, slippery: float = 0.0, turns: int = 12) -> None:
        require_at_least(2, size=size)
        require_at_least(0, holes=holes)
        super().__init__(turns)
        require_at_least(size - 1, turns=turns)
        if holes > (most := size * size // 2 - 1):
            raise ValueError(f"holes must be at most {most} on a lake of size {size}, received {holes!r}")
        if not 0 <= slippery <= 1:
            raise ValueError(f"slippery must be a probability, received {slippery!r}")
        self.size, self.num_holes, self.slippery = size, holes, slippery
        self._place: Cell = (0, 0)
        self._goal: Cell = (0, 0)
        self._holes: frozenset[Cell] = frozenset()

    def begin(self) -> str:
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        while True:
            self._place, self._goal, *holes = self.rng.sample(cells, 2 + self.num_holes)
            self._holes = frozenset(holes)
            if self.size - 1 <= len(self._way()) <= self.max_turns:
                return f"{RULES}\n{self._view()}"

    def answer(self, reply: str) -> Step:
        move = first_of(reply, MOVES)
        if move is None:
            return Step(f"{NOT_UNDERSTOOD}\n{self._view()}")
        if self.slippery and self.rng.random() < self.slippery:
            move = self.rng.choice(SIDEWAYS[move])
        there = moved(self._place, move)
        if not is_inside(there, self.size):
            return Step(f"{EDGE}\n{self._view()}")
        self._place = there
        if there in self._holes:
            return Step(FELL, done=True, success=False)
        if there == self._goal:
            return Step(ARRIVED, reward=1.0, done=True, success=True)
        return Step(f"{WENT.format(move=move)}\n{self._view()}")

    def state_key(self) -> str:
        return drawn(self.size, self._letter)

    def random_reply(self, rng: random.Random) -> str:
        return rng.choice(list(MOVES))

    def expert_reply(self) -> str:
        """Returns the first move of a shortest way, as if the ice were not slippery."""
        return self._way()[0]

    def texts(self) -> Iterator[str]:
        yield from (RULES, ASK, NOT_UNDERSTOOD, EDGE, FELL, ARRIVED)
        yield from (WENT.format(move=move) for move in MOVES)

    def _view(self) -> str:
        return f"{drawn(self.size, self._letter)}\n{ASK}"

    def _letter(self, cell: Cell) -> str:
        if cell == self._place:
            return "P"
        return "G" if cell == self._goal else "H" if cell in self._holes else "I"

    def _way(self) -> list[str]:
        return shortest_way(self._place, self._after, lambda cell: cell == self._goal)

    def _after(self, cell: Cell) -> Iterator[tuple[str, Cell]]:
        for move in MOVES:
            there = moved(cell, move)
            if is_inside(there, self.size) and there not in self._holes:
                yield move, there
