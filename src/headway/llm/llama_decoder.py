"""Llama-shaped models token by token, for many rows at once: what an engine steps.

    prefill   one prompt at a time           tokens [T]        -> logits of the next token [V], keys and values
    decode    all rows, one token each       tokens [R]        -> logits [R, V]

    cache     keys, values [layer, row, head, place, dim]; a row is one sample, rows 0 .. R - 1 are in use

Weights of the same kind are joined (queries, keys and values; gate and up), norms and rotation are as in the
original. On a CPU a row's numbers do not depend on the other rows, bit for bit: matrices are multiplied with at
least MIN_ROWS rows, from where the library computes every row in the same order, and attention runs over each row's
own length in a kernel of ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from headway.core.naming import unknown
from headway.llm.engine import Sampling
from headway.llm.sampling import draw, uniform

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
MIN_ROWS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a Llama-shaped model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int
    vocab: int
    eps: float
    has_qkv_bias: bool
    has_qk_norm: bool
    is_tied: bool

    @classmethod
    def of(cls, config: Any) -> Shape:
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            inner=config.intermediate_size,
            vocab=config.vocab_size,
            eps=config.rms_norm_eps,
            has_qkv_bias=config.model_type == "qwen2" or bool(getattr(config, "attention_bias", False)),
            has_qk_norm=config.model_type == "qwen3",
            is_tied=bool(config.tie_word_embeddings),
        )


def why_not(config: Any) -> str:
    """Why this decoder cannot run the model, or nothing."""
    if config.model_type not in FAMILY:
        return f"its kind is {config.model_type!r}, not one of {', '.join(FAMILY)}"
    if getattr(config, "use_sliding_window", False) or (
        config.model_type == "mistral" and getattr(config, "sliding_window", None)
    ):
        return "it attends through a sliding window"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"its activation is {config.hidden_act!r}"
    if getattr(config, "mlp_bias", False) or (
        config.model_type in ("llama", "mistral") and getattr(config, "attention_bias", False)
    ):
        return "its layers have biases"
    return ""


@dataclass(slots=True)
class Layer:
    """One block's weights, joined."""

    norm: Tensor  # [H]
    qkv: Tensor  # [(heads + 2 kv_heads) dim, H]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [dim]
    k_norm: Tensor | None
    out: Tensor  # [H, heads dim]
    mlp_norm: Tensor  # [H]
    gate_up: Tensor  # [2 inner, H]
    down: Tensor  # [H, inner]


class Weights:
    """A model's weights in the layout of this file. Loading new ones keeps their places in memory."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        def empty(*size: int) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.dim
        self.embed = empty(shape.vocab, shape.hidden)
        self.head = self.embed if shape.is_tied else empty(shape.vocab, shape.hidden)
        self.norm = empty(shape.hidden)
        self.layers = [
            Layer(
                norm=empty(shape.hidden),
                qkv=empty(width, shape.hidden),
                qkv_bias=empty(width) if shape.has_qkv_bias else None,
                q_norm=empty(shape.dim) if shape.has_qk_norm else None,
                k_norm=empty(shape.dim) if shape.has_qk_norm else None,
                out=empty(shape.hidden, shape.heads * shape.dim),
                mlp_norm=empty(shape.hidden),
                gate_up=empty(2 * shape.inner, shape.hidden),
                down=empty(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]

    @torch.no_grad()
    def load(self, given: Mapping[str, Any]) -> None:
        """From a model's weights by name: tensors or arrays, on any device, all of them or those that changed.

        Refuses before anything is changed.
        """
        places = self._places()
        for name, part in given.items():
            if name not in places:
                raise ValueError(unknown("weight", name, places))
            if tuple(places[name].shape) != tuple(part.shape):
                raise ValueError(f"{name} has the shape {tuple(part.shape)}, not {tuple(places[name].shape)}")
        for name, part in given.items():
            places[name].copy_(torch.as_tensor(part))

    def _places(self) -> dict[str, Tensor]:
        """Where each of the model's own weights lies in the joined ones."""
        shape = self.shape
        places = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm, "lm_head.weight": self.head}
        cuts = [shape.heads * shape.dim, shape.kv_heads * shape.dim, shape.kv_heads * shape.dim]
        for number, layer in enumerate(self.layers):
            name = f"model.layers.{number}."
            places[name + "input_layernorm.weight"] = layer.norm
            places[name + "post_attention_layernorm.weight"] = layer.mlp_norm
            places[name + "self_attn.o_proj.weight"] = layer.out
            places[name + "mlp.down_proj.weight"] = layer.down
            for part, place in zip("qkv", layer.qkv.split(cuts), strict=True):
                places[f"{name}self_attn.{part}_proj.weight"] = place
            if layer.qkv_bias is not None:
                for part, place in zip("qkv", layer.qkv_bias.split(cuts), strict=True):
                    places[f"{name}self_attn.{part}_proj.bias"] = place
            if layer.q_norm is not None and layer.k_norm is not None:
                places[name + "self_attn.q_norm.weight"] = layer.q_norm
                places[name + "self_attn.k_norm.weight"] = layer.k_norm
            for part, place in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
                places[f"{name}mlp.{part}_proj.weight"] = place
        return places


