"""The command line: what it runs, prints and leaves behind, its exit codes, and what signals do."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from waiting import patient, wait_until

from headway.cli import COMMANDS, main
from headway.cli.options_output import print_table, say
from headway.cli.options_words import read_options
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.runs.bandit import FunctionsConfig
from headway.runs.config import RunConfig, in_our_words
from headway.runs.console_run_status import status_of
from headway.runs.event_log import read_events
from headway.runs.files_run_summary import statistics_rows
from headway.runs.folder import RunFolder
from headway.runs.launch_of_functions import run
from headway.runs.launch_session import launch
from headway.runs.recipes_package import RECIPES, load_recipe
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.tools.names.flat import KNOWN_NAMES
from headway.tools.simulate.workloads import Constant, SimulatedCollector, SimulatedLearner, SteadyWorkload

pytestmark = pytest.mark.timeout(60)

WAIT_S = patient(30)
AT_ONCE = ["--collect_ms", "0", "--train_ms", "0", "--evaluate_ms", "0"]
TINY = [*AT_ONCE, "--updates", "6", "--evaluate_every", "3", "--runtime", "inline", "--quiet"]

Output = pytest.CaptureFixture[str]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def tiny_run(runs: Path, *more: str) -> Path:
    """A run that ends at once; returns its folder."""
    before = set(runs.iterdir()) if runs.is_dir() else set()
    assert main(["run", "functions", *TINY, "--runs", str(runs), *more]) == 0
    (folder,) = set(runs.iterdir()) - before
    return folder


def summary(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "summary.json").read_text())
    assert isinstance(content, dict)
    return content


def refused(capsys: Output, *words: str) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    assert main(list(words)) == 2
    line = capsys.readouterr().err
    assert line.startswith("headway: ")
    assert line.count("\n") == 1, f"more than one line: {line}"
    return line.removeprefix("headway: ").rstrip("\n")


# -- run --------------------------------------------------------------------------------------------


def test_a_run_leaves_a_folder_whose_files_can_be_read(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs, "--save_every", "2")
    out = capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "environment.json",
        "events.jsonl",
        "metrics.jsonl",
        "report.html",
        "run.lock",
        "run.log",
        "summary.json",
        "tensorboard",
        "trace.json",
    ]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["recipe"], config["updates"], config["runtime"]) == ("functions", 6, "inline")
    assert set(config) == {"recipe", *FunctionsConfig.model_fields}
    kinds = [event["e"] for event in read_events(folder / "events.jsonl")]
    assert (kinds[0], kinds[-1], kinds.count("learn"), kinds.count("publish")) == ("run", "end", 6, 7)
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["000001-v4", "000003-v6", "best.weights"]
    ended = summary(folder)
    assert (ended["complete"], ended["updates"], ended["version"]) == (True, 6, 6)
    assert [score["version"] for score in ended["scores"]] == [3, 6]
    assert ended["tickets"]["opened"] == ended["tickets"]["learned"] == 6
    assert f"functions: running in {folder}" in out
    assert f"weights {ended['fingerprint']}, version 6; in {folder}" in out


def test_a_run_ends_with_the_statistics_block(runs: Path, capsys: Output) -> None:
    tiny_run(runs, "--max_lead", "0")
    out = capsys.readouterr().out
    for line in (
        "Async Training Statistics:",
        "  Mode: SYNCHRONOUS",
        "  Collect iterations: 6",
        "  Train iterations: 6",
        "  Final lag: 0",
        "  Staleness mean / max: 0.00 / 0",
        "  Dropped: none",
        "  Stopped: reached 6 updates",
    ):
        assert f"{line}\n" in out
    for start in ("  Avg collect time: ", "  Avg train time: ", "  Avg eval time: ", "  Last score: "):
        assert start in out


def test_the_seed_decides_the_bits_on_every_runtime(runs: Path) -> None:
    words = ([], ["--runtime", "threads"], ["--runtime", "threads", "--seed", "1"])
    inline, threads, other_seed = (summary(tiny_run(runs, *more))["fingerprint"] for more in words)
    assert inline == threads != other_seed


def test_a_run_from_its_own_config_has_the_same_fingerprint(runs: Path) -> None:
    folder = tiny_run(runs, "--seed", "3", "--off_policy_degree", "2", "--learning-rate=2.5")
    assert main(["run", "--config", str(folder / "config.yaml"), "--runs", str(runs), "--quiet"]) == 0
    (again,) = set(runs.iterdir()) - {folder}
    assert summary(again)["fingerprint"] == summary(folder)["fingerprint"]
    assert (again / "config.yaml").read_text() == (folder / "config.yaml").read_text()


def test_options_override_the_config_file_also_under_known_names(runs: Path) -> None:
    folder = tiny_run(runs)
    words = ["--runs", str(runs), "--quiet", "--num_iterations", "4", "--seed", "9", "--off_policy_degree", "0"]
    assert main(["run", "--config", str(folder / "config.yaml"), *words]) == 0
    (again,) = set(runs.iterdir()) - {folder}
    config = yaml.safe_load((again / "config.yaml").read_text())
    assert (config["updates"], config["seed"], config["max_lead"], config["collect_ms"]) == (4, 9, 0, 0)


def test_threads_that_an_environment_has_left_behind_do_not_keep_the_command() -> None:
    script = (
        "import sys, threading, headway.__main__ as command\n"
        "command.GRACE_S = 0.1\n"
        "threading.Thread(target=threading.Event().wait, name='stray').start()\n"
        "sys.argv = ['headway', '--version']\n"
        "command.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=patient(30))
    assert done.stderr == "headway: ended without threads that a user's code has left behind: stray\n"
    assert done.returncode == 0, "that of the command"
    assert done.stdout.startswith("headway ")


def test_a_command_with_a_busy_daemon_thread_ends_with_its_own_code_after_what_is_registered() -> None:
    script = (
        "import atexit, sys, threading, time, headway.__main__ as command\n"
        "def main():\n"
        "    atexit.register(print, 'registered')\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "    return 2\n"
        "command.main = main\n"
        "command.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=patient(30))
    assert (done.returncode, done.stdout) == (2, "registered\n"), done.stderr


def test_debug_prints_every_event(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs, "--enable_async_debug_log", "true")
    err = capsys.readouterr().err
    for event in read_events(folder / "events.jsonl"):
        assert f"] {event['e']} " in err
    assert "] learn u=6 " in err
    tiny_run(runs)
    assert capsys.readouterr().err == ""


def test_the_status_display_changes_nothing_about_a_run(runs: Path) -> None:
    quiet, shown = tiny_run(runs), tiny_run(runs, "--quiet", "false", "--runtime", "threads")
    assert summary(quiet)["fingerprint"] == summary(shown)["fingerprint"]


# -- resume -----------------------------------------------------------------------------------------


def test_a_finished_run_goes_on_with_a_longer_plan(runs: Path, capsys: Output) -> None:
    whole = tiny_run(runs, "--updates", "10", "--max_lead", "0")
    part = tiny_run(runs, "--max_lead", "0")
    assert main(["resume", str(part), "--updates", "10", "--quiet"]) == 0
    assert f"functions: resumed in {part}" in capsys.readouterr().out
    assert summary(part)["updates"] == 10
    assert summary(part)["fingerprint"] == summary(whole)["fingerprint"]
    assert yaml.safe_load((part / "config.yaml").read_text())["updates"] == 10  # the next resume knows the plan


def test_a_finished_run_resumed_as_it_is_says_in_one_line_that_it_is_complete(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}
    updates = summary(folder)["updates"]
    for words in ([], ["--updates", str(updates - 1)]):
        capsys.readouterr()
        assert main(["resume", str(folder), *words, "--quiet"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(
            f"{folder} is complete: reached {updates} updates, version {updates}; with a longer plan it goes on: "
        )
        assert said.count("\n") == 1 and f"headway resume {folder} --updates N" in said
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_keeps_one_checkpoint_of_the_version_it_ends_with(runs: Path) -> None:
    folder = tiny_run(runs, "--updates", "4", "--save_every", "2")
    assert [path.name for path in CheckpointStore(folder / "checkpoints").all()] == ["000000-v2", "000002-v4"]
    assert CheckpointStore(folder / "checkpoints").load().scores[-1].version == 4


def test_resume_knows_the_known_names(runs: Path) -> None:
    folder = tiny_run(runs)
    assert main(["resume", str(folder), "--num_iterations", "8", "--quiet"]) == 0
    assert summary(folder)["updates"] == 8


def test_what_decided_the_tickets_cannot_be_changed_on_resume(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs)
    line = refused(capsys, "resume", str(folder), "--seed", "5", "--quiet")
    assert line == "the checkpoint was written with seed=0; it cannot be resumed with seed=5"
    assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == 0
    assert main(["resume", str(folder), "--updates", "8", "--quiet"]) == 0  # the refusal broke nothing


def test_resume_needs_a_run_with_a_checkpoint(runs: Path, tmp_path: Path, capsys: Output) -> None:
    assert refused(capsys, "resume") == "resume needs the folder of a run: headway resume RUN"
    assert refused(capsys, "resume", "--updates", "3").startswith("resume needs the folder of a run")
    assert refused(capsys, "resume", str(tmp_path / "absent")) == f"no run folder at {tmp_path / 'absent'}"
    folder = tiny_run(runs)
    (checkpoint,) = CheckpointStore(folder / "checkpoints").all()
    (checkpoint / "state.pkl").write_bytes(b"damaged")
    assert refused(capsys, "resume", str(folder)).startswith(f"checkpoint {checkpoint} is damaged: ")


# -- replay -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [[], ["--runtime", "threads", "--order", "ready", "--collectors", "2", "--max_lead", "3"]]
)
def test_a_replay_comes_to_the_same_bits(runs: Path, capsys: Output, more: list[str]) -> None:
    folder = tiny_run(runs, *more)
    assert main(["resume", str(folder), "--updates", "9", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["run", "--replay", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"replayed 9 updates to version 9: weights {summary(folder)['fingerprint']}",
        "the same bits as recorded",
    ]


def test_a_replay_with_other_bits_says_so_and_fails(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs)
    recorded = summary(folder)
    (folder / "summary.json").write_text(json.dumps(recorded | {"fingerprint": "0123456789abcdef"}))
    capsys.readouterr()
    assert main(["run", "--replay", str(folder)]) == 1
    assert capsys.readouterr().out.endswith("NOT the recorded 0123456789abcdef\n")


def test_a_run_that_did_not_finish_is_replayed_as_far_as_it_came(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs)
    (folder / "summary.json").unlink()
    capsys.readouterr()
    assert main(["run", "--replay", str(folder)]) == 0
    assert "the run did not finish, so there is nothing to compare with" in capsys.readouterr().out


def test_a_run_without_its_log_cannot_be_replayed_or_fitted(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs)
    (folder / "events.jsonl").unlink()
    line = f"cannot read {folder / 'events.jsonl'}: No such file or directory"
    assert refused(capsys, "run", "--replay", str(folder)) == line
    line = f"{folder} is not a run folder: it has no events.jsonl"
    assert refused(capsys, "simulate", "--run", str(folder)) == line


# -- simulate ---------------------------------------------------------------------------------------


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line[:1].isdigit()]


def test_simulate_compares_the_leads_and_recommends_one(capsys: Output) -> None:
    assert main(["simulate", "--collect", "1", "--learn", "1", "--leads", "0,1,2", "--updates", "200"]) == 0
    out = capsys.readouterr().out
    assert [row[:3] for row in rows(out)] == [["0", "0.5", "1.00x"], ["1", "0.995", "1.99x"], ["2", "0.995", "1.99x"]]
    assert "recommended: max_lead=1 (the smallest within 2 % of the best throughput; mean staleness " in out


def test_simulate_fits_into_eighty_columns_without_breaking_a_word(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["simulate", "--collect", "lognormal:1,0.5", "--leads", "0,1,8,auto", "--updates", "60"]
    for width, num_heads in ((80, 2), (120, 1)):
        monkeypatch.setattr("headway.cli.options_output.OUT", Console(highlight=False, soft_wrap=True, width=width))
        assert main(words) == 0
        *table, _ = capsys.readouterr().out.splitlines()
        assert len(table) == num_heads + 4, "a line a lead"
        assert max(map(len, table)) <= width
        heads = " ".join(table[:num_heads]).split()
        assert {"collectors", "learner", "updates/s", "staleness", "dropped"} <= set(heads)


def test_simulate_takes_every_option_it_lists(capsys: Output) -> None:
    words = "--collect lognormal:1,0.5 --learn exponential:0.8 --evaluate 2 --evaluate_every 10 --collectors 2"
    words += " --tickets_per_batch 2 --publish_every 2 --order window(4) --max_staleness 9 --on_stale drop"
    words += " --dispatch free --updates 40 --seed 3 --leads 1 --evaluate_in_background true"
    assert main(["simulate", *words.split()]) == 0
    assert len(rows(capsys.readouterr().out)) == 1


def test_simulate_fits_a_recorded_run_and_options_override_the_fit(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs)
    capsys.readouterr()
    assert main(["simulate", "--run", str(folder), "--leads", "0,1"]) == 0
    assert len(rows(capsys.readouterr().out)) == 2
    assert (
        main(["simulate", "--run", str(folder), "--collect", "1", "--learn", "1", "--leads", "0", "--evaluate", "0"])
        == 0
    )
    assert rows(capsys.readouterr().out)[0][1] == "0.5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--colect", "1"], "unknown option 'colect'; did you mean 'collect'? allowed: "),
        (["--collect", "gamma:1"], "unknown duration 'gamma:1'; allowed: "),
        (["--leads", "0,x"], "leads must be numbers >= 0 or auto, such as 0,1,2,auto, received '0,x'"),
        (["--leads", "-1"], "leads must be numbers >= 0 or auto, such as 0,1,2,auto, received -1"),
        (["--leads", "nan"], "leads must be numbers >= 0 or auto, such as 0,1,2,auto, received 'nan'"),
        (
            ["--collectors", "two"],
            "--collectors must be a whole number, or one a size such as 100,1000, received 'two'",
        ),
        (["--updates", "1.5"], "--updates must be a whole number, received 1.5"),
        (["--seed"], "--seed must be a whole number, received True"),
        (["--updates", "0"], "updates must be > 0, received 0"),
        (["--order", "5"], "unknown order '5'; allowed: oldest, window(N), ready"),
        (["--on_stale", "burn"], "unknown on_stale 'burn'; allowed: drop, keep, requeue, wait"),
        (["--run", "/nowhere"], "no run folder at /nowhere"),
        (["stray"], "expected --name value, received 'stray'"),
    ],
)
def test_simulate_refuses_in_one_line(words: list[str], message: str, capsys: Output) -> None:
    assert refused(capsys, "simulate", *words).startswith(message)


# -- explain ----------------------------------------------------------------------------------------


def test_the_help_of_a_recipe_lists_what_games_have_as_their_own_defaults(capsys: Output) -> None:
    pytest.importorskip("torch")
    assert main(["run", "priorzero", "--help", "all"]) == 0
    out = capsys.readouterr().out
    assert "its own defaults" in out and "text_words=192" in out


def test_explain_lists_every_known_name(capsys: Output) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    for known in KNOWN_NAMES.values():
        assert f"{known.name}={known.example} " in out


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("off_policy_degree=-1", "off_policy_degree=-1  ->  max_lead=auto   ("),
        ("off_policy_degree", "off_policy_degree=4  ->  max_lead=4   ("),
        ("--num_workers=8", "num_workers=8  ->  collectors=8   ("),
        ("data_queue_size=10", "data_queue_size=10  ->  max_lead=10, order=oldest   ("),
        ("enable_async_training=true", "enable_async_training=True  ->  (the default)   ("),
        ("max_lead", "max_lead: How far collection may run ahead of learning"),
        ("env=colossal_cave", "env=colossal_cave  ->  max_episode_steps=100  slots=24"),
        ("env=zork1.z5", "env=zork1.z5  ->  max_episode_steps=100"),
        ("env=mini_world", "env=mini_world has the defaults of its recipe"),
    ],
)
def test_explain_translates_one_name(word: str, line: str, capsys: Output) -> None:
    assert main(["explain", word]) == 0
    assert capsys.readouterr().out.startswith(line)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["num_iterations=2"],
            [
                "num_iterations=2  ->  updates=2   (updates in all; color_gomoku)",
                "num_iterations=2  ->  num_epochs=2   (passes over a batch; trl)",
            ],
        ),
        (["num_iterations=2", "--names", "trl"], ["num_iterations=2  ->  num_epochs=2   (passes over a batch; trl)"]),
        (
            ["--names=color_gomoku", "num_iterations"],
            ["num_iterations=1000  ->  updates=1000   (updates in all; color_"],
        ),
        (["max_steps=100", "--names", "trl"], ["max_steps=100  ->  updates=100   (TRL)"]),
        (
            ["num_iterations=2", "max_steps=100", "--names", "trl"],
            ["num_iterations=2  ->  num_epochs=2", "max_steps=100  ->  updates=50   (TRL)"],
        ),
        (
            ["eval_freq=9"],
            ["eval_freq=9  ->  evaluate_every=9   (versions", "eval_freq=9  ->  (evaluate_every)   (environment steps"],
        ),
    ],
)
def test_explain_shows_every_meaning_of_a_name(words: list[str], lines: list[str], capsys: Output) -> None:
    assert main(["explain", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(lines)
    assert all(line.startswith(begin) for line, begin in zip(shown, lines, strict=True)), shown


def test_explain_refuses_a_system_nobody_knows(capsys: Output) -> None:
    line = refused(capsys, "explain", "num_iterations", "--names", "tlr")
    assert line.startswith("unknown system of names 'tlr'; did you mean 'trl'? allowed: ")


def test_explain_refuses_what_nobody_knows_with_the_nearest_name(capsys: Output) -> None:
    line = refused(capsys, "explain", "num_worker")
    assert line == "unknown name 'num_worker'; did you mean 'num_workers'?; headway explain lists all"
    assert refused(capsys, "explain", "zzzz") == "unknown name 'zzzz'; headway explain lists all"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["reward_funcs=[a.f, b.g]"], "trl"),
        (["reward_funcs=[a, b]"], "trl"),
        (["use_kl_loss=true", "kl_loss_coef=0.1"], "roll"),
        (["eval_interval=100", "weight_sync_interval=10"], "color_gomoku"),
        (["max_steps=100", "num_iterations=4"], "trl"),
    ],
)
def test_explain_says_what_a_run_does(words: list[str], names: str, capsys: Output) -> None:
    recipe = load_recipe("colorlines" if names == "color_gomoku" else "grpo").config
    options = read_options([part for word in words for part in f"--{word}".split("=")])
    merged, said, problems = in_our_words(recipe, {**options, "names": names})
    code = main(["explain", *words, "--names", names])
    shown = capsys.readouterr()
    assert (code, bool(problems)) in ((0, False), (2, True))
    assert [line.removeprefix("headway: ") for line in shown.err.splitlines()] == problems
    for one in said:
        assert isinstance(one.meaning, dict)
        ours = ", ".join(f"{name}={value}" for name, value in one.meaning.items())
        assert f"{one.shown}  ->  {ours}" in shown.out
        assert all(merged[name] == value for name, value in one.meaning.items())


def test_explain_shows_every_meaning_also_where_one_library_refuses(capsys: Output) -> None:
    assert main(["explain", "use_kl_loss=true"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "use_kl_loss=True  ->  kl_weight=0.0"
    assert second.startswith("use_kl_loss=True  ->  refused: only False is possible here: ")
    assert second.endswith("   (RLlib)")


def test_explain_shows_the_rest_of_a_file_beside_what_is_refused(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text("actor_train: {model_args: {lora_rank: 8}}\nadvantage_clip: 20\nbogus: 1\npg_clip: 0.1\n")
    assert main(["explain", "--config", str(file)]) == 2
    shown = capsys.readouterr()
    assert "actor_train.model_args.lora_rank=8  ->  lora_rank=8" in shown.out
    assert "pg_clip=0.1  ->  clip_low=0.1, clip_high=0.1" in shown.out
    assert "advantage_clip=20: advantages are not clipped here" in shown.err
    assert "unknown setting 'bogus'" in shown.err


def test_explain_says_for_which_recipe_it_reads_a_file_or_asks(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "some.yaml"
    for text, recipe, why in (
        ("names: sb3\nn_envs: 4\n", "ppo", "its names are those of Stable-Baselines3"),
        ("names: trl\nnum_generations: 4\n", "grpo", "its names are those of TRL"),
        ("actor_rollout_ref: {rollout: {n: 4}}\n", "grpo", "its groups are those of verl or prime-rl"),
    ):
        file.write_text(text)
        assert main(["explain", "--config", str(file)]) == 0
        assert f"explained for the recipe {recipe}, as {why}; for another" in capsys.readouterr().out
        assert main(["explain", recipe, "--config", str(file)]) == 0
        assert "explained for" not in capsys.readouterr().out
    file.write_text("n_envs: 4\n")
    assert refused(capsys, "explain", "--config", str(file)).startswith(f"{file} names no recipe: headway explain REC")


def test_explain_knows_the_settings_of_every_recipe(capsys: Output) -> None:
    assert main(["explain", "quick_test"]) == 0
    assert capsys.readouterr().out.startswith("quick_test (of priorzero): A run of a few updates")


# -- resuming from an earlier checkpoint -------------------------------------------------------------


def garble(path: Path) -> None:
    path.write_bytes(b"garbage" * 100)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [garble, cut])
@pytest.mark.parametrize("file", ["state.pkl", "manifest.json"])
def test_a_damaged_checkpoint_names_the_command_that_ends_with_the_same_bits(
    damage: Any, file: str, runs: Path, capsys: Output
) -> None:
    whole = tiny_run(runs, "--updates", "12", "--max_lead", "2", "--collectors", "2")
    saved = ["--updates", "12", "--max_lead", "2", "--collectors", "2", "--save_every", "3", "--keep_checkpoints", "9"]
    folder = tiny_run(runs, *saved)
    *_, newest = (path for path in CheckpointStore(folder / "checkpoints").all())
    damage(newest / file)
    line = refused(capsys, "resume", str(folder), "--quiet")
    command = line.partition("to go on from there: headway ")[2].split()
    assert command[:3] == ["resume", str(folder), "--checkpoint"]
    for which in (command[3], "6"):  # the newest whole one, then an earlier one by its version
        assert main([*command[:3], which, "--quiet"]) == 0
        assert summary(folder)["fingerprint"] == summary(whole)["fingerprint"]
        assert main(["run", "--replay", str(folder)]) == 0
        assert "the same bits as recorded" in capsys.readouterr().out
    assert (folder / "checkpoints" / f"discarded-{newest.name}").is_dir()
    updates = [event["u"] for event in read_events(folder / "events.jsonl") if event["e"] == "learn"]
    assert updates == list(range(1, 13))  # none twice


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs, "--save_every", "3", "--keep_checkpoints", "9")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    line = refused(capsys, "resume", str(folder), "--checkpoint", "000000-v30")
    assert line.startswith("unknown checkpoint '000000-v30'; did you mean '000000-v3'? allowed: 000000-v3, 000002-v6")
    line = refused(capsys, "resume", str(folder), "--checkpoint")
    assert line == "--checkpoint needs a name or a version; there: 000000-v3, 000002-v6"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_refused_change_sets_nothing_aside(runs: Path, capsys: Output) -> None:
    folder = tiny_run(runs, "--save_every", "3", "--keep_checkpoints", "9")
    line = refused(capsys, "resume", str(folder), "--checkpoint", "3", "--seed", "5", "--quiet")
    assert line == "the checkpoint was written with seed=0; it cannot be resumed with seed=5"
    assert len(CheckpointStore(folder / "checkpoints").all()) == 2
    assert not list((folder / "checkpoints").glob("discarded-*"))


def test_a_checkpoint_is_for_a_resume(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint='last' is for a run that is resumed"):
        run(lambda w, t: 1, lambda w, r: w, weights=0, updates=1, folder=tmp_path / "a", checkpoint="last")


# -- what a run is called ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["warm-start", "007", "lr_1e-3.b"])
def test_a_name_is_in_the_folder_the_report_and_the_status(name: str, tmp_path: Path, capsys: Output) -> None:
    words = ["--updates", "2", "--evaluate_every", "0", "--tensorboard", "false", "--quiet", "--runs", str(tmp_path)]
    assert main(["run", "functions", *words, "--name", name]) == 0
    (folder,) = tmp_path.iterdir()
    assert re.fullmatch(rf"functions-\d{{8}}-\d{{6}}-{re.escape(name)}", folder.name)
    assert yaml.safe_load((folder / "config.yaml").read_text())["name"] == name
    assert f"Headway report: {name} ({folder.name})" in (folder / "report.html").read_text()
    capsys.readouterr()
    assert main(["status", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"functions {name} in {folder}: ended after ")


def test_two_runs_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path, "toy", "twin").path for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.name.endswith("-twin") for folder in folders)


@pytest.mark.parametrize(
    "name", ["a/b", "../up", ".hidden", "-dash", "two words", "", "x" * 65, "end.", "new\nline", "été"]
)
def test_a_name_that_no_folder_can_have_is_refused(name: str, tmp_path: Path, capsys: Output) -> None:
    line = refused(capsys, "run", "functions", "--runs", str(tmp_path / "runs"), f"--name={name}")
    assert line.startswith(f"name={name!r}: a name has up to 64 letters, digits, underscores, dashes and dots")
    assert not (tmp_path / "runs").exists()


def test_a_run_needs_a_name_after_the_option(capsys: Output) -> None:
    assert refused(capsys, "run", "functions", "--name") == "name needs a value, received True"


def test_every_wrong_setting_has_a_line_in_one_message(tmp_path: Path, capsys: Output) -> None:
    words = ["--name", "a/b", "--max_laed", "2", "--collectors", "0", "--updates", "--runs", str(tmp_path / "runs")]
    assert main(["run", "functions", *words]) == 2
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "headway: 4 settings cannot be:"
    assert [line.split(";")[0].split(":")[0] for line in lines] == [
        "  unknown setting 'max_laed'",
        "  updates needs a value, received True",
        "  name='a/b'",
        "  collectors=0",
    ]
    assert not (tmp_path / "runs").exists()


# -- help and refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["-V", "--version"])
def test_the_version_is_printed(word: str, capsys: Output) -> None:
    import headway

    assert main([word]) == 0
    assert capsys.readouterr().out == f"headway {headway.__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "headway run functions"),
        (["-h"], "headway run functions"),
        (["--help"], "headway resume"),
        (["run", "--help"], "headway run RECIPE --help lists its settings"),
        (["run", "-h"], "headway run [RECIPE]"),
        (["resume", "--help"], "headway resume RUN"),
        (["simulate", "--help"], "--leads"),
        (["explain", "-h"], "headway explain [NAME | NAME=VALUE ...]"),
    ],
)
def test_help_is_printed_and_nothing_is_run(
    words: list[str], says: str, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    captured = capsys.readouterr()
    assert says in captured.out
    assert captured.err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_help_of_a_recipe_lists_every_setting(recipe: str, capsys: Output) -> None:
    assert main(["run", recipe, "--updates", "3", "--help", "all"]) == 0
    out = capsys.readouterr().out
    assert "PydanticUndefined" not in out
    for name in load_recipe(recipe).config.model_fields:
        assert f"--{name} " in out


def test_no_name_is_printed_as_a_picture(capsys: Output) -> None:
    say("cut: 0 of 5 points (textworld:cooking: version 8)")
    print_table(["game", "score"], [["textworld:cooking:", "0"]])
    said = capsys.readouterr().out
    assert "textworld:cooking: version 8" in said
    assert "textworld:cooking:  0" in said


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_short_help_of_a_recipe_fits_on_a_screen_and_lists_its_own_settings(
    recipe: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.cli.options_output.OUT", Console(highlight=False, soft_wrap=True, width=100))
    assert main(["run", recipe, "--help"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 50
    assert f"headway run {recipe} --help all" in out
    for name in load_recipe(recipe).config.model_fields.keys() - RunConfig.model_fields.keys():
        assert f"--{name} " in out or f"{name}=" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_and_a_line_that_says_what_it_does(command: str, capsys: Output) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"headway {command}")
    assert main(["--help"]) == 0
    assert f"{command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rum"], "unknown command 'rum'; did you mean 'run'? allowed: "),
        (["ppo", "--updates", "3"], "ppo is a recipe, not a command: headway run ppo"),
        (["run"], "run needs a recipe: agent, functions"),
        (["run", "--updates", "3"], "run needs a recipe: agent, functions"),
        (["run", "function"], "unknown recipe 'function'; did you mean 'functions'? allowed: "),
        (["run", "sac"], "recipe 'sac' is not here: ppo, muzero and unizero learn from environments"),
        (["run", "dpo"], "recipe 'dpo' is not here: grpo learns from rewards, sft from examples"),
        (["run", "functions", "--max_led", "1"], "unknown setting 'max_led'; did you mean 'max_lead'?"),
        (["run", "functions", "max_lead", "1"], "expected --name value, received 'max_lead'"),
        (["run", "functions", "--updates", "[1"], "updates='[1': Input should be a valid integer"),
        (["run", "functions", "--updates", "{a: 1}"], "updates='{a: 1}': Input should be a valid integer"),
        (["run", "functions", "--updates"], "updates needs a value, received True"),
        (["run", "functions", "--max_lead", "4", "--max_staleness", "1"], "max_staleness=1 with on_stale=wait cannot"),
        (["run", "--config", "/nowhere.yaml"], "cannot read /nowhere.yaml: No such file or directory"),
        (["run", "--replay", "/nowhere"], "no run folder at /nowhere"),
    ],
)
def test_a_command_that_is_not_understood_is_refused_in_one_line_and_leaves_nothing(
    words: list[str], message: str, capsys: Output, runs: Path
) -> None:
    more = ["--runs", str(runs)] if words[:2] == ["run", "functions"] else []
    assert refused(capsys, *words, *more).startswith(message)
    assert not runs.exists()


@pytest.mark.parametrize("command", ["resume", "evaluate", "export", "watch"])
def test_the_help_of_what_loads_a_checkpoint_says_that_the_run_must_be_trusted(command: str, capsys: Output) -> None:
    assert main([command, "--help"]) == 0
    assert f"Checkpoints are pickles: {command} only runs you trust." in " ".join(capsys.readouterr().out.split())


def test_a_runs_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "file").write_text("")
    line = refused(capsys, "run", "functions", *TINY, "--runs", str(tmp_path / "file"))
    assert line == f"cannot make a folder in {tmp_path / 'file'}: Not a directory"


def test_a_run_that_fails_says_why_in_one_line_and_exits_with_one(runs: Path, capsys: Output) -> None:
    words = [
        *TINY,
        "--runs",
        str(runs),
        "--collect_ms",
        "50",
        "--collect_deadline_s",
        "0.001",
        "--attempts_on_loss",
        "1",
    ]
    assert main(["run", "functions", *words]) == 1
    err = capsys.readouterr().err
    assert err == "headway: ticket 0 at version 0 failed on collector-0: took longer than 0.001 s\n"


# -- launch -----------------------------------------------------------------------------------------


def add(weights: int, ticket: Any) -> int:
    return 1


def total(weights: int, rollouts: list[int]) -> int:
    return weights + sum(rollouts)


def test_three_functions_are_enough(tmp_path: Path) -> None:
    done = run(add, total, float, weights=0, updates=5, evaluate_every=5, runtime="inline", folder=tmp_path)
    assert (done.weights, done.version, [score.value for score in done.scores]) == (5, 5, [5.0])
    more = run(add, total, float, weights=0, updates=8, runtime="inline", folder=tmp_path, resume=True)
    assert (more.weights, more.updates) == (8, 8)


def test_a_target_score_ends_the_run() -> None:
    done = run(add, total, float, weights=0, target_score=3, max_lead=0, runtime="inline")
    assert (done.weights, done.stop_reason) == (3, "reached a score of 3 (target 3)")


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    run(add, total, weights=0, updates=2, runtime="inline", folder=tmp_path)
    before = (tmp_path / "events.jsonl").read_bytes()
    with pytest.raises(ValueError, match="holds a run already: resume it, or choose another folder"):
        run(add, total, weights=0, updates=2, runtime="inline", folder=tmp_path)
    assert (tmp_path / "events.jsonl").read_bytes() == before


def test_resuming_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="resume needs the folder of the run"):
        run(add, total, weights=0, updates=2, resume=True)


def test_runtimes_are_built_by_name() -> None:
    assert [build_runtime(name).name for name in ("inline", "threads", "processes")] == [
        "inline",
        "threads",
        "processes",
    ]
    with pytest.raises(ValueError, match="unknown runtime 'thread'; did you mean 'threads'"):
        build_runtime("thread")


def test_a_resumed_run_counts_the_updates_of_its_session_per_second(tmp_path: Path) -> None:
    stations = Stations(partial(_collector), SimulatedLearner)
    folder = RunFolder(tmp_path)
    rates = []
    for updates, resume in ((16, False), (24, True)):
        runtime = Virtual(SteadyWorkload(Constant(0.5), Constant(0.5)))
        settings = Settings(plan=Plan(updates=updates), max_lead=0)
        result = launch(stations, settings, runtime=runtime, folder=folder, resume=resume)
        rates.append(statistics_rows(result)["Updates per second"])
    assert rates == ["1.00", "1.00"]


def _collector(number: int) -> SimulatedCollector:
    return SimulatedCollector(Constant(0.5))


@pytest.mark.parametrize(
    ("plan", "unit", "total_"),
    [
        (Plan(updates=9), "update", 9),
        (Plan(steps=7), "step", 7),
        (Plan(wall_s=4.0), "second", 4),
        (Plan(target_score=1.0, evaluate_every=1), "update", None),
    ],
)
def test_the_status_counts_towards_the_end_of_the_plan(plan: Plan, unit: str, total_: float | None) -> None:
    from headway.coordinator.coordinator import Coordinator

    runtime = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0)))
    coordinator = Coordinator(Stations(_collector, SimulatedLearner), Settings(plan=plan), runtime)
    status = status_of(coordinator)
    assert (status.unit, status.total, status.version, status.score) == (unit, total_, 0, None)


# -- signals ----------------------------------------------------------------------------------------

LONG = [*AT_ONCE, "--updates", "1000000", "--evaluate_every", "0"]
ENDLESS = [*LONG, "--log_level", "debug", "--quiet"]


@contextmanager
def started(runs: Path, *words: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """`headway run functions` in a process of its own, ended in any case."""
    command = [*before, sys.executable, "-m", "headway", "run", "functions", "--runs", str(runs), *ENDLESS, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Standard error up to the line that contains `text`; the test's timeout bounds it."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"no {text!r} in:\n{''.join(lines)}")


@pytest.fixture
def hears_hangups() -> Iterator[None]:
    """Processes that are started from here hear SIGHUP, even if these tests were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_run_after_the_update_saved_and_resumable(
    runs: Path, number: signal.Signals, capsys: Output
) -> None:
    with started(runs, "--collect_ms", "1") as process:
        read_until(process, "] learn u=3 ")
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    (folder,) = runs.iterdir()
    assert f"{number.name}: saving and ending after this update (again: at once)" in err
    assert f"  Stopped: interrupted by {number.name}\n" in out
    assert f"to go on: headway resume {folder}\n" in out
    ended = summary(folder)
    assert not ended["complete"]
    assert ended["updates"] >= 3
    assert CheckpointStore(folder / "checkpoints").all()
    assert main(["resume", str(folder), "--updates", str(ended["updates"] + 3), "--log_level", "info", "--quiet"]) == 0
    assert summary(folder)["complete"]
    capsys.readouterr()
    assert main(["run", "--replay", str(folder)]) == 0
    assert "the same bits as recorded" in capsys.readouterr().out


