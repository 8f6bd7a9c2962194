"""A sum tree and a min tree over the same leaves, eight children to a node.

    level 2    [ total ]                                     sums and mins
    level 1    [ s s s s s s s s ]                           sums and mins
    level 0    [ p p p p p p p p | p p p p p p p p | ... ]   the leaves: 0 is empty, never drawn

Eight float64 are one cache line, so a draw among a million leaves reads seven lines, of which all but the
last two stay in the cache. The levels lie one behind the other in `sums`, leaves first, each padded to whole
nodes; `mins` has the same levels without the leaves, since an empty leaf, 0 to the sum, is +inf to the min.

Invariant: every node is a fixed expression of its eight children and is recomputed from them, never adjusted
by a difference. So the trees depend on the leaves alone, not on the way there, and no error accumulates.

All functions are compiled on first use, release the GIL, and check nothing: their callers do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

FAN_OUT = 8
_SHIFT = 3  # log2(FAN_OUT)
_BELOW_ONE = 1.0 - 2.0**-53  # times x is the float before x


class Trees(NamedTuple):
    """The arrays of both trees; unpacked where they are handed to the functions below."""

    sums: np.ndarray  # [starts[-1]] float64
    mins: np.ndarray  # [starts[-1] - starts[1]] float64
    starts: np.ndarray  # [levels + 1] int64: where each level begins in `sums`, then the end

    @property
    def total(self) -> float:
        return float(self.sums[self.starts[-2]])

    @property
    def least(self) -> float:
        """The smallest leaf that is not empty; +inf when all are."""
        return float(self.mins[self.starts[-2] - self.starts[1]])


def plant(num_leaves: int) -> Trees:
    """Trees of at least `num_leaves` leaves, all empty."""
    starts, nodes = [0], num_leaves
    while True:
        nodes = -(-nodes // FAN_OUT)
        starts.append(starts[-1] + nodes * FAN_OUT)
        if nodes == 1:
            break
    starts.append(starts[-1] + FAN_OUT)  # the root, in a node of its own
    sums = _whole_lines(starts[-1], 0.0)
    return Trees(sums, _whole_lines(starts[-1] - starts[1], math.inf), np.array(starts))


def _whole_lines(size: int, value: float) -> np.ndarray:
    """An array that begins on a cache line, so that a node never straddles two."""
    spare = np.empty(size + FAN_OUT)
    skip = -spare.ctypes.data % 64 // 8
    lines = spare[skip : skip + size]
    lines[:] = value
    return lines


@njit(cache=True, nogil=True, inline="always")
def _resum(sums, mins, starts, level, node):
    """Recompute one node of `level` >= 1 from its children, in a fixed order."""
    c = starts[level - 1] + (node << _SHIFT)
    a, b, d, e = sums[c], sums[c + 1], sums[c + 2], sums[c + 3]
    f, g, h, i = sums[c + 4], sums[c + 5], sums[c + 6], sums[c + 7]
    sums[starts[level] + node] = ((a + b) + (d + e)) + ((f + g) + (h + i))
    if level == 1:
        a, b, d, e = _or_inf(a), _or_inf(b), _or_inf(d), _or_inf(e)
        f, g, h, i = _or_inf(f), _or_inf(g), _or_inf(h), _or_inf(i)
    else:
        c -= starts[1]
        a, b, d, e = mins[c], mins[c + 1], mins[c + 2], mins[c + 3]
        f, g, h, i = mins[c + 4], mins[c + 5], mins[c + 6], mins[c + 7]
    mins[starts[level] - starts[1] + node] = min(min(min(a, b), min(d, e)), min(min(f, g), min(h, i)))


@njit(cache=True, nogil=True, inline="always")
def _or_inf(leaf):
    return leaf if leaf > 0.0 else math.inf


@njit(cache=True, nogil=True)
def set_range(sums, mins, starts, first, values):
    """Set the leaves `first`, `first + 1`, ... to `values` [N]: each parent is recomputed once a level."""
    if values.size == 0:
        return
    for n in range(values.size):
        sums[first + n] = values[n]
    last = first + values.size - 1
    for level in range(1, starts.size - 1):
        first >>= _SHIFT
        last >>= _SHIFT
        for node in range(first, last + 1):
            _resum(sums, mins, starts, level, node)


@njit(cache=True, nogil=True)
def set_leaves(sums, mins, starts, leaves, values):
    """Set `leaves` [N] to `values` [N]; of equal leaves the last one wins.

    Neighbours with one parent recompute it once. Leaves from `draw` come in order, so that is every parent;
    in any other order some are recomputed again, to the same result.
    """
    if leaves.size == 0:
        return
    nodes = np.empty(leaves.size, np.int64)
    for n in range(leaves.size):
        sums[leaves[n]] = values[n]
        nodes[n] = leaves[n]
    count = leaves.size
    for level in range(1, starts.size - 1):
        kept, before = 0, -1
        for n in range(count):
            node = nodes[n] >> _SHIFT
            if node != before:
                _resum(sums, mins, starts, level, node)
                nodes[kept] = node
                kept += 1
                before = node
        count = kept


@njit(cache=True, nogil=True)
def find(sums, starts, masses):
    """The leaves [N] whose cumulative sums enclose `masses` [N], each in [0, total). Consumes `masses`.

    All queries go down one level together, so that their cache misses overlap.
    """
    leaves = np.zeros(masses.size, np.int64)
    before = np.zeros(FAN_OUT)  # mass before each child; a table, because selects compile to branches here
    for level in range(starts.size - 3, -1, -1):
        start = starts[level]
        touched = 0.0  # a tight loop keeps far more misses in flight than the long one below
        for n in range(masses.size):
            touched += sums[start + (leaves[n] << _SHIFT)]
        before[0] = 0.0 * touched  # a use, or the loop is optimised away
        for n in range(masses.size):
            c = start + (leaves[n] << _SHIFT)
            before[1] = s0 = sums[c]
            before[2] = s1 = s0 + sums[c + 1]
            before[3] = s2 = s1 + sums[c + 2]
            before[4] = s3 = s2 + sums[c + 3]
            before[5] = s4 = s3 + sums[c + 4]
            before[6] = s5 = s4 + sums[c + 5]
            before[7] = s6 = s5 + sums[c + 6]
            # Trap: rounding can leave a mass at or beyond the last child's; behind that one all are empty.
            mass = min(masses[n], (s6 + sums[c + 7]) * _BELOW_ONE)
            child = (mass >= s0) + (mass >= s1) + (mass >= s2) + (mass >= s3)
            child += (mass >= s4) + (mass >= s5) + (mass >= s6)
            masses[n] = mass - before[child]
            leaves[n] = (leaves[n] << _SHIFT) + child
    return leaves


@njit(cache=True, nogil=True)
def draw(sums, starts, uniforms):
    """Stratified: the total is cut into N equal intervals, and uniforms [N] in [0, 1) pick one mass in each."""
    width = sums[starts[starts.size - 2]] / uniforms.size
    return find(sums, starts, (np.arange(uniforms.size) + uniforms) * width)
