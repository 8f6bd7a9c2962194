"""Every recipe runs with its defaults on a GPU, and a pinned run there has one hash, resumed and done again too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from grpo_runs import make_material

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PICTURES = f"{Path(__file__).parent.parent / 'picture_games.py'}:Lights"
SHORT = {"updates": 2, "evaluate_every": 2}
LLM = {"max_tokens": 8, "tickets_per_batch": 2, "group_size": 4, "eval_prompts": 4}
SEARCH = {"num_simulations": 4, "batch_size": 8, "replay_min_size": 256, "eval_episodes": 2}
DEFAULTS: dict[str, dict[str, Any]] = {
    "functions": {"updates": 4},
    "cartpole": {**SHORT, "eval_episodes": 2},
    "ppo": {**SHORT, "env": "Pendulum-v1", "eval_episodes": 2, "learner_gpus": 1},
    "ppo pictures": {**SHORT, "env": PICTURES, "eval_episodes": 2},
    "colorlines": {**SHORT, "num_envs": 4, "eval_episodes": 2},
    "muzero": {**SHORT, **SEARCH, "learner_gpus": 1},
    "unizero": {**SHORT, **SEARCH, "learner_gpus": 1},
    "priorzero": {**SHORT, "quick_test": True},
    "agent": {**SHORT, "tickets_per_batch": 2, "eval_games": 2},
    "sft": {**SHORT, "tickets_per_batch": 4, "env": "lights", "eval_games": 2},
    "grpo": {**SHORT, **LLM},
    "gsm8k": {**SHORT, **LLM, "max_tokens": 16},
}
"""Each recipe as it is, but for how much it does."""

PINNED: dict[str, dict[str, Any]] = {
    "grpo": {**LLM, "updates": 6, "learning_rate": 0.01, "max_tokens": 24, "max_prompt_tokens": 64},
    "agent": {"updates": 5, "env": "climb", "tickets_per_batch": 4, "group_size": 4, "learning_rate": 0.01},
    "sft": {"updates": 6, "env": "lights", "tickets_per_batch": 8},
    "muzero": {**SEARCH, "updates": 30, "learner_gpus": 1, "search_gpus": 0.1},
    "unizero": {**SEARCH, "updates": 20, "learner_gpus": 1, "search_gpus": 0.1},
    "ppo": {"env": PICTURES, "updates": 8, "learner_gpus": 1},
    "priorzero": {"updates": 60, "prior_every": 2, "batch_size": 16, "learner_gpus": 1},
}
LEADS = (0, 1, 4)


def headway(*words: str, folder: Path) -> str:
    command = [sys.executable, "-m", "headway", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def material(folder: Path) -> dict[str, dict[str, Any]]:
    """Settings of the recipes that read something."""
    made = make_material(folder)
    task = {"task": f"jsonl:{made / 'prompts.jsonl'}"}
    task["task_options"] = json.dumps({"reward": f"{made / 'rewards.py'}:share_of_digits"})
    lines = [json.dumps({"question": f"{n} + 1?", "answer": f"one more\n#### {n + 1}"}) for n in range(40)]
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return {"grpo": task, "gsm8k": {"data": str(folder)}, "grpo tiny": {**task, "model": str(made / "model")}}


def words_of(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def run(recipe: str, settings: dict[str, Any], folder: Path) -> Path:
    quiet = ["--quiet", "--report", "false", "--tensorboard", "false"]
    before = set(folder.glob("runs/*"))
    headway("run", recipe, *words_of(settings), *quiet, folder=folder)
    (made,) = set(folder.glob("runs/*")) - before
    return made


def hash_of(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["fingerprint"])


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_recipe_runs_with_its_defaults(name: str, tmp_path: Path) -> None:
    recipe = name.split()[0]
    made = run(recipe, DEFAULTS[name] | material(tmp_path).get(recipe, {}), tmp_path)
    summary = json.loads((made / "summary.json").read_text())
    assert summary["complete"] and summary["version"] >= 2


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("recipe", PINNED)
def test_a_pinned_run_has_one_hash(recipe: str, lead: int, tmp_path: Path) -> None:
    settings = PINNED[recipe] | {"max_lead": lead, "evaluate_every": 0}
    if recipe == "grpo":
        settings |= material(tmp_path)["grpo tiny"]
    first, second = (run(recipe, settings, tmp_path) for _ in range(2))
    assert hash_of(first) == hash_of(second)
    if lead == 1:
        said = headway("run", "--replay", str(first), folder=tmp_path)
        assert "the same bits as recorded" in said, "and done again from its log"


@pytest.mark.parametrize("recipe", ["grpo", "agent", "muzero"])
def test_a_run_that_was_killed_and_resumed_has_that_hash_too(recipe: str, tmp_path: Path) -> None:
    settings = PINNED[recipe] | {"max_lead": 1, "evaluate_every": 0, "save_every": 2}
    settings["updates"] *= 6
    if recipe == "grpo":
        settings |= material(tmp_path)["grpo tiny"]
    whole = run(recipe, settings, tmp_path)
    command = [sys.executable, "-m", "headway", "run", recipe, *words_of(settings), "--runs", "killed", "--quiet"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list(tmp_path.glob("killed/*/checkpoints/*"))) < 2:
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    (killed,) = tmp_path.glob("killed/*")
    headway("resume", str(killed), "--quiet", folder=tmp_path)
    assert hash_of(killed) == hash_of(whole)


def test_a_run_that_fails_ends_with_its_line_and_no_signal(tmp_path: Path) -> None:
    """Though its learner may be in the middle of a compiler then."""
    settings = DEFAULTS["grpo"] | material(tmp_path)["grpo tiny"] | {"max_tokens": 500}
    command = [sys.executable, "-m", "headway", "run", "grpo", *words_of(settings), "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "do not fit the model's 128" in done.stderr, done.stderr
