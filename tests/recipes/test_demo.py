"""The demonstrations: what they train, print and leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import patient, slowness

from headway import cli
from headway.cli.demo import demo, floor_s, toy
from headway.runs.bandit import FunctionsConfig, stations
from headway.runs.files_run_summary import statistics_rows
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch


def test_the_demo_trains_cartpole_on_the_same_budget_without_and_with_a_lead(tmp_path: Path) -> None:
    text = demo(tmp_path, updates=10)
    serial, ahead = (RunFolder(path) for path in sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_ctime))
    configs = [folder.read_config() for folder in (serial, ahead)]
    assert [name for name, _ in configs] == ["cartpole", "cartpole"]
    differing = {name for name, value in configs[0][1].items() if configs[1][1][name] != value}
    assert differing == {"max_lead", "evaluate_in_background"}
    for shown in (
        "SYNCHRONOUS         ASYNCHRONOUS",
        "Staleness mean / max",
        "return (mean of the last 100 episodes) against time",
        "collector-0",
        "version 0\n",
        "version 10\n",
        "max_lead=0: a mean return of 475",
        "max_lead=1: a mean return of 475",
        "speed-up measured",
        "headway demo --toy",
        str(serial.path),
    ):
        assert shown in text


def test_the_toy_says_how_much_of_the_overlap_it_got(tmp_path: Path) -> None:
    text = toy(tmp_path, updates=8)
    assert "max_lead=0" in text and "max_lead=2" in text
    assert "speed-up measured" in text and "on data 1.6 versions old" in text  # ages 0, 1, then 2 six times


def test_the_floor_is_the_busiest_role_and_evaluations_that_pause_all() -> None:
    times = {"collect_ms": 4.0, "train_ms": 2.0, "evaluate_ms": 20.0}
    paused = FunctionsConfig(max_lead=0, updates=4, evaluate_every=1, **times)
    beside = paused.model_copy(update={"evaluate_in_background": True})
    serial = launch(stations(paused), paused.settings())
    other = launch(stations(beside), beside.settings())
    assert 4 * 0.024 <= floor_s(serial, serial) <= serial.wall_s
    assert len(other.scores) * 0.020 <= floor_s(serial, other) < floor_s(serial, serial)


def test_evaluations_that_were_skipped_are_no_part_of_the_floor_and_are_told() -> None:
    times = {"collect_ms": 1.0, "train_ms": 1.0, "evaluate_ms": 8.0 * slowness()}
    config = FunctionsConfig(max_lead=0, updates=20, evaluate_every=1, **times)
    serial = launch(stations(config), config.settings())
    beside = config.model_copy(update={"evaluate_in_background": True})
    ahead = launch(stations(beside), beside.settings())
    assert ahead.evaluations_skipped > 0
    assert floor_s(serial, ahead) < serial.time_spent.total("evaluator", "evaluate")
    assert statistics_rows(serial)["Evaluations"] == "20"
    assert statistics_rows(ahead)["Evaluations"] == f"{len(ahead.scores)}, {20 - len(ahead.scores)} skipped"


WITHOUT_GYMNASIUM = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "gymnasium":
            raise ModuleNotFoundError("made absent", name="gymnasium")

sys.meta_path.insert(0, Absent())
from headway.cli import main
sys.exit(main(["demo", "--runs", sys.argv[1]]))
"""


def test_without_gymnasium_one_line_says_what_to_do(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WITHOUT_GYMNASIUM, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=patient(60), check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "headway: the demo trains CartPole, which needs gymnasium: pip install 'headway[games]' "
        "(headway demo --toy needs nothing more)\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tyo"], "unknown option 'tyo'; did you mean 'toy'?"),
        (["--toy", "3"], "--toy takes no value, received 3"),
        (["--runs", "runs", "--updates", "3"], "unknown option 'updates'"),
    ],
)
def test_options_it_does_not_have_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_command_runs_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("demo", "toy"):
        monkeypatch.setattr(f"headway.cli.demo.{name}", lambda root, name=name: f"{name} in {root}")
    assert cli.main(["demo", "--runs", str(tmp_path)]) == 0
    assert cli.main(["demo", "--toy", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"demo in {tmp_path}\ntoy in {tmp_path}\n"
