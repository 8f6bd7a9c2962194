"""The Ray runtime: the same contract and the same bits as the others, on one node and on three, with real deaths."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from log_totals import audit
from running_processes import all_children, is_running, title, wait_until_gone
from scaled_runs import ScaledRun, scaled_loop
from waiting import patient

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.protocols import Placement, Role, RoleDied, RoleLate, RoleRaised, Runtime
from headway.core.rules_order import READY
from headway.core.types import Batch, Rollout, Snapshot
from headway.ppo import recipe_ppo as ppo
from headway.ppo.recipe_ppo import PPOConfig
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.launch_session import launch
from headway.runtimes.build import build_runtime
from headway.runtimes.ray_actors import RayActors
from headway.runtimes.ray_cluster_ray_notices import hear
from headway.runtimes.ray_role_ray_payloads import RayRef
from headway.testing.auditor import audit as audit_log
from headway.testing.runtime_contract import SOON_S, RuntimeContract
from headway.testing.toy_stations import Echo, Pause, ToyEngine, engine_stations, pinned_loop, plain_loop, toy_stations

pytestmark = pytest.mark.timeout(90)
in_local_ray = pytest.mark.usefixtures("local_ray")


def drive(runtime: RayActors, main: Callable[[], Awaitable[Any]], *roles: Role) -> Any:
    """`main` with the roles running, closed afterwards."""

    async def body() -> Any:
        try:
            await asyncio.gather(*(runtime.start(role) for role in roles))
            return await main()
        finally:
            await runtime.close()

    return runtime.run(body())


def run(settings: Settings, stations: Stations, recorder: MemoryRecorder | None = None) -> RunResult:
    runtime = build_runtime("ray")
    return runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run())


# -- the raylet of the driver's node --------------------------------------------------------------------


def test_a_raylet_that_is_silent_or_has_ended_is_named_within_the_limit() -> None:
    with silent() as server:
        stopped = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            ConnectionError, match=f"^the raylet of the driver's node, {stopped}, has not answered for 2 s$"
        ):
            asyncio.run(hear(stopped, 2.0))
    with pytest.raises(ConnectionError, match=f"^the raylet of the driver's node, {stopped}, has ended$"):
        asyncio.run(hear(stopped, 2.0))


# -- a cluster that is not ours, or not there -----------------------------------------------------------


def silent() -> socket.socket:
    """Listens, accepts, says nothing."""
    return socket.create_server(("", 0))


def answering_wrongly() -> socket.socket:
    server = silent()

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 505 Version Not Supported\r\n\r\n")

    threading.Thread(target=answer, daemon=True).start()
    return server


def closed() -> socket.socket:
    server = silent()
    server.close()
    return server


@pytest.mark.usefixtures("no_ray")
def test_a_machine_too_busy_to_start_ray_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*args: object, **options: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because it is overloaded.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConnectionError, match=r"^a local Ray cluster could not be started: The current node timed out"):
        drive(RayActors("local"), asyncio.Event().wait, Role("echo", Echo))


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(
    ("make", "connect_s", "reason"),
    [
        (closed, 60.0, "Connection refused"),
        (silent, 0.5, "no answer within 0.5 s"),
        (answering_wrongly, 60.0, "what listens there is not Ray"),
    ],
)
def test_an_address_that_does_not_answer_is_one_clear_line(
    make: Callable[[], socket.socket], connect_s: float, reason: str
) -> None:
    with silent() as spare:
        port = spare.getsockname()[1]
    with make() as server:
        if server.fileno() >= 0:
            port = server.getsockname()[1]
        runtime = RayActors(f"127.0.0.1:{port}", connect_s=connect_s)
        with pytest.raises(ConnectionError, match=reason) as caught:
            drive(runtime, asyncio.Event().wait, Role("echo", Echo))
    assert "\n" not in str(caught.value)
    assert str(port) in str(caught.value)
    assert not ray.is_initialized()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="Ray client"):
        RayActors("ray://127.0.0.1:10001")
    with pytest.raises(ValueError, match="start_s must be positive"):
        RayActors(start_s=0)
    with pytest.raises(ConnectionError, match="an address is host:port"):
        drive(RayActors("cluster"), asyncio.Event().wait, Role("echo", Echo))


# -- one local Ray --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_ray")
def test_a_ray_of_our_own_listens_on_the_loopback_interface_only() -> None:
    async def look() -> dict[str, set[str]]:
        pids = [os.getpid(), *all_children(os.getpid())]
        return {f"{title(pid)[:60]} ({pid})": found for pid in pids if (found := listens_on(pid))}

    found = drive(RayActors(start_s=patient(50)), look, Role("echo", Echo))
    assert len(found) >= 4, found  # the driver, Ray's server and its daemon, the actor
    assert {address for addresses in found.values() for address in addresses} <= {"127.0.0.1", "::1"}, found


def listens_on(pid: int) -> set[str]:
    """The addresses of the sockets on which a process accepts connections, by what the kernel says."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # gone meanwhile
        return set()
    sockets = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in sockets:
                words = bytes.fromhex(local.partition(":")[0])
                packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, packed).removeprefix("::ffff:"))
    return found


