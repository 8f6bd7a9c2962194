"""A rectangular grid for games in which somebody walks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Cell = tuple[int, int]
"""Row and column, from 0."""
MOVES: dict[str, Cell] = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
ASK = "Reply with only left, right, up or down."
NOT_UNDERSTOOD = "I read no move."
S = TypeVar("S", bound=Hashable)


def moved(cell: Cell, move: str, times: int = 1) -> Cell:
    """Returns the cell that lies so many steps in this direction; perhaps outside."""
    return cell[0] + times * MOVES[move][0], cell[1] + times * MOVES[move][1]


def is_inside(cell: Cell, size: int) -> bool:
    return 0 <= cell[0] < size and 0 <= cell[1] < size


def drawn(size: int, letter: Callable[[Cell], str]) -> str:
    """Writes a square grid, a row a line, its letters apart."""
    return "\n".join(" ".join(letter((row, column)) for column in range(size)) for row in range(size))


def shortest_way(start: S, after: Callable[[S], Iterable[tuple[str, S]]], is_goal: Callable[[S], bool]) -> list[str]:
    """Lists the moves of a shortest way to a goal; none where there is no way (or none is needed).

    `after` yields the moves from a state, each with the state it leads to.
    """
    came: dict[S, tuple[str, S] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if is_goal(state):
            return _traced(came, state)
        for move, there in after(state):
            if there not in came:
                came[there] = move, state
                waiting.append(there)
    return []


def _traced(came: dict[S, tuple[str, S] | None], state: S) -> list[str]:
    moves: list[str] = []
    step = came[state]
    while step is not None:
        moves.append(step[0])
        step = came[step[1]]
    return moves[::-1]
