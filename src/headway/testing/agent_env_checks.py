"""The checks of an environment for agents, one function each: what `headway check-env` and the contract suite run.

    factory ──plays some seeds──> transcripts ──the same replies──> the same again, in threads and in processes

A check returns what it measured, or raises `CheckFailed` with one line.
"""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NamedTuple

from headway.agents.env import AgentEnv, EnvFactory, checked_env, checked_step, checked_text
from headway.agents.players import scripted_player
from headway.core.text_one_line import in_a_line, shortened
from headway.core.types import derive_seed
from headway.runtimes.loop_threads_daemon_thread import in_daemon_thread
from headway.testing.agent_env_checks_global_generators import generator_states, generators_as_they_were, scrambled

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NUM_THREADS = 8
NUM_PROCESSES = 2
DEADLINE_S = 120.0
STRANGE = ("", " ", "\n\n", "\x00", "no", "999999999999999999999", "-1", "[move]", "ä€😀", "{'a': [", "word " * 2000)
"""Replies that a policy can draw and that no rules ask for."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Says what one check found."""

    name: str
    outcome: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.name}{f': {self.detail}' if self.detail else ''}"


class CheckFailed(AssertionError):
    """The environment does not do what is asked of it. One line that says what it did instead."""


class CheckSkipped(Exception):
    """There is nothing to check here. One line that says why."""


class TrialGame(NamedTuple):
    """Holds one episode: what was said, and how it came out."""

    texts: list[str]
    replies: list[str]
    rewards: list[float]
    is_done: bool


@dataclass
class EnvTrial:
    """Holds what the checks of one environment share: how it is made, and games of it that were played already."""

    factory: EnvFactory
    name: str
    seeds: Sequence[int]
    reset_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    _played: dict[int, TrialGame] | None = None

    def make(self) -> AgentEnv:
        return checked_env(self.factory(), self.name)

    @property
    def played(self) -> dict[int, TrialGame]:
        """Returns a game of each seed, played by chance in a fresh environment, and measures how long it takes.

        No lock guards it, as that of functools.cached_property would, which all trials of a process share until Python
        3.12: whoever waits for an environment that hangs would keep it from the trials of all others.
        """
        if self._played is None:
            self._played = {seed: self._play(seed) for seed in self.seeds}
        return self._played

    def _play(self, seed: int) -> TrialGame:
        env = self.make()
        rng = random.Random(derive_seed(seed, "contract"))
        with _closing(env):
            found = trial_game(env, self.name, seed, lambda text: a_reply(env, text, rng), self.reset_s, self.step_s)
        return found


def trial_game(
    env: AgentEnv,
    name: str,
    seed: int,
    player: Callable[[str], str],
    reset_s: list[float] | None = None,
    step_s: list[float] | None = None,
) -> TrialGame:
    """Plays one episode, checks all that the environment returns, and notes the seconds it takes."""
    began = time.perf_counter()
    text = checked_text(env.reset(seed), name)
    if reset_s is not None:
        reset_s.append(time.perf_counter() - began)
    texts, replies, rewards, is_done = [text], list[str](), list[float](), False
    while not is_done and len(replies) < env.max_turns:
        replies.append(player(texts[-1]))
        began = time.perf_counter()
        step = checked_step(env.step(replies[-1]), name)
        if step_s is not None:
            step_s.append(time.perf_counter() - began)
        texts.append(step.text)
        rewards.append(step.reward)
        is_done = step.done
    return TrialGame(texts, replies, rewards, is_done)


def a_reply(env: AgentEnv, text: str, rng: random.Random) -> str:
    """Returns what the environment's random player says; without one, a few words of the text."""
    reply: Callable[[random.Random], str] | None = getattr(env, "random_reply", None)
    if reply is not None:
        return str(reply(rng))
    words = text.split()
    start = rng.randrange(len(words))
    return " ".join(words[start : start + rng.randint(1, 3)])


def again(factory: EnvFactory, name: str, seed: int, replies: Sequence[str]) -> TrialGame:
    """Plays a game with the same replies in a fresh environment."""
    env = checked_env(factory(), name)
    with _closing(env):
        return trial_game(env, name, seed, scripted_player(iter(replies)))


