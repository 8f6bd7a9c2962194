"""The passes through a two-tower tanh MLP, compiled, without a graph.

    rows ---> chunk of 256, one row a column ---> tower ---> head ---> loss of each row
                                                                            |
    flat gradient <--- products with the activations <--- tower, backwards <+

The rows of a chunk lie side by side in memory and every innermost loop runs along them, so the compiler
vectorises all of it: products, tanh, losses. A chunk's activations stay in the cache between the way there
and the way back, and the two towers never meet: the policy's loss needs one, the value's the other.

All functions are compiled on first use, release the GIL, and check nothing: their callers do. Sums are taken
in a fixed order: the same rows give the same bits. They are all in this file because what is kept on disk of one
is only compiled again when its own file changes. What they work on is in mlp_memory.py. Arrays are written element
by element and never made here: what numba has for slices and for new arrays takes it longer to compile than all the
rest.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from headway.ppo.mlp_memory import CHUNK

LANES = 32  # a chunk that is not full is padded to whole vectors
MASKED = np.float32(-1e9)
MAX_LOG_RATIO = np.float32(20.0)
MAX_NORMALISED = np.float32(10.0)
HALF_LOG_2PI = np.float32(0.5 * math.log(2 * math.pi))
ZERO, HALF, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)

# tanh(x) = x P(x^2) / Q(x^2) up to 8, fitted by ourselves: relative error below 4e-7, and 1 beyond
_END = np.float32(8.0)
_P1, _P2, _P3, _P4 = (np.float32(c) for c in (0.13444497, 0.0035715965, 2.1894637e-05, 1.5230382e-08))
_Q1, _Q2, _Q3, _Q4 = (np.float32(c) for c in (0.46777824, 0.026164437, 0.00034112894, 8.522432e-07))

BETAS, EPSILON = (0.9, 0.999), 1e-5  # Adam's

# Reordering and fused multiply-add, but no assumption that numbers are finite: a NaN must stay visible.
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "arcp", "nsz"})


# -------------------------------------------------------------------------------------------------- products


@_compiled
def _add_product(flat, begin, by_out, by_in, num_out, num_in, x, y, n):
    """y [O, n] += W x [K, n], where W[o, k] is flat[begin + o * by_out + k * by_in]."""
    for o in range(0, num_out - 1, 2):
        here = begin + o * by_out
        for k in range(0, num_in - 3, 4):
            at = here + k * by_in
            a0, a1, a2, a3 = flat[at], flat[at + by_in], flat[at + 2 * by_in], flat[at + 3 * by_in]
            at += by_out
            b0, b1, b2, b3 = flat[at], flat[at + by_in], flat[at + 2 * by_in], flat[at + 3 * by_in]
            for j in range(n):
                y[o, j] += a0 * x[k, j] + a1 * x[k + 1, j] + a2 * x[k + 2, j] + a3 * x[k + 3, j]
                y[o + 1, j] += b0 * x[k, j] + b1 * x[k + 1, j] + b2 * x[k + 2, j] + b3 * x[k + 3, j]
        for k in range(num_in - num_in % 4, num_in):
            a0, b0 = flat[here + k * by_in], flat[here + k * by_in + by_out]
            for j in range(n):
                y[o, j] += a0 * x[k, j]
                y[o + 1, j] += b0 * x[k, j]
    if num_out % 2:
        o = num_out - 1
        for k in range(num_in):
            a0 = flat[begin + o * by_out + k * by_in]
            for j in range(n):
                y[o, j] += a0 * x[k, j]


@_compiled
def _add_outer(d, x, flat, begin, num_out, num_in, n):
    """W [O, K] += d [O, n] x^T [n, K], where W[o, k] is flat[begin + o * K + k]."""
    for o in range(0, num_out - 1, 2):
        for k in range(0, num_in - 3, 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = ZERO
            for j in range(n):
                a0 += d[o, j] * x[k, j]
                a1 += d[o, j] * x[k + 1, j]
                a2 += d[o, j] * x[k + 2, j]
                a3 += d[o, j] * x[k + 3, j]
                b0 += d[o + 1, j] * x[k, j]
                b1 += d[o + 1, j] * x[k + 1, j]
                b2 += d[o + 1, j] * x[k + 2, j]
                b3 += d[o + 1, j] * x[k + 3, j]
            at = begin + o * num_in + k
            flat[at] += a0
            flat[at + 1] += a1
            flat[at + 2] += a2
            flat[at + 3] += a3
            at += num_in
            flat[at] += b0
            flat[at + 1] += b1
            flat[at + 2] += b2
            flat[at + 3] += b3
    for o in range(num_out):
        is_paired = o < num_out - num_out % 2
        for k in range(num_in - num_in % 4 if is_paired else 0, num_in):
            total = ZERO
            for j in range(n):
                total += d[o, j] * x[k, j]
            flat[begin + o * num_in + k] += total


@_compiled
def _clamp(x, limit):  # not min and max: those drop a NaN
    return limit if x > limit else (-limit if x < -limit else x)


@_compiled
def _tanh(values, num, n):
    """In place, on the first `num` rows and `n` columns."""
    for o in range(num):
        for j in range(n):
            x = _clamp(values[o, j], _END)
            s = x * x
            p = (((_P4 * s + _P3) * s + _P2) * s + _P1) * s + ONE
            q = (((_Q4 * s + _Q3) * s + _Q2) * s + _Q1) * s + ONE
            values[o, j] = x * p / q


# ----------------------------------------------------------------------------------------------------- tower


@_compiled
def _load(obs, index, layout, x):
    """Observations as columns, normalised; returns how many columns to compute with."""
    num = len(index)
    n = (num + LANES - 1) // LANES * LANES
    for d in range(obs.shape[1]):
        mean, scale = layout.mean[d], layout.scale[d]
        for j in range(n):
            x[d, j] = obs[index[j], d] if j < num else ZERO
            if layout.normalise:
                x[d, j] = _clamp((x[d, j] - mean) / scale, MAX_NORMALISED)
    return n


@_compiled
def _shape(layout, tower, layer):
    """Outputs and inputs of a layer."""
    if layer + 1 < len(layout.sizes):
        return layout.sizes[layer + 1], layout.sizes[layer]
    return (1 if tower else layout.num_outputs), layout.sizes[layer]


@_compiled
def _forward(flat, layout, tower, scratch, n):
    """The tower's activations, and its outputs."""
    below = scratch.x
    num_hidden = len(layout.sizes) - 1
    for layer in range(num_hidden + 1):
        num_out, num_in = _shape(layout, tower, layer)
        weight, bias = layout.places[tower, layer]
        above = scratch.hidden[layer] if layer < num_hidden else scratch.out
        for o in range(num_out):
            for j in range(n):
                above[o, j] = flat[bias + o]
        _add_product(flat, weight, num_in, 1, num_out, num_in, below, above, n)
        if layer < num_hidden:
            _tanh(above, num_out, n)
        below = above


