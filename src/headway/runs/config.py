"""A recipe's configuration: what all of them share, and how one is read.

One frozen, validated model per recipe. It is flat: it inherits groups of settings (`shared_settings.py`, the settings
of its learner), each declared once, and hands them on as wholes (`part`). A value comes from, in rising order: the
default, `--config file.yaml`, `--field value`. Names known from other systems are translated (`headway.tools.names`),
unknown
ones are refused with the nearest known one. What cannot be is said all at once, one line for each problem.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import fields
from typing import ClassVar, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError, model_validator

from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.protocols import Runtime
from headway.core.rules_order import OnStale, parse_order
from headway.core.types_opaque import SettingValue
from headway.runs.config_shared_settings import (
    AsynchronySettings,
    FaultSettings,
    NameSettings,
    PlacementSettings,
    PlanSettings,
    RecordingSettings,
)
from headway.runs.folder import RecordedSettings
from headway.runtimes.build import build_runtime
from headway.tools.names.translate_layers import Said, understand_layers

YAML_WORDS = {True: "on", False: "off"}
"""Words that YAML reads as these; of a setting that has such a word as a value, the word is meant."""
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


class ConfigError(ValueError):
    """Settings that cannot be: one line, or where there are several problems a line for each."""

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        lines = self.problems
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} settings cannot be:", *lines]))


class RunConfig(FaultSettings, RecordingSettings, PlanSettings, PlacementSettings, AsynchronySettings, NameSettings):
    """What every recipe can be told."""

    also_for_evaluation: ClassVar[tuple[str, ...]] = ()
    """Settings that a finished run may be evaluated with differently, besides those called eval_*."""
    shown_first: ClassVar[str] = "max_lead collectors runtime updates seed"
    """Settings that a user of the recipe needs first: `headway run RECIPE --help` explains them."""

    defaults_by_env: ClassVar[Mapping[str, Mapping[str, SettingValue]]] = {}
    """Where what is played wants other defaults, by its name."""

    former_names: ClassVar[Mapping[str, str]] = {}
    """What some settings of the recipe were called before; these names are understood too."""

    @model_validator(mode="before")
    @classmethod
    def _by_former_names(cls, values: object) -> SettingValue:
        return renamed(values, cls.former_names) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _can_work(self) -> RunConfig:
        self.settings()
        return self

    def idle(self) -> dict[str, str]:
        """Settings that were changed and do nothing beside the others, each with a line that refuses it."""
        return {}

    @classmethod
    def implied(cls, name: str, system: str | None, values: Mapping[str, SettingValue]) -> Mapping[str, SettingValue]:
        """Settings that go along with a name of another system in this recipe, where `values` are set already."""
        return {}

    @classmethod
    def evaluation_settings(cls) -> list[str]:
        """What concerns evaluation alone, or where it is computed."""
        return [name for name in cls.model_fields if name.startswith("eval_") or name in cls.also_for_evaluation]

    def part(self, make: Callable[..., T], *, prefix: str = "", **more: object) -> T:
        """Calls `make` with those of its parameters that are settings here, and with `more`.

        This is how settings are handed on: a learner's own settings, or the arguments of a function, are found by their
        names. With `prefix="eval_"` the parameter `episodes` is the setting `eval_episodes`.
        """
        is_model = isinstance(make, type) and issubclass(make, BaseModel)
        names = make.model_fields if is_model else inspect.signature(make).parameters  # type: ignore[attr-defined]
        own = {name: prefix + name for name in names if prefix + name in type(self).model_fields and name not in more}
        return make(**{name: getattr(self, setting) for name, setting in own.items()}, **more)

    def evaluate_rarely(self, evaluation: int, version: int) -> None:
        """Spaces evaluations that pause the run, unless it was said how often: one takes at most `evaluation` steps (or
        replies), and a tenth of what is collected meanwhile, of which each version brings `version`."""
        if "evaluate_every" not in self.model_fields_set and self.evaluate_every and not self.evaluate_in_background:
            every = max(self.evaluate_every, -(-10 * evaluation // version))
            object.__setattr__(self, "evaluate_every", every)  # before anybody has seen it

    def build_runtime(self) -> Runtime:
        """Where this run takes place."""
        if self.runtime != "ray":
            return build_runtime(self.runtime, start_s=self.start_deadline_s)
        return build_runtime(
            self.runtime,
            start_s=self.start_deadline_s,
            address=self.ray_address,
            connect_s=self.ray_connect_s,
            keeps_copies=self.ray_keep_copies,
        )

    def settings(self) -> Settings:
        """The coordinator's settings; refuses combinations that deadlock or cannot hold."""
        limits = {one.name: getattr(self, f"{one.name.removesuffix('_s')}_deadline_s") for one in fields(Deadlines)}
        return self.part(
            Settings,
            plan=self.part(Plan),
            order=parse_order(self.order),
            on_stale=OnStale(self.on_stale),
            deadlines=Deadlines(**limits),
            retries=self.part(Retries),
        )


def renamed(values: Mapping[str, object], former_names: Mapping[str, str]) -> dict[str, SettingValue]:
    """Settings under the names they have now; refuses one that is said under both."""
    for name, now in former_names.items():
        if name in values and values.get(now, values[name]) != values[name]:
            raise ValueError(
                f"{name}={values[name]!r} means {now}={values[name]!r}, but {now}={values[now]!r} is set too"
            )
    return {former_names.get(name, name): value for name, value in values.items()}


def defaults_of(kind: type[BaseModel]) -> dict[str, SettingValue]:
    """Every setting by its name, with its default."""
    return {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}


