"""N story games side by side, as a search sees them: rows of words, and slots to choose from.

    scenes --show(places)--> obs [N, row], legal [N, K], shown --step(slots)--> rewards, terminated, truncated

A game whose episode ended shows its last scene; whatever is chosen in the next step only begins its next episode. After
`step` the first K candidates stand in the slots; `show` puts others there, or the same in another order.
Pickling holds the games' states, so a copy goes on exactly where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headway.core.types import derive_seed
from headway.text_games.story_interface import Scene, StoryFactory, StoryGame
from headway.text_games.vector_rows import RowShape, encode_scene
from headway.text_games.vector_story_episodes import StoryEpisodes


class StoryGames:
    """Plays N games. It is what a collector of segments calls `Games`, with the texts besides."""

    def __init__(
        self,
        make_game: StoryFactory,
        num_envs: int,
        *,
        seed: int = 0,
        shape: RowShape | None = None,
        max_steps: int = 100,
        history_steps: int = 0,
    ) -> None:
        """Makes the games and begins them.

        seed: game i begins its episode j with a seed that depends on these three alone.
        max_steps: cuts an episode after so many steps.
        history_steps: how many of the last steps `histories` keeps.
        """
        least = {"num_envs": 1, "max_steps": 1, "history_steps": 0}
        for name, value in (("num_envs", num_envs), ("max_steps", max_steps), ("history_steps", history_steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least[name]:
                raise ValueError(f"{name} must be a whole number >= {least[name]}, received {value!r}")
        self.num_envs = num_envs
        self.shape = shape or RowShape()
        self.cut = 0
        """Candidates that found no slot, so far."""
        self._episodes = [
            StoryEpisodes(make_game, seed=_seed_of(seed, index), max_steps=max_steps, history_steps=history_steps)
            for index in range(num_envs)
        ]
        self._begin()

    def begin_anew(self, seed: int) -> None:
        """Leaves all games behind, whatever state they are in, and begins new ones."""
        for index, episodes in enumerate(self._episodes):
            episodes.begin_anew(_seed_of(seed, index))
        self._begin()

    def _begin(self) -> None:
        self.to_play = np.zeros(self.num_envs, np.int8)
        self.ended = np.zeros(self.num_envs, bool)
        self._show_first()

    @property
    def games(self) -> list[StoryGame]:
        """Returns the games themselves."""
        return [one.game for one in self._episodes]

    @property
    def scenes(self) -> list[Scene]:
        """Returns what each game shows, with all its candidates."""
        return [one.scene for one in self._episodes]

    @property
    def histories(self) -> list[list[tuple[str, str]]]:
        """Returns the last actions of each game's episode, and what came of each."""
        return [one.history for one in self._episodes]

    @property
    def objectives(self) -> list[str]:
        """Returns what the player of each game is to do, in words."""
        return [one.game.objective for one in self._episodes]

    @property
    def lost(self) -> int:
        """Returns how many games crashed or hung so far; each cut an episode."""
        return sum(one.lost for one in self._episodes)

    @property
    def guessed(self) -> int:
        """Returns how many scenes so far had commands that are worth trying anywhere, for want of better ones."""
        return sum(one.guessed for one in self._episodes)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Takes the slot [N] of what is done in each game. Returns rewards [N], terminated [N], truncated [N]."""
        chosen = [self._chosen(index, slot) for index, slot in enumerate(actions.tolist())]
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for index, (episodes, action) in enumerate(zip(self._episodes, chosen, strict=True)):
            if action is None:
                episodes.begin()
                continue
            rewards[index] = episodes.step(action)
            terminated[index], truncated[index] = episodes.scene.is_over, episodes.is_cut
        self.ended = terminated | truncated
        self._show_first()
        return rewards, terminated, truncated

    def _chosen(self, index: int, slot: int) -> str | None:
        """Returns what is to be done in a game; None: its next episode only begins."""
        if self.ended[index]:
            return None
        shown = self.shown[index]
        if not 0 <= slot < len(shown):
            raise ValueError(f"game {index} has {len(shown)} actions in its slots, received slot {slot}")
        return shown[slot]

    def show(self, places: Sequence[Sequence[int]]) -> None:
        """Puts candidates into the slots: of each game the places of some of them in `scenes[i].candidates`, in order.

        Calling it again replaces what was shown; a candidate that finds no slot is counted once a scene.
        """
        if len(places) != self.num_envs:
            raise ValueError(f"there are {self.num_envs} games, received places for {len(places)}")
        self.cut -= self._num_left_out()
        self._put(places)

    def _show_first(self) -> None:
        self._put([range(min(len(scene.candidates), self.shape.slots)) for scene in self.scenes])

    def _put(self, places: Sequence[Sequence[int]]) -> None:
        obs = np.zeros((self.num_envs, self.shape.length), np.int32)
        legal = np.zeros((self.num_envs, self.shape.slots), bool)
        shown: list[tuple[str, ...]] = []
        for index, (scene, chosen) in enumerate(zip(self.scenes, places, strict=True)):
            actions = tuple(scene.candidates[place] for place in chosen)
            if len(set(actions)) != len(actions):
                raise ValueError(f"a candidate of game {index} was put into two slots, received places {list(chosen)}")
            obs[index] = encode_scene(scene, self.shape, actions)
            legal[index, : len(actions)] = True
            shown.append(actions)
        self.obs: npt.NDArray[np.int32] = obs
        self.legal: npt.NDArray[np.bool_] = legal
        self.shown = shown
        """The texts in the slots of each game."""
        self.cut += self._num_left_out()

    def _num_left_out(self) -> int:
        return sum(len(scene.candidates) - len(shown) for scene, shown in zip(self.scenes, self.shown, strict=True))

    def close(self) -> None:
        """Lets go of what the games hold."""
        for episodes in self._episodes:
            episodes.game.close()


def _seed_of(seed: int, index: int) -> int:
    return derive_seed(seed, "story", index)
