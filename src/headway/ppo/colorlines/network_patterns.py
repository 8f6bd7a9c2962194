"""What a cell sees along its four lines: the input of a network that treats all colours and directions alike.

    . . c o [x] . c c #      seen by colour c from x, along one line: 8 cells, each empty, c, or in the way

A line of eight cells has 3^8 patterns; read from either end it is the same one, which leaves 3321. Runs lie within
four steps of a cell, so what a ball of colour c completes, begins or blocks on x is in the four patterns of (c, x).
A *spot* is a pair (colour, cell) with its patterns: every colour on an empty cell, and a ball's own colour on its cell.
Its fifth pattern says which of the two it is, and how many balls of the colour come next.
A *crossing* is a move whose target sees its origin: there the target's pattern is that of the board without the ball.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.envs.compiled_games_game_kernels import Array, kernel
from headway.ppo.colorlines.rules import CELLS, COLOURS, COMING, OFFSET, ROOM, label_all, masks_all

SIGHT = 4  # steps, each way
_POWERS = 3 ** np.arange(2 * SIGHT)  # [8]


def _canonical() -> np.ndarray:
    """[6561] the number of a pattern, the same for its mirror image."""
    digits = np.arange(3 ** (2 * SIGHT))[:, None] // _POWERS % 3
    return np.unique(np.minimum(digits @ _POWERS, digits[:, ::-1] @ _POWERS), return_inverse=True)[1]


CANONICAL = _canonical()
FIRST_KIND = int(CANONICAL.max()) + 1
NUM_PATTERNS = FIRST_KIND + 2 * (COMING + 1)


def _features() -> np.ndarray:
    """[NUM_PATTERNS, 23] what patterns have in common, so that a rare one is understood before it is seen often."""
    digits = np.arange(3 ** (2 * SIGHT))[:, None] // _POWERS % 3  # [6561, 8] 0 empty, 1 own, 2 in the way
    behind, ahead = digits[:, SIGHT - 1 :: -1], digits[:, SIGHT:]  # from the cell outwards
    run = 1 + sum(np.cumprod(side == 1, axis=1).sum(1) for side in (behind, ahead))
    whole = np.insert(digits, SIGHT, 0, axis=1)  # [6561, 9] the cell itself counts for nothing
    fives = np.lib.stride_tricks.sliding_window_view(whole, 5, axis=1)  # [6561, 5, 5]
    is_free = (fives != 2).all(2)
    fullest = np.where(is_free, (fives == 1).sum(2), -1).max(1)  # own balls in the best five that can be completed
    beside = np.stack([behind[:, 0], ahead[:, 0]], 1)
    columns = [
        *((run >= length) for length in (2, 3, 4, 5)),
        *((fullest >= num) for num in (0, 1, 2, 3, 4)),
        is_free.mean(1),
        (digits == 1).mean(1),
        (digits == 2).mean(1),
        (beside == 0).mean(1),
        (beside == 2).mean(1),
        np.ones(len(digits)),
    ]
    first_of = np.unique(CANONICAL, return_index=True)[1]
    lines = np.stack(columns, 1)[first_of]
    kinds = np.eye(NUM_PATTERNS - FIRST_KIND)
    out = np.zeros((NUM_PATTERNS, lines.shape[1] + kinds.shape[1]), np.float32)
    out[:FIRST_KIND, : lines.shape[1]] = lines
    out[FIRST_KIND:, lines.shape[1] :] = kinds
    return out


FEATURES = _features()


class Spots(NamedTuple):
    """The spots and crossings of N positions, in flat lists, and the legal moves."""

    patterns: np.ndarray  # [S, 5] int64
    row: np.ndarray  # [S] position
    cell: np.ndarray  # [S]
    colour: np.ndarray  # [S] 1..7
    is_ball: np.ndarray  # [S] bool
    crossing_patterns: np.ndarray  # [C, 5]
    crossing_row: np.ndarray  # [C]
    crossing_move: np.ndarray  # [C] from * 81 + to
    legal: np.ndarray  # [N, 81, 81] bool


def spots_of(compact: np.ndarray) -> Spots:
    """compact [N, 84] -> its spots; row by row, cell by cell."""
    board, coming = (
        np.ascontiguousarray(compact[:, :CELLS], np.uint8),
        np.ascontiguousarray(compact[:, CELLS:], np.uint8),
    )
    num = len(board)
    labels = np.empty((num, CELLS + 1), np.uint8)
    legal = np.empty((num, CELLS, CELLS), np.bool_)
    label_all(board, labels)
    masks_all(board, labels, legal)
    num_balls = int(np.count_nonzero(board))
    num_spots = COLOURS * (board.size - num_balls) + num_balls
    patterns, where = np.empty((num_spots, 5), np.int64), np.empty((4, num_spots), np.int64)
    crossings, ways = np.empty((num_balls * 8 * SIGHT, 5), np.int64), np.empty((2, num_balls * 8 * SIGHT), np.int64)
    num_crossings = _spots_all(board, coming, legal, patterns, where, crossings, ways)
    row, cell, colour, is_ball = where
    crossings, ways = crossings[:num_crossings], ways[:, :num_crossings]
    return Spots(patterns, row, cell, colour, is_ball.astype(np.bool_), crossings, ways[0], ways[1], legal)


@kernel
def _see(cells: Array, raw: Array) -> None:
    """raw [81, 4, 8]: the pattern seen from each cell along each line by each colour; 0 is not used."""
    weight = np.empty(COLOURS + 2, np.int64)  # of each colour on the line; 8 is the edge
    for cell in range(CELLS):
        for direction in range(4):
            weight[:] = 0
            for step in range(1, SIGHT + 1):
                ahead = cells[cell + step * OFFSET[direction]] if step <= ROOM[direction, cell] else COLOURS + 1
                behind = cells[cell - step * OFFSET[direction]] if step <= ROOM[direction + 4, cell] else COLOURS + 1
                weight[ahead] += _POWERS[SIGHT - 1 + step]
                weight[behind] += _POWERS[SIGHT - step]
            taken = 0
            for colour in range(1, COLOURS + 2):
                taken += 2 * weight[colour]
            for colour in range(1, COLOURS + 1):
                raw[cell, direction, colour] = taken - weight[colour]


@kernel
def _spots_all(
    board: Array, coming: Array, legal: Array, patterns: Array, where: Array, crossings: Array, ways: Array
) -> int:
    num_coming = np.empty(COLOURS + 1, np.int64)
    raw = np.empty((CELLS, 4, COLOURS + 1), np.int64)
    at = crossing = 0
    for row in range(len(board)):
        cells = board[row]
        _see(cells, raw)
        num_coming[:] = 0
        for k in range(COMING):
            num_coming[coming[row, k]] += 1
        for cell in range(CELLS):
            own = cells[cell]
            for colour in range(1, COLOURS + 1):
                if own != 0 and own != colour:
                    continue
                for direction in range(4):
                    patterns[at, direction] = CANONICAL[raw[cell, direction, colour]]
                patterns[at, 4] = FIRST_KIND + (own != 0) * (COMING + 1) + num_coming[colour]
                where[0, at], where[1, at], where[2, at], where[3, at] = row, cell, colour, own != 0
                at += 1
            if own == 0:
                continue
            for towards in range(8):
                for step in range(1, min(SIGHT, ROOM[towards, cell]) + 1):
                    target = cell + step * OFFSET[towards]
                    if not legal[row, cell, target]:
                        continue
                    for direction in range(4):
                        seen = raw[target, direction, own]
                        if direction == towards % 4:  # the origin lies behind the target if that lies ahead of it
                            seen -= _POWERS[SIGHT - step] if towards < 4 else _POWERS[SIGHT - 1 + step]
                        crossings[crossing, direction] = CANONICAL[seen]
                    crossings[crossing, 4] = FIRST_KIND + num_coming[own]
                    ways[0, crossing], ways[1, crossing] = row, cell * CELLS + target
                    crossing += 1
    return crossing
