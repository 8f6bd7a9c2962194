"""The sizes of a language model, from its config alone: nothing is loaded, and torch is not needed.

    config.json --> ModelShape: layers, heads, words, and every weight's name and shape

Models of the Llama family are known here, weight by weight. Of any other kind somebody who has transformers says the
shapes of its weights (`weights`); the rest is read from the config under the names that the families use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headway.core.text_naming import unknown

Shapes = Mapping[str, tuple[int, ...]]
"""Names of weights, and their shapes; a head that is tied to the embedding is not among them."""

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
"""Kinds of models whose weights are known here."""
_LAYER = re.compile(r"\.(\d+)\.")
_EXPERTS = ".experts."
_NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
}


class ShapeError(ValueError):
    """A config does not say what is needed. One line."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Holds the sizes of a model and the shape of every weight."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    is_tied: bool
    weights: Shapes = field(repr=False)
    kind: str = ""
    """Its `model_type`."""
    latent: int = 0
    """Numbers that latent attention (MLA) keeps of a token in each layer, for all heads; 0: it has keys and values."""
    used_experts: float = 1.0
    """The share of a layer's routed experts that a token goes through."""

    @property
    def num_parameters(self) -> int:
        return sum(map(math.prod, self.weights.values()))

    def parameters_used_by(self, tokens: int) -> int:
        """Parameters that so many tokens go through: by one token, the active ones of a mixture of experts."""
        experts = sum(math.prod(shape) for name, shape in self.weights.items() if _EXPERTS in name)
        return self.num_parameters - round(experts * (1 - self.used_experts) ** tokens)

    @property
    def num_tensors(self) -> int:
        return len(self.weights)

    @property
    def matrices(self) -> Shapes:
        """The linear layers but for the head: what every layer multiplies by, and what adapters go beside."""
        return {name: shape for name, shape in self.weights.items() if len(shape) == 2 and _LAYER.search(name)}

    @property
    def head(self) -> int:
        """Numbers in the head, which may be the embedding too."""
        return self.vocab * self.hidden

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    def largest_layer(self) -> int:
        """Parameters of the largest block, or of what stands outside of the blocks, whichever is more."""
        sizes: dict[str, int] = {}
        for name, shape in self.weights.items():
            found = _LAYER.search(name)
            key = found[1] if found else ""
            sizes[key] = sizes.get(key, 0) + math.prod(shape)
        return max(sizes.values())

    def cache_bytes(self, bytes_each: int) -> int:
        """What a token takes in an engine's cache: its keys and values in every layer, or what stands for both."""
        return self.layers * (self.latent or 2 * self.key_width) * bytes_each

    def cache_parts(self, engines: int) -> int:
        """How many parts a cache divides into over the GPUs of an engine: by heads, which share what is latent."""
        return 1 if self.latent else min(engines, self.kv_heads)


def shape_of(config: Mapping[str, Any], name: str = "", weights: Shapes | None = None) -> ModelShape:
    """Reads the sizes from what a config.json says. `weights` is needed for kinds of models outside of `FAMILY`."""
    text: Mapping[str, Any] = config.get("text_config") or config
    numbers = {ours: _number(text, ours, theirs) for ours, theirs in _NAMES.items()}
    hidden, heads = numbers["hidden"], numbers["heads"]
    kind = str(text.get("model_type", ""))
    is_tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", kind not in FAMILY)))
    experts = next((text[key] for key in _NUM_EXPERTS if text.get(key)), 0)
    used = _number(text, "experts a token", ("num_experts_per_tok",)) if experts else 0
    latent = int(text.get("kv_lora_rank") or 0)
    rotary = int(text["qk_rope_head_dim"]) if latent else 0
    head_dim = int(text["qk_nope_head_dim"]) + rotary if latent else text.get("head_dim")
    inner = next((text[key] for key in ("intermediate_size", "ffn_dim", "n_inner") if text.get(key)), 4 * hidden)
    sizes = ModelShape(
        name=name or kind,
        **numbers,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(head_dim or hidden // heads),
        inner=int(inner),
        is_tied=is_tied,
        weights=weights or {},
        kind=kind,
        latent=latent + rotary,
        used_experts=used / experts if experts else 1.0,
    )
    if weights is not None:
        return sizes
    if kind not in FAMILY:
        raise ShapeError(f"the weights of a model of kind {kind!r} are not known; known: {', '.join(FAMILY)}")
    return replace(sizes, weights=_family_weights(sizes, text, kind))


def _number(text: Mapping[str, Any], ours: str, theirs: tuple[str, ...]) -> int:
    for key in theirs:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise ShapeError(f"the config says nothing of its {ours} ({' or '.join(theirs)})")


def _family_weights(sizes: ModelShape, text: Mapping[str, Any], kind: str) -> dict[str, tuple[int, ...]]:
    hidden, inner, queries, keys = sizes.hidden, sizes.inner, sizes.query_width, sizes.key_width
    has_bias = bool(text.get("attention_bias", False))
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (sizes.vocab, hidden)}
    for number in range(sizes.layers):
        layer = f"model.layers.{number}."
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{layer}self_attn.{part}_proj.weight"] = (width, hidden)
            if kind == "qwen2" or (has_bias and kind != "mistral"):
                found[f"{layer}self_attn.{part}_proj.bias"] = (width,)
        found[f"{layer}self_attn.o_proj.weight"] = (hidden, queries)
        if has_bias and kind in ("llama", "qwen3"):
            found[f"{layer}self_attn.o_proj.bias"] = (hidden,)
        if kind == "qwen3":
            found[f"{layer}self_attn.q_norm.weight"] = found[f"{layer}self_attn.k_norm.weight"] = (sizes.head_dim,)
        for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            found[f"{layer}mlp.{part}_proj.weight"] = shape
            if kind == "llama" and text.get("mlp_bias", False):
                found[f"{layer}mlp.{part}_proj.bias"] = shape[:1]
        found[f"{layer}input_layernorm.weight"] = found[f"{layer}post_attention_layernorm.weight"] = (hidden,)
    found["model.norm.weight"] = (hidden,)
    if not sizes.is_tied:
        found["lm_head.weight"] = (sizes.vocab, hidden)
    return found


def _config(kind: str, layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocab: int, tied: bool) -> Any:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }


NAMED_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "135M": _config("llama", 30, 576, 9, 3, 1536, 49152, True),
    "0.5B": _config("qwen2", 24, 896, 14, 2, 4864, 151936, True),
    "1.5B": _config("qwen2", 28, 1536, 12, 2, 8960, 151936, True),
    "7B": _config("qwen2", 28, 3584, 28, 4, 18944, 152064, False),
}
"""Shapes to try without a model: SmolLM2-135M, and Qwen 2.5 in three sizes (7B has 7.6 billion parameters)."""


def named_shape(name: str) -> ModelShape:
    if name not in NAMED_CONFIGS:
        raise ShapeError(unknown("shape", name, NAMED_CONFIGS))
    return shape_of(NAMED_CONFIGS[name], name)
