"""What a run has learned, ready to be used: `headway.load(run)`.

    run folder --> config.yaml: the recipe and its settings
               --> checkpoints: `best`, `last` or a version --> the recipe's own `load_policy` --> a policy

Checkpoints are pickles: load only runs you trust.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from headway.coordinator.checkpoint import CheckpointError
from headway.coordinator.checkpoint_best_weights import BEST, kept_weights
from headway.runs.config import read_values
from headway.runs.folder import RunFolder
from headway.runs.recipes_package import load_recipe


@runtime_checkable
class HasFolder(Protocol):
    """A run that knows where it was recorded."""

    @property
    def folder(self) -> RunFolder | None: ...


def load(run: str | PathLike[str] | RunFolder | HasFolder, checkpoint: str | int = BEST) -> Any:
    """The policy of a run: the weights that scored best, or with `checkpoint` the `last` ones or those of a version.

    Of a recipe with an environment it is an `EnvPolicy`: `act(observation)`, or `predict` as in Stable-Baselines3. Of a
    language model it is a `LanguagePolicy`: `generate(prompt)`. `run` is a folder, or the run itself.
    """
    folder = folder_of(run)
    name, values = folder.read_config()
    recipe = load_recipe(name)
    if recipe.load_policy is None:
        raise ValueError(
            f"{folder.path} is a run of {recipe.title!r}, which has no policy to load: a recipe gives load_policy"
        )
    config = read_values(recipe.config, values)
    try:
        kept = kept_weights(folder.checkpoints, checkpoint)
    except CheckpointError as error:
        hint = "; checkpoint='last' is the newest" if checkpoint == BEST else ""
        raise CheckpointError(f"{error}{hint}") from None
    return recipe.load_policy(config, kept)


def folder_of(run: str | PathLike[str] | RunFolder | HasFolder) -> RunFolder:
    """The folder of a run that is named or given."""
    if isinstance(run, RunFolder):
        return RunFolder.existing(run.path)
    if isinstance(run, str | PathLike):
        return RunFolder.existing(Path(run).expanduser())
    if not isinstance(run, HasFolder):
        raise TypeError(f"a run is its folder, or what headway.start returned, received {type(run).__name__}")
    if run.folder is None:
        raise ValueError("this run was not recorded: give it a folder, and it can be loaded")
    return RunFolder.existing(run.folder.path)
