"""Writes the weights of a run to a folder: a trained language model that transformers and vLLM load, with its card.

    checkpoint of a run --> the recipe's own `export` --> FOLDER beside its place --> FOLDER
                                                          README.md: what it is, how it is loaded, the settings

A folder that is there is whole. Checkpoints are pickles: export only runs you trust.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from headway.coordinator.checkpoint_best_weights import BEST, LAST, BestWeights, Kept, kept_weights
from headway.coordinator.state_files_whole_files import written_beside
from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.runs.config import RunConfig, defaults_of, read_values
from headway.runs.folder import RunFolder
from headway.runs.recipes_package import EXPORTED, Exported, Recipe, load_recipe

CARD = "README.md"


@dataclass(frozen=True, slots=True)
class Export:
    """What was written, and where."""

    folder: Path
    kept: Kept
    about: Exported


def export(run: RunFolder, to: Path, *, checkpoint: str | int = LAST, **options: object) -> Export:
    """Write a checkpoint (`last`, `best` or a version) of a run to a folder that is not there yet, or is empty.

    What `options` there are, the recipe says: the keywords of its `export`.
    """
    name, values = run.read_config()
    recipe = load_recipe(name)
    if recipe.export is None:
        raise ValueError(
            f"{run.path} is a run of {recipe.title!r}; only runs of {', '.join(EXPORTED)} can be exported"
            " to a folder; a policy becomes a file that ends in .onnx, .pt2 or .pt"
        )
    _check_options(recipe, options)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"{to} exists and is {'not empty' if to.is_dir() else 'no folder'}: choose another folder")
    config = read_values(recipe.config, values)
    if checkpoint == BEST:  # its checkpoint, if that is still there, holds more than the weights
        checkpoint = BestWeights(run.checkpoints).version or BEST
    kept = kept_weights(run.checkpoints, checkpoint)
    try:
        with written_beside(to) as beside:
            beside.mkdir(parents=True)
            about = recipe.export(config, kept, beside, **options)
            (beside / CARD).write_text(card(run, recipe, config, kept, about))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{to} cannot be written: {error}") from None
    return Export(to, kept, about)


def card(run: RunFolder, recipe: Recipe, config: RunConfig, kept: Kept, about: Exported) -> str:
    """The page: what it is, how it is loaded, and the settings that were not left as they are."""
    score = "not evaluated" if kept.score is None else f"{kept.score:.6g}"
    rows = {"run": run.path.resolve().name, "recipe": recipe.title, **about.facts}
    rows |= {"version": kept.version, "score": score}
    lines = ["---", yaml.safe_dump(dict(about.metadata), sort_keys=False).strip(), "---", ""]
    lines += [f"# {run.path.resolve().name}, version {kept.version}", ""]
    lines += [f"Trained with the recipe {recipe.title} of Headway.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), ""]
    lines += ["```python", about.usage, "```", "", "Settings that differ from the recipe's defaults:", ""]
    return "\n".join([*lines, "```yaml", yaml.safe_dump(_changed(config), sort_keys=False).strip(), "```", ""])


def _changed(config: RunConfig) -> Mapping[str, SettingValue]:
    said = config.model_dump(mode="json")
    return {name: said[name] for name, default in defaults_of(type(config)).items() if getattr(config, name) != default}


def _check_options(recipe: Recipe, options: Mapping[str, object]) -> None:
    assert recipe.export is not None
    known = inspect.signature(recipe.export).parameters.values()
    allowed = {one.name: one.default for one in known if one.kind is one.KEYWORD_ONLY}
    for name, value in options.items():
        if name not in allowed:
            raise ValueError(unknown("option", name, ["to", "checkpoint", *allowed]))
        if isinstance(allowed[name], bool) and not isinstance(value, bool):
            raise ValueError(f"{name} is true or false, received {value!r}")
