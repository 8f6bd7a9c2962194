"""Replies to one prompt, laid out so that the prompt is read once.

    prompt p0 p1 p2, replies a0 a1 a2 and b0 b1

    tokens      p0 p1 p2 | a0 a1 | b0          the last token of a reply predicts nothing that is trained on
    positions    0  1  2 |  3  4 |  3
    branch       0  0  0 |  1  1 |  2
    predicts          a0,b0  a1 a2   b1

An episode (llm/rollouts_episode.py) is a branch in which only some tokens are trained on, those that the policy drew:

    branch      a0 a1 | x0 x1 | b0 b1          reply, observation, reply
    trained      1  1    0  0    1  1
    predicts    a1        b0   b1              and the prompt predicts a0; what predicts x0 or x1 goes to no head

A token sees the prompt and its own branch, up to itself: exactly what it would see in a sequence of its own. Eight
short replies to a long prompt take little more than one. Rows of a batch are such trees, padded to the longest; or all
of them stand end to end in one row, for an attention that leaves out what nobody sees (llm/train/trees_block_masks.py).

Other attention computes every pair of tokens of a tree, those that may not see each other too. A tree of long replies
pays for itself only up to a size: reading the prompt P once more costs P tokens, and saves pairs between the replies it
parts. With pairs at a price, k trees of n reply tokens in all cost k (T + price T^2), T = P + n / k, which is least at
n / k = sqrt(P / price + P^2).

Trees whose prompts begin alike can stand in one row, joined: what all begin with is branch 0, the rest of a prompt is a
branch that its replies see too.

    prompts p0 p1 x0 and p0 p1 y0 y1

    tokens      p0 p1 | x0 | a0 a1 | b0 | y0 y1 | c0
    branch       0  0 | 1J |  1J+1  1J+2|  2J   | 2J+1          J: JOINED, more than a tree has replies

What a token sees is a mask of ours instead of the model's own, so it has to be what the model would make: layers with a
sliding window get the tree within the window. A model that cannot be told (llm/train/kernels_layouts.py) reads each
reply as a row of
its own, behind the prompt again, by its own rules: trees of one reply, `apart`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.llm.model.types import CausalModel
from headway.llm.train.ragged_device_copies import send
from headway.llm.train.trees_block_masks import RowMask, Spans
from headway.llm.train.trees_row_packing import fill_rows, row_length

PADDING = -1
Windows = tuple[int | None, ...]
"""Of the kinds of layers that a model has; None: one that sees everything. For flash kernels there are none."""
JOINED = 1 << 32
"""Between the numbers of the branches of two trees in one row."""


@dataclass(frozen=True, slots=True)
class ReplyTree:
    """Holds a prompt and some of its replies; `first` is the number of the first one among all that are trained on."""

    prompt: np.ndarray  # [P]
    replies: tuple[np.ndarray, ...]
    first: int
    trained: tuple[np.ndarray | None, ...] = ()  # of each reply [T] bool: which tokens; None, or left out: all of them

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + sum(len(reply) - 1 for reply in self.replies)


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Holds a microbatch of trees: B rows of T places, N trained tokens in S replies (or episodes)."""

    tokens: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    branch: Tensor  # [B, T]: 0 the prompt, 1 the first reply, ..., PADDING; joined: a JOINED more for each tree
    sources: Tensor  # [N]: places b * T + t whose output predicts the trained tokens
    targets: Tensor  # [N]: the trained tokens, reply by reply
    replies: tuple[int, ...]  # [S]: the replies' numbers, in the order they lie here
    is_apart: bool = False  # a row is one sequence, which the model reads by its own rules
    row: RowMask | None = None  # all trees are in one row, and this says who sees whom there
    has_observations: bool = False  # some tokens behind the prompts are not trained on: episodes

    def to(self, device: torch.device | str) -> TreeBatch:
        return TreeBatch(
            send(self.tokens, device),
            send(self.positions, device),
            send(self.branch, device),
            send(self.sources, device),
            send(self.targets, device),
            self.replies,
            self.is_apart,
            None if self.row is None else self.row.to(device),
            self.has_observations,
        )

    def mask(self, window: int | None = None) -> Tensor:
        """Says who sees whom, [B, 1, T, T] bool; with a window, only those less than so many places back."""
        length = self.tokens.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        same = self.branch[:, None, :] == self.branch[:, :, None]
        prompt = self.branch - self.branch % JOINED
        of_tree = self.branch[:, None, :] == prompt[:, :, None]
        seen = earlier & (same | of_tree | (self.branch == 0)[:, None, :])
        if window is not None:
            seen &= self.positions[:, :, None] - self.positions[:, None, :] < window
        return seen[:, None]


SLOWNESS = 1.5
"""Attention takes so much longer per operation than matrix products; measured on a CPU."""


def body_of(model: CausalModel) -> Any:
    """Finds the model without its head; not every family says rightly where that is."""
    body = model.base_model
    return model.model if body is model and hasattr(model, "model") else body


