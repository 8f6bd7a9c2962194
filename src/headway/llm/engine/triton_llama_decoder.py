"""Llama-shaped models on a GPU: one pass over any tokens of any rows, whose bits depend on nothing else in the pass.

    advance(R rows, n steps)     one token a row; a step is a CUDA graph, captured for each number of rows (rounded up)
    prefill, extend              all tokens of prompts and turns end to end, at most PASS_TOKENS at once
    score                        prompts, and branches that continue them, end to end

        embed -> [ norm -> qkv -> attend (rotate, append, attend) -> out -> norm -> gate, up -> silu -> down ] x L
              -> norm -> head

A token's numbers are the same whether it is read with its prompt, in a later piece, or drawn in a step; alone or with a
thousand others. So a conversation gets the same replies whoever else is generating, and whether its cache was kept or
had to be read again. Three things make it so: products have one order of summation per row (triton_kernels.py); norms
work row by row; a token attends to the places before it block by block in ascending order, and to itself first.

    tile       up to 4 consecutive places of one row (as many as fit into 16 queries of a key head), in one program

The numbers a step needs (tokens, places, seeds, counts) stay on the device and are moved on by the graph itself, so
a burst of steps needs no word from the host; what was drawn is fetched once at its end. Decoding a small model is
bound by launches otherwise: 30 layers of a dozen kernels each cost a hundred times what the memory traffic does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from headway.llm.engine.decoder import Drawn, Prompts, Reads, TreeLimits, room_for_rows
from headway.llm.engine.decoder_sampling import draw, uniform
from headway.llm.engine.llama_scores import branch_price
from headway.llm.engine.llama_weights import LlamaShape, LlamaWeights, rotation
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.engine.triton_kernels import APPEND, ATTEND, Products, add_norm, attend_kernel, silu_times
from headway.llm.model.types import CausalModel, NamedWeights
from headway.llm.train.trees import ReplyTree

GRANULES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
"""Numbers of rows that graphs are captured for, and of tokens in a pass; more are rounded up to a multiple of 256."""
PASS_TOKENS = 4096
"""Tokens that are read at once."""
SCORED_TOKENS = 32768
"""Tokens of trees that are scored in one pass."""
HEAD_ROWS = 256
"""Rows of logits that are made at once when trees are scored: they are by far the largest thing there."""
NOWHERE = -(1 << 30)
"""The place of a row that only fills a graph up: it stays below 0 over a burst, and nothing is written there."""
QUERIES = 16
"""Queries of one tile: the smallest number of rows that a tensor core multiplies."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens at consecutive places of one sequence, and where the cache holds what they attend to.

    Place t of the sequence is cached in slot `prefix_slot + t` if t < prefix, else in slot `slot + t - prefix`.
    """

    tokens: Tensor  # [T] int64
    place: int
    slot: int
    prefix: int = 0
    prefix_slot: int = 0


@dataclass(frozen=True, slots=True)
class Tiles:
    """Says which tokens are attended for together: M tiles, [M] int64 each, on the device."""

    first: Tensor  # the number of its first token
    count: Tensor
    place: Tensor  # of its first token; below 0 if it only fills up
    slot: Tensor
    prefix: Tensor
    prefix_slot: Tensor


class _DeviceRows:
    """Holds what a step reads and makes of `width` rows, on the device, where the graph itself moves it on."""

    def __init__(self, width: int, burst: int, room: int, device: torch.device) -> None:
        self.tokens = torch.zeros(width, dtype=torch.int64, device=device)
        self.places, self.seeds, self.counts = (torch.zeros_like(self.tokens) for _ in range(3))
        self.drawn = torch.zeros(burst, width, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(burst, width, device=device)
        numbers, zeros = torch.arange(width, device=device), torch.zeros_like(self.tokens)
        self._fixed = numbers, torch.ones_like(self.tokens), numbers * room, zeros

    def begin(self, width: int, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor) -> None:
        """Begins a burst of the first rows, [R] each; those up to `width` only fill the graph up."""
        pairs = (self.tokens, tokens), (self.places, places), (self.seeds, seeds), (self.counts, counts)
        for place, given in pairs:
            place[: len(given)].copy_(given, non_blocking=True)
            place[len(given) : width].zero_()
        self.places[len(tokens) : width].fill_(NOWHERE)  # somebody may be parked in these rows

    def tiles(self, width: int) -> Tiles:
        """Returns one tile a row."""
        numbers, ones, slots, zeros = (tensor[:width] for tensor in self._fixed)
        return Tiles(numbers, ones, self.places[:width], slots, zeros, zeros)

    def write(self, width: int, tokens: Tensor, log_probs: Tensor) -> None:
        """Takes what a step has drawn, [width] each, behind what the steps before it have."""
        for kept, new in ((self.drawn, tokens), (self.log_probs, log_probs)):
            kept[:, :width].copy_(torch.cat([kept[1:, :width], new[None]]))
        self.tokens[:width].copy_(tokens)
        self.places[:width].add_(1)
        self.counts[:width].add_(1)


class TritonLlamaDecoder:
    """Holds weights and the cache of `rows` samples of at most `context` tokens each, on a GPU."""

    def __init__(self, model: CausalModel, rows: int, context: int, *, burst: int = 16) -> None:
        shape = LlamaShape.of(model.config)
        parameter = next(model.parameters())
        self.rows, self.context, self.burst = rows, context, burst
        self.device, dtype = parameter.device, parameter.dtype
        self.weights = LlamaWeights(shape, dtype, self.device)
        self.weights.load(model.state_dict())
        self._room = -(-(context + burst) // 16) * 16  # a row may run past its end within a burst
        self._cos, self._sin = (table.float().contiguous() for table in rotation(model, self._room, torch.float32))
        size = (shape.layers, shape.kv_heads, _rounded(rows), self._room, shape.dim)
        self.keys, self.values = room_for_rows(size, dtype, self.device, rows=rows, context=context)
        self._tile = max(1, QUERIES // triton.next_power_of_2(shape.heads // shape.kv_heads))
        self._rows = _DeviceRows(_rounded(rows), burst, self._room, self.device)
        self._graphs: dict[tuple[int, tuple[float, int, float]], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._products = self._choose_products()
        self.extend([(torch.zeros(1, dtype=torch.int64), 0, 0)])  # where the kernels do not fit, it shows here

    def load(self, weights: NamedWeights) -> None:
        self.weights.load(weights)

    def _choose_products(self) -> Products:
        layer, most = self.weights.layers[0], _sizes(PASS_TOKENS)
        given = [
            *((one, most) for one in (layer.qkv, layer.out, layer.gate_up, layer.down)),
            (self.weights.head, _sizes(max(HEAD_ROWS, _rounded(self.rows)))),
        ]
        return Products(given, self.device)

    # -- reading ------------------------------------------------------------------------------------

    @torch.no_grad()
    def prefill(self, prompts: Prompts) -> Tensor:
        """Reads each prompt into the first of its rows, and copies it to the others."""
        logits = self._read([Span(tokens, 0, rows[0] * self._room) for tokens, rows in prompts])
        for tokens, (first, *others) in prompts:
            for cache in (self.keys, self.values) if others else ():
                cache[:, :, others, : len(tokens)] = cache[:, :, first : first + 1, : len(tokens)]
        return logits

    @torch.no_grad()
    def extend(self, reads: Reads) -> Tensor:
        return self._read([Span(tokens, start, row * self._room) for tokens, row, start in reads])

    def _read(self, spans: Sequence[Span]) -> Tensor:
        """Returns the logits behind each span, [n, V]."""
        shape = self.weights.shape
        size = (shape.layers, shape.kv_heads, -1, shape.dim)
        keys, values = self.keys.view(size), self.values.view(size)
        last: list[Tensor] = []
        for some, ends in _passes(spans):
            tokens, tiles = self._lay_out(some)
            hidden = self._pass(tokens, tiles, list(zip(keys, values, strict=True)), is_step=False)
            last.append(hidden.index_select(0, ends.to(self.device)))
        hidden = torch.cat(last)
        return torch.cat([self._logits(rows) for rows in hidden.split(HEAD_ROWS)])

    def _lay_out(self, spans: Sequence[Span]) -> tuple[Tensor, Tiles]:
        """Returns the tokens of spans end to end, filled up to a granule, and their tiles."""
        lines: list[np.ndarray] = []
        at = 0
        for span in spans:
            first = np.arange(0, len(span.tokens), self._tile)
            line = np.empty((6, len(first)), np.int64)
            line[0], line[1] = at + first, np.minimum(len(span.tokens) - first, self._tile)
            line[2], line[3], line[4], line[5] = span.place + first, span.slot, span.prefix, span.prefix_slot
            lines.append(line)
            at += len(span.tokens)
        if sum(line.shape[1] for line in lines) % 2:  # each row of the table begins at a multiple of 16 bytes
            lines.append(np.array([[0], [0], [NOWHERE], [0], [0], [0]]))
        tokens = torch.zeros(_rounded(at), dtype=torch.int64)
        torch.cat([span.tokens for span in spans], out=tokens[:at])
        rows = torch.from_numpy(np.ascontiguousarray(np.concatenate(lines, 1))).to(self.device)
        return tokens.to(self.device), Tiles(*rows)

    def tree_limits(self) -> TreeLimits:
        return TreeLimits(SCORED_TOKENS, branch_price(self.weights.shape))

    @torch.no_grad()
    def score(self, trees: Sequence[ReplyTree]) -> Tensor:
        """Reads trees into a cache of their own: each token's slot is its number in the pass."""
        shape, spans, at = self.weights.shape, list[Span](), 0
        sources: list[np.ndarray] = []
        for tree in trees:
            begin, length = at, len(tree.prompt)
            spans.append(Span(torch.from_numpy(tree.prompt), 0, begin))
            at += length
            for reply in tree.replies:
                inner = len(reply) - 1
                sources.append(np.concatenate([[begin + length - 1], np.arange(at, at + inner)]))
                if inner:
                    spans.append(Span(torch.from_numpy(reply[:-1]), length, at, length, begin))
                at += inner
        targets = torch.from_numpy(np.concatenate([reply for tree in trees for reply in tree.replies]))
        tokens, tiles = self._lay_out(spans)
        size = (shape.kv_heads, -(-at // 16) * 16, shape.dim)
        cache = [torch.empty(size, dtype=self.keys.dtype, device=self.device) for _ in range(2)]
        hidden = self._pass(tokens, tiles, [(cache[0], cache[1])] * shape.layers, is_step=False)
        chosen = hidden.index_select(0, torch.from_numpy(np.concatenate(sources)).to(self.device))
        parts = zip(chosen.split(HEAD_ROWS), targets.to(self.device).split(HEAD_ROWS), strict=True)
        return torch.cat([self._log_probs(rows).gather(1, wanted[:, None])[:, 0] for rows, wanted in parts])

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
        self.keys[:, :, target, :length] = self.keys[:, :, source, :length]
        self.values[:, :, target, :length] = self.values[:, :, source, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        for cache in (self.keys, self.values):
            cache[:, :, [one, other], :length] = cache[:, :, [other, one], :length]

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
        shape, rows = self.weights.shape, self._rows
        size = (shape.layers, shape.kv_heads, -1, shape.dim)
        caches = list(zip(self.keys.view(size), self.values.view(size), strict=True))
        hidden = self._pass(rows.tokens[:width], rows.tiles(width), caches, is_step=True)
        logits = self._products(hidden, self.weights.head)
        numbers = uniform(rows.seeds[:width], rows.counts[:width])
        rows.write(width, *draw(logits, numbers, sampling))

    # -- the model ----------------------------------------------------------------------------------

    def _pass(self, tokens: Tensor, tiles: Tiles, caches: Sequence[tuple[Tensor, Tensor]], *, is_step: bool) -> Tensor:
        """Takes tokens [N] through all layers; returns what the head reads, [N, H]. Their keys and values are cached,
        in each layer's [kv_heads, slots, dim]. `is_step`: no token attends to another one of the same pass."""
        weights, times = self.weights, self._products
        eps = weights.shape.eps
        hidden = weights.embed[tokens].float()  # what layers add to is kept in float32, as the trainer keeps it
        added: Tensor | None = None
        for layer, (keys, values) in zip(weights.layers, caches, strict=True):
            normed = add_norm(hidden, added, layer.norm, eps)
            joined = weights.norm_heads(times(normed, layer.qkv, layer.qkv_bias), layer)
            attended = self._attend(joined, tiles, keys, values, is_step)
            normed = add_norm(hidden, times(attended, layer.out), layer.mlp_norm, eps)
            added = times(silu_times(times(normed, layer.gate_up)), layer.down)
        return add_norm(hidden, added, weights.norm, eps)

    def _attend(self, joined: Tensor, tiles: Tiles, keys: Tensor, values: Tensor, is_step: bool) -> Tensor:
        shape = self.weights.shape
        size = len(joined), shape.heads * shape.dim
        out = joined.new_empty(size) if is_step else joined.new_zeros(size)  # tokens that only fill up have no tile
        share = shape.heads // shape.kv_heads
        for phase in (APPEND + ATTEND,) if is_step else (APPEND, ATTEND):  # a step needs no token of its own pass
            attend_kernel[(len(tiles.first), shape.kv_heads)](
                joined,
                keys,
                values,
                self._cos,
                self._sin,
                tiles.first,
                tiles.count,
                tiles.place,
                tiles.slot,
                tiles.prefix,
                tiles.prefix_slot,
                out,
                shape.dim**-0.5,
                keys.stride(0),
                phase,
                HEADS=shape.heads,
                KV_HEADS=shape.kv_heads,
                SHARE=share,
                SHARE_PADDED=triton.next_power_of_2(share),
                QUERIES=max(QUERIES, triton.next_power_of_2(share)),
                DIM=shape.dim,
                PADDED=max(16, triton.next_power_of_2(shape.dim)),
                BLOCK=64,
                num_warps=4,
                num_stages=3 if shape.dim <= 128 else 2,
            )
        return out

    def _log_probs(self, hidden: Tensor) -> Tensor:
        """As a token is drawn with them."""
        return torch.log_softmax(self._logits(hidden).float(), -1)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of rows that the last norm has seen, [n, V]."""
        width = _rounded(len(hidden))
        filled = torch.nn.functional.pad(hidden, (0, 0, 0, width - len(hidden)))
        return self._products(filled, self.weights.head)[: len(hidden)]


def _rounded(rows: int) -> int:
    return next((size for size in GRANULES if size >= rows), -(-rows // 256) * 256)


def _sizes(most: int) -> list[int]:
    """Returns all granules up to this one."""
    return sorted({*(size for size in GRANULES if size < most), *range(1280, most, 256), most})


def _passes(spans: Sequence[Span]) -> Iterator[tuple[list[Span], Tensor]]:
    """Cuts spans into passes of at most PASS_TOKENS; with each, the numbers of the tokens that spans end with."""
    some: list[Span] = []
    ends: list[int] = []
    size = 0
    for span in spans:
        start = 0
        while start < len(span.tokens):
            if size == PASS_TOKENS:
                yield some, torch.tensor(ends, dtype=torch.int64)
                some, ends, size = [], [], 0
            piece = span.tokens[start : start + PASS_TOKENS - size]
            some.append(Span(piece, span.place + start, span.slot, span.prefix, span.prefix_slot))
            start, size = start + len(piece), size + len(piece)
        ends.append(size - 1)
    yield some, torch.tensor(ends, dtype=torch.int64)
