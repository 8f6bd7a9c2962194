r"""Rewards computed beside generation: many calls at once, each with a deadline and some attempts.

    a lane: G replies --score--> question, question, ...           one a reply, or one a group (as TRL calls them)
                                   | at most `calls` at once, in the order they came
                                   v
                                 a call --> answered
                                   |  \--> raised, or late: again after a pause; the last time: RewardError
                                   v
    a lane <-- G rewards, in their order: nothing depends on who answers first

A lane waits for its own group alone; the engine and the other lanes go on. A pause holds no place. What raises is asked
again; what returns something that is no reward is not. A call that is late is given up: its thread is abandoned, its
coroutine cancelled, its process killed; it is counted, and `doing` names it while it hangs.

Invariants: a question is answered by its first attempt that comes back in time, and later answers of given-up ones are
dropped; of several failures in a group the first in the order of functions and replies is told.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

from headway.core.protocols import CannotGoOn
from headway.core.text_one_line import in_a_line
from headway.llm.engine.protocol_engine import Sample
from headway.llm.tasks.reward_functions import (
    RewardFunction,
    RewardFunctions,
    RewardQuestion,
    Rewards,
    awaited,
    questions_for,
    settled,
)
from headway.llm.tasks.reward_pool_reward_calls import CallThreads, LoopThread
from headway.llm.tasks.reward_processes import CallLate, CallLost, CallRaised, RewardProcesses
from headway.llm.tasks.rewards import RewardError
from headway.llm.tasks.tasks import Prompt, Task

LOOP_ANSWERS_S = 1.0
ABANDONED_PER_CALL = 4
"""So many abandoned threads for every call that may be under way: then the run cannot go on."""
CLOSE_S = 2.0
TOLD = 4


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Says where reward calls run, how many at once, and how long and how often each may try."""

    runs_in: Literal["threads", "processes"] = "threads"
    calls: int = 32
    """At once. Raising it hides more latency and asks more of whoever answers."""
    deadline_s: float = 120.0
    """Of one attempt at one call."""
    attempts: int = 3
    delay_s: float = 0.5
    """Pause before the second attempt."""
    backoff: float = 2.0
    """The next pause is so many times as long."""
    wait_s: float = 600.0
    """A group that is not scored in this time fails, whatever it waits for."""

    def __post_init__(self) -> None:
        if self.calls < 1 or self.attempts < 1:
            raise ValueError(
                f"reward calls at once and attempts must be >= 1, received {self.calls!r} and {self.attempts!r}"
            )
        if not self.deadline_s > 0 or not self.wait_s > 0:
            raise ValueError(
                f"deadlines of rewards must be positive, received {self.deadline_s!r} and {self.wait_s!r} s"
            )
        if not self.delay_s >= 0 or not self.backoff >= 1:
            raise ValueError(
                f"a pause must be >= 0 and its backoff >= 1, received {self.delay_s!r} and {self.backoff!r}"
            )

    @property
    def pauses_s(self) -> tuple[float, ...]:
        """Before the second attempt, before the third, ..."""
        return tuple(self.delay_s * self.backoff**number for number in range(self.attempts - 1))

    @property
    def longest_s(self) -> float:
        """How long one call can take, all attempts and pauses together."""
        return self.attempts * self.deadline_s + sum(self.pauses_s)


