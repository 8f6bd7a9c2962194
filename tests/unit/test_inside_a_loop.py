"""Runs that are started where an event loop is running already: in asyncio, and in the kernel of a notebook."""

from __future__ import annotations

import asyncio
import contextvars
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from notebook_kernels import in_a_kernel

import headway
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.role_calls import RunFailed
from headway.core.types import Ticket
from headway.runs.config import read_values
from headway.runs.fingerprint import fingerprint
from headway.runs.recipes_package import load_recipe
from headway.runtimes.loop_threads_own_thread import run_in_own_thread
from headway.runtimes.threads import Threads

RUNTIMES = ["inline", "threads", "processes"]


def collect(weights: float, ticket: Ticket) -> float:
    return weights + ticket.seed % 7


def train(weights: float, rollouts: list[float]) -> float:
    return weights + 0.01 * rollouts[0]


def evaluate(weights: float) -> float:
    return weights


def run(collect: Any = collect, **more: Any) -> headway.RunResult:
    return headway.run(collect, train, evaluate, **{"weights": 0.0, "updates": 8, "evaluate_every": 4, **more})


@pytest.mark.parametrize("runtime", [*RUNTIMES, "virtual"])
def test_a_run_inside_of_asyncio_gives_the_bits_of_one_outside(runtime: str, tmp_path: Path) -> None:
    def place() -> Any:
        from headway.runtimes.virtual import Virtual
        from headway.tools.simulate.workloads import Constant, SteadyWorkload

        return Virtual(SteadyWorkload(collect=Constant(1.0), learn=Constant(1.0))) if runtime == "virtual" else runtime

    async def main() -> headway.RunResult:
        return run(runtime=place(), max_lead=2, folder=tmp_path / "run", save_every=2)

    inside, outside = asyncio.run(main()), run(runtime=place(), max_lead=2)
    assert (inside.updates, len(inside.scores)) == (8, len(outside.scores))
    assert fingerprint(inside.weights) == fingerprint(outside.weights)
    assert (tmp_path / "run" / "summary.json").is_file()


def test_stations_can_be_launched_inside_of_asyncio_too() -> None:
    recipe = load_recipe("functions")
    config = read_values(recipe.config, {"updates": 4, "collect_ms": 0, "train_ms": 0, "evaluate_ms": 0})

    async def main() -> headway.RunResult:
        return headway.launch(recipe.stations(config), config.settings())

    assert asyncio.run(main()).updates == 4


