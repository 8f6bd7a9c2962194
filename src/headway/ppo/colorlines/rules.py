"""Colour Lines (Lines 98): the rules of one board and of many.

    reset ──> 24 balls, no run ──> [ move ──> runs disappear? ──yes──────────────> next position ]
                                              │ no                                       ^
                                              └──> three balls appear ──> runs disappear ┘ (new colours announced)

Board: 9 x 9 cells counted row by row, 0 empty, 1..7 a colour. A move is `from * 81 + to`; it is legal if the
target's component of empty cells (4 neighbours) touches the ball. Every run of five or more equal colours, in any
of four directions, disappears: all runs at once, and the points count the *set* of balls that go, so a ball in two
crossing runs counts once: 10 for five, 4 for each further ball. The game ends when the board is full, or when a
move has emptied it (nothing is left to move; on any other board a ball touches an empty cell, so a move exists).

Invariants between two steps: no board holds a run of five or more, none is full, none is empty. So only runs
through the balls just placed need a look, and a mask never lacks a legal move. `labels` belong to the current boards.

Random draws belong to one environment each (splitmix64, seeded by (seed, index)). Their order is part of the rules:
start: 24 x (place, colour), again from the first ball if a run came out, then three colours to come;
after a move that clears nothing: a place for each ball that fits, in the announced order; then three new colours.
A place is the k-th empty cell in board order.
"""

from __future__ import annotations

import numpy as np

from headway.envs.compiled_games_game_kernels import Array, below, kernel

SIDE = 9
CELLS = SIDE * SIDE
MOVES = CELLS * CELLS
COLOURS = 7
COMING = 3
COMPACT = CELLS + COMING
PLANES = COLOURS + 1 + COLOURS
START_BALLS = 24
RUN = 5
NEVER = 2**62  # steps

# Directions d and d + 4 are opposite; 0, 1, 4, 5 lead to the four neighbours.
STEPS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, -1), (-1, 0), (-1, -1), (-1, 1))
OFFSET = np.array([row * SIDE + column for row, column in STEPS])  # [8] what a step adds to the cell's number


def _room(at: int, step: int) -> int:
    return (SIDE - 1 - at) if step > 0 else at if step < 0 else SIDE


