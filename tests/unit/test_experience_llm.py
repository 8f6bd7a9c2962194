"""Groups of replies and episodes as records: what they hold, what they refuse, how they travel."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.types import Rollout, Span, size_of
from headway.llm.rollouts_episode import ENDS, EpisodeBuilder, Episodes, state_number
from headway.llm.rollouts_group import Group, group_of


def group(sizes: list[int], **others: Any) -> Group:
    count = sum(sizes)
    values: dict[str, Any] = {
        "prompt": np.arange(3, dtype=np.int32),
        "tokens": np.arange(count, dtype=np.int32),
        "lengths": np.array(sizes, np.int64),
        "log_probs": -np.arange(count, dtype=np.float32),
        "versions": np.arange(count, dtype=np.int32) + 4,
        "rewards": np.arange(len(sizes), dtype=np.float32),
    }
    return Group(**{**values, **others})


def same(one: object, other: object) -> bool:
    """Equal field by field, types of arrays too."""
    assert type(one) is type(other)
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]  # type: ignore[arg-type]
    return all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        if isinstance(a, np.ndarray)
        else a == b
        for a, b in pairs
    )


# -- groups -----------------------------------------------------------------------------------------


def test_a_group_knows_its_replies_its_span_and_what_makes_it_slow() -> None:
    one = group([2, 1, 3])
    assert [reply.tolist() for reply in one.replies] == [[0, 1], [2], [3, 4, 5]]
    assert one.span == Span(4, 9)
    assert one.length == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": np.array([2, 2])}, r"the group of a/7 has 6 tokens, but its 2 lengths add up to 4"),
        ({"lengths": np.array([], np.int64)}, r"the group of a/7 has 6 tokens, but its 0 lengths add up to 0"),
        ({"lengths": np.array([6, 0, 0])}, r"reply 1 to a/7 has no tokens: a reply needs at least one"),
        ({"log_probs": np.zeros(5)}, r"the group of a/7 has 6 tokens and 5 log_probs"),
        ({"versions": np.zeros(7)}, r"the group of a/7 has 6 tokens and 7 versions"),
        ({"rewards": np.zeros(2)}, r"the group of a/7 has 3 replies, 2 rewards and 0 words on how they finished"),
        ({"finish": ("stop",)}, r"the group of a/7 has 3 replies, 3 rewards and 1 words on how they finished"),
        ({"part_names": ("format",)}, r"the group of a/7 has 1 parts of 3 rewards, received \(0, 0\) numbers"),
    ],
)
def test_a_group_that_does_not_add_up_is_refused_with_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        group([2, 1, 3], uid="a/7", **change)


def test_what_an_older_version_has_saved_is_read_as_a_group() -> None:
    """A rollout that waited in a checkpoint, with the dictionary that collectors made before there was a record."""
    parts = {"reward_format": np.array([1, np.nan], np.float32), "reward_answer": np.array([0, 1], np.float32)}
    old = {name: getattr(group([2, 1]), name) for name in ("prompt", "tokens", "lengths", "log_probs", "versions")}
    saved = Rollout({**old, "rewards": np.array([1, 0.5], np.float32), **parts}, info={"uid": "a/7", "cut": 1})
    found = group_of(pickle.loads(pickle.dumps(saved)))
    assert found.part_names == ("answer", "format")
    expected = np.array([[0, 1], [1, np.nan]], np.float32)
    told = {"part_names": ("answer", "format"), "parts": expected, "uid": "a/7", "rewards": saved.payload["rewards"]}
    assert same(found, group([2, 1], **told))
    assert group_of(Rollout(found)) is found


def test_a_trainer_that_reads_a_group_as_a_dictionary_still_can() -> None:
    one = group([2, 1], part_names=("format",), parts=np.array([[1, 0]], np.float32))
    assert one["rewards"].tolist() == [0, 1]
    assert one["reward_format"].tolist() == [1, 0]


def test_a_group_is_measured_and_pickled_by_its_arrays() -> None:
    one = group([2, 1], finish=("stop", "length"), uid="a/7")
    arrays = (one.prompt, one.tokens, one.lengths, one.log_probs, one.versions, one.rewards, one.parts)
    assert size_of(one) == sum(array.nbytes for array in arrays) + len("stop" + "length" + "a/7")
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(one, 5, buffer_callback=buffers.append)
    assert len(buffers) == len(arrays)  # through shared memory they go by themselves
    assert same(pickle.loads(pickled, buffers=buffers), one)


# -- episodes ---------------------------------------------------------------------------------------

PROMPT = np.array([7, 8], np.int32)
words = st.lists(st.integers(0, 99), min_size=1, max_size=4)
turns = st.tuples(
    st.lists(st.integers(0, 99), max_size=2),
    words,
    st.floats(-2, 2, width=32),
    st.lists(st.integers(0, 99), max_size=3),
)
plays = st.lists(
    st.tuples(st.lists(turns, min_size=1, max_size=4), st.sampled_from(sorted(ENDS))), min_size=1, max_size=4
)


def played(play: Any) -> Episodes:
    script, end = play
    builder = EpisodeBuilder(PROMPT, "games/3")
    for number, (prefix, reply, reward, observation) in enumerate(script):
        if prefix:
            builder.add_prefix(prefix, number)
        builder.add_reply(reply, -np.arange(1, len(reply) + 1), np.arange(len(reply)) + number, reward)
        if observation:
            builder.add_observation(observation, number + 50)
    return builder.finish(end)


@given(plays)
def test_a_record_of_episodes_holds_what_was_drawn_and_said_in_order(some: Any) -> None:
    record = Episodes.join([played(play) for play in some])
    flat = [(k, turn) for k, (script, _) in enumerate(some) for turn in script]
    assert record.tokens.tolist() == [t for _, (a, b, _, c) in flat for t in (*a, *b, *c)]
    assert record.tokens[record.trained].tolist() == [token for _, (_, reply, _, _) in flat for token in reply]
    assert record.rewards.tolist() == [reward for _, (_, _, reward, _) in flat]
    assert record.turns.tolist() == [len(script) for script, _ in some]
    assert record.end == tuple(end for _, end in some)
    assert record.num_trained.tolist() == [sum(len(reply) for _, reply, _, _ in script) for script, _ in some]
    assert record.length == max(record.num_trained)
    drawn = record.versions[record.trained]
    assert record.span == Span(drawn.min(), drawn.max())  # observations are read under later versions
    assert (record.log_probs[~record.trained] == 0).all() and (record.log_probs[record.trained] < 0).all()
    np.testing.assert_allclose(record.returns, [sum(turn[2] for turn in script) for script, _ in some], atol=1e-5)
    for begin, length, (script, _) in zip(
        np.cumsum(record.lengths) - record.lengths, record.lengths, some, strict=True
    ):
        assert record.turn[begin : begin + length].tolist() == [
            number for number, (a, b, _, c) in enumerate(script) for _ in (*a, *b, *c)
        ]
    assert same(pickle.loads(pickle.dumps(record)), record)


@given(st.lists(st.tuples(words, st.sampled_from(["stop", "length", "deadline"])), min_size=1, max_size=4))
def test_a_group_becomes_episodes_of_one_turn_and_a_group_again(replies: list[tuple[list[int], str]]) -> None:
    one = group([len(reply) for reply, _ in replies], finish=tuple(word for _, word in replies), uid="a/7")
    record = Episodes.of_group(one)
    assert same(record.as_group(), one)
    assert (record.span, record.length) == (one.span, one.length)
    builders = [EpisodeBuilder(one.prompt, "a/7") for _ in replies]
    ends = np.cumsum(one.lengths)
    for builder, end, reply, reward in zip(builders, ends, one.replies, one.rewards, strict=True):
        here = slice(end - len(reply), end)
        builder.add_reply(reply, one.log_probs[here], one.versions[here], float(reward))
    assert same(Episodes.join([b.finish(word) for b, word in zip(builders, record.end, strict=True)]), record)


def test_episodes_of_several_turns_are_no_group() -> None:
    two_turns = played(([([], [1], 0.0, [5]), ([], [2], 1.0, [])], "done"))
    with pytest.raises(ValueError, match=r"^the episodes of games/3 are no single replies: 2 turns"):
        two_turns.as_group()
    with pytest.raises(ValueError, match=r"^the group of a prompt does not know how its replies finished"):
        Episodes.of_group(group([1]))
    with pytest.raises(ValueError, match=r"begin with different prompts"):
        Episodes.join([two_turns, Episodes.of_group(group([1], finish=("stop",)))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trained": np.ones(3, bool)}, r"have 4 tokens and 3 numbers in 'trained'"),
        ({"lengths": np.array([4, 0])}, r"have 4 tokens, which lengths \[4, 0\] do not share out"),
        ({"lengths": np.array([5])}, r"have 4 tokens, which lengths \[5\] do not share out"),
        ({"end": ("done", "done")}, r"1 lengths, 1 turns and 2 ends"),
        ({"end": ("won",)}, r"an episode ends by done, turns, tokens, deadline, received 'won'"),
        ({"rewards": np.zeros(1, np.float32)}, r"have 2 turns and 1 rewards"),
        ({"log_probs": -np.ones(4, np.float32)}, r"have log-probabilities of tokens that the policy did not draw"),
        ({"turn": np.array([0, 0, 2, 2], np.int16)}, r"the turns of tokens do not count up to \[2\]"),
        ({"turn": np.array([0, 1, 0, 1], np.int16)}, r"the turns of tokens do not count up to \[2\]"),
        ({"turn": np.array([0, 1, 1, 1], np.int16), "turns": np.array([3]), "rewards": np.zeros(3)}, r"drew no token"),
    ],
)
def test_episodes_that_do_not_add_up_are_refused_with_one_line(change: dict[str, Any], message: str) -> None:
    one = played(([([], [1], 0.0, [5]), ([], [2, 3], 1.0, [])], "done"))
    with pytest.raises(ValueError, match=f"^the episodes of games/3.*{message}"):
        replace(one, **change)


def test_a_builder_refuses_what_no_episode_is() -> None:
    builder = EpisodeBuilder(PROMPT, "games/3")
    with pytest.raises(ValueError, match=r"^games/3: the first observation is the prompt; a reply comes first"):
        builder.add_observation([1], 0)
    with pytest.raises(ValueError, match=r"^turn 0 of games/3: a reply needs at least one token"):
        builder.add_reply([], np.zeros(0), 0)
    builder.add_prefix([1, 2], 0)
    assert builder.tokens.tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"^games/3 ended \(deadline\) before its first reply: nothing can be learned"):
        builder.finish("deadline")


def test_a_prefix_that_no_reply_followed_is_left_out() -> None:
    builder = EpisodeBuilder(PROMPT)
    builder.add_reply([1], np.array([-1.0]), 0)
    builder.add_observation([5, 6], 1)
    builder.add_prefix([9], 1)
    assert builder.finish("deadline").tokens.tolist() == [1, 5, 6]


def test_an_episode_knows_its_states_whether_it_succeeded_and_what_else_was_measured() -> None:
    builders = [EpisodeBuilder(PROMPT, "games/3") for _ in range(3)]
    for builder, second in zip(builders, ("hall", None, "hall"), strict=True):
        builder.add_reply([1], [-0.5], 0, state="door")
        builder.set_reward(0.25)
        builder.add_observation([5], 0)
        builder.add_reply([2, 3], [-0.5, -0.25], [0, 1], 0.75, state=second)
    record = Episodes.join(
        [
            builders[0].finish("done", success=False, parts={"steps": 2}),
            builders[1].finish("turns"),
            builders[2].finish("done", success=True, parts={"steps": 3, "keys": 1}),
        ]
    )
    assert record.rewards.tolist() == [0.25, 0.75] * 3
    door, hall = state_number("door"), state_number("hall")
    assert door != hall and min(door, hall) >= 0
    assert [door, hall, door, door, hall] == [record.states[n] for n in (0, 1, 2, 4, 5)]
    assert record.states[3] < 0  # not known: like no other
    assert record.success.tolist()[::2] == [0, 1] and np.isnan(record.success[1])
    assert record.succeeded.tolist() == [False, True, True]  # the second by its return of 1
    assert record.part_names == ("steps", "keys")
    np.testing.assert_array_equal(record.parts, np.array([[2, np.nan, 3], [np.nan, np.nan, 1]], np.float32))


def test_states_that_are_not_known_are_all_different_in_records_that_are_joined() -> None:
    one = played(([([], [1], 0.0, [5]), ([], [2], 1.0, [])], "done"))
    record = Episodes.join([one, one, Episodes.join([one, one])])
    assert len(set(record.states.tolist())) == 8 and (record.states < 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": np.arange(3)}, r"have 2 turns in 1 episodes, but 3 states and 1 successes"),
        ({"success": np.ones(2)}, r"have 2 turns in 1 episodes, but 2 states and 2 successes"),
        ({"part_names": ("steps",)}, r"have 1 parts of 1 episodes, received \(0, 0\) numbers"),
    ],
)
def test_states_and_parts_that_do_not_add_up_are_refused(change: dict[str, Any], message: str) -> None:
    one = played(([([], [1], 0.0, [5]), ([], [2, 3], 1.0, [])], "done"))
    with pytest.raises(ValueError, match=f"^the episodes of games/3 {message}"):
        replace(one, **change)


def test_a_reward_needs_its_reply() -> None:
    with pytest.raises(ValueError, match=r"^games/3: a reward of 0.5 before the first reply"):
        EpisodeBuilder(PROMPT, "games/3").set_reward(0.5)