def test_the_loop_around_goes_on_afterwards() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        around = asyncio.get_running_loop()
        around.call_soon(said.append, "asked before")
        run(runtime="inline")
        assert asyncio.get_running_loop() is around
        await asyncio.sleep(0)
        return said

    assert asyncio.run(main()) == ["asked before"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_a_run_raises_reaches_the_caller(runtime: str) -> None:
    async def main() -> None:
        run(collect=raises, runtime=runtime)

    with pytest.raises(RunFailed, match="failed on collector-0: ValueError: not today"):
        asyncio.run(main())


def raises(weights: float, ticket: Ticket) -> float:
    raise ValueError("not today")


def test_settings_that_cannot_be_are_refused_inside_of_a_loop_as_elsewhere() -> None:
    async def main() -> None:
        run(max_lead=-1)

    with pytest.raises(ValueError, match="max_lead must be a finite number"):
        asyncio.run(main())


class Interrupted:
    """Sends this many SIGINT to the process, one with each rollout from the fourth on."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, weights: float, ticket: Ticket) -> float:
        if ticket.index >= 3 and self.left:
            self.left -= 1
            os.kill(os.getpid(), signal.SIGINT)
        return collect(weights, ticket)


class InterruptedElsewhere(Interrupted):
    """Sends them to its own thread, so that the one that waits for the run is not woken."""

    def __call__(self, weights: float, ticket: Ticket) -> float:
        if ticket.index >= 3 and self.left:
            self.left -= 1
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return collect(weights, ticket)


def test_an_interrupt_that_wakes_another_thread_ends_a_run_too() -> None:
    async def main() -> headway.RunResult:
        return run(InterruptedElsewhere(1), runtime="threads", max_lead=0, updates=10_000_000)

    assert asyncio.run(main()).stop_reason == "interrupted by SIGINT"


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_an_interrupt_ends_a_run_politely_and_it_can_be_resumed(runtime: str, tmp_path: Path) -> None:
    async def main(collect: Any, **more: Any) -> headway.RunResult:
        return run(collect, runtime=runtime, folder=tmp_path / "run", max_lead=0, **more)

    before = signal.getsignal(signal.SIGINT)
    first = asyncio.run(main(Interrupted(1), updates=100_000))
    assert signal.getsignal(signal.SIGINT) is before
    assert (first.is_complete, first.stop_reason) == (False, "interrupted by SIGINT")
    assert CheckpointStore(tmp_path / "run" / "checkpoints").load().updates == first.updates
    again = asyncio.run(main(collect, updates=first.updates + 2, resume=True))
    assert again.updates == first.updates + 2


def test_a_second_interrupt_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = io.StringIO()
    monkeypatch.setattr(sys, "stderr", heard)

    def interrupts_twice(weights: float, ticket: Ticket) -> float:
        for number in (1, 2):  # signals that come together count as one: the second waits until the first was answered
            os.kill(os.getpid(), signal.SIGINT)
            while heard.getvalue().count("SIGINT") < number:
                time.sleep(0.001)
        threading.Event().wait()  # for ever
        return 0.0

    async def main() -> None:
        run(interrupts_twice, runtime="threads")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert [line.split(":")[0] for line in heard.getvalue().splitlines()] == ["SIGINT", "SIGINT again"]


def test_sigusr1_says_who_waits_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)

    def asks(weights: float, ticket: Ticket) -> float:
        if ticket.index == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
            while "tickets live" not in said.getvalue():
                time.sleep(0.001)
        return collect(weights, ticket)

    async def main() -> headway.RunResult:
        return run(asks, runtime="threads")

    assert asyncio.run(main()).updates == 8
    assert "collector-0" in said.getvalue()


# -- the thread by itself -----------------------------------------------------------------------------


def test_a_keyboard_interrupt_that_is_raised_all_the_same_asks_the_run_to_end() -> None:
    asked: list[str] = []
    stops: list[Any] = []

    async def main() -> str:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
        os.kill(os.getpid(), signal.SIGINT)
        await stopped.wait()
        return "saved"

    def stop() -> None:
        asked.append("stop")
        stops[0]()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run_in_own_thread(Threads(), main(), stop, lambda: asked.append("abort")) == "saved"
    finally:
        signal.signal(signal.SIGINT, before)
    assert asked == ["stop"]


def test_contextvars_of_the_caller_are_there() -> None:
    cell = contextvars.ContextVar("cell", default="none")

    async def look() -> tuple[str, str]:
        return threading.current_thread().name, cell.get()

    async def main() -> tuple[str, str]:
        cell.set("third")
        return run_in_own_thread(Threads(), look(), lambda: None, lambda: None)

    assert asyncio.run(main()) == ("headway coordinator", "third")


# -- a real kernel ------------------------------------------------------------------------------------

DEFINED = """
import os, pathlib, headway
def collect(weights, ticket):
    return weights + ticket.seed % 7
def train(weights, rollouts):
    return weights + 0.01 * rollouts[0]
def run(collect=collect, **more):
    return headway.run(collect, train, lambda weights: weights, **{"weights": 0.0, "updates": 8, **more})
"""
RECIPE = """
from headway.runs.recipes_package import load_recipe
from headway.runs.config import read_values
recipe = load_recipe("functions")
config = read_values(recipe.config, dict(updates=3, collect_ms=0, train_ms=0, evaluate_ms=0))
headway.launch(recipe.stations(config), config.settings()).updates
"""
ENDLESS = """
def begin(weights, ticket):
    if ticket.index == 5:
        pathlib.Path("begun").touch()
    return collect(weights, ticket)
result = run(begin, updates=10**9, max_lead=0, folder="run")
"""
GO_ON = """
assert result.stop_reason == "interrupted by SIGINT", result.stop_reason
again = run(updates=result.updates + 2, max_lead=0, folder="run", resume=True)
assert again.updates == result.updates + 2, again.updates
"""


def test_a_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    runs = f"results = [run(runtime=name, max_lead=2, evaluate_every=4) for name in {RUNTIMES!r}]\n"
    runs += "len({(result.weights, len(result.scores)) for result in results})"
    loop = "import asyncio\nawait asyncio.sleep(0)  # the kernel's own loop\nresults[0].updates"
    assert in_a_kernel("notebook", tmp_path, DEFINED, runs, loop, RECIPE) == ["1", "8", "3"]


def test_interrupting_the_kernel_ends_a_run_politely(tmp_path: Path) -> None:
    assert in_a_kernel("interrupt", tmp_path, DEFINED + ENDLESS, GO_ON) == ["ok", "ok"]


def test_an_error_in_a_notebook_is_the_one_the_run_raised(tmp_path: Path) -> None:
    [answer] = in_a_kernel("answers", tmp_path, DEFINED + "run(lambda weights, ticket: 1 / 0)")
    assert answer == "error RunFailed ticket 0 at version 0 failed on collector-0: ZeroDivisionError: division by zero"
