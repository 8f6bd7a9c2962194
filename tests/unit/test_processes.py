"""The processes runtime: payloads by reference, errors with names, nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_processes import assert_no_more_shared_memory
from system_limits import fill_descriptors, no_descriptor_left
from waiting import patient

from headway.core.protocols import Placement, Role, RoleDied, RoleLate, RoleRaised
from headway.core.types import Batch, Rollout, Snapshot
from headway.runtimes.processes import Processes

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = patient(30)


class Station:
    """Does what the tests ask, in the role's process."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting
        self.kept: list[Any] = []
        self.seen: list[int] = []

    def greet(self, name: str) -> str:
        return f"{self.greeting} {name}"

    def note(self, number: int) -> list[int]:
        self.seen.append(number)
        return list(self.seen)

    def collect(self, fill: int, size: int) -> tuple[Rollout, dict[str, int]]:
        return Rollout({"obs": np.full(size, fill, np.int64), "act": np.zeros(10)}), {"a": 1}

    def collect_tensors(self, fill: int, size: int) -> Rollout:
        import torch

        return Rollout({"obs": torch.full((size,), fill).bfloat16()})

    def snapshot(self, version: int, size: int) -> Snapshot:
        return Snapshot(version, {"w": np.full(size, version, np.float32)})

    def learn(self, batch: Batch) -> list[tuple[float, bool]]:
        observations = [rollout.payload["obs"] for rollout in batch.rollouts]
        return [(float(obs.mean()), obs.flags.writeable) for obs in observations]

    def learn_tensors(self, batch: Batch) -> list[tuple[str, float]]:
        return [(str(rollout.payload["obs"].dtype), rollout.payload["obs"].mean().item()) for rollout in batch.rollouts]

    def apply(self, snapshot: Snapshot) -> tuple[float, bool]:
        return float(snapshot.payload["w"].mean()), snapshot.payload["w"].flags.writeable

    def imported_torch(self) -> bool:
        return "torch" in sys.modules

    def keep(self, rollout: Rollout) -> None:
        self.kept.append(rollout.payload["obs"][5:])

    def look(self) -> list[tuple[int, int]]:
        return [(int(array.min()), int(array.max())) for array in self.kept]

    def drop(self) -> None:
        self.kept.clear()

    def echo(self, value: Any) -> Any:
        return value

    def memory_bytes(self) -> int:
        """What the segments this process has mapped occupy, as the kernel counts it."""
        with os.scandir("/proc/self/fd") as entries:
            segments = [entry for entry in entries if "memfd" in os.readlink(entry.path)]
            return sum({status.st_ino: status.st_blocks * 512 for status in map(os.stat, segments)}.values())

    def fail(self) -> None:
        raise KeyError("no such thing")

    def unpicklable(self) -> tuple[Rollout, Any]:
        return Rollout(np.zeros(5000)), threading.Lock()

    def exit(self, code: int) -> None:
        sys.exit(code)

    def hang(self) -> None:
        threading.Event().wait()

    def fork_and_hang(self) -> int:
        child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
        child.start()
        assert child.pid is not None
        return child.pid

    def environment(self) -> tuple[str, str, int]:
        import torch

        return os.environ["OMP_NUM_THREADS"], os.environ["NUMBA_NUM_THREADS"], torch.get_num_threads()

    def hoard(self) -> int:
        """Open all the files that may be open."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        self.hoarded = fill_descriptors()
        return len(self.hoarded)

    def interrupt(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "still here"


def failing_station() -> Station:
    raise RuntimeError("no licence")


def hanging_station() -> Station:
    threading.Event().wait()
    return Station()


def with_roles(*names: str, **settings: float) -> Callable[[Callable[..., Awaitable[None]]], Callable[[], None]]:
    """Run the test on a runtime with these roles, and check that nothing is left behind."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[[], None]:
        async def main(runtime: Processes) -> None:
            try:
                await asyncio.gather(*(runtime.start(Role(name, Station)) for name in names))
                await test(runtime)
            finally:
                await runtime.close()

        def run() -> None:
            before, shared = left_behind(), set(os.listdir("/dev/shm"))
            runtime = Processes(**settings)
            runtime.run(main(runtime))
            after = left_behind()
            assert after[:2] == before[:2]
            assert after[2] <= before[2], "a thread of an earlier test may end meanwhile, none may be left"
            assert_no_more_shared_memory(shared)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


