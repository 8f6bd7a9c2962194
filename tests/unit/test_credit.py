"""Credit for the turns of an episode: by hand, and against slow loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.llm.rollouts_episode import EpisodeBuilder, Episodes
from headway.llm.rollouts_group import Group
from headway.llm.train.advantages import group_advantages, token_gae
from headway.llm.train.advantages_credit import (
    CreditSettings,
    Turns,
    gigpo_credit,
    returns_to_go,
    state_credit,
    turn_credit,
    turn_gae,
)
from headway.llm.train.grpo_settings import GRPOSettings
from headway.llm.train.replies import Replies

torch.set_num_threads(1)

Turn = tuple[float, str | None]  # what it earned, and the state it began in


def episode(turns: list[Turn], end: str = "done", lengths: list[int] | None = None) -> Episodes:
    builder = EpisodeBuilder([7, 8, 9], "games/1")
    for number, (reward, state) in enumerate(turns):
        size = lengths[number] if lengths else 2
        builder.add_reply(list(range(size)), [-1.0] * size, 0, reward, state)
        builder.add_observation([99] * 3, 0)
    return builder.finish(end)


def turns_of(*groups: list[list[Turn]]) -> Turns:
    return Replies.of([Episodes.join([episode(turns) for turns in some]) for some in groups]).turns


def plain(*rewards: float) -> list[Turn]:
    return [(reward, None) for reward in rewards]


# -- by hand ----------------------------------------------------------------------------------------


def test_a_return_to_go_is_discounted_from_turn_to_turn_and_ends_with_its_episode() -> None:
    turns = turns_of([plain(1, 2, 4), plain(8)], [plain(0, 16)])
    assert returns_to_go(turns.rewards, turns.sequence, 1.0).tolist() == [7, 6, 4, 8, 16, 16]
    assert returns_to_go(turns.rewards, turns.sequence, 0.5).tolist() == [3, 4, 4, 8, 8, 16]
    assert returns_to_go(turns.rewards, turns.sequence, 0.0).tolist() == [1, 2, 4, 8, 0, 16]


def test_turns_are_compared_with_the_same_turn_of_their_group() -> None:
    turns = turns_of([plain(1, 0, 2), plain(0, 1), plain(0, 0)], [plain(5, 0), plain(1, 0)])
    # To go: 3 2 2 | 1 1 | 0 0    and    5 0 | 1 0
    found = turn_credit("dr_grpo", turns, turns.rewards, 1.0).tolist()
    first, second = (3 + 1 + 0) / 3, (2 + 1 + 0) / 3
    expected = [3 - first, 2 - second, 0, 1 - first, 1 - second, 0 - first, 0 - second, 2, 0, -2, 0]
    assert found == pytest.approx(expected)  # nobody else has a third turn: 0


def test_with_grpo_a_turn_is_divided_by_the_deviation_of_its_turn_and_with_rloo_the_others_are_the_baseline() -> None:
    turns = turns_of([plain(1, 1), plain(0, 0)])
    deviation = np.std([2, 0], ddof=1), np.std([1, 0], ddof=1)
    expected = [1 / deviation[0], 0.5 / deviation[1], -1 / deviation[0], -0.5 / deviation[1]]
    assert turn_credit("grpo", turns, turns.rewards, 1.0).tolist() == pytest.approx(expected, rel=1e-5)
    assert turn_credit("rloo", turns, turns.rewards, 1.0).tolist() == pytest.approx([2, 1, -2, -1])


def test_equal_states_are_compared_wherever_they_come_in_the_group_and_a_state_of_its_own_gets_nothing() -> None:
    one: list[Turn] = [(0, "door"), (0, "hall"), (1, "vault")]
    two: list[Turn] = [(0, "door"), (0, "door"), (0, "hall")]
    turns = turns_of([one, two], [[(4, "door")], [(0, "street")]])
    gamma = 0.5
    # To go: 0.25 0.5 1 | 0 0 0; door: 0.25, 0, 0; hall: 0.5, 0; vault alone. The other group's door is another door.
    door, hall = 0.25 / 3, 0.25
    expected = [0.25 - door, 0.5 - hall, 0, -door, -door, -hall, 0, 0]
    assert state_credit("dr_grpo", turns, turns.rewards, gamma).tolist() == pytest.approx(expected)
    chosen = CreditSettings(credit="gigpo", episode_reward_weight=2, step_reward_weight=3, step_reward_gamma=gamma)
    per_episode = group_advantages("dr_grpo", torch.tensor([1.0, 0, 4, 0]), torch.tensor([0, 0, 1, 1]))
    found = gigpo_credit("dr_grpo", turns, turns.rewards, per_episode, chosen)
    episodes = [0.5] * 3 + [-0.5] * 3 + [2, -2]
    assert found.tolist() == pytest.approx([2 * e + 3 * s for e, s in zip(episodes, expected, strict=True)])


def test_states_that_are_not_known_are_compared_with_nothing() -> None:
    turns = turns_of([plain(1, 0), plain(0, 5)])
    assert state_credit("grpo", turns, turns.rewards, 0.95).tolist() == [0, 0, 0, 0]


def test_sums_that_are_equal_are_equal_in_whichever_order_they_were_earned() -> None:
    data = Replies.of([Episodes.join([episode(plain(*some)) for some in [(0.1, 0.2, 0.7), (0.7, 0.2, 0.1)]])])
    assert group_advantages("grpo", data.rewards, data.group).tolist() == [0, 0]


# -- against slow loops -----------------------------------------------------------------------------

some_turns = st.lists(
    st.tuples(st.sampled_from([0.0, 0.3, 1.0, -1.0]), st.sampled_from(["a", "b", "c", None])), min_size=1, max_size=4
)
some_groups = st.lists(st.lists(some_turns, min_size=1, max_size=4), min_size=1, max_size=3)


def slow(groups: list[list[list[Turn]]], gamma: float, by: str) -> list[float]:
    found = []
    for group in groups:
        cells = []
        for turns in group:
            for place, (_, state) in enumerate(turns):
                to_go = sum(gamma**k * reward for k, (reward, _) in enumerate(turns[place:]))
                key = place if by == "turn" else object() if state is None else state
                cells.append((key, to_go))
        for key, to_go in cells:
            others = [value for other, value in cells if other == key]
            found.append(to_go - sum(others) / len(others))
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some_groups, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_credit_is_that_of_the_obvious_loops(groups: list[list[list[Turn]]], gamma: float) -> None:
    turns = turns_of(*groups)
    found = turn_credit("dr_grpo", turns, turns.rewards, gamma).tolist()
    assert found == pytest.approx(slow(groups, gamma, "turn"), abs=1e-5)
    found = state_credit("dr_grpo", turns, turns.rewards, gamma).tolist()
    assert found == pytest.approx(slow(groups, gamma, "state"), abs=1e-5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([(1.0, 0.95), (0.9, 0.5), (0.9, 1.0), (1.0, 1.0), (0.5, 0.0)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_gae_over_turns_is_the_obvious_loop(
    shapes: list[list[int]], knobs: tuple[float, float], is_cut: bool, seed: int
) -> None:
    gamma, lam = knobs
    random = np.random.default_rng(seed)
    rewards = [random.normal(size=len(shape)).astype(np.float32).tolist() for shape in shapes]
    made = [episode(plain(*earned), lengths=shape) for earned, shape in zip(rewards, shapes, strict=True)]
    data = Replies.of([Episodes.join(made)])
    values = torch.from_numpy(random.normal(size=data.num_tokens))
    penalties = torch.from_numpy(random.normal(size=data.num_tokens))
    after = torch.from_numpy(random.normal(size=len(shapes))) if is_cut else None
    found, targets = turn_gae(data.turns, penalties, values, data.sequences, gamma=gamma, lam=lam, bootstrap=after)
    expected: list[float] = []
    at = 0
    for number, (shape, earned) in enumerate(zip(shapes, rewards, strict=True)):
        size = sum(shape)
        value, penalty = values[at : at + size].tolist(), penalties[at : at + size].tolist()
        ends = set((np.cumsum(shape) - 1).tolist())
        turn, following, line = len(shape) - 1, 0.0, []
        for i in reversed(range(size)):
            is_end = i in ends
            reward = (earned[turn] if is_end else 0.0) - penalty[i]
            beyond = float(after[number]) if after is not None else 0.0
            ahead = value[i + 1] if i + 1 < size else beyond
            following = (
                reward + (gamma if is_end else 1.0) * ahead - value[i] + (gamma * lam if is_end else 1.0) * following
            )
            line.append(following)
            turn -= i == 0 or (i - 1) in ends
        expected += line[::-1]
        at += size
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(targets, found + values)


def test_gae_without_discounts_is_the_same_over_turns_and_over_tokens_of_single_replies() -> None:
    data = Replies.of([Episodes.join([episode(plain(1.5), lengths=[5]), episode(plain(-0.5), lengths=[3])])])
    values = torch.randn(8, generator=torch.Generator().manual_seed(0))
    rewards = torch.tensor([0, 0, 0, 0, 1.5, 0, 0, -0.5])
    over_turns = turn_gae(data.turns, None, values, data.sequences, gamma=1.0, lam=1.0)
    over_tokens = token_gae(rewards, values, data.sequences, gamma=1.0, lam=1.0)
    assert all(torch.equal(one, other) for one, other in zip(over_turns, over_tokens, strict=True))


# -- the line ---------------------------------------------------------------------------------------


def test_the_line_holds_what_was_drawn_and_knows_its_turns() -> None:
    record = Episodes.join([episode(plain(1, 0), lengths=[2, 3]), episode(plain(5), "turns", lengths=[1])])
    reply = Group(
        prompt=np.array([1, 2], np.int32),
        tokens=np.array([3, 4, 5], np.int32),
        lengths=np.array([1, 2]),
        log_probs=np.zeros(3, np.float32),
        versions=np.zeros(3, np.int32),
        rewards=np.array([0, 1], np.float32),
        finish=("stop", "length"),
    )
    data = Replies.of([record, reply])
    assert data.sequences.lengths.tolist() == [5, 1, 1, 2]
    assert data.turns.tokens.row.tolist() == [0, 0, 1, 1, 1, 2, 3, 4, 4]
    assert data.turns.sequence.tolist() == [0, 0, 1, 2, 3]
    assert data.turns.place.tolist() == [0, 1, 0, 0, 0]
    assert data.turns.group.tolist() == [0, 0, 0, 1, 1]
    assert data.rewards.tolist() == [1, 5, 0, 1]
    assert data.cut.tolist() == [False, True, False, True]
    assert data.sizes.tolist() == [3 + (2 + 3 + 3) + 1, 2 + 3]  # what was said after the last reply is not read
    left = data.without_cut()
    assert left is not None and left.sequences.lengths.tolist() == [5, 1] and left.num_groups == 2


def test_taking_some_episodes_keeps_what_is_known_of_them() -> None:
    made = [episode([(n, f"s{n}")] * (n + 1), "turns" if n % 2 else "done", [n + 1] * (n + 1)) for n in range(4)]
    record = Episodes.join(made)
    for places in ([2], [0, 3], [3, 1]):
        taken, joined = record.take(places), Episodes.join([made[place] for place in places])
        assert taken.end == joined.end
        for name in ("tokens", "trained", "turn", "rewards", "states", "lengths", "turns", "log_probs", "versions"):
            assert getattr(taken, name).tolist() == getattr(joined, name).tolist()


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"credit": "turn", "estimator": "gae"}, r"credit='turn' compares episodes; with estimator='gae' the critic"),
        (
            {"credit": "gigpo", "estimator": "reinforce_plus_plus"},
            r"credit='gigpo' compares within groups, which estimator='reinforce_plus_plus' does not",
        ),
        ({"turn_gamma": 0.5}, r"turn_gamma=0.5 goes with credit='turn', received credit='episode'"),
        ({"step_reward_weight": 0.5, "credit": "turn"}, r"step_reward_weight=0.5 goes with credit='gigpo'"),
        ({"correction": "gspo", "correction_options": {"cap": 2}}, r"setting of correction 'gspo'.*cap"),
        ({"correction": "gspo", "correction_options": {"clip_low": -1}}, r"clip_low in \[0, 1\] and clip_high >= 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPOSettings(**wrong)
