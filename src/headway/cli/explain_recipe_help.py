"""The help of a recipe: what its user needs first, then its own settings by group; with `--help all` every one of them.

A group is the class that declares a setting, and its docstring is the group's heading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headway.cli.options_output import print_table, say
from headway.core.types_opaque import SettingValue
from headway.runs.config import RunConfig
from headway.runs.recipes_package import Recipe


def explain_recipe(recipe: Recipe, *, every: bool) -> int:
    """Print what a recipe can be told."""
    fields: dict[str, FieldInfo] = recipe.config.model_fields
    say(f"headway run {recipe.name}: {recipe.what}")
    if every:
        for heading, names in groups_of(recipe.config).items():
            say(f"\n{heading}")
            print_table(["setting", "default", "what it does"], [_row(name, fields[name]) for name in names])
        if recipe.config.defaults_by_env:
            say("")
            rows = [[env, assignments(own)] for env, own in recipe.config.defaults_by_env.items()]
            print_table(["env", "its own defaults"], rows)
        return 0
    first = [name for name in recipe.config.shown_first.split() if name in fields]
    print_table(["setting", "default", "what it does"], [_row(name, fields[name], short=True) for name in first])
    common = RunConfig.model_fields
    shared = {name for name in common if name in fields and fields[name].default == common[name].default}
    others: dict[str, list[str]] = {}
    for heading, names in groups_of(recipe.config).items():
        own = [f"{name}={_default(fields[name])}" for name in names if name not in shared and name not in first]
        if own:
            others.setdefault(heading.partition(":")[0].rstrip("."), []).extend(own)
    say("")
    print_table(["group", "its other settings"], [[group, "  ".join(own)] for group, own in others.items()])
    say(f"\nheadway run {recipe.name} --help all explains these, and the {len(shared)} settings that all recipes share")
    return 0


def assignments(values: Mapping[str, SettingValue]) -> str:
    """Settings and what they are, in one line."""
    return "  ".join(f"{name}={value}" for name, value in values.items())


def groups_of(config: type[BaseModel]) -> dict[str, list[str]]:
    """The settings of a config under the headings of their groups: the recipe's own first."""
    groups: dict[str, list[str]] = {}
    seen: set[str] = set()
    for kind in sorted(config.__mro__, key=lambda kind: kind in RunConfig.__mro__):
        if not (issubclass(kind, BaseModel) and kind.__doc__):
            continue
        declared = [name for name in kind.__annotations__ if name in config.model_fields and name not in seen]
        if declared:
            groups.setdefault(kind.__doc__.partition("\n")[0], []).extend(declared)
            seen.update(declared)
    return groups


def _row(name: str, field: FieldInfo, *, short: bool = False) -> list[str]:
    what = (field.description or "").replace("\n", " ")
    if short:
        what = what.partition(". ")[0].rstrip(".")
    choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    return [f"--{name}", _default(field), what + (f" [{', '.join(choices)}]" if choices else "")]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is None or value in ((), {}) else str(value)