class LlamaDecoder:
    """Weights and the cache of `rows` samples of at most `context` tokens each, on a CPU."""

    burst = 1

    def __init__(self, model: Any, rows: int, context: int) -> None:
        shape = Shape.of(model.config)
        parameter = next(model.parameters())
        self.shape, self.rows, self.context = shape, rows, context
        self.device = parameter.device
        self.weights = Weights(shape, parameter.dtype, parameter.device)
        self.weights.load(model.state_dict())
        self.cos, self.sin = rotation(model, context, parameter.dtype)
        size = (shape.layers, rows, shape.kv_heads, context, shape.dim)
        self.keys = torch.zeros(size, dtype=parameter.dtype, device=parameter.device)
        self.values = torch.zeros_like(self.keys)
        self._scores = torch.zeros(shape.heads, context + 16)

    def load(self, weights: Mapping[str, Any]) -> None:
        self.weights.load(weights)

    @torch.no_grad()
    def prefill(self, prompts: list[tuple[Tensor, list[int]]]) -> Tensor:
        """One after another, so that a prompt's numbers do not depend on its neighbours'."""
        return torch.cat([self._read(tokens, rows) for tokens, rows in prompts])

    def _read(self, tokens: Tensor, rows: list[int]) -> Tensor:
        """A prompt [T] into each of `rows`; logits of what comes next, [1, V]."""
        shape, length, first = self.shape, len(tokens), rows[0]
        cos, sin = self.cos[:length].unsqueeze(1), self.sin[:length].unsqueeze(1)
        hidden = self.weights.embed[tokens]
        for number, layer in enumerate(self.weights.layers):
            queries, keys, values = self._qkv(layer, rms_norm(hidden, (shape.hidden,), layer.norm, shape.eps))
            queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
            queries, keys, values = queries.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
            self.keys[number, first, :, :length] = keys
            self.values[number, first, :, :length] = values
            attended = scaled_dot_product_attention(
                queries[None], keys[None], values[None], is_causal=True, enable_gqa=True
            )
            hidden = hidden + linear(attended[0].transpose(0, 1).reshape(length, -1), layer.out)
            hidden = hidden + self._mlp(layer, rms_norm(hidden, (shape.hidden,), layer.mlp_norm, shape.eps))
        for row in rows[1:]:
            self.move(first, row, length)
        return linear(rms_norm(hidden[-1:], (shape.hidden,), self.weights.norm, shape.eps), self.weights.head)

    @torch.no_grad()
    def advance(
        self, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """One step: tokens and log-probabilities, [1, R] each."""
        drawn, log_probs = draw(self.decode(tokens, places), uniform(seeds, counts), sampling)
        return drawn[None], log_probs[None]

    def decode(self, tokens: Tensor, places: Tensor) -> Tensor:
        """One token for each of the first R rows, at its place [R]; logits of what comes next, [R, V]."""
        shape, count = self.shape, len(tokens)
        padded = max(MIN_ROWS, count + -count % 4)
        hidden = torch.zeros(padded, shape.hidden, dtype=self.keys.dtype)
        hidden[:count] = self.weights.embed[tokens]
        attended = torch.zeros(padded, shape.heads * shape.dim, dtype=self.keys.dtype)
        at = places.numpy()
        for number, layer in enumerate(self.weights.layers):
            joined = linear(rms_norm(hidden, (shape.hidden,), layer.norm, shape.eps), layer.qkv, layer.qkv_bias)
            if layer.q_norm is not None:
                joined = self._normed(joined, layer)
            _attend(
                joined.view(padded, -1, shape.dim).numpy(),
                self.cos.numpy(),
                self.sin.numpy(),
                self.keys[number].numpy(),
                self.values[number].numpy(),
                at,
                self._scores.numpy(),
                attended.view(padded, shape.heads, shape.dim).numpy(),
            )
            hidden = hidden + linear(attended, layer.out)
            hidden = hidden + self._mlp(layer, rms_norm(hidden, (shape.hidden,), layer.mlp_norm, shape.eps))
        return linear(rms_norm(hidden, (shape.hidden,), self.weights.norm, shape.eps), self.weights.head)[:count]

    def move(self, source: int, target: int, length: int) -> None:
        """Put a row's cache into another row's place."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def _qkv(self, layer: Layer, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        joined = linear(hidden, layer.qkv, layer.qkv_bias)
        if layer.q_norm is not None:
            joined = self._normed(joined, layer)
        queries, keys, values = joined.view(len(hidden), -1, shape.dim).split(
            [shape.heads, shape.kv_heads, shape.kv_heads], dim=1
        )
        return queries, keys, values

    def _normed(self, joined: Tensor, layer: Layer) -> Tensor:
        """Queries and keys normed per head (Qwen 3)."""
        shape = self.shape
        parts = joined.view(len(joined), -1, shape.dim)
        queries, keys, values = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        queries = rms_norm(queries, (shape.dim,), layer.q_norm, shape.eps)
        keys = rms_norm(keys, (shape.dim,), layer.k_norm, shape.eps)
        return torch.cat([queries, keys, values], 1).view(len(joined), -1)

    def _mlp(self, layer: Layer, hidden: Tensor) -> Tensor:
        gate, up = linear(hidden, layer.gate_up).chunk(2, -1)
        return linear(silu(gate) * up, layer.down)


def rotation(model: Any, context: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every place, [context, dim / 2] each, as the model itself would compute them."""
    places = torch.arange(context, device=next(model.parameters()).device)[None]
    some = torch.empty(1, dtype=torch.float32, device=places.device)
    cos, sin = model.model.rotary_emb(some, places)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].to(dtype).contiguous(), sin[0, :, :half].to(dtype).contiguous()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[T, heads, dim] turned by the angles [T, 1, dim / 2]."""
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _attend(joined, cos, sin, keys, values, places, scores, attended):
    """Rotate, append to the cache, attend over each row's own places.

    joined [R, heads + 2 kv_heads, dim], keys and values [rows, kv_heads, context, dim], places [count], scores
    [heads, context + 16] is scratch, attended [R, heads, dim] is written.
    """
    heads, dim = attended.shape[1], attended.shape[2]
    kv_heads = keys.shape[1]
    share, half = heads // kv_heads, dim // 2
    scale = np.float32(1.0 / math.sqrt(dim))
    query = np.empty(dim, np.float32)
    whole = np.empty(scores.shape[1], np.int32)  # powers of two, as the bits of floats
    powers = whole.view(np.float32)
    for row in range(len(places)):
        place = places[row]
        for head in range(kv_heads):
            for i in range(half):
                first, second = joined[row, heads + head, i], joined[row, heads + head, half + i]
                keys[row, head, place, i] = first * cos[place, i] - second * sin[place, i]
                keys[row, head, place, half + i] = second * cos[place, i] + first * sin[place, i]
                values[row, head, place, i] = joined[row, heads + kv_heads + head, i]
                values[row, head, place, half + i] = joined[row, heads + kv_heads + head, half + i]
            for number in range(head * share, (head + 1) * share):
                for i in range(half):
                    first, second = joined[row, number, i], joined[row, number, half + i]
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
                out = attended[row, number]
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