def require_same(first: TrialGame, other: TrialGame, where: str, seed: int, advice: str = "") -> None:
    """Refuses a game that goes differently, and says where."""
    turns = zip(first.texts, other.texts, strict=False)
    differing = next((turn for turn, (one, two) in enumerate(turns) if one != two), None)
    if differing is not None:
        said = f"{shortened(first.texts[differing], 40)!r} and {shortened(other.texts[differing], 40)!r}"
        raise CheckFailed(f"seed {seed} is another game {where}: after {differing} replies {said}{advice}")
    if first != other:
        raise CheckFailed(f"seed {seed} is another game {where}: rewards {first.rewards} and {other.rewards}{advice}")


# -- the checks ---------------------------------------------------------------------------------------------------


def check_texts_and_rewards(trial: EnvTrial) -> str:
    turns = [len(game.replies) for game in trial.played.values()]
    return f"{len(turns)} games of {min(turns)} to {max(turns)} turns"


def check_the_end(trial: EnvTrial) -> str:
    cut = [len(game.replies) for game in trial.played.values() if not game.is_done]
    if cut:
        return f"{len(cut)} of {len(trial.played)} games are cut after max_turns ({cut[0]}), as `turns`"
    return "every game says done"


def check_pickling(trial: EnvTrial) -> str:
    try:
        packed = pickle.dumps(trial.factory)
        copy = pickle.loads(packed)
    except (pickle.PicklingError, AttributeError, TypeError, ImportError) as error:
        raise CheckFailed(f"{in_a_line(error)}; name it file.py:Class or module:Class") from None
    with _closing(checked_env(copy(), trial.name)):
        pass
    return f"{len(packed)} bytes"


def check_reset_twice(trial: EnvTrial) -> str:
    env = trial.make()
    with _closing(env):
        for seed in (*trial.seeds, *reversed(trial.seeds)):
            first = trial.played[seed]
            other = trial_game(env, trial.name, seed, scripted_player(iter(first.replies)))
            require_same(first, other, "in an environment that was used before", seed)
    return ""


def check_global_generator(trial: EnvTrial) -> str:
    """One that seeds a global generator leaves it in the same state, wherever it was before."""
    seed = trial.seeds[0]
    replies = trial.played[seed].replies
    after = []
    with generators_as_they_were():
        for before in (1, 2):
            scrambled(before)
            again(trial.factory, trial.name, seed, replies)
            after.append(generator_states())
    seeded = [name for name in after[0] if after[0][name] == after[1].get(name)]
    says_so = _seeds_globally(trial)
    if seeded and not says_so:
        raise CheckFailed(
            f"it seeds the generator that all threads share ({', '.join(seeded)}): use one of its own, "
            "random.Random(seed), or say `seeds_globally = True` and step it in processes"
        )
    return f"it seeds {', '.join(seeded)} and says so: processes only" if seeded else ""


def check_threads(trial: EnvTrial) -> str:
    if _seeds_globally(trial):
        raise CheckSkipped("it seeds the generator that all threads share: processes only")
    with _often_switched():
        for seed, first in trial.played.items():
            for other in _at_once(
                NUM_THREADS, functools.partial(again, trial.factory, trial.name, seed, first.replies)
            ):
                where = f"in one of {NUM_THREADS} threads"
                require_same(first, other, where, seed, "; if it cannot be mended step it in processes")
    return f"{NUM_THREADS} at once"


def check_processes(trial: EnvTrial) -> str:
    games = [(seed, game.replies) for seed, game in trial.played.items()]
    for transcripts in in_processes(trial.factory, trial.name, games):
        for (seed, first), other in zip(trial.played.items(), transcripts, strict=True):
            require_same(first, other, "in another process", seed)
    return f"{NUM_PROCESSES} fresh ones"


def check_step_after_the_end(trial: EnvTrial) -> str:
    ended = [(seed, game.replies) for seed, game in trial.played.items() if game.is_done]
    if not ended:
        raise CheckSkipped("no game ended before max_turns")
    env = trial.make()
    with _closing(env):
        seed, replies = ended[0]
        trial_game(env, trial.name, seed, scripted_player(iter(replies)))
        try:
            env.step(replies[-1])
        except Exception as error:  # noqa: BLE001 - any exception is a refusal
            return f"with {in_a_line(error, 60)}".rstrip(": ")
    return "by Headway, which plays it; a hint: where others play it, they would learn from what never happened"


def check_strange_replies(trial: EnvTrial) -> str:
    env = trial.make()
    with _closing(env):
        for reply in STRANGE:
            checked_text(env.reset(trial.seeds[0]), trial.name)
            try:
                step = env.step(reply)
            except Exception as error:
                what = f"the reply {shortened(repr(reply), 30)} raised {in_a_line(error, 60)}"
                raise CheckFailed(f"{what}: a policy can say anything, so answer it with text") from error
            checked_step(step, trial.name)
    return f"{len(STRANGE)} of them"


