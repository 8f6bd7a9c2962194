"""LightZero's entries under their own names, for scripts whose imports alone change.

    from headway.cli.lightzero_entries import train_unizero_segment_async

    policy = train_unizero_segment_async([main_config, create_config], seed=0, max_env_step=int(2e5))

Which recipe it is stands in `create_config.policy.type`, and whether collection overlaps with training in the
configuration (`enable_async_training`, `data_queue_size`), so that all of them do the same. Each returns the trained
policy, as `headway.load` makes it: of the weights that scored best, or of the last ones where none was evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.cli.lightzero import Config, run_of
from headway.coordinator.checkpoint_best_weights import BEST, LAST, BestWeights
from headway.runs.recipes_loading import load


def train_muzero(
    input_cfg: tuple[Config, Config] | list[Config] | str | Path,
    seed: int = 0,
    model: None = None,
    model_path: str | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    *,
    runs: str | Path = "runs",
    **settings: Any,
) -> Any:
    """Trains by both configurations and returns the policy. `settings` are over those of the configurations."""
    if model is not None or model_path is not None:
        raise ValueError("a run begins with weights of its own: model and model_path must be None; see headway resume")
    limit = None if max_train_iter is None or max_train_iter >= 10**10 else max_train_iter  # their default: none
    quiet = bool(settings.pop("quiet", False))
    folder, _ = run_of(input_cfg, None, seed, max_env_step, limit, Path(runs), quiet, settings)
    return load(folder.path, LAST if BestWeights(folder.checkpoints).version is None else BEST)


train_unizero = train_muzero
train_muzero_segment = train_muzero
train_unizero_segment = train_muzero
train_muzero_segment_async = train_muzero
train_unizero_segment_async = train_muzero
