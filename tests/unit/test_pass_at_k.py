"""pass@k against counting every choice."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.llm.evaluator_pass_at_k import pass_at_k


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(case: tuple[int, int, int]) -> None:
    n, c, k = case
    choices = list(combinations(range(n), k))
    right = sum(any(response < c for response in choice) for choice in choices)
    assert pass_at_k(n, c, k) == pytest.approx(right / len(choices))


def test_pass_at_one_is_the_share_of_right_responses_and_extremes_are_exact() -> None:
    assert pass_at_k(8, 3, 1) == 3 / 8
    assert pass_at_k(8, 0, 8) == 0.0
    assert pass_at_k(8, 6, 3) == 1.0  # only two are wrong
    assert pass_at_k(100_000, 1, 1000) == pytest.approx(0.01)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"k must be in \[1, 4\], the number of responses; received 5"):
        pass_at_k(4, 1, 5)
    with pytest.raises(ValueError, match="5 of 4 responses cannot be right"):
        pass_at_k(4, 5, 1)
