"""Scores by the Llama-shaped decoders: prompts side by side, and behind them the tokens of all their branches.

    tokens [B, P + n]     p0 p1 p2 .. | a0 a1 b0 c0 ..      a prompt is padded to P, its branches' tokens to n
    who sees whom         a prompt's token those before it (the library's causal kernel)
                          a branch's token its whole prompt, and its own branch up to itself (a mask of n x (P + n))

The long part is attended by the fastest kernel there is, and the mask is as small as the branches are: for a prompt of
a thousand tokens and a few dozen tokens of branches a tree costs little more than the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from headway.llm.llama_weights import LlamaShape, LlamaWeights, rotate
from headway.llm.trees import SLOWNESS, ReplyTree

HEAD_ROWS = 1024
"""Rows of logits that are made at once: they are by far the largest thing here."""


@dataclass(frozen=True, slots=True)
class BranchedPrompts:
    """Holds B prompts of at most P tokens, and at most n tokens of branches behind each."""

    tokens: Tensor  # [B, P + n]
    positions: Tensor  # [B, P + n]
    mask: Tensor  # [B, 1, n, P + n] bool: what the tokens of branches see
    sources: Tensor  # [N]: places b * (P + n) + t whose output predicts the scored tokens
    targets: Tensor  # [N]

    def to(self, device: torch.device) -> BranchedPrompts:
        return BranchedPrompts(
            self.tokens.to(device),
            self.positions.to(device),
            self.mask.to(device),
            self.sources.to(device),
            self.targets.to(device),
        )


def lay_out_branches(trees: Sequence[ReplyTree]) -> BranchedPrompts:
    """Makes the arrays of this file."""
    longest = max(len(tree.prompt) for tree in trees)
    more = max(tree.num_tokens - len(tree.prompt) for tree in trees)
    tokens = np.zeros((len(trees), longest + more), np.int64)
    positions = np.zeros_like(tokens)
    positions[:, :longest] = np.arange(longest)
    branch = np.full((len(trees), more), -1, np.int64)
    lengths = np.array([len(tree.prompt) for tree in trees])
    sources: list[np.ndarray] = []
    for row, tree in enumerate(trees):
        length = len(tree.prompt)
        tokens[row, :length] = tree.prompt
        at = longest
        for number, reply in enumerate(tree.replies):
            end = at + len(reply) - 1
            tokens[row, at:end] = reply[:-1]
            positions[row, at:end] = np.arange(length, length + len(reply) - 1)
            branch[row, at - longest : end - longest] = number
            sources.append(row * (longest + more) + np.concatenate([[length - 1], np.arange(at, end)]))
            at = end
    prompt_mask = np.arange(longest) < lengths[:, None]  # [B, P]
    own_mask = (branch[:, :, None] == branch[:, None, :]) & np.tri(more, dtype=bool)  # [B, n, n]
    mask = np.concatenate([np.broadcast_to(prompt_mask[:, None], (len(trees), more, longest)), own_mask], -1)
    return BranchedPrompts(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(mask)[:, None],
        torch.from_numpy(np.concatenate(sources)),
        torch.from_numpy(np.concatenate([reply for tree in trees for reply in tree.replies])),
    )


@torch.no_grad()
def score_branches(weights: LlamaWeights, cos: Tensor, sin: Tensor, trees: Sequence[ReplyTree]) -> Tensor:
    """Returns the log-probabilities of the branches' tokens, [N] float32. cos and sin [places, dim / 2] are of all."""
    batch = lay_out_branches(trees).to(weights.embed.device)
    hidden = weights.embed[batch.tokens]
    angles = [table[batch.positions].unsqueeze(2).to(hidden.dtype) for table in (cos, sin)]  # [B, T, 1, dim/2]
    mask = batch.mask.repeat(1, 1, weights.shape.heads // weights.shape.kv_heads, 1)  # for queries that share a key
    for layer in weights.layers:
        joined = linear(weights.norm_of(hidden, layer.norm), layer.qkv, layer.qkv_bias)
        queries, keys, values = weights.split_heads(weights.norm_heads(joined, layer))
        queries, keys = rotate(queries, *angles).transpose(1, 2), rotate(keys, *angles).transpose(1, 2)
        attended = _attended(queries, keys, values.transpose(1, 2), mask)
        hidden = hidden + linear(attended.transpose(1, 2).flatten(2), layer.out)
        hidden = hidden + weights.mlp(layer, hidden)
    chosen = hidden.flatten(0, 1)[batch.sources]
    parts = zip(chosen.split(HEAD_ROWS), batch.targets.split(HEAD_ROWS), strict=True)
    return torch.cat([_log_probs_of(weights.logits(rows), targets) for rows, targets in parts])


def branch_price(shape: LlamaShape) -> float:
    """Says what a pair of tokens costs attention, in tokens that go through the layers."""
    layer = shape.hidden * (2 * (shape.heads + shape.kv_heads) * shape.dim + 3 * shape.inner)
    return SLOWNESS * 2 * shape.dim * shape.heads / layer


def _attended(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attends: queries [B, heads, P + n, dim], keys and values [B, kv_heads, P + n, dim]."""
    count, heads, length, dim = queries.shape
    more, kv_heads = mask.shape[2] * keys.shape[1] // heads, keys.shape[1]
    prompt = slice(length - more)
    parts = [
        scaled_dot_product_attention(
            queries[:, :, prompt], keys[:, :, prompt], values[:, :, prompt], is_causal=True, enable_gqa=True
        )
    ]
    if more:
        grouped = queries[:, :, length - more :].reshape(count, kv_heads, -1, dim)  # heads that share a key together
        found = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        parts.append(found.reshape(count, heads, more, dim))
    return torch.cat(parts, 2)


def _log_probs_of(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float()
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
