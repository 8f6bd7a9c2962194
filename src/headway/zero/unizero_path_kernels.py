"""What lies between the matrix products of a step of search, compiled: few rows are asked about, often.

    x --> add_norm --> [product] --> attend --> [product] --> add_norm --> [product] --> activate --> [product] --> ...

`attend` reads keys and values where they lie, along each row's path: nothing is gathered. All functions are compiled on
first use, release the GIL, and check nothing: their caller does. Sums are taken in a fixed order: the same rows give
the same bits, whether they were compiled just now or read from the disk (see muzero/vector_kernels.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit

NORM_EPSILON = np.float32(1e-5)  # of LayerNorm
ZERO, ONE = np.float32(0), np.float32(1)

_FREEDOMS = {"contract", "reassoc", "arcp", "nsz"}
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FREEDOMS)
_part = njit(error_model="numpy", fastmath=_FREEDOMS, inline="always")


@_compiled
def follow(paths, depths, latents, parents, node, first_slot, before):
    """The path and depth of a new node in every row, and before [B, D] = the latents of its parent.

    Paths [nodes, B, W] are rows of the memory: slot * B + row.
    """
    num, width = before.shape[0], paths.shape[2]
    for b in range(num):
        parent = parents[b]
        for w in range(width - 1):
            paths[node, b, w] = paths[parent, b, w + 1]
        paths[node, b, width - 1] = (first_slot + node) * num + b
        depths[node, b] = depths[parent, b] + 1
        for d in range(before.shape[1]):
            before[b, d] = latents[parent, b, d]


@_compiled
def look_up(table, actions, x):
    """x [B, D] = the rows of table [A, D] at actions [B]."""
    for b in range(x.shape[0]):
        action = actions[b]
        for d in range(x.shape[1]):
            x[b, d] = table[action, d]


@_compiled
def add_norm(x, change, gain, shift, out):
    """x += change [B, D]; out [B, D] = LayerNorm of x."""
    for b in range(x.shape[0]):
        for d in range(x.shape[1]):
            x[b, d] += change[b, d]
        _norm_row(x, b, gain, shift, out)


@_part
def _norm_row(x, b, gain, shift, out):
    num = x.shape[1]
    total, squares = ZERO, ZERO
    for d in range(num):
        total += x[b, d]
    mean = total / np.float32(num)
    for d in range(num):
        squares += (x[b, d] - mean) * (x[b, d] - mean)
    scale = ONE / np.sqrt(squares / np.float32(num) + NORM_EPSILON)
    for d in range(num):
        out[b, d] = (x[b, d] - mean) * scale * gain[d] + shift[d]


@_compiled
def activate(hidden):
    """ReLU of hidden [B, W], in place."""
    for b in range(hidden.shape[0]):
        for w in range(hidden.shape[1]):
            value = hidden[b, w]
            hidden[b, w] = value if value > ZERO else ZERO


@_compiled
def arrive(before, change, gain, shift, latents, x):
    """latents [B, D] = before + change, normalised; x the same, to go on with."""
    for b in range(x.shape[0]):
        for d in range(x.shape[1]):
            x[b, d] = before[b, d] + change[b, d]
        _norm_row(x, b, gain, shift, latents)
        for d in range(x.shape[1]):
            x[b, d] = latents[b, d]


@_compiled
def attend(asked, memory, bias, paths, depths, node, token, layer, turns, heads, scores, heard):
    """heard [B, D] of asked [B, 3 D] (queries, keys, values): one token looks along its path, and is kept there.

    memory [slots * B, 2, L, 2, D], bias [slots * B, 2]: -inf where there is no such token, turns [nodes, 2, H / 2, 2]:
    cosine and sine by depth and token, scores [2 W] scratch.
    """
    num, dim = heard.shape
    size, width = dim // heads, paths.shape[2]
    scale = ONE / np.sqrt(np.float32(size))
    for b in range(num):
        own, depth = paths[node, b, width - 1], depths[node, b]
        for h in range(heads):
            for i in range(size // 2):
                at = h * size + 2 * i
                cosine, sine = turns[depth, token, i, 0], turns[depth, token, i, 1]
                for part in range(2):
                    real, imaginary = asked[b, part * dim + at], asked[b, part * dim + at + 1]
                    asked[b, part * dim + at] = real * cosine - imaginary * sine
                    asked[b, part * dim + at + 1] = real * sine + imaginary * cosine
        for d in range(dim):
            memory[own, token, layer, 0, d] = asked[b, dim + d]
            memory[own, token, layer, 1, d] = asked[b, 2 * dim + d]
            heard[b, d] = ZERO
        last = 2 * (width - 1) + token
        for h in range(heads):
            begin = h * size
            largest = np.float32(-np.inf)
            for s in range(last + 1):
                row, of = paths[node, b, s // 2], s % 2
                score = np.float32(-np.inf)
                if bias[row, of] == ZERO:
                    product = ZERO
                    for d in range(begin, begin + size):
                        product += asked[b, d] * memory[row, of, layer, 0, d]
                    score = product * scale
                    largest = score if score > largest else largest
                scores[s] = score
            mass = ZERO
            for s in range(last + 1):
                row, of = paths[node, b, s // 2], s % 2
                if bias[row, of] == ZERO:
                    share = np.exp(scores[s] - largest)
                    mass += share
                    for d in range(begin, begin + size):
                        heard[b, d] += share * memory[row, of, layer, 1, d]
            for d in range(begin, begin + size):
                heard[b, d] /= mass
