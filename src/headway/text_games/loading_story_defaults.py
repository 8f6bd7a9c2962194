"""Settings that belong to a game: where a story wants other defaults than the recipe has.

    what a user sets  >  what --quick_test sets  >  what the game wants  >  the recipe's default

The recipe's defaults are those of a short quest that ends with one point. In a game of hundreds of points rewards and
values are larger, rooms take more words, and more can be done in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from headway.core.types_opaque import SettingValue
from headway.text_games.loading import ALIASES

Z_MACHINE = "a Z-machine file"
"""The row of the table for every .z3, .z5 and .z8."""
LONG_GAME: Mapping[str, SettingValue] = {
    "max_episode_steps": 100,
    "slots": 24,
    "value_range": 18.0,  # reaches 350 points
    "value_bins": 91,
    "value_norm_floor": 5.0,  # less than a few points is no difference
}
FADING_PRIOR: Mapping[str, SettingValue] = {
    "prior_weighting": "annealed",  # a frozen prior helps to begin with, costs time, and is then left alone
    "prior_weight": 0.5,
    "prior_weight_versions": 2000,
    "prior_floor": 0.03,
}
STORY_DEFAULTS: Mapping[str, Mapping[str, SettingValue]] = {
    "colossal_cave": {
        **LONG_GAME,
        "text_words": 192,
        "gamma": 0.98,
        "td_steps": 10,
        "entropy_weight": 0.1,
        "eval_temperature": 0.5,
        **FADING_PRIOR,
    },
    Z_MACHINE: {**LONG_GAME, "text_words": 128},
}
"""By the name of the game."""

OTHER_SHARES = frozenset({"prior_weight", "prior_weight_low", "prior_weight_high"})
"""Whoever sets one of these and no weighting means another one than fading."""
_STORY_FILE = re.compile(r"\.z[1-8]$", re.IGNORECASE)


def story_defaults(env: object, told: Mapping[str, SettingValue] = MappingProxyType({})) -> Mapping[str, SettingValue]:
    """What the game of this name wants beside what was told; nothing, if it is content with the recipe's defaults."""
    if not isinstance(env, str):
        return {}
    name = ALIASES.get(env, env)
    wanted = STORY_DEFAULTS.get(Z_MACHINE if _STORY_FILE.search(name) else name, {})
    return {name: value for name, value in wanted.items() if name not in FADING_PRIOR or _may_fade(name, told)}


def _may_fade(name: str, told: Mapping[str, SettingValue]) -> bool:
    """Whether a default about the prior's share fits what was told: there is one, and it was given no other share."""
    if told.get("prior") == "none":
        return False
    weighting = told.get("prior_weighting")
    is_other = weighting not in (None, "annealed") or (weighting is None and not OTHER_SHARES.isdisjoint(told))
    return name == "prior_floor" or not is_other
