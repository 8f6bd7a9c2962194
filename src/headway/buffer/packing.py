"""Sequences of different lengths, packed into microbatches without padding.

    sequences    a a a a a   b b b   c c   d d d d d d          budget 8

    pack 0    tokens       d d d d d d c c        pack 1    a a a a a b b b
              positions    0 1 2 3 4 5 0 1                  0 1 2 3 4 0 1 2
              row          0 0 0 0 0 0 1 1                  0 0 0 0 0 1 1 1

A token may attend to the tokens before it in its own sequence, and to nothing else: attention kernels for ragged
batches take `cumulative` and `longest`, others the mask of `attention_mask`. Every sequence is in exactly one pack,
no pack is over the budget, and how they are packed depends on the lengths alone.

The log-probability of the token at place p is read off the output at p - 1. `sources` are those places, for the
trained tokens only, so the big matrix of logits is never made for prompts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.core.naming import unknown

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Pack:
    """One microbatch: S sequences, N tokens, M of them trained on."""

    members: tuple[int, ...]  # S: which sequences, in the order they lie here
    tokens: Array  # [1, N] int64
    positions: Array  # [1, N] int64: from 0 in every sequence
    row: Array  # [N] int64: which member each token belongs to
    cumulative: Array  # [S + 1] int32: where each member begins, and the end
    longest: int
    sources: Array  # [M] int64: where the output that predicts each trained token stands
    targets: Array  # [M] int64: the trained tokens
    trained: Array  # [S] int64: how many of each member's tokens are trained on

    def gather(self, per_sequence: Sequence[Array]) -> Array:
        """Values of the trained tokens of all sequences (log-probabilities, versions), in this pack's order: [M]."""
        parts = [np.asarray(per_sequence[member]) for member in self.members]
        for member, part, count in zip(self.members, parts, self.trained, strict=True):
            if len(part) != count:
                raise ValueError(f"sequence {member} has {count} trained tokens, received {len(part)} values for them")
        return np.concatenate(parts)


def pack_sequences(
    tokens: Sequence[Array],  # each [L]: a whole sequence, prompt and reply
    trained: Sequence[Array],  # each [L] bool: the tokens to train on
    *,
    budget: int,
    how: str = "balanced",
) -> list[Pack]:
    """Packs of at most `budget` tokens each."""
    if len(tokens) != len(trained):
        raise ValueError(f"received {len(tokens)} sequences and {len(trained)} masks")
    for index, (ids, mask) in enumerate(zip(tokens, trained, strict=True)):
        if len(ids) != len(mask):
            raise ValueError(f"sequence {index} has {len(ids)} tokens and a mask of {len(mask)}")
        if len(mask) and mask[0]:
            raise ValueError(f"sequence {index} trains its first token, which nothing predicts")
    chosen = assign([len(ids) for ids in tokens], budget=budget, how=how)
    return [_pack(members, tokens, trained) for members in chosen]


def assign(lengths: Sequence[int], *, budget: int, how: str = "balanced") -> list[list[int]]:
    """Which sequences share a pack: lists of indices, each of at most `budget` tokens together.

    `first_fit` (decreasing) fills packs one after another and leaves the rest in the last. `balanced` takes as many
    packs and levels them, so that data-parallel learners finish together; it takes one more where levelling does not
    fit.
    """
    if how not in ("first_fit", "balanced"):
        raise ValueError(unknown("packing", how, ("first_fit", "balanced")))
    if budget < 1:
        raise ValueError(f"the token budget of a microbatch must be >= 1, received {budget!r}")
    for index, length in enumerate(lengths):
        if length < 1:
            raise ValueError(f"sequence {index} is empty")
        if length > budget:
            raise ValueError(f"sequence {index} has {length} tokens, the budget of a microbatch is {budget}: raise it")
    falling = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    packs = _first_fit(lengths, falling, budget)
    if how == "balanced":
        levels = (_level(lengths, falling, k, budget) for k in range(len(packs), len(lengths) + 1))
        packs = next(level for level in levels if level is not None)
    return sorted(sorted(pack) for pack in packs)


def attention_mask(row: Array) -> Array:
    """[1, 1, N, N] bool, True where the token of the third axis may see the token of the fourth."""
    place = np.arange(len(row))
    return ((row[:, None] == row[None, :]) & (place[:, None] >= place[None, :]))[None, None]


def _first_fit(lengths: Sequence[int], order: Sequence[int], budget: int) -> list[list[int]]:
    packs: list[list[int]] = []
    room: list[int] = []
    for index in order:
        place = next((k for k, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            packs.append([index])
            room.append(budget - lengths[index])
        else:
            packs[place].append(index)
            room[place] -= lengths[index]
    return packs


def _level(lengths: Sequence[int], order: Sequence[int], num_packs: int, budget: int) -> list[list[int]] | None:
    """The longest first, each into the emptiest of so many packs. None: some pack is over the budget."""
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    filled = [(0, k) for k in range(num_packs)]
    for index in order:
        load, k = heapq.heappop(filled)
        if load + lengths[index] > budget:
            return None
        packs[k].append(index)
        heapq.heappush(filled, (load + lengths[index], k))
    return packs


def _pack(members: Sequence[int], tokens: Sequence[Array], trained: Sequence[Array]) -> Pack:
    lengths = np.array([len(tokens[member]) for member in members], np.int64)
    joined = np.concatenate([np.asarray(tokens[member], np.int64) for member in members])
    mask = np.concatenate([np.asarray(trained[member], bool) for member in members])
    cumulative = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    places = np.flatnonzero(mask)
    return Pack(
        members=tuple(members),
        tokens=joined[None],
        positions=(np.arange(len(joined)) - np.repeat(cumulative[:-1], lengths).astype(np.int64))[None],
        row=np.repeat(np.arange(len(members)), lengths),
        cumulative=cumulative,
        longest=int(lengths.max()),
        sources=places - 1,
        targets=joined[places],
        trained=np.array([int(np.count_nonzero(trained[member])) for member in members], np.int64),
    )
