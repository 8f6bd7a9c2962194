"""An environment of OpenEnv for tests: it echoes, and counts."""

from __future__ import annotations

import random
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed: str
    length: int


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    def __init__(self, turns: int = 3) -> None:
        super().__init__()
        self._turns, self._count, self._word = turns, 0, ""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
        self._count, self._word = 0, f"word {random.Random(seed).randrange(1000)}"
        return EchoObservation(echoed=f"Say {self._word}.", length=0)

    def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:
        self._count += 1
        right = action.message == self._word
        done = right or self._count == self._turns
        return EchoObservation(
            echoed=action.message, length=len(action.message), reward=right, done=done, metadata={"count": self._count}
        )

    @property
    def state(self) -> State:
        return State(episode_id=None, step_count=self._count)


class GuessAction(Action):
    number: int


class GuessObservation(Observation):
    low: int
    high: int


class GuessEnvironment(Environment):
    """Does not say in its type what its actions are; its `step` does."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> GuessObservation:
        return GuessObservation(low=1, high=9)

    def step(self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any) -> GuessObservation:
        return GuessObservation(low=action.number, high=9, reward=None)

    @property
    def state(self) -> State:
        return State()
