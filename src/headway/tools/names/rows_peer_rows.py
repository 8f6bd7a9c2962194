"""What a table of a library's flat names is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import Meaning, whole


class Beside:
    """What else is said, in their words or in ours, and else the recipe's defaults."""

    def __init__(self, together: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        self._together = together
        self._defaults = defaults

    def __contains__(self, setting: str) -> bool:
        """Whether the recipe has this setting."""
        return setting in self._defaults

    def value(self, ours: str, *theirs: str) -> object:
        """The value of a setting of ours, which may be said under some of their names."""
        for name in (*theirs, ours):
            if self._together.get(name) is not None:
                return self._together[name]
        return self._defaults.get(ours)

    def number(self, ours: str, *theirs: str) -> int:
        """The same, where it must be a whole number."""
        name = next((one for one in theirs if self._together.get(one) is not None), ours)
        return whole(name, self.value(ours, *theirs))

    def is_said(self, *names: str) -> bool:
        return any(self._together.get(name) is not None for name in names)


Translate = Callable[[SettingValue, Beside], Meaning]


@dataclass(frozen=True, slots=True)
class PeerName:
    """One name of a library: what it is here, for people, and what a value of it sets."""

    name: str
    ours: str
    example: object
    translate: Translate


def said(name: str, ours: str, example: object, translate: Translate | None = None) -> PeerName:
    """A name that is another one here, unless `translate` says more."""
    return PeerName(name, ours, example, translate or (lambda value, beside: {ours: value}))


def nothing(name: str, why: str, example: object = True) -> PeerName:
    """A name that sets nothing here."""
    return PeerName(name, f"(no effect: {why})", example, lambda value, beside: why)


def must_be(name: str, allowed: SettingValue, why: str, *also: SettingValue) -> PeerName:
    """A name of which one value is what happens here (what `also` says comes to the same), and others cannot be had."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        if value not in (allowed, *also):
            raise ValueError(f"{name}={value!r}: only {allowed!r} is possible here: {why}")
        return why

    return PeerName(name, f"(only {allowed!r}: {why})", allowed, translate)


NOT_HERE = "not here"


def absent(name: str, instead: str) -> PeerName:
    """A name of something that is not here. Whoever says it is told what there is instead."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        if value is not None:
            raise ValueError(f"{name} is not here: {instead}")
        return instead

    return PeerName(name, f"({NOT_HERE}: {instead})", None, translate)


def table(*rows: PeerName) -> dict[str, PeerName]:
    """By name."""
    return {row.name: row for row in rows}


def number(name: str, value: object) -> float:
    """A number that is no switch, or a refusal."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, received {value!r}")
    return value


def divided(name: str, value: int, by: int, what: str) -> int:
    """How often `by` is in a number; a remainder is refused."""
    if value % by:
        raise ValueError(f"{name}={value} must be a multiple of {by} ({what})")
    return value // by


def decaying(setting: str, final: str) -> Translate:
    """A number, or one that falls in a straight line to 0 over the run, as the zoo writes it: `lin_3e-4`."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        if not isinstance(value, str):
            return {setting: value}
        kind, _, start = value.partition("_")
        try:
            first = float(start if kind == "lin" else value)
        except ValueError:
            raise ValueError(f"{setting} must be a number or lin_NUMBER, received {value!r}") from None
        return {setting: first, final: 0.0} if kind == "lin" else {setting: first}

    return translate


def updates_for(name: str, steps_per_update: Callable[[Beside], int]) -> Translate:
    """Environment steps in all, as updates: as many as take them, so that what decays over the run ends with it."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        size = steps_per_update(beside)
        steps = whole(name, int(value) if isinstance(value, float) and value.is_integer() else value)
        return {"updates": -(-steps // size)}

    return translate


def segment_batch(
    envs: Iterable[str] = ("n_envs",), steps: Iterable[str] = ("n_steps", "num_steps")
) -> Callable[[Beside], int]:
    """Environment steps that one update is trained on, where these are the names of copies and of steps."""

    def size(beside: Beside) -> int:
        tickets = beside.number("tickets_per_batch")
        return beside.number("num_envs", *envs) * beside.number("segment_steps", *steps) * tickets

    return size


def evaluations(name: str, size: Callable[[Beside], int], ours: str = "evaluate_every") -> Translate:
    """Environment steps between evaluations (or between other things), as updates."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        return {ours: max(1, round(whole(name, value) / size(beside)))}

    return translate


def device(value: SettingValue, beside: Beside) -> Meaning:
    """Where the learner of a game computes, by the name of a device."""
    places = {"auto": "auto", "cpu": 0, "cuda": 1, "gpu": 1, "cuda:0": 1}
    if str(value) not in places:
        raise ValueError(f"device={value!r}: allowed are {', '.join(places)} (learner_gpus)")
    return {"learner_gpus": places[str(value)]}


def remembers(kind: str) -> Translate:
    """A switch for a memory of this kind."""
    return lambda value, beside: {"memory": kind if value else "none"}


def memory_size(switch: str) -> Translate:
    """Units of a memory, where their switch or our setting says that there is one."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        is_there = beside.value("memory", switch) not in (None, False, "none")
        return {"memory_size": value} if is_there else f"{switch} says whether there is a memory"

    return translate
