"""PPO with a memory as a recipe: it wins where remembering is needed, with the same bits wherever it runs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import recall_games  # noqa: F401 - registers its games
import torch
from command_runs import refused, run_of

import headway
from headway.cli import main
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.run_result import RunResult
from headway.ppo.recipe_ppo import PPOConfig, stations
from headway.runs.config import ConfigError, read_values
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runtimes.build import build_runtime

pytestmark = pytest.mark.timeout(120)
RECALL = "recall_games:Recall-v0"
LEARNING: dict[str, Any] = {
    "num_envs": 16,
    "segment_steps": 24,
    "updates": 30,
    "evaluate_every": 30,
    "eval_episodes": 64,
    "learning_rate": 3e-3,
    "hidden": (16,),
}
SMALL: dict[str, Any] = {"num_envs": 4, "segment_steps": 6, "minibatch_size": 12, "hidden": (8,), "memory_size": 8}


def run(config: PPOConfig, recorder: Any = None) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(stations(config), config.settings(), place, recorder=recorder).run())


def tiny(**more: Any) -> PPOConfig:
    base = {"env": "recall_games:RecallUneven-v0", "memory": "gru", "updates": 5, "evaluate_every": 5}
    return PPOConfig(**{**base, "eval_episodes": 4, **SMALL, **more})


# -- what it is for ---------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_what_was_seen_at_first_is_recalled_at_the_end(memory: str) -> None:
    config = PPOConfig(env=RECALL, memory=memory, memory_size=16, runtime="inline", max_lead=1, **LEARNING)
    (score,) = run(config).scores
    assert score.value is not None and score.value > 0.9


def test_without_a_memory_it_is_a_guess() -> None:
    (score,) = run(PPOConfig(env=RECALL, runtime="inline", max_lead=1, **LEARNING)).scores
    assert score.value is not None and score.value < 0.5


# -- the same bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [0, 2])
def test_a_pinned_run_gives_the_same_bits_on_every_runtime(lead: int) -> None:
    more = {"max_lead": lead, "collectors": 2, "tickets_per_batch": 2}
    results = [run(tiny(runtime=runtime, **more)) for runtime in ("inline", "threads", "processes")]
    assert len({fingerprint(result.weights) for result in results}) == 1
    assert len({result.scores[-1].value for result in results}) == 1


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ray_gives_the_same_bits() -> None:
    pytest.importorskip("ray")
    assert len({fingerprint(run(tiny(runtime=runtime, max_lead=2)).weights) for runtime in ("inline", "ray")}) == 1


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_whoever_is_ready_first_remembers_the_same(memory: str) -> None:
    ways: list[dict[str, Any]] = [{}, {"stepping": "first_ready", "env_workers": 2}]
    assert len({fingerprint(run(tiny(memory=memory, runtime="inline", **way)).weights) for way in ways}) == 1


def test_a_free_run_replays_to_the_same_bits() -> None:
    config, recorder = tiny(max_lead=3, collectors=2, order="ready", updates=8), MemoryRecorder()
    result = run(config, recorder)
    assert fingerprint(replay(stations(config), recorder.events).weights) == fingerprint(result.weights)
    assert 0 < result.metrics["ess"] <= 1 + 1e-6


@pytest.mark.parametrize(("stepping", "lead"), [("vector", 0), ("vector", 2), ("first_ready", 1)])
def test_a_run_that_is_resumed_goes_on_with_what_was_remembered(stepping: str, lead: int, tmp_path: Path) -> None:
    """In the middle of episodes: 6 steps a segment, episodes of 5 to 7 and the steps between them."""
    config = tiny(stepping=stepping, runtime="threads", max_lead=lead, updates=8, evaluate_every=0, save_every=3)
    place, store = build_runtime(config.runtime), CheckpointStore(tmp_path, keep=5)
    whole = place.run(Coordinator(stations(config), config.settings(), place, checkpoints=store).run())
    place = build_runtime(config.runtime)
    state = store.load(store.find(3))
    resumed = place.run(Coordinator(stations(config), config.settings(), place, resume=state).run())
    assert fingerprint(resumed.weights) == fingerprint(whole.weights)


def test_two_learner_ranks_learn_what_one_does() -> None:
    one, two = (run(tiny(learner_ranks=ranks, max_lead=0, updates=3, runtime="inline")) for ranks in (1, 2))
    for name, tensor in one.weights.items():
        torch.testing.assert_close(torch.as_tensor(two.weights[name]), torch.as_tensor(tensor), atol=1e-4, rtol=1e-3)


def test_pictures_and_continuous_actions_are_remembered_too() -> None:
    pictures = tiny(env="picture_games:Lights-gray-v0", updates=2, evaluate_every=2, hidden=None, learner_gpus=0)
    assert run(pictures).scores[-1].value is not None
    assert run(tiny(env="Pendulum-v1", normalise=True, updates=2, evaluate_every=0, memory="lstm")).updates == 2


def test_a_size_without_a_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory_size=64 needs memory='gru' or 'lstm'"):
        read_values(PPOConfig, {"memory_size": 64})


# -- what was learned -------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["gru", "lstm"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    values = {**LEARNING, "hidden": [16], "memory": request.param, "memory_size": 16, "env": RECALL}
    return run_of(tmp_path_factory.mktemp("runs"), "ppo", **values, env_backend="gymnasium")


def test_a_loaded_policy_keeps_its_state_until_the_episode_ends(folder: RunFolder) -> None:
    policy = headway.load(folder.path)
    assert np.mean([episode.total for episode in policy.play(episodes=20)]) > 0.9
    env, total = policy.make_env(), 0.0
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        begins, is_over = True, False
        while not is_over:  # as users of Stable-Baselines3 write it
            action, state = policy.predict(observation, episode_start=np.array([begins]), deterministic=True)
            assert state is None
            observation, reward, terminated, truncated, _ = env.step(action)
            begins, is_over, total = False, bool(terminated or truncated), total + float(reward)
    assert total / 20 > 0.9


def test_rows_of_a_batch_forget_one_by_one(folder: RunFolder) -> None:
    policy = headway.load(folder.path)
    first = np.array([[1, 1, 0], [-1, 1, 0]], np.float32)
    asked = np.array([[0, 0, 1], [0, 0, 1]], np.float32)
    policy.reset()
    policy.act(first)
    np.testing.assert_array_equal(policy.act(asked), [1, 0])
    alone = headway.load(folder.path)
    alone.reset()
    forgotten = alone.act(asked)
    policy.reset()
    policy.act(first)
    actions, _ = policy.predict(asked, episode_start=np.array([False, True]), deterministic=True)
    np.testing.assert_array_equal(actions, [1, forgotten[1]])


@pytest.mark.parametrize("ending", [".onnx", ".pt2", ".pt"])
def test_other_programs_are_given_the_state_and_give_it_back(folder: RunFolder, ending: str, tmp_path: Path) -> None:
    policy = headway.load(folder.path)
    file = policy.export(tmp_path / f"recall{ending}")
    if ending == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        assert [one.name for one in session.get_inputs()] == ["observation", "state"]
        assert [one.name for one in session.get_outputs()] == ["action", "logits", "next_state"]

        def call(seen: np.ndarray, state: np.ndarray) -> list[np.ndarray]:
            return session.run(None, {"observation": seen, "state": state})
    else:
        module: Any = torch.export.load(file).module() if ending == ".pt2" else load_script(file)

        def call(seen: np.ndarray, state: np.ndarray) -> list[np.ndarray]:
            return [one.detach().numpy() for one in module(torch.from_numpy(seen), torch.from_numpy(state))]

    rng = np.random.default_rng(0)
    state = np.zeros((3, policy.network.state_size), np.float32)
    policy.reset()
    for _ in range(6):
        seen = rng.normal(size=(3, 3)).astype(np.float32)
        actions, _, state = call(seen, state)
        np.testing.assert_array_equal(actions, policy.act(seen))


def load_script(file: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own; the format is still read
        return torch.jit.load(file)


def test_it_can_be_watched(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(folder.path), "--episodes", "3", "--render", "none"]) == 0
    assert "1" in capsys.readouterr().out


def test_an_unknown_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "memory" in refused(capsys, "run", "ppo", "--memory", "grru")


def test_an_environment_that_cannot_be_carried_begins_new_episodes() -> None:
    gym.register("RecallLocked-v0", "picture_games:Lights", kwargs={"layout": "locked"})
    config = tiny(env="RecallLocked-v0", updates=2, evaluate_every=0, hidden=None, learner_gpus=0)
    assert run(config).updates == 2
