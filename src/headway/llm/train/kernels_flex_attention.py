"""The attention of a model that reads rows of trees: FlexAttention, or flash kernels for sequences end to end.

A model of transformers asks for its attention by a name. Under ours it gets a function that reads rows of trees: by a
table of blocks in which somebody sees somebody (llm/train/trees_block_masks.py), or by where sequences begin and end
(llm/train/trees_flash_trees.py). A pass over anything else, with a plain mask or none, goes on to torch's own
attention.

Both are made for GPUs. On a CPU they are here to be tested: what needs a gradient is written out, for every pair of
places.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from headway.llm.model.types import CausalModel
from headway.llm.train.trees import body_of, windows_of
from headway.llm.train.trees_flash_trees import WIDEST, read_trees

NAME, UNCAPPED = "headway_flex", "headway_flex_uncapped"
"""The second is for models whose own attention pays no heed to a cap: older sdpa does not know of it."""


def use_flex_attention(model: CausalModel) -> None:
    """Lets a model read rows of trees by FlexAttention. Whether it then does is seen from its numbers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = body_of(model).config.get_text_config()
    name = UNCAPPED if config._attn_implementation in ("sdpa", UNCAPPED) else NAME
    AttentionInterface.register(name, flex_attention_forward if name == NAME else _uncapped)
    AttentionMaskInterface.register(name, sdpa_mask)
    config._attn_implementation = name


def can_read_by_flash(model: CausalModel) -> bool:
    """Says whether the flash kernels compute what a model's config asks for: no windows, no caps, heads of their sizes.
    Whether they do is seen from the numbers."""
    config = body_of(model).config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return windows_of(model) == (None,) and not getattr(config, "attn_logit_softcapping", None) and head <= WIDEST


def flex_attention_forward(
    module: torch.nn.Module,
    query: Tensor,  # [B, heads, T, dim]
    key: Tensor,  # [B, fewer heads, T, dim]
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Returns what every head found, [B, T, heads, dim]."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    if s_aux is not None or options.get("position_bias") is not None:
        raise ValueError("it has sinks or biases in its attention, which FlexAttention is not given here")
    if not isinstance(attention_mask, BlockMask):
        if softcap is not None:
            raise ValueError("a model with a cap on its attention reads nothing but trees under FlexAttention")
        return _plain(module, query, key, value, attention_mask, scaling, options)
    query, key = query.to(value.dtype), key.to(value.dtype)  # turned by positions they are in float32 under autocast
    flash = getattr(attention_mask, "flash", None)
    if flash is not None:
        if softcap is not None:
            raise ValueError("it has a cap on its attention, which flash kernels do not have")
        return read_trees(query, key, value, flash, scaling), None
    if query.device.type == "cpu" and torch.is_grad_enabled() and query.requires_grad:
        return _written_out(query, key, value, attention_mask.mask_mod, scaling, softcap), None
    found = flex_attention(
        query,
        key,
        value,
        score_mod=None if softcap is None else _capped(softcap),
        block_mask=attention_mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return found.transpose(1, 2).contiguous(), None


def _uncapped(*args: Any, softcap: float | None = None, **options: Any) -> tuple[Tensor, None]:
    return flex_attention_forward(*args, **options)


def _plain(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: Any, options: Any
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)
    return found


def _written_out(
    query: Tensor, key: Tensor, value: Tensor, sees: Any, scaling: float | None, softcap: float | None
) -> Tensor:
    """Computes the same of every pair of places: FlexAttention has no gradients on a CPU."""
    shared, places = query.shape[1] // key.shape[1], torch.arange(query.shape[2], device=query.device)
    scores = query @ key.repeat_interleave(shared, 1).transpose(2, 3) * (scaling or query.shape[3] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = sees(places[:1], places[:1], places[:, None], places[None])
    shares = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return (shares @ value.repeat_interleave(shared, 1)).transpose(1, 2).contiguous()


def _capped(cap: float) -> Any:
    def bend(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return bend


def expect_slow_attention() -> None:
    """Keeps torch from warning that FlexAttention is not compiled, where that is what was asked for."""
    warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