def left_behind() -> tuple[set[str], list[str], set[threading.Thread]]:
    """Open descriptors, child processes, threads."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return set(os.listdir("/proc/self/fd")), children, set(threading.enumerate())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def is_gone(pid: int) -> bool:
    return not is_alive(pid)


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(patient(limit_s)):
        while not condition():
            await asyncio.sleep(0.005)


# ---------------------------------------------------------------------------------------- payloads


@with_roles("collector", "learner")
async def test_a_rollout_goes_from_one_role_to_another_without_passing_the_driver(runtime: Processes) -> None:
    before = runtime.num_socket_bytes
    rollouts = []
    for fill in range(4):
        rollout, info = await runtime.call("collector", "collect", fill, 100_000, deadline_s=DEADLINE_S)
        assert info == {"a": 1}
        rollouts.append(rollout)
    report = await runtime.call("learner", "learn", Batch(0, tuple(rollouts)), deadline_s=DEADLINE_S)
    assert report == [(fill, True) for fill in range(4)]
    assert runtime.num_socket_bytes - before < 5000
    payload = runtime.fetch(rollouts[3].payload)
    assert payload["obs"].sum() == 300_000 and payload["obs"].flags.writeable


@with_roles("collector", "learner")
async def test_tensors_cross_too_and_nobody_else_imports_torch(runtime: Processes) -> None:
    rollout = await runtime.call("collector", "collect", 1, 100_000, deadline_s=DEADLINE_S)
    assert not await runtime.call("collector", "imported_torch", deadline_s=DEADLINE_S)
    rollout = await runtime.call("collector", "collect_tensors", 3, 100_000, deadline_s=DEADLINE_S)
    report = await runtime.call("learner", "learn_tensors", Batch(0, (rollout,)), deadline_s=DEADLINE_S)
    assert report == [("torch.bfloat16", 3.0)]
    state = {"w": runtime.fetch(rollout.payload)["obs"], "step": 1}
    assert (await runtime.call("learner", "echo", state, deadline_s=DEADLINE_S))["w"].equal(state["w"])


@with_roles("learner", "collector")
async def test_a_snapshot_is_read_only_for_those_who_share_it(runtime: Processes) -> None:
    snapshot = await runtime.call("learner", "snapshot", 7, 50_000, deadline_s=DEADLINE_S)
    for role in ("collector", "learner"):
        assert await runtime.call(role, "apply", snapshot, deadline_s=DEADLINE_S) == (7.0, False)


@with_roles("learner", "collector")
async def test_a_large_state_goes_and_comes_through_shared_memory(runtime: Processes) -> None:
    before = runtime.num_socket_bytes
    state: dict[str, Any] = {"w": np.arange(300_000.0), "m": [np.arange(200_000)], "step": 3}
    for _ in range(20):
        state = await runtime.call("learner", "echo", state, deadline_s=DEADLINE_S)
    assert np.array_equal(state["w"], np.arange(300_000.0)) and state["m"][0].flags.writeable and state["step"] == 3
    assert runtime.num_socket_bytes - before < 20_000
    assert await runtime.call("learner", "memory_bytes", deadline_s=DEADLINE_S) < 16_000_000


@with_roles("learner", "collector")
async def test_a_plain_payload_is_placed_once_until_it_is_released(runtime: Processes) -> None:
    payload = {"w": np.full(200_000, 3.0, np.float32), "t": np.full(200_000, 3.0)}
    for role in ("learner", "collector") * 10:
        result = await runtime.call(role, "apply", Snapshot(3, payload), deadline_s=DEADLINE_S)
        assert result == (3.0, False)
    assert await runtime.call("learner", "memory_bytes", deadline_s=DEADLINE_S) < 3_000_000
    assert runtime.fetch(payload) is payload
    runtime.release(payload)
    runtime.release(payload)


@with_roles("collector", "learner")
async def test_a_held_view_is_never_overwritten(runtime: Processes) -> None:
    for fill in range(1, 6):
        rollout, _ = await runtime.call("collector", "collect", fill, 2000, deadline_s=DEADLINE_S)
        await runtime.call("learner", "keep", rollout, deadline_s=DEADLINE_S)
        runtime.release(rollout.payload)
    for fill in range(100, 200):
        rollout, _ = await runtime.call("collector", "collect", fill, 2000, deadline_s=DEADLINE_S)
        runtime.release(rollout.payload)
    assert await runtime.call("learner", "look", deadline_s=DEADLINE_S) == [(fill, fill) for fill in range(1, 6)]


@with_roles("collector", "learner")
async def test_memory_is_bounded_when_payloads_are_released(runtime: Processes) -> None:
    for number in range(1500):
        rollout, _ = await runtime.call("collector", "collect", number, 5000 + number, deadline_s=DEADLINE_S)
        if number % 10 == 0:
            await runtime.call("learner", "keep", rollout, deadline_s=DEADLINE_S)
        if number % 50 == 0:
            await runtime.call("learner", "drop", deadline_s=DEADLINE_S)
        runtime.release(rollout.payload)
        runtime.release(rollout.payload)
    # 1,500 rollouts of about 60 KB in 5 size classes, at most 5 of them kept at a time.
    assert await runtime.call("learner", "memory_bytes", deadline_s=DEADLINE_S) < 3_000_000


@with_roles("collector", "learner")
async def test_payloads_survive_the_death_of_their_producer_and_their_memory_goes_when_released(
    runtime: Processes,
) -> None:
    rollout, _ = await runtime.call("collector", "collect", 9, 100_000, deadline_s=DEADLINE_S)
    os.kill(runtime.pid("collector"), signal.SIGKILL)
    await runtime.restart("collector")
    assert await runtime.call("learner", "learn", Batch(0, (rollout,)), deadline_s=DEADLINE_S) == [(9.0, True)]
    assert runtime.fetch(rollout.payload)["obs"][0] == 9
    assert await runtime.call("learner", "memory_bytes", deadline_s=DEADLINE_S) > 700_000
    runtime.release(rollout.payload)
    assert await runtime.call("learner", "memory_bytes", deadline_s=DEADLINE_S) == 0
    with pytest.raises(ValueError, match="released"):
        await runtime.call("learner", "learn", Batch(0, (rollout,)), deadline_s=DEADLINE_S)


@with_roles("collector")
async def test_an_abandoned_reply_is_discarded_and_its_payload_released(runtime: Processes) -> None:
    for number in range(200):
        call = asyncio.ensure_future(runtime.call("collector", "collect", 1, 50_000, deadline_s=DEADLINE_S))
        await asyncio.sleep(0)
        while number % 2 and runtime._running["collector"]._pending:
            await asyncio.sleep(0)  # until the reply has come and the caller is about to see it
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await runtime.call("collector", "memory_bytes", deadline_s=DEADLINE_S) < 3_000_000


# ---------------------------------------------------------------------------------------- calls


@with_roles("a")
async def test_outstanding_calls_are_executed_in_the_order_made(runtime: Processes) -> None:
    replies = await asyncio.gather(*(runtime.call("a", "note", n, deadline_s=DEADLINE_S) for n in range(500)))
    assert replies[-1] == list(range(500))
    assert [len(reply) for reply in replies] == list(range(1, 501))


@with_roles("a", "b")
async def test_an_exception_arrives_with_its_traceback_and_the_role_lives_on(runtime: Processes) -> None:
    with pytest.raises(RoleRaised) as caught:
        await runtime.call("a", "fail", deadline_s=DEADLINE_S)
    assert caught.value.what == "KeyError: 'no such thing'"
    assert "in fail" in caught.value.details
    with pytest.raises(RoleRaised, match="unpicklable returned cannot be sent to another process: cannot pickle"):
        await runtime.call("a", "unpicklable", deadline_s=DEADLINE_S)
    with pytest.raises(RoleRaised, match="AttributeError"):
        await runtime.call("a", "no_such_method", deadline_s=DEADLINE_S)
    assert await runtime.call("a", "greet", "you", deadline_s=DEADLINE_S) == "hello you"


@with_roles("a")
async def test_killing_a_role_ends_every_outstanding_call_at_once(runtime: Processes) -> None:
    calls = [asyncio.ensure_future(runtime.call("a", "hang", deadline_s=DEADLINE_S)) for _ in range(5)]
    await asyncio.sleep(0)
    os.kill(runtime.pid("a"), signal.SIGKILL)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, RoleDied) and "SIGKILL" in outcome.what for outcome in outcomes)
    with pytest.raises(RoleDied, match="SIGKILL"):
        await runtime.call("a", "greet", "you", deadline_s=DEADLINE_S)
    await runtime.restart("a")
    assert await runtime.call("a", "greet", "you", deadline_s=DEADLINE_S) == "hello you"


@with_roles("collector", "other")
async def test_a_role_without_a_descriptor_says_which_limit_it_was(runtime: Processes) -> None:
    assert await runtime.call("collector", "hoard", deadline_s=DEADLINE_S) > 10
    with pytest.raises(RoleRaised, match=r"Too many open files.*`ulimit -n` allows 64 open files"):
        await runtime.call("collector", "collect", 1, 10_000, deadline_s=DEADLINE_S)
    assert await runtime.call("collector", "greet", "again", deadline_s=DEADLINE_S) == "hello again"
    rollout, _ = await runtime.call("other", "collect", 1, 10_000, deadline_s=DEADLINE_S)
    with pytest.raises(RoleRaised, match=r"Too many open files.*`ulimit -n` allows 64 open files"):
        await runtime.call("collector", "keep", rollout, deadline_s=DEADLINE_S)
    await until(lambda: "collector" not in runtime.pids())  # it can no longer be told what is shared


@with_roles("one", "other")
async def test_a_driver_without_a_descriptor_ends_the_call_and_says_how_many_would_do(runtime: Processes) -> None:
    with no_descriptor_left(), pytest.raises(OSError, match="96 are enough for 2 roles") as caught:
        await runtime.call("one", "collect", 1, 10_000, deadline_s=DEADLINE_S)
    assert caught.value.errno == errno.EMFILE
    await until(lambda: "one" not in runtime.pids())
    rollout, _ = await runtime.call("other", "collect", 3, 10_000, deadline_s=DEADLINE_S)
    assert runtime.fetch(rollout.payload)["obs"][0] == 3


@with_roles("one")
async def test_a_role_that_cannot_be_started_for_lack_of_descriptors_leaves_nothing(runtime: Processes) -> None:
    with no_descriptor_left(), pytest.raises(OSError, match="96 are enough for 2 roles"):
        await runtime.start(Role("another", Station))
    await runtime.start(Role("another", Station))
    assert await runtime.call("another", "greet", "you", deadline_s=DEADLINE_S) == "hello you"


@with_roles("a")
async def test_an_exit_says_its_code(runtime: Processes) -> None:
    with pytest.raises(RoleDied, match="exited with code 3"):
        await runtime.call("a", "exit", 3, deadline_s=DEADLINE_S)


@with_roles("stopped", "hanging", "other")
async def test_a_passed_deadline_kills_the_role_even_when_it_is_stopped(runtime: Processes) -> None:
    os.kill(runtime.pid("stopped"), signal.SIGSTOP)
    for role, method in (("stopped", "drop"), ("hanging", "hang")):
        pid = runtime.pid(role)
        with pytest.raises(RoleLate, match=r"no answer within 0\.2 s"):
            await runtime.call(role, method, deadline_s=0.2)
        await until(partial(is_gone, pid))
        await runtime.restart(role)
        assert await runtime.call(role, "greet", "you", deadline_s=DEADLINE_S) == "hello you"


@with_roles("a")
async def test_children_of_a_role_end_with_it_and_do_not_hide_its_death(runtime: Processes) -> None:
    grandchild = await runtime.call("a", "fork_and_hang", deadline_s=DEADLINE_S)
    os.kill(runtime.pid("a"), signal.SIGKILL)
    with pytest.raises(RoleDied):
        await runtime.call("a", "hang", deadline_s=DEADLINE_S)
    await until(partial(is_gone, grandchild))


@with_roles("a")
async def test_an_interrupt_is_ignored_by_roles(runtime: Processes) -> None:
    assert await runtime.call("a", "interrupt", deadline_s=DEADLINE_S) == "still here"


@with_roles()
async def test_threads_are_limited_as_placed(runtime: Processes) -> None:
    await runtime.start(Role("a", Station, Placement(num_threads=2)))
    assert await runtime.call("a", "environment", deadline_s=DEADLINE_S) == ("2", "2", 2)


# ---------------------------------------------------------------------------------------- start and end


@with_roles()
async def test_a_factory_must_be_defined_at_module_level(runtime: Processes) -> None:
    with pytest.raises(ValueError, match=r"'a'.*must be a function defined at module level"):
        await runtime.start(Role("a", lambda: Station()))


@with_roles()
async def test_a_factory_that_raises_says_so_and_may_be_started_again(runtime: Processes) -> None:
    with pytest.raises(RoleRaised, match=r"a\.start: RuntimeError: no licence"):
        await runtime.start(Role("a", failing_station))
    await runtime.start(Role("a", partial(Station, "good day")))
    assert await runtime.call("a", "greet", "you", deadline_s=DEADLINE_S) == "good day you"
    with pytest.raises(ValueError, match="started already"):
        await runtime.start(Role("a", Station))


@with_roles(start_s=0.5)
async def test_a_factory_that_hangs_is_killed(runtime: Processes) -> None:
    with pytest.raises(RoleLate, match=r"a\.start: no answer within 0\.5 s"):
        await runtime.start(Role("a", hanging_station))
    assert not is_alive(runtime.pid("a"))


@with_roles("a", grace_s=0.2)
async def test_closing_twice_and_in_the_middle_of_a_call_is_fine(runtime: Processes) -> None:
    call = asyncio.ensure_future(runtime.call("a", "hang", deadline_s=DEADLINE_S))
    await asyncio.sleep(0)
    await runtime.close()
    with pytest.raises(RoleDied):
        await call
    await runtime.close()


DRIVER = """
import asyncio, sys
from headway.core.protocols import Role
from headway.runtimes.processes import Processes

