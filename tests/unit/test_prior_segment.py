"""Segments of text games: what they refuse, and that they arrive whole wherever segments go."""

from __future__ import annotations

import os
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from headway.core.types import Rollout, size_of
from headway.replay.records import record_of
from headway.runtimes.shared_memory_arena import Arena
from headway.runtimes.shared_memory_transport import Views, encode
from headway.text_games.segment import RaggedFloats, RaggedTokens, TextSegment
from headway.zero.segments import GameSegment

STEPS, GAMES, SLOTS = 3, 2, 4


def a_segment(**changes: Any) -> TextSegment:
    """Steps with two to four candidates; the last step of the second game only resets."""
    random = np.random.default_rng(5)
    shape = (STEPS, GAMES)
    valid = np.ones(shape, bool)
    valid[-1, 1] = False
    prompts, actions, logs = [], [], []
    taken = random.integers(2, size=shape)
    for step, is_valid in enumerate(valid.reshape(-1)):
        count = int(random.integers(2, SLOTS + 1)) if is_valid else 0
        prompts.append(random.integers(99, size=7 + step) if is_valid else ())
        texts = [random.integers(99, size=1 + slot) if slot < count else () for slot in range(SLOTS)]
        actions += texts
        is_asked = is_valid and step != 1
        logs.append(-random.random(len(texts[taken.reshape(-1)[step]])) if is_asked else ())
    values: dict[str, Any] = {
        "obs": random.integers(9, size=(*shape, 5)).astype(np.int32),
        "actions": taken.astype(np.int32),
        "rewards": np.zeros(shape, np.float32),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
        "valid": valid,
        "to_play": np.zeros(shape, np.int8),
        "policies": np.full((*shape, SLOTS), 1 / SLOTS, np.float32),
        "values": np.zeros(shape, np.float32),
        "stream": 0,
        "serial": 0,
        "prompt_tokens": RaggedTokens.of(prompts),
        "action_tokens": RaggedTokens.of(actions),
        "action_log_probs": RaggedFloats.of(logs),
        "spreads": np.ones(shape, np.float32),
    }
    return TextSegment(**{**values, **changes})


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    if hasattr(left, "__dataclass_fields__"):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)
        )
    return left == right


def test_rows_come_back_as_they_were_laid_out() -> None:
    rows = RaggedTokens.of([(4, 5), (), (6,)])
    assert rows.lengths.tolist() == [2, 0, 1] and rows.values.dtype == np.int32
    assert [rows.row(number).tolist() for number in range(3)] == [[4, 5], [], [6]]
    assert [row.tolist() for row in rows.rows()] == [[4, 5], [], [6]]
    assert len(RaggedFloats.of([])) == 0 and RaggedFloats.of([]).rows() == []
    with pytest.raises(IndexError, match="row 3 of 3"):
        rows.row(3)


def test_it_stands_where_a_game_segment_is_asked_for() -> None:
    segment = a_segment()
    assert record_of(Rollout(segment), GameSegment) is segment
    assert segment.num_steps == STEPS * GAMES - 1 and segment.num_slots == SLOTS
    assert segment.executed_lengths[-1] == 0


@pytest.mark.parametrize("is_writable", [True, False])
def test_shared_memory_keeps_it(is_writable: bool) -> None:
    arena, views = Arena(1), Views()
    segment = a_segment(obs=np.arange(STEPS * GAMES * 100, dtype=np.int32).reshape(STEPS, GAMES, 100))
    for _ in range(2):  # the second time a layout may be known
        ref = pickle.loads(pickle.dumps(encode(segment, arena)))
        for block in arena.new_segments:
            views.attach((1, block.index), block.fd, block.size)
            os.close(block.fd)
        arena.new_segments.clear()
        assert ref.serial and ref.size > size_of(segment)
        assert same(views.open(ref, is_writable), segment) and same(views.copy(ref), segment)


def test_pickling_keeps_it_and_its_size_counts_the_tokens() -> None:
    segment = a_segment()
    again = pickle.loads(pickle.dumps(segment))
    assert same(again, segment)
    bare = {field.name: getattr(segment, field.name) for field in fields(GameSegment)}
    parts = (segment.prompt_tokens, segment.action_tokens, segment.action_log_probs)
    ragged = sum(part.values.nbytes + part.lengths.nbytes for part in parts)
    assert size_of(segment) == size_of(GameSegment(**bare)) + ragged + segment.spreads.nbytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_tokens": RaggedTokens.of([(1,)] * 5)}, "prompt_tokens of 6 steps with 4 slots must have 6 rows, rec"),
        ({"action_tokens": RaggedTokens.of([(1,)] * 6)}, "action_tokens .* must have 24 rows, received 6"),
        ({"spreads": np.zeros((2, 3), np.float32)}, r"like the actions, \[3, 2\], received \[2, 3\]"),
        ({"actions": np.full((3, 2), 4, np.int32)}, r"actions must be in 0\.\.3, received 4\.\.4"),
        ({"action_log_probs": RaggedFloats.of([(-1.0,) * 9, *[()] * 5])}, "step 0: 9 log-probabilities of an action"),
        (
            {"action_tokens": RaggedTokens.of([()] * 24), "action_log_probs": RaggedFloats.of([()] * 6)},
            "step 0 took slot 1, which has no tokens",
        ),
    ],
)
def test_a_segment_that_does_not_fit_together_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        a_segment(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("lengths", "message"), [([1, 1], "add up to 2"), ([4, -1], "add up to 3")])
def test_rows_that_do_not_share_out_their_values_are_refused(lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"RaggedTokens has 3 values, its lengths {message}"):
        RaggedTokens(np.zeros(3, np.int32), np.array(lengths, np.int32))
