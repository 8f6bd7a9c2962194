"""Kernels whose result for a row depends on that row alone, not on how many rows there are: the decoder's, on a GPU.

    product        [R, K] x [N, K] -> [R, N]    cuBLAS where it is found to be so, else a kernel that adds up in order
    add, norm      row by row
    silu           place by place
    attend         a tile of queries: the newest key first, then the cache in blocks of 64, in ascending order
    cumulative     row by row, in blocks in ascending order

cuBLAS chooses among kernels by the number of rows. Most add up along K in one order and give the same bits; those that
split K into parts, for few rows and a large K, do not; nor do those for widths that are no multiple of eight, in rare
places. Which it is depends on the device and on its version, so every shape is tried, once, when a decoder is built.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

APPEND, ATTEND = 1, 2
"""Phases of `attend_kernel`, which are added up."""
WINDOWS = 32
"""So many different rows of each number are tried."""


class Products:
    """Multiplies by weights [N, K] with bits that do not depend on the number of rows.

    Built with weights of each shape, and the numbers of rows that there will be: more are multiplied in parts.
    """

    def __init__(self, weights: Sequence[tuple[Tensor, Sequence[int]]], device: torch.device) -> None:
        self._least: dict[tuple[int, ...], int | None] = {}
        """For each shape the fewest rows from which the library is steady: fewer are filled up. None: never."""
        self._most: dict[tuple[int, ...], int] = {}
        generator = torch.Generator(device).manual_seed(0)
        for weight, sizes in weights:
            shape = tuple(weight.shape)
            if shape not in self._least or self._most[shape] < max(sizes):
                self._most[shape] = max(sizes)
                self._least[shape] = None if any(size % 8 for size in shape) else _steady_from(weight, sizes, generator)

    def __call__(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shape = tuple(weight.shape)
        most = self._most.get(shape, 0)
        if len(rows) > most:
            parts = [self(part, weight, bias) for part in rows.split(most)] if most else []
            return torch.cat(parts) if most else linear(rows, weight, bias)
        least = self._least[shape]
        if least is None:
            found = product(rows, weight)
        elif len(rows) < least:
            filled = rows.new_zeros(least, rows.shape[1])
            filled[: len(rows)] = rows
            found = linear(filled, weight)[: len(rows)]
        else:
            found = linear(rows, weight)
        return found if bias is None else found + bias


def _steady_from(weight: Tensor, sizes: Sequence[int], generator: torch.Generator) -> int | None:
    """Returns the fewest rows from which all sizes give a row the same bits, if they are few enough to fill up to."""
    most = max(sizes)
    given = torch.randn(most, weight.shape[1], device=weight.device, generator=generator).to(weight.dtype)
    weight = torch.randn(weight.shape, device=weight.device, generator=generator).to(weight.dtype)
    expected, backwards = linear(given, weight), linear(given.flip(0), weight).flip(0)
    if not torch.equal(expected, backwards):
        return None
    unsteady = [
        size
        for size in sizes
        for begin in range(0, min(most, WINDOWS * size) - size + 1, size)
        if not torch.equal(linear(given[begin : begin + size], weight), expected[begin : begin + size])
    ]
    least = min((size for size in sizes if size > max(unsteady, default=0)), default=most)
    return least if least <= 512 else None


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiplies rows [R, K] by a weight [N, K], adding up along K in blocks in ascending order: [R, N]."""
    count, depth, width = len(rows), rows.shape[1], len(weight)
    out = torch.empty(count, width, dtype=rows.dtype, device=rows.device)
    _product_kernel[(triton.cdiv(count, 64), triton.cdiv(width, 64))](
        rows, weight, out, count, width, depth, ROWS=64, WIDTH=64, DEPTH=64, num_warps=4, num_stages=3
    )
    return out


