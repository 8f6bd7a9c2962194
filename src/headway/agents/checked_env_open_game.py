"""One game of a run as its episode's thread sees it, wherever its environment is.

    begun --> reset --> step 1, step 2, ... --> reset ... --> closed
      |         |         |
      +---------+---------+--> lost: every further call says the same; closing is still allowed

What differs between threads and processes is one function, `Ask`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from headway.agents.checked_env_step_watch import StepWatch
from headway.agents.env import BadEnvironment, EnvFacts, EnvironmentLost, Step

if TYPE_CHECKING:
    from headway.agents.stepping import StepDeadlines

FACTS, RESET, STEP, CLOSE = "facts", "reset", "step", "close"
"""Methods of `CheckedGame`."""
CLOSED = "environments are no longer stepped: the run closes"

Ask = Callable[[str, tuple[object, ...], str, float], object]
"""Calls this method of the environment with these arguments, for what `doing()` shall show, within these seconds."""


class OpenGame:
    """Holds what an episode needs of a game: the count of its steps, its state's key, and whether it is lost."""

    def __init__(self, name: str, ask: Ask, deadlines: StepDeadlines, watch: StepWatch) -> None:
        self.name = name
        self._ask = ask
        self._deadlines = deadlines
        self._watch = watch
        self._key: str | None = None
        self._num_steps = 0
        self._lost: BadEnvironment | EnvironmentLost | None = None
        self._is_closed = False
        watch.count("games")

    def facts(self) -> EnvFacts:
        return cast("EnvFacts", self._checked(FACTS, (), "what it says of itself", self._deadlines.reset_s))

    def reset(self, seed: int) -> str:
        self._num_steps = 0
        text, self._key = cast("tuple[str, str | None]", self._checked(RESET, (seed,), RESET, self._deadlines.reset_s))
        return text

    def step(self, reply: str) -> Step:
        self._num_steps += 1
        what = f"{STEP} {self._num_steps}"
        step, self._key = cast("tuple[Step, str | None]", self._checked(STEP, (reply,), what, self._deadlines.step_s))
        return step

    def state_key(self) -> str | None:
        return self._key

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watch.count("games", -1)
        try:
            self._ask(CLOSE, (), CLOSE, self._deadlines.close_s)
        except (BadEnvironment, EnvironmentLost):
            if self._lost is None:
                self._watch.count("not_closed")

    def _checked(self, method: str, arguments: tuple[object, ...], what: str, limit_s: float) -> object:
        if self._lost is not None:
            raise type(self._lost)(str(self._lost)) from self._lost
        if self._is_closed:
            raise EnvironmentLost(f"{self.name} is closed")
        try:
            return self._ask(method, arguments, what, limit_s)
        except (BadEnvironment, EnvironmentLost) as error:
            self._lost = error
            self._watch.count("lost")
            raise


def no_turn(limit_s: float, watch: StepWatch) -> EnvironmentLost:
    """What a game that could not begin is told: what has lasted longest stands first among what is going on."""
    return EnvironmentLost(f"no game could begin within {limit_s:g} s; {'; '.join(watch.doing()[:3])}")


def too_long(game: str, what: str, limit_s: float) -> str:
    """`game 3: step 5 took longer than 60 s`"""
    return f"{game}: {what} took longer than {limit_s:g} s"
