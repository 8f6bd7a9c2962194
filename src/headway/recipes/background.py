"""Runs in the background, whatever they are made of: `headway.start`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from headway.coordinate.roles import Stations
from headway.coordinate.settings import Settings
from headway.core.opaque import SettingValue
from headway.launching import Recording, build_sinks, launch, of_functions
from headway.launching.background import Run
from headway.observe.folder import RunFolder
from headway.observe.sinks import Sink
from headway.recipes import load_recipe
from headway.recipes.config import RunConfig, read_values


def start(what: object, *more: object, **settings: SettingValue) -> Run:
    """Begins a run and returns at once. `what` may be

    - a recipe's name, or a file of your own: `start("ppo", env="CartPole-v1", updates=100)`. It is recorded in a new
      folder under `runs`, or in `folder`; `show_status=True` shows how far it is;
    - three functions, as for `headway.run`: `start(collect, train, evaluate, weights=...)`;
    - stations and their settings, as for `headway.launch`: `start(stations, settings, ...)`.

    What cannot be is raised here. Daemon threads end with the process: wait for a run, or use it in a `with` block.
    """
    if isinstance(what, str | Path):
        if more:
            raise TypeError(f"start({str(what)!r}, ...) takes settings by name, received {len(more)} more arguments")
        return _of_recipe(str(what), **settings)
    if isinstance(what, Stations):
        return _of_stations(what, *more, **settings)  # type: ignore[arg-type]
    return of_functions.start(what, *more, **settings)  # type: ignore[arg-type]


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
    config: RunConfig = read_values(recipe.config, settings)
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
    )