def check_times(trial: EnvTrial) -> str:
    """Always passes: it measures."""
    trial.played  # noqa: B018 - this is what is measured
    return f"reset {_spread(trial.reset_s)}; step {_spread(trial.step_s)}"


CHECKS: dict[str, Callable[[EnvTrial], str]] = {
    "the factory can be pickled": check_pickling,
    "texts are never empty and rewards are finite": check_texts_and_rewards,
    "it ends within max_turns": check_the_end,
    "reset twice gives the same game": check_reset_twice,
    "a step after the end is refused": check_step_after_the_end,
    "strange replies are answered": check_strange_replies,
    "no global random generator is seeded": check_global_generator,
    "one seed is one game in threads": check_threads,
    "one seed is one game in processes": check_processes,
    "how long reset and step take": check_times,
}


def check_env(
    factory: EnvFactory, *, name: str = "", seeds: int = 5, deadline_s: float = DEADLINE_S
) -> Iterator[CheckResult]:
    """Yields what each check finds. A check that takes longer than `deadline_s` has failed."""
    trial = EnvTrial(factory, name or str(getattr(factory, "__qualname__", "environment")), range(seeds))
    for check in CHECKS:
        yield run_check(trial, check, deadline_s)


def run_check(trial: EnvTrial, check: str, deadline_s: float = DEADLINE_S) -> CheckResult:
    """Does one check, in a thread that is left behind if it hangs."""
    done: Future[str] = in_daemon_thread(functools.partial(CHECKS[check], trial), f"check {trial.name}")
    try:
        return CheckResult(check, PASSED, done.result(deadline_s))
    except CheckSkipped as why:
        return CheckResult(check, SKIPPED, str(why))
    except CheckFailed as why:
        return CheckResult(check, FAILED, str(why))
    except TimeoutError as error:
        what = "" if done.done() else f"no answer within {deadline_s:g} s"
        return CheckResult(check, FAILED, what or in_a_line(error))
    except Exception as error:  # noqa: BLE001 - whatever the environment raises is what is being looked for
        return CheckResult(check, FAILED, in_a_line(error, 200))


# -- at once ------------------------------------------------------------------------------------------------------


def _at_once(count: int, work: Callable[[], TrialGame]) -> list[TrialGame]:
    barrier = threading.Barrier(count)

    def wait_and_work() -> TrialGame:
        barrier.wait()
        return work()

    return [one.result() for one in [in_daemon_thread(wait_and_work, f"game {place}") for place in range(count)]]


@contextmanager
def _often_switched() -> Iterator[None]:
    """Lets the interpreter change threads after every few instructions, as it otherwise does once in 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_processes(factory: EnvFactory, name: str, games: Sequence[tuple[int, list[str]]]) -> list[list[TrialGame]]:
    """Plays these games in fresh processes, all at once; they end with this one."""
    context = multiprocessing.get_context("spawn")
    started = []
    try:
        for _ in range(NUM_PROCESSES):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_play_there, args=(there, factory, name, games), daemon=True)
            process.start()
            there.close()
            started.append((process, here))
        return [_received(here) for _, here in started]
    finally:
        for process, here in started:
            process.kill()
            process.join()
            here.close()


def _received(here: Connection) -> list[TrialGame]:
    try:
        games, why = here.recv()
    except EOFError:
        raise CheckFailed("the process died") from None
    if why:
        raise CheckFailed(why)
    found: list[TrialGame] = games
    return found


def _play_there(there: Connection, factory: EnvFactory, name: str, games: Sequence[tuple[int, list[str]]]) -> None:
    try:
        played = [again(factory, name, seed, replies) for seed, replies in games]
    except Exception as error:  # noqa: BLE001 - it is said where somebody waits for it
        there.send(([], in_a_line(error, 200)))
    else:
        there.send((played, ""))


# -- small parts --------------------------------------------------------------------------------------------------


@contextmanager
def _closing(env: AgentEnv) -> Iterator[None]:
    try:
        yield
    finally:
        close: Callable[[], object] | None = getattr(env, "close", None)
        if close is not None:
            close()


def _seeds_globally(trial: EnvTrial) -> bool:
    env = trial.make()
    with _closing(env):
        return bool(getattr(env, "seeds_globally", False))


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "never done"
    median, high = statistics.median(seconds), sorted(seconds)[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    return f"median {_in_time(median)}, p95 {_in_time(high)}"


def _in_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2g} ms"
