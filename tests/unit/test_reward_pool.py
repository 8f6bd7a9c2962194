"""The pool of rewards: many at once, each with a deadline and attempts; the result never depends on who answers first.

Reward functions here wait for events and barriers, so that what runs at once is shown by its running at all.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import patient

from headway.core.protocols import CannotGoOn
from headway.llm.engine.protocol_engine import Sample
from headway.llm.tasks.reward_functions import RewardFunctions, RuleReward, load_rewards
from headway.llm.tasks.reward_pool import PoolSettings, RewardPool, RuleScorer, scorer_of
from headway.llm.tasks.rewards import RewardError, parts_of
from headway.llm.tasks.tasks import Prompt, load_task, user_says

LONG_S = patient(30)


class AskedAsync(RuleReward):
    """The same as a coroutine."""

    def __init__(self, rule: Callable[[Prompt, str], Any]) -> None:
        super().__init__("later", rule)
        object.__setattr__(self, "is_async", True)


def of(rule: Callable[[Prompt, str], Any]) -> RewardFunctions:
    return RewardFunctions((RuleReward("rule", rule),))


def of_async(rule: Callable[[Prompt, str], Any]) -> RewardFunctions:
    return RewardFunctions((AskedAsync(rule),))


@pytest.fixture
def make() -> Iterator[Callable[..., RewardPool]]:
    pools: list[RewardPool] = []

    def build(rewards: RewardFunctions, **settings: Any) -> RewardPool:
        pools.append(RewardPool(rewards, PoolSettings(**{"delay_s": 0.0, "wait_s": LONG_S, **settings})))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


def prompt_of(uid: str = "p/1", truth: Any = "7") -> Prompt:
    return Prompt(uid, 0, "train", "p", (user_says("3 + 4?"),), truth)


def replies(*texts: str) -> list[Sample]:
    empty = np.zeros(1, np.int32)
    return [Sample(empty, empty.astype(np.float32), empty, "stop", text) for text in texts]


# -- at once, and in order --------------------------------------------------------------------------


def test_all_replies_of_a_group_are_scored_at_once(make: Callable[..., RewardPool]) -> None:
    barrier = threading.Barrier(8, timeout=LONG_S)  # is passed only if eight calls are under way together

    def rule(prompt: Prompt, text: str) -> float:
        barrier.wait()
        return float(text)

    assert make(of(rule)).score(prompt_of(), replies(*"01234567")).rewards == [float(k) for k in range(8)]


def test_coroutines_of_a_group_run_at_once(make: Callable[..., RewardPool]) -> None:
    arrived: list[str] = []

    async def rule(prompt: Prompt, text: str) -> float:
        arrived.append(text)
        while len(arrived) < 4:
            await asyncio.sleep(0)
        return float(text)

    assert make(of_async(rule)).score(prompt_of(), replies(*"0123")).rewards == [0.0, 1.0, 2.0, 3.0]


def test_rewards_stand_in_the_order_of_their_replies_whoever_answers_first(make: Callable[..., RewardPool]) -> None:
    answered = {text: threading.Event() for text in "0123"}
    order: list[str] = []

    def rule(prompt: Prompt, text: str) -> float:
        after = str(int(text) + 1)  # the last one answers first
        if after in answered:
            assert answered[after].wait(LONG_S)
        order.append(text)
        answered[text].set()
        return 0.1 * int(text)

    scores = make(of(rule)).score(prompt_of(), replies(*"0123"))
    assert order == ["3", "2", "1", "0"]
    assert scores.rewards == [0.1 * k for k in range(4)]


def test_no_more_calls_than_allowed_are_under_way(make: Callable[..., RewardPool]) -> None:
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Barrier(3, timeout=LONG_S)

    def rule(prompt: Prompt, text: str) -> float:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait()  # twelve calls in four rounds of three: it would break with fewer at once
        with lock:
            running -= 1
        return 1.0

    pool = make(of(rule), calls=3)
    threads = [
        threading.Thread(target=pool.score, args=(prompt_of(f"p/{k}"), replies("a", "b", "c"))) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert most == 3
    assert pool.health()["reward_calls"] == 12


def test_one_slow_group_holds_up_nobody_else(make: Callable[..., RewardPool]) -> None:
    go_on = threading.Event()

    def rule(prompt: Prompt, text: str) -> float:
        if prompt.uid == "slow":
            assert go_on.wait(LONG_S)
        return 1.0

    pool = make(of(rule))
    slow = threading.Thread(target=pool.score, args=(prompt_of("slow"), replies("a")))
    slow.start()
    assert pool.score(prompt_of("quick"), replies("a")).rewards == [1.0]
    assert slow.is_alive()
    while not pool.doing():
        assert slow.is_alive()
    assert pool.doing()[0].startswith("reward rule on sample slow (since ")
    go_on.set()
    slow.join(LONG_S)
    assert not slow.is_alive() and pool.doing() == []


# -- attempts ---------------------------------------------------------------------------------------


class Unavailable(RuntimeError):
    """503."""


def test_one_failure_costs_one_call_and_not_the_group(make: Callable[..., RewardPool]) -> None:
    lock, calls = threading.Lock(), []

    def rule(prompt: Prompt, text: str) -> float:
        with lock:
            calls.append(text)
            if text == "b" and calls.count("b") < 3:
                raise Unavailable("503: try again")
        return 1.0

    scores = make(of(rule), attempts=3).score(prompt_of(), replies("a", "b", "c"))
    assert scores.rewards == [1.0, 1.0, 1.0]
    assert sorted(calls) == ["a", "b", "b", "b", "c"]
    assert (scores.measures["scoring_retries"], scores.measures["scoring_late"]) == (2, 0)


def test_attempts_that_are_used_up_are_one_line_and_the_first_in_order_is_told(make: Callable[..., RewardPool]) -> None:
    b_failed = threading.Event()

    def rule(prompt: Prompt, text: str) -> float:
        if text == "b":
            b_failed.set()
            raise Unavailable("503:\ntry again")
        assert b_failed.wait(LONG_S)
        raise Unavailable("504")

    pool = make(of(rule), attempts=2)
    with pytest.raises(RewardError) as caught:
        pool.score(prompt_of(), replies("a", "b"))
    assert str(caught.value) == "reward rule failed on sample p/1: Unavailable: 504 (2 attempts)"
    assert pool.health() == {
        **{"reward_calls": 2, "reward_retries": 2, "reward_late": 0, "reward_failed": 2, "reward_hanging": 0}
    }


def test_pauses_grow_and_what_a_call_can_take_is_known() -> None:
    settings = PoolSettings(attempts=4, delay_s=0.5, backoff=3.0, deadline_s=10)
    assert settings.pauses_s == (0.5, 1.5, 4.5)
    assert settings.longest_s == 46.5
    assert PoolSettings(attempts=1).pauses_s == ()


def test_a_pause_holds_no_place(make: Callable[..., RewardPool]) -> None:
    order: list[str] = []
    failed = threading.Event()

    def rule(prompt: Prompt, text: str) -> float:
        order.append(prompt.uid)
        if prompt.uid == "unlucky" and not failed.is_set():
            failed.set()
            raise Unavailable("503")
        return 1.0

    pool = make(of(rule), calls=1, attempts=2, delay_s=patient(1.0))
    unlucky = threading.Thread(target=pool.score, args=(prompt_of("unlucky"), replies("a")))
    unlucky.start()
    assert failed.wait(LONG_S)
    assert pool.score(prompt_of("lucky"), replies("a")).rewards == [1.0]
    unlucky.join(LONG_S)
    assert order == ["unlucky", "lucky", "unlucky"]


def test_what_is_no_reward_is_not_asked_for_again(make: Callable[..., RewardPool]) -> None:
    calls: list[str] = []

    def rule(prompt: Prompt, text: str) -> float:
        calls.append(text)
        return float("nan")

    with pytest.raises(RewardError, match=r"^reward rule returned nan for sample p/1; allowed: a finite number$"):
        make(of(rule)).score(prompt_of(), replies("a"))
    assert calls == ["a"]


def test_a_number_beyond_all_floats_is_no_reward_and_not_asked_for_again(make: Callable[..., RewardPool]) -> None:
    pool = make(of(lambda prompt, text: 10**10_000), attempts=3)  # too many digits to be printed
    with pytest.raises(RewardError, match=r"^reward rule returned a number beyond all floats for sample p/1$"):
        pool.score(prompt_of(), replies("a"))
    assert pool.health()["reward_retries"] == 0


def test_a_coroutine_that_is_cancelled_by_its_own_client_is_asked_again(make: Callable[..., RewardPool]) -> None:
    calls: list[str] = []

    async def rule(prompt: Prompt, text: str) -> float:
        calls.append(text)
        if len(calls) == 1:
            raise asyncio.CancelledError  # as a client raises it whose connection is gone
        return 1.0

    pool = make(of_async(rule))
    assert pool.score(prompt_of(), replies("a")).rewards == [1.0]
    assert pool.health()["reward_retries"] == 1


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), StopIteration(), TimeoutError("of a socket"), asyncio.CancelledError("gone")],
)
def test_whatever_a_function_raises_the_pool_goes_on(make: Callable[..., RewardPool], error: BaseException) -> None:
    def rule(prompt: Prompt, text: str) -> float:
        if text == "bad":
            raise error
        return 1.0

    async def later(prompt: Prompt, text: str) -> float:
        return rule(prompt, text)

    for rewards in (of(rule), of_async(later)):
        pool = make(rewards, attempts=1)
        with pytest.raises(RewardError, match=f"failed on sample p/1: .*{type(error).__name__}"):
            pool.score(prompt_of(), replies("bad"))
        assert pool.score(prompt_of(), replies("good")).rewards == [1.0]


# -- deadlines --------------------------------------------------------------------------------------


def test_a_hanging_function_is_left_behind_counted_and_named(make: Callable[..., RewardPool]) -> None:
    end, first = threading.Event(), threading.Event()

    def rule(prompt: Prompt, text: str) -> float:
        if not first.is_set():
            first.set()
            end.wait(LONG_S)
        return 1.0

    pool = make(of(rule), deadline_s=patient(0.25), attempts=2)
    scores = pool.score(prompt_of(), replies("a"))
    assert scores.rewards == [1.0] and scores.measures["scoring_late"] == 1
    assert pool.health()["reward_hanging"] == 1
    (line,) = pool.doing()
    assert line.startswith("reward rule on sample p/1 was given up ") and line.endswith(" and still hangs")
    end.set()
    give_up = time.monotonic() + LONG_S
    while pool.health()["reward_hanging"] and time.monotonic() < give_up:
        os.sched_yield()
    assert pool.doing() == []  # it came back, and its answer was dropped


def test_a_function_that_always_hangs_fails_its_group_in_one_line(make: Callable[..., RewardPool]) -> None:
    end = threading.Event()
    pool = make(of(lambda prompt, text: end.wait(LONG_S)), deadline_s=0.05, attempts=2)
    with pytest.raises(RewardError) as caught:
        pool.score(prompt_of(), replies("a"))
    line = "reward rule did not return within 0.05 s (its thread is left behind) on sample p/1 (2 attempts)"
    assert str(caught.value) == line
    end.set()


def test_too_many_hanging_threads_end_the_run(make: Callable[..., RewardPool]) -> None:
    end = threading.Event()
    pool = make(of(lambda prompt, text: end.wait(LONG_S)), calls=1, deadline_s=0.02, attempts=1)
    for _ in range(4):
        with pytest.raises(RewardError):
            pool.score(prompt_of(), replies("a"))
    with pytest.raises(CannotGoOn, match=r"^4 reward calls hang; rewards in processes are killed instead: reward rule"):
        pool.score(prompt_of(), replies("a"))
    end.set()


def test_a_late_coroutine_is_cancelled(make: Callable[..., RewardPool]) -> None:
    cancelled = threading.Event()

    async def rule(prompt: Prompt, text: str) -> float:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1.0

    limit_s = patient(0.25)  # in which the coroutine begins
    with pytest.raises(RewardError, match=rf"did not return within {limit_s:g} s \(it was cancelled\) on sample p/1"):
        make(of_async(rule), deadline_s=limit_s, attempts=1).score(prompt_of(), replies("a"))
    assert cancelled.wait(LONG_S)


def test_a_coroutine_that_blocks_its_loop_costs_the_loop_and_not_the_pool(make: Callable[..., RewardPool]) -> None:
    end = threading.Event()

    async def rule(prompt: Prompt, text: str) -> float:
        if text == "blocks":
            end.wait(LONG_S)
        return 1.0

    pool = make(of_async(rule), deadline_s=patient(0.25), attempts=1)
    with pytest.raises(RewardError, match="it blocks its event loop, which is left behind"):
        pool.score(prompt_of(), replies("blocks"))
    assert pool.score(prompt_of(), replies("good")).rewards == [1.0]
    end.set()


def test_a_group_waits_no_longer_than_its_own_limit(make: Callable[..., RewardPool]) -> None:
    end = threading.Event()
    pool = make(of(lambda prompt, text: end.wait(LONG_S)), wait_s=0.1)
    with pytest.raises(RewardError, match=r"^rewards were not there within 0.1 s; reward rule on sample p/1 \(since "):
        pool.score(prompt_of(), replies("a"))
    end.set()


# -- in processes -----------------------------------------------------------------------------------

PROCESSES = """
import asyncio, os, pathlib, signal, sys, time

