"""Ray on machines in a box, and runs on it that a test watches by their event logs.

`RayCluster` starts `ray start` on each machine and brings back what died; `ClusterRun` is a run whose driver is on the
head. Faults are made by the test when it has seen an event, and what they cost is read off the log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import cluster_driver
from cluster_driver import Job
from cluster_machines import DISK, Machine, Network, process_of
from log_totals import Audit, audit
from waiting import patient, wait_until

from headway.runs.fingerprint import fingerprint
from headway.testing.toy_stations import pinned_loop

PORT = 6379
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 8 * "0123456789abcdef"}
"""All nodes and drivers of the cluster know it; nobody else is let in."""
KNOWN = """
import sys
from ray._raylet import GcsClient
print(sum(node.state == 0 for node in GcsClient(address=sys.argv[1]).get_all_node_info().values()))
"""
NODE_ID = """
import sys
from ray._raylet import GcsClient
nodes = GcsClient(address=sys.argv[1]).get_all_node_info().values()
print(*(node.node_id.hex() for node in nodes if (node.state, node.node_manager_address) == (0, sys.argv[2])))
"""
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
"""How soon Ray calls a node dead that does not answer: after about 12 s instead of about half a minute."""


class RayNode:
    """Ray on one machine."""

    def __init__(self, machine: Machine, resources: dict[str, float], folder: Path, *options: str) -> None:
        self.machine = machine
        self._resources = resources
        self._options = options
        self._said = folder / f"{machine.name}.txt"
        self._entrance: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does not wait until it is up."""
        assert not self.is_running
        self.machine.do("sh", "-c", f"rm -rf {DISK}/*")
        with self._said.open("wb") as said:
            self._entrance = self.machine.start(
                Path(sys.executable).with_name("ray"),
                *("start", "--block", "--disable-usage-stats", f"--node-ip-address={self.machine.address}"),
                *("--num-cpus=2", f"--resources={json.dumps(self._resources)}", *self._options),
                said=said,
                env=environment(),
            )

    def wait_until_up(self) -> None:
        def is_up() -> bool:
            assert self.is_running, self._said.read_text()
            return b"Ray runtime started" in self._said.read_bytes()

        wait_until(is_up, 60, f"Ray on {self.machine.name}")

    @property
    def is_running(self) -> bool:
        return self._entrance is not None and self._entrance.poll() is None

    def node_id(self, control_store: str) -> str:
        """What Ray calls it."""
        words = (sys.executable, "-c", NODE_ID, control_store, self.machine.address)
        done = subprocess.run(self.machine.inside(*words), env=environment(), capture_output=True, check=True)
        return done.stdout.decode().split()[-1]

    def send(self, what: signal.Signals) -> None:
        assert self._entrance is not None
        os.kill(process_of(self._entrance), what)

    def wait_until_over(self) -> None:
        wait_until(lambda: not self.is_running, 60, f"the end of Ray on {self.machine.name}")

    def processes(self, title: str) -> list[int]:
        """Of this node, by what their command line contains."""
        found = []
        for pid in self.machine.processes():
            try:
                if title.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    def end(self) -> None:
        for pid in self.machine.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self._entrance is not None:
            self._entrance.wait(60)


def environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join([*(str(Path(cluster_driver.__file__).parent),), *filter(None, sys.path)])
    return {**ours, "RAY_TMPDIR": DISK, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **TOKEN}


