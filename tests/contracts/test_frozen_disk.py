"""The disk with a run's folder stops answering: training goes on, or ends with a line; and nothing is lost when it is
back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import disk_driver
import pytest
from disk_driver import DiskJob
from frozen_disk import FrozenDisk, why_not
from log_totals import audit
from waiting import patient, wait_until

from headway.runs.fingerprint import fingerprint
from headway.testing.auditor import audit as faults_in
from headway.testing.toy_stations import pinned_loop

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(90)]

READ_EVENTS = """
import json, pathlib, sys
from headway.runs.event_log import read_events
print(json.dumps(list(read_events(pathlib.Path(sys.argv[1])))))
"""


class DiskRun:
    """A run whose folder is on a disk that may freeze. What it says and how far it is stands on another one."""

    def __init__(self, disk: FrozenDisk, job: DiskJob, ends: ExitStack) -> None:
        self._disk, self._progress = disk, Path(job.progress)
        self._said = self._progress.with_name(f"said-{time.monotonic_ns()}")
        path = os.pathsep.join([str(Path(disk_driver.__file__).parent), *filter(None, sys.path)])
        words = (sys.executable, disk_driver.__file__, json.dumps(asdict(job)))
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                disk.inside(*words), stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path}
            )
        ends.callback(self._process.wait)
        ends.callback(self._process.kill)
        ends.callback(disk.thaw)

    def num_updates(self) -> int:
        assert self._process.poll() is None, self.said()
        try:
            return int(self._progress.read_text())
        except (FileNotFoundError, ValueError):  # not written yet, or being written
            return 0

    def wait_for_update(self, update: int) -> None:
        wait_until(lambda: self.num_updates() >= update, 60, f"update {update}")

    def said(self) -> str:
        return self._said.read_text()

    def result(self) -> dict[str, Any]:
        """What its last line says. It may not be able to end while the disk is frozen."""
        wait_until(lambda: "\n" in self.said() and self.said().splitlines()[-1].startswith("{"), 200, "its last line")
        found: dict[str, Any] = json.loads(self.said().splitlines()[-1])
        return found

    def events(self, folder: str) -> list[dict[str, Any]]:
        """Of its log, as whoever sees the disk reads it."""
        self._process.wait(patient(30))
        words = self._disk.inside(sys.executable, "-c", READ_EVENTS, f"{folder}/events.jsonl")
        path = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(words, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": path})
        lines: list[dict[str, Any]] = json.loads(done.stdout)
        return lines


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def make(tmp_path: Path, ends: ExitStack, updates: int, **more: Any) -> tuple[FrozenDisk, DiskJob]:
    disk = ends.enter_context(FrozenDisk(tmp_path))
    return disk, DiskJob(str(disk.folder / "run"), str(tmp_path / "progress"), updates, **more)


def assert_whole(run: DiskRun, job: DiskJob) -> None:
    result = run.result()
    assert (result.get("updates"), result.get("hash")) == (job.updates, undisturbed_hash(job)), run.said()
    events = run.events(job.folder)
    seen = audit(events)
    assert sorted(seen.learned) == list(range(job.updates)) and set(seen.learned.values()) == {1}
    assert not faults_in(events), "no line is missing"


def undisturbed_hash(job: DiskJob) -> str:
    return fingerprint({"weights": pinned_loop(job.settings())["weights"]})


def test_training_goes_on_while_the_disk_with_its_log_is_frozen_and_the_log_is_whole_afterwards(
    tmp_path: Path, ends: ExitStack
) -> None:
    disk, job = make(tmp_path, ends, updates=1000)
    run = DiskRun(disk, job, ends)
    run.wait_for_update(30)
    disk.freeze()
    run.wait_for_update(run.num_updates() + 100)
    disk.thaw()
    assert_whole(run, job)
    assert run.said().count("\n") == 1, "there was nothing to say"


def test_a_checkpoint_waits_for_a_frozen_disk_within_its_deadline_and_the_run_goes_on(
    tmp_path: Path, ends: ExitStack
) -> None:
    disk, job = make(tmp_path, ends, updates=600, save_every=500)  # some seconds to freeze it in
    run = DiskRun(disk, job, ends)
    run.wait_for_update(20)
    disk.freeze()
    run.wait_for_update(500)
    waiting_since = time.monotonic()
    wait_until(lambda: time.monotonic() - waiting_since > 1.0, what="a second in which nothing can happen")
    assert run.num_updates() == 500, "what is saved is the state between two updates"
    disk.thaw()
    assert_whole(run, job)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_disk_that_stays_frozen_ends_the_run_with_one_line_and_resume_has_the_same_bits(
    tmp_path: Path, ends: ExitStack
) -> None:
    disk, job = make(tmp_path, ends, updates=80, save_every=25, save_s=patient(1))
    run = DiskRun(disk, job, ends)
    run.wait_for_update(30)
    disk.freeze()
    result = run.result()  # four files that are closed wait half a minute each
    line = f"the disk has not taken the checkpoint of version 50 within save_deadline_s={job.save_s:g}"
    assert result == {"failed": line}, run.said()
    disk.thaw()
    again = DiskRun(disk, replace(job, resume=True), ends)
    rest = again.result()
    assert (rest.get("updates"), rest.get("hash")) == (80, undisturbed_hash(job)), again.said()


def test_a_test_that_is_killed_leaves_no_frozen_disk_behind(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom frozen_disk import FrozenDisk\n"
        "disk = FrozenDisk(Path(sys.argv[1]))\ndisk.freeze()\nprint(disk._keeper.pid, flush=True)\ntime.sleep(600)\n"
    )
    path = os.pathsep.join([str(Path(disk_driver.__file__).parent), *filter(None, sys.path)])
    test = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert test.stdout is not None
    keeper = int(test.stdout.readline())
    image = str(tmp_path / "image" / "disk")
    assert image in loop_devices()
    test.kill()
    test.wait()
    test.stdout.close()
    wait_until(lambda: not Path(f"/proc/{keeper}").exists(), what="the end of its keeper")
    wait_until(lambda: image not in loop_devices(), what="the end of its loop device")


def loop_devices() -> str:
    return subprocess.check_output(["losetup", "--list", "--output", "BACK-FILE"], text=True)
