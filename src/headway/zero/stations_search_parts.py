"""Parts that every recipe whose policy searches is wired of, whatever it plays: boards, environments, stories."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from headway.core.types import derive_seed
from headway.zero.config import PlayedBySearchConfig
from headway.zero.replay_game_segments import GameSegments, Reanalysis
from headway.zero.self_play_search_segments import Temperature


def temperature_of(config: PlayedBySearchConfig) -> Temperature:
    """How boldly moves are drawn from the visits."""
    return Temperature(
        config.temperature, config.final_temperature, config.temperature_versions, config.temperature_moves
    )


def replay_of(
    config: PlayedBySearchConfig,
    *,
    observation: tuple[int, ...],
    num_actions: int,
    store_as: DTypeLike,
    has_masks: bool,
    has_priors: bool = False,
    symmetries: tuple[np.ndarray, np.ndarray] | None = None,
) -> GameSegments:
    """Where segments wait to be drawn, and which of them are searched again; the rest is what the game looks like."""
    return GameSegments(
        config.replay_capacity,
        num_streams=config.collectors * config.num_envs,
        segment_steps=config.segment_steps,
        observation=observation,
        num_actions=num_actions,
        batch_size=config.batch_size,
        windows=config.windows,
        reanalysis=Reanalysis(
            ratio=config.reanalyze_ratio,
            partition=config.reanalyze_partition,
            min_age=config.reanalyze_min_age,
            roots=config.reanalyze_roots,
        ),
        store_as=store_as,
        has_masks=has_masks,
        has_priors=has_priors,
        bootstrap_obs=config.bootstrap == "network",
        alpha=config.replay_alpha,
        beta_start=config.replay_beta_start,
        beta_end=config.replay_beta_end,
        total_draws=config.updates,
        total_steps=config.steps,
        symmetries=symmetries,
        seed=derive_seed(config.seed, "replay"),
    )