@in_local_ray
class TestRayActors(RuntimeContract):
    def make(self) -> Runtime:
        return RayActors(start_s=patient(50))


@in_local_ray
def test_lead_zero_equals_the_plain_loop() -> None:
    settings = Settings(
        plan=Plan(updates=12, evaluate_every=8), max_lead=0, collectors=2, tickets_per_batch=2, publish_every=3, seed=5
    )
    result = run(settings, toy_stations(Pause(0.002)))
    assert fingerprint(result.weights) == fingerprint(plain_loop(settings))
    assert result.ledger.max_staleness == 0


@in_local_ray
def test_a_pinned_run_is_determined_by_its_seed() -> None:
    settings = Settings(plan=Plan(updates=24), max_lead=2, collectors=3)
    result = run(settings, toy_stations(Pause(0.002), evaluates=False))
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))
    assert result.ledger.max_staleness == 2


@in_local_ray
def test_a_recorded_free_run_replays_to_the_same_bits() -> None:
    settings = Settings(plan=Plan(updates=24), max_lead=3, collectors=3, tickets_per_batch=2, order=READY)
    recorder = MemoryRecorder()
    stations = toy_stations(Pause(0.006), evaluates=False)
    result = run(settings, stations, recorder)
    assert fingerprint(replay(stations, recorder.events).weights) == fingerprint(result.weights)


@in_local_ray
@pytest.mark.parametrize("dispatch", ["free", "pinned"])
def test_actors_are_added_and_taken_away_while_a_run_goes_on(dispatch: Any) -> None:
    before = set(all_children(os.getpid()))
    settings = Settings(plan=Plan(updates=100_000), max_lead=4, collectors=2, dispatch=dispatch)
    stations = toy_stations(Pause(0.01), evaluates=False)
    run = ScaledRun(RayActors(start_s=patient(50)), stations, settings, at_versions={3: 4, 20: 1}, ends_after=20)
    assert [answer.result().now for answer in run.answers] == [4, 1]
    assert {event["c"] for event in run.of("start")} == {0, 1, 2, 3}
    assert {event["role"]: event["why"] for event in run.of("leave")} == dict.fromkeys(
        ["collector-1", "collector-2", "collector-3"], ""
    )
    assert audit_log(run.events) == []
    assert fingerprint(replay(stations, run.events).weights) == fingerprint(run.result.weights)
    if dispatch == "pinned":
        changes = [(event["k"], event["collectors"]) for event in run.of("scale")]
        as_one_loop = scaled_loop(replace(settings, plan=Plan(updates=run.result.updates)), changes)
        assert fingerprint(run.result.weights) == fingerprint(as_one_loop)
    wait_until_gone(pid for pid in set(all_children(os.getpid())) - before if "RoleHost" in title(pid))