def pair_price(model: CausalModel) -> float:
    """Says what a pair of tokens costs a model's attention, in tokens that go through its layers."""
    config = model.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    embedded = model.get_input_embeddings().weight
    weights = sum(p.numel() for p in body_of(model).parameters() if p.dim() == 2 and p.shape != embedded.shape)
    return SLOWNESS * 2 * head * config.num_attention_heads * config.num_hidden_layers / max(1, weights)


def pack_trees(
    prompts: Sequence[np.ndarray],
    replies: Sequence[Sequence[np.ndarray]],
    budget: int,
    price: float = 0.0,
    *,
    apart: bool = False,
    end_to_end: bool = False,
    trained: Sequence[Sequence[np.ndarray | None]] | None = None,
) -> list[list[ReplyTree]]:
    """Makes microbatches of trees whose padded size is at most `budget` tokens, the longest first.

    A group is cut into several trees, each with the prompt again, where it is larger than the budget by itself, or
    where that is less work, given the price of a pair of tokens; `apart`: each reply is a tree. `end_to_end`: the trees
    of a microbatch will stand in one row. `trained` says of each reply which of its tokens are trained on, if not all:
    every token that is read counts for the budget.
    """
    trees: list[ReplyTree] = []
    number = 0
    masks = [mask for group in trained or () for mask in group]

    def tree(prompt: np.ndarray, some: list[np.ndarray], first: int) -> ReplyTree:
        return ReplyTree(prompt, tuple(some), first, tuple(masks[first : first + len(some)]))

    for prompt, group in zip(prompts, replies, strict=True):
        some: list[np.ndarray] = []
        size, first = len(prompt), number
        ends = _cuts([len(reply) - 1 for reply in group], len(prompt), price)
        for place, reply in enumerate(group):
            if len(prompt) + len(reply) - 1 > budget:
                raise ValueError(
                    f"a prompt of {len(prompt)} tokens with {len(reply)} behind it does not fit into a microbatch "
                    f"of {budget} tokens"
                )
            if some and (apart or place in ends or size + len(reply) - 1 > budget):
                trees.append(tree(prompt, some, first))
                some, size, first = [], len(prompt), number
            some.append(reply)
            size += len(reply) - 1
            number += 1
        if some:
            trees.append(tree(prompt, some, first))
    if end_to_end:
        return [[trees[place] for place in row] for row in fill_rows([one.num_tokens for one in trees], budget)]
    batches: list[list[ReplyTree]] = []
    for one in sorted(trees, key=lambda one: (-one.num_tokens, one.first)):
        if batches and batches[-1][0].num_tokens * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(one)
        else:
            batches.append([one])
    return batches


def _cuts(lengths: Sequence[int], prompt: int, price: float) -> set[int]:
    """Finds the replies before which a new tree begins, so that all trees are about as long as is cheapest."""
    total = sum(lengths)
    if not price or not total:
        return set()
    count = min(len(lengths), max(1, round(total / (prompt / price + prompt**2) ** 0.5)))
    middles = np.cumsum(lengths) - np.array(lengths) / 2
    part = (middles * count / total).astype(int)
    return set((np.flatnonzero(np.diff(part)) + 1).tolist())


def lay_out(
    trees: Sequence[ReplyTree], *, apart: bool = False, windows: Windows | None = None, length: int = 0
) -> TreeBatch:
    """Makes the arrays that a model reads; `apart` for trees of one reply, to be read by its own rules.

    With `windows`, those of the model's layers, all trees stand in one row of this length, or the least that will do.
    """
    sizes = np.array([tree.num_tokens for tree in trees])
    if windows is None:
        rows, length, begins = len(trees), int(sizes.max()), np.zeros_like(sizes)
    else:
        rows, length, begins = 1, length or row_length(int(sizes.sum())), np.cumsum(sizes) - sizes
    tokens = np.zeros((rows, length), np.int64)
    positions = np.zeros((rows, length), np.int64)
    branch = np.full((rows, length), PADDING, np.int64)
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    numbers: list[int] = []
    for place, (tree, begin) in enumerate(zip(trees, begins.tolist(), strict=True)):
        row, depth = (place, len(tree.prompt)) if windows is None else (0, len(tree.prompt))
        end = at = begin + depth
        tokens[row, begin:end], positions[row, begin:end], branch[row, begin:end] = tree.prompt, np.arange(depth), 0
        masks = tree.trained or (None,) * len(tree.replies)
        for which, (reply, mask) in enumerate(zip(tree.replies, masks, strict=True)):
            more = len(reply) - 1
            tokens[row, at : at + more] = reply[:-1]
            positions[row, at : at + more] = np.arange(depth, depth + more)
            branch[row, at : at + more] = which + 1
            before = row * length + np.concatenate([[end - 1], np.arange(at, at + more)])
            sources.append(before if mask is None else before[mask])
            targets.append(reply if mask is None else reply[mask])
            numbers.append(tree.first + which)
            at += more
    return TreeBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(branch),
        torch.from_numpy(np.concatenate(sources)),
        torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        tuple(numbers),
        apart,
        None if windows is None else RowMask.of(_spans(trees), length, windows),
        any(mask is not None for tree in trees for mask in tree.trained),
    )


