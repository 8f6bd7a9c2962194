"""Games in which two players put stones on a board until one has a run: the rules of one board and of many.

    start ──> [ a stone of the one to move ──> a run? ──yes──> won by who moved ]
                        ^                       │ no
                        └───── the other ───────┴──> board full: drawn

A board is two numbers of 64 bits, the stones of the first and of the second player. Columns stand side by side, each
with one bit more than it has rows, counted from below:

      5 12 19        bit = column * (rows + 1) + row, so a run up is a step of 1, across of rows + 1, and along the
      4 11 18 ..     diagonals of rows and rows + 2. The spare bit on top of each column is never set: no run
      :  :  :        goes around an edge.
      0  7 14

Actions: with `drops` a column, the stone falls on what lies there; otherwise a cell, row by row from the top.
The reward is the mover's: 1 for a win, otherwise 0. Nothing here is random.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.envs.compiled_games_game_kernels import Array, kernel


class Game(NamedTuple):
    """What a board game of this kind is."""

    name: str
    rows: int
    columns: int
    run: int
    drops: bool

    @property
    def num_cells(self) -> int:
        return self.rows * self.columns

    @property
    def num_actions(self) -> int:
        return self.columns if self.drops else self.num_cells

    @property
    def numbers(self) -> tuple[int, int, int, bool]:
        """What the kernels want to know."""
        return self.rows, self.columns, self.run, self.drops


TIC_TAC_TOE = Game("tic_tac_toe", rows=3, columns=3, run=3, drops=False)
CONNECT_FOUR = Game("connect_four", rows=6, columns=7, run=4, drops=True)
GAMES = {game.name: game for game in (TIC_TAC_TOE, CONNECT_FOUR)}

_ONE = np.uint64(1)


@kernel
def has_run(stones: np.uint64, rows: int, run: int) -> bool:
    """Whether one player's stones hold `run` in a line."""
    for step in (1, rows + 1, rows, rows + 2):
        line = stones
        for k in range(1, run):
            line &= stones >> np.uint64(k * step)
        if line:
            return True
    return False


@kernel
def cell_of(both: np.uint64, action: int, rows: int, columns: int, drops: bool) -> np.uint64:
    """The bit that an action sets, given all stones; 0 if the action is illegal."""
    if drops:
        first = np.uint64(action * (rows + 1))
        column = (both >> first) & ((_ONE << np.uint64(rows)) - _ONE)
        if column >> np.uint64(rows - 1):
            return np.uint64(0)
        return (column + _ONE) << first  # the stones of a column lie without gaps
    row, column_number = rows - 1 - action // columns, action % columns
    bit = _ONE << np.uint64(column_number * (rows + 1) + row)
    return np.uint64(0) if both & bit else bit


@kernel
def is_full(both: np.uint64, rows: int, columns: int) -> bool:
    column, num_full = (_ONE << np.uint64(rows)) - _ONE, 0
    for c in range(columns):
        num_full += (both >> np.uint64(c * (rows + 1))) & column == column
    return num_full == columns


# -- many boards: stones [B, 2] uint64 --------------------------------------------------------------


@kernel
def first_illegal(stones: Array, ended: Array, actions: Array, rows: int, columns: int, run: int, drops: bool) -> int:
    """The first board where the action is illegal; -1 if there is none. Ended games make no move."""
    num_actions = columns if drops else rows * columns
    for index in range(len(actions)):
        if ended[index]:
            continue
        action = actions[index]
        both = stones[index, 0] | stones[index, 1]
        if action < 0 or action >= num_actions or cell_of(both, action, rows, columns, drops) == 0:
            return index
    return -1


@kernel
def step_all(
    stones: Array,
    to_play: Array,
    length: Array,
    ended: Array,
    actions: Array,
    rows: int,
    columns: int,
    run: int,
    drops: bool,
    restarts: bool,
    rewards: Array,
) -> None:
    """Make every move; the reward of who moved. A game that has ended starts again instead, or stays."""
    for index in range(len(actions)):
        rewards[index] = 0
        if ended[index]:
            if restarts:
                stones[index, 0] = stones[index, 1] = 0
                to_play[index], length[index], ended[index] = 0, 0, False
            continue
        mover = to_play[index]
        both = stones[index, 0] | stones[index, 1]
        stones[index, mover] |= cell_of(both, actions[index], rows, columns, drops)
        length[index] += 1
        to_play[index] = 1 - mover
        if has_run(stones[index, mover], rows, run):
            rewards[index] = 1
            ended[index] = True
        else:
            ended[index] = length[index] == rows * columns


@kernel
def masks_all(stones: Array, ended: Array, rows: int, columns: int, run: int, drops: bool, out: Array) -> None:
    """Legal actions [B, A] bool; none where the game has ended."""
    for index in range(len(out)):
        both = stones[index, 0] | stones[index, 1]
        for action in range(out.shape[1]):
            out[index, action] = not ended[index] and cell_of(both, action, rows, columns, drops) != 0


@kernel
def planes_all(stones: Array, to_play: Array, out: Array) -> None:
    """[B, 2, rows, columns]: my stones and theirs, the top row first; "I" am who is to move."""
    rows, columns = out.shape[2], out.shape[3]
    for index in range(len(out)):
        for side in range(2):
            seen = stones[index, to_play[index] ^ side]
            for row in range(rows):
                for column in range(columns):
                    bit = np.uint64(column * (rows + 1) + rows - 1 - row)
                    out[index, side, row, column] = (seen >> bit) & _ONE


@kernel
def ended_all(stones: Array, rows: int, columns: int, run: int, drops: bool, out: Array) -> None:
    for index in range(len(out)):
        mine, theirs = stones[index, 0], stones[index, 1]
        out[index] = has_run(mine, rows, run) or has_run(theirs, rows, run) or is_full(mine | theirs, rows, columns)