@in_local_ray
@pytest.mark.parametrize("lead", [0, 2])
def test_lanes_change_no_bit_of_a_pinned_run(lead: int) -> None:
    settings = Settings(plan=Plan(updates=10), max_lead=lead, collectors=2, lanes=4, tickets_per_batch=4, seed=3)
    result = run(settings, engine_stations(Pause(0.01), evaluates=False))
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))


@in_local_ray
def test_with_partial_weights_change_under_what_is_in_flight() -> None:
    settings = Settings(plan=Plan(updates=30), max_lead=3, lanes=4, tickets_per_batch=2, on_publish="partial")
    recorder = MemoryRecorder()
    result = run(settings, engine_stations(Pause(0.1), evaluates=False), recorder)
    spans = [event["v"] for event in recorder.events if event["e"] == "land"]
    assert any(oldest < newest for oldest, newest in spans)
    assert result.ledger.learned == 60
    assert result.restarts == 0


class Saboteur(MemoryRecorder):
    """Kills a role's process when a ticket starts."""

    def __init__(self, runtime: RayActors, ticket: int, role: str) -> None:
        super().__init__()
        self._runtime, self._ticket, self._role = runtime, ticket, role
        self.killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if (kind, fields.get("k")) == ("start", self._ticket) and not self.killed:
            self.killed = self._runtime.pid(self._role)
            os.kill(self.killed, signal.SIGKILL)


@in_local_ray
def test_a_collector_killed_in_the_middle_is_replaced_and_nothing_is_lost() -> None:
    settings = Settings(plan=Plan(updates=40), collectors=2, max_lead=2)
    runtime = RayActors(start_s=patient(50))
    log = Saboteur(runtime, 20, "collector-0")
    stations = toy_stations(Pause(0.01), evaluates=False)
    result = runtime.run(Coordinator(stations, settings, runtime, recorder=log).run())
    assert log.killed
    assert not is_running(log.killed)
    seen = audit(log.events)
    assert seen.kinds["restart"] == result.restarts == 1
    assert seen.kinds["reissue"] == result.ledger.reissued >= 1
    assert sorted(seen.learned) == list(range(40))
    assert set(seen.learned.values()) == {1}
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


@in_local_ray
def test_a_killed_collector_with_lanes_is_replaced_once_and_nothing_is_lost() -> None:
    settings = Settings(plan=Plan(updates=10), collectors=2, lanes=3, max_lead=1, tickets_per_batch=6)
    runtime = RayActors(start_s=patient(50))
    log = Saboteur(runtime, 24, "collector-0")
    stations = engine_stations(Pause(0.2), evaluates=False)
    result = runtime.run(Coordinator(stations, settings, runtime, recorder=log).run())
    assert log.killed
    seen = audit(log.events)
    assert seen.kinds["restart"] == result.restarts == 1
    assert seen.kinds["reissue"] == result.ledger.reissued >= 1
    assert sorted(seen.learned) == list(range(60))
    assert set(seen.learned.values()) == {1}
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))


class Bodies(Echo):
    """Says what its arguments look like from the inside."""

    def tensors(self, size: int) -> Rollout:
        return Rollout({"x": torch.arange(size, dtype=torch.bfloat16), "y": torch.ones(3)})

    def look(self, batch: Batch, snapshot: Snapshot) -> tuple[Any, ...]:
        arrays = [rollout.payload["values"] for rollout in batch.rollouts]
        for array in arrays:
            array += 1.0  # in place, as a learner may
        return [array.flags.owndata for array in arrays], snapshot.payload.flags.writeable

    def sum(self, batch: Batch) -> float:
        return sum(float(rollout.payload["x"].float().sum() + rollout.payload["y"].sum()) for rollout in batch.rollouts)

    def threads(self) -> tuple[int, str]:
        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


