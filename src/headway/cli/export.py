"""A run's weights as a folder that others load, with a page that says where they come from.

run folder ──config──> recipe ──> its export ──> files, written beside ──renamed──> the folder
     └─────newest, best or named checkpoint──^             └── README.md
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headway.coordinate.best_weights import BEST, LAST, BestWeights, Kept, kept_weights
from headway.core.naming import unknown
from headway.observe.folder import RunFolder
from headway.observe.whole_files import written_beside
from headway.recipes import EXPORTED, Exported, Recipe, load_recipe
from headway.recipes.config import RunConfig, read_values

CARD = "README.md"


@dataclass(frozen=True, slots=True)
class Export:
    """What was written, and where."""

    folder: Path
    kept: Kept
    about: Exported


def export(run: RunFolder, to: Path, *, checkpoint: str | int = LAST, **options: Any) -> Export:
    """Write a checkpoint (`last`, `best` or a version) of a run to a folder that is not there yet, or is empty.

    What `options` there are, the recipe says: the keywords of its `export`.
    """
    name, values = run.read_config()
    recipe = load_recipe(name)
    if recipe.export is None:
        raise ValueError(f"{run.path} is a run of {recipe.title!r}; only runs of {', '.join(EXPORTED)} can be exported")
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
    lines += [f"Trained with Headway: {recipe.what}.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), ""]
    lines += ["```python", about.usage, "```", "", "Settings that differ from the recipe's defaults:", ""]
    return "\n".join([*lines, "```yaml", yaml.safe_dump(_changed(config), sort_keys=False).strip(), "```", ""])


def _changed(config: RunConfig) -> Mapping[str, Any]:
    fields = type(config).model_fields
    standard = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    said = config.model_dump(mode="json")
    return {name: said[name] for name in fields if getattr(config, name) != standard[name]}


def _check_options(recipe: Recipe, options: Mapping[str, Any]) -> None:
    assert recipe.export is not None
    known = inspect.signature(recipe.export).parameters.values()
    allowed = {one.name: one.default for one in known if one.kind is one.KEYWORD_ONLY}
    for name, value in options.items():
        if name not in allowed:
            raise ValueError(unknown("option", name, ["to", "checkpoint", *allowed]))
        if isinstance(allowed[name], bool) and not isinstance(value, bool):
            raise ValueError(f"{name} is true or false, received {value!r}")
