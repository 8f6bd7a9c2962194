"""Rows of trees say who sees whom as padded rows do, block by block, and whatever reads them learns the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.llm.train.trees import ReplyTree, lay_out, pack_trees  # noqa: E402
from headway.llm.train.trees_block_masks import BLOCK, RowMask, Spans  # noqa: E402
from headway.llm.train.trees_row_packing import STEP, fill_rows, row_length  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def tree(prompt: int, *replies: int, first: int = 0) -> ReplyTree:
    random = np.random.default_rng(prompt)
    return ReplyTree(random.integers(0, 50, prompt), tuple(random.integers(0, 50, n) for n in replies), first)


def by_pairs(row: RowMask, window: int | None) -> np.ndarray:
    """Who sees whom, by asking for every pair of places: [T, T]."""
    places = torch.arange(len(row.span))
    asked = row.block_mask(window).mask_mod(places[:1], places[:1], places[:, None], places[None])
    return asked.numpy()


def by_tables(row: RowMask, window: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Blocks that are looked at closely, and those that are taken whole, [n, n] each; checked from both sides."""
    counts, indices = row.tables[window].counts.numpy(), row.tables[window].indices.numpy()
    found = np.zeros((4, counts.shape[1], counts.shape[1]), bool)
    for which in range(4):
        for line, count in enumerate(counts[which]):
            found[which, line, indices[which, line, :count]] = True
    assert (found[2] == found[0].T).all()
    assert (found[3] == found[1].T).all()
    return found[0], found[1]


def check_tables(row: RowMask, window: int | None) -> None:
    blocks = len(row.span) // BLOCK
    pairs = by_pairs(row, window).reshape(blocks, BLOCK, blocks, BLOCK)
    some, every = pairs.any((1, 3)), pairs.all((1, 3))
    closely, whole = by_tables(row, window)
    assert not (closely & whole).any()
    assert (whole <= every).all()
    assert (closely | whole == some).all()
    assert (whole == every).all()


@pytest.mark.parametrize("window", [None, 1, 9, 130, 1000])
def test_tables_hold_the_blocks_in_which_somebody_sees_somebody(window: int | None) -> None:
    trees = [tree(140, 300, 2, 1, 260), tree(5, 1), tree(1, 2, 2), tree(300, 40)]
    row = lay_out(trees, windows=(None, window)).row
    assert row is not None
    assert len(row.span) == 1536
    check_tables(row, window)
    check_tables(row, None)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.lists(st.integers(1, 150), min_size=1, max_size=4)), min_size=1, max_size=4
    ),
    st.sampled_from([None, 3, 64, 128, 129]),
)
def test_tables_of_any_trees(shapes: list[tuple[int, list[int]]], window: int | None) -> None:
    row = lay_out([tree(prompt, *replies) for prompt, replies in shapes], windows=(window,)).row
    assert row is not None
    check_tables(row, window)


@pytest.mark.parametrize("window", [None, 3])
def test_a_token_sees_in_a_row_what_it_sees_in_a_tree_of_its_own(window: int | None) -> None:
    trees = [tree(4, 3, 5), tree(2, 1, 4), tree(7, 2)]
    row = lay_out(trees, windows=(window,))
    assert row.row is not None
    pairs = by_pairs(row.row, window)
    at = 0
    for one in trees:
        here = slice(at, at + one.num_tokens)
        alone = lay_out([one])
        assert (pairs[here, here] == alone.mask(window)[0, 0].numpy()).all()
        assert (row.positions[0, here] == alone.positions[0]).all()
        assert not pairs[here, :at].any()
        assert not pairs[at + one.num_tokens :, here].any()
        at += one.num_tokens
    assert (pairs[at:] == np.eye(len(pairs), dtype=bool)[at:]).all()  # padding sees itself
    padded = lay_out(trees)
    assert (row.targets == padded.targets).all()
    assert (row.tokens.view(-1)[row.sources] == padded.tokens.view(-1)[padded.sources]).all()


def test_a_row_of_broken_blocks_is_refused() -> None:
    spans = Spans(np.array([0]), np.array([5]), np.array([0]), np.array([0]))
    with pytest.raises(ValueError, match="a row is of whole blocks of 128 places, received 130 places"):
        RowMask.of(spans, 130, (None,))


# -- rows -------------------------------------------------------------------------------------------


def test_rows_are_of_few_lengths() -> None:
    lengths = {row_length(tokens, 16384) for tokens in range(1, 16385)}
    assert len(lengths) == 24
    assert all(length % STEP == 0 for length in lengths)
    assert max(lengths) == 16384
    for tokens in range(4096, 16385):
        assert tokens <= row_length(tokens, 16384) <= tokens * 1.125


def test_no_row_is_longer_than_is_allowed_up_to_a_step() -> None:
    assert row_length(9000, 9216) == 9216
    assert row_length(9000, 9100) == 9216
    assert row_length(9000) == 9216
    assert row_length(10000, 10200) == 10240
    assert row_length(8200, 8300) == 8704  # not 9216


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_rows_hold_every_tree_once_and_no_more_than_is_allowed(sizes: list[int]) -> None:
    rows = fill_rows(sizes, 50)
    assert sorted(place for row in rows for place in row) == list(range(len(sizes)))
    used = [sum(sizes[place] for place in row) for row in rows]
    assert max(used) <= 50
    assert used == sorted(used, reverse=True)


def test_rows_are_filled_evenly() -> None:
    assert [len(row) for row in fill_rows([10] * 8, 50)] == [4, 4]  # not 5 and 3


def test_trees_end_to_end_are_not_cut_for_the_price_of_pairs() -> None:
    prompt, replies = np.arange(4), [np.arange(20)] * 6
    padded = pack_trees([prompt], [replies], 1000, price=1.0)
    assert sum(map(len, padded)) > 1
    row = pack_trees([prompt], [replies], 1000, end_to_end=True)
    assert [[len(one.replies) for one in trees] for trees in row] == [[6]]