@in_local_ray
def test_payloads_stay_out_of_the_driver_and_outlive_the_actor_that_made_them() -> None:
    runtime = RayActors(start_s=patient(50))

    async def main() -> None:
        sizes = [200, 5000, 200_000]  # of 8 bytes: below and above what Ray would send along
        rollouts = [await runtime.call("maker", "rollout", size, 1.0, deadline_s=SOON_S) for size in sizes]
        tensors = await runtime.call("maker", "tensors", 2000, deadline_s=SOON_S)
        weights = await runtime.call("maker", "snapshot", 1, deadline_s=SOON_S)
        assert all(isinstance(item.payload, RayRef) for item in [*rollouts, tensors, weights])
        os.kill(runtime.pid("maker"), signal.SIGKILL)
        with pytest.raises(RoleDied, match=r"^maker\.count: its actor died because its worker process has died"):
            await runtime.call("maker", "count", deadline_s=SOON_S)
        batch = Batch(0, tuple(rollouts))
        assert await runtime.call("user", "total", batch, deadline_s=SOON_S) == sum(sizes)
        assert await runtime.call("user", "look", batch, weights, deadline_s=SOON_S) == ([False] * 3, False)
        expected = float(torch.arange(2000, dtype=torch.bfloat16).float().sum()) + 3
        assert await runtime.call("user", "sum", Batch(0, (tensors,)), deadline_s=SOON_S) == expected
        assert runtime.fetch(tensors.payload)["y"].tolist() == [1.0, 1.0, 1.0]
        assert await runtime.call("user", "threads", deadline_s=SOON_S) == (2, "2")
        runtime.release(batch.rollouts[0].payload)
        with pytest.raises(ValueError, match="was released"):
            await runtime.call("user", "total", batch, deadline_s=SOON_S)
        for item in [*rollouts, tensors, weights]:
            runtime.release(item.payload)
        assert runtime.driver_payload_bytes == 0
        tiny = await runtime.call("user", "rollout", 3, 1.0, deadline_s=SOON_S)
        assert 24 < runtime.driver_payload_bytes == tiny.payload.size < 1024, "what is tiny comes along, and is counted"

    drive(runtime, main, Role("maker", Bodies), Role("user", Bodies, Placement(num_threads=2)))


@in_local_ray
def test_a_role_that_is_built_anew_leaves_nothing_in_the_driver() -> None:
    runtime = RayActors(start_s=patient(50))

    async def main() -> list[int]:
        counts = []
        for _ in range(3):
            await runtime.restart("echo")
            gc.collect()
            classes = [one for one in gc.get_objects() if type(one) is type and "RoleHost" in one.__name__]
            counts.append(len(classes))
        return counts

    counts = drive(runtime, main, Role("echo", Echo))
    assert counts[0] == counts[1] == counts[2] > 0, "Ray keeps every class of actors that it is given"


@in_local_ray
def test_a_frozen_process_is_given_up_killed_and_replaced() -> None:
    runtime = RayActors(start_s=patient(50))

    async def main() -> None:
        frozen = runtime.pid("echo")
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(RoleLate, match=r"no answer within 0\.5 s"):
            await runtime.call("echo", "count", deadline_s=0.5)
        await runtime.restart("echo")
        assert not is_running(frozen)
        assert await runtime.call("echo", "count", deadline_s=SOON_S) == 1

    drive(runtime, main, Role("echo", Echo))


@in_local_ray
def test_what_cannot_be_placed_built_or_sent_says_so() -> None:
    runtime = RayActors(start_s=1.5)

    async def main() -> None:
        simulator = Placement(num_cpus=1, resources={"simulator": 2})
        with pytest.raises(RoleLate, match=r"not placed \(asked for CPU 1.*, simulator 2.*; .*simulator 0 of 0 free\)"):
            await runtime.start(Role("picky", Echo, simulator))
        lock = threading.Lock()
        with pytest.raises(ValueError, match=r"role 'locked': its factory cannot be sent to a Ray actor"):
            await runtime.start(Role("locked", partial(id, lock)))

    drive(runtime, main)


@in_local_ray
def test_more_roles_than_cpus_share_them_and_a_closed_runtime_leaves_no_actor() -> None:
    runtime = RayActors(start_s=patient(50))

    async def main() -> list[int]:
        with pytest.raises(RoleRaised, match="what unpicklable returned cannot be sent"):
            await runtime.call("0", "unpicklable", deadline_s=SOON_S)
        return [runtime.pid(role) for role in runtime.roles()]

    roles = [Role(str(number), Echo, Placement(num_cpus=1.5)) for number in range(3)]
    wait_until_gone(drive(runtime, main, *roles))
    assert ray.is_initialized(), "it was not ours to shut down"


