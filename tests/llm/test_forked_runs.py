"""Runs of agents that fork their conversations: each counts once, with all its branches, where returns are compared."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.agents.collector_group_filters import GroupSummary, is_silent  # noqa: E402
from headway.agents.episodes_episode_loop import Progress  # noqa: E402
from headway.agents.episodes_episode_player import PlayedGroup  # noqa: E402
from headway.agents.evaluator_agent_games import _measures  # noqa: E402
from headway.llm.rollouts_episode import EpisodeBuilder, Episodes  # noqa: E402
from headway.llm.rollouts_transcript import Transcript, TurnText  # noqa: E402
from headway.llm.train.advantages_credit import state_credit  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings, _Look  # noqa: E402
from headway.llm.train.grpo_learner_summary import summarize  # noqa: E402
from headway.llm.train.replies import Replies  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def branch(*rewards: float, states: str = "", tokens: int = 10) -> Episodes:
    """An episode of as many replies, which begin in these states."""
    record = EpisodeBuilder([5, 6], "game/0")
    for number, reward in enumerate(rewards):
        if number:
            record.add_observation([7], 0)
        record.add_reply([8] * tokens, [-1.0] * tokens, 0, reward, states[number] if states else None)
    return record.finish("done", parts={"calls": sum(rewards)})


def run_of(*branches: Episodes) -> Episodes:
    return Episodes.join(branches).as_one_run()


def transcript(record: Episodes) -> Transcript:
    said: TurnText = {"reply": "", "observation": "", "reward": 0.0, "tokens": 10, "read": 0, "versions": [0, 0]}
    return Transcript(record, "hello", [said] * int(record.turns.sum()))


FORKED = run_of(branch(0.1, 0.9), branch(1.0))
GROUP = Episodes.join([FORKED, branch(0.0), branch(0.0, 0.0)])


def test_branches_of_a_run_have_one_return_to_the_last_bit() -> None:
    tenths = run_of(branch(*[0.1] * 7), branch(0.7), branch(0.3, 0.4))
    assert len(set(tenths.returns.tolist())) == 1
    again = Episodes.join([tenths, tenths])
    assert again.run.tolist() == [0, 0, 0, 1, 1, 1] and len(set(again.returns.tolist())) == 1


def test_a_part_of_a_record_keeps_its_runs_apart() -> None:
    assert GROUP.run.tolist() == [0, 0, 1, 2]
    assert GROUP.take([1, 2, 3]).run.tolist() == [0, 1, 2]
    assert GROUP.take([2, 0, 1]).run.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match=r"forks \[True\]: the first one is none"):
        Episodes(**{name: getattr(FORKED.take([0]), name) for name in Episodes.__slots__} | {"forks": np.array([True])})


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("rloo", [1.0, 1.0, -0.5, -0.5]),  # 1 - (0 + 0) / 2; 0 - (1 + 0) / 2
        ("dr_grpo", [2 / 3, 2 / 3, -1 / 3, -1 / 3]),
        ("grpo", [1.154701, 1.154701, -0.577350, -0.577350]),  # over the deviation, sqrt(1 / 3)
    ],
)
def test_an_advantage_compares_runs_and_is_that_of_all_branches(estimator: str, expected: list[float]) -> None:
    data = Replies.of([GROUP])
    subject = GRPOLearner(tiny_model, GRPOSettings(estimator=estimator))
    found, _ = subject._advantages(data, _Look())
    per_episode = found[data.sequences.lengths.cumsum(0) - 1]
    np.testing.assert_allclose(per_episode.numpy(), expected, rtol=1e-4)


def test_a_penalty_in_the_reward_is_that_of_the_whole_run() -> None:
    data = Replies.of([GROUP])
    settings = GRPOSettings(estimator="dr_grpo", kl_weight=0.1, kl_in_reward=True)
    subject = GRPOLearner(tiny_model, settings, load_reference=tiny_model)
    found, _ = subject._advantages(data, _Look(reference=data.log_probs - 0.5))  # 0.05 a token
    worth = np.array([1 - 0.05 * 30, 0 - 0.05 * 10, 0 - 0.05 * 20])
    per_run = worth - worth.mean()
    per_episode = found[data.sequences.lengths.cumsum(0) - 1]
    np.testing.assert_allclose(per_episode.numpy(), per_run[[0, 0, 1, 2]], rtol=1e-4)


def test_a_batch_is_summed_up_by_runs() -> None:
    found = summarize(Replies.of([GROUP]))
    assert found["reward"] == pytest.approx(1 / 3) and found["success"] == pytest.approx(1 / 3)
    assert (found["turns"], found["turns_max"]) == (pytest.approx(6 / 3), 3)  # 3, 1 and 2
    assert (found["episode_tokens"], found["trained_tokens"]) == (20, 60)
    assert found["game_calls"] == pytest.approx(1 / 3)


def test_a_filter_is_told_of_runs() -> None:
    told = GroupSummary.of(GROUP)
    assert (told.returns, told.turns, told.tokens) == ((1.0, 0.0, 0.0), (3, 1, 2), (30, 10, 20))
    assert (told.success, told.ends) == ((True, False, False), ("done",) * 3)


def test_an_evaluation_counts_the_replies_of_all_branches() -> None:
    one = transcript(run_of(branch(0.5), branch(0.5)))
    found = _measures([[one]], [one])
    assert (found["turns"], found["tokens"]) == (2, 20)


def test_a_race_among_forked_runs_of_one_length_has_no_bias() -> None:
    runs = {number: transcript(run_of(branch(0.5), branch(0.5))) for number in range(3)}
    measured = PlayedGroup(runs, {3: Progress(2, 20)}).measures()
    assert (measured["redundancy_bias_turns"], measured["redundancy_bias_tokens"]) == (0, 0)


def test_the_bias_of_a_race_is_a_bound_that_the_true_one_lies_below() -> None:
    """Winners of 2 and 3 turns; the others needed 9 and 10 and were abandoned after 3."""
    winners = {0: transcript(branch(0.0, 1.0)), 1: transcript(branch(0.0, 0.0, 1.0))}
    measured = PlayedGroup(winners, {2: Progress(3, 30), 3: Progress(3, 30)}).measures()
    true = (2 + 3) / 2 / ((2 + 3 + 9 + 10) / 4) - 1
    assert true == pytest.approx(-0.583, abs=1e-3)
    assert measured["redundancy_bias_turns"] == pytest.approx(-1 / 11)
    assert measured["redundancy_bias_turns"] >= true


# -- groups that have nothing to say ----------------------------------------------------------------


def test_equal_returns_from_equal_states_at_other_distances_have_a_signal() -> None:
    group = Episodes.join([branch(0, 0, 1, states="ABC"), branch(0, 0, 1, states="AAB")])
    turns = Replies.of([group]).turns
    # what was earned from A on: 0.95^2 twice and 0.95 once; from B on: 0.95 and 1
    credit = state_credit("dr_grpo", turns, turns.rewards, 0.95)
    np.testing.assert_allclose(credit.numpy()[[0, 1]], [0.9025 - 2.755 / 3, 0.95 - 0.975], atol=1e-6)
    assert not is_silent(group, "states")
    assert is_silent(group, "turns") and is_silent(group, "episodes")


@pytest.mark.parametrize("states", ["ABC", ""])
def test_equal_rewards_from_equal_or_unknown_states_have_none(states: str) -> None:
    group = Episodes.join([branch(0, 0, 1, states=states), branch(0, 0, 1, states=states)])
    assert is_silent(group, "states")


def test_rewards_at_other_turns_have_a_signal_for_turns_alone() -> None:
    group = Episodes.join([branch(0, 1, states="AB"), branch(1, 0, states="CD")])
    assert not is_silent(group, "turns")
    assert is_silent(group, "states") and is_silent(group, "episodes")
    assert not is_silent(Episodes.join([branch(0), branch(1)]), "episodes")