def with_defaults(**values: object) -> Callable[[type[Model]], type[Model]]:
    """Gives the settings of a config other defaults; where they are declared, and what they mean, stays."""

    def change(kind: type[Model]) -> type[Model]:
        for name, value in values.items():
            field = copy(kind.model_fields[name])
            field.default, field.default_factory = value, None
            kind.model_fields[name] = field
        kind.model_rebuild(force=True)
        return kind

    return change


def without(*names: str) -> Callable[[type[Model]], type[Model]]:
    """Takes settings away that a config has inherited and has others for."""

    def change(kind: type[Model]) -> type[Model]:
        for name in names:
            del kind.model_fields[name]
        kind.model_rebuild(force=True)
        return kind

    return change


def require_correction(correction: str, max_lead: float | str) -> None:
    """An asynchronous policy gradient without a correction is silently biased: refuse it."""
    if correction == "none" and max_lead != 0:
        raise ValueError(
            f"correction='none' with max_lead={max_lead!r} trains on stale data as if they were fresh; "
            f"choose clip, decoupled or vtrace, or max_lead=0"
        )


def read_values(kind: type[RunConfig], *layers: Mapping[str, object]) -> RunConfig:
    """A configuration from names and values, later layers over earlier ones; every problem in a clear line."""
    merged, said, problems = in_our_words(kind, *layers)
    written = _as_written(merged, said)
    for name, value in list(merged.items()):
        annotation = kind.model_fields[name].annotation
        if isinstance(value, str) and _may_hold_several(annotation):
            value = merged[name] = _structure(value)
        if isinstance(value, bool) and YAML_WORDS[value] in get_args(annotation):
            value = merged[name] = YAML_WORDS[value]
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            problems.append(f"{name} needs a value, received {value!r}")  # else a bare --updates would be 1
            del merged[name]
    try:
        config = kind(**merged)
    except ValidationError as error:
        problems += _lines(error, written, with_combinations=not problems)
    else:
        begun = {
            name: value for layer in layers if isinstance(layer, RecordedSettings) for name, value in layer.items()
        }
        problems += [line for name, line in config.idle().items() if begun.get(name) != getattr(config, name)]
    if problems:
        raise ConfigError(*problems)
    return config


def understand(kind: type[RunConfig], *layers: Mapping[str, object]) -> tuple[dict[str, SettingValue], list[Said]]:
    """Layers in our words, later ones over earlier ones, and what was translated on the way."""
    merged, said, problems = in_our_words(kind, *layers)
    if problems:
        raise ConfigError(*problems)
    return merged, said


def in_our_words(
    kind: type[RunConfig], *layers: Mapping[str, object]
) -> tuple[dict[str, SettingValue], list[Said], list[str]]:
    """The same with a line for each name that cannot be understood, instead of an error."""
    layers = tuple(renamed(layer, kind.former_names) for layer in layers)
    merged, said, problems = understand_layers(defaults_of(kind), layers)
    system = next((str(layer["names"]).lower() for layer in layers[::-1] if layer.get("names") is not None), None)
    for place, one in enumerate(said):
        if isinstance(one.meaning, dict):
            more = kind.implied(one.name, system, merged)
            merged |= more
            said[place] = one._replace(meaning={**one.meaning, **more})
    return merged, said, problems


def _may_hold_several(annotation: object) -> bool:
    """Whether a mapping or a list may be meant, also where it is one of several (`tuple[int, ...] | None`)."""
    return any(get_origin(one) in (dict, list, tuple) for one in (annotation, *get_args(annotation)))


def _structure(text: str) -> SettingValue:
    """A mapping or a list that was written on the command line; a word stays as it stands there."""
    try:
        read: SettingValue = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(read, dict):
        return dict(_meant(name, value) for name, value in read.items())
    return read if isinstance(read, list | None) else text


def _meant(name: SettingValue, value: SettingValue) -> tuple[SettingValue, SettingValue]:
    """`{length:3}` is a name `length:3` without a value to YAML, which wants a space there, and to nobody else."""
    if value is None and isinstance(name, str) and ":" in name:
        first, _, rest = name.partition(":")
        return first, yaml.safe_load(rest)
    return name, value


SHAPES = {
    "dict_type": "a mapping is wanted, as in '{length: 3, is_slippery: false}'",
    "tuple_type": "a list is wanted, as in '[64, 64]'",
    "list_type": "a list is wanted, as in '[64, 64]'",
}
"""Problems that pydantic names by types of Python, in the words of a command line."""


def _as_written(merged: Mapping[str, object], said: Iterable[Said]) -> dict[str, str]:
    """What a user wrote for settings that were said in other words: `actor_rollout_ref.rollout.n=0` for group_size."""
    written: dict[str, list[str]] = {}
    for one in said:
        for field, value in one.meaning.items() if isinstance(one.meaning, dict) else ():
            if field in merged and merged[field] == value:
                written.setdefault(field, []).append(" ".join(one.shown.split()))
    return {field: ", ".join(names) for field, names in written.items()}


def _lines(error: ValidationError, written: Mapping[str, str], *, with_combinations: bool) -> list[str]:
    """A line for each value that cannot be, as it was written. What only several settings together cause may be due to
    other problems."""
    by_name: dict[str, list[str]] = {}
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"][:1])
        message = SHAPES.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
        if name:
            ours = f"{name}={problem['input']!r}"
            by_name.setdefault(name, []).append(
                f"{f'{written[name]} ({ours})' if name in written else ours}: {message}"
            )
        elif with_combinations:
            named = [f"{one} is {written[one]}" for one in dict.fromkeys(re.findall(r"\w+", message)) if one in written]
            by_name.setdefault(name, []).append(f"{message} ({'; '.join(named)})" if named else message)
    return ["; ".join(dict.fromkeys(lines)) for lines in by_name.values()]
