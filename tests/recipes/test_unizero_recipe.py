"""The UniZero recipe: the plain loop at lead 0, the same bits everywhere, and what it refuses."""

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
from headway.core.types import Batch, Rollout, Snapshot, Ticket, derive_seed
from headway.launching import build_runtime
from headway.observe.fingerprint import fingerprint
from headway.recipes import load_recipe
from headway.recipes.config import ConfigError, read_values
from headway.recipes.unizero import UniZeroConfig

TINY: dict[str, Any] = {
    "num_envs": 2,
    "segment_steps": 8,
    "num_simulations": 3,
    "batch_size": 8,
    "replay_min_size": 40,
    "replay_capacity": 200,
    "num_unroll_steps": 2,
    "td_steps": 3,
    "dim": 8,
    "heads": 2,
    "value_bins": 11,
    "updates": 6,
    "evaluate_every": 0,
    "seed": 3,
}


def tiny(**changes: Any) -> UniZeroConfig:
    return read(**{**TINY, **changes})


def read(**values: Any) -> UniZeroConfig:
    config = read_values(UniZeroConfig, values)
    assert isinstance(config, UniZeroConfig)
    return config


def run(config: Any, **more: Any) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(load_recipe("unizero").stations(config), config.settings(), place, **more).run())


def plain_loop(config: Any) -> Any:
    """The loop without us: collect until the ratio allows an update, draw, train, write back, again."""
    stations, settings = load_recipe("unizero").stations(config), config.settings()
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


@pytest.mark.parametrize("more", [{"context_steps": 2}, {"env": "tictactoe"}], ids=["CartPole-v1", "tictactoe"])
def test_lead_zero_is_the_plain_loop_bit_for_bit(more: dict[str, Any]) -> None:
    more = {**more, "max_lead": 0}
    wanted = fingerprint(plain_loop(tiny(**more, replay_mode="shared")))
    for mode, runtime in (("shared", "inline"), ("learner", "threads")):
        config = tiny(**more, replay_mode=mode, runtime=runtime)
        assert fingerprint(run(config).weights) == wanted, (mode, runtime)


def test_a_pinned_run_with_a_past_and_reanalysis_resumes_to_the_same_bits(tmp_path: Path) -> None:
    more = {"reanalyze_ratio": 2.0, "reanalyze_min_age": 2, "reanalyze_roots": 16, "max_lead": 1, "context_steps": 2}
    whole = run(tiny(**more, runtime="inline"))
    assert whole.metrics["targets_refreshed"] > 0
    store = CheckpointStore(tmp_path / "checkpoints", keep=9)
    run(tiny(**more, save_every=3), checkpoints=store)
    middle = store.load(store.all()[0])
    assert middle.updates == 3
    assert fingerprint(run(tiny(**more), resume=middle).weights) == fingerprint(whole.weights)


def test_collectors_and_reanalyzers_see_as_much_of_the_past_as_they_are_told() -> None:
    """The first step of a game has none, so there the searches agree."""
    values, again = [], []
    for steps in (0, 2):
        config = tiny(context_steps=steps, root_noise_weight=0.0, reanalyze_ratio=1.0)
        stations = load_recipe("unizero").stations(config)
        weights = stations.learner().snapshot()["network"].copy()
        weights += 0.2 * np.random.default_rng(0).normal(size=weights.shape).astype(np.float32)
        snapshot = Snapshot(1, {"network": weights})
        segment = stations.collector(0).collect(Ticket(0, 5, 1), snapshot).payload
        values.append(segment["values"])
        work = {name: np.swapaxes(segment[name], 0, 1) for name in ("obs", "actions", "to_play")}
        begins = np.zeros((2, 8), bool)
        begins[:, 0] = True
        work |= {"ids": np.arange(2), "round": 0, "legal": None, "begins": begins}
        reanalyzer: Any = stations.reanalyzer()  # type: ignore[misc]
        again.append(reanalyzer.reanalyze(snapshot, Rollout(work, steps=16)).payload["values"].T)
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-4)
    np.testing.assert_allclose(again[0][0], again[1][0], rtol=1e-4)
    assert not np.allclose(values[0][1], values[1][1], rtol=1e-3)
    assert not np.allclose(again[0][1], again[1][1], rtol=1e-3)


def test_an_evaluation_is_repeatable_for_a_version_and_a_seed() -> None:
    config = tiny(evaluate_every=1, eval_episodes=3, eval_simulations=3, context_steps=2)
    stations = load_recipe("unizero").stations(config)
    weights = stations.learner().snapshot()
    evaluators = [stations.evaluator() for _ in range(2)]  # type: ignore[misc]
    scores = [evaluator.evaluate(Snapshot(1, weights), 7) for evaluator in (*evaluators, evaluators[0])]
    assert scores[0] == scores[1] == scores[2]
    assert evaluators[0].evaluate(Snapshot(1, weights), 8) != scores[0]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "ray"])
def test_the_same_bits_come_out_elsewhere(runtime: str) -> None:
    if runtime == "ray":
        pytest.importorskip("ray")
    more = {"replay_mode": "shared", "reanalyze_ratio": 1.0, "reanalyze_min_age": 2, "reanalyze_roots": 16}
    wanted = fingerprint(run(tiny(**more, runtime="inline")).weights)
    assert fingerprint(run(tiny(**more, runtime=runtime)).weights) == wanted


def test_a_token_looks_as_far_back_as_learning_does_unless_told() -> None:
    from headway.recipes.search_run import game_spec
    from headway.recipes.unizero import _network

    for told, width in ((None, 5), (3, 3)):
        config = tiny(num_unroll_steps=4, attention_steps=told)
        assert _network(config, game_spec(config)).architecture.attention_steps == width


def test_board_games_have_defaults_of_their_own_that_the_user_may_change() -> None:
    assert read(wall_s=1, env="connect_four").gamma == 1.0
    assert read(wall_s=1, env="connect_four", gamma=0.9).gamma == 0.9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"dim": 20, "heads": 4}, "dim must be a multiple of 2 * heads = 8, received 20"),
        ({"env": "tictactoe", "context_steps": 2}, "a board shows everything, it must be 0"),
        ({"layer": 3}, "layers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_values(UniZeroConfig, {"wall_s": 1, **values})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_cartpole_is_learned() -> None:
    result = run(read(target_score=400, updates=4000, wall_s=900))
    assert max(score.value or 0.0 for score in result.scores) >= 400
