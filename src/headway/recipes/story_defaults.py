"""Settings that belong to a game: where a story wants other defaults than the recipe has.

    what a user sets  >  what --quick_test sets  >  what the game wants  >  the recipe's default

The recipe's defaults are those of a short quest that ends with one point. In a game of hundreds of points rewards and
values are larger, rooms take more words, and more can be done in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headway.core.opaque import SettingValue
from headway.envs.text_games.loading import ALIASES

Z_MACHINE = "a Z-machine file"
"""The row of the table for every .z3, .z5 and .z8."""
LONG_GAME: Mapping[str, SettingValue] = {
    "max_episode_steps": 100,
    "slots": 24,
    "value_range": 18.0,  # reaches 350 points
    "value_bins": 91,
    "value_norm_floor": 5.0,  # less than a few points is no difference
}
STORY_DEFAULTS: Mapping[str, Mapping[str, SettingValue]] = {
    "colossal_cave": {
        **LONG_GAME,
        "text_words": 192,
        "gamma": 0.98,
        "td_steps": 10,
        "entropy_weight": 0.1,
        "eval_temperature": 0.5,
    },
    Z_MACHINE: {**LONG_GAME, "text_words": 128},
}
"""By the name of the game."""

_STORY_FILE = re.compile(r"\.z[1-8]$", re.IGNORECASE)


def story_defaults(env: object) -> Mapping[str, SettingValue]:
    """What the game of this name wants; nothing, if it is content with the recipe's defaults."""
    if not isinstance(env, str):
        return {}
    name = ALIASES.get(env, env)
    return STORY_DEFAULTS.get(Z_MACHINE if _STORY_FILE.search(name) else name, {})
