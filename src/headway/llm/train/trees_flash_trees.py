"""Attention over rows of trees by flash kernels for sequences end to end: twice, and then joined.

    places      p0 p1 p2 a0 a1 b0 | q0 q1 c0 c1 | .. ..      two trees end to end, then padding

    own         p0 p1 p2 | a0 a1 | b0 | q0 q1 | c0 c1 | ..   every span by itself, each place and those before it
    prompt      a0 a1 b0 of p0 p1 p2,   c0 c1 of q0 q1       all replies of a tree as one sequence, of its prompt

A reply sees both. What it finds there is joined by the logarithms of the two sums of exponents, l and m, as if it had
been one sum: out = (e^l own + e^m prompt) / (e^l + e^m). Backwards, each kernel is given the joined output and the
joined logarithm, and so finds its part of the gradient of the whole.

No pair of places is computed that does not see each other, up to the kernels' own blocks, and no table of blocks is
made. Sequences end where the next begins, for queries and for keys, so those that have nothing to look at, or that
nobody looks at, stand there with no keys or no queries.

The operators are opaque to a compiler, who is told that what they return is contiguous, and computed on the GPU by
torch's flash kernels. On a CPU they are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.library import custom_op

from headway.llm.train.fixed_order import fixed_order
from headway.llm.train.ragged_device_copies import send

FEWEST = 64
"""Sequences of a row: their number is rounded up to a power of two from here, those in excess are empty."""
WIDEST = 256
"""Numbers of a head: what the kernels are made for."""


@dataclass(frozen=True, slots=True)
class FlashTable:
    """Says where sequences begin and end in a row of T places; the last borders are repeated."""

    own: Tensor  # [n + 1] int32: spans
    queries: Tensor  # [m + 1] int32: sequences that look at prompts
    keys: Tensor  # [m + 1] int32: what they look at
    longest: Tensor  # [3] int64, on the CPU: of spans, of queries, of keys; rounded up

    @classmethod
    def of(cls, starts: np.ndarray, lengths: np.ndarray, roots: np.ndarray, length: int) -> FlashTable:
        """Makes it of S spans without gaps, the number of whose tree's prompt is in `roots` (all [S])."""
        used = int(lengths.sum())
        longest = _power_of_two(int(lengths.max()))
        padding = [longest] * ((length - used) // longest) + [(length - used) % longest]
        own = [*lengths.tolist(), *padding]
        queries, keys = [], []
        is_root = roots == np.arange(len(roots))
        begins = starts[is_root].tolist()
        for begin, prompt, end in zip(begins, lengths[is_root].tolist(), [*begins[1:], used], strict=True):
            queries += [prompt, end - begin - prompt, 0]  # the prompt itself, the replies, nobody
            keys += [0, prompt, end - begin - prompt]  # look at nothing, the prompt, the replies
        for size in padding:
            queries += [size, 0]
            keys += [0, size]
        lines = (own, queries, keys)
        widest = torch.tensor([_power_of_two(max(line)) for line in lines])  # what is longer would not be computed
        own_borders, query_borders, key_borders = (_borders(line, length) for line in lines)
        return cls(own_borders, query_borders, key_borders, widest)

    def to(self, device: torch.device | str) -> FlashTable:
        return FlashTable(send(self.own, device), send(self.queries, device), send(self.keys, device), self.longest)


def _borders(sizes: list[int], length: int) -> Tensor:
    count = max(FEWEST, _power_of_two(len(sizes)))
    found = np.full(count + 1, length, np.int32)
    found[: len(sizes) + 1] = np.cumsum([0, *sizes])
    return torch.from_numpy(found)


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def read_trees(
    query: Tensor,  # [1, heads, T, dim]
    key: Tensor,  # [1, fewer heads, T, dim]
    value: Tensor,
    table: FlashTable,
    scaling: float | None,
) -> Tensor:
    """Returns what every head found, [1, T, heads, dim]."""
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    rows = (line[0].transpose(0, 1) for line in (query, key, value))
    found, _ = tree_attention(*rows, table.own, table.queries, table.keys, table.longest, scale)
    return found[None]


@custom_op("headway::tree_attention", mutates_args=(), device_types="cuda")
def tree_attention(
    query: Tensor,  # [T, heads, dim]
    key: Tensor,
    value: Tensor,
    own: Tensor,
    queries: Tensor,
    keys: Tensor,
    longest: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Returns what was found [T, heads, dim], and the logarithms of the sums of exponents [heads, T]."""
    span, most, least = longest.tolist()
    mine, mine_log = _flash(query, key, value, own, own, span, span, True, scale)
    theirs, theirs_log = _flash(query, key, value, queries, keys, most, least, False, scale)
    return _joining()(mine, mine_log, theirs, theirs_log)


@custom_op("headway::tree_attention_backward", mutates_args=(), device_types="cuda")
def tree_attention_backward(
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    found: Tensor,
    logs: Tensor,
    own: Tensor,
    queries: Tensor,
    keys: Tensor,
    longest: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, keys and values."""
    span, most, least = longest.tolist()
    slope = slope.contiguous()
    whole = (slope, query, key, value, found, logs)
    with fixed_order():
        mine = _flash_backward(*whole, own, own, span, span, True, scale)
        theirs = _flash_backward(*whole, queries, keys, most, least, False, scale)
    of_query, of_key, of_value = (
        torch.add(one, other, out=one.new_empty(one.shape)) for one, other in zip(mine, theirs, strict=True)
    )
    return of_query, of_key, of_value


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Tensor,
    keys: Tensor,
    most: int,
    least: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    found, logs, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, queries, keys, most, least, 0.0, is_causal, False, scale=scale
    )
    if logs.shape != (query.shape[1], query.shape[0]):
        raise ValueError(f"this torch keeps the sums of attention as {list(logs.shape)}, expected [heads, places]")
    return found, logs


def _flash_backward(
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    found: Tensor,
    logs: Tensor,
    queries: Tensor,
    keys: Tensor,
    most: int,
    least: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dice = torch.empty(2, dtype=torch.uint64, device=query.device)  # nothing is dropped: nobody throws them
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        slope, query, key, value, found, logs, queries, keys, most, least, 0.0, is_causal, dice, dice[:0], scale=scale
    )
    return gradients


@cache
def _joining() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_join, dynamic=False)


