"""Thresholds on the numbers of a run: said once when one is passed, and once when all is well again.

    well --(a look past the threshold, `looks` times in a row)--> raised --(back by `slack`, as often)--> well

A number that hovers around its threshold does not ring again and again: to be well it must come back by a tenth of the
threshold. The learner's first looks do not count (`after_looks`): a run that starts is idle and stale by nature.

What a look gives (`metrics.MEANINGS`) is all that is asked, so an alarm costs a few comparisons a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headway.core.events import Alarmed
from headway.core.text_naming import unknown


@dataclass(frozen=True, slots=True)
class Watched:
    """What one alarm looks at."""

    metric: str
    rings: Literal["above", "below"]
    meaning: str
    limit: float = 1.0
    """No threshold can be larger."""
    looks: int = 0
    """It takes so many looks in a row, where that is more than others take."""


KNOWN: dict[str, Watched] = {
    "stale_samples_ratio": Watched(
        "staleness/nonzero", "above", "share of the trained rollouts that were not of the newest version"
    ),
    "staleness": Watched("staleness/mean", "above", "mean age of the trained rollouts, in versions", math.inf),
    "effective_sample_size": Watched(
        "learn/ess", "below", "share of a batch that still counts after importance weighting"
    ),
    "kl": Watched("learn/kl", "above", "divergence between the policies the learner compares", math.inf),
    "engine_mismatch": Watched(
        "learn/mismatch_mean",
        "above",
        "mean gap between the log-probabilities of engine and trainer, by the weights that made the tokens",
        math.inf,
    ),
    "nothing_to_learn": Watched(
        "learn/without_signal",
        "above",
        "share of the replies whose rewards say nothing: all equal among those they are compared with",
        looks=4,
    ),
    "idle_learner": Watched("waiting/learner", "above", "share of the time the learner waited"),
    "error_rate": Watched("run/error_rate", "above", "share of the flights that failed"),
    "queue_empty": Watched("queue/empty", "above", "share of the time no rollout waited for the learner"),
    "queue_full": Watched(
        "waiting/collectors_for_slot", "above", "share of the time collectors stood before full slots"
    ),
    "no_update_s": Watched("run/since_update_s", "above", "seconds without an update", math.inf),
    "memory_mb": Watched("run/memory_mb", "above", "memory of the coordinator's process, in MiB", math.inf),
}
"""Every alarm there is, by the name it has in the settings."""


DEFAULT_ALARMS = {
    "error_rate": 0.1,
    "effective_sample_size": 0.2,
    "engine_mismatch": 0.1,
    "nothing_to_learn": 0.99,
    "no_update_s": 600.0,
}
"""What a recipe watches unless it is told otherwise: signs that something is wrong, not that something is slow. Two
implementations in bfloat16 are 0.01 to 0.05 apart; beyond that they compute something else."""


def alarm_line(alarm: Alarmed) -> str:
    """What to say about an alarm that is raised (`on`), or that is over."""
    watched = KNOWN[alarm.name]
    if not alarm.on:
        return f"alarm over: {alarm.name} is {alarm.value:.3g} (threshold {alarm.threshold:g})"
    return f"ALARM: {alarm.name} is {alarm.value:.3g}, {watched.rings} {alarm.threshold:g} ({watched.meaning})"


def check_alarms(thresholds: Mapping[str, float]) -> dict[str, float]:
    """The thresholds as numbers; one clear line for a name or a value that cannot be."""
    checked: dict[str, float] = {}
    for name, value in thresholds.items():
        watched = KNOWN.get(str(name))
        if watched is None:
            raise ValueError(unknown("alarm", str(name), KNOWN))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= watched.limit or not math.isfinite(value):
            top = "" if math.isinf(watched.limit) else f" and at most {watched.limit:g}"
            raise ValueError(f"alarm {name} must be a number, at least 0{top}, received {value!r}")
        checked[str(name)] = float(value)
    return checked


class Alarms:
    """Looks at every look. Pure: numbers in, rings out."""

    def __init__(
        self, thresholds: Mapping[str, float], *, looks: int = 2, after_looks: int = 3, slack: float = 0.1
    ) -> None:
        self._thresholds = check_alarms(thresholds)
        self._looks = looks
        self._wait = after_looks
        self._slack = slack
        self._in_a_row = dict.fromkeys(self._thresholds, 0)
        self.raised: dict[str, float] = {}
        """Name -> the value at the last look."""

    def lines(self) -> list[str]:
        """What to say about each that is raised, now."""
        raised = list(self.raised.items())
        return [alarm_line(Alarmed(0.0, name, True, value, self._thresholds[name])) for name, value in raised]

    def note(self, values: Mapping[str, float], time_s: float = 0.0) -> list[Alarmed]:
        """The alarms that turn at a look with these numbers. One that it does not have changes nothing."""
        if self._wait > 0:
            self._wait -= 1
            return []
        rings = []
        for name, threshold in self._thresholds.items():
            value = values.get(KNOWN[name].metric)
            if value is None or math.isnan(value):
                continue
            is_raised = name in self.raised
            if is_raised:
                self.raised[name] = value
            turns = self._is_well(name, value, threshold) if is_raised else self._is_past(name, value, threshold)
            self._in_a_row[name] = self._in_a_row[name] + 1 if turns else 0
            if self._in_a_row[name] < max(self._looks, 0 if is_raised else KNOWN[name].looks):
                continue
            self._in_a_row[name] = 0
            if is_raised:
                del self.raised[name]
            else:
                self.raised[name] = value
            rings.append(Alarmed(time_s, name, not is_raised, value, threshold))
        return rings

    def _is_past(self, name: str, value: float, threshold: float) -> bool:
        return value > threshold if KNOWN[name].rings == "above" else value < threshold

    def _is_well(self, name: str, value: float, threshold: float) -> bool:
        room = self._slack * threshold
        return value <= threshold - room if KNOWN[name].rings == "above" else value >= threshold + room