HERE = pathlib.Path(__file__).parent


def once(name):
    try:
        (HERE / name).unlink()
    except FileNotFoundError:
        return False
    return True


def pid(prompt, response, truth, info):
    return {"score": response == truth, "pid": os.getpid()}


async def later(prompt, response, truth, info):
    return float(response)


def fragile(prompt, response, truth, info):
    if response == "dies" and once("dies"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if response == "hangs" and once("hangs"):
        (HERE / "pid").write_text(str(os.getpid()))
        time.sleep(600)
    if response == "raises":
        raise ValueError("of no use\\nat all")
    if response == "exits":
        sys.exit(3)
    return float("inf") if response == "endless" else 1.0


async def gone(prompt, response, truth, info):
    raise asyncio.CancelledError


def batch(completions, truth, **columns):
    return [None if text == "skip" else float(text == right) for text, right in zip(completions, truth)]
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(PROCESSES)
    return tmp_path


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_processes(make: Callable[..., RewardPool], file: Path, *names: str, **settings: Any) -> RewardPool:
    rewards = load_rewards([f"{file}/mine.py:{name}" for name in names])
    return make(rewards, runs_in="processes", **{"deadline_s": LONG_S, **settings})


def test_functions_run_in_processes_which_end_with_the_pool(make: Callable[..., RewardPool], mine: Path) -> None:
    pool = in_processes(make, mine, "pid", "later", "batch", calls=2)
    first, second = pool.score(prompt_of(), replies("7", "8")).rewards
    assert (first, second) == (1.0 + 7.0 + 1.0, 0.0 + 8.0 + 0.0)
    pids = pool.pids
    assert 1 <= len(pids) <= 2 and os.getpid() not in pids
    assert {parts_of(first)["pid_pid"], parts_of(second)["pid_pid"]} <= set(pids)
    pool.close()
    assert not any(map(is_alive, pids))


def test_what_dies_or_hangs_in_a_process_costs_one_call(make: Callable[..., RewardPool], mine: Path) -> None:
    for name in ("dies", "hangs"):
        (mine / name).touch()
    pool = in_processes(make, mine, "fragile", deadline_s=patient(3.0), attempts=2)
    scores = pool.score(prompt_of(), replies("good", "dies", "hangs"))
    assert scores.rewards == [1.0, 1.0, 1.0]
    assert (scores.measures["scoring_retries"], scores.measures["scoring_late"]) == (2, 1)
    assert not is_alive(int((mine / "pid").read_text()))
    assert pool.health()["reward_hanging"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "raises",
            r"^reward function .*mine.py:fragile failed on .* p/1: ValueError: of no use at all \(2 attempts\)$",
        ),
        ("exits", r"failed on sample p/1: process \d+ exited with code 3 \(2 attempts\)$"),
        ("endless", r"^reward function .*:fragile returned inf for sample p/1; allowed: a finite number$"),
    ],
)
def test_what_goes_wrong_in_a_process_is_one_line(
    make: Callable[..., RewardPool], mine: Path, text: str, message: str
) -> None:
    pool = in_processes(make, mine, "fragile", attempts=2)
    with pytest.raises(RewardError, match=message):
        pool.score(prompt_of(), replies(text))