@_compiled
def _backward(flat, gradient, layout, tower, scratch, n):
    """Adds the gradients of the tower's parameters, from those of its outputs (in `scratch.out`)."""
    change = scratch.out
    for layer in range(len(layout.sizes) - 1, -1, -1):
        num_out, num_in = _shape(layout, tower, layer)
        weight, bias = layout.places[tower, layer]
        below = scratch.hidden[layer - 1] if layer else scratch.x
        _add_outer(change, below, gradient, weight, num_out, num_in, n)
        for o in range(num_out):
            total = ZERO
            for j in range(n):
                total += change[o, j]
            gradient[bias + o] += total
        if layer:
            under = scratch.change[layer % 2]
            for k in range(num_in):
                for j in range(n):
                    under[k, j] = ZERO
            _add_product(flat, weight, 1, num_in, num_in, num_out, change, under, n)
            for k in range(num_in):
                for j in range(n):
                    under[k, j] *= ONE - below[k, j] * below[k, j]
            change = under


# --------------------------------------------------------------------------------------------- distributions


@_compiled
def _log_softmax(z, chances, j, begin, end):
    """In place, down one column, and the probabilities beside; returns the entropy."""
    top = z[begin, j]
    for a in range(begin + 1, end):
        top = max(top, z[a, j])
    total = ZERO
    for a in range(begin, end):
        chances[a, j] = np.exp(z[a, j] - top)
        total += chances[a, j]
    shift, share, entropy = top + np.log(total), ONE / total, ZERO
    for a in range(begin, end):
        z[a, j] -= shift
        chances[a, j] *= share
        entropy -= chances[a, j] * z[a, j]
    return entropy


