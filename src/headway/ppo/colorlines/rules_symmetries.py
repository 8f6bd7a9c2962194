"""The eight symmetries of the board and the permutations of the colours: they map legal games to legal games."""

from __future__ import annotations

import numpy as np

from headway.ppo.colorlines.rules import CELLS, COLOURS, MOVES, SIDE


def _images() -> np.ndarray:
    cells = np.arange(CELLS).reshape(SIDE, SIDE)
    turned = [np.rot90(square, turns) for square in (cells, cells.T) for turns in range(4)]
    # `turned` lists which cell comes to each place; the image of a cell is the inverse of that
    return np.stack([np.argsort(square.ravel()) for square in turned])


CELL_IMAGE = _images()  # [8, 81] where a symmetry takes a cell; 0 is the identity
MOVE_IMAGE = (CELL_IMAGE[:, :, None] * CELLS + CELL_IMAGE[:, None, :]).reshape(8, MOVES)  # [8, 6561]
CELL_SOURCE, MOVE_SOURCE = CELL_IMAGE.argsort(1), MOVE_IMAGE.argsort(1)  # their inverses


def draw_symmetries(rng: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    """`num` board symmetries [num] and colour permutations [num, 8] (empty stays empty), uniform."""
    colours = rng.permuted(np.tile(np.arange(1, COLOURS + 1, dtype=np.uint8), (num, 1)), axis=1)
    return rng.integers(8, size=num), np.concatenate([np.zeros((num, 1), np.uint8), colours], axis=1)


def transform_positions(compact: np.ndarray, symmetry: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """compact [N, 84], one symmetry [N] and one permutation [N, 8] each -> [N, 84]."""
    moved = np.concatenate([np.take_along_axis(compact[:, :CELLS], CELL_SOURCE[symmetry], 1), compact[:, CELLS:]], 1)
    return np.take_along_axis(colours, moved.astype(np.intp), 1)


def transform_moves(moves: np.ndarray, symmetry: np.ndarray) -> np.ndarray:
    """moves [N] -> [N]."""
    return np.asarray(MOVE_IMAGE[symmetry, moves])


def transform_policies(policy: np.ndarray, symmetry: np.ndarray) -> np.ndarray:
    """Masks, logits or probabilities over moves [N, 6561] or over cells [N, 81], in the same shape."""
    source = MOVE_SOURCE if policy.shape[1] == MOVES else CELL_SOURCE
    return np.take_along_axis(policy, source[symmetry], 1)
