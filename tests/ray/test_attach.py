"""A cluster that was there before the run, and is there afterwards: `ray start`, and `headway run` beside it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running_processes import all_children, is_running, title, wait_until_gone
from waiting import patient, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 8 * "0123456789abcdef"}


@dataclass(frozen=True)
class Head:
    """A running cluster of one node."""

    process: subprocess.Popen[bytes]
    port: int
    folder: str  # where it keeps its things, so that `auto` finds no other

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def actors(self) -> list[int]:
        return [pid for pid in all_children(self.process.pid) if title(pid).startswith("ray::RoleHost")]


def clean_environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | more


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with socket.create_server(("", 0)) as spare:
        port = spare.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a short path: sockets are made in it
    ray = Path(sys.executable).with_name("ray")
    options = ["--num-cpus=2", "--num-gpus=1", "--include-dashboard=false", "--disable-usage-stats", "--block"]
    said = Path(folder, "said.txt")
    with said.open("wb") as out:
        process = subprocess.Popen(
            [ray, "start", "--head", f"--port={port}", *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=clean_environment(RAY_TMPDIR=folder, **TOKEN),
            start_new_session=True,
        )
    children: list[int] = []
    try:
        deadline = time.monotonic() + patient(100)
        while b"Ray runtime started" not in said.read_bytes():
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
        children = all_children(process.pid)
        yield Head(process, port, folder)
    finally:
        process.terminate()
        process.wait(patient(60))
        wait_until_gone(children, 60)
        shutil.rmtree(folder, ignore_errors=True)


def headway(*words: str, runs: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headway.cli", "run", "functions", "--runtime", "ray", "--runs", str(runs)]
    return subprocess.Popen(
        [*command, "--quiet", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def finish(run: subprocess.Popen[Any]) -> tuple[int, str, str]:
    try:
        out, err = run.communicate(timeout=patient(100))
    finally:
        run.kill()
        run.wait()
    return run.returncode, out, err


@pytest.mark.parametrize("how", ["--ray_address", "RAY_ADDRESS", "auto"])
def test_a_run_joins_a_cluster_and_leaves_it_as_it_was(head: Head, how: str, tmp_path: Path) -> None:
    env, words = clean_environment(**TOKEN), ["--updates", "6", "--collectors", "2"]
    if how == "RAY_ADDRESS":
        env["RAY_ADDRESS"] = head.address
    else:
        words += ["--ray_address", head.address if how == "--ray_address" else "auto"]
        env["RAY_TMPDIR"] = head.folder
    code, out, err = finish(headway(*words, runs=tmp_path, env=env))
    assert code == 0, err
    assert "Train iterations: 6" in out
    wait_until_gone(head.actors())
    assert not head.actors()
    assert head.process.poll() is None, "the cluster is not ours to end"


def test_a_cluster_that_asks_for_a_token_is_one_clear_line(head: Head, tmp_path: Path) -> None:
    began = time.monotonic()
    run = headway("--ray_address", head.address, "--ray_connect_s", "5", runs=tmp_path, env=clean_environment())
    code, _, err = finish(run)
    assert code == 1
    assert time.monotonic() - began < patient(30), "Ray alone would have tried for longer"
    *_, last = err.splitlines()
    assert last.startswith("headway: the Ray cluster at ")
    assert "RAY_AUTH_TOKEN" in last


def test_a_cluster_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        run = headway("--ray_address", address, "--ray_connect_s", "0.5", runs=tmp_path, env=clean_environment())
        code, _, err = finish(run)
    assert code == 1
    assert err.splitlines()[-1].startswith("headway: no Ray cluster at ")
    assert err.splitlines()[-1].endswith("no answer within 0.5 s")
    assert '"fail"' in next(tmp_path.glob("*/events.jsonl")).read_text()


def test_of_two_runs_on_one_cluster_one_is_killed_and_the_other_keeps_its_bits(head: Head, tmp_path: Path) -> None:
    env, words = clean_environment(**TOKEN), ["--seed", "7", "--collectors", "2", "--collect_ms", "20"]
    there = ["--ray_address", head.address]
    with headway(*there, "--updates", "100000", runs=tmp_path / "killed", env=env) as killed:
        try:
            wait_until(partial(has_learned, tmp_path / "killed", killed), 100, "the first run's first update")
            with headway(*words, *there, "--updates", "300", runs=tmp_path / "kept", env=env) as kept:
                try:
                    wait_until(partial(has_learned, tmp_path / "kept", kept), 100, "the second run's first update")
                    both = head.actors()
                    killed.kill()
                finally:
                    code, out, err = finish(kept)
        finally:
            killed.kill()
    assert code == 0, err
    assert len(both) == 4 + 3, "learner, evaluator and collectors of each"
    wait_until_gone(both)
    alone = [sys.executable, "-m", "headway.cli", "run", "functions", "--runs", str(tmp_path), "--quiet", *words]
    undisturbed = subprocess.run(
        [*alone, "--updates", "300"], capture_output=True, text=True, check=True, env=env
    ).stdout
    assert weights(out) == weights(undisturbed)


def has_learned(runs: Path, run: subprocess.Popen[Any]) -> bool:
    assert run.poll() is None, "the run ended early"
    return any('"e":"learn"' in log.read_text() for log in runs.glob("*/events.jsonl"))


def weights(out: str) -> str:
    """Their hash, as the last lines of a run say it."""
    found = re.search(r"weights (\w+)", out)
    assert found, out
    return found[1]


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGKILL], ids=lambda what: what.name)
def test_a_driver_that_is_interrupted_or_killed_leaves_no_actor_in_the_cluster(
    head: Head, what: signal.Signals, tmp_path: Path
) -> None:
    env = clean_environment(**TOKEN)
    run = headway(*("--updates", "100000", "--save_every", "5", "--ray_address", head.address), runs=tmp_path, env=env)
    try:
        deadline = time.monotonic() + patient(100)
        while not list(tmp_path.glob("*/checkpoints/*-v5/manifest.json")):
            assert run.poll() is None, "the run ended early"
            assert time.monotonic() < deadline, "no checkpoint"
            time.sleep(0.05)
        actors = head.actors()
        assert len(actors) == 3, "learner, collector and evaluator"
        run.send_signal(what)
        code, _, _ = finish(run)
    finally:
        run.kill()
        run.wait()
    wait_until_gone(actors, 60)
    assert code == (0 if what is signal.SIGINT else -signal.SIGKILL)
    assert not head.actors()
    assert is_running(head.process.pid)


def test_a_cluster_that_is_killed_in_the_middle_of_a_run_ends_it_with_one_line(head: Head, tmp_path: Path) -> None:
    """As `ray stop --force` does. The last test of this cluster."""
    env = clean_environment(**TOKEN)
    run = headway("--updates", "100000", "--ray_address", head.address, runs=tmp_path, env=env)
    try:
        wait_until(partial(has_learned, tmp_path, run), 100, "the first update")
        for pid in (head.process.pid, *all_children(head.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code, _, err = finish(run)
    finally:
        run.kill()
        run.wait()
    assert code == 1
    assert re.fullmatch(r"headway: the raylet of the driver's node, \S+:\d+, has ended", err.splitlines()[-1])
