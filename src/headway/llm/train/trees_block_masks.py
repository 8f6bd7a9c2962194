"""Who sees whom in a row of trees, block by block: what FlexAttention leaves out, looks at closely, or takes whole.

    places      p0 p1 p2 a0 | a1 b0 q0 q1 | c0 c1 .. ..      two trees end to end, then padding; blocks of four
    span         0  0  0  1 |  1  2  3  3 |  4  4  x  y      prompts and replies, numbered as they stand
    root         0  0  0  0 |  0  0  3  3 |  3  3  x  y      the prompt of the tree

    q sees k    k is not later, and in the same span or in the prompt of the tree; with a window, less far back

    blocks      first  second third        / closely: some pairs see each other, and a function is asked for each
    first         /                        # whole: all do, and nobody is asked
    second        /      /                   left out: none do, and nothing is computed
    third                /     /

The tables are made here, from where spans begin and end: that is some hundred numbers, where a mask of every pair of
places would be some hundred million. Padding sees itself alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.llm.train.ragged_device_copies import send
from headway.llm.train.trees_flash_trees import FlashTable

BLOCK = 128
"""Places in a block."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Says where S prompts and replies stand in a row, in order and without gaps; none is empty."""

    starts: np.ndarray  # [S]
    lengths: np.ndarray  # [S]
    positions: np.ndarray  # [S]: of their first tokens
    roots: np.ndarray  # [S]: which span is the prompt of their tree


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Holds the four lists of FlexAttention, of n blocks each: keys of a query closely and whole, and the reverse."""

    counts: Tensor  # [4, n] int32
    indices: Tensor  # [4, n, n] int32: the first `counts` of each line


@dataclass(frozen=True, slots=True)
class RowMask:
    """Holds what attention has to know of one row of T places: FlexAttention its tables, flash kernels theirs."""

    span: Tensor  # [T] int32
    root: Tensor  # [T] int32
    positions: Tensor  # [T] int32
    tables: Mapping[int | None, BlockTable]  # of each window, None: of no window; for FlexAttention
    flash: FlashTable

    @classmethod
    def of(cls, spans: Spans, length: int, windows: tuple[int | None, ...]) -> RowMask:
        if length % BLOCK:
            raise ValueError(f"a row is of whole blocks of {BLOCK} places, received {length} places")
        used = int(spans.lengths.sum())
        alone = np.arange(used, length)  # numbers no span has: there are at most as many as places
        within = np.arange(used) - np.repeat(spans.starts, spans.lengths)
        positions = np.concatenate([np.repeat(spans.positions, spans.lengths) + within, np.zeros(length - used)])
        lines = (
            np.concatenate([np.repeat(np.arange(len(spans.lengths)), spans.lengths), alone]),
            np.concatenate([np.repeat(spans.roots, spans.lengths), alone]),
            positions,
        )
        span, root, places = (torch.from_numpy(line.astype(np.int32)) for line in lines)
        tables = {window: block_table(spans, length, window) for window in windows}
        return cls(span, root, places, tables, FlashTable.of(spans.starts, spans.lengths, spans.roots, length))

    def to(self, device: torch.device | str) -> RowMask:
        tables = {
            window: BlockTable(send(table.counts, device), send(table.indices, device))
            for window, table in self.tables.items()
        }
        span, root, positions = (send(line, device) for line in (self.span, self.root, self.positions))
        return RowMask(span, root, positions, tables, self.flash.to(device))

    def block_mask(self, window: int | None) -> Any:
        """Makes the mask of FlexAttention, [1, 1, T, T]."""
        from torch.nn.attention.flex_attention import BlockMask

        table, length = self.tables[window], len(self.span)
        counts, indices = table.counts[:, None, None], table.indices[:, None, None]
        return BlockMask(
            seq_lengths=(length, length),
            kv_num_blocks=counts[0],
            kv_indices=indices[0],
            full_kv_num_blocks=counts[1],
            full_kv_indices=indices[1],
            q_num_blocks=counts[2],
            q_indices=indices[2],
            full_q_num_blocks=counts[3],
            full_q_indices=indices[3],
            BLOCK_SIZE=(BLOCK, BLOCK),
            mask_mod=_sees(self.span, self.root) if window is None else _sees_within(self, window),
        )

    def flash_mask(self) -> Any:
        """Makes what a model passes on to our attention in place of a mask: it takes FlexAttention's as they are, so
        this is one, with nothing in it but the table of the flash kernels."""
        from torch.nn.attention.flex_attention import BlockMask, noop_mask

        length, nothing = len(self.span), torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=self.span.device)
        mask = BlockMask(
            seq_lengths=(length, length),
            kv_num_blocks=nothing[0],
            kv_indices=nothing,
            full_kv_num_blocks=None,
            full_kv_indices=None,
            q_num_blocks=None,
            q_indices=None,
            full_q_num_blocks=None,
            full_q_indices=None,
            BLOCK_SIZE=(length, length),
            mask_mod=noop_mask,
        )
        mask.flash = self.flash  # type: ignore[attr-defined]
        return mask


def _sees(span: Tensor, root: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & ((span[query] == span[key]) | (root[query] == span[key]))

    return sees


def _sees_within(row: RowMask, window: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    span, root, positions = row.span, row.root, row.positions

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_near = positions[query] - positions[key] < window
        return (query >= key) & is_near & ((span[query] == span[key]) | (root[query] == span[key]))

    return sees


def block_table(spans: Spans, length: int, window: int | None) -> BlockTable:
    """Finds the blocks in which somebody sees somebody, and those in which all see all.

    A piece is what a span has in a block. A block of earlier keys is seen as its pieces are seen; the last block of the
    row that a query is in begins before the query and ends behind it, so that is always looked at closely.
    """
    block, span, low, high = _pieces(spans, length)
    is_padding = span == len(spans.lengths)
    roots = np.append(spans.roots, -1)
    sees = ((span[:, None] == span[None]) & ~is_padding[:, None]) | (roots[span][:, None] == span[None])
    sees_all = sees
    if window is not None:
        sees_all = sees & (high[:, None] - low[None] < window)
        sees = sees & (low[:, None] - high[None] < window)
    firsts = np.searchsorted(block, np.arange(length // BLOCK))
    some = np.logical_or.reduceat(np.logical_or.reduceat(sees, firsts, 0), firsts, 1)
    every = np.logical_and.reduceat(np.logical_and.reduceat(sees_all, firsts, 0), firsts, 1)
    every = np.tril(every, -1)
    closely = np.tril(some & ~every, -1) | np.eye(len(firsts), dtype=bool)
    lists = [_listed(found) for found in (closely, every, closely.T, every.T)]
    return BlockTable(
        torch.from_numpy(np.stack([counts for counts, _ in lists])),
        torch.from_numpy(np.stack([indices for _, indices in lists])),
    )


def _pieces(spans: Spans, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cuts spans at the edges of blocks; returns of each piece its block, its span, and its first and last position.

    Padding counts as one span more.
    """
    used = int(spans.lengths.sum())
    starts = np.append(spans.starts, used) if used < length else spans.starts
    begins = np.unique(np.concatenate([starts, np.arange(0, length, BLOCK)]))
    ends = np.append(begins[1:], length)
    span = np.searchsorted(starts, begins, side="right") - 1
    low = np.append(spans.positions - spans.starts, 0)[span] + begins
    return begins // BLOCK, span, low, low + ends - begins - 1


def _listed(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many blocks are found in each line [n], and which, first in each line [n, n]; int32."""
    counts = found.sum(1)
    lines, blocks = np.nonzero(found)
    indices = np.zeros(found.shape, np.int32)
    indices[lines, np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts, counts)] = blocks
    return counts.astype(np.int32), indices