class RayCluster:
    """A head, and nodes behind cables that a test may pull. Leaving the block ends everything."""

    def __init__(self, folder: Path, *, store_mb: int = 100, health: dict[str, int] | None = None) -> None:
        self.network = Network()
        self._ends = ExitStack()
        self._ends.enter_context(self.network)
        self._folder = folder
        self._store = f"--object-store-memory={store_mb << 20}"
        self.nodes: dict[str, RayNode] = {}
        self._suspects: set[str] = set()
        config = f"--system-config={json.dumps(HEALTH if health is None else health)}"
        self._add(cluster_driver.HEAD, {}, "--head", f"--port={PORT}", "--include-dashboard=false", config)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.close()

    def _add(self, name: str, how: dict[str, Any], *options: str) -> RayNode:
        machine = self.network.add(name, **how)
        node = RayNode(machine, {name: 100.0, "any": 100.0}, self._folder, self._store, *options)
        self.nodes[name] = node
        return node

    def add_worker(self, name: str, **how: Any) -> RayNode:
        return self._add(name, how, f"--address={self.address}")

    @property
    def head(self) -> RayNode:
        return self.nodes[cluster_driver.HEAD]

    @property
    def address(self) -> str:
        return f"{self.head.machine.address}:{PORT}"

    def cut(self, name: str) -> None:
        self._suspects.add(name)
        self.network.cut(self.nodes[name].machine)

    def mend(self, name: str) -> None:
        self.network.mend(self.nodes[name].machine)

    def degrade(self, name: str, **how: Any) -> None:
        self._suspects.add(name)
        self.network.degrade(self.nodes[name].machine, **how)

    def bring_up(self, *names: str) -> None:
        """These nodes and the head are up afterwards, no others are, and Ray knows. A node that was cut off is started
        anew: Ray may have given it up, or be about to."""
        wanted = (cluster_driver.HEAD, *names)
        for name, node in self.nodes.items():
            if name not in wanted or name in self._suspects:
                node.end()
        for name in wanted:
            node = self.nodes[name]
            self.mend(name)
            if name in self._suspects and self.network.is_relayed(node.machine):
                self.network.degrade(node.machine)
            if not node.is_running:
                node.start()
                node.wait_until_up()
        self._suspects.clear()
        wait_until(lambda: self._known() == len(wanted), 60, "Ray to know who is there")

    def _known(self) -> int:
        """How many nodes Ray believes to be alive."""
        words = (sys.executable, "-c", KNOWN, self.address)
        done = subprocess.run(self.head.machine.inside(*words), env=environment(), capture_output=True, check=False)
        return int(done.stdout or 0)

    def drain(self, name: str, seconds: int) -> None:
        """As an autoscaler would."""
        ray = str(Path(sys.executable).with_name("ray"))
        why = (
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=spot",
            f"--deadline-remaining-seconds={seconds}",
        )
        node = f"--node-id={self.nodes[name].node_id(self.address)}"
        words = self.head.machine.inside(ray, "drain-node", f"--address={self.address}", node, *why)
        subprocess.run(words, env=environment(), check=True, stdout=subprocess.DEVNULL)
        self._suspects.add(name)

    def run(self, job: Job) -> ClusterRun:
        return ClusterRun(self, replace(job, address=self.address))


class ClusterRun:
    """A run whose driver is on the head."""

    def __init__(self, cluster: RayCluster, job: Job) -> None:
        self.job = job
        self._events = Path(job.folder) / "events.jsonl"
        self._said = Path(job.folder).with_suffix(f".{time.monotonic_ns()}.txt")
        with self._said.open("wb") as said:
            self._entrance = cluster.head.machine.start(
                *(sys.executable, cluster_driver.__file__, json.dumps(asdict(job))),
                said=said,
                env=environment(),
                cwd=Path(job.folder).parent,
            )

    def __enter__(self) -> ClusterRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._entrance.poll() is None:
            os.kill(process_of(self._entrance), signal.SIGKILL)
            self._entrance.wait(60)

    @property
    def driver(self) -> int:
        return process_of(self._entrance)

    def events(self) -> list[dict[str, Any]]:
        """So far: what is whole of it."""
        if not self._events.exists():
            return []
        lines = self._events.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def wait_for(self, what: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
        """The first event for which this holds."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found[:] = [event for event in self.events() if what(event)][:1]
            assert found or self._entrance.poll() is None, self.said()
            return bool(found)

        wait_until(has_come, seconds, "an event of the run")
        return found[0]

    def wait_for_update(self, update: int) -> None:
        self.wait_for(lambda event: event["e"] == "learn" and event["u"] >= update)

    def said(self) -> str:
        return self._said.read_text()

    @property
    def is_over(self) -> bool:
        return self._entrance.poll() is not None

    def finish(self, seconds: float = 90.0) -> dict[str, Any]:
        """What its last line says."""
        self._entrance.wait(patient(seconds))
        lines = self.said().splitlines()
        assert lines and lines[-1].startswith("{"), self.said()
        result: dict[str, Any] = json.loads(lines[-1])
        return result

    def audit(self) -> Audit:
        return audit(self.events())


def undisturbed_hash(job: Job) -> str:
    """Of the same run as one serial program, without Ray, cluster or faults."""
    return fingerprint({"weights": pinned_loop(job.settings())["weights"]})


def assert_nothing_lost_or_doubled(run: ClusterRun, result: dict[str, Any]) -> None:
    seen, updates = run.audit(), run.job.updates
    assert result.get("updates") == updates, result
    assert result["closes"] and not result["dropped"] and not result["lost"]
    assert sorted(seen.learned) == list(range(updates)) and set(seen.learned.values()) == {1}
    assert result["hash"] == undisturbed_hash(run.job), "other bits than without the fault"
