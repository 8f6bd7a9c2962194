"""`headway.start`: a run that goes on in the background is looked at, stopped, waited for and awaited."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from notebook_kernels import in_a_kernel
from waiting import patient

import headway
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.role_calls import RunFailed
from headway.core.types import Ticket
from headway.runs.config import ConfigError, read_values
from headway.runs.console import Status, progress_bar
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_of_functions import KEYWORDS
from headway.runs.recipes_package import load_recipe

RUNTIMES = ["inline", "threads", "processes"]
QUICK = {"updates": 4, "collect_ms": 0, "train_ms": 0, "evaluate_ms": 0, "evaluate_every": 2}


def collect(weights: float, ticket: Ticket) -> float:
    return weights + ticket.seed % 7


def train(weights: float, rollouts: list[float]) -> float:
    return weights + 0.01 * rollouts[0]


def evaluate(weights: float) -> float:
    return weights


class Held:
    """Collects only as long as a gate is open; says when it waits at it."""

    def __init__(self, free: int) -> None:
        self.left, self.gate, self.is_waiting = free, threading.Event(), threading.Event()

    def __call__(self, weights: float, ticket: Ticket) -> float:
        self.left -= 1
        if self.left < 0:
            self.is_waiting.set()
            assert self.gate.wait(60)
        return collect(weights, ticket)


def start(collect: Any = collect, **more: Any) -> headway.Run:
    said = {"weights": 0.0, "updates": 8, "evaluate_every": 2, "max_lead": 0, **more}
    return headway.start(collect, train, evaluate, **said)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_run_in_the_background_gives_the_bits_of_one_in_front(runtime: str) -> None:
    result = start(runtime=runtime).wait(60)
    front = headway.run(collect, train, evaluate, weights=0.0, updates=8, evaluate_every=2, max_lead=0)
    assert (result.scores, fingerprint(result.weights)) == (front.scores, fingerprint(front.weights))


def test_it_can_be_looked_at_while_it_goes_on() -> None:
    held = Held(free=5)
    run = start(held)
    assert held.is_waiting.wait(60)
    assert not run.is_over
    assert (run.updates, run.version, [score.version for score in run.scores]) == (5, 5, [2, 4])
    assert "collector-0" in run.why() and "collect" in run.why()
    status = run.status()
    assert (status.done, status.total, status.score_version) == (5, 8, 4)
    assert "going on: update 5/8" in repr(run) and "update 5/8" in run._repr_html_()
    with pytest.raises(TimeoutError, match=r"goes on after 0.01 s: update 5/8"):
        run.wait(0.01)
    held.gate.set()
    assert run.wait(60).updates == 8
    assert run.is_over and run.why() == "over: reached 8 updates" and len(run.scores) == 4
    assert "over: reached 8 updates" in repr(run)


def test_stop_saves_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    held = Held(free=3)
    run = start(held, updates=100_000, folder=tmp_path / "run")
    assert held.is_waiting.wait(60)
    run.stop()
    held.gate.set()
    result = run.wait(60)
    assert (result.is_complete, result.stop_reason) == (False, "interrupted by stop()")
    assert CheckpointStore(tmp_path / "run" / "checkpoints").load().updates == result.updates
    again = start(updates=result.updates + 2, folder=tmp_path / "run", resume=True)
    assert again.wait(60).updates == result.updates + 2


def test_it_can_be_awaited_beside_other_things() -> None:
    async def main() -> tuple[int, list[int]]:
        ticks: list[int] = []

        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        beside = asyncio.create_task(tick())
        result = await start()
        beside.cancel()
        return result.updates, ticks

    updates, ticks = asyncio.run(main())
    assert updates == 8 and len(ticks) > 1


def test_whoever_stops_awaiting_leaves_the_run_going_on() -> None:
    held = Held(free=1)

    async def main() -> headway.Run:
        run = start(held)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_result(run), 0.01)
        return run

    run = asyncio.run(main())
    assert not run.is_over
    held.gate.set()
    assert run.wait(60).updates == 8


async def _result(run: headway.Run) -> headway.RunResult:
    return await run


def raises(weights: float, ticket: Ticket) -> float:
    raise ValueError("not today")


def test_what_a_run_raises_is_raised_where_it_is_waited_for() -> None:
    run = start(raises)
    with pytest.raises(RunFailed, match="ValueError: not today"):
        run.wait(60)
    assert run.why().startswith("failed: ") and "not today" in repr(run)

    async def main() -> None:
        await start(raises)

    with pytest.raises(RunFailed, match="ValueError: not today"):
        asyncio.run(main())


def test_settings_that_cannot_be_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="max_lead must be a finite number"):
        start(max_lead=-1)
    with pytest.raises(TypeError, match=r"unknown keyword of headway\.run 'max_laed'; did you mean 'max_lead'"):
        start(max_laed=2)
    with pytest.raises(ValueError, match="unknown runtime 'thread'"):
        start(runtime="thread")
    with pytest.raises(ValueError, match="unknown recipe 'pppo'"):
        headway.start("pppo")
    with pytest.raises(TypeError, match="takes settings by name, received 1 more"):
        headway.start("functions", 3)


def test_an_interrupt_while_waiting_ends_it_politely() -> None:
    held = Held(free=3)
    run = start(held, updates=100_000)
    assert held.is_waiting.wait(60)
    held.left = 10**9
    here = threading.get_ident()

    def interrupt() -> None:
        while not {"result_of", "wait"} <= set(names_of_calls(here)):  # once it is really waited for
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        held.gate.set()

    interrupting = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupting.start()
        result = run.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        interrupting.join(60)
    assert result.stop_reason == "interrupted by KeyboardInterrupt"


def names_of_calls(thread: int) -> list[str]:
    frame, names = sys._current_frames().get(thread), list[str]()
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_a_block_ends_when_the_run_does_and_an_error_in_it_stops_the_run() -> None:
    with start() as run:
        pass
    assert run.is_over and run.updates == 8
    held = Held(free=3)
    endless = start(held, updates=100_000)
    assert held.is_waiting.wait(60)
    held.gate.set()
    with pytest.raises(KeyError), endless:
        raise KeyError("mine")
    assert endless.is_over and "interrupted by KeyError" in endless.why()


def test_recipes_and_stations_can_be_started_too(tmp_path: Path) -> None:
    run = headway.start("functions", runs=tmp_path, tensorboard=False, name="mine", **QUICK)
    assert run.wait(60).updates == 4
    assert run.folder is not None and run.folder.path.name.endswith("-mine") and run.folder.summary.is_file()
    assert RunFolder.existing(run.folder.path).read_config()[0] == "functions"
    recipe = load_recipe("functions")
    config = read_values(recipe.config, QUICK)
    assert headway.start(recipe.stations(config), config.settings(), runtime="threads").wait(60).updates == 4


def test_a_result_is_one_line_where_it_is_shown() -> None:
    shown = repr(headway.start("functions", updates=2, collect_ms=0, train_ms=0, evaluate_ms=0).wait())
    assert re.fullmatch(
        r"<result of a run: reached 2 updates; version 2, score [-.\d]+ \(version 2\), staleness at most \d, [.\d]+ s>",
        shown,
    )


def test_help_and_editors_see_every_keyword() -> None:
    import inspect

    from headway.runs import launch_of_functions as of_functions

    assert inspect.signature(of_functions.start).parameters.keys() >= KEYWORDS


def test_a_bar_shows_how_far_a_run_is() -> None:
    status = Status(5, 10, "update", 5, 1.0, 0.0, 1.0, None, ())
    assert progress_bar(status, 4) == "[##..]"
    assert progress_bar(Status(5, None, "update", 5, 1.0, 0.0, 1.0, None, ())) == ""


# -- a real kernel ------------------------------------------------------------------------------------

CELLS = (
    """
