"""Segments played by search: what they hold, how they go on, and how they are searched again."""

from __future__ import annotations

import copy
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from headway.core.types import Rollout, Snapshot, Ticket
from headway.envs.gymnasium_vector import make_vector
from headway.replay.records import arrays_of
from headway.zero.board_games_matches import MatchEvaluator
from headway.zero.board_games_package import CONNECT_FOUR, TIC_TAC_TOE
from headway.zero.muzero_inference import searchable
from headway.zero.muzero_network import MuZeroArchitecture, build_network
from headway.zero.planner_planning import Planner
from headway.zero.search_interface import SearchSettings
from headway.zero.segments import GameSegment, OldTargets
from headway.zero.self_play_reanalyze import SearchReanalyzer
from headway.zero.self_play_search_segments import (
    SearchSegmentCollector,
    SelfPlay,
    Temperature,
    VectorGames,
    search_segment_collector,
)
from headway.zero.world_model_packed import pack_weights

torch.set_num_threads(1)

CARTPOLE = MuZeroArchitecture(observation=(4,), num_actions=2, latent=8, hidden=8, projection=4)
BOARD = MuZeroArchitecture(observation=(18,), num_actions=9, latent=8, hidden=8, projection=4)
NUM = 3


def planner(architecture: MuZeroArchitecture, simulations: int = 6) -> Planner:
    settings = SearchSettings(num_simulations=simulations, players=1 if architecture is CARTPOLE else 2)
    return Planner(searchable(build_network(architecture, seed=0)), settings)


def cartpoles(seed: int = 0) -> VectorGames:
    return VectorGames(partial(make_vector, "CartPole-v1", NUM), seed=seed)


def snapshot(architecture: MuZeroArchitecture, version: int = 0) -> Snapshot:
    """Of each version other weights, the same whenever it is asked for."""
    return Snapshot(version, {"network": pack_weights(build_network(architecture, seed=version))})


def cartpole_collector(**more: Any) -> SearchSegmentCollector:
    return search_segment_collector(cartpoles, partial(planner, CARTPOLE), **{"steps": 12, **more})


def board_collector(**more: Any) -> SearchSegmentCollector:
    games = partial(SelfPlay, "tic_tac_toe", NUM)
    return search_segment_collector(games, partial(planner, BOARD), **{"steps": 12, **more})


def ticket(index: int) -> Ticket:
    return Ticket(index, seed=1000 + index, version=0)


def same(one: Rollout, other: Rollout) -> None:
    assert type(one.payload) is type(other.payload)
    for name in [field.name for field in fields(one.payload)]:
        np.testing.assert_array_equal(getattr(one.payload, name), getattr(other.payload, name), err_msg=name)


@pytest.mark.parametrize(("make", "architecture"), [(cartpole_collector, CARTPOLE), (board_collector, BOARD)])
def test_a_collector_that_begins_anew_begins_new_episodes_and_leaves_a_serial_out(
    make: Any, architecture: MuZeroArchitecture
) -> None:
    collector, fresh = make(), make()
    first = [collector.collect(ticket(index), snapshot(architecture)).payload for index in range(2)]
    collector.begin_anew(7)
    fresh.begin_anew(7)
    one, other = (some.collect(ticket(2), snapshot(architecture)).payload for some in (collector, fresh))
    assert [payload.serial for payload in (*first, one)] == [0, 1, 3], "so that no replay joins them"
    for name, values in arrays_of(one).items():
        np.testing.assert_array_equal(values, getattr(other, name), err_msg=name)


def test_a_segment_holds_what_was_done_and_what_the_search_found() -> None:
    rollout = cartpole_collector(stream=6).collect(ticket(0), snapshot(CARTPOLE))
    payload = rollout.payload
    assert payload.obs.shape == (12, NUM, 4)
    assert payload.policies.shape == (12, NUM, 2)
    np.testing.assert_allclose(payload.policies.sum(-1), 1, rtol=1e-6)
    assert {
        name: getattr(payload, name).shape for name in ("actions", "rewards", "values", "to_play", "valid")
    } == dict.fromkeys(("actions", "rewards", "values", "to_play", "valid"), (12, NUM))
    assert (payload.stream, payload.serial) == (6, 0)
    assert rollout.steps == payload.valid.sum()
    assert payload.legal is None


