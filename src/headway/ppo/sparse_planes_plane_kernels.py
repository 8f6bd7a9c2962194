"""A convolution of 16 filters 3 x 3 over pictures that are mostly zeros, compiled: what is zero is not looked at.

    picture [D] --> its cells that are not zero: begins, cells, numbers    (count, compress)
    cells --> each adds its 9 x 16 products to `seen` [B, P * 16]          (see)
    gradient of `seen` --> each cell adds its share to the filters'        (add_gradient)

A position's 16 filters lie side by side, so that vector instructions do them together. Of an index that is not
unsigned numba asks whether it is negative, in the innermost loop too: hence the uint64. Functions release the GIL and
check nothing: their caller does. Sums are taken in a fixed order: the same rows give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

FILTERS, SIDE = 16, 3

_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "arcp", "nsz"})


class PlaneLayout(NamedTuple):
    """Which number of an observation is where in its planes."""

    plane: np.ndarray  # [D] int64: of each number its plane,
    row: np.ndarray  # [D] its row
    column: np.ndarray  # [D] and its column
    height: int  # of what is seen: two less than the picture's
    width: int


class Cells(NamedTuple):
    """Pictures as what is not zero in them."""

    begins: np.ndarray  # [B + 1] int64: where the cells of each picture begin
    cells: np.ndarray  # [N] int32: places in the observation
    numbers: np.ndarray  # [N] float32: what is there


@_compiled
def count(pictures, begins):
    """`begins` of pictures [B, D]."""
    begins[0] = 0
    for i in range(len(pictures)):
        found = 0
        for d in range(pictures.shape[1]):
            found += pictures[i, d] != 0
        begins[i + 1] = begins[i] + found


@_compiled
def compress(pictures, share, begins, cells, numbers):
    """The cells of pictures [B, D], each number `share` of what it is."""
    at = 0
    for i in range(len(pictures)):
        for d in range(pictures.shape[1]):
            if pictures[i, d] != 0:
                cells[at] = d
                numbers[at] = pictures[i, d] * share
                at += 1


@_compiled
def see(layout, begins, cells, numbers, part, taps, seen):
    """Adds to `seen` [B, P * 16] what the filters make of the pictures in `part`.

    `taps` [planes * 3 * 3 * 16] are the filters, each row from right to left: so the positions that a cell adds to lie
    one after the other, as its taps do.
    """
    for j in range(len(part)):
        for q in range(begins[part[j]], begins[part[j] + 1]):
            cell, number = cells[q], numbers[q]
            row, column = layout.row[cell], layout.column[cell]
            first, last = max(column - SIDE + 1, 0), min(column, layout.width - 1)
            for dy in range(SIDE):
                if 0 <= row - dy < layout.height:
                    at = np.uint64(((row - dy) * layout.width + first) * FILTERS)
                    tap = np.uint64(((layout.plane[cell] * SIDE + dy + 1) * SIDE - 1 + first - column) * FILTERS)
                    for f in range(np.uint64((last - first + 1) * FILTERS)):
                        seen[j, at + f] += number * taps[tap + f]


@_compiled
def add_gradient(layout, begins, cells, numbers, part, change, taps):
    """Adds to `taps` their gradient, from that of what was seen (`change` [B, P * 16])."""
    for j in range(len(part)):
        for q in range(begins[part[j]], begins[part[j] + 1]):
            cell, number = cells[q], numbers[q]
            row, column = layout.row[cell], layout.column[cell]
            first, last = max(column - SIDE + 1, 0), min(column, layout.width - 1)
            for dy in range(SIDE):
                if 0 <= row - dy < layout.height:
                    at = np.uint64(((row - dy) * layout.width + first) * FILTERS)
                    tap = np.uint64(((layout.plane[cell] * SIDE + dy + 1) * SIDE - 1 + first - column) * FILTERS)
                    for f in range(np.uint64((last - first + 1) * FILTERS)):
                        taps[tap + f] += number * change[j, at + f]
