"""A run of three plain functions, waited for or in the background."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import ParamSpec, TypeVar

from headway.coordinator.functions import CollectFunction, EvaluateFunction, TrainFunction, stations_from_functions
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.rules_order import parse_on_stale, parse_order
from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue, Weights
from headway.runs.files_recording import Recording
from headway.runs.folder import RunFolder
from headway.runs.launch_background import Run
from headway.runs.launch_session import launch

P = ParamSpec("P")
T = TypeVar("T")
PLAN = {field.name for field in fields(Plan)}
SETTINGS = {field.name for field in fields(Settings)} - {"plan"}
LAUNCH = {"runtime", "resume", "checkpoint", "show_status", "print_events", "sinks"}
HELP = "help(headway.run) says which there are"
KEYWORDS = PLAN | SETTINGS | LAUNCH | {field.name for field in fields(Recording)}


def start(
    collect: CollectFunction,
    train: TrainFunction,
    evaluate: EvaluateFunction | None = None,
    *,
    weights: Weights,
    folder: str | Path | None = None,
    **settings: SettingValue,
) -> Run:
    """`run`, with the same arguments, in the background: a `Run` to look at, to stop and to wait for."""
    place = None if folder is None else RunFolder(Path(folder))
    stations, chosen, launching = _understood(collect, train, evaluate, weights, settings)
    return Run(lambda attach: launch(stations, chosen, folder=place, attach=attach, **launching), place)


def run(
    collect: CollectFunction,
    train: TrainFunction,
    evaluate: EvaluateFunction | None = None,
    *,
    weights: Weights,
    folder: str | Path | None = None,
    **settings: SettingValue,
) -> RunResult:
    """Collect, train and evaluate with three functions of your own, at the same time.

    `collect(weights, ticket)`, `train(weights, rollouts) -> weights`, `evaluate(weights) -> number`. With `folder`,
    events, metrics and checkpoints are kept there; `headway report FOLDER`, or `write_report` of
    `headway.cli.report`, makes the page of it.

    Everything else is a keyword:

    - when to stop, evaluate and save, as in `Plan`: `updates`, `steps`, `wall_s`, `target_score`, `evaluate_every`,
      `save_every`, `save_every_s`, `warmup_s`;
    - how far and in which order, as in `Settings`: `max_lead`, `order`, `max_staleness`, `on_stale`, `collectors`,
      `tickets_per_batch`, `seed` and the others; `order` and `on_stale` may be words;
    - where it runs and what is seen of it, as in `launch`: `runtime`, `show_status`, `sinks` (which get the metrics
      too, and are closed at the end), `resume=True` to go on from the last checkpoint of `folder`, or from the one that
      `checkpoint` names (000007-v42) or that holds this version;
    - what is kept and who looks at it, as in `Recording`: `alarms` are thresholds by name
      (`headway.runs.monitor_alarms.KNOWN`), for runs with a folder or sinks; `monitor` is a function (or where it is:
      file.py:function) that is given statistics at intervals (`headway.runs.monitor`).
    """
    stations, chosen, launching = _understood(collect, train, evaluate, weights, settings)
    return launch(stations, chosen, folder=None if folder is None else RunFolder(Path(folder)), **launching)


def _no_recipe(call: Callable[P, T]) -> Callable[P, T]:
    """Says what to call instead where a recipe's name is given in place of functions."""

    @functools.wraps(call)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        if args and isinstance(args[0], str | Path):
            raise TypeError(
                f"headway.run takes functions (collect, train, evaluate), received {str(args[0])!r}; a recipe is "
                f"trained by headway.train({str(args[0])!r}, ...)"
            )
        return call(*args, **keywords)

    return checked


def _understood(
    collect: CollectFunction,
    train: TrainFunction,
    evaluate: EvaluateFunction | None,
    weights: Weights,
    settings: dict[str, SettingValue],
) -> tuple[Stations, Settings, dict[str, SettingValue]]:
    """The stations, their settings, and what is left for `launch`."""
    strange = [name for name in settings if name not in KEYWORDS]
    if strange:
        raise TypeError("; ".join(unknown("keyword of headway.run", name, KEYWORDS, others=HELP) for name in strange))
    plan = {name: settings.pop(name) for name in PLAN & settings.keys()}
    if evaluate is None and (plan.get("evaluate_every") or plan.get("target_score") is not None):
        raise ValueError("evaluate_every and target_score need an evaluate function")
    if plan.get("target_score") is not None:
        plan["evaluate_every"] = plan.get("evaluate_every") or 1
    chosen = {name: settings.pop(name) for name in SETTINGS & settings.keys()}
    for name, parse in (("order", parse_order), ("on_stale", parse_on_stale)):
        if isinstance(chosen.get(name), str):
            chosen[name] = parse(chosen[name])
    return (
        stations_from_functions(collect, train, evaluate, weights=weights),
        Settings(plan=Plan(**{"evaluate_last": evaluate is not None, **plan}), **chosen),
        settings,
    )


def _signature(of: Callable[..., object], comes_to: type) -> inspect.Signature:
    """What `help`, notebooks and editors show: every keyword by its name, with the default that it has where it is
    declared."""
    own = [one for one in inspect.signature(of).parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    of_launch = inspect.signature(launch).parameters
    defaults: dict[str, object] = {name: of_launch[name].default for name in sorted(LAUNCH)}
    for group in (Plan, Settings, Recording):
        for field in fields(group):
            if field.name in KEYWORDS:
                made = None if field.default_factory is MISSING else field.default_factory()
                defaults[field.name] = made if field.default is MISSING else field.default
    kind = inspect.Parameter.KEYWORD_ONLY
    by_name = [inspect.Parameter(name, kind, default=value) for name, value in defaults.items()]
    return inspect.Signature([*own, *by_name], return_annotation=comes_to)


run = _no_recipe(run)
run.__signature__ = _signature(run, RunResult)  # type: ignore[attr-defined]
start.__signature__ = _signature(start, Run)  # type: ignore[attr-defined]
