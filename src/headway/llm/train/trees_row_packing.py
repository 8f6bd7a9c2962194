"""Trees end to end in one row: which go together, and how long the row is.

A compiled model is compiled for a length, so rows are of few lengths: eight from each power of two to the next, and the
longest that is allowed. As many rows as are needed are filled evenly, so that most of an update has one length.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

STEP = 512
"""Lengths are multiples of it."""
SIZES_PER_DOUBLING = 8


def row_length(num_tokens: int, budget: int | None = None) -> int:
    """Returns the length of a row for so many tokens, at most `budget` of them."""
    below = 1 << max(0, num_tokens - 1).bit_length() >> 1
    found = _up_to(num_tokens, max(STEP, below // SIZES_PER_DOUBLING))
    return found if budget is None else min(found, _up_to(max(budget, num_tokens), STEP))


def _up_to(number: int, step: int) -> int:
    return max(1, -(-number // step)) * step


def fill_rows(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """Says which trees go into which row, given their sizes: the longest row first, at most `budget` tokens each."""
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))
    rows: list[list[int]] = []
    used: list[int] = []
    for place in order:
        row = next((row for row, size in enumerate(used) if size + sizes[place] <= budget), len(rows))
        if row == len(rows):
            rows.append([])
            used.append(0)
        rows[row].append(place)
        used[row] += sizes[place]
    even = _evenly(order, sizes, len(rows))
    if all(sum(sizes[place] for place in row) <= budget for row in even):
        rows = even
    return sorted(rows, key=lambda row: -sum(sizes[place] for place in row))


def _evenly(order: Sequence[int], sizes: Sequence[int], count: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(count)]
    shortest = [(0, row) for row in range(count)]
    for place in order:
        used, row = heapq.heappop(shortest)
        rows[row].append(place)
        heapq.heappush(shortest, (used + sizes[place], row))
    return rows
