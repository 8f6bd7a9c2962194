"""Models that the runs of this library make: `made:GAME`, and the folder of a run. `headway.llm.model.loading_models`
asks here.

made:lights                    a small model that knows the words of a game, made on the spot
made:my_games.py:Guess         ... of your own: the game has a method vocabulary() that lists its words
made:lights {"lights": 8}      ... with options of the game
runs/2026-01-02-sft            the newest weights of a run, as a model
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from headway.agents.loading import env_options, load_env
from headway.coordinator.checkpoint import LAST, CheckpointStore
from headway.llm.model.loading_models import written_once
from headway.llm.model.tiny_llama import WordModel, kept_word_model
from headway.llm.model.types import ModelError
from headway.runs.folder import RunFolder
from headway.runs.recipes_run_export import export

MODELS = "models"
"""The folder in that of a run where its weights are kept as models."""


def made_model(name: str) -> Path:
    """Returns the folder of a model that knows the words of a game: `GAME`, or `GAME {its options}`."""
    game, brace, rest = name.partition("{")
    options = env_options(brace + rest)
    env: Any = load_env(game.strip(), options)()
    vocabulary: Callable[..., Iterable[str]] | None = getattr(env, "vocabulary", None)
    if vocabulary is None:
        raise ModelError(f"made:{name} needs the words of the game: give {type(env).__name__} a method vocabulary()")
    of_a_class = isinstance(getattr(vocabulary, "__self__", None), type)  # then no game with its options is there yet
    return kept_word_model(WordModel(tuple(vocabulary(**options) if of_a_class else vocabulary())))


def model_of_run(path: Path) -> Path:
    """Returns the folder of the newest weights of a run, which is written where it is not there yet."""
    run = RunFolder.existing(path)
    newest = CheckpointStore(run.checkpoints).find(LAST)
    digest = hashlib.sha256((newest / "manifest.json").read_bytes()).hexdigest()
    return written_once(run.path / MODELS / f"{newest.name}-{digest[:8]}", partial(export, run))