import headway
def collect(weights, ticket):
    return weights + ticket.seed % 7
def train(weights, rollouts):
    return weights + 0.01 * rollouts[0]
result = headway.run(collect, train, lambda weights: weights, weights=0.0, updates=8, show_status=True)
""",
    "run = headway.start(collect, train, weights=0.0, updates=8)",
    "result = await run\nresult.updates",
    "run",
)


def test_a_notebook_shows_how_far_a_run_is(tmp_path: Path) -> None:
    bar, updates, shown = in_a_kernel("notebook", tmp_path, *CELLS)
    assert bar.startswith("[##############################] update 8/8, version 8")
    assert (updates, shown) == ("8", "<run, over: reached 8 updates>")


# -- recipes from Python ----------------------------------------------------------------------------

QUICK_PPO = {"env": "CartPole-v1", "num_envs": 4, "segment_steps": 16, "updates": 2, "evaluate_every": 1}
QUICK_PPO |= {"eval_episodes": 2, "tensorboard": False}


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """A script of a user's own, in a fresh process."""
    (folder / "mine.py").write_text(text)
    command = [sys.executable, "mine.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patient(100), check=False)


def test_train_waits_shows_how_far_it_is_and_returns_what_was_learned(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        f"""
import headway

run = headway.train("ppo", **{QUICK_PPO})
assert run.is_over and [score.version for score in run.scores] == [1, 2]
assert run.policy.facts.score == max(score.value for score in run.scores)
assert run.policy is run.policy
observation, _ = run.policy.make_env().reset(seed=0)
print("action", run.policy.act(observation), "in", run.folder)
""",
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"reached 2 updates; last score [\d.]+; version 2 in runs/ppo-", done.stdout)
    assert re.search(r"action [01] in runs/ppo-", done.stdout)
    assert "goes on" not in done.stderr and "the program ends" not in done.stderr


def test_a_script_that_ends_before_its_run_says_what_waits_for_it(tmp_path: Path) -> None:
    done = script(tmp_path, f"import headway\nheadway.start('ppo', **{QUICK_PPO | {'updates': 100_000}})\n")
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "the program ends and takes the run in runs/ppo-" in done.stderr
    assert "call run.wait(), or use headway.train(...)" in done.stderr


def test_a_recipe_given_to_run_is_refused_with_what_trains_it() -> None:
    with pytest.raises(TypeError, match=r"received 'ppo'; a recipe is trained by headway.train\('ppo', ...\)"):
        headway.run("ppo", env="CartPole-v1")  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match=r"takes the name of a recipe, received <function collect.*headway.run\("):
        headway.train(collect)  # type: ignore[arg-type]


class Rows:
    """Data, as some library has them."""


def test_an_object_in_place_of_a_setting_is_refused_with_the_text_that_stands_for_it(tmp_path: Path) -> None:
    here = __name__
    for settings, line in [
        (
            {"env": Held},
            f"env: settings are text and numbers, received an object (type); name it, as in env='{here}:Held'",
        ),
        ({"monitor": lambda given: None}, "name it, as in monitor='file.py:lambda', in a file of its own"),
        ({"env_options": {"f": collect}}, f"name it, as in env_options['f']='{here}:collect'"),
        ({"env": Rows()}, "received an object (Rows); data are named by their file or folder, as in task='jsonl:FILE'"),
    ]:
        with pytest.raises(ConfigError) as refused:
            headway.train("ppo", runs=tmp_path, **settings)
        assert line in str(refused.value) and "\n" not in str(refused.value)
    assert not any(tmp_path.iterdir())


def test_a_run_of_functions_has_no_policy() -> None:
    run = start()
    run.wait(60)
    with pytest.raises(ValueError, match=r"has no policy: wait\(\).weights is what it learned"):
        _ = run.policy