def _join(mine: Tensor, mine_log: Tensor, theirs: Tensor, theirs_log: Tensor) -> tuple[Tensor, Tensor]:
    """Who looked at nothing has an infinite logarithm, of either sign."""
    theirs_log = torch.where(theirs_log.isinf(), float("-inf"), theirs_log)
    share = torch.sigmoid(theirs_log - mine_log).T[:, :, None]
    found = mine.float() + share * (theirs.float() - mine.float())
    return found.to(mine.dtype).contiguous(), torch.logaddexp(mine_log, theirs_log)


# -- the same, written out --------------------------------------------------------------------------------


@tree_attention.register_kernel("cpu")
def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own: Tensor,
    queries: Tensor,
    keys: Tensor,
    longest: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    shares, logs, _, value = _attended(query, key, value, seen(len(query), own, queries, keys), scale)
    return torch.einsum("hqk,khd->qhd", shares, value).contiguous(), logs


@tree_attention_backward.register_kernel("cpu")
def _written_out_backward(
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    found: Tensor,
    logs: Tensor,
    own: Tensor,
    queries: Tensor,
    keys: Tensor,
    longest: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    fewer = key.shape
    shares, _, key, value = _attended(query, key, value, seen(len(query), own, queries, keys), scale)
    of_value = torch.einsum("hqk,qhd->khd", shares, slope)
    of_shares = torch.einsum("qhd,khd->hqk", slope, value)
    of_scores = shares * (of_shares - (slope * found).sum(-1).T[:, :, None]) * scale
    of_key = torch.einsum("hqk,qhd->khd", of_scores, query)
    of_query = torch.einsum("hqk,khd->qhd", of_scores, key)
    of_key, of_value = (one.reshape(*fewer[:2], -1, fewer[2]).sum(2) for one in (of_key, of_value))
    return of_query.contiguous(), of_key.contiguous(), of_value.contiguous()


def _attended(
    query: Tensor, key: Tensor, value: Tensor, is_seen: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the shares [heads, T, T], the logarithms of their sums [heads, T], keys and values of every head."""
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = (torch.einsum("qhd,khd->hqk", query, key) * scale).masked_fill(~is_seen, float("-inf"))
    return torch.softmax(scores, -1), torch.logsumexp(scores, -1).float(), key, value


def seen(length: int, own: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Says who sees whom, [T, T] bool, as the sequences say it."""
    places = torch.arange(length, device=own.device)
    span, looking, looked_at = (
        torch.searchsorted(borders, places, right=True, out_int32=True) for borders in (own, queries, keys)
    )
    is_own = (span[:, None] == span[None]) & (places[:, None] >= places[None])
    return is_own | (looking[:, None] == looked_at[None])


# -- what a compiler and autograd have to know ------------------------------------------------------------


@tree_attention.register_fake
def _shapes(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[1::-1], dtype=torch.float32)


@tree_attention_backward.register_fake
def _backward_shapes(slope: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, own, queries, keys, longest, found, logs = ctx.saved_tensors
    gradients = tree_attention_backward(slope, query, key, value, found, logs, own, queries, keys, longest, ctx.scale)
    return *gradients, None, None, None, None, None


tree_attention.register_autograd(_backward, setup_context=_keep)
