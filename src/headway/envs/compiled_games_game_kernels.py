"""What games in compiled code share: how a function is compiled, and the random numbers of each game.

Compiled functions are kept on disk and run without the interpreter's lock. Every game of a vector has a generator
of its own (splitmix64, one number of 64 bits), seeded by the vector's seed and the game's index, so its draws do not
depend on the other games.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit

Array = np.ndarray
Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    return cast(Function, njit(cache=True, nogil=True)(function))


# -- random numbers: splitmix64, one state per environment -----------------------------------------

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_U27, _U30, _U31, _U32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@kernel
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> _U30)) * _MIX_1
    z = (z ^ (z >> _U27)) * _MIX_2
    return z ^ (z >> _U31)


@kernel
def seed_all(seed: np.uint64, rng: Array) -> None:
    for index in range(len(rng)):
        rng[index] = _mix(_mix(seed + _GOLDEN) + np.uint64(index + 1) * _GOLDEN)


@kernel
def below(rng: Array, index: int, n: int) -> int:
    """A number in 0..n-1, every one equally likely (Lemire: the rare draw that would favour some is drawn again)."""
    bound = np.uint64(n)
    while True:
        rng[index] += _GOLDEN
        product = (_mix(rng[index]) >> _U32) * bound
        if (product & _LOW) >= (_LOW + np.uint64(1)) % bound:
            return int(product >> _U32)