def test_an_episode_goes_on_in_the_next_segment_whatever_its_version() -> None:
    collector, whole = cartpole_collector(), cartpole_collector(steps=24)
    first = collector.collect(ticket(0), snapshot(CARTPOLE, 0)).payload
    second = collector.collect(ticket(1), snapshot(CARTPOLE, 1)).payload
    assert (first.serial, second.serial) == (0, 1)
    games = cartpoles()
    rows = [
        np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("obs", "actions", "rewards", "valid")
    ]
    for obs, actions, rewards, valid in zip(*rows, strict=True):
        np.testing.assert_array_equal(games.obs, obs)
        np.testing.assert_array_equal(valid, ~games.ended)
        np.testing.assert_array_equal(games.step(actions)[0], rewards)
    assert whole.collect(ticket(0), snapshot(CARTPOLE)).payload.obs.shape[0] == 24


def test_weights_change_at_the_boundary_of_a_segment() -> None:
    """A segment is made by its snapshot alone: what the collector had before does not matter."""
    fresh, used = cartpole_collector(), cartpole_collector()
    used.collect(ticket(5), snapshot(CARTPOLE, 7))
    used.load_state_dict(fresh.state_dict())  # type: ignore[attr-defined]
    same(fresh.collect(ticket(0), snapshot(CARTPOLE, 3)), used.collect(ticket(0), snapshot(CARTPOLE, 3)))


@pytest.mark.parametrize("make", [cartpole_collector, board_collector])
def test_a_collector_that_was_loaded_goes_on_bit_for_bit(make: Any) -> None:
    architecture = CARTPOLE if make is cartpole_collector else BOARD
    collector, again = make(), make()
    collector.collect(ticket(0), snapshot(architecture))
    again.load_state_dict(copy.deepcopy(collector.state_dict()))
    for index in (1, 2):
        same(
            collector.collect(ticket(index), snapshot(architecture)),
            again.collect(ticket(index), snapshot(architecture)),
        )


def test_both_sides_of_a_board_game_are_played_in_turns() -> None:
    payload = board_collector(steps=30).collect(ticket(0), snapshot(BOARD)).payload
    assert payload.legal.shape == (30, NUM, 9)
    assert payload.obs.dtype == np.uint8
    for game in range(NUM):
        valid = payload.valid[:, game]
        assert valid.any() and not valid.all(), "a game ends within 9 moves, and a step resets it"
        for t in np.flatnonzero(valid):
            assert payload.legal[t, game, payload.actions[t, game]]
            assert not payload.policies[t, game][~payload.legal[t, game]].any()
            if t and valid[t - 1]:
                assert payload.to_play[t, game] == 1 - payload.to_play[t - 1, game]
                assert not payload.terminated[t - 1, game]
        for t in np.flatnonzero(~valid):
            assert payload.terminated[t - 1, game] or t == 0
            assert payload.rewards[t, game] == 0
    assert not payload.truncated.any()
    assert set(np.unique(payload.rewards)) <= {0.0, 1.0}, "who moved last cannot have lost by it"


def test_the_temperature_goes_by_version() -> None:
    temperature = Temperature(1.0, 0.25, 100)
    assert [temperature.at(version, np.zeros(1)).item() for version in (0, 50, 100, 900)] == [1.0, 0.625, 0.25, 0.25]
    cold = cartpole_collector(temperature=Temperature(0.0, 0.0))
    payload = cold.collect(ticket(0), snapshot(CARTPOLE)).payload
    most = payload.policies.max(-1)
    chosen = np.take_along_axis(payload.policies, payload.actions[..., None], -1)[..., 0]
    np.testing.assert_array_equal(chosen, most)
    with pytest.raises(ValueError, match="a temperature must be >= 0, received -1"):
        Temperature(-1)