def test_a_coroutine_that_is_cancelled_in_a_process_costs_no_process(
    make: Callable[..., RewardPool], mine: Path
) -> None:
    pool = in_processes(make, mine, "gone", attempts=2)
    with pytest.raises(RewardError, match=r":gone failed on sample p/1: .*CancelledError.* \(2 attempts\)$"):
        pool.score(prompt_of(), replies("a"))
    (pid,) = pool.pids
    assert is_alive(pid)


def test_a_function_that_always_hangs_in_a_process_is_killed_every_time(
    make: Callable[..., RewardPool], mine: Path
) -> None:
    (mine / "hangs").touch()
    pool = in_processes(make, mine, "fragile", deadline_s=patient(1.0), attempts=1)
    with pytest.raises(RewardError, match=r"fragile gave no answer within .* s: process \d+ was killed on sample p/1"):
        pool.score(prompt_of(), replies("hangs"))
    assert not is_alive(int((mine / "pid").read_text()))


# -- settings, and who is asked in a pool -----------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"calls": 0}, "calls at once and attempts must be >= 1, received 0 and 3"),
        ({"attempts": 0}, "received 32 and 0"),
        ({"deadline_s": 0}, "deadlines of rewards must be positive, received 0"),
        ({"delay_s": -1}, "a pause must be >= 0 and its backoff >= 1, received -1"),
        ({"backoff": 0.5}, "received 0.5 and 0.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoolSettings(**settings)


def test_rules_are_computed_at_once_and_functions_in_a_pool(mine: Path) -> None:
    assert isinstance(scorer_of(load_task("arithmetic"), PoolSettings()), RuleScorer)
    (mine / "rows.jsonl").write_text('{"prompt": "3 + 4?", "truth": "7"}\n')
    task = load_task(f"jsonl:{mine}/rows.jsonl", reward=f"{mine}/mine.py:pid", held_out_fraction=0)
    pool = scorer_of(task, PoolSettings())
    assert isinstance(pool, RewardPool)
    assert pool.score(task.prompt(0), replies("7", "8")).rewards == [1.0, 0.0]
    pool.close()


def test_several_groups_are_scored_together(make: Callable[..., RewardPool]) -> None:
    barrier = threading.Barrier(6, timeout=LONG_S)

    def rule(prompt: Prompt, text: str) -> float:
        barrier.wait()
        return float(text) + float(prompt.truth)

    asked = [(prompt_of(f"p/{k}", 10 * k), replies("1", "2")) for k in range(3)]
    assert [scores.rewards for scores in make(of(rule)).score_all(asked)] == [[1, 2], [11, 12], [21, 22]]


def test_a_function_that_can_take_one_call_gets_one_at_a_time(make: Callable[..., RewardPool]) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def rule(prompt: Prompt, text: str) -> float:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        os.sched_yield()
        with lock:
            running -= 1
        return 1.0

    alone = RuleReward("alone", rule)
    object.__setattr__(alone, "max_calls", 1)
    pool = make(RewardFunctions((alone,)))
    assert pool.score(prompt_of(), replies(*"abcdefgh")).rewards == [1.0] * 8
    assert most == 1
