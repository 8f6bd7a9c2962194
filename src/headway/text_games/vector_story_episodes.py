"""One story game, one episode after another, each cut after so many steps.

    begin() -> scene -> step(action) -> scene -> ... -> is_over (the game says so), or is_cut (by the limit)

A game that crashes or hangs is made anew, and its episode is cut where it was. Pickling holds the game's state, and not
the game.
"""

from __future__ import annotations

from headway.core.types import derive_seed
from headway.core.types_opaque import SavedState
from headway.text_games.story_interface import Scene, StoryFactory, StoryGame, StoryLost, checked_scene

BEGIN_TRIES = 3
"""How often a game that is lost at its beginning is made anew before that is an error."""


class StoryEpisodes:
    """Plays a game; episode j of a seed begins with a seed that depends on these two alone."""

    def __init__(self, make_game: StoryFactory, *, seed: int, max_steps: int, history_steps: int = 0) -> None:
        self._make_game = make_game
        self._max_steps = max_steps
        self._history_steps = history_steps
        self._seed = seed
        self._episode = 0
        self.game: StoryGame = make_game()
        self.length = 0
        """Steps of this episode so far."""
        self.lost = 0
        """How often the game crashed or hung."""
        self.guessed = 0
        """How often the game could not find out what can be done."""
        self.is_cut = False
        self.history: list[tuple[str, str]] = []
        """The last actions of this episode, and what came of each."""
        self.scene = self.begin()

    @property
    def is_ended(self) -> bool:
        """Says whether only `begin` may be called."""
        return self.is_cut or self.scene.is_over

    def begin_anew(self, seed: int) -> None:
        """Begins the first episode of another seed."""
        self._seed, self._episode = seed, 0
        self.begin()

    def begin(self) -> Scene:
        """Begins the next episode."""
        seed = derive_seed(self._seed, self._episode)
        self._episode += 1
        self.length, self.is_cut, self.history = 0, False, []
        for tries_left in reversed(range(BEGIN_TRIES)):
            try:
                self.scene = checked_scene(self.game.reset(seed), type(self.game).__name__)
                break
            except StoryLost:
                if not tries_left:
                    raise
                self._replace()
        self.guessed += self.scene.are_guesses
        return self.scene

    def step(self, action: str) -> float:
        """Does something and returns what it was worth."""
        before = self.scene
        self.length += 1
        try:
            self.scene = checked_scene(self.game.step(action), type(self.game).__name__)
        except StoryLost:
            self._replace()
            self.is_cut = True
            return 0.0
        self.guessed += self.scene.are_guesses
        self.is_cut = not self.scene.is_over and self.length >= self._max_steps
        self.history.append((action, self.scene.text))
        del self.history[: max(0, len(self.history) - self._history_steps)]
        return self.scene.score - before.score

    def _replace(self) -> None:
        self.lost += 1
        self.game.close()
        self.game = self._make_game()

    def __getstate__(self) -> dict[str, SavedState]:
        state = {name: value for name, value in vars(self).items() if name != "game"}
        return state | {"saved": None if self.is_ended else self.game.save()}

    def __setstate__(self, state: dict[str, SavedState]) -> None:
        saved = state.pop("saved")
        self.guessed = 0  # in what was saved before it was counted
        vars(self).update(state)
        self.game = self._make_game()
        if saved is not None:
            self.game.load(saved)
