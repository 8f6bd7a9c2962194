"""What Ray says beforehand ends a run in time: it is saved, and says why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from running_processes import all_children
from waiting import patient

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.protocols import Placement
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.ray_actors import RayActors
from headway.testing.toy_stations import Pause, ToyCollector, ToyLearner, pinned_loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150), pytest.mark.usefixtures("no_ray")]


def collector(number: int) -> ToyCollector:
    return ToyCollector(number, Pause(0.05))


class Sabotage(MemoryRecorder):
    """Does something at an update."""

    def __init__(self, what: Callable[[], None]) -> None:
        super().__init__()
        self._what = what
        self.at_s = 0.0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "learn" and fields["u"] >= 10 and not self.at_s:
            self.at_s = time_s
            self._what()


def drain_this_node() -> None:
    reason, goes_at_ms = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), int((time.time() + 600) * 1000)
    here = ray.get_runtime_context()
    is_accepted, why = GcsClient(address=here.gcs_address).drain_node(here.get_node_id(), reason, "spot", goes_at_ms)
    assert is_accepted, why


def process_of_ray(name: str) -> int:
    for pid in all_children(os.getpid()):
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(name.encode()):
            return pid
    raise AssertionError(f"Ray has no {name}")


def control_store() -> int:
    return process_of_ray("gcs_server")


def kill_the_control_store() -> None:
    os.kill(control_store(), signal.SIGKILL)


def stop_the_control_store() -> None:
    os.kill(control_store(), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (
            drain_this_node,
            r"interrupted: node 127\.0\.0\.1 is drained and goes in \d+ s, and learner cannot go elsewhere",
        ),
        (kill_the_control_store, r"interrupted: the control store of the Ray cluster .* has not answered for 30 s"),
        (stop_the_control_store, r"interrupted: the control store of the Ray cluster .* has not answered for 30 s"),
    ],
    ids=["drained", "control store gone", "control store stopped"],
)
def test_a_learner_that_must_go_is_saved_before_it_does_and_the_run_goes_on_with_the_same_bits(
    tmp_path: Path, what: Callable[[], None], why: str
) -> None:
    settings, store = Settings(plan=Plan(updates=100_000), collectors=2, max_lead=2), CheckpointStore(tmp_path)
    stations = Stations(collector, ToyLearner, collector_placement=Placement(num_cpus=0.2))
    log, runtime = Sabotage(what), RayActors()
    result = runtime.run(Coordinator(stations, settings, runtime, recorder=log, checkpoints=store).run())

    assert re.match(why, result.stop_reason)
    notice = next(event for event in log.events if event["e"] == "notice")
    assert notice["t"] - log.at_s < 60
    assert store.load().updates == result.updates and result.ledger.closes and not result.restarts
    so_far = Settings(plan=Plan(updates=result.updates), collectors=2, max_lead=2)
    assert fingerprint(result.weights) == fingerprint(pinned_loop(so_far))


GOES_ON = """
import sys, time
from pathlib import Path

sys.path[:0] = [{tests!r}, {folder!r}]
from test_notices import *
from headway.runtimes.ray_cluster_ray_control_store import RECONNECT_S

stations = Stations(collector, ToyLearner, collector_placement=Placement(num_cpus=0.2))
store, end = CheckpointStore(Path(sys.argv[1])), 100_000
for what in (kill_the_control_store, lambda: None):
    settings, runtime = Settings(plan=Plan(updates=end), collectors=2, max_lead=2), RayActors()
    resume = store.load() if end < 100_000 else None
    result = runtime.run(
        Coordinator(stations, settings, runtime, recorder=Sabotage(what), checkpoints=store, resume=resume).run()
    )
    print(result.stop_reason, flush=True)
    end = result.updates + 20
    time.sleep(RECONNECT_S + 5)
print("not saved:", result.updates - store.load().updates, flush=True)
"""


def test_a_process_outlives_a_run_whose_control_store_was_gone_and_goes_on_with_it(tmp_path: Path) -> None:
    """Ray ends a process in which anybody has looked for a lost control store for too long, also after shutdown."""
    program = GOES_ON.format(tests=str(Path(__file__).parent.parent), folder=str(Path(__file__).parent))
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "20"},
        capture_output=True,
        text=True,
        timeout=140,
    )
    said = found.stdout.splitlines()
    assert found.returncode == 0, found.stderr[-2000:]
    assert re.match(r"interrupted: the control store .* has not answered for 10 s", said[0])
    assert re.match(r"reached \d+ updates", said[1])
    assert said[2:] == ["not saved: 0"]


@pytest.mark.parametrize(
    ("what", "why", "within_s"),
    [
        (signal.SIGSTOP, r"the raylet of the driver's node, 127\.0\.0\.1:\d+, has not answered for 30 s", 45),
        (signal.SIGKILL, r"the raylet of the driver's node, 127\.0\.0\.1:\d+, has ended", 10),
    ],
    ids=lambda what: getattr(what, "name", None),
)
def test_a_raylet_that_is_stopped_or_killed_ends_the_run_with_a_line_that_names_it(
    what: signal.Signals, why: str, within_s: float
) -> None:
    log, runtime = Sabotage(lambda: os.kill(process_of_ray("raylet"), what)), RayActors()
    stations = Stations(collector, ToyLearner, collector_placement=Placement(num_cpus=0.2))
    settings = Settings(plan=Plan(updates=100_000), collectors=2, max_lead=2)
    with pytest.raises(RunFailed, match=f"^{why}$"):
        runtime.run(Coordinator(stations, settings, runtime, recorder=log).run())
    assert not ray.is_initialized()
    assert log.events[-1]["e"] == "fail" and log.events[-1]["t"] - log.at_s < patient(within_s)


class Restart:
    """Kills the control store, and starts another one on the same port and storage a while later."""

    def __init__(self) -> None:
        self.second: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._start_again)

    def __call__(self) -> None:
        pid = control_store()
        port = ray.get_runtime_context().gcs_address.rpartition(":")[2].encode()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        self._words = [word.replace(b"server_port=0", b"server_port=" + port) for word in words]
        self._environment = dict(
            pair.split(b"=", 1) for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in pair
        )
        self._folder = os.readlink(f"/proc/{pid}/cwd")
        os.kill(pid, signal.SIGKILL)
        self._thread.start()

    def _start_again(self) -> None:
        time.sleep(5.0)  # how long the control store is away
        self.second = subprocess.Popen(
            self._words,
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self) -> None:
        self._thread.join()
        assert self.second is not None
        self.second.kill()
        self.second.wait()


def test_a_control_store_with_storage_that_is_started_again_in_time_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_gcs_storage", "rocksdb")
    monkeypatch.setenv("RAY_gcs_storage_path", str(tmp_path))
    settings = Settings(plan=Plan(updates=600), collectors=2, max_lead=2)
    stations = Stations(collector, ToyLearner, collector_placement=Placement(num_cpus=0.2))
    restart = Restart()
    log, runtime = Sabotage(restart), RayActors()
    try:
        result = runtime.run(Coordinator(stations, settings, runtime, recorder=log).run())
        assert log.events[-1]["t"] - log.at_s > 5.0, "it was away while the run was under way"
        assert restart.second is not None and restart.second.poll() is None
        assert (result.stop_reason, result.restarts) == ("reached 600 updates", 0)
        assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))
        assert not [event for event in log.events if event["e"] == "notice"]
    finally:
        restart.end()
