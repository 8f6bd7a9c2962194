"""Episodes through a Llama-shaped model in training on a CPU: the last layer computes what is asked for, and no more.

    tokens [B, T] --> all layers but one --> hidden [R, H], R = B T
                                                 |
                       last layer:  keys and values of all [R]
                                    queries, output and MLP of the N places that predict a trained token --> [N, H]

Most of an episode is read and not predicted from: what the environment said, and the first message. The model's own
pass computes their last layer too, and with a tree's mask every pair of tokens in attention; it also goes over the
hidden states some thirty times a layer for norms, rotation and gates. Here queries, keys and values are one product, as
are gate and up; norm, rotation and gate are one pass each, there and back; trees of one reply need no mask.

What comes out is what the model computes, up to rounding. Single replies keep the model's own pass, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, scaled_dot_product_attention

from headway.llm.engine.llama_weights import LlamaShape, why_not

if TYPE_CHECKING:
    from headway.llm.train.trees import TreeBatch


def can_read(body: Any) -> bool:
    """Says whether this model, without its head, is one that this file computes rightly."""
    weight = body.get_input_embeddings().weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not hasattr(body, "layers"):
        return False
    if hasattr(body, "reshard"):  # in shards: its weights are there only while it is called
        return False
    if why_not(body.config) or body.config.model_type == "qwen3" or body.is_gradient_checkpointing:
        return False
    return all(type(part) is torch.nn.Linear for layer in body.layers for part in _products(layer))  # no adapters


def read_episodes(body: Any, batch: TreeBatch) -> Tensor:
    """Returns the model's output where trained tokens are predicted, before the head: [N, H]."""
    shape, (rows, length) = LlamaShape.of(body.config), batch.tokens.shape
    places = torch.arange(int(batch.positions.max()) + 1)[None]
    cos, sin = (table[0, :, : shape.dim // 2].contiguous() for table in body.rotary_emb(torch.empty(1), places))
    turn = _Rotation(shape, cos.numpy(), sin.numpy())
    at = batch.positions.reshape(-1)
    asked, slots = _padded(batch.sources, rows, length)
    is_causal = int(batch.branch.max()) <= 1
    mask = None if is_causal else batch.mask()
    hidden = body.embed_tokens(batch.tokens.reshape(-1))
    for number, layer in enumerate(body.layers):
        own, read = layer.self_attn, _norm(layer.input_layernorm, hidden)
        if number < len(body.layers) - 1:
            parts = turn(_joined(read, own.q_proj, own.k_proj, own.v_proj), at, queries=True)
            attended = _attend(*(_by_head(part, rows) for part in parts), mask=mask, is_causal=is_causal)
        else:
            (queries,) = turn(_joined(read.index_select(0, asked), own.q_proj), at[asked], queries=True, others=False)
            keys, values = turn(_joined(read, own.k_proj, own.v_proj), at, queries=False)
            seen = _seen(batch.branch, asked, is_causal).view(rows, 1, -1, length)
            attended = _attend(*(_by_head(part, rows) for part in (queries, keys, values)), mask=seen)
            attended, hidden = attended.index_select(0, slots), hidden.index_select(0, batch.sources)
        hidden = torch.addmm(hidden, attended, own.o_proj.weight.T)
        joined = _joined(_norm(layer.post_attention_layernorm, hidden), layer.mlp.gate_proj, layer.mlp.up_proj)
        hidden = torch.addmm(hidden, _Gate.apply(joined), layer.mlp.down_proj.weight.T)
    return _norm(body.norm, hidden)


def _products(layer: Any) -> tuple[Any, ...]:
    own, mlp = layer.self_attn, layer.mlp
    return own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj


def _padded(sources: Tensor, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Gives every row as many places: returns them, [rows n], and where in them the sources are, [N]."""
    row = sources // length  # never falls
    counts = torch.bincount(row, minlength=rows)
    most = int(counts.max())
    slots = row * most + torch.arange(len(sources)) - (counts.cumsum(0) - counts)[row]
    asked = (torch.arange(rows) * length).repeat_interleave(most)  # those that nobody asked for: the row's first token
    asked[slots] = sources
    return asked, slots


def _seen(branch: Tensor, asked: Tensor, is_causal: bool) -> Tensor:
    """Says what the places asked for see of their rows, [rows n, T]: lines of `TreeBatch.mask`."""
    length = branch.shape[1]
    places = (asked % length)[:, None]
    seen = torch.arange(length) <= places
    if not is_causal:
        line = branch[asked // length]
        seen &= (line == line.gather(1, places)) | (line == 0)
    return seen


def _joined(hidden: Tensor, *parts: torch.nn.Linear) -> Tensor:
    """Multiplies with several matrices at once."""
    if len(parts) == 1:
        return linear(hidden, parts[0].weight, parts[0].bias)
    biases = tuple(part.bias for part in parts if part.bias is not None)
    return linear(hidden, torch.cat(tuple(part.weight for part in parts)), torch.cat(biases) if biases else None)


def _by_head(part: Tensor, rows: int) -> Tensor:
    """Brings [rows n, heads, dim] into the order of attention, [rows, heads, n, dim]."""
    return part.view(rows, -1, *part.shape[1:]).transpose(1, 2)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, is_causal: bool = False) -> Tensor:
    share = queries.shape[1] // keys.shape[1]
    if share > 1:
        keys, values = keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)
    attended = scaled_dot_product_attention(queries, keys, values, mask, is_causal=is_causal)
    return attended.transpose(1, 2).flatten(2).flatten(0, 1)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    normed: Tensor = _Norm.apply(hidden, module.weight, module.variance_epsilon)
    return normed


class _Norm(torch.autograd.Function):
    """Computes y = w x r with r = 1 / sqrt(mean x^2 + eps)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        hidden = hidden.contiguous()
        normed, factors = torch.empty_like(hidden), torch.empty(len(hidden))
        _norm_there(hidden.numpy(), weight.numpy(), eps, normed.numpy(), factors.numpy())
        ctx.save_for_backward(hidden, weight, factors)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, factors = ctx.saved_tensors
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        given = (gradient.contiguous(), hidden, weight.detach(), factors, of_hidden, of_weight)
        _norm_back(*(tensor.numpy() for tensor in given))
        return of_hidden, of_weight, None


class _Gate(torch.autograd.Function):
    """Computes y = g s u with s = sigmoid(g), of [g | u]."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        width = joined.shape[1] // 2
        shares = torch.sigmoid(joined[:, :width])
        gated = torch.empty_like(shares)
        _gate_there(joined.numpy(), shares.numpy(), gated.numpy())
        ctx.save_for_backward(joined, shares)
        return gated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        joined, shares = ctx.saved_tensors
        of_joined = torch.empty_like(joined)
        _gate_back(gradient.contiguous().numpy(), joined.numpy(), shares.numpy(), of_joined.numpy())
        return of_joined


class _Rotation:
    """Cuts products into queries, keys and values [R, heads, dim]; the first two are turned by their places' angles."""

    def __init__(self, shape: LlamaShape, cos: np.ndarray, sin: np.ndarray) -> None:
        self.shape, self.cos, self.sin = shape, cos, sin

    def __call__(self, joined: Tensor, at: Tensor, *, queries: bool, others: bool = True) -> tuple[Tensor, ...]:
        """`queries`, `others`: whether the products have them."""
        heads = [(self.shape.heads, True)] * queries
        heads += [(self.shape.kv_heads, True), (self.shape.kv_heads, False)] * others
        parts: tuple[Tensor, ...] = _Turned.apply(joined, at.numpy(), self, tuple(heads))
        return parts


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, at: np.ndarray, by: _Rotation, heads: tuple[tuple[int, bool], ...]
    ) -> tuple[Tensor, ...]:
        ctx.settings = at, by, heads
        found, begin = [], 0
        for number, is_turned in heads:
            end = begin + number * by.shape.dim
            part = joined[:, begin:end].reshape(len(at), number, by.shape.dim).contiguous()
            if is_turned:
                _turn(part.numpy(), at, by.cos, by.sin, np.float32(1))
            found.append(part)
            begin = end
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        at, by, heads = ctx.settings
        parts = []
        for (number, is_turned), gradient in zip(heads, gradients, strict=True):
            part = gradient.contiguous()
            if is_turned:
                part = part.clone() if part is gradient else part
                _turn(part.numpy(), at, by.cos, by.sin, np.float32(-1))
            parts.append(part.view(len(at), number * by.shape.dim))
        return torch.cat(parts, 1), None, None, None


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _turn(part, at, cos, sin, way):
    """Turns part [R, heads, dim] by the angles of its places [R], there (way 1) or back (-1)."""
    half = part.shape[2] // 2
    for row in range(part.shape[0]):
        place = at[row]
        for head in range(part.shape[1]):
            for i in range(half):
                first, second = part[row, head, i], part[row, head, half + i]
                part[row, head, i] = first * cos[place, i] - way * second * sin[place, i]
                part[row, head, half + i] = second * cos[place, i] + way * first * sin[place, i]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _norm_there(hidden, weight, eps, normed, factors):
    width = hidden.shape[1]
    for row in range(hidden.shape[0]):
        total = np.float32(0.0)
        for i in range(width):
            total += hidden[row, i] * hidden[row, i]
        factor = np.float32(1.0 / np.sqrt(total / width + eps))
        factors[row] = factor
        for i in range(width):
            normed[row, i] = weight[i] * (hidden[row, i] * factor)


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _norm_back(gradient, hidden, weight, factors, of_hidden, of_weight):
    width = hidden.shape[1]
    for row in range(hidden.shape[0]):
        factor = factors[row]
        dot = np.float32(0.0)
        for i in range(width):
            dot += gradient[row, i] * weight[i] * hidden[row, i]
        back = dot * factor * factor / np.float32(width)
        for i in range(width):
            of_weight[i] += gradient[row, i] * hidden[row, i] * factor
            of_hidden[row, i] = factor * (gradient[row, i] * weight[i] - hidden[row, i] * back)


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _gate_there(joined, shares, gated):
    width = shares.shape[1]
    for row in range(shares.shape[0]):
        for i in range(width):
            gated[row, i] = joined[row, i] * shares[row, i] * joined[row, width + i]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def _gate_back(gradient, joined, shares, of_joined):
    width = shares.shape[1]
    for row in range(shares.shape[0]):
        for i in range(width):
            given, gate, share = gradient[row, i], joined[row, i], shares[row, i]
            of_joined[row, width + i] = given * gate * share
            slope = share * (np.float32(1.0) + gate * (np.float32(1.0) - share))
            of_joined[row, i] = given * joined[row, width + i] * slope
