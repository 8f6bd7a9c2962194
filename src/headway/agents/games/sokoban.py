"""Boxes are to be pushed onto targets. A game is made by playing backwards from its end, so there is always a solution.

backwards:  D P E E  ->  T B P E  ->  T E B P    the player pulls the box away from its target: one turn, one step
forwards:   T E B P  ->  T B P E  ->  D P E E    pushing it back takes no more turns than that
"""

from __future__ import annotations

import itertools
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

RULES = (
    "Push every box onto a target. P is you, B is a box, T is a target, W is a wall, "
    "D is a box on a target, Q is you on a target."
)
WENT = "You went {move}."
PUSHED = "You pushed a box {move}."
BLOCKED = "You cannot go {move}."
SOLVED = "Every box is on a target."
ON_TARGET = 0.1
"""What a box that comes onto a target is worth; it is taken back when the box leaves."""
EASIER_AFTER = 200
"""So many games are drawn in search of one whose boxes are all far from all targets; then any unsolved one will do."""

State = tuple[Cell, frozenset[Cell]]
"""Where the player is, and where the boxes are."""


class Sokoban(TextGame):
    """The last box on its target is worth 1, each box on a target 0.1 more. Around the grid are walls."""

    def __init__(self, size: int = 4, boxes: int = 1, walls: int = 2, turns: int = 16) -> None:
        require_at_least(3, size=size)
        require_at_least(1, boxes=boxes)
        require_at_least(0, walls=walls)
        require_at_least(2 * size, turns=turns)
        super().__init__(turns)
        if (filled := 2 * boxes + walls + 1) > size * size // 2:
            raise ValueError(f"{boxes} boxes and {walls} walls need {filled} cells: too many for a grid of size {size}")
        self.size, self.num_boxes, self.num_walls = size, boxes, walls
        self._walls: frozenset[Cell] = frozenset()
        self._targets: frozenset[Cell] = frozenset()
        self._state: State = ((0, 0), frozenset())

    def begin(self) -> str:
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        for attempt in itertools.count():
            player, *rest = self.rng.sample(cells, 1 + self.num_boxes + self.num_walls)
            self._targets, self._walls = frozenset(rest[: self.num_boxes]), frozenset(rest[self.num_boxes :])
            self._state = player, self._targets
            for _ in range(self.max_turns):
                self._state = self._back()
            if self._is_far() or (attempt >= EASIER_AFTER and self._state[1] != self._targets):
                break
        return f"{RULES}\n{self._view()}"

    def answer(self, reply: str) -> Step:
        move = first_of(reply, MOVES)
        if move is None:
            return Step(f"{NOT_UNDERSTOOD}\n{self._view()}")
        before = self._state[1]
        there = self._pushed(self._state, move)
        if there is None:
            return Step(f"{BLOCKED.format(move=move)}\n{self._view()}")
        self._state = there
        boxes = there[1]
        reward = ON_TARGET * (len(boxes & self._targets) - len(before & self._targets))
        if boxes == self._targets:
            return Step(SOLVED, reward=1.0 + reward, done=True, success=True)
        said = (WENT if boxes == before else PUSHED).format(move=move)
        return Step(f"{said}\n{self._view()}", reward=reward)

    def state_key(self) -> str:
        return drawn(self.size, self._letter)

    def random_reply(self, rng: random.Random) -> str:
        return rng.choice(list(MOVES))

    def expert_reply(self) -> str:
        """Returns the first move of a shortest solution; any move where boxes are stuck for good."""
        way = shortest_way(self._state, self._after, lambda state: state[1] == self._targets)
        return way[0] if way else next(iter(MOVES))

    def texts(self) -> Iterator[str]:
        yield from (RULES, ASK, NOT_UNDERSTOOD, SOLVED, "E")
        for move in MOVES:
            yield from (text.format(move=move) for text in (WENT, PUSHED, BLOCKED))

    def _is_far(self) -> bool:
        """Says whether every box is two cells or more away from every target."""
        pairs = itertools.product(self._state[1], self._targets)
        return all(abs(box[0] - target[0]) + abs(box[1] - target[1]) >= 2 for box, target in pairs)

    def _back(self) -> State:
        """Returns the state that some forward move has led from: a step away, with the box behind, if there is one."""
        player, boxes = self._state
        free = [move for move in MOVES if self._is_free(moved(player, move), boxes)]
        if not free:
            return self._state
        pulls = [move for move in free if moved(player, move, -1) in boxes]
        move = self.rng.choice(pulls if pulls and self.rng.random() < 0.5 else free)
        if moved(player, move, -1) in boxes and self.rng.random() < 0.8:
            boxes = boxes - {moved(player, move, -1)} | {player}
        return moved(player, move), boxes

    def _after(self, state: State) -> Iterator[tuple[str, State]]:
        for move in MOVES:
            there = self._pushed(state, move)
            if there is not None:
                yield move, there

    def _pushed(self, state: State, move: str) -> State | None:
        """Returns the state after a move; None where the way is blocked."""
        player, boxes = state
        there, beyond = moved(player, move), moved(player, move, 2)
        if there in boxes:
            return (there, boxes - {there} | {beyond}) if self._is_free(beyond, boxes) else None
        return (there, boxes) if self._is_free(there, boxes) else None

    def _is_free(self, cell: Cell, boxes: frozenset[Cell]) -> bool:
        return is_inside(cell, self.size) and cell not in self._walls and cell not in boxes

    def _view(self) -> str:
        return f"{drawn(self.size, self._letter)}\n{ASK}"

    def _letter(self, cell: Cell) -> str:
        player, boxes = self._state
        is_target = cell in self._targets
        if cell == player:
            return "Q" if is_target else "P"
        if cell in boxes:
            return "D" if is_target else "B"
        return "T" if is_target else "W" if cell in self._walls else "E"
