"""Which runs a sweep has: every combination of the values that are listed, with every seed.

    --seeds 5                        0, 1, 2, 3, 4          --seeds 3,7,9      those
    --learning_rate 1e-3,3e-4        two values             --env CartPole-v1  one: it is the same in every run
    --hidden "[64],[64,64]"          two values that are lists themselves

Nothing of it is understood before all of it is: whatever a recipe would refuse is told at once, for all combinations.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args, get_origin

import yaml
from pydantic import BaseModel

from headway.core.types_opaque import JsonObject, SettingValue
from headway.runs.config import ConfigError, RunConfig, read_values, understand

MOST_RUNS = 10_000
LONGEST_FOLDER = 120


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of a sweep."""

    folder: str
    """Within the folder of the sweep."""
    varied: JsonObject
    """The settings that differ between runs, as the recipe understands them; without the seed."""
    seed: int
    settings: JsonObject
    """All that is said of the run, in the words in which it was said."""

    @property
    def label(self) -> str:
        """What its setting is called."""
        return label_of(self.varied)


@dataclass(frozen=True, slots=True)
class Grid:
    """What is listed: settings that are the same in all runs, those with several values, and seeds."""

    fixed: JsonObject = field(default_factory=dict)
    axes: Sequence[Mapping[str, Sequence[SettingValue]]] = ({},)
    """Each is a grid of its own; the runs are those of all of them."""
    seeds: Sequence[int] | None = None
    """None: the one that the settings say, or that is the default."""

    def combinations(self) -> Iterator[JsonObject]:
        for axes in self.axes:
            for values in itertools.product(*axes.values()):
                yield dict(zip(axes, values, strict=True))


def label_of(varied: Mapping[str, SettingValue]) -> str:
    """A setting in words: `learning_rate=0.001, max_lead=2`."""
    return ", ".join(f"{name}={_text(value)}" for name, value in varied.items()) or "as it is"


def _text(value: SettingValue) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).replace("'", "").replace(" ", "") if isinstance(value, list | tuple | dict) else str(value)


# -- reading ----------------------------------------------------------------------------------------


def read_seeds(said: SettingValue) -> tuple[int, ...]:
    """5: the seeds 0 to 4. 3,7,9 or a list: those."""
    if isinstance(said, str):
        said = (
            [_as_read(part) for part in split(said)] if "," in said or said.strip().startswith("[") else _as_read(said)
        )
        said = said[0] if isinstance(said, list) and len(said) == 1 and isinstance(said[0], list) else said
    if isinstance(said, int) and not isinstance(said, bool):
        if said < 1:
            raise ValueError(f"--seeds needs at least one, received {said}")
        return tuple(range(said))
    if not isinstance(said, list) or not said or any(isinstance(one, bool) or not isinstance(one, int) for one in said):
        raise ValueError(f"--seeds is how many (5: 0 to 4), or which (3,7,9), received {said!r}")
    if any(one < 0 for one in said):
        raise ValueError(f"a seed is 0 or more, received --seeds {','.join(map(str, said))}")
    if len(set(said)) < len(said):
        raise ValueError(f"--seeds {','.join(map(str, said))} names one seed twice")
    return tuple(said)


def read_axis(kind: type[RunConfig], name: str, text: str, names: str | None = None) -> list[SettingValue]:
    """The values that a word of the command line lists for a setting; one, if it lists none.

    A setting that is itself a list, or a mapping, has its values in brackets.
    """
    parts = split(text)
    if _is_structure(kind, name, parts[0], names):
        in_brackets = [part.strip()[:1] in ("[", "{") for part in parts]
        if len(parts) > 1 and not all(in_brackets):
            raise ValueError(
                f"--{name} {text} is ambiguous, as {name} has several parts itself: one value is "
                f'--{name} "[{text}]", several are --{name} "[...],[...]"'
            )
        whole = _as_read(text)
        if len(parts) == 1 and isinstance(whole, list) and whole and all(isinstance(one, list | dict) for one in whole):
            return list(whole)
        return [_as_read(part) for part in parts]
    if len(parts) == 1 and text.strip().startswith("["):
        values = _as_read(text)
        if isinstance(values, list):
            parts = [
                one if isinstance(one, str) else yaml.safe_dump(one).removesuffix("...\n").strip() for one in values
            ]
    if not parts or any(not part.strip() for part in parts):
        raise ValueError(f"--{name} {text} lists a value that is empty")
    return [_as_read(part) for part in parts]


