"""Llama-shaped models token by token on a CPU, for many rows at once.

    prefill   one prompt at a time           tokens [T]        -> logits of the next token [V], keys and values
    extend    some rows, some tokens each    tokens [T] a row  -> logits [n, V]
    decode    all rows, one token each       tokens [R]        -> logits [R, V]

    cache     keys, values [layer, slot, head, place, dim]; a row is one sample, rows 0 .. R - 1 take steps; which slot
              is a row's says `slots`, so rows that change places cost nothing; one slot more is for scores, and holds
              the last prompt: what the next one has in common with it is not read again

A row's numbers do not depend on the other rows, bit for bit: matrices are multiplied with at least MIN_ROWS rows, from
where the library computes every row in the same order, and attention runs over each row's own length in a kernel of
ours. For the same reason `extend` gives the bits of `decode`, however a text is cut into pieces; `prefill` attends
with a kernel of the library, which is faster for long prompts and rounds otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn.functional import linear

from headway.llm.engine.decoder import Drawn, Prompts, Reads, TreeLimits, room_for_rows
from headway.llm.engine.decoder_sampling import draw, uniform
from headway.llm.engine.llama_scores import branch_price, line_up, log_probs_of
from headway.llm.engine.llama_weights import LlamaShape, LlamaWeights, rotation
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.model.types import CausalModel, NamedWeights
from headway.llm.train.trees import ReplyTree

MIN_ROWS = 16
EXTEND_TOKENS = 512
"""Tokens that are read at once into cached rows: enough to keep the matrices busy, few enough for a small memory."""
SCORE_TOKENS = 4096
"""Padded tokens of trees that are scored at once: enough to keep the matrices busy."""


class LlamaDecoder:
    """Holds weights and the cache of `rows` samples of at most `context` tokens each, on a CPU."""

    burst = 1
    steps_beside_reading = True

    def __init__(self, model: CausalModel, rows: int, context: int) -> None:
        parameter = next(model.parameters())
        shape = LlamaShape.of(model.config)
        self.rows, self.context, self.device = rows, context, parameter.device
        self.weights = LlamaWeights(shape, parameter.dtype, parameter.device)
        self.weights.load(model.state_dict())
        self.cos, self.sin = rotation(model, context, parameter.dtype)
        size = (shape.layers, rows + 1, shape.kv_heads, context, shape.dim)
        self.keys, self.values = room_for_rows(size, parameter.dtype, self.device, rows=rows, context=context)
        self.slots = np.arange(rows)
        self._scores = torch.zeros(shape.heads, context + 16)
        self._last_prompt = np.zeros(0, np.int64)  # in the slot behind those of the rows

    def load(self, weights: NamedWeights) -> None:
        self.weights.load(weights)
        self._last_prompt = self._last_prompt[:0]

    @torch.no_grad()
    def prefill(self, prompts: Prompts) -> Tensor:
        """Reads one prompt after another, so that its numbers do not depend on its neighbours."""
        return torch.cat([self._read(tokens, rows) for tokens, rows in prompts])

    def _read(self, tokens: Tensor, rows: list[int]) -> Tensor:
        """Reads a prompt [T] into each of `rows`; returns the logits of what comes next, [1, V]."""
        length, slot = len(tokens), int(self.slots[rows[0]])

        def keep(number: int, keys: Tensor, values: Tensor) -> None:
            self.keys[number, slot, :, :length] = keys[0]
            self.values[number, slot, :, :length] = values[0]

        cos, sin = self.cos[:length].unsqueeze(1), self.sin[:length].unsqueeze(1)
        hidden = self.weights.read(tokens[None], cos, sin, keep)
        for row in rows[1:]:
            self.move(rows[0], row, length)
        return self.weights.logits(hidden[0, -1:])

    @torch.no_grad()
    def extend(self, reads: Reads, steps: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Reads token by token as `decode` does, many at a time; the head sees the last token of each row alone.

        `steps`: tokens [R] and places [R] of the first R rows, one each, whose logits come behind those of the reads.
        """
        counts = np.array([len(more) for more, _, _ in reads])
        rows, starts = np.array([row for _, row, _ in reads]), np.array([start for _, _, start in reads])
        parts = [more for more, _, _ in reads]
        if steps is not None:
            beside = np.arange(len(steps[0]))
            parts, rows = [*parts, steps[0]], np.concatenate([rows, beside])
            counts, starts = np.concatenate([counts, np.ones_like(beside)]), np.concatenate([starts, steps[1].numpy()])
        tokens, ends = torch.cat(parts), counts.cumsum()  # [T], T over all rows
        slots = np.repeat(self.slots[rows], counts)
        places = torch.from_numpy(np.arange(len(tokens)) + np.repeat(starts - (ends - counts), counts))
        last = torch.zeros(_padded(len(rows)), self.weights.shape.hidden, dtype=self.keys.dtype)
        for begin in range(0, len(tokens), EXTEND_TOKENS):
            piece = slice(begin, begin + EXTEND_TOKENS)
            here = np.flatnonzero((ends > begin) & (ends <= begin + EXTEND_TOKENS))
            wanted = torch.from_numpy(ends[here] - 1 - begin)
            hidden = self._hidden(tokens[piece], slots[piece], places[piece], wanted)
            if len(here):
                last[here[0] : here[-1] + 1] = hidden[: len(wanted)]
        return self.weights.logits(last)[: len(rows)]

    @torch.no_grad()
    def advance(self, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor, sampling: Sampling) -> Drawn:
        drawn, log_probs = draw(self.decode(tokens, places), uniform(seeds, counts), sampling)
        return drawn[None], log_probs[None]

    def decode(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Reads one token for each of the first R rows at its place [R]; returns logits of what comes next, [R, V]."""
        return self.weights.logits(self._hidden(tokens, self.slots[: len(tokens)], places))[: len(tokens)]

    def _hidden(self, tokens: Tensor, slots: np.ndarray, places: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Reads tokens [T], each into its slot [T] at its place [T], in this order; returns [at least T, H].

        `wanted` [n]: only what these see is asked for, and returned, [at least n, H]. The last layer then keeps the
        keys and values of the others, and computes no more of them.
        """
        weights, shape, count = self.weights, self.weights.shape, len(tokens)
        padded = _padded(count)
        hidden = torch.zeros(padded, shape.hidden, dtype=self.keys.dtype)
        hidden[:count] = weights.embed[tokens]
        attended = torch.zeros(padded, shape.heads * shape.dim, dtype=self.keys.dtype)
        at, cos, sin, scores = places.numpy(), self.cos.numpy(), self.sin.numpy(), self._scores.numpy()
        heads = attended.view(padded, shape.heads, shape.dim).numpy()
        attends = np.ones(count, np.bool_)
        end = len(weights.layers) - 1
        for number, layer in enumerate(weights.layers):
            joined = linear(weights.norm_of(hidden, layer.norm), layer.qkv, layer.qkv_bias)
            if wanted is not None and number == end:
                attends[:] = False
                attends[wanted.numpy()] = True
            _attend(
                weights.norm_heads(joined, layer).view(padded, -1, shape.dim).numpy(),
                cos,
                sin,
                self.keys[number].numpy(),
                self.values[number].numpy(),
                slots,
                at,
                attends,
                scores,
                heads,
            )
            if wanted is not None and number == end:
                rows = torch.zeros(_padded(len(wanted)), dtype=torch.int64)  # those beyond are there to be many enough
                rows[: len(wanted)] = wanted
                hidden, attended = hidden[rows], attended[rows]
            hidden = hidden + linear(attended, layer.out)
            hidden = hidden + weights.mlp(layer, hidden)
        return hidden

    def tree_limits(self) -> TreeLimits:
        return TreeLimits(SCORE_TOKENS, branch_price(self.weights.shape))

    @torch.no_grad()
    def score(self, trees: Sequence[ReplyTree]) -> Tensor:
        """Reads token by token as `extend` does, so what is known already changes no bit of what is found."""
        line = line_up(trees, self._last_prompt)
        self._last_prompt = self._last_prompt[:0]  # until all is read
        slots = np.full(len(line.tokens), self.rows)
        found = torch.zeros(len(line.targets))
        for begin in range(0, len(line.tokens), EXTEND_TOKENS):
            piece = slice(begin, begin + EXTEND_TOKENS)
            first, end = torch.searchsorted(line.wanted, torch.tensor([begin, begin + EXTEND_TOKENS])).tolist()
            wanted = line.wanted[first:end] - begin
            hidden = self._hidden(line.tokens[piece], slots[piece], line.places[piece], wanted)
            here = (line.sources >= first) & (line.sources < end)
            rows = self.weights.logits(hidden)[line.sources[here] - first]
            found[here] = log_probs_of(rows, line.targets[here])
        self._last_prompt = trees[-1].prompt
        return found

    def move(self, source: int, target: int, length: int) -> None:
        source, target = int(self.slots[source]), int(self.slots[target])
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        self.slots[[one, other]] = self.slots[[other, one]]


def _padded(count: int) -> int:
    """Returns how many rows matrices are multiplied with, so that each row's bits are its own."""
    return max(MIN_ROWS, count + -count % 4)


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _attend(joined, cos, sin, keys, values, rows, places, attends, scores, attended):
    """Rotates, appends to the cache, and attends over each token's own row up to its own place, one after another.

    joined [T, heads + 2 kv_heads, dim], keys and values [rows, kv_heads, context, dim], rows and places [count],
    attends [count] (others are only appended), scores [heads, context + 16] is scratch, attended [T, heads, dim] is
    written.
    """
    heads, dim = attended.shape[1], attended.shape[2]
    kv_heads = keys.shape[1]
    share, half = heads // kv_heads, dim // 2
    scale = np.float32(1.0 / math.sqrt(dim))
    query = np.empty(dim, np.float32)
    whole = np.empty(scores.shape[1], np.int32)  # powers of two, as the bits of floats
    powers = whole.view(np.float32)
    for token in range(len(places)):
        row, place = rows[token], places[token]
        for head in range(kv_heads):
            for i in range(half):
                first, second = joined[token, heads + head, i], joined[token, heads + head, half + i]
                keys[row, head, place, i] = first * cos[place, i] - second * sin[place, i]
                keys[row, head, place, half + i] = second * cos[place, i] + first * sin[place, i]
                values[row, head, place, i] = joined[token, heads + kv_heads + head, i]
                values[row, head, place, half + i] = joined[token, heads + kv_heads + head, half + i]
            if not attends[token]:
                continue
            for number in range(head * share, (head + 1) * share):
                for i in range(half):
                    first, second = joined[token, number, i], joined[token, number, half + i]
                    query[i] = (first * cos[place, i] - second * sin[place, i]) * scale
                    query[half + i] = (second * cos[place, i] + first * sin[place, i]) * scale
                line = scores[number]
                highest = np.float32(-np.inf)
                for t in range(place + 1):
                    dot = np.float32(0.0)
                    for i in range(dim):
                        dot += query[i] * keys[row, head, t, i]
                    line[t] = dot
                    highest = max(highest, dot)
                total = _exponentials(line, place + 1, highest, whole, powers)
                out = attended[token, number]
                for i in range(dim):
                    out[i] = np.float32(0.0)
                for t in range(place + 1):
                    weight = line[t] / total
                    for i in range(dim):
                        out[i] += weight * values[row, head, t, i]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy", inline="always")
def _exponentials(line, count, highest, whole, powers):
    """line[:count] = exp(line - highest), without calls so that it becomes vector code; returns their sum.

    2^x = 2^n 2^f: n goes into the exponent's bits, 2^f for |f| <= 1/2 is a polynomial (exact to a float's rounding).
    """
    for t in range(count):
        x = max((line[t] - highest) * np.float32(1.4426950408889634), np.float32(-126.0))
        n = np.floor(x + np.float32(0.5))
        f = x - n
        p = np.float32(1.53375769e-4)
        p = p * f + np.float32(1.33998604e-3)
        p = p * f + np.float32(9.61851953e-3)
        p = p * f + np.float32(5.55032900e-2)
        p = p * f + np.float32(2.40226466e-1)
        p = p * f + np.float32(6.93147206e-1)
        line[t] = p * f + np.float32(1.0)
        whole[t] = (np.int32(n) + np.int32(127)) << np.int32(23)
    total = np.float32(0.0)
    for t in range(count):
        line[t] *= powers[t]
        total += line[t]
    return total
