"""Colour Lines: the recipe learns, its runs repeat and resume, and its policies can be watched."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from headway import cli
from headway.cli.options_words import read_options
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.rerun import replay
from headway.coordinator.run_result import RunResult
from headway.core.types import Snapshot, Ticket
from headway.ppo.colorlines.recipe import ColorLinesConfig, stations
from headway.runs.config import ConfigError, read_values, understand
from headway.runs.event_log import read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.runs.recipes_package import load_recipe


def tiny(**more: Any) -> ColorLinesConfig:
    base: dict[str, Any] = {"updates": 4, "num_envs": 4, "segment_steps": 8, "width": 4, "evaluate_every": 0}
    return ColorLinesConfig(**{**base, "num_epochs": 1, "batch_size": 16, **more})


def run(config: ColorLinesConfig, folder: Path | None = None, *, resume: bool = False) -> RunResult:
    place = None if folder is None else RunFolder(folder)
    return launch(stations(config), config.settings(), runtime=config.runtime, folder=place, resume=resume)


@pytest.mark.parametrize("lead", [0, 2])
def test_a_pinned_run_gives_the_same_bits_inline_and_on_threads(lead: int) -> None:
    runs = [run(tiny(max_lead=lead, collectors=2, runtime=runtime)) for runtime in ("inline", "threads")]
    assert len({fingerprint(result.weights) for result in runs}) == 1
    assert runs[0].updates == 4


@pytest.mark.parametrize("lead", [0, 1])
def test_a_run_resumed_from_its_middle_ends_with_the_same_bits(tmp_path: Path, lead: int) -> None:
    """Open games are carried over: a collector goes on in the position where it was."""
    config = tiny(updates=6, save_every=4, max_lead=lead)
    whole = run(config, tmp_path)
    middle, last = CheckpointStore(tmp_path / "checkpoints").all()
    shutil.rmtree(last)
    resumed = run(config, tmp_path, resume=True)
    assert (middle.name[-2:], resumed.updates) == ("v4", 6)
    assert fingerprint(resumed.weights) == fingerprint(whole.weights)


def test_a_short_training_beats_the_random_player_by_far() -> None:
    """Random moves make 0.6 points a game."""
    config = ColorLinesConfig(num_envs=32, width=12, batch_size=128, updates=14, evaluate_every=14, eval_episodes=8)
    score = run(config).scores[-1].value
    assert score is not None
    assert score > 6


def test_a_free_run_replays_to_the_same_bits(tmp_path: Path) -> None:
    config = tiny(max_lead=2, collectors=2, order="ready")
    result = run(config, tmp_path)
    again = replay(stations(config), read_events(tmp_path / "events.jsonl"))
    assert fingerprint(again.weights) == fingerprint(result.weights)


def test_segments_hold_boards_and_moves_but_no_masks() -> None:
    config = tiny()
    collector = stations(config).collector(0)
    snapshot = Snapshot(0, stations(config).learner().snapshot())
    rollout = collector.collect(Ticket(0, 1, 0), snapshot)
    assert rollout.payload.obs.shape == (9, 4, 84)
    assert rollout.payload.masks is None


# -- settings -----------------------------------------------------------------------------------------


def test_every_known_name_of_the_parallel_ppo_is_accepted() -> None:
    known = {
        "num_workers": 3,
        "batch_size": 128,
        "weight_sync_interval": 10,
        "num_iterations": 1000,
        "eval_interval": 100,
        "save_interval": 500,
        "num_epochs": 4,
        "lr": 3e-4,
        "warmup_seconds": 2,
    }
    config = read_values(ColorLinesConfig, known)
    assert isinstance(config, ColorLinesConfig)
    assert (config.collectors, config.publish_every, config.updates) == (3, 10, 1000)
    assert (config.evaluate_every, config.save_every, config.warmup_s) == (10, 50, 2)  # versions of 10 steps
    assert (config.learning_rate, config.num_epochs, config.minibatch_size) == (3e-4, 4, 128)


def test_stale_data_without_a_correction_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"correction='none' with max_lead=1.* trains on stale data"):
        read_values(ColorLinesConfig, {"correction": "none"})


@pytest.mark.parametrize("name", ["replay_capacity", "replay_min_size", "replay_alpha", "version_decay"])
def test_knobs_of_a_replay_that_is_not_there_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^\w+=1(\.0)? needs a replay: set replay_mode to learner or shared$"):
        read_values(ColorLinesConfig, {name: 1})


OF_A_REPLAY = {"buffer_capacity": 5000, "min_buffer_size": 2000, "per_alpha": 0.5, "per_beta_start": 0.3}


def replay_mode(*layers: dict[str, Any], recipe: str = "colorlines") -> str:
    config: Any = read_values(load_recipe(recipe).config, *layers)
    return str(config.replay_mode)


@pytest.mark.parametrize("name", OF_A_REPLAY)
def test_names_of_a_system_that_always_has_a_replay_imply_one(name: str) -> None:
    assert replay_mode({name: OF_A_REPLAY[name]}) == "shared"
    (said,) = understand(ColorLinesConfig, {name: OF_A_REPLAY[name]})[1]
    assert isinstance(said.meaning, dict)
    assert said.meaning["replay_mode"] == "shared"


def test_a_mode_of_the_replay_that_is_set_stays() -> None:
    mode, name = {"replay_mode": "learner"}, {"per_alpha": 0.5}
    assert replay_mode(mode | name) == replay_mode(mode, name) == replay_mode(name, mode) == "learner"
    assert replay_mode(name | {"wall_s": 1}, recipe="muzero") == "learner"  # its default: it always has a replay


def test_no_replay_and_a_name_of_one_exclude_each_other() -> None:
    said = r"^replay_alpha=0.5 needs a replay: set replay_mode to learner or shared \(replay_alpha is per_alpha=0.5\)$"
    with pytest.raises(ConfigError, match=said):
        read_values(ColorLinesConfig, {"replay_mode": "none", "per_alpha": 0.5})


def test_the_command_of_the_parallel_ppo_runs_as_it_stands(tmp_path: Path) -> None:
    words = "--num_workers 4 --num_iterations 2 --batch_size 128 --buffer_capacity 100000 --per_alpha 0.6 --lr 3e-4"
    offline = ["--use_wandb", "false", "--eval_interval", "0", "--width", "4", "--quiet", "--runs", str(tmp_path)]
    assert cli.main(["run", "colorlines", *words.split(), *offline]) == 0
    _, settings = RunFolder(next(tmp_path.iterdir())).read_config()
    assert (settings["replay_mode"], settings["replay_capacity"], settings["collectors"]) == ("shared", 100_000, 4)
    on_ray: Any = read_values(ColorLinesConfig, read_options(["--runtime", "ray", *words.split(), "--use_wandb"]))
    assert (on_ray.runtime, on_ray.replay_mode, on_ray.use_wandb, on_ray.learning_rate) == ("ray", "shared", True, 3e-4)


# -- watching -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert cli.main(["run", "colorlines", "--runs", str(runs), "--quiet", *TINY]) == 0
    return next(runs.iterdir())


TINY = ["--updates", "2", "--num_envs", "4", "--segment_steps", "8", "--width", "4", "--evaluate_every", "0"]


def test_watch_plays_in_the_terminal_and_writes_the_game_as_a_page(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["watch", str(trained), "--max_moves", "5"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("a b c d e f g h i") == 6
    page = (trained / "watch.html").read_text()
    frames = json.loads(re.search(r"const frames = (\[.*\]);", page).group(1))  # type: ignore[union-attr]
    assert len(frames) == 6
    assert f"version {CheckpointStore(trained / 'checkpoints').load().version}" in page
    assert f"{frames[-1]['score']} points; the game as a page" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["watch"], "watch needs the folder of a run: headway watch RUN"),
        (["watch", "/nowhere"], "no run folder at /nowhere"),
        (["play", "--sede", "1"], "seed"),
        (["play", "--seed", "one"], "--seed must be a whole number, received 'one'"),
        (["play", "--seed", "-1"], "--seed must be a whole number, received -1"),
    ],
)
def test_what_cannot_be_watched_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_run_of_another_recipe_or_without_a_checkpoint_cannot_be_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config("functions", {})
    assert cli.main(["watch", str(tmp_path)]) == 2
    assert "is a run of 'functions', which has no environment to watch" in capsys.readouterr().err
    folder.write_config("colorlines", {})
    assert cli.main(["watch", str(tmp_path)]) == 2
    assert "no checkpoint in" in capsys.readouterr().err


def test_a_person_can_play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("nonsense\nq\n"))
    assert cli.main(["play", "--seed", "3"]) == 0
    assert "'nonsense' is not a move like c3 f7" in capsys.readouterr().out
