"""What you run: one readable file each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headway.coordinate.roles import Stations
from headway.core.naming import unknown

RECIPES = {
    "functions": "three plain functions on a bandit with contexts; no dependencies, seconds to run",
    "cartpole": "PPO on CartPole-v1, to a mean return of 475 in seconds (needs headway[games])",
    "colorlines": "PPO on Colour Lines, 6561 moves and a board that fills up (needs headway[games])",
    "gsm8k": "GRPO on grade-school maths with a rule reward (needs headway[llm] and the data)",
    "grpo": "GRPO, Dr.GRPO, RLOO or REINFORCE++ on a language model and a verifiable task (needs headway[llm])",
    "ppo": "PPO for any Gymnasium environment (needs headway[games])",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe's name, its configuration, and how its stations are built from one."""

    name: str
    config: type[Any]
    stations: Callable[[Any], Stations]


def load_recipe(name: str) -> Recipe:
    """A recipe by name. Its module is imported only now: it may need packages others do not."""
    if name not in RECIPES:
        raise ValueError(unknown("recipe", name, RECIPES))
    module = import_module(f"headway.recipes.{name}")
    return Recipe(name, module.CONFIG, module.stations)