@dataclass(slots=True)
class RewardCounts:
    """Counts what became of calls."""

    calls: int = 0
    retries: int = 0
    late: int = 0
    """Attempts that missed their deadline and were given up."""
    failed: int = 0
    """Calls whose last attempt failed."""

    def __add__(self, other: RewardCounts) -> RewardCounts:
        return RewardCounts(
            self.calls + other.calls, self.retries + other.retries, self.late + other.late, self.failed + other.failed
        )


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Holds what the replies to one prompt are worth, and what it took to find out."""

    rewards: list[float]
    measures: dict[str, float] = field(default_factory=dict)
    """Numbers for the metrics of the update that learns from them."""


class Scorer(Protocol):
    """Scores groups of replies. Several threads may ask at once."""

    def score(self, prompt: Prompt, replies: Sequence[Sample]) -> GroupScores: ...

    def score_all(self, asked: Sequence[tuple[Prompt, Sequence[Sample]]]) -> list[GroupScores]: ...

    def doing(self) -> list[str]:
        """Says what is under way, and what hangs, what has lasted longest first."""
        ...

    def health(self) -> dict[str, float]: ...

    def close(self) -> None: ...


class RuleScorer:
    """Scores by the rule of a task, at once and in the thread that asks."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def score(self, prompt: Prompt, replies: Sequence[Sample]) -> GroupScores:
        return GroupScores([self._task.reward(prompt, reply.text) for reply in replies])

    def score_all(self, asked: Sequence[tuple[Prompt, Sequence[Sample]]]) -> list[GroupScores]:
        return [self.score(prompt, replies) for prompt, replies in asked]

    def doing(self) -> list[str]:
        return []

    def health(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def scorer_of(task: Task, settings: PoolSettings) -> Scorer:
    """Makes what scores a task: a pool where it has reward functions, else its own rule."""
    rewards = getattr(task, "rewards", None)
    return RuleScorer(task) if rewards is None else RewardPool(rewards, settings)


@dataclass(slots=True, eq=False)
class _Call:
    """One question to one function, under way."""

    function: RewardFunction
    question: RewardQuestion
    counts: RewardCounts = field(default_factory=lambda: RewardCounts(calls=1))
    attempt: int = 0
    since: float = math.nan
    """When the attempt under way began; nan: it waits for a place, or pauses."""

    def __str__(self) -> str:
        again = f", attempt {self.attempt + 1}" if self.attempt else ""
        return f"{self.function} on sample {self.question.prompt.uid}{again}"


class _Late(Exception):
    """An attempt has missed its deadline, and was given up."""


class RewardPool:
    """Asks reward functions, many at once. One thread decides when; others, or processes, do the work."""

    def __init__(self, rewards: RewardFunctions, settings: PoolSettings) -> None:
        self._rewards = rewards
        self._settings = settings
        self._threads = CallThreads("reward")
        self._processes = RewardProcesses(rewards) if settings.runs_in == "processes" else None
        self._coroutines: list[LoopThread] = []  # one, from the first coroutine on
        self._places: dict[str, asyncio.Semaphore] = {}
        self._under_way: set[_Call] = set()
        self._counts = RewardCounts()
        self._decides = LoopThread("rewards")
        ends = (self._decides, self._coroutines, self._processes, self._threads)
        self._end = weakref.finalize(self, _end, *ends)  # also of a pool that nobody closes
        self._end.atexit = False

    def score(self, prompt: Prompt, replies: Sequence[Sample]) -> GroupScores:
        return self.score_all([(prompt, replies)])[0]

    def score_all(self, asked: Sequence[tuple[Prompt, Sequence[Sample]]]) -> list[GroupScores]:
        """Scores several groups at once; raises RewardError for the first in their order that cannot be."""
        questions = [_question(prompt, replies) for prompt, replies in asked]
        waiting: Future[list[GroupScores]] = self._decides.begin(self._all(questions))
        try:
            return waiting.result(self._settings.wait_s)
        except TimeoutError:
            line = f"rewards were not there within {self._settings.wait_s:g} s; {'; '.join(self.doing())}"
            waiting.cancel()
            raise RewardError(line) from None

    def doing(self) -> list[str]:
        now = time.monotonic()
        calls = [(call.since, str(call)) for call in self._under_way.copy() if not math.isnan(call.since)]
        lines = [(since, f"{what} (since {now - since:.1f} s)") for since, what in calls]
        lines += [
            (since, f"{what} was given up {now - since:.1f} s ago and still hangs")
            for what, since in self._threads.abandoned()
        ]
        return [line for _, line in sorted(lines)][:TOLD]

    def health(self) -> dict[str, float]:
        counts = self._counts
        return {
            "reward_calls": counts.calls,
            "reward_retries": counts.retries,
            "reward_late": counts.late,
            "reward_failed": counts.failed,
            "reward_hanging": self._threads.num_abandoned,
        }

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes that answer, where there are any."""
        return [] if self._processes is None else self._processes.pids

    def close(self) -> None:
        """Gives up what is under way, and ends its threads and processes."""
        self._end()

    # -- in the thread that decides -----------------------------------------------------------------

    async def _all(self, questions: Sequence[RewardQuestion]) -> list[GroupScores]:
        found = await asyncio.gather(*(self._group(one) for one in questions), return_exceptions=True)
        scores: list[GroupScores] = []
        for one in found:
            if isinstance(one, BaseException):
                raise one
            scores.append(one)
        return scores

    async def _group(self, question: RewardQuestion) -> GroupScores:
        began = time.monotonic()
        calls = [[_Call(f, one) for one in questions_for(f, question)] for f in self._rewards.functions]
        flat = [call for of_one in calls for call in of_one]
        self._under_way.update(flat)
        try:
            found = await asyncio.gather(*map(self._answer, flat), return_exceptions=True)
        finally:
            self._under_way.difference_update(flat)
            counts = sum((call.counts for call in flat), RewardCounts())
            self._counts += counts
        answers: list[Rewards] = []
        for one in found:
            if isinstance(one, BaseException):
                raise one
            answers.append(one)
        said, rest = [], iter(answers)
        for of_one in calls:
            said.append([reward for _ in of_one for reward in next(rest)])
        measures = {
            "scoring_s": time.monotonic() - began,
            "scoring_retries": float(counts.retries),
            "scoring_late": float(counts.late),
        }
        return GroupScores(self._rewards.combined(question, said), measures)

    async def _answer(self, call: _Call) -> Rewards:
        """Asks until an attempt comes back, or none is left."""
        function, uid, settings = call.function, call.question.prompt.uid, self._settings
        for pause_s in (*settings.pauses_s, None):
            try:
                async with self._places_of(function):
                    call.since = time.monotonic()
                    try:
                        return await self._attempt(call)
                    finally:
                        call.since = math.nan
            except (RewardError, CannotGoOn):
                call.counts.failed += 1
                raise
            except _Late as late:
                call.counts.late += 1
                line = f"{function} {late} on sample {uid}"
            except Exception as error:  # noqa: BLE001 - whatever a user's function may raise, it is told below
                what = str(error) if isinstance(error, CallRaised | CallLost) else in_a_line(error)
                line = f"{function} failed on sample {uid}: {what}"
            if pause_s is None:
                break
            call.counts.retries += 1
            call.attempt += 1
            await asyncio.sleep(pause_s)
        call.counts.failed += 1
        tries = f" ({settings.attempts} attempts)" if settings.attempts > 1 else ""
        raise RewardError(line + tries)

    async def _attempt(self, call: _Call) -> Rewards:
        function, question = call.function, call.question
        if self._processes is not None and not function.stays_here:
            return await self._in_process(self._processes, call)
        value = await (self._in_loop(call) if function.is_async else self._in_thread(call))
        return function.read(value, question)

    async def _in_thread(self, call: _Call) -> object:
        limit, hanging = self._settings.deadline_s, self._threads.num_abandoned
        if hanging >= ABANDONED_PER_CALL * self._settings.calls:
            raise CannotGoOn(f"{hanging} reward calls hang; rewards in processes are killed instead: {self.doing()[0]}")
        done, thread = self._threads.begin(lambda: settled(call.function.ask(call.question)))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(done), limit)
        except asyncio.CancelledError:
            self._threads.abandon(thread, done, str(call))
            raise
        except TimeoutError:
            if done.done() and done.exception() is not None:  # its own
                raise
            self._threads.abandon(thread, done, str(call))
            raise _Late(f"did not return within {limit:g} s (its thread is left behind)") from None

    async def _in_loop(self, call: _Call) -> object:
        limit = self._settings.deadline_s
        if not self._coroutines:
            self._coroutines.append(LoopThread("reward coroutines"))
        (loop,) = self._coroutines

        async def ask() -> object:
            try:
                return await awaited(call.function.ask(call.question))  # type: ignore[arg-type]
            except (KeyboardInterrupt, SystemExit) as error:  # would end the loop for all others
                raise RuntimeError(in_a_line(error)) from None

        done = loop.begin(ask())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(done), limit)
        except TimeoutError:
            if done.done() and not done.cancelled() and done.exception() is not None:  # its own
                raise
            what = "it was cancelled"
            if not await loop.answers_within(LOOP_ANSWERS_S):
                what = "it blocks its event loop, which is left behind"
                if loop in self._coroutines:
                    self._coroutines.remove(loop)
                    loop.close()
            raise _Late(f"did not return within {limit:g} s ({what})") from None

    async def _in_process(self, processes: RewardProcesses, call: _Call) -> Rewards:
        limit = self._settings.deadline_s
        done, _ = self._threads.begin(lambda: processes.ask(call.function, call.question, limit))
        try:
            return await asyncio.wrap_future(done)  # the thread itself keeps the deadline
        except CallLate as late:
            raise _Late(f"gave {late}") from None

    def _places_of(self, function: RewardFunction) -> asyncio.Semaphore:
        """Bounds the calls under way: all together, or those of one function that can take fewer."""
        limit, name = self._settings.calls, ""
        is_alone = self._processes is None or function.stays_here
        if is_alone and function.max_calls is not None and function.max_calls < limit:
            limit, name = function.max_calls, str(function)
        return self._places.setdefault(name, asyncio.Semaphore(limit))


def _end(
    decides: LoopThread, coroutines: list[LoopThread], processes: RewardProcesses | None, threads: CallThreads
) -> None:
    decides.close(CLOSE_S)
    for loop in coroutines:
        loop.close()
    if processes is not None:
        processes.close()
    threads.close()


def _question(prompt: Prompt, replies: Sequence[Sample]) -> RewardQuestion:
    tokens = tuple(tuple(map(int, reply.tokens)) for reply in replies)
    return RewardQuestion(prompt, tuple(reply.text for reply in replies), tokens)
