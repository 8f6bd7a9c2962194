"""Where the environments of a run are stepped: in the caller's thread, in worker threads, in worker processes.

    an episode's thread                     Stepping
    game = begin()            ------>       here          one call at a time, in the caller's thread
    game.reset(seed)          ------>       threads(N)    N calls at a time; one that hangs is abandoned
    game.step(reply), ...     ------>       processes(N)  N killable processes, each holds many games
    game.close()

    begun --> reset --> step, step, ... --> reset ... --> closed
      |         |         |
      +---------+---------+--> lost (raised, hung, killed): every further call says so

Invariants: results do not depend on where; no call lasts longer than its turn and its deadline (but `here`, where
nothing can interrupt it: `doing()` names it); a game holds a place only while it is called, so whoever waits gets one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from typing import Protocol

from headway.agents.checked_env_checked_game import factory_name
from headway.agents.env import BadEnvironment, EnvFactory, EnvFacts, EnvironmentLost, Step
from headway.agents.stepping_in_processes import SteppingInProcesses
from headway.agents.stepping_in_this_thread import SteppingHere
from headway.agents.stepping_in_threads import SteppingInThreads
from headway.core.text_naming import unknown

KINDS = {
    "here": "in the thread of the episode, one after another",
    "threads": "for environments that wait: threads(16) steps up to 16 at a time",
    "processes": "for environments that compute, hang, crash or seed globally: processes(4) uses 4 killable processes",
}
ALLOWED = "here, threads(N), processes(N)"
DEFAULT_THREADS = 16


@dataclass(frozen=True, slots=True)
class StepDeadlines:
    """How long an environment may take, in seconds of its own work; waiting for its turn is not counted."""

    reset_s: float = 60.0
    step_s: float = 60.0
    close_s: float = 10.0
    begin_s: float = 120.0
    """How long a new game may wait for its turn and then take to be made."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} must be above 0 seconds, received {value!r}")


class RunningGame(Protocol):
    """Plays one episode at a time with one environment; used by one thread."""

    def facts(self) -> EnvFacts:
        """What the environment says of itself."""
        ...

    def reset(self, seed: int) -> str:
        """What is said first. Raises EnvironmentLost or BadEnvironment, as `step` does."""
        ...

    def step(self, reply: str) -> Step: ...

    def state_key(self) -> str | None:
        """Of the state in which the environment waits for a reply; None where it does not say."""
        ...

    def close(self) -> None:
        """Gives the environment up. It raises nothing: an episode that has ended is not lost by what comes after."""
        ...


class Stepping(Protocol):
    """Steps the environments of a run for the threads of its episodes."""

    def begin(self) -> RunningGame:
        """Makes an environment; waits for a turn to do so, up to a deadline."""
        ...

    def doing(self) -> list[str]:
        """Who does what since when: `game 3 (worker 1): step 5 since 12.1 s`."""
        ...

    def health(self) -> dict[str, float]:
        """Games open, calls under way and waiting, seconds of a step, what was lost, restarted, abandoned."""
        ...

    def close(self) -> None:
        """Ends everything. Calls under way, or made later, are EnvironmentLost."""
        ...


def build_stepping(
    where: str, factory: EnvFactory, *, deadlines: StepDeadlines | None = None, max_under_way: int | None = None
) -> Stepping:
    """Returns what steps the environments that `factory` makes.

    :param where: `here`, `threads(N)` or `processes(N)`; without a number 16 threads, or a process for each core
    :param max_under_way: at most so many calls at a time, whatever N is; for environments that share a slow server
    """
    kind, number = parse_where(where)
    limits = deadlines or StepDeadlines()
    if max_under_way is not None and max_under_way < 1:
        raise ValueError(f"max_under_way must be at least 1, received {max_under_way}")
    if kind == "here":
        return SteppingHere(factory, limits)
    if kind == "threads":
        return SteppingInThreads(factory, min(number, max_under_way or number), limits)
    return SteppingInProcesses(factory, number, limits, max_under_way)


def env_facts(where: str, factory: EnvFactory, deadlines: StepDeadlines | None = None) -> EnvFacts:
    """Returns what an environment says of itself before it is played. One that hangs or dies is a BadEnvironment.

    It is made where it will step; one that will step `here` is made in a thread, which can be abandoned.
    """
    kind, _ = parse_where(where)
    limits = deadlines or StepDeadlines()
    stepping: Stepping | None = None
    try:
        if kind == "processes":
            stepping = SteppingInProcesses(factory, 1, limits)
        else:
            stepping = SteppingInThreads(factory, 1, limits, may_seed_globally=kind == "here")
        game = stepping.begin()
        facts = game.facts()
        game.close()
    except EnvironmentLost as error:
        raise BadEnvironment(f"environment {factory_name(factory)} cannot be used: {error.what}") from error
    finally:
        if stepping is not None:
            stepping.close()
    return facts


def parse_where(where: str) -> tuple[str, int]:
    """`threads(8)` is ("threads", 8). ValueError in one line for what is none of those that are allowed."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(-?\w*)\s*\))?\s*", where)
    if match is None:
        raise ValueError(f"where environments step must be one of {ALLOWED}, received {where!r}")
    kind, number = match[1], match[2]
    if kind not in KINDS:
        raise ValueError(f"{unknown('place to step environments', kind, KINDS)}, as {ALLOWED}")
    if kind == "here":
        if number is not None:
            raise ValueError(f"here takes no number: it steps one environment at a time; received {where!r}")
        return kind, 1
    if number is None:
        return kind, DEFAULT_THREADS if kind == "threads" else os.cpu_count() or 1
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{kind}(N) needs a whole number of at least 1, received {where!r}")
    return kind, int(number)