class Seeing(Echo):
    def gpus(self) -> tuple[str | None, list[str], bool]:
        given = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return os.environ.get("CUDA_VISIBLE_DEVICES"), given, torch.cuda.is_available()


@pytest.mark.slow
@in_local_ray
def test_a_role_has_the_gpus_it_asked_for_and_sees_no_others() -> None:
    runtime = RayActors(start_s=patient(50))

    async def main() -> None:
        found = [(await runtime.call(role, "gpus", deadline_s=SOON_S))[:2] for role in ("learner", "collector")]
        assert found == [("0", ["0"]), ("", [])]

    drive(runtime, main, Role("learner", Seeing, Placement(num_gpus=1)), Role("collector", Seeing))


@pytest.mark.slow
@pytest.mark.slow
@in_local_ray
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU this Ray believes in must not exist")
def test_a_learner_whose_gpu_does_not_exist_computes_on_the_cpu() -> None:
    settings = {"updates": 3, "num_envs": 4, "segment_steps": 8, "evaluate_every": 0, "max_lead": 1}
    config = PPOConfig(runtime="ray", learner_gpus=1, **settings)
    assert ray.cluster_resources()["GPU"] == 1
    result = launch(ppo.stations(config), config.settings(), runtime=config.build_runtime())
    assert {tensor.device.type for tensor in result.weights.values()} == {"cpu"}
    alone = PPOConfig(runtime="inline", learner_gpus=0, **settings)
    reference = launch(ppo.stations(alone), alone.settings(), runtime="inline")
    assert fingerprint(result.weights) == fingerprint(reference.weights)


# -- a Ray of our own -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_ray")
def test_a_closed_runtime_leaves_nothing_of_the_ray_it_started() -> None:
    before = set(all_children(os.getpid()))
    handler = signal.getsignal(signal.SIGTERM)
    runtime = RayActors(start_s=patient(50))

    async def main() -> list[int]:
        assert signal.getsignal(signal.SIGTERM) is handler
        return list(set(all_children(os.getpid())) - before)

    ours = drive(runtime, main, Role("echo", Echo))
    assert len(ours) >= 3
    wait_until_gone(ours)
    assert not ray.is_initialized()


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGKILL], ids=lambda what: what.name)
def test_an_interrupted_or_killed_driver_leaves_no_process(what: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headway.cli", "run", "functions", "--runs", str(tmp_path), "--runtime", "ray"]
    driver = subprocess.Popen([*command, "--updates", "100000", "--save_every", "5"], start_new_session=True)
    try:
        while not list(tmp_path.glob("*/checkpoints/*-v5/manifest.json")):
            assert driver.poll() is None, "the run ended early"
            time.sleep(0.05)
        children = all_children(driver.pid)
        assert sum("Agent" in title(pid) for pid in children) == 2 and len(children) >= 5
        if what is signal.SIGINT:
            os.killpg(driver.pid, what)  # Ctrl-C reaches the whole group
        else:
            driver.kill()
        driver.wait(patient(30))
    finally:
        driver.kill()
        driver.wait()
    wait_until_gone(children)
    if what is signal.SIGINT:
        assert '"interrupted by SIGINT"' in next(tmp_path.glob("*/summary.json")).read_text()


# -- inside of another event loop ---------------------------------------------------------------------


@in_local_ray
def test_a_run_inside_of_asyncio_gives_the_bits_of_one_outside() -> None:
    settings = Settings(plan=Plan(updates=4), max_lead=1)

    async def main() -> RunResult:
        return launch(toy_stations(), settings, runtime="ray")

    inside, outside = asyncio.run(main()), launch(toy_stations(), settings, runtime="inline")
    assert fingerprint(inside.weights) == fingerprint(outside.weights)
