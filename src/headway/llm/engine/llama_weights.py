"""Llama-shaped models: their numbers, their weights joined for decoding, and how prompts are read.

    qkv        queries, keys and values      [(heads + 2 kv_heads) dim, H]
    gate_up    gate and up                   [2 inner, H]

Weights of the same kind are joined; norms and rotation are as in the original. Decoders for a CPU (llama_decoder.py)
and for a GPU (triton_llama_decoder.py) share what is here, and differ in how they make a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from headway.llm.engine.decoder import copy_weights
from headway.llm.model.types import CausalModel, NamedWeights

FAMILY = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Holds the sizes of a Llama-shaped model."""

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
    def of(cls, config: Any) -> LlamaShape:
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
    """Says why the decoders for this family cannot run the model; nothing if they can."""
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
class LlamaLayer:
    """Holds the weights of one block, joined."""

    norm: Tensor  # [H]
    qkv: Tensor  # [(heads + 2 kv_heads) dim, H]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [dim]
    k_norm: Tensor | None
    out: Tensor  # [H, heads dim]
    mlp_norm: Tensor  # [H]
    gate_up: Tensor  # [2 inner, H]
    down: Tensor  # [H, inner]


class LlamaWeights:
    """Holds a model's weights in the layout of this file. Loading new ones keeps their places in memory."""

    def __init__(self, shape: LlamaShape, dtype: torch.dtype, device: torch.device) -> None:
        def empty(*size: int) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.dim
        self.embed = empty(shape.vocab, shape.hidden)
        self.head = self.embed if shape.is_tied else empty(shape.vocab, shape.hidden)
        self.norm = empty(shape.hidden)
        self.layers = [
            LlamaLayer(
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

    def load(self, given: NamedWeights) -> None:
        """Takes a model's weights by name, on any device, all of them or those that changed."""
        copy_weights(self._places(), given)

    def _places(self) -> dict[str, Tensor]:
        """Says where each of the model's own weights lies in the joined ones."""
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

    def norm_heads(self, joined: Tensor, layer: LlamaLayer) -> Tensor:
        """Norms queries and keys [..., (heads + 2 kv_heads) dim] per head, where the model does that (Qwen 3)."""
        if layer.q_norm is None:
            return joined
        queries, keys, values = self.split_heads(joined)
        queries = rms_norm(queries, (self.shape.dim,), layer.q_norm, self.shape.eps)
        keys = rms_norm(keys, (self.shape.dim,), layer.k_norm, self.shape.eps)
        return torch.cat([queries, keys, values], -2).view(joined.shape)

    def split_heads(self, joined: Tensor) -> tuple[Tensor, ...]:
        """Splits into queries, keys and values, [..., heads, dim] each."""
        shape = self.shape
        parts = joined.view(*joined.shape[:-1], -1, shape.dim)
        return parts.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=-2)

    def norm_of(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, (self.shape.hidden,), weight, self.shape.eps)

    def mlp(self, layer: LlamaLayer, hidden: Tensor) -> Tensor:
        gate, up = linear(self.norm_of(hidden, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return linear(silu(gate) * up, layer.down)

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(self.norm_of(hidden, self.norm), self.head)

    def read(self, tokens: Tensor, cos: Tensor, sin: Tensor, keep: Callable[[int, Tensor, Tensor], None]) -> Tensor:
        """Reads prompts [P, T], padded at their ends, where causal attention never looks; returns hidden [P, T, H].

        `keep` gets the number of each layer, and its keys and values [P, kv_heads, T, dim].
        """
        hidden = self.embed[tokens]
        for number, layer in enumerate(self.layers):
            joined = linear(self.norm_of(hidden, layer.norm), layer.qkv, layer.qkv_bias)
            queries, keys, values = self.split_heads(self.norm_heads(joined, layer))
            queries, keys = rotate(queries, cos, sin).transpose(1, 2), rotate(keys, cos, sin).transpose(1, 2)
            values = values.transpose(1, 2)
            keep(number, keys, values)
            attended = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
            hidden = hidden + linear(attended.transpose(1, 2).flatten(2), layer.out)
            hidden = hidden + self.mlp(layer, hidden)
        return hidden


def rotation(model: CausalModel, context: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines of every place, [context, dim / 2] each, as the model itself would compute them."""
    places = torch.arange(context, device=next(model.parameters()).device)[None]
    some = torch.empty(1, dtype=torch.float32, device=places.device)
    cos, sin = model.base_model.rotary_emb(some, places)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].to(dtype).contiguous(), sin[0, :, :half].to(dtype).contiguous()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns [T, heads, dim] by the angles [T, 1, dim / 2]."""
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