def test_a_run_under_nohup_goes_on_when_its_terminal_is_closed(runs: Path) -> None:
    with started(runs, "--collect_ms", "1", before=["nohup"]) as process:
        read_until(process, "] learn u=3 ")
        process.send_signal(signal.SIGHUP)
        read_until(process, "] learn u=")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    assert "SIGHUP" not in err


@pytest.mark.usefixtures("hears_hangups")
def test_a_closed_terminal_ends_a_run_saved_although_nothing_can_be_printed(runs: Path) -> None:
    ours, theirs = pty.openpty()
    terminal = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(1, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-m", "headway", "run", "functions", "--runs", str(runs), *LONG]
    with subprocess.Popen(
        [sys.executable, "-c", terminal, *command], stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        try:
            os.close(theirs)
            wait_until(lambda: b"learner" in os.read(ours, 10_000), what="a run that shows itself")
            os.close(ours)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
    (folder,) = runs.iterdir()
    assert summary(folder)["stop_reason"] == "interrupted by SIGHUP"
    assert CheckpointStore(folder / "checkpoints").all()


def test_a_run_whose_output_is_closed_trains_to_its_end(runs: Path) -> None:
    command = [sys.executable, "-m", "headway", "run", "functions", "--runs", str(runs), *AT_ONCE, "--updates", "5"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *command], stderr=subprocess.PIPE, check=False, timeout=WAIT_S
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    (folder,) = runs.iterdir()
    assert summary(folder)["complete"]
    assert list(read_events(folder / "events.jsonl")), "and nothing was printed into it"


def test_a_reader_who_goes_away_is_said_and_ends_nothing(runs: Path) -> None:
    with started(runs, "--updates", "5", "--report", "false") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(WAIT_S) == 0
    assert said.count("headway: standard output is closed: nothing more is printed there\n") == 1
    (folder,) = runs.iterdir()
    assert summary(folder)["complete"]


def test_sigusr1_prints_who_waits_for_what_and_the_run_goes_on(runs: Path) -> None:
    with started(runs, "--collect_ms", "5") as process:
        read_until(process, "] learn u=3 ")
        process.send_signal(signal.SIGUSR1)
        head = read_until(process, " tickets live (")
        assert "version " in head.splitlines()[-1]
        told = read_until(process, "learner ")
        assert "collector-0 " in told
        assert " (since " in told
        read_until(process, "] learn u=")  # on it goes
        assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=["SIGUSR1", "SIGTERM"])
def test_a_signal_in_the_middle_of_a_line_is_answered_after_it(
    runs: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with started(runs, "--collect_ms", "0", "--train_ms", "0") as process:
        assert process.stderr is not None
        read_until(process, "] learn u=3 ")
        seen: list[int] = []

        def is_stuck() -> bool:
            """Nobody reads, so the run waits in the middle of a line until somebody does."""
            seen.append(int.from_bytes(fcntl.ioctl(process.stderr, termios.FIONREAD, bytes(4)), "little"))
            return seen[-1] > 60_000 and len(seen) > 50 and len(set(seen[-50:])) == 1

        wait_until(is_stuck)
        process.send_signal(number)
        if number == signal.SIGUSR1:
            read_until(process, " tickets live (")
            read_until(process, "] learn u=")  # on it goes
        else:
            _, err = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, err
            assert "SIGTERM: saving and ending after this update" in err


def test_a_second_signal_ends_the_run_at_once(runs: Path) -> None:
    with started(runs, "--collect_ms", "1", "--train_ms", "60000") as process:
        read_until(process, "] land k=1 ")  # by now the learner is in its long update
        process.send_signal(signal.SIGINT)
        read_until(process, "SIGINT: saving and ending after this update")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "SIGINT again: ending now" in err
    assert "headway: ended by hand; nothing was saved since the last checkpoint" in err
    assert "Statistics" not in out


def test_a_station_that_raises_leaves_its_traceback_in_the_run(tmp_path: Path, capsys: Output) -> None:
    words = ["run", "functions", "--runs", str(tmp_path), "--quiet", "--updates", "3"]
    words += ["--collect_ms", "1e300"]  # longer than any sleep can be
    assert main(words) == 1
    error = next(tmp_path.glob("*/error.txt")).read_text()
    assert "OverflowError" in error
    assert "time.sleep" in error
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("headway: ticket 0 at version 0 failed on collector-0: OverflowError")
    assert any("the traceback is in" in line for line in said)
    events = (next(tmp_path.glob("*/events.jsonl"))).read_text()
    assert '"e":"fail"' in events