def test_after_its_first_moves_a_game_is_played_without_chance() -> None:
    temperature = Temperature(1.0, 0.5, 100, moves=2)
    assert temperature.at(100, np.array([0, 1, 2, 9])).tolist() == [0.5, 0.5, 0.0, 0.0]
    payload = board_collector(steps=30, temperature=temperature).collect(ticket(0), snapshot(BOARD)).payload
    most = payload.policies.max(-1)
    chosen = np.take_along_axis(payload.policies, payload.actions[..., None], -1)[..., 0]
    made = payload.obs.reshape(*most.shape, -1).sum(-1)  # a stone a move
    late, early = (made >= 2) & payload.valid, made < 2
    np.testing.assert_array_equal(chosen[late], most[late])
    assert (chosen[early] < most[early]).any()
    with pytest.raises(ValueError, match="for 0 moves or more, received -1"):
        Temperature(moves=-1)


def test_an_observation_that_is_no_number_is_named() -> None:
    class Broken(VectorGames):
        def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            result = super().step(actions)
            self.obs = self.obs.copy()
            self.obs[1] = np.nan
            return result

    make = partial(Broken, partial(make_vector, "CartPole-v1", NUM), seed=0)
    collector = search_segment_collector(make, partial(planner, CARTPOLE), steps=4)
    with pytest.raises(ValueError, match="not finite"):
        collector.collect(ticket(0), snapshot(CARTPOLE))


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="search needs one of a number of actions"):
        VectorGames(partial(make_vector, "Pendulum-v1", 1), seed=0)


# -- reanalysis ---------------------------------------------------------------------------------------


def work_of(segment: GameSegment, number: int = 0) -> Rollout:
    """All of a segment, as a replay hands it out: [G, T]."""

    def turned(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.swapaxes(values, 0, 1))

    work = OldTargets(
        ids=np.arange(NUM),
        obs=turned(segment.obs),
        actions=turned(segment.actions),
        begins=np.zeros(segment.actions.T.shape, bool),
        to_play=turned(segment.to_play),
        legal=None if segment.legal is None else turned(segment.legal),
        round=number,
    )
    return Rollout(work, steps=segment.actions.size)


@pytest.mark.parametrize("architecture", [CARTPOLE, BOARD], ids=["cartpole", "board"])
def test_targets_are_made_again_with_the_newer_weights(architecture: MuZeroArchitecture) -> None:
    make = cartpole_collector if architecture is CARTPOLE else board_collector
    payload = make().collect(ticket(0), snapshot(architecture)).payload
    reanalyzer = SearchReanalyzer(partial(planner, architecture), max_roots=10)
    newer = reanalyzer.reanalyze(snapshot(architecture, 1), work_of(payload))
    assert newer.payload.version == 1
    assert newer.payload.policies.shape == (NUM, 12, architecture.num_actions)
    assert not np.allclose(newer.payload.values, np.swapaxes(payload.values, 0, 1))
    again = SearchReanalyzer(partial(planner, architecture), max_roots=10)
    again.reanalyze(snapshot(architecture, 0), work_of(payload, 5))
    same(newer, again.reanalyze(snapshot(architecture, 1), work_of(payload)))
    other = again.reanalyze(snapshot(architecture, 1), work_of(payload, 1))
    assert not np.array_equal(newer.payload.policies, other.payload.policies), "the noise goes by the round"


# -- matches ------------------------------------------------------------------------------------------


def test_a_match_counts_wins_and_half_of_the_draws_and_can_be_repeated() -> None:
    evaluator = MatchEvaluator(partial(planner, BOARD), TIC_TAC_TOE, {"random": 1.0, "perfect": 1.0}, games=20)
    one, other = (evaluator.evaluate(snapshot(BOARD), 3) for _ in range(2))
    assert one == other
    metrics = one.metrics
    for name in ("random", "perfect"):
        assert metrics[f"won_{name}"] + metrics[f"drawn_{name}"] + metrics[f"lost_{name}"] == pytest.approx(1.0)
    assert metrics["won_perfect"] == 0, "nobody beats it"
    points = [metrics[f"won_{name}"] + 0.5 * metrics[f"drawn_{name}"] for name in ("random", "perfect")]
    assert one.value == pytest.approx(np.mean(points))
    assert evaluator.evaluate(snapshot(BOARD), 4).metrics != metrics


def test_an_evaluation_without_opponents_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an opponent"):
        MatchEvaluator(partial(planner, BOARD), CONNECT_FOUR, {}, games=4)
    with pytest.raises(ValueError, match="at least 2 games"):
        MatchEvaluator(partial(planner, BOARD), CONNECT_FOUR, {"random": 1.0}, games=1)
