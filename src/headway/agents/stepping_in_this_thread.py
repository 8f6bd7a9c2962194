"""Environments stepped in the threads of their episodes, one call at a time. Nothing can interrupt a call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headway.agents.checked_env_checked_game import CheckedGame
from headway.agents.checked_env_open_game import CLOSED, OpenGame, no_turn
from headway.agents.checked_env_places import Places
from headway.agents.checked_env_step_watch import StepWatch
from headway.agents.env import EnvFactory, EnvironmentLost

if TYPE_CHECKING:
    from headway.agents.stepping import StepDeadlines

T = TypeVar("T")


class SteppingHere:
    """Lets one call after another run where it was made. Its deadlines are those of waiting: only `begin` has one."""

    def __init__(self, factory: EnvFactory, deadlines: StepDeadlines) -> None:
        self._factory = factory
        self._deadlines = deadlines
        self._watch = StepWatch()
        self._turn = Places(1)
        self._numbers = itertools.count()

    def begin(self) -> OpenGame:
        name = f"game {next(self._numbers)}"
        game = self._in_turn(name, "begin", lambda: CheckedGame(self._factory), self._deadlines.begin_s)

        def ask(method: str, arguments: tuple[object, ...], what: str, limit_s: float) -> object:
            return self._in_turn(name, what, lambda: getattr(game, method)(*arguments), None)

        return OpenGame(name, ask, self._deadlines, self._watch)

    def _in_turn(self, name: str, what: str, work: Callable[[], T], patience_s: float | None) -> T:
        with self._watch.call(name, what) as call:
            if not self._turn.take(patience_s):
                assert patience_s is not None
                raise no_turn(patience_s, self._watch)
            try:
                call.began()
                return work()
            finally:
                self._turn.give_back()

    def doing(self) -> list[str]:
        return self._watch.doing()

    def health(self) -> dict[str, float]:
        return self._watch.health()

    def close(self) -> None:
        """Games that are still open are not closed: their threads may be in them."""
        self._turn.close(EnvironmentLost(CLOSED))
