"""Runs on machines that have no more: one line with the way back, exit code 1, and nothing lost that was saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from system_limits import file_size_limit, no_descriptor_left

from headway import RunFailed
from headway.cli import main
from headway.coordinator.checkpoint import CheckpointStore
from headway.runs.files_system_failures import SystemFailed, way_back
from headway.runs.launch_of_functions import run

pytestmark = pytest.mark.timeout(120)

Output = pytest.CaptureFixture[str]
AT_ONCE = ["--collect_ms", "0", "--train_ms", "0", "--evaluate_ms", "0", "--tensorboard", "false"]
TINY = [*AT_ONCE, "--updates", "4", "--runtime", "inline", "--quiet"]
LARGE = ["--contexts", "4000"]  # a checkpoint of some hundred thousand bytes


def only_run(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def the_line(capsys: Output) -> str:
    """The one line on standard error."""
    line = capsys.readouterr().err
    assert line.startswith("headway: ")
    assert line.count("\n") == 1, f"more than one line: {line}"
    return line.removeprefix("headway: ").rstrip("\n")


# -- checkpoints ------------------------------------------------------------------------------------


def test_a_checkpoint_that_does_not_fit_ends_the_run_with_the_way_back(tmp_path: Path, capsys: Output) -> None:
    assert main(["run", "functions", *TINY, *LARGE, "--save_every", "2", "--runs", str(tmp_path)]) == 0
    folder = only_run(tmp_path)
    store = CheckpointStore(folder / "checkpoints")
    before = sorted(os.listdir(store.folder))
    capsys.readouterr()
    with file_size_limit(100_000):
        assert main(["resume", str(folder), "--updates", "8"]) == 1
    newest, refused = store.all()[-1].name, f"{int(store.all()[-1].name[:6]) + 1:06d}-v6"
    assert the_line(capsys) == (
        f"{store.folder / refused}: File too large (`ulimit -f` allows 100000 bytes in a file); "
        f"to go on from checkpoint {newest}: headway resume {folder}"
    )
    assert sorted(os.listdir(store.folder)) == before
    assert [store.load(path).version for path in store.all()] == [int(path.name[8:]) for path in store.all()]
    assert main(["resume", str(folder), "--updates", "8"]) == 0
    assert json.loads((folder / "summary.json").read_text())["updates"] == 8


def test_a_run_that_never_saved_says_so(tmp_path: Path, capsys: Output) -> None:
    with file_size_limit(100_000):
        assert main(["run", "functions", *TINY, *LARGE, "--evaluate_every", "0", "--runs", str(tmp_path)]) == 1
    line = the_line(capsys)
    assert line.endswith("; no checkpoint was saved")
    assert str(only_run(tmp_path) / "checkpoints" / "000000-v4") in line
    assert not CheckpointStore(only_run(tmp_path) / "checkpoints").all()
    assert not os.listdir(only_run(tmp_path) / "checkpoints")


def test_best_weights_that_do_not_fit_leave_the_best_before(tmp_path: Path, capsys: Output) -> None:
    with file_size_limit(100_000):
        assert main(["run", "functions", *TINY, *LARGE, "--evaluate_every", "1", "--runs", str(tmp_path)]) == 1
    assert "best.weights: File too large" in the_line(capsys)
    assert not os.listdir(only_run(tmp_path) / "checkpoints")


class Heavy:
    """Weights for whose pickle there is no memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (bytearray(1 << 62),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Heavy:
        return self


def collect(weights: Any, ticket: Any) -> int:
    return 1


def test_no_memory_for_a_checkpoint_ends_a_run_of_functions_with_its_own_way_back(tmp_path: Path) -> None:
    def train(weights: Any, rollouts: list[int]) -> Any:
        return Heavy() if weights == 2 else weights + 1

    with pytest.raises(SystemFailed) as caught:
        run(collect, train, weights=0, updates=5, save_every=1, folder=tmp_path / "run", runtime="inline")
    assert isinstance(caught.value, RunFailed)
    assert str(caught.value) == (
        f"out of memory; to go on from checkpoint 000001-v2: run(..., folder={str(tmp_path / 'run')!r}, resume=True)"
    )
    result = run(
        collect, lambda weights, rollouts: weights + 1, weights=0, updates=5, folder=tmp_path / "run", resume=True
    )
    assert result.weights == 5


def test_the_way_back_is_said_even_if_nothing_can_be_looked_up(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with no_descriptor_left():
        said = way_back(tmp_path)
    assert said == f"; to go on, if a checkpoint was saved: run(..., folder={str(tmp_path)!r}, resume=True)"


def test_the_event_log_says_why_a_run_ended(tmp_path: Path) -> None:
    with file_size_limit(100_000):
        assert main(["run", "functions", *TINY, *LARGE, "--evaluate_every", "0", "--runs", str(tmp_path)]) == 1
    events = [json.loads(line) for line in (only_run(tmp_path) / "events.jsonl").read_text().splitlines()]
    assert "File too large" in next(event["why"] for event in events if event["e"] == "fail")


# -- the beginning ----------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_is_one_line(capsys: Output) -> None:
    assert main(["run", "functions", *TINY, "--runs", "/sys/kernel/runs"]) == 1
    assert the_line(capsys).startswith("/sys/kernel/runs")


def test_a_config_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, capsys: Output) -> None:
    with file_size_limit(16):
        assert main(["run", "functions", *TINY, "--runs", str(tmp_path)]) == 1
    assert "config.yaml: File too large" in the_line(capsys)
    assert not os.listdir(tmp_path)


# -- the end ----------------------------------------------------------------------------------------

SPOILED = """
from pathlib import Path

from headway.coordinator.functions import stations_from_functions
from headway.runs.config import RunConfig


class CONFIG(RunConfig):
    pass


def train(weights, rollouts):
    for run in Path({runs!r}).iterdir():
        (run / "summary.json").mkdir(exist_ok=True)  # so that no file can take its place
    return weights + 1


def stations(config):
    return stations_from_functions(lambda weights, ticket: 1, train, weights=0)
"""


def test_a_result_without_room_for_its_summary_is_printed_all_the_same(tmp_path: Path, capsys: Output) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text(SPOILED.format(runs=str(tmp_path / "runs")))
    words = ["--updates", "3", "--runtime", "inline", "--quiet", "--tensorboard", "false", "--report", "false"]
    with pytest.raises(SystemExit, match="1"):
        main(["run", str(recipe), *words, "--save_every", "1", "--runs", str(tmp_path / "runs")])
    folder, output = only_run(tmp_path / "runs"), capsys.readouterr()
    assert "Stopped: reached 3 updates" in output.out
    assert output.err.splitlines()[-1] == (
        f"headway: no summary: {folder / 'summary.json'}: Is a directory; "
        f"to go on from checkpoint {CheckpointStore(folder / 'checkpoints').all()[-1].name}: headway resume {folder}"
    )
    assert "Traceback" not in output.err
    (folder / "summary.json").rmdir()
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert json.loads((folder / "summary.json").read_text())["updates"] == 3


def test_a_trace_and_a_report_that_do_not_fit_are_said_in_a_line_each(tmp_path: Path, capsys: Output) -> None:
    words = [*AT_ONCE, "--updates", "40", "--runtime", "inline", "--quiet", "--metrics_interval_s", "60"]
    with file_size_limit(40_000):
        assert main(["run", "functions", *words, "--runs", str(tmp_path)]) == 0
    folder, output = only_run(tmp_path), capsys.readouterr()
    assert "Stopped: reached 40 updates" in output.out
    assert f"no report: {folder / 'report.html'}: File too large" in output.out
    assert f"to write it: headway report {folder}" in output.out
    assert output.err.startswith(f"headway: no trace: {folder / 'trace.json'}: File too large")
    assert output.err.endswith(f"to write it: headway trace {folder}\n")
    assert main(["trace", str(folder)]) == 0


# -- what only looks on -----------------------------------------------------------------------------


def test_a_log_on_a_full_disk_does_not_end_the_run(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "run.log").symlink_to("/dev/full")
    result = run(
        collect, lambda weights, rollouts: weights + 1, weights=0, updates=5, folder=tmp_path, statistics_every_s=0.001
    )
    assert result.updates == 5
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"headway: cannot write {tmp_path / 'run.log'}: No space left on device; the run goes on")
    assert len(said) == 2, "then that it is off"


