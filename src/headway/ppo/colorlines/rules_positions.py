"""Positions as arrays: planes for a network, components, potential and masks of stored boards."""

from __future__ import annotations

import numpy as np

from headway.ppo.colorlines.rules import (
    CELLS,
    MOVES,
    PLANES,
    SIDE,
    label_all,
    masks_all,
    planes_all,
    tenths_all,
)


def cell_name(cell: int) -> str:
    """Column letter and row number, the first row on top: cell 0 is a1, cell 80 is i9."""
    return f"{'abcdefghi'[cell % SIDE]}{cell // SIDE + 1}"


def planes(compact: np.ndarray) -> np.ndarray:
    """One-hot planes of positions in compact form.

    :param compact: [N, 84] uint8, the board's cells and the three coming colours
    :return: [N, 15, 9, 9] uint8: 7 colours, empty, and per colour how many balls of it come next, on the whole plane
        (the order of the coming balls says nothing: their places are drawn alike)
    """
    out = np.empty((len(compact), PLANES, CELLS), np.uint8)
    planes_all(np.ascontiguousarray(compact, np.uint8), out)
    return out.reshape(-1, PLANES, SIDE, SIDE)


def labels_of(board: np.ndarray) -> np.ndarray:
    """The components of empty cells: board [N, 81] -> [N, 81] uint8, 0 where there is a ball."""
    board = np.ascontiguousarray(board, np.uint8)
    labels = np.empty((len(board), CELLS + 1), np.uint8)
    label_all(board, labels)
    return labels[:, :CELLS]


def potential_of(board: np.ndarray) -> np.ndarray:
    """What the runs of two, three and four are worth: board [N, 81] -> [N] float64. Boards of ended games count too;
    it is the shaped reward that takes a terminal potential as zero."""
    tenths = np.empty(len(board), np.int64)
    tenths_all(np.ascontiguousarray(board, np.uint8), tenths)
    return tenths / 10


def legal_moves(board: np.ndarray) -> np.ndarray:
    """Masks of stored boards, so that nobody has to store masks: board [N, 81] -> [N, 6561] bool."""
    board = np.ascontiguousarray(board, np.uint8)
    out = np.empty((len(board), CELLS, CELLS), np.bool_)
    labels = np.empty((len(board), CELLS + 1), np.uint8)
    label_all(board, labels)
    masks_all(board, labels, out)
    return out.reshape(-1, MOVES)
