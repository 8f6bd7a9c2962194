"""Runs of the recipes that play by search, small enough for a test."""

from __future__ import annotations

from typing import Any

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.runs.config import read_values
from headway.runs.recipes_package import load_recipe
from headway.runtimes.build import build_runtime
from headway.zero.stations_search_run import SearchConfig

TINY: dict[str, Any] = {
    "num_envs": 2,
    "segment_steps": 8,
    "num_simulations": 4,
    "batch_size": 8,
    "replay_min_size": 40,
    "replay_capacity": 200,
    "num_unroll_steps": 2,
    "td_steps": 3,
    "value_bins": 11,
    "updates": 12,
    "evaluate_every": 0,
    "seed": 3,
}
TINY_MODEL: dict[str, dict[str, Any]] = {
    "muzero": {"latent": 8, "hidden": 8},
    "unizero": {"dim": 8, "heads": 2, "num_simulations": 3, "updates": 6},
}


def tiny(recipe: str, **changes: Any) -> Any:
    return read(recipe, **{**TINY, **TINY_MODEL[recipe], **changes})


def read(recipe: str, **values: Any) -> Any:
    config = read_values(load_recipe(recipe).config, values)
    assert isinstance(config, SearchConfig)
    return config


def run(recipe: str, config: Any, **more: Any) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(load_recipe(recipe).stations(config), config.settings(), place, **more).run())
