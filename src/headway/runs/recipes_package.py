"""What you run: one readable file each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import SettingValue
from headway.llm.memory.remedies import MemoryReport

RECIPES = {
    "agent": "GRPO on episodes of a language model in environments that answer it (needs headway[llm])",
    "functions": "three plain functions on a bandit with contexts; no dependencies, seconds to run",
    "cartpole": "PPO on CartPole-v1, to a mean return of 475 in seconds (needs headway[games])",
    "colorlines": "PPO on Colour Lines, 6561 moves and a board that fills up (needs headway[games])",
    "gsm8k": "GRPO on grade-school maths with a rule reward (needs headway[llm] and the data)",
    "grpo": "GRPO, Dr.GRPO, RLOO or REINFORCE++ on a language model and a verifiable task (needs headway[llm])",
    "muzero": "MuZero on CartPole-v1, any discrete Gymnasium environment, or a board game (needs headway[games])",
    "ppo": "PPO for any Gymnasium environment (needs headway[games])",
    "priorzero": "a world model that plays story games by search, guided by a language model (needs headway[llm])",
    "sft": "a language model imitates an expert's games or the conversations of a file (needs headway[llm])",
    "unizero": "UniZero, MuZero with a transformer as its model, on the same games (needs headway[games])",
}

MODULES = {
    "agent": "headway.agents.recipe",
    "functions": "headway.runs.bandit",
    "cartpole": "headway.ppo.cartpole",
    "colorlines": "headway.ppo.colorlines.recipe",
    "gsm8k": "headway.llm.gsm8k",
    "grpo": "headway.llm.grpo",
    "muzero": "headway.zero.muzero_recipe",
    "ppo": "headway.ppo.recipe_ppo",
    "priorzero": "headway.text_games.recipe_priorzero",
    "sft": "headway.llm.sft",
    "unizero": "headway.zero.unizero_recipe",
}
"""Where each is at home. It is imported when it is asked for: it may need packages others do not."""

ELSEWHERE = {
    **dict.fromkeys(("a2c", "ddpg", "dqn", "sac", "td3"), "ppo, muzero and unizero learn from environments"),
    **dict.fromkeys(("dpo", "kto"), "grpo learns from rewards, sft from examples"),
    **dict.fromkeys(("dr_grpo", "reinforce", "rloo"), "grpo with --estimator is what there is of its kind"),
}
"""Algorithms of other libraries that are no recipe, and what there is instead."""

EXPORTED = ("agent", "grpo", "gsm8k", "sft")
"""Those whose runs can be exported."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What a recipe says of the files it has written for others."""

    usage: str
    """How they are loaded, in Python; the folder is called FOLDER."""
    metadata: Mapping[str, SettingValue] = field(default_factory=dict)
    """For the head of the page, as model hubs read it."""
    facts: Mapping[str, SettingValue] = field(default_factory=dict)
    """For people."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe's name (or its file), its configuration, and how its stations are built from one.

    `export(config, kept, folder, *, ...)`, if it has one, writes weights that were kept into a folder for others;
    `load_policy(config, kept)` makes of them something that acts, or replies. `memory(config)`, if it has one, says
    what a run would need, or None where that is not known.
    """

    name: str
    config: type[Any]
    stations: Callable[[Any], Stations]
    export: Callable[..., Exported] | None = None
    memory: Callable[[Any], MemoryReport | None] | None = None
    load_policy: Callable[[Any, Kept], Any] | None = None

    @property
    def title(self) -> str:
        """What its runs are called."""
        return Path(self.name).stem

    @property
    def what(self) -> str:
        """In a line."""
        return RECIPES.get(self.name, f"your own recipe in {self.name}")


def load_recipe(name: str) -> Recipe:
    """A recipe by name, or a file of your own. Its module is imported only now: it may need packages others do not."""
    if name.endswith(".py"):
        path = Path(name).expanduser().resolve()
        module = _module_of(path)
        return _recipe(str(path), module)
    if name in ELSEWHERE:
        raise ValueError(f"recipe {name!r} is not here: {ELSEWHERE[name]}")
    if name not in RECIPES:
        raise ValueError(f"{unknown('recipe', name, RECIPES)}, or a file of your own that ends in .py")
    return _recipe(name, import_module(MODULES[name]))


def _recipe(name: str, module: ModuleType) -> Recipe:
    own = {hook: getattr(module, hook, None) for hook in ("export", "memory", "load_policy")}
    return Recipe(name, module.CONFIG, module.stations, **own)


def _module_of(path: Path) -> ModuleType:
    """A file as a module that processes started from here find too: its folder is on the path from now on."""
    if not path.is_file():
        raise ValueError(f"recipe file {path} does not exist")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(path.stem)
    except Exception as error:
        raise ValueError(f"recipe file {path} cannot be loaded: {in_a_line(error)}") from error
    if Path(module.__file__ or "").resolve() != path:
        raise ValueError(f"recipe file {path} cannot be loaded: {path.stem!r} is the name of another module")
    for wanted in ("CONFIG", "stations"):
        if not hasattr(module, wanted):
            raise ValueError(f"recipe file {path} has no {wanted}: a recipe gives CONFIG and stations")
    return module
