"""A game that outlives its environment: where one is lost, another plays the same replies again and goes on.

    reset(seed) --> step(a) --> step(b) --X  the environment is lost
                                          |
    reset(seed) --> step(a) --> step(b) <-+  a fresh one: the same texts, and nobody has noticed
                       |
                       +-- another text: GameChanged, what the policy was told is no longer so

What the policy cannot cause must not cost it anything: neither a reward nor the turns it has played. Only
infrastructure is repaired in this way (`EnvironmentLost`); an environment that its author must mend (`BadEnvironment`)
is not tried again.
"""

from __future__ import annotations

from headway.agents.env import EnvironmentLost, Step
from headway.agents.stepping import RunningGame, Stepping


class GameChanged(RuntimeError):
    """A fresh environment answered the same replies differently: the episode has to begin anew."""


class ReplayedGame:
    """Plays one episode on up to `attempts` environments, one after the other. Used by one thread."""

    def __init__(self, stepping: Stepping, seed: int, attempts: int) -> None:
        self._stepping = stepping
        self._seed = seed
        self._attempts = attempts
        self._game: RunningGame | None = None
        self._first: str | None = None
        self._steps: list[tuple[str, Step]] = []  # replies, and what came of them
        self.num_lost = 0
        """Environments that were lost under it."""

    def begin(self) -> str:
        """Returns what is said first. Asked again, the episode begins anew."""
        self.close()
        self._first = None
        self._steps.clear()
        while self._first is None:
            try:
                self._replay()
            except EnvironmentLost as lost:
                self._note(lost)
        return self._first

    def step(self, reply: str) -> Step:
        while True:
            try:
                game = self._game or self._replay()
                step = game.step(reply)
                break
            except EnvironmentLost as lost:
                self._note(lost)
        self._steps.append((reply, step))
        return step

    def state_key(self) -> str | None:
        return None if self._game is None else self._game.state_key()

    def close(self) -> None:
        game, self._game = self._game, None
        if game is not None:
            game.close()

    def _replay(self) -> RunningGame:
        """Brings a fresh environment to where the lost one was."""
        game = self._stepping.begin()
        try:
            first = game.reset(self._seed)
            for reply, before in self._steps:
                step = game.step(reply)
                if (step.text, step.done) != (before.text, before.done):
                    raise GameChanged(f"the same replies led to {step.text!r} instead of {before.text!r}")
            if self._first is not None and first != self._first:
                raise GameChanged(f"seed {self._seed} began with {first!r} instead of {self._first!r}")
        except BaseException:
            game.close()
            raise
        self._game, self._first = game, first
        return game

    def _note(self, lost: EnvironmentLost) -> None:
        """One environment fewer; raises if it was the last one that was allowed."""
        self.num_lost += 1
        self.close()
        if self.num_lost >= self._attempts:
            raise lost
