"""The chance that at least one of k responses is right, from more than k of them."""

from __future__ import annotations

import math


def pass_at_k(num_responses: int, num_right: int, k: int) -> float:
    """Returns 1 - C(n - c, k) / C(n, k): of all choices of k among n responses, the share with a right one of c.

    Unbiased, unlike 1 - (1 - c/n)^k. Exact integers, so no n is too large.
    """
    if not 1 <= k <= num_responses:
        raise ValueError(f"k must be in [1, {num_responses}], the number of responses; received {k!r}")
    if not 0 <= num_right <= num_responses:
        raise ValueError(f"{num_right!r} of {num_responses} responses cannot be right")
    every = math.comb(num_responses, k)
    return (every - math.comb(num_responses - num_right, k)) / every