@_compiled
def _mask(z, masks, index):
    if len(masks):
        for j in range(len(index)):
            for a in range(len(z)):
                if not masks[index[j], a]:
                    z[a, j] = MASKED


@_compiled
def _log_prob(flat, layout, rows, i, z, j):
    """Of row i's action, under the outputs in column j (choices: already log-probabilities)."""
    total, begin = ZERO, 0
    for g in range(len(layout.choices)):
        total += z[begin + rows.choices[i, g], j]
        begin += layout.choices[g]
    if layout.log_std >= 0:
        for a in range(layout.num_outputs):
            log_std = flat[layout.log_std + a]
            scaled = (rows.reals[i, a] - z[a, j]) * np.exp(-log_std)
            total -= HALF * scaled * scaled + log_std + HALF_LOG_2PI
    return total


@_compiled
def _distributions(flat, layout, masks, index, z, chances, entropies):
    """Outputs to log-probabilities in place (choices), and the entropy of each column."""
    num = len(index)
    for j in range(num):
        entropies[j] = ZERO
    _mask(z, masks, index)
    begin = 0
    for g in range(len(layout.choices)):
        for j in range(num):
            entropies[j] += _log_softmax(z, chances, j, begin, begin + layout.choices[g])
        begin += layout.choices[g]
    if layout.log_std >= 0:
        for a in range(layout.num_outputs):
            for j in range(num):
                entropies[j] += flat[layout.log_std + a] + HALF + HALF_LOG_2PI


# ---------------------------------------------------------------------------------------------------- acting


@_compiled
def forward(flat, layout, tower, obs, every, scratch, out):
    """The outputs for observations [B, D], as columns of `out` [A, B]. `every` is 0 to B - 1, here and below."""
    for start in range(0, len(every), CHUNK):
        index = every[start : start + CHUNK]
        n = _load(obs, index, layout, scratch.x)
        _forward(flat, layout, tower, scratch, n)
        for a in range(len(out)):
            for j in range(len(index)):
                out[a, start + j] = scratch.out[a, j]


@_compiled
def choose(flat, layout, z, chances, every, noise, masks, choices, reals, log_probs):
    """Draws an action for every column of outputs by its noise [B, A], into `choices` or `reals`."""
    _mask(z, masks, every)
    for i in range(len(every)):
        log_prob, begin = ZERO, 0
        for g in range(len(layout.choices)):
            end = begin + layout.choices[g]
            best = begin
            for a in range(begin + 1, end):
                if z[a, i] + noise[i, a] > z[best, i] + noise[i, best]:
                    best = a
            _log_softmax(z, chances, i, begin, end)
            log_prob += z[best, i]
            choices[i, g] = best - begin
            begin = end
        if layout.log_std >= 0:
            for a in range(layout.num_outputs):
                log_std = flat[layout.log_std + a]
                reals[i, a] = z[a, i] + np.exp(log_std) * noise[i, a]
                log_prob -= HALF * noise[i, a] * noise[i, a] + log_std + HALF_LOG_2PI
        log_probs[i] = log_prob


# -------------------------------------------------------------------------------------------------- learning


@_compiled
def log_probs_of(flat, layout, rows, z, chances, every, entropies, log_probs):
    """Of the actions in `rows`, under outputs [A, B], which are overwritten."""
    _distributions(flat, layout, rows.masks, every, z, chances, entropies)
    for i in range(len(every)):
        log_probs[i] = _log_prob(flat, layout, rows, i, z, i)


