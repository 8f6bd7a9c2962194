"""Runs from Python: `headway.train` waits for one, `headway.start` leaves it in the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from numbers import Number
from pathlib import Path
from typing import Any

from headway.coordinator.checkpoint_best_weights import BEST, LAST, BestWeights
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Settings
from headway.core.types_opaque import SettingValue
from headway.runs import launch_of_functions as of_functions
from headway.runs.config import ConfigError, RunConfig, read_values
from headway.runs.files_recording import Recording
from headway.runs.folder import RunFolder
from headway.runs.launch_background import Run
from headway.runs.launch_session import launch
from headway.runs.recipes_loading import load
from headway.runs.recipes_package import load_recipe
from headway.runs.sinks import Sink
from headway.runs.sinks_metric_sinks import build_sinks


def start(what: object, *more: object, **settings: SettingValue) -> Run:
    """Begins a run and returns at once. `what` may be

    - a recipe's name, or a file of your own: `start("ppo", env="CartPole-v1", updates=100)`. It is recorded in a new
      folder under `runs`, or in `folder`; `show_status=True` shows how far it is;
    - three functions, as for `headway.run`: `start(collect, train, evaluate, weights=...)`;
    - stations and their settings, as for `headway.launch`: `start(stations, settings, ...)`.

    What cannot be is raised here. Its thread ends with the process: wait for a run, use it in a `with` block, or call
    `headway.train`, which waits.
    """
    if isinstance(what, str | Path):
        if more:
            raise TypeError(f"start({str(what)!r}, ...) takes settings by name, received {len(more)} more arguments")
        return _of_recipe(str(what), **settings)
    if isinstance(what, Stations):
        return _of_stations(what, *more, **settings)  # type: ignore[arg-type]
    return of_functions.start(what, *more, **settings)  # type: ignore[arg-type]


def train(recipe: str | Path, **settings: SettingValue) -> Run:
    """Trains by a recipe to the end, with its settings as keywords, and returns the run.

        run = headway.train("ppo", env="CartPole-v1", total_timesteps=50_000)
        print(run.folder, run.scores[-1].value)
        action = run.policy.act(observation)

    `recipe` is a name, or a file of your own. Progress is shown as on the command line; `show_status=False` is quiet.
    The folder is a new one under `runs`, or `folder`. Ctrl-C finishes the update under way, saves, and returns the run.
    """
    if not isinstance(recipe, str | Path):
        raise TypeError(
            f"headway.train takes the name of a recipe, received {recipe!r}; functions of your own are for "
            "headway.run(collect, train, evaluate, weights=...)"
        )
    shows = settings.setdefault("show_status", True)
    run = _of_recipe(str(recipe), **settings)
    result = run.wait()
    if shows:
        last = next((score.value for score in reversed(run.scores) if score.value is not None), None)
        score = "" if last is None else f"last score {last:.6g}; "
        print(f"{result.stop_reason}; {score}version {result.version} in {run.folder}")
    return run


def _of_stations(stations: Stations, settings: Settings, **launching: SettingValue) -> Run:
    return Run(lambda attach: launch(stations, settings, attach=attach, **launching), launching.get("folder"))


def _of_recipe(
    recipe_name: str,
    /,
    *,
    folder: str | Path | None = None,
    runs: str | Path = "runs",
    show_status: bool = False,
    sinks: Sequence[Sink] = (),
    **settings: SettingValue,
) -> Run:
    recipe = load_recipe(recipe_name)
    config: RunConfig = read_values(recipe.config, {name: _as_text(name, one) for name, one in settings.items()})
    stations = recipe.stations(config)  # before there is a folder: what cannot be leaves nothing behind
    place = RunFolder.create(Path(runs), recipe.title, config.name) if folder is None else RunFolder(Path(folder))
    said = config.model_dump(mode="json")
    own: list[Sink] = config.part(build_sinks, folder=place, config=said)
    return Run(
        lambda attach: launch(
            stations,
            config.settings(),
            runtime=config.build_runtime(),
            folder=place,
            show_status=show_status,
            sinks=[*own, *sinks],
            config=(recipe.name, said),
            attach=attach,
            **asdict(config.part(Recording)),
        ),
        place,
        partial(_policy, place),
    )


def _policy(folder: RunFolder) -> Any:
    return load(folder, LAST if BestWeights(folder.checkpoints).version is None else BEST)


def _as_text(name: str, value: SettingValue) -> SettingValue:
    """A setting as config.yaml can hold it: an object is refused with the text that stands for it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _as_text(f"{name}[{key!r}]", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(name, one) for one in value]
    if value is None or isinstance(value, str | Number):
        return value
    if callable(value):
        found, module = getattr(value, "__name__", "name"), getattr(value, "__module__", "__main__")
        is_there = module != "__main__" and getattr(value, "__qualname__", "") == found
        place = f"{module if is_there else 'file.py'}:{found.strip('<>')}"
        hint = f"name it, as in {name}={place!r}" + ("" if is_there else ", in a file of its own")
    else:
        hint = "data are named by their file or folder, as in task='jsonl:FILE' or task='datasets:FOLDER'"
    raise ConfigError(f"{name}: settings are text and numbers, received an object ({type(value).__name__}); {hint}")