ROOM = np.array(  # [8, 81] how many steps the board allows
    [[min(_room(cell // SIDE, row), _room(cell % SIDE, column)) for cell in range(CELLS)] for row, column in STEPS]
)
NEIGHBOURS = np.array(  # [81, 4]; 81, an extra cell that is never empty, stands for what lies off the board
    [[cell + OFFSET[d] if ROOM[d, cell] else CELLS for d in (0, 1, 4, 5)] for cell in range(CELLS)]
)
# [10] potential of a run by its length, in tenths of a point: whole numbers, so equal values are equal
WORTH = np.array([0, 0, 1, 3, 10, 0, 0, 0, 0, 0])


# -- the rules of one board: cells [81] uint8 ------------------------------------------------------


@kernel
def reach(cells: Array, at: int, direction: int, colour: int) -> int:
    """How many balls of `colour` follow `at` without a gap."""
    cell, length = at, 0
    for _ in range(ROOM[direction, at]):
        cell += OFFSET[direction]
        if cells[cell] != colour:
            break
        length += 1
    return length


@kernel
def clear(cells: Array, placed: Array, num_placed: int) -> int:
    """Take away every run through the `placed` balls, all at once; the number of balls gone."""
    gone = np.empty(4 * COMING * SIDE, np.int64)
    num = 0
    for k in range(num_placed):
        at = placed[k]
        for direction in range(4):
            ahead = reach(cells, at, direction, cells[at])
            behind = reach(cells, at, direction + 4, cells[at])
            if ahead + behind + 1 >= RUN:
                for step in range(-behind, ahead + 1):
                    gone[num] = at + step * OFFSET[direction]
                    num += 1
    num_gone = 0
    for k in range(num):
        num_gone += cells[gone[k]] != 0  # a crossing is listed twice
        cells[gone[k]] = 0
    return num_gone


@kernel
def points_for(num_gone: int) -> int:
    return 10 + 4 * (num_gone - RUN) if num_gone else 0


@kernel
def has_run(cells: Array) -> bool:
    for at in range(CELLS):
        if cells[at]:
            for direction in range(4):
                if reach(cells, at, direction, cells[at]) + 1 >= RUN:
                    return True
    return False


@kernel
def _list_empty(cells: Array, empty: Array) -> int:
    """The empty cells in order; their number."""
    num = 0
    for cell in range(CELLS):
        empty[num] = cell
        num += cells[cell] == 0
    return num


@kernel
def _take(empty: Array, num: int, k: int) -> int:
    """The k-th of `num` cells, out of the list."""
    cell = empty[k]
    for later in range(k, num - 1):
        empty[later] = empty[later + 1]
    return cell


@kernel
def _announce(coming: Array, rng: Array, index: int) -> None:
    for k in range(COMING):
        coming[k] = 1 + below(rng, index, COLOURS)


@kernel
def _start(cells: Array, coming: Array, rng: Array, index: int) -> None:
    """A board of 24 balls, uniform among those without a run (one draw in ten thousand has one)."""
    empty = np.empty(CELLS, np.int64)
    while True:
        cells[:] = 0
        num_empty = _list_empty(cells, empty)
        for _ in range(START_BALLS):
            at = _take(empty, num_empty, below(rng, index, num_empty))
            cells[at] = 1 + below(rng, index, COLOURS)
            num_empty -= 1
        if not has_run(cells):
            break
    _announce(coming, rng, index)


@kernel
def _turn(cells: Array, coming: Array, rng: Array, index: int, move: int) -> int:
    """Make a legal move and what follows from it; the points."""
    placed = np.empty(COMING, np.int64)
    origin, target = move // CELLS, move % CELLS
    cells[target] = cells[origin]
    cells[origin] = 0
    placed[0] = target
    num_gone = clear(cells, placed, 1)
    if num_gone:
        return points_for(num_gone)
    empty = np.empty(CELLS, np.int64)
    num_empty = _list_empty(cells, empty)
    num_placed = min(COMING, num_empty)
    for k in range(num_placed):
        placed[k] = _take(empty, num_empty - k, below(rng, index, num_empty - k))
        cells[placed[k]] = coming[k]
    num_gone = clear(cells, placed, num_placed)
    _announce(coming, rng, index)
    return points_for(num_gone)


@kernel
def tenths(cells: Array) -> int:
    """The worth of all runs of two, three and four."""
    worth = 0
    for at in range(CELLS):
        colour = cells[at]
        if colour == 0:
            continue
        for direction in range(4):
            if ROOM[direction, at] == 0 or cells[at + OFFSET[direction]] != colour:
                continue  # a run of one, or a run's end
            if ROOM[direction + 4, at] and cells[at - OFFSET[direction]] == colour:
                continue  # counted where the run begins
            worth += WORTH[1 + reach(cells, at, direction, colour)]
    return worth


@kernel
def _label(cells: Array, labels: Array) -> None:
    """Number the components of empty cells from 1; a ball gets 0. One search per component, none per move."""
    for cell in range(CELLS):
        labels[cell] = 255 if cells[cell] == 0 else 0
    labels[CELLS] = 0
    stack = np.empty(CELLS, np.int64)
    label = 0
    for start in range(CELLS):
        if labels[start] != 255:
            continue
        label += 1
        labels[start] = label
        stack[0] = start
        depth = 1
        while depth:
            depth -= 1
            at = stack[depth]
            for side in range(4):
                cell = NEIGHBOURS[at, side]
                if labels[cell] == 255:
                    labels[cell] = label
                    stack[depth] = cell
                    depth += 1


@kernel
def touched(labels: Array, at: int) -> tuple[int, int, int, int]:
    """The components beside `at`; 0 where there is none."""
    a, b, c, d = NEIGHBOURS[at, 0], NEIGHBOURS[at, 1], NEIGHBOURS[at, 2], NEIGHBOURS[at, 3]
    return labels[a], labels[b], labels[c], labels[d]


@kernel
def targets_of(cells: Array, labels: Array, first: int, last: int, out: Array) -> None:
    """Where the balls at first..last-1 may go: out [last - first, 81] bool; nowhere when there is no ball. (All rows in
    one call, because a call for each took four times as long.)"""
    for origin in range(first, last):
        if cells[origin] == 0:
            for cell in range(CELLS):
                out[origin - first, cell] = False
        else:
            a, b, c, d = touched(labels, origin)
            for cell in range(CELLS):
                here = labels[cell]
                out[origin - first, cell] = ((here == a) | (here == b) | (here == c) | (here == d)) & (here != 0)


# -- the rules of many boards ----------------------------------------------------------------------


@kernel
def label_all(board: Array, labels: Array) -> None:
    for index in range(len(board)):
        _label(board[index], labels[index])


@kernel
def tenths_all(board: Array, out: Array) -> None:
    for index in range(len(board)):
        out[index] = tenths(board[index])


@kernel
def start_all(board: Array, coming: Array, rng: Array) -> None:
    for index in range(len(board)):
        _start(board[index], coming[index], rng, index)


@kernel
def first_illegal(board: Array, labels: Array, ended: Array, moves: Array) -> int:
    """The first game whose move is illegal; -1 if there is none. Ended games make no move."""
    for index in range(len(moves)):
        if ended[index]:
            continue
        move = moves[index]
        if move < 0 or move >= MOVES or board[index, move // CELLS] == 0:
            return index
        label = labels[index, move % CELLS]
        if label == 0:
            return index
        if label not in touched(labels[index], move // CELLS):
            return index
    return -1


@kernel
def step_all(
    board: Array,
    coming: Array,
    score: Array,
    length: Array,
    rng: Array,
    labels: Array,
    ended: Array,
    moves: Array,
    max_steps: int,
    same_step: bool,
    final: Array,
    points: Array,
    terminated: Array,
    truncated: Array,
) -> None:
    """Step every game, then start again those that ended: at once (`same_step`), or instead of their next move, and
    until then they are `ended`. `final` [B, 84] is what came of the moves. The draws are the same either way."""
    for index in range(len(board)):
        cells = board[index]
        if ended[index]:
            _start(cells, coming[index], rng, index)
            score[index], length[index], points[index] = 0, 0, 0
        else:
            points[index] = _turn(cells, coming[index], rng, index, moves[index])
            score[index] += points[index]
            length[index] += 1
        num_balls = 0
        for cell in range(CELLS):
            final[index, cell] = cells[cell]
            num_balls += cells[cell] != 0
        final[index, CELLS:] = coming[index]
        terminated[index] = num_balls == 0 or num_balls == CELLS
        truncated[index] = length[index] >= max_steps and not terminated[index]
        ended[index] = terminated[index] or truncated[index]
        if ended[index] and same_step:
            _start(cells, coming[index], rng, index)
            ended[index] = False
        _label(cells, labels[index])


@kernel
def masks_all(board: Array, labels: Array, out: Array) -> None:
    for index in range(len(board)):
        targets_of(board[index], labels[index], 0, CELLS, out[index])


@kernel
def origins_all(board: Array, labels: Array, out: Array) -> None:
    for index in range(len(board)):
        for origin in range(CELLS):
            a, b, c, d = touched(labels[index], origin)
            out[index, origin] = board[index, origin] != 0 and (a | b | c | d) != 0


@kernel
def targets_all(board: Array, labels: Array, origins: Array, out: Array) -> None:
    for index in range(len(board)):
        targets_of(board[index], labels[index], origins[index], origins[index] + 1, out[index : index + 1])


@kernel
def planes_all(compact: Array, out: Array) -> None:
    out[:] = 0
    for index in range(len(compact)):
        for cell in range(CELLS):
            colour = compact[index, cell]
            out[index, colour - 1 if colour else COLOURS, cell] = 1
        for k in range(COMING):
            plane = out[index, COLOURS + compact[index, CELLS + k]]
            for cell in range(CELLS):
                plane[cell] += 1
