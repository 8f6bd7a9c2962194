"""One environment whose every answer is checked, and whose every error has one of two names.

    made --> reset(seed) --> step, step, ... --> reset(seed) ... --> closed

It runs wherever environments are stepped: in the caller's thread, in a worker thread, in a worker process.

Invariants: it raises `BadEnvironment` (fix it) or `EnvironmentLost` (it may work next time) and nothing else; a step
after the end, or before the first reset, does not reach the environment; an environment that seeds the global random
generator finds it between two calls as it left it, whatever others have drawn in the meantime.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headway.agents.env import (
    AgentEnv,
    BadEnvironment,
    EnvFactory,
    EnvFacts,
    EnvironmentLost,
    Step,
    checked_env,
    checked_step,
    checked_text,
    in_unicode,
)
from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import JsonObject

T = TypeVar("T")
TO_PROCESSES = "it seeds the random generator that all threads of a process share; step it in processes(N)"


class CheckedGame:
    """Holds an environment and lets nothing out that is not as the interface says.

    :param may_seed_globally: False where other threads use the global random generator at the same time
    """

    def __init__(self, factory: EnvFactory, *, may_seed_globally: bool = True) -> None:
        self._env = _made(factory)
        self.name = type(self._env).__name__
        self._is_over = True
        self._own_random = OwnGlobalRandom() if getattr(self._env, "seeds_globally", False) else None
        if self._own_random is not None and not may_seed_globally:
            self.close()
            raise BadEnvironment(f"environment {self.name} cannot be stepped in threads: {TO_PROCESSES}")

    def facts(self) -> EnvFacts:
        return self._call("what it says of itself", lambda: EnvFacts.of(self._env))

    def reset(self, seed: int) -> tuple[str, str | None]:
        """What is said first, and the key of the state if the environment has one."""
        self._is_over = True
        said = self._call("reset", lambda: (checked_text(self._env.reset(seed), self.name), self._key()))
        self._is_over = False
        return said

    def step(self, reply: str) -> tuple[Step, str | None]:
        if self._is_over:
            raise EnvironmentLost(f"environment {self.name} is over, or was never begun: only reset may follow")
        step, key = self._call("step", lambda: self._stepped(reply))
        self._is_over = step.done
        return step, key

    def close(self) -> None:
        """Lets go of what the environment holds. Calling it again does nothing."""
        close = getattr(self._env, "close", None)
        self._env = _Closed(self.name)
        if close is not None:
            self._call("close", close)

    def _stepped(self, reply: str) -> tuple[Step, str | None]:
        step = checked_step(self._env.step(reply), self.name)
        return step, None if step.done else self._key()

    def _key(self) -> str | None:
        key: Callable[[], object] | None = getattr(self._env, "state_key", None)
        return None if key is None else in_unicode(str(key()))

    def _call(self, what: str, work: Callable[[], T]) -> T:
        try:
            if self._own_random is None:
                return work()
            with self._own_random.put_in_place():
                return work()
        except (BadEnvironment, EnvironmentLost):
            raise
        except BaseException as error:  # any exception is reported under the environment's name
            raise EnvironmentLost(f"environment {self.name} raised in {what}: {in_a_line(error, 300)}") from error


def _made(factory: EnvFactory) -> AgentEnv:
    try:
        return checked_env(factory(), factory_name(factory))
    except (BadEnvironment, EnvironmentLost):
        raise
    except OSError as error:  # a server that is down, a file system that is full: it may work next time
        raise EnvironmentLost(f"environment {factory_name(factory)} cannot be made: {in_a_line(error, 300)}") from error
    except BaseException as error:  # any exception is reported under the environment's name
        raise BadEnvironment(f"environment {factory_name(factory)} cannot be made: {in_a_line(error, 300)}") from error


def factory_name(factory: EnvFactory) -> str:
    first = getattr(factory, "args", ())[:1]  # of a partial: `headway.agents.loading` gives the name first
    return first[0] if first and isinstance(first[0], str) else getattr(factory, "__name__", type(factory).__name__)


class _Closed:
    """Stands where an environment was."""

    max_turns = 1

    def __init__(self, name: str) -> None:
        self._name = name

    def reset(self, seed: int) -> str:
        raise EnvironmentLost(f"environment {self._name} is closed")

    def step(self, reply: str) -> Step:
        raise EnvironmentLost(f"environment {self._name} is closed")


class OwnGlobalRandom:
    """Gives one environment the global random generators of Python and NumPy as it left them, for one call at a time.

    Whoever else draws from them in this thread finds them undisturbed afterwards.
    """

    def __init__(self) -> None:
        self._ours: JsonObject = {}

    @contextmanager
    def put_in_place(self) -> Iterator[None]:
        theirs = _generators()
        _put_generators(self._ours)
        try:
            yield
        finally:
            self._ours = _generators()
            _put_generators(theirs)


def _generators() -> JsonObject:
    states: JsonObject = {"random": random.getstate()}
    if "numpy.random" in sys.modules:
        states["numpy"] = sys.modules["numpy.random"].get_state()
    return states


def _put_generators(states: JsonObject) -> None:
    if "random" in states:
        random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy.random"].set_state(states["numpy"])
