"""The MuZero recipe: its names, what it refuses, and games that are won (test_search_recipes.py has the rest)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import search_runs

from headway.cli import main
from headway.runs.config import ConfigError, read_values
from headway.runs.event_log import MemoryRecorder
from headway.runs.recipes_package import load_recipe
from headway.zero.muzero_recipe import MuZeroConfig

tiny, read, run = (partial(function, "muzero") for function in (search_runs.tiny, search_runs.read, search_runs.run))


# -- running ------------------------------------------------------------------------------------------


def test_a_free_run_reanalyzes_beside_learning() -> None:
    recorder = MemoryRecorder()
    more = {"replay_mode": "shared", "reanalyze_ratio": 1.0, "reanalyze_min_age": 1, "reanalyze_roots": 16}
    result = run(tiny(**more, updates=40, dispatch="free", max_lead=2), recorder=recorder)
    refreshed = [event for event in recorder.events if event["e"] == "refresh"]
    assert refreshed
    assert result.metrics["targets_refreshed"] <= sum(event["n"] for event in refreshed)
    assert result.ledger.closes


def test_a_board_game_is_evaluated_against_its_opponents() -> None:
    config = tiny(
        env="tictactoe", network="board", num_envs=4, td_steps=9, replay_min_size=60, evaluate_every=12, eval_episodes=4
    )
    (score,) = run(config).scores
    assert {"won_random", "lost_perfect"} <= set(score.metrics)
    planes = tiny(env="connect_four", network="planes", num_envs=2, td_steps=3, segment_steps=8, latent=4, updates=2)
    assert run(planes).updates == 2


# -- settings -----------------------------------------------------------------------------------------


def test_known_names_of_system_b_are_understood() -> None:
    theirs = {
        "enable_async_training": True,
        "data_queue_size": 4,
        "collector_env_num": 4,
        "game_segment_length": 25,
        "num_simulations": 12,
        "num_unroll_steps": 6,
        "td_steps": 7,
        "replay_ratio": 0.5,
        "reanalyze_ratio": 0.25,
        "max_env_step": 5000,
    }
    config = read(**theirs)
    assert (config.max_lead, config.num_envs, config.segment_steps, config.steps) == (4, 4, 25, 5000)
    ratio = config.settings().replay
    assert ratio is not None
    assert ratio.samples_per_insert == 0.5 * config.batch_size
    assert read(**theirs | {"enable_async_training": False}).max_lead == 0


def test_updates_per_collect_are_updates_per_ticket() -> None:
    config = read(wall_s=1, update_per_collect=100, num_envs=8, segment_steps=50)
    assert config.updates_per_step == pytest.approx(0.25)
    assert read(wall_s=1, env="connect_four", update_per_collect=64).updates_per_step == pytest.approx(64 / 1024)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"env": "CartPole-v1", "opponents": "[random]"}, "are for board games"),
        ({"env": "tictactoe", "opponents": "[depht_2]"}, "depth_2"),
        ({"env": "connect_four", "opponents": "[perfect]"}, "cannot look to the end"),
        ({"replay_min_size": 200}, "may be all incomplete targets: it must be above 200"),
        ({"replay_min_size": 900, "replay_capacity": 800}, "is more than replay_capacity=800 ever holds"),
        ({"replay_min_size": 201, "replay_capacity": 399}, "it needs at least 800 steps: a position looks 25 steps"),
        ({"env": "tictactoe", "eval_episodes": 1}, "a match needs 2 games, one begun by each side"),
        ({"env": "tictactoe", "opponents": "random,depht_2"}, "did you mean 'depth_2'"),
        ({"update_per_collect": 5, "replay_ratio": 0.5}, "say the same thing"),
        ({"final_learning_rate": 1e-4}, "needs updates"),
        ({"num_simulation": 5}, "num_simulations"),
        ({"td_steps": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_values(MuZeroConfig, {"wall_s": 1, **values})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("network", ["planes", "board"])
def test_planes_need_planes(network: str) -> None:
    config = read(wall_s=1, network=network)
    with pytest.raises(ValueError, match=r"needs observations \[C, height, width\]; CartPole-v1 has \[4\]"):
        load_recipe("muzero").stations(config)


def test_a_network_that_cannot_be_leaves_no_folder_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "muzero", "--runs", str(tmp_path), "--network", "board", "--updates", "1"]
    assert main(words) != 0
    assert "network='board' needs observations [C, height, width]; CartPole-v1 has [4]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "meant"),
    [("perfect", ("perfect",)), ("random, depth_3", ("random", "depth_3")), ("[random]", ("random",))],
)
def test_opponents_are_one_name_or_several_with_commas(said: str, meant: tuple[str, ...]) -> None:
    assert read(wall_s=1, env="tictactoe", opponents=said).opponents == meant


# -- learning -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_tic_tac_toe_is_learned() -> None:
    result = run(read(env="tictactoe", updates=2500, wall_s=900, evaluate_every=1000))
    assert np.max([score.metrics["won_random"] for score in result.scores]) >= 0.85
    assert np.min([score.metrics["lost_perfect"] for score in result.scores]) <= 0.4


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_connect_four_is_learned() -> None:
    result = run(read(env="connect_four", wall_s=600, evaluate_every=3000, target_score=0.8))
    best = max(result.scores, key=lambda score: score.value or 0.0)
    assert best.metrics["won_random"] >= 0.95
    assert best.metrics["won_depth_2"] >= 0.6