def split(text: str) -> list[str]:
    """At commas that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _as_read(text: str) -> SettingValue:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _is_structure(kind: type[RunConfig], name: str, part: str, names: str | None) -> bool:
    """Is the setting a list or a mapping itself? Of a name from another system: is what it comes down to?"""
    found = [name]
    if name not in kind.model_fields:
        try:
            found = list(understand(kind, {name: _as_read(part), **({"names": names} if names else {})})[0])
        except ValueError:
            return False  # what is wrong with it is told with everything else
    return any(_has_parts(kind.model_fields[one].annotation) for one in found if one in kind.model_fields)


def _has_parts(annotation: object) -> bool:
    origin = get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, (dict, list, tuple)):
        return True
    return any(_has_parts(one) for one in get_args(annotation) if one is not type(None))


# -- planning ---------------------------------------------------------------------------------------


def plan_runs(kind: type[RunConfig], grid: Grid) -> list[SweepRun]:
    """Every run of the grid. ConfigError: what cannot be, of all of them."""
    combinations = list(grid.combinations())
    count = len(combinations) * len(grid.seeds or (0,))
    if count > MOST_RUNS:
        raise ValueError(f"{count} runs are more than a sweep may have ({MOST_RUNS})")
    problems: list[str] = []
    configs: list[RunConfig] = []
    for values in combinations:
        try:
            configs.append(read_values(kind, grid.fixed, values))
        except ConfigError as error:
            told = label_of(values)
            combined = len(combinations) > 1 and not any(name in line for line in error.problems for name in values)
            problems += [f"with {told}: {line}" if combined else line for line in error.problems]
    if problems:
        raise ConfigError(*problems)
    varied = _varied(combinations, configs)
    _refuse_twins(combinations, configs)
    seeds = grid.seeds or (configs[0].seed,)
    folders = _folders(varied, seeds)
    return [
        SweepRun(folder, own, seed, {**grid.fixed, **values, "seed": seed})
        for (own, values, seed), folder in zip(
            ((own, values, seed) for own, values in zip(varied, combinations, strict=True) for seed in seeds),
            folders,
            strict=True,
        )
    ]


def _varied(combinations: Sequence[JsonObject], configs: Sequence[BaseModel]) -> list[JsonObject]:
    """What differs, by the recipe's own names and values where it has them: 1e-3 of anybody is 0.001 here."""
    names = dict.fromkeys(name for values in combinations for name in values)
    dumped = [config.model_dump(mode="json") for config in configs]
    own = [name for name in names if name in dumped[0]]
    if len(own) < len(names):  # some are other systems' names: what they come down to differs
        own = [name for name in dumped[0] if len({repr(values[name]) for values in dumped}) > 1]
    several = [name for name in own if len({repr(values[name]) for values in dumped}) > 1]
    return [{name: values[name] for name in several} for values in dumped]


def _refuse_twins(combinations: Sequence[JsonObject], configs: Sequence[BaseModel]) -> None:
    seen: dict[str, JsonObject] = {}
    for values, config in zip(combinations, configs, strict=True):
        twin = seen.setdefault(config.model_dump_json(), values)
        if twin is not values:
            raise ValueError(f"{label_of(twin)} and {label_of(values)} are the same settings")


def _folders(varied: Sequence[JsonObject], seeds: Sequence[int]) -> list[str]:
    """A name for each run that says what it is, and that a folder can have."""
    names: list[str] = []
    for own in varied:
        words = [f"{name}={_for_a_folder(value)}" for name, value in own.items()]
        stem = ",".join(words)[:LONGEST_FOLDER].rstrip(",")
        for seed in seeds:
            name = f"{stem},seed={seed}" if stem else f"seed={seed}"
            names.append(name if name not in names else f"{name},{names.count(name) + len(names)}")
    return names


def _for_a_folder(value: SettingValue) -> str:
    text = "x".join(map(str, value)) if isinstance(value, list) else _text(value)
    return re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-") or "none"