def add_norm(hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Adds to hidden [R, H] float32, in place; returns the norm of that, in the weight's precision."""
    normed = torch.empty(hidden.shape, dtype=weight.dtype, device=hidden.device)
    width = hidden.shape[1]
    _add_norm_kernel[(len(hidden),)](
        hidden,
        hidden if added is None else added,
        weight,
        normed,
        eps,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        ADDS=added is not None,
        num_warps=4,
    )
    return normed


def silu_times(gate_up: Tensor) -> Tensor:
    """Returns silu(gate) * up, of [R, 2 inner]: [R, inner]."""
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(count, width, dtype=gate_up.dtype, device=gate_up.device)
    _silu_kernel[(count, triton.cdiv(width, 1024))](gate_up, out, WIDTH=width, BLOCK=1024, num_warps=4)
    return out


def cumulative(weights: Tensor) -> Tensor:
    """Returns the sums of each row's numbers up to each place, [R, V] float32; torch's own depend on R."""
    weights = weights.contiguous()
    sums = torch.empty_like(weights)
    _cumulative_kernel[(len(weights),)](weights, sums, weights.shape[1], BLOCK=4096, num_warps=8)
    return sums


@triton.jit
def _product_kernel(
    rows, weight, out, count, width, depth, ROWS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, depth, DEPTH):
        at = start + tl.arange(0, DEPTH)
        left = (row < count)[:, None] & (at < depth)[None, :]
        right = (column < width)[None, :] & (at < depth)[:, None]
        a = tl.load(rows + row[:, None] * depth + at[None, :], mask=left, other=0.0)
        b = tl.load(weight + column[None, :] * depth + at[:, None], mask=right, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    inside = (row < count)[:, None] & (column < width)[None, :]
    tl.store(out + row[:, None] * width + column[None, :], total, mask=inside)


@triton.jit
def _add_norm_kernel(hidden, added, weight, normed, eps, WIDTH: tl.constexpr, PADDED: tl.constexpr, ADDS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, PADDED)
    inside = at < WIDTH
    x = tl.load(hidden + row * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(added + row * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(hidden + row * WIDTH + at, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * WIDTH + at, x * scale * w, mask=inside)


@triton.jit
def _silu_kernel(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + at, gate * tl.sigmoid(gate) * up, mask=inside)


@triton.jit
def _cumulative_kernel(weights, sums, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    before = 0.0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = tl.load(weights + row + at, mask=at < width, other=0.0)
        found = tl.cumsum(here, 0) + before
        tl.store(sums + row + at, found, mask=at < width)
        before = tl.max(found, 0)


@triton.jit(do_not_specialize=["phase"])
def attend_kernel(
    joined,
    keys,
    values,
    cos,
    sin,
    firsts,
    counts,
    places,
    slots,
    prefixes,
    prefix_slots,
    out,
    scale,
    head_stride,
    phase,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    SHARE_PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One tile and one key head: rotates; appends to the cache (phase 1), attends (phase 2), or both (phase 3).

    Query m is that of the tile's token m // SHARE_PADDED, by head m % SHARE_PADDED of those that share the key head. It
    is one kernel for all phases, so that all of them compute the same bits.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    given = tl.load(places + tile)
    count = tl.load(counts + tile)
    own_slot = tl.load(slots + tile)
    prefix, prefix_slot = tl.load(prefixes + tile), tl.load(prefix_slots + tile)
    m = tl.arange(0, QUERIES)
    number, group = m // SHARE_PADDED, m % SHARE_PADDED
    is_token = number < count
    inside = is_token & (group < SHARE)
    place = tl.maximum(given, 0) + number  # [QUERIES]
    HALF: tl.constexpr = DIM // 2
    at = tl.arange(0, PADDED)
    in_head = at < DIM
    other = tl.where(at < HALF, at + HALF, at - HALF)
    sign = tl.where(at < HALF, -1.0, 1.0)
    here = is_token[:, None] & in_head[None, :]
    c = tl.load(cos + place[:, None] * HALF + at[None, :] % HALF, mask=here, other=0.0)
    s = tl.load(sin + place[:, None] * HALF + at[None, :] % HALF, mask=here, other=0.0) * sign[None, :]
    line = joined + (tl.load(firsts + tile) + number)[:, None] * (HEADS + 2 * KV_HEADS) * DIM

    key = tl.load(line + (HEADS + head) * DIM + at[None, :], mask=here, other=0.0).to(tl.float32) * c
    key += tl.load(line + (HEADS + head) * DIM + other[None, :], mask=here, other=0.0).to(tl.float32) * s
    value = tl.load(line + (HEADS + KV_HEADS + head) * DIM + at[None, :], mask=here, other=0.0)
    mine = head * head_stride
    if phase % 2 == 1:
        writes = here & (group == 0)[:, None] & (given >= 0)  # a row that only fills the graph up writes nothing
        slot = tl.where(place < prefix, prefix_slot + place, own_slot + place - prefix)
        tl.store(keys + mine + slot[:, None] * DIM + at[None, :], key.to(value.dtype), mask=writes)
        tl.store(values + mine + slot[:, None] * DIM + at[None, :], value, mask=writes)
    if phase >= 2:
        ours = inside[:, None] & in_head[None, :]
        first = line + (head * SHARE + group[:, None]) * DIM
        query = tl.load(first + at[None, :], mask=ours, other=0.0).to(tl.float32) * c
        query += tl.load(first + other[None, :], mask=ours, other=0.0).to(tl.float32) * s
        query = query * scale

        highest = tl.sum(query * key, axis=1)  # the new token itself
        total = tl.full((QUERIES,), 1.0, tl.float32)
        result = value.to(tl.float32)
        q = query.to(value.dtype)
        for start in range(0, tl.maximum(given, 0) + count - 1, BLOCK):
            t = start + tl.arange(0, BLOCK)
            slot = tl.where(t < prefix, prefix_slot + t, own_slot + t - prefix)
            where = mine + slot[:, None] * DIM + at[None, :]
            some = (t < tl.maximum(given, 0) + count - 1)[:, None] & in_head[None, :]
            k = tl.load(keys + where, mask=some, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = tl.where(t[None, :] < place[:, None], scores, -float("inf"))
            top = tl.maximum(highest, tl.max(scores, axis=1))
            shrink = tl.exp(highest - top)
            p = tl.exp(scores - top[:, None])
            v = tl.load(values + where, mask=some, other=0.0)
            result = result * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            total = total * shrink + tl.sum(p, axis=1)
            highest = top
        result = result / total[:, None]
        to = (tl.load(firsts + tile) + number)[:, None] * HEADS * DIM + (head * SHARE + group[:, None]) * DIM
        tl.store(out + to + at[None, :], result, mask=ours)
