"""Opinions that are stored with segments: kept by the replay, searched with again, weighed by a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headway.core.types import Batch, Rollout, Snapshot, Span
from headway.zero.planner_planning import Planner
from headway.zero.planner_prior_weight import AdaptiveWeight, AnnealedWeight, FixedWeight
from headway.zero.replay_game_segments import GameSegments, Reanalysis
from headway.zero.replay_game_windows import Windows
from headway.zero.search_interface import Leaves, SearchSettings
from headway.zero.segments import GameSegment, OldTargets
from headway.zero.self_play_reanalyze import SearchReanalyzer

STEPS, GAMES, ACTIONS = 4, 2, 3


def a_rollout(serial: int, rng: np.random.Generator, *, priors: bool = True) -> Rollout:
    size = (STEPS, GAMES)
    segment = GameSegment(
        obs=rng.normal(size=(*size, 1)).astype(np.float32),
        actions=rng.integers(ACTIONS, size=size).astype(np.int32),
        rewards=rng.normal(size=size).astype(np.float32),
        terminated=np.zeros(size, bool),
        truncated=np.zeros(size, bool),
        valid=np.ones(size, bool),
        to_play=np.zeros(size, np.int8),
        policies=rng.dirichlet(np.ones(ACTIONS), size).astype(np.float32),
        values=rng.normal(size=size).astype(np.float32),
        stream=0,
        serial=serial,
        priors=rng.dirichlet(np.ones(ACTIONS), size).astype(np.float32) if priors else None,
        prior_versions=np.full(size, serial, np.int32) if priors else None,
    )
    return Rollout(segment, steps=segment.num_steps, span=Span(serial, serial))


def a_replay(**changes: Any) -> GameSegments:
    known: dict[str, Any] = {"has_priors": True, "reanalysis": Reanalysis(ratio=1.0)} | changes
    return GameSegments(
        GAMES * STEPS * 3,
        num_streams=GAMES,
        segment_steps=STEPS,
        observation=(1,),
        num_actions=ACTIONS,
        batch_size=8,
        windows=Windows(num_unroll_steps=2, td_steps=1),
        **known,
    )


def filled(replay: GameSegments, rollouts: Sequence[Rollout]) -> OldTargets:
    """What it hands out to be searched again."""
    for rollout in rollouts:
        replay.insert(Batch(0, (rollout,)))
    replay.sample(9)
    work = replay.oldest(9)
    assert work is not None
    return work.payload


class Undecided:
    """A model to which everything is the same."""

    def load(self, weights: object) -> None:
        pass

    def begin(self, obs: np.ndarray, num_nodes: int) -> Leaves:
        return self._same(len(obs))

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        return self._same(len(parents))

    def _same(self, num: int) -> Leaves:
        nothing = np.zeros(num, np.float32)
        return Leaves(nothing, nothing, np.zeros((num, ACTIONS), np.float32))


def searched(weight: FixedWeight | AnnealedWeight | AdaptiveWeight | None, work: OldTargets) -> np.ndarray:
    settings = SearchSettings(num_simulations=12, root_noise_weight=0.0)
    reanalyzer = SearchReanalyzer(lambda: Planner(Undecided(), settings), max_roots=5, prior_weight=weight)
    found: np.ndarray = reanalyzer.reanalyze(Snapshot(3, None), Rollout(work)).payload.policies
    return found


def test_opinions_come_out_of_the_replay_as_they_went_in() -> None:
    rollouts = [a_rollout(serial, np.random.default_rng(serial)) for serial in range(5)]
    work = filled(a_replay(), rollouts)
    assert work.priors is not None
    kept = {tuple(row) for rollout in rollouts[-3:] for row in rollout.payload.priors.reshape(-1, ACTIONS)}
    assert {tuple(row) for row in work.priors.reshape(-1, ACTIONS)} <= kept


def test_a_segment_without_opinions_leaves_none_of_those_it_overwrites() -> None:
    rollouts = [a_rollout(serial, np.random.default_rng(serial), priors=serial < 3) for serial in range(6)]
    work = filled(a_replay(), rollouts)
    assert work.priors is not None
    assert not work.priors.any()


def test_a_replay_that_keeps_none_hands_none_out() -> None:
    rollouts = [a_rollout(serial, np.random.default_rng(serial)) for serial in range(3)]
    assert filled(a_replay(has_priors=False), rollouts).priors is None


def test_reanalysis_searches_with_the_rows_that_were_stored() -> None:
    work = filled(a_replay(), [a_rollout(serial, np.random.default_rng(serial)) for serial in range(3)])
    assert work.priors is not None
    work.priors[:] = 0.0
    work.priors[..., 1] = 1.0
    work.priors[0, 0] = 0.0  # nobody said anything here
    assert (searched(FixedWeight(1.0), work)[1:, :, 1] == 1.0).all()
    assert (searched(FixedWeight(1.0), work)[0, 0] > 0).all()


@pytest.mark.parametrize("weight", [None, FixedWeight(0.0), AnnealedWeight(0.5, 0.0, 3)])
def test_a_share_of_nothing_changes_no_bit_of_reanalysis(weight: FixedWeight | AnnealedWeight | None) -> None:
    work = filled(a_replay(), [a_rollout(serial, np.random.default_rng(serial)) for serial in range(3)])
    plain = filled(
        a_replay(has_priors=False), [a_rollout(serial, np.random.default_rng(serial)) for serial in range(3)]
    )
    assert searched(weight, work).tobytes() == searched(None, plain).tobytes()


def test_a_replay_saved_before_there_were_opinions_is_loaded() -> None:
    rollouts = [a_rollout(serial, np.random.default_rng(serial)) for serial in range(3)]
    before, after = a_replay(has_priors=False), a_replay()
    filled(before, rollouts)
    filled(after, rollouts)
    saved = before.state_dict()
    assert not {"priors", "prior_versions"} & saved["rows"].keys()
    after.load_state_dict(saved)
    after.reanalysis = Reanalysis(ratio=100.0)
    work = after.oldest(9)
    assert work is not None
    assert not work.payload.priors.any()


def test_records_pickled_before_there_were_opinions_are_loaded() -> None:
    segment = a_rollout(0, np.random.default_rng(0)).payload
    old = [getattr(segment, name) for name in GameSegment.__slots__[:-2]]
    again = GameSegment.__new__(GameSegment)
    again.__setstate__(old)
    assert again.serial == 0
    assert again.priors is None
    assert again.prior_versions is None


def test_a_segment_of_another_shape_is_refused_in_a_line() -> None:
    rollout = a_rollout(0, np.random.default_rng(0))
    wide = np.zeros((STEPS, GAMES, ACTIONS + 1), np.float32)
    object.__setattr__(rollout.payload, "priors", wide)
    with pytest.raises(ValueError, match=r"priors of a segment must be \[4, 2, 3\], received \[4, 2, 4\]"):
        a_replay().insert(Batch(0, (rollout,)))


# -- the share --------------------------------------------------------------------------------------


def test_an_annealed_share_goes_in_a_straight_line() -> None:
    rule = AnnealedWeight(0.8, 0.2, 10)
    assert [rule.at(version) for version in (0, 5, 10, 99)] == pytest.approx([0.8, 0.5, 0.2, 0.2])


def test_an_adaptive_share_follows_the_entropy_of_the_policy() -> None:
    weigh = AdaptiveWeight(0.3, 0.7).at(0)
    assert callable(weigh)
    logits = np.array([[0, 0, 0], [50, 0, 0], [1, 1, 99], [0, 0, 0], [0, 0, 0]], np.float32)
    legal = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
    assert weigh(logits, legal) == pytest.approx([0.7, 0.3, 0.7, 0.3, 0.3])
    half = np.log([[0.8, 0.1, 0.1]])
    entropy = -(0.8 * np.log(0.8) + 0.2 * np.log(0.1)) / np.log(3)
    assert weigh(half, legal[:1]) == pytest.approx([0.3 + 0.4 * entropy])


def test_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"share is a share and must lie in 0\.\.1, received 1\.5"):
        FixedWeight(1.5)
    with pytest.raises(ValueError, match=r"must not fall from low=0\.7 to high=0\.3"):
        AdaptiveWeight(0.7, 0.3)
    with pytest.raises(ValueError, match="at least 1 version, received 0"):
        AnnealedWeight(0.5, 0.1, 0)


def test_a_planner_asks_the_rule_what_the_model_thinks_of_the_roots() -> None:
    asked: list[tuple[int, ...]] = []

    def share(logits: np.ndarray, legal: np.ndarray) -> np.ndarray:
        asked.append(logits.shape)
        return np.array([1.0, 0.0])

    planner = Planner(Undecided(), SearchSettings(num_simulations=12, root_noise_weight=0.0))
    wanted = np.tile(np.array([0.0, 0.0, 1.0]), (2, 1))
    found = planner.plan(np.zeros((2, 1)), np.random.default_rng(0), prior=wanted, prior_weight=share)
    assert asked == [(2, ACTIONS)]
    assert found.policies[0].tolist() == [0, 0, 1]
    assert (found.policies[1] > 0.2).all()