@_compiled
def advantage_moments(columns, part):
    """Mean and what to divide by; a single row is left as it is. `columns` [B, 5] float32 are for each row:
    anchor (a log-probability), advantage, target of the value, value before, weight."""
    if len(part) < 2:
        return 0.0, 1.0
    total = 0.0
    for i in part:
        total += columns[i, 1]
    mean, squares = total / len(part), 0.0
    for i in part:
        squares += (columns[i, 1] - mean) ** 2
    return mean, math.sqrt(squares / (len(part) - 1)) + 1e-8


@_compiled
def _policy_change(flat, gradient, layout, loss, rows, columns, index, scratch, share, moments, measures):
    """Outputs to gradients of the loss by them, in place."""
    z, chances, entropies = scratch.out, scratch.chances, scratch.entropies
    clip, bonus = np.float32(loss.clip), np.float32(loss.entropy_weight) * share
    _distributions(flat, layout, rows.masks, index, z, chances, entropies)
    for j in range(len(index)):
        i = index[j]
        anchor, weight = columns[i, 0], columns[i, 4]
        advantage = np.float32((columns[i, 1] - moments[0]) / moments[1])
        log_prob, entropy = _log_prob(flat, layout, rows, i, z, j), entropies[j]
        gap = log_prob - anchor
        log_ratio = _clamp(gap, MAX_LOG_RATIO)
        ratio = np.exp(log_ratio)
        is_far = abs(ratio - ONE) > clip
        if loss.is_plain:
            measures[0] -= advantage * log_prob
            push = -advantage * share
        else:
            clipped = ONE + _clamp(ratio - ONE, clip)
            measures[0] -= weight * min(ratio * advantage, clipped * advantage)
            is_held = (is_far and clipped * advantage <= ratio * advantage) or abs(gap) > MAX_LOG_RATIO
            push = ZERO if is_held else -weight * advantage * ratio * share
        measures[2] += entropy
        measures[3] += ratio - ONE - log_ratio
        measures[4] += is_far
        begin = 0
        for g in range(len(layout.choices)):
            end, own = begin + layout.choices[g], ZERO
            for a in range(begin, end):
                own -= chances[a, j] * z[a, j]
            chosen = begin + rows.choices[i, g]
            for a in range(begin, end):
                z[a, j] = chances[a, j] * (bonus * (z[a, j] + own) - push)
            z[chosen, j] += push
            if len(rows.masks):
                for a in range(begin, end):
                    if not rows.masks[i, a]:
                        z[a, j] = ZERO
            begin = end
        if layout.log_std >= 0:
            for a in range(layout.num_outputs):
                narrow = np.exp(-flat[layout.log_std + a])
                scaled = (rows.reals[i, a] - z[a, j]) * narrow
                z[a, j] = push * scaled * narrow
                gradient[layout.log_std + a] += push * (scaled * scaled - ONE) - bonus


@_compiled
def _value_change(loss, columns, index, z, share, measures):
    weight, reach = TWO * np.float32(loss.value_weight) * share, np.float32(loss.value_clip)
    for j in range(len(index)):
        target, old = columns[index[j], 2], columns[index[j], 3]
        error = z[0, j] - target
        far = z[0, j] - old
        held = _clamp(far, reach)
        other = old + held - target if far != held else error
        if other * other > error * error:
            measures[1] += other * other
            z[0, j] = ZERO
        else:
            measures[1] += error * error
            z[0, j] = weight * error