class Station:
    def hang(self):
        import threading
        threading.Event().wait()

async def main(runtime):
    await asyncio.gather(runtime.start(Role("idle", Station)), runtime.start(Role("busy", Station)))
    print(runtime.pid("idle"), runtime.pid("busy"), flush=True)
    await runtime.call("busy", "hang", deadline_s=60)

{guard}runtime = Processes()
{guard}runtime.run(main(runtime))
"""


def driver(directory: Path, guard: str) -> subprocess.Popen[str]:
    script = directory / "driver.py"
    script.write_text(DRIVER.format(guard=guard))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )


def test_no_role_outlives_a_killed_driver(tmp_path: Path) -> None:
    with driver(tmp_path, guard="if __name__ == '__main__': ") as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_alive, pids))
        process.kill()
        asyncio.run(until(lambda: not any(map(is_alive, pids))))


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    with driver(tmp_path, guard="") as process:
        _, errors = process.communicate(timeout=patient(30))
    assert process.returncode == 1
    assert "if __name__ == '__main__':" in errors


def test_starting_roles_together_overlaps_their_imports() -> None:
    async def main(runtime: Processes) -> None:
        starts = [asyncio.ensure_future(runtime.start(Role(name, Station))) for name in "ab"]
        await asyncio.sleep(0)
        assert is_alive(runtime.pid("a")) and is_alive(runtime.pid("b"))
        await asyncio.gather(*starts)
        assert sorted(runtime.roles()) == ["a", "b"]
        await runtime.close()

    runtime = Processes()
    runtime.run(main(runtime))