def _spans(trees: Sequence[ReplyTree]) -> Spans:
    """Finds prompts and replies in a row of trees; a reply of one token takes no place."""
    lengths: list[int] = []
    positions: list[int] = []
    roots: list[int] = []
    for tree in trees:
        root, depth = len(lengths), len(tree.prompt)
        for length, position in ((depth, 0), *((len(reply) - 1, depth) for reply in tree.replies)):
            if length:
                lengths.append(length)
                positions.append(position)
                roots.append(root)
    ends = np.cumsum(lengths)
    return Spans(ends - lengths, np.array(lengths), np.array(positions), np.array(roots))


def pays_to_join(trees: Sequence[ReplyTree], price: float) -> bool:
    """Says whether reading once what prompts begin with saves more than the pairs between trees cost."""
    sizes = np.array([tree.num_tokens for tree in trees])
    joined = sizes.sum() - (len(trees) - 1) * _beginning(trees)
    return bool(joined + price * joined**2 < (sizes + price * sizes**2).sum())


def lay_out_joined(trees: Sequence[ReplyTree]) -> TreeBatch:
    """Makes one row of all trees, in which what all their prompts begin with stands once."""
    shared = _beginning(trees)
    tokens = [trees[0].prompt[:shared]]
    positions, branch = [np.arange(shared)], [np.zeros(shared, np.int64)]
    at = shared
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    numbers: list[int] = []
    for number, tree in enumerate(trees, 1):
        length = len(tree.prompt)
        tokens.append(tree.prompt[shared:])
        positions.append(np.arange(shared, length))
        branch.append(np.full(length - shared, number * JOINED))
        at += length - shared
        last = at - 1
        masks = tree.trained or (None,) * len(tree.replies)
        for place, (reply, mask) in enumerate(zip(tree.replies, masks, strict=True), 1):
            more = len(reply) - 1
            tokens.append(reply[:-1])
            positions.append(np.arange(length, length + more))
            branch.append(np.full(more, number * JOINED + place))
            before = np.concatenate([[last], np.arange(at, at + more)])
            sources.append(before if mask is None else before[mask])
            targets.append(reply if mask is None else reply[mask])
            numbers.append(tree.first + place - 1)
            at += more
    return TreeBatch(
        _in_line(tokens)[None],
        _in_line(positions)[None],
        _in_line(branch)[None],
        _in_line(sources),
        _in_line(targets),
        tuple(numbers),
    )


def _in_line(parts: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _beginning(trees: Sequence[ReplyTree]) -> int:
    """Counts the tokens that all prompts begin with; each prompt has one more of its own, whose output is its own."""
    size = min(len(tree.prompt) for tree in trees) - 1
    first = trees[0].prompt[:size]
    differs = np.zeros(size, bool)
    for tree in trees[1:]:
        differs |= tree.prompt[:size] != first
    places = np.flatnonzero(differs)
    return int(places[0]) if len(places) else size


def hidden_states(model: CausalModel, batch: TreeBatch) -> Tensor:
    """Returns the model's output where trained tokens are predicted, before the head: [N, H]."""
    if batch.has_observations and batch.row is None:
        from headway.llm.train.llama_episodes import can_read, read_episodes  # which knows of trees

        if can_read(body := body_of(model)):
            return read_episodes(body, batch)
    if batch.is_apart:  # padding comes last, and nobody looks ahead
        out = body_of(model)(input_ids=batch.tokens, use_cache=False).last_hidden_state
    else:
        out = body_of(model)(
            input_ids=batch.tokens, position_ids=batch.positions, attention_mask=_masks(model, batch), use_cache=False
        ).last_hidden_state
    chosen: Tensor = out.reshape(-1, out.shape[-1])[batch.sources]
    return chosen


FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers whose masks we can make; models that have several take one mask for each."""


def windows_of(model: CausalModel) -> Windows:
    """Finds how far back layers see: one window where all are alike, else of full and of sliding attention."""
    config = model.config.get_text_config()
    kinds, window = set(getattr(config, "layer_types", None) or ()), getattr(config, "sliding_window", None)
    if SLIDING in kinds:
        return None, window
    return (None if kinds else window,)


def _masks(model: CausalModel, batch: TreeBatch) -> Any:
    """Makes a mask for each kind of layer: a tensor, or the table of a kernel where trees stand in one row."""
    windows = windows_of(model)
    if batch.row is not None and not batch.row.tables:
        masks = [batch.row.flash_mask()]
    elif batch.row is not None:
        masks = [batch.row.block_mask(window) for window in windows]
    else:
        masks = [_as_taken(model, batch.mask(window)) for window in windows]
    return masks[0] if len(masks) == 1 else dict(zip((FULL, SLIDING), masks, strict=True))


def _as_taken(model: CausalModel, mask: Tensor) -> Tensor:
    """Makes a mask as the model takes it: attention that is written out adds it; kernels take it as it is."""
    if model.config.get_text_config()._attn_implementation != "eager":
        return mask
    kind = model.get_input_embeddings().weight.dtype
    return torch.zeros(mask.shape, dtype=kind, device=mask.device).masked_fill_(~mask, torch.finfo(kind).min)