@_compiled
def gradient_of(flat, gradient, layout, loss, rows, columns, part, moments, scratch, measures):
    """The gradient of the mean loss over the rows in `part`, and the measures: both overwritten."""
    for i in range(len(gradient)):
        gradient[i] = ZERO
    for m in range(len(measures)):
        measures[m] = 0.0
    share = np.float32(1.0 / len(part))
    for start in range(0, len(part), CHUNK):
        index = part[start : start + CHUNK]
        num = len(index)
        n = _load(rows.obs, index, layout, scratch.x)
        for tower in range(2):
            _forward(flat, layout, tower, scratch, n)
            if tower:
                _value_change(loss, columns, index, scratch.out, share, measures)
            else:
                _policy_change(flat, gradient, layout, loss, rows, columns, index, scratch, share, moments, measures)
            for a in range(len(scratch.out)):
                for j in range(num, n):
                    scratch.out[a, j] = ZERO
            _backward(flat, gradient, layout, tower, scratch, n)
    for m in range(len(measures)):
        measures[m] /= len(part)


@_compiled
def head_gradient(flat, gradient, layout, loss, rows, columns, part, moments, features, scratch, measures, change):
    """The same for heads alone, of `features` [B, D] that somebody else made of the rows in `part` and cut off at zero;
    `change` [B, D], the gradient by what was cut, is overwritten too."""
    for i in range(len(gradient)):
        gradient[i] = ZERO
    for m in range(len(measures)):
        measures[m] = 0.0
    share = np.float32(1.0 / len(part))
    num_features = features.shape[1]
    under = scratch.change[0]
    for start in range(0, len(part), CHUNK):
        index = part[start : start + CHUNK]
        num = len(index)
        n = (num + LANES - 1) // LANES * LANES
        for k in range(num_features):
            for j in range(n):
                scratch.x[k, j] = features[start + j, k] if j < num else ZERO
                under[k, j] = ZERO
        for tower in range(2):
            _forward(flat, layout, tower, scratch, n)
            if tower:
                _value_change(loss, columns, index, scratch.out, share, measures)
            else:
                _policy_change(flat, gradient, layout, loss, rows, columns, index, scratch, share, moments, measures)
            for a in range(len(scratch.out)):
                for j in range(num, n):
                    scratch.out[a, j] = ZERO
            _backward(flat, gradient, layout, tower, scratch, n)
            num_out = 1 if tower else layout.num_outputs
            _add_product(
                flat, layout.places[tower, 0, 0], 1, num_features, num_features, num_out, scratch.out, under, n
            )
        for j in range(num):
            for k in range(num_features):
                change[start + j, k] = ZERO if features[start + j, k] <= ZERO else under[k, j]
    for m in range(len(measures)):
        measures[m] /= len(part)


@_compiled
def adam(values, gradient, memory, rate):
    """One step, in place."""
    memory.steps[0] += 1
    step, mean, square, total = memory.steps[0], memory.moments[0], memory.moments[1], 0.0
    for i in range(len(gradient)):
        total += gradient[i] * gradient[i]
    scale = np.float32(min(1.0, memory.max_norm / (math.sqrt(total) + 1e-6)))
    first, second = 1.0 - BETAS[0] ** step, 1.0 - BETAS[1] ** step
    keep_mean, keep_square = np.float32(BETAS[0]), np.float32(BETAS[1])
    new_mean, new_square = np.float32(1.0 - BETAS[0]), np.float32(1.0 - BETAS[1])
    pace, narrow, least = np.float32(rate / first), np.float32(1.0 / math.sqrt(second)), np.float32(EPSILON)
    for i in range(len(gradient)):
        g = gradient[i] * scale
        mean[i] = keep_mean * mean[i] + new_mean * g
        square[i] = keep_square * square[i] + new_square * g * g
        values[i] -= pace * mean[i] / (np.sqrt(square[i]) * narrow + least)


@_compiled
def learn(flat, gradient, layout, loss, rows, columns, order, size, scratch, memory, rate, measured):
    """A pass over the rows in `order`, `size` at a time, one step of Adam each; the measures of each step."""
    for number, start in enumerate(range(0, len(order), size)):
        part = order[start : start + size]
        moments = advantage_moments(columns, part)
        gradient_of(flat, gradient, layout, loss, rows, columns, part, moments, scratch, measured[number])
        adam(flat, gradient, memory, rate)
