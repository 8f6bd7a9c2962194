"""The MuZero recipe: the plain loop at lead 0, the same bits everywhere, and games that are won."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from headway.coordinate.checkpoint import CheckpointStore
from headway.coordinate.coordinator import Coordinator, RunResult
from headway.core.rules import Tally
from headway.core.types import Batch, Snapshot, Ticket, derive_seed
from headway.launching import build_runtime
from headway.observe.fingerprint import fingerprint
from headway.observe.recorder import MemoryRecorder
from headway.recipes import load_recipe
from headway.recipes.config import ConfigError, read_values
from headway.recipes.muzero import MuZeroConfig

TINY: dict[str, Any] = {
    "num_envs": 2,
    "segment_steps": 8,
    "num_simulations": 4,
    "batch_size": 8,
    "replay_min_size": 40,
    "replay_capacity": 200,
    "num_unroll_steps": 2,
    "td_steps": 3,
    "latent": 8,
    "hidden": 8,
    "value_bins": 11,
    "updates": 12,
    "evaluate_every": 0,
    "seed": 3,
}


def tiny(**changes: Any) -> MuZeroConfig:
    return read(**{**TINY, **changes})


def read(**values: Any) -> MuZeroConfig:
    config = read_values(MuZeroConfig, values)
    assert isinstance(config, MuZeroConfig)
    return config


def run(config: Any, **more: Any) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(load_recipe("muzero").stations(config), config.settings(), place, **more).run())


def plain_loop(config: Any) -> Any:
    """The loop without us: collect until the ratio allows an update, draw, train, write back, again."""
    stations, settings = load_recipe("muzero").stations(config), config.settings()
    replay, learner, collector = stations.replay(), stations.learner(), stations.collector(0)  # type: ignore[misc]
    tally, ratio, index = Tally(), settings.replay, 0
    snapshot = Snapshot(0, copy.deepcopy(learner.snapshot()))
    for _ in range(config.updates):
        while not ratio.may_learn(tally):
            ticket = Ticket(index, derive_seed(config.seed, "ticket", index), snapshot.version)
            rollout = collector.collect(ticket, snapshot)
            replay.insert(Batch(snapshot.version, (rollout,)))
            tally.inserted += rollout.steps
            index += 1
        draw = replay.sample(snapshot.version)
        report = learner.learn(Batch(snapshot.version, (draw,)))
        replay.update(report.feedback)
        tally.sampled += draw.steps
        snapshot = Snapshot(snapshot.version + 1, copy.deepcopy(learner.snapshot()))
    return snapshot.payload


# -- bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", "tictactoe"])
def test_lead_zero_is_the_plain_loop_bit_for_bit(env: str) -> None:
    more = {"env": env, "max_lead": 0}
    if env == "tictactoe":
        more |= {"num_envs": 2, "segment_steps": 8, "td_steps": 3}
    wanted = fingerprint(plain_loop(tiny(**more, replay_mode="shared")))
    for mode, runtime in (("shared", "inline"), ("learner", "inline"), ("shared", "threads")):
        config = tiny(**more, replay_mode=mode, runtime=runtime)
        assert fingerprint(run(config).weights) == wanted, (mode, runtime)


@pytest.mark.parametrize("mode", ["learner", "shared"])
def test_a_pinned_run_with_reanalysis_is_determined_by_its_seed_and_resumes_to_the_same_bits(
    mode: str, tmp_path: Path
) -> None:
    more = {"replay_mode": mode, "reanalyze_ratio": 2.0, "reanalyze_min_age": 2, "reanalyze_roots": 16, "max_lead": 1}
    whole = run(tiny(**more, runtime="inline"))
    assert whole.metrics["targets_refreshed"] > 0
    assert whole.metrics["target_age_after"] < whole.metrics["target_age_before"]
    assert fingerprint(run(tiny(**more, runtime="threads")).weights) == fingerprint(whole.weights)
    off = {**more, "reanalyze_ratio": 0.0}
    assert fingerprint(run(tiny(**off, runtime="inline")).weights) != fingerprint(whole.weights)
    store = CheckpointStore(tmp_path / "checkpoints", keep=9)
    run(tiny(**more, save_every=5), checkpoints=store)
    middle = store.load(store.all()[0])
    assert middle.updates == 5
    assert fingerprint(run(tiny(**more), resume=middle).weights) == fingerprint(whole.weights)


def test_a_free_run_reanalyzes_beside_learning() -> None:
    recorder = MemoryRecorder()
    more = {"replay_mode": "shared", "reanalyze_ratio": 1.0, "reanalyze_min_age": 1, "reanalyze_roots": 16}
    result = run(tiny(**more, updates=40, dispatch="free", max_lead=2), recorder=recorder)
    refreshed = [event for event in recorder.events if event["e"] == "refresh"]
    assert refreshed
    assert result.metrics["targets_refreshed"] <= sum(event["n"] for event in refreshed)
    assert result.ledger.closes


def test_an_evaluation_is_repeatable_for_a_version_and_a_seed() -> None:
    config = tiny(evaluate_every=1, eval_episodes=3, eval_simulations=4)
    stations = load_recipe("muzero").stations(config)
    weights = stations.learner().snapshot()
    evaluators = [stations.evaluator() for _ in range(2)]  # type: ignore[misc]
    scores = [evaluator.evaluate(Snapshot(1, weights), 7) for evaluator in (*evaluators, evaluators[0])]
    assert scores[0] == scores[1] == scores[2]
    assert evaluators[0].evaluate(Snapshot(1, weights), 8) != scores[0]


def test_a_board_game_is_evaluated_against_its_opponents() -> None:
    config = tiny(env="tictactoe", num_envs=4, td_steps=9, replay_min_size=60, evaluate_every=12, eval_episodes=4)
    (score,) = run(config).scores
    assert {"won_random", "lost_perfect"} <= set(score.metrics)
    planes = tiny(env="connect_four", network="planes", num_envs=2, td_steps=3, segment_steps=8, latent=4, updates=2)
    assert run(planes).updates == 2


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "ray"])
def test_the_same_bits_come_out_elsewhere(runtime: str) -> None:
    if runtime == "ray":
        pytest.importorskip("ray")
    more = {"replay_mode": "shared", "reanalyze_ratio": 1.0, "reanalyze_min_age": 2, "reanalyze_roots": 16}
    wanted = fingerprint(run(tiny(**more, runtime="inline")).weights)
    assert fingerprint(run(tiny(**more, runtime=runtime)).weights) == wanted


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


def test_board_games_have_defaults_of_their_own_that_the_user_may_change() -> None:
    config = read(wall_s=1, env="connect_four")
    assert config.gamma == 1.0
    assert config.opponents == ("random", "depth_2")
    assert read(wall_s=1, env="connect_four", gamma=0.9).gamma == 0.9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"env": "CartPole-v1", "opponents": "[random]"}, "are for board games"),
        ({"env": "tictactoe", "opponents": "[depht_2]"}, "depth_2"),
        ({"env": "connect_four", "opponents": "[perfect]"}, "cannot look to the end"),
        ({"replay_min_size": 200}, "may be all incomplete targets: it must be above 200"),
        ({"replay_min_size": 900, "replay_capacity": 800}, "is more than replay_capacity=800 ever holds"),
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


def test_planes_need_planes() -> None:
    config = read(wall_s=1, network="planes")
    with pytest.raises(ValueError, match=r"needs observations \[C, height, width\]; CartPole-v1 has \[4\]"):
        load_recipe("muzero").stations(config).learner()


# -- learning -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_cartpole_is_learned() -> None:
    result = run(read(target_score=400, updates=3000, wall_s=600))
    assert max(score.value or 0.0 for score in result.scores) >= 400


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_tic_tac_toe_is_learned() -> None:
    result = run(read(env="tictactoe", updates=1500, wall_s=900, evaluate_every=500))
    assert np.max([score.metrics["won_random"] for score in result.scores]) >= 0.85
