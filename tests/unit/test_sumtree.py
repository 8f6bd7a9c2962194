"""The trees against an O(n) reference, under whatever sequence of operations hypothesis thinks of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.replay import priority_tree_sumtree as sumtree
from headway.replay.priority_tree_sumtree import Trees

stable = settings(max_examples=80, deadline=None, derandomize=True)
SIZES = [1, 7, 8, 9, 64, 65, 500, 4097]


def leaves_of(trees: Trees, num: int) -> np.ndarray:
    return trees.sums[:num].copy()


def planted(leaves: np.ndarray) -> Trees:
    trees = sumtree.plant(len(leaves))
    sumtree.set_range(*trees, 0, leaves)
    return trees


def assert_same(ours: Trees, theirs: Trees) -> None:
    np.testing.assert_array_equal(ours.sums, theirs.sums)
    np.testing.assert_array_equal(ours.mins, theirs.mins)


def assert_agrees_with_numpy(trees: Trees, leaves: np.ndarray) -> None:
    """Equal to trees built afresh, bit for bit, and to the plain sum and minimum."""
    np.testing.assert_array_equal(leaves_of(trees, len(leaves)), leaves)
    assert_same(trees, planted(leaves))
    assert trees.total == pytest.approx(math.fsum(leaves), rel=1e-14)
    assert trees.least == min((leaf for leaf in leaves if leaf > 0), default=math.inf)


# -- operations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_an_empty_tree_weighs_nothing_and_its_least_leaf_is_infinite(size: int) -> None:
    trees = sumtree.plant(size)
    assert trees.total == 0.0
    assert trees.least == math.inf


def test_empty_leaves_do_not_count_as_the_minimum() -> None:
    trees = sumtree.plant(100)
    sumtree.set_range(*trees, 40, np.array([3.0, 0.25, 7.0]))
    assert trees.least == 0.25
    assert trees.total == 10.25


leaf = st.one_of(st.just(0.0), st.floats(1e-9, 1e9))


@st.composite
def operations(draw: st.DrawFn) -> tuple[int, list[tuple[str, list[tuple[int, float]]]]]:
    size = draw(st.integers(1, 200))
    one = st.tuples(st.integers(0, size - 1), leaf)
    kinds = st.tuples(st.sampled_from(["range", "leaves"]), st.lists(one, max_size=40))
    return size, draw(st.lists(kinds, max_size=12))


@stable
@given(operations())
def test_trees_agree_with_numpy_after_any_operations(
    case: tuple[int, list[tuple[str, list[tuple[int, float]]]]],
) -> None:
    size, steps = case
    trees, leaves = sumtree.plant(size), np.zeros(size)
    for kind, pairs in steps:
        where = np.array([place for place, _ in pairs], np.int64)
        values = np.array([value for _, value in pairs])
        if kind == "leaves":
            sumtree.set_leaves(*trees, where, values)
            for place, value in pairs:  # the last of equal ones wins
                leaves[place] = value
        else:
            first = int(where[0]) if pairs else 0
            values = values[: size - first]
            sumtree.set_range(*trees, first, values)
            leaves[first : first + len(values)] = values
        assert_agrees_with_numpy(trees, leaves)


def test_nothing_drifts_in_a_hundred_thousand_updates() -> None:
    rng = np.random.default_rng(0)
    leaves = rng.random(3000)
    trees = planted(leaves)
    for _ in range(400):
        where = rng.integers(3000, size=256)
        values = 10.0 ** rng.uniform(-8, 8, size=256)
        sumtree.set_leaves(*trees, where, values)
        leaves[where] = values
    assert_agrees_with_numpy(trees, leaves)
    last = np.full(3000, 0.1)
    sumtree.set_leaves(*trees, rng.permutation(3000), last)  # no trace of the large ones
    assert trees.total == planted(last).total


# -- draws ------------------------------------------------------------------------------------------


@stable
@given(st.lists(leaf, min_size=1, max_size=300).filter(any), st.integers(0, 2**32))
def test_a_mass_is_found_in_the_leaf_whose_interval_holds_it(values: list[float], seed: int) -> None:
    leaves = np.array(values)
    trees = planted(leaves)
    masses = np.random.default_rng(seed).random(64) * trees.total
    found = sumtree.find(trees.sums, trees.starts, masses.copy())
    ends = np.cumsum(leaves)
    slack = 1e-12 * trees.total
    assert (leaves[found] > 0).all()
    assert (ends[found] - leaves[found] <= masses + slack).all()
    assert (masses <= ends[found] + slack).all()


@pytest.mark.parametrize("size", SIZES)
def test_masses_at_the_ends_and_beyond_stay_inside_the_filled_leaves(size: int) -> None:
    leaves = np.zeros(size)
    leaves[size // 3] = 0.1
    leaves[size // 2] = 0.3
    trees = planted(leaves)
    beyond = np.array([0.0, trees.total * (1 - 2**-53), trees.total, 2 * trees.total])
    found = sumtree.find(trees.sums, trees.starts, beyond)
    np.testing.assert_array_equal(found, [size // 3] + [size // 2] * 3)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-40])
def test_each_stratum_is_drawn_from_once(uniform: float) -> None:
    trees = planted(np.ones(512))
    found = sumtree.draw(trees.sums, trees.starts, np.full(128, uniform))
    np.testing.assert_array_equal(found // 4, np.arange(128))  # 128 strata of 4 leaves


def test_nodes_do_not_straddle_cache_lines() -> None:
    trees = sumtree.plant(1000)
    assert trees.sums.ctypes.data % 64 == 0
    assert (trees.starts % sumtree.FAN_OUT == 0).all()
