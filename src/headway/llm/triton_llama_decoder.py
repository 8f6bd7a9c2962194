"""Llama-shaped models token by token on a GPU: fused kernels, replayed as CUDA graphs.

    advance(R rows, n steps)     one graph a step, captured once for each number of rows (rounded up) and sampling

        embed -> [ norm -> qkv -> attend (rotate, append, attend) -> out -> norm -> gate, up -> silu -> down ] x L
              -> norm -> head -> draw -> next tokens, places + 1

The numbers a step needs (tokens, places, seeds, counts) stay on the device and are moved on by the graph itself, so
a burst of steps needs no word from the host; what was drawn is fetched once at its end. Decoding a small model is
bound by launches otherwise: 30 layers of a dozen kernels each cost a hundred times what the memory traffic does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from headway.llm.decoder import Drawn, Prompts, Reads, TreeLimits, room_for_rows
from headway.llm.engine import Sampling
from headway.llm.llama_scores import branch_price, score_branches
from headway.llm.llama_weights import LlamaShape, LlamaWeights, rotate, rotation
from headway.llm.model_types import CausalModel, NamedWeights
from headway.llm.sampling import draw, uniform
from headway.llm.trees import ReplyTree

GRANULES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
"""Numbers of rows that graphs are captured for; more are rounded up to a multiple of 256."""
PREFILL_TOKENS = 32768
"""Padded tokens that are read at once."""
NOWHERE = -(1 << 30)
"""The place of a row that only fills a graph up: it stays below 0 over a burst, and nothing is written there."""


class _DeviceRows:
    """Holds what a step reads and makes of `width` rows, on the device, where the graph itself moves it on."""

    def __init__(self, width: int, burst: int, device: torch.device) -> None:
        self.tokens = torch.zeros(width, dtype=torch.int64, device=device)
        self.places, self.seeds, self.counts = (torch.zeros_like(self.tokens) for _ in range(3))
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.drawn = torch.zeros(burst, width, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(burst, width, device=device)

    def begin(self, width: int, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor) -> None:
        """Begins a burst of the first rows, [R] each; those up to `width` only fill the graph up."""
        pairs = (self.tokens, tokens), (self.places, places), (self.seeds, seeds), (self.counts, counts)
        for place, given in pairs:
            place[: len(given)].copy_(given, non_blocking=True)
            place[len(given) : width].zero_()
        self.places[len(tokens) : width].fill_(NOWHERE)  # somebody may be parked in these rows
        self.step.zero_()

    def write(self, width: int, tokens: Tensor, log_probs: Tensor) -> None:
        """Takes what a step has drawn, [width] each."""
        self.drawn[:, :width].index_copy_(0, self.step, tokens[None])
        self.log_probs[:, :width].index_copy_(0, self.step, log_probs[None])
        self.tokens[:width].copy_(tokens)
        self.places[:width].add_(1)
        self.counts[:width].add_(1)
        self.step.add_(1)


class TritonLlamaDecoder:
    """Holds weights and the cache of `rows` samples of at most `context` tokens each, on a GPU."""

    def __init__(self, model: CausalModel, rows: int, context: int, *, burst: int = 16) -> None:
        shape = LlamaShape.of(model.config)
        if shape.dim & (shape.dim - 1):
            raise ValueError(f"heads of {shape.dim} dimensions are not supported: it must be a power of two")
        parameter = next(model.parameters())
        self.rows, self.context, self.burst = rows, context, burst
        self.device, dtype = parameter.device, parameter.dtype
        self.weights = LlamaWeights(shape, dtype, self.device)
        self.weights.load(model.state_dict())
        room = context + burst  # a row may run past its end within a burst
        self._cos, self._sin = (table.float().contiguous() for table in rotation(model, room, torch.float32))
        size = (shape.layers, _rounded(rows), shape.kv_heads, room, shape.dim)
        self.keys, self.values = room_for_rows(size, dtype, self.device, rows=rows, context=context)
        self._rows = _DeviceRows(_rounded(rows), burst, self.device)
        self._graphs: dict[tuple[int, tuple[float, int, float]], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def load(self, weights: NamedWeights) -> None:
        self.weights.load(weights)

    # -- reading prompts ----------------------------------------------------------------------------

    @torch.no_grad()
    def prefill(self, prompts: Prompts) -> Tensor:
        lengths = [len(tokens) for tokens, _ in prompts]
        return torch.cat([self._read(prompts[some]) for some in _side_by_side(lengths)])

    @torch.no_grad()
    def extend(self, reads: Reads) -> Tensor:
        lengths = [start + len(tokens) for tokens, _, start in reads]
        return torch.cat([self._extend(reads[some]) for some in _side_by_side(lengths)])

    def _read(self, prompts: Prompts) -> Tensor:
        """Reads prompts side by side; returns the logits of what comes next, [P, V]."""
        count = len(prompts)
        lengths = [len(tokens) for tokens, _ in prompts]
        longest = max(lengths)
        table = torch.zeros(count, longest, dtype=torch.int64)
        for number, (tokens, _) in enumerate(prompts):
            table[number, : len(tokens)] = tokens
        owners = torch.tensor([n for n, (_, rows) in enumerate(prompts) for _ in rows], device=self.device)
        rows = torch.tensor([row for _, rows in prompts for row in rows], device=self.device)

        def keep(number: int, keys: Tensor, values: Tensor) -> None:
            self.keys[number, :, :, :longest].index_copy_(0, rows, keys.index_select(0, owners))
            self.values[number, :, :, :longest].index_copy_(0, rows, values.index_select(0, owners))

        dtype = self.weights.embed.dtype
        cos, sin = self._cos[:longest, None].to(dtype), self._sin[:longest, None].to(dtype)
        hidden = self.weights.read(table.to(self.device), cos, sin, keep)
        last = torch.tensor([length - 1 for length in lengths], device=self.device)
        return self.weights.logits(hidden[torch.arange(count, device=self.device), last])

    def _extend(self, reads: Reads) -> Tensor:
        """Reads more tokens of rows side by side, over what they have cached; returns the logits behind, [n, V]."""
        weights, count = self.weights, len(reads)
        lengths = torch.tensor([len(tokens) for tokens, _, _ in reads], device=self.device)
        starts = torch.tensor([start for _, _, start in reads], device=self.device)
        rows = torch.tensor([row for _, row, _ in reads], device=self.device)
        longest, reach = int(lengths.max()), int((starts + lengths).max())
        table = torch.zeros(count, longest, dtype=torch.int64)
        for number, (tokens, _, _) in enumerate(reads):
            table[number, : len(tokens)] = tokens
        steps = torch.arange(longest, device=self.device)
        places = starts[:, None] + steps  # [n, T]; those behind a row's end are padding
        owners, at = (steps < lengths[:, None]).nonzero(as_tuple=True)  # of the tokens that are no padding
        into, where = rows[owners], places[owners, at]
        mask = torch.arange(reach, device=self.device) <= places[:, None, :, None]  # [n, 1, T, places]
        hidden = weights.embed[table.to(self.device)]
        angles = places.clamp_max(len(self._cos) - 1)
        cos, sin = (part[angles].unsqueeze(2).to(hidden.dtype) for part in (self._cos, self._sin))  # [n, T, 1, dim/2]
        for number, layer in enumerate(weights.layers):
            joined = linear(weights.norm_of(hidden, layer.norm), layer.qkv, layer.qkv_bias)
            queries, keys, values = weights.split_heads(weights.norm_heads(joined, layer))
            self.keys[number, into, :, where] = rotate(keys, cos, sin)[owners, at]
            self.values[number, into, :, where] = values[owners, at]
            attended = scaled_dot_product_attention(
                rotate(queries, cos, sin).transpose(1, 2),
                self.keys[number, rows, :, :reach],
                self.values[number, rows, :, :reach],
                attn_mask=mask,
                enable_gqa=True,
            )
            hidden = hidden + linear(attended.transpose(1, 2).flatten(2), layer.out)
            hidden = hidden + weights.mlp(layer, hidden)
        return weights.logits(hidden[torch.arange(count, device=self.device), lengths - 1])

    def tree_limits(self) -> TreeLimits:
        return TreeLimits(PREFILL_TOKENS, branch_price(self.weights.shape))

    def score(self, trees: Sequence[ReplyTree]) -> Tensor:
        return score_branches(self.weights, self._cos, self._sin, trees)

    # -- steps --------------------------------------------------------------------------------------

    @torch.no_grad()
    def advance(self, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor, sampling: Sampling) -> Drawn:
        rows, count = self._rows, len(tokens)
        width = min(_rounded(count), len(rows.tokens))
        rows.begin(width, tokens, places, seeds, counts)
        graph = self._graph(width, sampling)
        for _ in range(self.burst):
            graph.replay()
        return rows.drawn[:, :count].cpu(), rows.log_probs[:, :count].cpu()

    def move(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        for cache in (self.keys, self.values):
            cache[:, [one, other], :, :length] = cache[:, [other, one], :, :length]

    def _graph(self, width: int, sampling: Sampling) -> torch.cuda.CUDAGraph:
        key = width, sampling.choice
        if key not in self._graphs:
            rows = self._rows
            kept = [tensor.clone() for tensor in (rows.tokens, rows.places, rows.counts)]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # kernels are compiled and workspaces allocated outside the graph
                for _ in range(2):
                    self._one_step(width, sampling)
            torch.cuda.current_stream().wait_stream(stream)
            for tensor, before in zip((rows.tokens, rows.places, rows.counts), kept, strict=True):
                tensor.copy_(before)
            rows.step.zero_()
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile: what they do is none of this capture's business.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
            ):
                self._one_step(width, sampling)
            self._pool = self._pool or graph.pool()
            self._graphs[key] = graph
        return self._graphs[key]

    def _one_step(self, width: int, sampling: Sampling) -> None:
        """Reads the newest token of every row and draws the next one."""
        shape, weights, rows = self.weights.shape, self.weights, self._rows
        hidden = weights.embed[rows.tokens[:width]]  # [R, H]
        added: Tensor | None = None
        for number, layer in enumerate(weights.layers):
            normed = _add_norm(hidden, added, layer.norm, shape.eps)
            joined = linear(normed, layer.qkv, layer.qkv_bias)
            attended = self._attend(weights.norm_heads(joined, layer), number)
            normed = _add_norm(hidden, linear(attended, layer.out), layer.mlp_norm, shape.eps)
            added = linear(_silu_times(linear(normed, layer.gate_up)), layer.down)
        logits = linear(_add_norm(hidden, added, weights.norm, shape.eps), weights.head)
        numbers = uniform(rows.seeds[:width], rows.counts[:width])
        rows.write(width, *draw(logits, numbers, sampling))

    def _attend(self, joined: Tensor, number: int) -> Tensor:
        shape, count = self.weights.shape, len(joined)
        out = torch.empty(count, shape.heads * shape.dim, dtype=joined.dtype, device=joined.device)
        keys, values = self.keys[number], self.values[number]
        share = shape.heads // shape.kv_heads
        _attend_kernel[(count, shape.kv_heads)](
            joined,
            keys,
            values,
            self._cos,
            self._sin,
            self._rows.places,
            out,
            shape.dim**-0.5,
            keys.stride(0),
            keys.stride(1),
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            SHARE=share,
            SHARE_PADDED=max(16, triton.next_power_of_2(share)),
            DIM=shape.dim,
            BLOCK=64,
            num_warps=4,
            num_stages=3,
        )
        return out


def _rounded(rows: int) -> int:
    return next((size for size in GRANULES if size >= rows), -(-rows // 256) * 256)


def _side_by_side(lengths: list[int]) -> Iterator[slice]:
    """Cuts what is to be read, of these lengths, into pieces that fit in one pass when padded."""
    start = 0
    while start < len(lengths):
        longest, end = 0, start
        while end < len(lengths):
            longest = max(longest, lengths[end])
            if end > start and longest * (end + 1 - start) > PREFILL_TOKENS:
                break
            end += 1
        yield slice(start, end)
        start = end


def _add_norm(hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Adds to hidden, in place; returns the norm of that."""
    normed = torch.empty_like(hidden)
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


