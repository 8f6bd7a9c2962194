"""`headway.load`: what a run has learned acts, replies and is written for other programs; `headway watch` shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from command_runs import refused, run_of
from grpo_runs import make_material, tiny_values
from random_walk_envs import ACTIONS
from search_runs import TINY, TINY_MODEL

import headway
from headway.cli import main
from headway.cli.evaluate import evaluate
from headway.coordinator.checkpoint import CheckpointError
from headway.llm.grpo import GRPOConfig
from headway.llm.prompts import Encoder
from headway.llm.tasks.tasks import Prompt
from headway.runs.config import read_values
from headway.runs.folder import RunFolder

pytestmark = pytest.mark.timeout(120)
Output = pytest.CaptureFixture[str]

WANDERERS = {kind: f"LoadedWanderer-{kind}-v0" for kind in ACTIONS}
for kind, env_id in WANDERERS.items():
    gym.register(env_id, "random_walk_envs:Wanderer", kwargs={"kind": kind})
gym.register("LoadedLights-v0", "picture_games:Lights", max_episode_steps=20)

PPO = {"num_envs": 2, "segment_steps": 8, "updates": 2, "evaluate_every": 1, "eval_episodes": 1, "hidden": [8]}
GYMNASIUM = {"env_backend": "gymnasium"}  # EnvPool's environments are other programs
SEARCH = {"evaluate_every": 3, "eval_episodes": 1, "eval_simulations": 2, "updates": 6}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Pendulum": ("ppo", {**PPO, **GYMNASIUM, "env": "Pendulum-v1", "normalise": True}),
    "FrozenLake": ("ppo", {**PPO, **GYMNASIUM, "env": "FrozenLake-v1"}),
    "Acrobot": ("muzero", {**TINY, **TINY_MODEL["muzero"], **SEARCH, "env": "Acrobot-v1", "eval_max_steps": 20}),
    "looking back": (
        "unizero",
        {**TINY, **TINY_MODEL["unizero"], **SEARCH, "env": "Acrobot-v1", "eval_max_steps": 20, "context_steps": 2},
    ),
    "colorlines": ("colorlines", {**PPO, "width": 2, "segment_steps": 2, "eval_max_steps": 30} | {"hidden": None}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("runs")
    made = {}
    for name, (recipe, values) in RECIPES.items():
        said = {key: value for key, value in values.items() if value is not None}
        made[name] = run_of(root / name.replace(" ", "-"), recipe, **said)
    return made


# -- acting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_policy_plays_the_episode_that_the_evaluation_played(name: str, runs: dict[str, RunFolder]) -> None:
    folder = runs[name]
    measured = evaluate(folder)
    (score,) = measured.scores
    policy = headway.load(folder.path, "last")
    cut = folder.read_config()[1]["eval_max_steps"]
    from headway.coordinator.run_result_evaluations import evaluation_seed

    seed = evaluation_seed(measured.seeds[0], measured.kept.version) % 2**31
    (episode,) = policy.play(seed=seed, max_steps=cut)
    assert (episode.total, episode.steps) == (pytest.approx(score.value, rel=1e-5), score.metrics["length"])
    assert policy.facts.version == measured.kept.version


@pytest.mark.parametrize("name", ["Pendulum", "FrozenLake", "colorlines"])  # a search draws lots where visits are equal
def test_one_observation_is_acted_on_as_it_is_among_several(name: str, runs: dict[str, RunFolder]) -> None:
    policy = headway.load(runs[name].path, "last")
    env = policy.make_env()
    first, _ = env.reset(seed=0)
    second, _ = env.reset(seed=1)
    policy.reset()
    both = policy.act(np.stack([first, second]))
    assert both.shape == (2, *policy.action_space.shape)
    alone = []
    for one in (first, second):
        policy.reset()
        alone.append(policy.act(one))
    np.testing.assert_allclose(both, alone, rtol=1e-5)
    assert all(policy.action_space.contains(action) for action in alone)


def test_predict_is_called_as_in_stable_baselines(runs: dict[str, RunFolder]) -> None:
    policy = headway.load(runs["Pendulum"].path)
    obs = np.array([0.6, 0.8, 0.1], np.float32)
    action, state = policy.predict(obs, deterministic=True)
    assert state is None and np.array_equal(action, policy.act(obs))
    policy.seed(5)
    drawn = [policy.predict(obs)[0] for _ in range(3)]
    policy.seed(5)
    again = [policy.predict(obs, state=None, episode_start=np.array([False]))[0] for _ in range(3)]
    assert np.array_equal(drawn, again) and len({float(one[0]) for one in drawn}) == 3
    with pytest.raises(ValueError, match="state must be None, received 3"):
        policy.predict(obs, state=3)


def test_what_an_episode_began_with_is_remembered_until_reset(runs: dict[str, RunFolder]) -> None:
    policy = headway.load(runs["looking back"].path, "last")
    told: list[list[bool]] = []
    seen: list[int] = []
    forget, begin = policy._player.forget, policy._player._model.begin

    def note(begins: np.ndarray) -> None:
        told.append(begins.tolist())
        forget(begins)

    def look(obs: np.ndarray, num_nodes: int, past: Any = None) -> Any:
        seen.append(int(past.lengths[0]))
        return begin(obs, num_nodes, past)

    policy._player.forget, policy._player._model.begin = note, look
    obs = np.zeros(6, np.float32)
    for _ in range(4):
        policy.act(obs)
    policy.reset()
    policy.act(obs)
    policy.predict(np.stack([obs, obs]))
    policy.predict(np.stack([obs, obs]), episode_start=np.array([False, True]))
    assert told == [[True], [False], [False], [False], [True], [True, True], [False, True]]
    assert seen == [0, 1, 2, 2, 0, 0, 1]


def test_only_legal_actions_are_chosen(runs: dict[str, RunFolder]) -> None:
    policy = headway.load(runs["FrozenLake"].path)
    for action in range(4):
        assert policy.act(3, mask=np.arange(4) == action) == action
    with pytest.raises(ValueError, match="an entry for each of 4 actions, received 3"):
        policy.act(3, mask=np.ones(3))


def test_an_observation_of_another_shape_is_one_line(runs: dict[str, RunFolder]) -> None:
    policy = headway.load(runs["Pendulum"].path)
    with pytest.raises(ValueError, match=r"shape \[3\], or \[batch, 3\], received \[4\]"):
        policy.act(np.zeros(4))


@pytest.mark.parametrize("kind", ACTIONS)
def test_nested_observations_are_taken_as_the_environment_gives_them(kind: str, tmp_path: Path) -> None:
    policy = headway.load(run_of(tmp_path, "ppo", **PPO, env=WANDERERS[kind]).path, "last")
    env = policy.make_env()
    obs, info = env.reset(seed=0)
    assert env.action_space.contains(policy.act(obs, mask=info.get("action_mask")))
    with pytest.raises(ValueError, match="an observation of Dict"):
        policy.act({"elsewhere": 1})


def test_the_network_is_a_torch_module_with_the_weights_of_the_version(runs: dict[str, RunFolder]) -> None:
    from headway.coordinator.checkpoint_best_weights import kept_weights

    folder = runs["Pendulum"]
    policy, kept = headway.load(folder, "last"), kept_weights(folder.checkpoints, "last")
    for name, tensor in policy.network.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), kept.weights[name])
    obs = torch.tensor([[0.6, 0.8, 0.1]])
    mean = policy.network.outputs(obs).detach().numpy()
    np.testing.assert_allclose(policy.act(obs.numpy()), np.clip(mean, -2, 2), rtol=1e-4)


# -- which checkpoint, which run --------------------------------------------------------------------


def test_the_best_weights_are_loaded_unless_others_are_named(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    folder = runs["Pendulum"]
    from headway.coordinator.checkpoint_best_weights import BestWeights

    best = BestWeights(folder.checkpoints)
    assert (headway.load(folder).facts.version, headway.load(folder).facts.score) == (best.version, best.score)
    assert headway.load(str(folder.path), 2).facts.version == 2
    unmeasured = run_of(tmp_path, "ppo", **{**PPO, "evaluate_every": 0, "env": "Pendulum-v1"})
    (unmeasured.checkpoints / "best.weights").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=r"no best weights in .*; checkpoint='last' is the newest"):
        headway.load(unmeasured)


def test_a_run_without_a_policy_says_so(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "functions", updates=2, collect_ms=0, train_ms=0, evaluate_ms=0)
    with pytest.raises(ValueError, match="a run of 'functions', which has no policy to load"):
        headway.load(folder)
    with pytest.raises(ValueError, match="no run folder at"):
        headway.load(tmp_path / "absent")
    with pytest.raises(TypeError, match=r"a run is its folder, .* received int"):
        headway.load(7)  # type: ignore[arg-type]


# -- files for other programs -----------------------------------------------------------------------


def loaded(file: Path) -> Any:
    """What another program would call: arrays in, arrays out."""
    if file.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(file)
        return lambda obs: session.run(None, {"observation": obs})
    module = torch.jit.load(file) if file.suffix == ".pt" else torch.export.load(file).module()
    return lambda obs: [tensor.numpy() for tensor in module(torch.from_numpy(obs))]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("ending", [".onnx", ".pt2", ".pt"])
@pytest.mark.parametrize("env", ["Pendulum-v1", "FrozenLake-v1", WANDERERS["several"], "LoadedLights-v0"])
def test_a_file_for_others_gives_the_same_actions(env: str, ending: str, tmp_path: Path) -> None:
    if ending == ".onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    folder = run_of(tmp_path, "ppo", **PPO, env=env, normalise=env == "Pendulum-v1", learner_gpus=0)
    policy = headway.load(folder, "last")
    file = tmp_path / f"policy{ending}"
    assert main(["export", str(folder.path), "--to", str(file)]) == 0
    space = policy.observation_space
    space.seed(0)
    samples = [space.sample() for _ in range(5)]
    is_nested = isinstance(samples[0], dict)
    rows = {key: np.stack([one[key] for one in samples]) for key in samples[0]} if is_nested else np.stack(samples)
    actions, scores = loaded(file)(policy.features(rows))
    np.testing.assert_allclose(actions, policy.act(rows), rtol=1e-4, atol=1e-5)
    assert len(scores) == 5


def test_what_cannot_be_written_is_one_line(runs: dict[str, RunFolder], tmp_path: Path, capsys: Output) -> None:
    there = tmp_path / "there.pt"
    there.touch()
    for name, to, line in (
        ("Acrobot", "a.pt", "muzero: it plays by search, which no network is by itself"),
        ("colorlines", "a.pt", "colorlines: its network finds patterns with compiled code"),
        ("Pendulum", str(there), f"{there} exists: choose another name"),
        ("Pendulum", str(tmp_path / "folder"), "only runs of agent, grpo, gsm8k, sft can be exported to a folder"),
    ):
        assert line in refused(capsys, "export", str(runs[name].path), "--to", to)
    with pytest.raises(ValueError, match="unknown ending of a network's file"):
        headway.load(runs["Pendulum"]).export(tmp_path / "a.txt")


# -- watching ---------------------------------------------------------------------------------------


def test_watching_prints_returns_and_lengths(runs: dict[str, RunFolder], capsys: Output) -> None:
    capsys.readouterr()
    assert main(["watch", str(runs["Pendulum"].path), "--episodes", "2", "--seed", "4", "--render", "none"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ppo on Pendulum-v1, version 2, score ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["seed 4", "seed 5", "mean"]
    assert lines[1].endswith("in 200 steps")


def test_an_environment_of_characters_is_printed(
    runs: dict[str, RunFolder], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    capsys.readouterr()
    assert main(["watch", str(runs["FrozenLake"].path), "--max_steps", "2"]) == 0
    assert capsys.readouterr().out.count("FHFH") >= 2


def test_a_board_game_is_watched_move_by_move(tmp_path: Path, capsys: Output) -> None:
    values = {**TINY, **TINY_MODEL["muzero"], "env": "tictactoe", "opponents": ["random"], "updates": 2}
    folder = run_of(tmp_path, "muzero", **values)
    capsys.readouterr()
    assert main(["watch", str(folder.path), "--seed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("random plays")
    assert any(line.startswith("the policy plays") for line in lines)
    assert lines[-1].split()[0] in ("won", "lost", "drawn") and lines[-1].endswith("as o, seed 1")
    assert "is shown in characters, received --video" in refused(capsys, "watch", str(folder.path), "--video", "a.mp4")
    who = refused(capsys, "watch", str(folder.path), "--opponent", "me")
    assert "unknown opponent 'me'; allowed: depth_2, perfect, random" in who


def test_what_cannot_be_watched_is_one_line(runs: dict[str, RunFolder], capsys: Output) -> None:
    run = str(runs["Pendulum"].path)
    for words, line in {
        ("--rendr", "human"): "unknown option 'rendr'; did you mean 'render'?",
        ("--render", "ascii"): "unknown render mode 'ascii'",
        ("--video",): "--video needs a file to write",
        ("--video", "film.gif"): "a video is a file that ends in .mp4, received 'film.gif'",
        ("--opponent", "random"): "--opponent is for board games",
        ("--episodes", "x"): "--episodes must be a whole number",
    }.items():
        assert line in refused(capsys, "watch", run, *words)


def test_a_film_is_left_in_the_file(runs: dict[str, RunFolder], tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    film = tmp_path / "film.mp4"
    assert main(["watch", str(runs["Pendulum"].path), "--video", str(film), "--max_steps", "20"]) == 0
    assert film.stat().st_size > 1000 and film.read_bytes()[4:8] == b"ftyp"
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
    assert f"the film: {film}" in capsys.readouterr().out


def test_a_film_needs_no_screen_and_says_nothing_of_one(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    words = ["watch", str(runs["Pendulum"].path), "--video", str(tmp_path / "film.mp4"), "--max_steps", "5"]
    about_screens = {"DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER"}
    bare = {name: value for name, value in os.environ.items() if name not in about_screens}
    done = subprocess.run(
        [sys.executable, "-m", "headway", *words], env=bare, capture_output=True, text=True, check=True
    )
    assert "the film:" in done.stdout
    assert "XDG_RUNTIME_DIR" not in done.stdout + done.stderr


# -- language models --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    pytest.importorskip("transformers")
    material = make_material(tmp_path_factory.mktemp("material"))
    values = tiny_values(material, updates=2, evaluate_every=1, eval_prompts=3, system_prompt="Be brief.")
    return run_of(tmp_path_factory.mktemp("llm"), "grpo", **values)


def test_a_language_model_replies_as_in_its_evaluation(llm: RunFolder) -> None:
    config = read_values(GRPOConfig, llm.read_config()[1])
    assert isinstance(config, GRPOConfig)
    with headway.load(llm, "last") as policy:
        prompt = Prompt("p", 0, "train", "", ({"role": "user", "content": "Count to 3."},))
        assert policy.encode("Count to 3.") == Encoder(config)(prompt)
        reply = policy.generate("Count to 3.")
        assert reply and policy.generate([{"role": "user", "content": "Count to 3."}]) == reply
        tokens = torch.tensor([policy.encode("Count to 3.")])
        with torch.no_grad():
            first = int(policy.model(tokens).logits[0, -1].argmax())
        assert policy.tokenizer.decode([first]) == reply[: len(policy.tokenizer.decode([first]))]
        assert len(policy.tokenizer.encode(policy.generate("Count to 3.", max_tokens=2))) <= 2
        drawn = policy.generate_several("Count to 3.", 3, temperature=1.0, seed=1)
        assert drawn == policy.generate_several("Count to 3.", 3, temperature=1.0, seed=1) and len(set(drawn)) > 1


def test_a_language_model_has_no_environment_to_watch(llm: RunFolder, capsys: Output) -> None:
    assert "has no environment to watch; headway samples" in refused(capsys, "watch", str(llm.path))
    assert "becomes a folder, received" in refused(capsys, "export", str(llm.path), "--to", "a.pt")
