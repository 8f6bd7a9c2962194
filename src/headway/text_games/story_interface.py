"""What a story game is: it tells of a place in words, lists what can be done there, and keeps the score.

    reset(seed) -> Scene(text, score, candidates) -> [somebody chooses one] -> step(action) -> Scene -> ... -> is_over

    save() -> bytes -> load(bytes): the same scene again, whatever was played in between
    key(): equal for equal states, so that a state that was seen before can be recognised

One seed is one story: the same scenes for the same actions. After the end only `reset` and `load` may be called. A game
is used by one thread at a time. How many steps an episode may have is not the game's affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Protocol, cast

from headway.core.text_one_line import shortened
from headway.replay.records import restore_fields


@dataclass(frozen=True, slots=True)
class Scene:
    """Holds what a player of a story sees."""

    text: str
    """What the game says now: what happened, the room, what is carried."""
    score: float
    """The points so far. What an action was worth is the difference of two scores."""
    candidates: tuple[str, ...]
    """What can be done here, each once; empty exactly where the story is over."""
    is_over: bool = False
    is_won: bool = False
    """Did it end as the player wanted?"""
    are_guesses: bool = False
    """Could it not be found out what can be done? The candidates are then commands that are worth trying anywhere."""

    def __setstate__(self, state: Sequence[object]) -> None:
        restore_fields(self, state)  # one that was saved before it could say so has no guesses


class StoryGame(Protocol):
    """Tells one story after another, each begun by `reset`.

    A game may have more than this protocol asks for; it is looked for with `getattr`:

    | name | what it is |
    |---|---|
    | `plan() -> tuple[str, ...]` | the shortest way to win from here |
    | `described() -> str` | what is here, the same for equal states: without what the last action led to |
    | `walkthrough() -> tuple[str, ...]` | a way to win, or to a good score, from the beginning |
    """

    objective: str
    """What the player is to do, in words; empty if the game does not say."""
    max_score: float | None
    """The most points there are, if the game knows."""

    def reset(self, seed: int) -> Scene:
        """Begins the story of this seed."""
        ...

    def step(self, action: str) -> Scene:
        """Does something. What is no candidate may be tried too: the game answers in words, or refuses in one line."""
        ...

    def save(self) -> bytes:
        """Returns the whole state."""
        ...

    def load(self, state: bytes) -> Scene:
        """Goes back to a state that was saved, by this game or another one made alike, and shows its scene again."""
        ...

    def key(self) -> bytes:
        """Returns what is equal for equal states. How many turns were played is no part of it."""
        ...

    def close(self) -> None:
        """Lets go of what the game holds."""
        ...


StoryFactory = Callable[[], StoryGame]
"""Makes a story game. It can be pickled: each process makes its own."""


class StoryLost(RuntimeError):
    """A game crashed, hung or was killed. The player could not cause this; it may work next time."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        """What happened, in one line."""


class StoryEnded(ValueError):
    """Somebody acted in a story that is over, or that has not begun."""

    def __init__(self, action: str, *, has_begun: bool = True) -> None:
        why = "the story is over" if has_begun else "the story has not begun"
        super().__init__(f"{why}: call reset(seed) before {shortened(action, 40)!r}")


class BadStory(ValueError):
    """The author of a game must mend it: a score is no number, a candidate stands twice, nothing can be done."""


def checked_story(value: object, name: str) -> StoryGame:
    """Returns what a factory made, if it has what a story game needs."""
    for method in ("reset", "step", "save", "load", "key"):
        if not callable(getattr(value, method, None)):
            raise BadStory(f"story game {name} is a {type(value).__name__} without {method}()")
    if not isinstance(getattr(value, "objective", None), str):
        raise BadStory(f"story game {name} needs objective, a text (empty: it does not say)")
    if not hasattr(value, "max_score"):
        raise BadStory(f"story game {name} needs max_score, a number (None: it does not know)")
    most = value.max_score
    if most is not None and not (isinstance(most, Real) and math.isfinite(most)):
        raise BadStory(f"story game {name}: max_score is {shortened(repr(most), 40)}; allowed: a finite number or None")
    return cast("StoryGame", value)


def checked_scene(scene: object, name: str) -> Scene:
    """Returns a scene, if it can be played and learned from."""
    if not isinstance(scene, Scene):
        raise BadStory(f"story game {name} must return a Scene, received {type(scene).__name__}")
    if not math.isfinite(scene.score):
        raise BadStory(f"story game {name}: the score is {scene.score!r}; allowed: a finite number")
    if len(set(scene.candidates)) != len(scene.candidates):
        twice = next(one for one in scene.candidates if scene.candidates.count(one) > 1)
        raise BadStory(f"story game {name}: the candidate {shortened(twice, 40)!r} stands twice")
    for text in (scene.text, *scene.candidates):
        try:
            text.encode()
        except UnicodeEncodeError:
            what = f"the text {shortened(ascii(text), 60)} is not valid Unicode (a lone surrogate)"
            raise BadStory(f"story game {name}: {what}") from None
    if not all(one.strip() for one in scene.candidates):
        raise BadStory(f"story game {name}: a candidate is empty; it must say what is done")
    if scene.is_over == bool(scene.candidates):
        what = "is over and has candidates" if scene.is_over else "goes on and has no candidate"
        raise BadStory(f"story game {name} {what}: {shortened(scene.text, 60)!r}")
    return scene
