"""A prior that knows the way: the next action of the shortest plan, for games that can say it (`plan`).

    all states of the game, walked through once --> prompt --> what is to be done there

It stands in the place of a language model in tests and benchmarks: better help than this cannot be had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headway.core.types_opaque import Weights
from headway.text_games.action_prior import Opinion, Situation
from headway.text_games.guidance import asked_about
from headway.text_games.story_interface import Scene, StoryFactory

WritesPrompt = Callable[[Scene, str, Sequence[tuple[str, str]]], str]


class OraclePrior:
    """Puts everything on the next action of the plan; nothing where it knows none."""

    version = 0

    def __init__(self, make_game: StoryFactory, write_prompt: WritesPrompt, *, max_states: int = 100_000) -> None:
        self._next = _plans(make_game, write_prompt, max_states)
        self._asked = 0

    def apply(self, version: int, weights: Weights) -> None:
        self.version = version

    def opinions(self, situations: Sequence[Situation]) -> list[Opinion]:
        return [self._opinion(one) for one in situations]

    def _opinion(self, situation: Situation) -> Opinion:
        self._asked += 1
        wanted = self._next.get(situation.prompt)
        chances = np.array([float(action == wanted) for action in situation.actions], np.float32)
        logs = tuple(np.log(np.maximum(chance, 1e-9), dtype=np.float32).reshape(1) for chance in chances)
        return Opinion(chances, logs, self.version, False)

    def tokens(self, situation: Situation) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
        return (), [()] * len(situation.actions)

    def statistics(self) -> Mapping[str, float]:
        return {"asked": self._asked, "cached": 0, "late": 0, "scored_actions": 0}

    def close(self) -> None:
        """Holds nothing."""


def _plans(make_game: StoryFactory, write_prompt: WritesPrompt, max_states: int) -> dict[str, str]:
    """By prompt; where the game cannot describe a state by itself, it is told in as many ways as it can be come to."""
    game = make_game()
    scene = game.reset(0)
    known = {write_prompt(asked_about(game, scene, ()), game.objective, ()): _first(game)}
    seen, waiting = {game.key()}, deque([(game.save(), scene)])
    while waiting:
        state, scene = waiting.popleft()
        for action in scene.candidates:
            game.load(state)
            after = game.step(action)
            if after.is_over:
                continue
            known[write_prompt(asked_about(game, after, ()), game.objective, ())] = _first(game)
            if game.key() in seen:
                continue
            seen.add(game.key())
            if len(seen) > max_states:
                raise ValueError(f"the game has more than {max_states} states: too many to look at all of them")
            waiting.append((game.save(), after))
    game.close()
    return known


def _first(game: object) -> str:
    plan: Callable[[], tuple[str, ...]] | None = getattr(game, "plan", None)
    if plan is None:
        raise ValueError(f"an oracle needs a game with a plan; {type(game).__name__} has none")
    steps = plan()
    return steps[0] if steps else ""
