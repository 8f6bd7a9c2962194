"""What lies between the matrix products of a `VectorNetwork`, compiled: for search, which asks with few rows, often.

    parents, actions --> pick --> [product] --> activate --> [product] --> arrive --> latents, rewards
                     latents --> [product] --> activate --> [product] --> announce --> values, policy logits

With a few rows a call of torch is mostly overhead: a network of a dozen layers is sixty of them. Here each arrow is
one, and nothing is allocated.

All functions are compiled on first use, release the GIL, and check nothing: their caller does. Sums are taken in a
fixed order: the same rows give the same bits. What several of them have in common is a part of each: a compiled
function that calls another adds up in another order when it has just been compiled than when it was read from the disk.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NORM_EPSILON = np.float32(1e-5)  # of LayerNorm
SMALLEST_RANGE = np.float32(1e-5)  # as in network.py
SQUASH = np.float32(1e-3)  # as in two_hot.py
ZERO, HALF, ONE, TWO, FOUR = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2), np.float32(4)
_LOWEST = np.float32(-87.0)  # exp of less is nothing
_LOG2E, _LN2_HIGH, _LN2_LOW = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)

_FREEDOMS = {"contract", "reassoc", "arcp", "nsz"}
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FREEDOMS)
_part = njit(error_model="numpy", fastmath=_FREEDOMS, inline="always")


@_compiled
def pick(latents, parents, chosen):
    """chosen [B, D] = the latents [S, B, D] of each row's parent."""
    for i in range(chosen.shape[0]):
        parent = parents[i]
        for d in range(chosen.shape[1]):
            chosen[i, d] = latents[parent, i, d]


@_compiled
def activate(hidden, gain, shift):
    """LayerNorm and ReLU of hidden [B, W], in place."""
    for i in range(hidden.shape[0]):
        _activate_row(hidden, i, gain, shift)


@_compiled
def activate_with_action(hidden, table, actions, gain, shift):
    """The same after adding table [A, W] at each row's action."""
    for i in range(hidden.shape[0]):
        action = actions[i]
        for o in range(hidden.shape[1]):
            hidden[i, o] += table[action, o]
        _activate_row(hidden, i, gain, shift)


@_part
def _activate_row(hidden, i, gain, shift):
    num = hidden.shape[1]
    total, squares = ZERO, ZERO
    for o in range(num):
        total += hidden[i, o]
    mean = total / np.float32(num)
    for o in range(num):
        squares += (hidden[i, o] - mean) * (hidden[i, o] - mean)
    scale = ONE / np.sqrt(squares / np.float32(num) + NORM_EPSILON)
    for o in range(num):
        value = (hidden[i, o] - mean) * scale * gain[o] + shift[o]
        hidden[i, o] = value if value > ZERO else ZERO


@_compiled
def arrive(before, out, latents, rewards, low, step):
    """latents [B, D] = before + the first D columns of out, brought to 0..1; rewards [B] from the other columns."""
    num = latents.shape[1]
    for i in range(latents.shape[0]):
        for d in range(num):
            latents[i, d] = before[i, d] + out[i, d]
        _normalise_row(latents, i)
        rewards[i] = _expected(out, i, num, low, step)


@_compiled
def normalise(latents):
    """latents [B, D], each brought to 0..1, in place."""
    for i in range(latents.shape[0]):
        _normalise_row(latents, i)


@_compiled
def announce(out, logits, values, low, step):
    """logits [B, A] are the first columns of out; values [B] from the others."""
    num = logits.shape[1]
    for i in range(logits.shape[0]):
        for a in range(num):
            logits[i, a] = out[i, a]
        values[i] = _expected(out, i, num, low, step)


@_part
def _normalise_row(latents, i):
    low = high = latents[i, 0]
    for d in range(latents.shape[1]):
        value = latents[i, d]
        low = value if value < low else low
        high = value if value > high else high
    scale = ONE / (high - low + SMALLEST_RANGE)
    for d in range(latents.shape[1]):
        latents[i, d] = (latents[i, d] - low) * scale


@_part
def _exp(x):
    """exp for x in -87..0, in arithmetic that can be vectorised: relative error below 2e-7."""
    k = np.floor(x * _LOG2E + HALF)
    r = x - k * _LN2_HIGH - k * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * r * r + r + ONE) * power


@_part
def _expected(out, i, first, low, step):
    """What a support says: the mean of its bins under the softmax of the columns from `first` on, unsquashed."""
    bins = out.shape[1] - first
    largest = out[i, first]
    for o in range(bins):
        largest = out[i, first + o] if out[i, first + o] > largest else largest
    mass, mean = ZERO, ZERO
    for o in range(bins):
        away = out[i, first + o] - largest
        share = _exp(away if away > _LOWEST else _LOWEST)
        mass += share
        mean += share * np.float32(o)
    squashed = low + step * mean / mass
    size = (squashed if squashed > ZERO else -squashed) + ONE + SQUASH
    root = TWO * size / (ONE + np.sqrt(ONE + FOUR * SQUASH * size))
    value = root * root - ONE
    return value if squashed > ZERO else -value
