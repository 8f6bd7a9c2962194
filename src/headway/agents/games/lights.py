"""A row of lights, some of which are off: as many as there are turns. A press turns a light on, or off again."""

from __future__ import annotations

import random
from collections.abc import Iterator

from headway.agents.env import Step
from headway.agents.games.text_game import TextGame, first_of, require_at_least

COLOURS = ("red", "green", "blue", "white", "yellow", "pink", "brown", "gold")
RULES = "Off: {off}. Press one that is off."
NOT_UNDERSTOOD = "I read no light."
DONE = "All lights are on."


class Lights(TextGame):
    """A light that goes on is worth a share of 1; all `turns` presses must be right for all lights to be on."""

    def __init__(self, lights: int = 5, turns: int = 3) -> None:
        require_at_least(1, turns=turns)
        super().__init__(turns)
        require_at_least(turns, lights=lights)
        if lights > len(COLOURS):
            raise ValueError(f"lights must be at most {len(COLOURS)}, received {lights!r}")
        self.names = COLOURS[:lights]
        self._off: set[str] = set()

    def begin(self) -> str:
        self._off = set(self.rng.sample(self.names, self.max_turns))
        return self._view()

    def answer(self, reply: str) -> Step:
        pressed = first_of(reply, self.names)
        if pressed is None:
            return Step(f"{NOT_UNDERSTOOD} {self._view()}")
        if pressed not in self._off:
            self._off.add(pressed)
            return Step(self._view())
        self._off.remove(pressed)
        share = 1 / self.max_turns
        if not self._off:
            return Step(DONE, reward=share, done=True, success=True)
        return Step(self._view(), reward=share)

    def state_key(self) -> str:
        return ", ".join(sorted(self._off))

    def random_reply(self, rng: random.Random) -> str:
        return rng.choice(self.names)

    def expert_reply(self) -> str:
        return next(name for name in self.names if name in self._off)

    def texts(self) -> Iterator[str]:
        yield from (RULES.format(off=", ".join(self.names)), NOT_UNDERSTOOD, DONE)

    def _view(self) -> str:
        return RULES.format(off=", ".join(name for name in self.names if name in self._off))
