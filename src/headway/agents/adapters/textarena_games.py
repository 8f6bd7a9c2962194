"""Single-player games of TextArena (`pip install textarena`): `textarena:FrozenLake-v0`.

    reset(num_players=1, seed)     get_observation() -> messages     step(action) -> done, info     close() -> rewards

Only messages that are new, and not the player's own, are shown; the reward comes at the end. TextArena seeds the global
random generator, so its games are stepped in processes.
"""

from __future__ import annotations

from typing import Any

import textarena
from textarena.core import ObservationType
from textarena.envs.registration import ENV_REGISTRY

from headway.agents.adapters import DEFAULT_TURNS, no_word_list, require_begun, require_known, small_seed, something
from headway.agents.checked_env_checked_game import OwnGlobalRandom
from headway.agents.env import BadEnvironment, Step
from headway.core.types_opaque import SettingValue

RAW = "-raw"
"""The version of a game without wrappers, which would say everything again at each turn."""


class TextArenaGame:
    """Plays one game of TextArena; a reply without square brackets is put into them, as TextArena's own wrapper does.

    `max_turns` is twice what the game allows: it does not count the first mistake in a row.
    """

    seeds_globally = True

    def __init__(self, name: str, env: Any) -> None:
        self._name = name
        self._env = env
        with OwnGlobalRandom().put_in_place():
            try:
                env.reset(num_players=1, seed=0)  # only then it says how long it may last
            except AssertionError as error:
                raise BadEnvironment(f"textarena:{name} is not for one player: {error}") from error
        self.max_turns = 2 * int(getattr(env.state, "max_turns", None) or DEFAULT_TURNS)
        self._is_over = True

    def reset(self, seed: int) -> str:
        self._env.reset(num_players=1, seed=small_seed(seed))
        self._is_over = False
        return self._news()

    def step(self, reply: str) -> Step:
        require_begun(self._is_over, self._name)
        done, _ = self._env.step(reply if "[" in reply or "]" in reply else f"[{reply}]")
        text = self._news()
        if not done:
            return Step(something(text))
        self._is_over = True
        rewards, games = self._env.close()
        info = games[0] if games else {}
        reward, reason = (rewards or {}).get(0, 0.0), info.get("reason") or ""
        if isinstance(reward, str):  # some games hand the two on in the wrong order
            reward, reason = str(reason).rpartition(" ")[2], reward  # "Invalid Move: 0.5"
        measured = {"invalid_move": float(info.get("invalid_move", False))}
        text = "\n".join(part for part in (text, str(reason)) if part)
        return Step(text, float(reward or 0.0), True, info=measured)

    def _news(self) -> str:
        _, messages = self._env.get_observation()
        return "\n".join(str(text).strip() for _, text, kind in messages if kind is not ObservationType.PLAYER_ACTION)


def make(id: str, **options: SettingValue) -> TextArenaGame:
    """`FrozenLake-v0`; the options are those of the game in TextArena."""
    require_known("TextArena", id, (name for name in ENV_REGISTRY if not name.endswith(RAW)))
    try:
        return TextArenaGame(id, textarena.make(id + RAW if id + RAW in ENV_REGISTRY else id, **options))
    except LookupError as error:
        raise no_word_list(f"textarena:{id}", error) from error
