"""What holds for every recipe that plays by search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from search_runs import read, run, tiny

from headway.coordinator.checkpoint import CheckpointStore
from headway.core.types import Snapshot, Ticket
from headway.ranks.rank import device_for
from headway.replay.records import record_of
from headway.runs.config import ConfigError
from headway.runs.fingerprint import fingerprint
from headway.runs.recipes_package import load_recipe
from headway.testing.replay_fakes import plain_replay_loop
from headway.zero.board_games_package import GAMES, Game
from headway.zero.config import BOARD_GAMES
from headway.zero.segments import GameSegment

every_recipe = pytest.mark.parametrize("recipe", ["muzero", "unizero"])
REANALYSIS = {"reanalyze_ratio": 2.0, "reanalyze_min_age": 2, "reanalyze_roots": 16}


@every_recipe
def test_environments_that_raise_now_and_then_are_left_behind(recipe: str) -> None:
    config = tiny(recipe, env="failing_envs:Stumbling-v0", on_failure="drop")
    result = run(recipe, config)
    assert result.updates == config.updates
    assert result.ledger.dropped["failed"] > 0


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("muzero", {}),
        ("muzero", {"env": "tictactoe"}),
        ("muzero", {"env": "tictactoe", "network": "board"}),
        ("muzero", {"average": 0.0, "normalise": False}),
        ("unizero", {"context_steps": 2}),
        ("unizero", {"env": "tictactoe"}),
    ],
)
def test_lead_zero_is_the_plain_loop_bit_for_bit(recipe: str, more: dict[str, Any]) -> None:
    more = {**more, "max_lead": 0}
    shared = tiny(recipe, **more, replay_mode="shared")
    wanted = fingerprint(plain_replay_loop(load_recipe(recipe).stations(shared), shared.settings()))
    for mode, runtime in (("shared", "inline"), ("learner", "inline"), ("shared", "threads")):
        config = tiny(recipe, **more, replay_mode=mode, runtime=runtime)
        assert fingerprint(run(recipe, config).weights) == wanted, (mode, runtime)


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("muzero", {"replay_mode": "learner"}),
        ("muzero", {"replay_mode": "shared"}),
        ("unizero", {"replay_mode": "learner", "context_steps": 2}),
    ],
)
def test_a_pinned_run_with_reanalysis_is_determined_by_its_seed_and_resumes_to_the_same_bits(
    recipe: str, more: dict[str, Any], tmp_path: Path
) -> None:
    more = {**more, **REANALYSIS, "max_lead": 1}
    whole = run(recipe, tiny(recipe, **more, runtime="inline"))
    assert whole.metrics["targets_refreshed"] > 0
    assert whole.metrics["target_age_after"] == 0.0, "in turn: nothing is trained meanwhile"
    assert whole.metrics["target_age_before"] >= REANALYSIS["reanalyze_min_age"]
    assert 0 < whole.metrics["target_age_mean"] < whole.metrics["target_age_before"]
    assert fingerprint(run(recipe, tiny(recipe, **more, runtime="threads")).weights) == fingerprint(whole.weights)
    off = tiny(recipe, **{**more, "reanalyze_ratio": 0.0}, runtime="inline")
    assert fingerprint(run(recipe, off).weights) != fingerprint(whole.weights)
    store = CheckpointStore(tmp_path / "checkpoints", keep=9)
    run(recipe, tiny(recipe, **more, save_every=4), checkpoints=store)
    middle = store.load(store.all()[0])
    assert middle.updates == 4
    for _ in range(2):  # a checkpoint is not used up
        assert fingerprint(run(recipe, tiny(recipe, **more), resume=middle).weights) == fingerprint(whole.weights)


@every_recipe
def test_an_evaluation_is_repeatable_for_a_version_and_a_seed(recipe: str) -> None:
    config = tiny(recipe, evaluate_every=1, eval_episodes=3, eval_simulations=4)
    stations = load_recipe(recipe).stations(config)
    weights = stations.learner().snapshot()
    evaluators = [stations.evaluator() for _ in range(2)]  # type: ignore[misc]
    scores = [evaluator.evaluate(Snapshot(1, weights), 7) for evaluator in (*evaluators, evaluators[0])]
    assert scores[0] == scores[1] == scores[2]
    assert evaluators[0].evaluate(Snapshot(1, weights), 8) != scores[0]


@every_recipe
def test_what_plays_is_the_average_and_what_it_sees_is_on_one_scale_unless_told_otherwise(recipe: str) -> None:
    learners = {
        average: load_recipe(recipe).stations(tiny(recipe, average=average, replay_mode="shared")).learner()
        for average in (0.0, 0.9)
    }
    assert [learner.state_dict()["average"] is None for learner in learners.values()] == [True, False]
    for changes, scaled in (({}, 1), ({"normalise": False}, 0), ({"env": "tictactoe"}, 0)):
        config = tiny(recipe, replay_mode="shared", **changes)
        network = load_recipe(recipe).stations(config).learner()._network
        assert sum(name.startswith("inputs.mean") for name, _ in network.named_parameters()) == scaled


@pytest.mark.slow
@every_recipe
@pytest.mark.parametrize("runtime", ["processes", "ray"])
def test_the_same_bits_come_out_elsewhere(recipe: str, runtime: str) -> None:
    if runtime == "ray":
        pytest.importorskip("ray")
    more = {"replay_mode": "shared", **REANALYSIS}
    wanted = fingerprint(run(recipe, tiny(recipe, **more, runtime="inline")).weights)
    assert fingerprint(run(recipe, tiny(recipe, **more, runtime=runtime)).weights) == wanted


@pytest.mark.slow
@every_recipe
def test_a_run_on_processes_writes_nothing_to_stderr(recipe: str, capfd: pytest.CaptureFixture[str]) -> None:
    game = {"env": "tictactoe"} if recipe == "muzero" else {}
    more = {"replay_mode": "shared", "runtime": "processes", "updates": 6, **REANALYSIS, **game}
    result = run(recipe, tiny(recipe, **more))
    assert result.metrics["targets_refreshed"] > 0
    assert capfd.readouterr().err == ""


@every_recipe
def test_board_games_have_defaults_of_their_own_that_the_user_may_change(recipe: str) -> None:
    config = read(recipe, wall_s=1, env="connect_four")
    assert (config.gamma, config.replay_alpha, config.value_weight) == (1.0, 0.0, 1.0)
    assert config.opponents == ("random", "depth_2")
    assert read(recipe, wall_s=1, env="connect_four", gamma=0.9).gamma == 0.9


@every_recipe
def test_a_board_game_that_has_only_a_row_is_played_and_evaluated(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Game("six_by_six", rows=6, columns=6, run=4, drops=False)
    monkeypatch.setitem(GAMES, game.name, game)
    monkeypatch.setitem(BOARD_GAMES, game.name, game.name)
    config = read(recipe, wall_s=1, env=game.name)
    assert (config.gamma, config.td_steps, config.opponents) == (1.0, 36, ("random", "depth_2"))
    assert config.replay_min_size > config.collectors * config.num_envs * (config.num_unroll_steps + 36)
    small = {"env": game.name, "opponents": "random", "eval_episodes": 2, "eval_simulations": 2, "evaluate_every": 3}
    result = run(recipe, tiny(recipe, **small, updates=3, td_steps=3))
    assert result.updates == 3
    assert result.scores[-1].value is not None


@every_recipe
def test_roles_are_given_the_gpus_they_are_to_compute_on(recipe: str) -> None:
    stations = load_recipe(recipe).stations(tiny(recipe, learner_gpus=1, search_gpus=0.25))
    assert (stations.learner_placement.num_gpus, stations.collector_placement.num_gpus) == (1, 0.25)
    assert stations.evaluator_placement.num_gpus == 0.25
    assert [device_for(0), device_for(1)] == ["cpu", "cuda" if torch.cuda.is_available() else "cpu"]


@every_recipe
def test_symmetries_change_what_is_learned_from(recipe: str) -> None:
    with_them, without = (
        run(recipe, tiny(recipe, env="tictactoe", symmetries=wanted, updates=3, evaluate_every=0))
        for wanted in (True, False)
    )
    assert fingerprint(with_them.weights) != fingerprint(without.weights)


@every_recipe
@pytest.mark.parametrize(
    ("root", "name", "value"),
    [
        ("puct", "value_norm_floor", 1e4),
        ("gumbel", "value_norm_floor", 1e4),
        ("gumbel", "max_considered_actions", 1),
        ("gumbel", "gumbel_scale", 0.0),
        ("gumbel", "gumbel_c_visit", 500.0),
        ("gumbel", "gumbel_c_scale", 1.0),
    ],
)
def test_a_setting_of_the_search_changes_what_is_collected(recipe: str, root: str, name: str, value: Any) -> None:
    game = {"env": "tictactoe", "root": root}
    collected = [collect_once(tiny(recipe, **game, **changes), recipe) for changes in ({}, {name: value})]
    assert not np.array_equal(collected[0].policies, collected[1].policies)


def collect_once(config: Any, recipe: str) -> GameSegment:
    """A segment with weights that have an opinion."""
    stations = load_recipe(recipe).stations(config)
    weights = stations.learner().snapshot()["network"].copy()
    weights += 0.2 * np.random.default_rng(0).normal(size=weights.shape).astype(np.float32)
    rollout = stations.collector(0).collect(Ticket(0, 5, 1), Snapshot(1, {"network": weights}))
    return record_of(rollout, GameSegment)


@every_recipe
def test_smoothing_spreads_the_targets_of_values_and_rewards(recipe: str) -> None:
    plain, smooth = (run(recipe, tiny(recipe, value_smoothing=share, updates=2)) for share in (0.0, 0.1))
    assert fingerprint(plain.weights) != fingerprint(smooth.weights)
    assert smooth.metrics["reward_loss"] > plain.metrics["reward_loss"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"root": "gumbel", "temperature": 0.5}, "temperature=0.5 needs root='puct', received root='gumbel'"),
        ({"gumbel_algo": True, "fixed_temperature_value": 0.25}, "needs root='puct'"),
        ({"root": "gumbel", "temperature_moves": 4}, "temperature_moves=4 needs root='puct', received root='gumbel'"),
        ({"temperature_moves": -1}, "temperature_moves=-1: Input should be greater than or equal to 0"),
        ({"max_num_considered_actions": 6}, "max_considered_actions=6 needs root='gumbel', received root='puct'"),
        ({"value_smoothing": 1.0}, "value_smoothing=1.0: Input should be less than 1"),
        ({"gumbel_c_scale": -1, "root": "gumbel"}, "gumbel_c_scale=-1: Input should be greater than or equal to 0"),
    ],
)
@every_recipe
def test_what_cannot_be_is_refused_in_one_line(recipe: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(recipe, wall_s=1, **values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@every_recipe
def test_the_gumbel_root_has_its_known_names(recipe: str) -> None:
    config = read(recipe, wall_s=1, gumbel_algo=True, max_num_considered_actions=6)
    assert (config.root, config.max_considered_actions) == ("gumbel", 6)
    assert read(recipe, wall_s=1, gumbel_algo=False).root == "puct"


@pytest.mark.slow
@pytest.mark.timeout(1000)
@every_recipe
def test_cartpole_is_learned(recipe: str) -> None:
    result = run(recipe, read(recipe, target_score=400, updates=4000, wall_s=900))
    assert max(score.value or 0.0 for score in result.scores) >= 400
