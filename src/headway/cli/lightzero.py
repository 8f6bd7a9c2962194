"""Runs from the configurations that LightZero's own files define.

    from headway.cli.lightzero import train

    train([main_config, create_config], seed=0, max_env_step=200_000)

The recipe is chosen by `create_config.policy.type`, the environment by both. Every name in them is translated, said
to have no effect, or refused with the reason: `headway/tools/names/lightzero.py` holds the tables. On the command
line the
file itself is enough:

    headway run --config cartpole_unizero_config.py --max_lead 2
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headway.cli.launch import start
from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import SettingValue
from headway.runs.folder import RunFolder, read_config
from headway.runs.recipes_package import load_recipe
from headway.tools.names.lightzero import RECIPES

if TYPE_CHECKING:
    from headway.coordinator.run_result import RunResult

Config = Mapping[str, SettingValue]


def train(
    input_cfg: Config | Sequence[Config] | str | Path,
    create_config: Config | None = None,
    seed: int = 0,
    max_env_step: int | None = None,
    *,
    max_train_iter: int | None = None,
    runs: str | Path = "runs",
    quiet: bool = False,
    **settings: object,
) -> RunResult:
    """Train by a configuration of LightZero's, in a folder under `runs`.

    :param input_cfg: [main_config, create_config], or main_config with `create_config` beside it, or the file that
        defines both
    :param settings: over those of the configuration, under our names or theirs: max_lead=2, num_simulations=50
    """
    return run_of(input_cfg, create_config, seed, max_env_step, max_train_iter, Path(runs), quiet, settings)[1]


def run_of(
    input_cfg: Config | Sequence[Config] | str | Path,
    create_config: Config | None,
    seed: int,
    max_env_step: int | None,
    max_train_iter: int | None,
    runs: Path,
    quiet: bool,
    settings: Mapping[str, object],
) -> tuple[RunFolder, RunResult]:
    """The same with the folder of the run."""
    limits = {"max_env_step": max_env_step, "num_iterations": max_train_iter}
    given = {name: value for name, value in limits.items() if value is not None}
    values = configured(input_cfg, create_config)
    recipe = load_recipe(recipe_of(values))
    return start(recipe, values, {"seed": seed, **given, **settings}, root=runs, quiet=quiet)


def configured(
    input_cfg: Config | Sequence[Config] | str | Path, create_config: Config | None = None
) -> dict[str, SettingValue]:
    """Both configurations as one, from a file too."""
    if isinstance(input_cfg, str | Path):
        return read_file(Path(input_cfg))[1]
    main, create = _both(input_cfg, create_config)
    return merged(main, create)


def _both(configs: Config | Sequence[Config], create_config: Config | None) -> tuple[Config, Config]:
    if isinstance(configs, Mapping):
        configs = [configs] if create_config is None else [configs, create_config]
    if len(configs) != 2 or not all(isinstance(config, Mapping) for config in configs):
        raise ValueError(f"two configurations are needed, main_config and create_config, received {len(configs)}")
    return configs[0], configs[1]


def merged(main: Config, create: Config) -> dict[str, SettingValue]:
    """Both as one: the groups of `create` with those of `main` in them."""
    both = dict(create)
    for name, value in main.items():
        other = both.get(name)
        both[name] = merged(value, other) if isinstance(value, Mapping) and isinstance(other, Mapping) else value
    return both


def recipe_of(values: Config) -> str:
    """The recipe that `policy.type` names."""
    policy = values.get("policy")
    kind = policy.get("type") if isinstance(policy, Mapping) else None
    if kind is None:
        raise ValueError("create_config.policy.type is missing: it says which recipe this is")
    if kind not in RECIPES:
        raise ValueError(unknown("policy", str(kind), RECIPES))
    return RECIPES[kind]


def read_file(path: Path) -> tuple[str, dict[str, SettingValue]]:
    """The recipe and the settings in a file: YAML, or a Python file that defines main_config and create_config.

    One that defines policy_config alone, as PriorZero's does, names no recipe.
    """
    if path.suffix != ".py":
        return read_config(path)
    if not path.is_file():
        raise ValueError(f"cannot read {path}: no such file")
    try:
        with _easydict():
            defined = runpy.run_path(str(path), run_name="configuration")  # not __main__: it would train at once
    except Exception as error:
        raise ValueError(f"{path} cannot be loaded: {in_a_line(error)}") from error
    if "main_config" not in defined and isinstance(defined.get("policy_config"), Mapping):
        return "", {"policy": dict(defined["policy_config"])}
    for name in ("main_config", "create_config"):
        if not isinstance(defined.get(name), Mapping):
            raise ValueError(f"{path} defines no {name} outside of its functions")
    values = merged(defined["main_config"], defined["create_config"])
    if isinstance(defined.get("max_env_step"), int):
        values["max_env_step"] = defined["max_env_step"]
    return recipe_of(values), values


@contextmanager
def _easydict() -> Iterator[None]:
    """Their files make groups by the class of a package that nothing else here needs: while one is read, ours stands in
    for it where it is not installed."""
    if importlib.util.find_spec("easydict") is not None:
        yield
        return
    stand_in = ModuleType("easydict")
    stand_in.__dict__["EasyDict"] = Groups
    sys.modules["easydict"] = stand_in
    try:
        yield
    finally:
        del sys.modules["easydict"]


class Groups(dict[str, Any]):
    """A dictionary whose items are attributes too, in the groups below as well."""

    def __init__(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__()
        for name, value in {**(values or {}), **more}.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        is_plain = isinstance(value, Mapping) and not isinstance(value, Groups)
        super().__setitem__(name, Groups(value) if is_plain else value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value