def _silu_times(gate_up: Tensor) -> Tensor:
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(count, width, dtype=gate_up.dtype, device=gate_up.device)
    _silu_kernel[(count, triton.cdiv(width, 1024))](gate_up, out, WIDTH=width, BLOCK=1024, num_warps=4)
    return out


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
def _attend_kernel(
    joined,
    keys,
    values,
    cos,
    sin,
    places,
    out,
    scale,
    row_stride,
    head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    SHARE_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row and one key head: rotate, append to the cache, attend over the places before and the new one."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    given = tl.load(places + row)
    place = tl.maximum(given, 0)
    HALF: tl.constexpr = DIM // 2
    at = tl.arange(0, DIM)
    other = tl.where(at < HALF, at + HALF, at - HALF)
    sign = tl.where(at < HALF, -1.0, 1.0)
    c = tl.load(cos + place * HALF + at % HALF)
    s = tl.load(sin + place * HALF + at % HALF) * sign
    line = joined + row * (HEADS + 2 * KV_HEADS) * DIM

    key = tl.load(line + (HEADS + head) * DIM + at).to(tl.float32) * c
    key += tl.load(line + (HEADS + head) * DIM + other).to(tl.float32) * s
    value = tl.load(line + (HEADS + KV_HEADS + head) * DIM + at)
    mine = row * row_stride + head * head_stride
    counts = (at >= 0) & (given >= 0)  # a row that only fills the graph up writes nothing
    tl.store(keys + mine + place * DIM + at, key.to(value.dtype), mask=counts)
    tl.store(values + mine + place * DIM + at, value, mask=counts)

    group = tl.arange(0, SHARE_PADDED)
    inside = (group < SHARE)[:, None]
    first = line + (head * SHARE + group[:, None]) * DIM
    query = tl.load(first + at[None, :], mask=inside, other=0.0).to(tl.float32) * c[None, :]
    query += tl.load(first + other[None, :], mask=inside, other=0.0).to(tl.float32) * s[None, :]
    query = query * scale

    highest = tl.sum(query * key[None, :], axis=1)  # the new token itself
    total = tl.full((SHARE_PADDED,), 1.0, tl.float32)
    result = tl.zeros((SHARE_PADDED, DIM), tl.float32) + value.to(tl.float32)[None, :]
    q = query.to(value.dtype)
    for start in range(0, place, BLOCK):
        t = start + tl.arange(0, BLOCK)
        old = t < place
        k = tl.load(keys + mine + t[:, None] * DIM + at[None, :], mask=old[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k))
        scores = tl.where(old[None, :], scores, -float("inf"))
        top = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp(highest - top)
        p = tl.exp(scores - top[:, None])
        v = tl.load(values + mine + t[:, None] * DIM + at[None, :], mask=old[:, None], other=0.0)
        result = result * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        total = total * shrink + tl.sum(p, axis=1)
        highest = top
    result = result / total[:, None]
    to = out + row * HEADS * DIM + (head * SHARE + group[:, None]) * DIM + at[None, :]
    tl.store(to, result, mask=inside)