def test_a_log_that_cannot_be_opened_does_not_end_the_run(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "run.log").mkdir()
    result = run(collect, lambda weights, rollouts: weights + 1, weights=0, updates=5, folder=tmp_path)
    assert result.updates == 5
    assert the_line(capsys) == f"{tmp_path / 'run.log'} is off, the run goes on without it: Is a directory"


# -- in a process of its own ------------------------------------------------------------------------

CHILD = """
import resource, sys, threading
from pathlib import Path
from headway.cli import main
{limits}
sys.exit(main({words!r}))
"""
FEW_THREADS = """
pages = int(Path("/proc/self/statm").read_text().split()[0])
threading.stack_size(1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ({room} << 29), resource.RLIM_INFINITY))
"""


def ended(limits: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    code = CHILD.format(limits=limits, words=list(words))
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=100, **options)


@pytest.mark.parametrize("room", [1, 12])  # for no thread at all, for some roles
@pytest.mark.parametrize("lanes", [1, 3])
def test_without_a_further_thread_the_run_ends_in_one_line(tmp_path: Path, room: int, lanes: int) -> None:
    words = [*AT_ONCE, "--collectors", "12", "--quiet", "--runs", str(tmp_path)]
    more = [] if lanes == 1 else ["--lanes", str(lanes)]
    done = ended(FEW_THREADS.format(room=room), "run", "functions", *words, *more, stdout=subprocess.DEVNULL)
    assert done.returncode == 1, done.stderr
    *others, last = done.stderr.splitlines()
    assert last.startswith("headway: no further thread can be started ("), done.stderr
    assert last.endswith("; no checkpoint was saved")
    assert all("is off, the run goes on without it" in line for line in others), done.stderr


@pytest.mark.parametrize("limit", [16, 24])  # too few to start all roles; too few for the memory they share
def test_without_a_descriptor_the_run_ends_in_one_line_that_names_the_limit(tmp_path: Path, limit: int) -> None:
    words = [*AT_ONCE, "--runtime", "processes", "--collectors", "6", "--updates", "8", "--quiet"]
    limits = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))"
    done = ended(limits, "run", "functions", *words, "--runs", str(tmp_path), stdout=subprocess.DEVNULL)
    assert done.returncode == 1, done.stderr
    assert "Too many open files" in done.stderr
    assert f"(`ulimit -n` allows {limit} open files)" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_an_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = ended("", "--help", stdout=full)
    assert done.returncode == 1
    assert done.stderr.rstrip("\n").endswith("No space left on device")
    assert done.stderr.count("\n") == 1, done.stderr
