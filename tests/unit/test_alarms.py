"""Alarms ring once when a threshold is passed and once when all is well again, everywhere a person may look."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway.cli import main
from headway.core.events import Alarmed
from headway.core.events_written_events import written
from headway.core.types import Ticket
from headway.runs.config import ConfigError, RunConfig, read_values
from headway.runs.event_log import read_events
from headway.runs.metrics import MEANINGS
from headway.runs.monitor_alarms import DEFAULT_ALARMS, KNOWN, Alarms, check_alarms
from headway.tools.report.recorded_run_run_history import read_story

STALE = "staleness/nonzero"


def rings(alarms: Alarms, *values: float, metric: str = STALE) -> list[bool | None]:
    """For each look: did it ring, and for what."""
    said: list[bool | None] = []
    for value in values:
        heard = alarms.note({metric: value})
        said.append(heard[0].on if heard else None)
    return said


def test_an_alarm_rings_once_and_once_more_when_all_is_well() -> None:
    alarms = Alarms({"stale_samples_ratio": 0.5}, looks=1, after_looks=0)
    assert rings(alarms, 0.4, 0.6, 0.9, 0.8, 0.4, 0.3, 0.6) == [None, True, None, None, False, None, True]


def test_a_number_that_hovers_does_not_ring_again() -> None:
    alarms = Alarms({"stale_samples_ratio": 0.5}, looks=1, after_looks=0)
    assert rings(alarms, 0.51, 0.49, 0.51, 0.46, 0.52, 0.45) == [True, None, None, None, None, False]


def test_one_bad_look_is_not_enough_and_neither_is_one_good_one() -> None:
    alarms = Alarms({"stale_samples_ratio": 0.5}, looks=2, after_looks=0)
    assert rings(alarms, 0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.1, 0.1) == [None, None, None, True, None, None, None, False]


def test_the_beginning_of_a_run_does_not_count() -> None:
    alarms = Alarms({"stale_samples_ratio": 0.5}, looks=1, after_looks=3)
    assert rings(alarms, 0.9, 0.9, 0.9, 0.9) == [None, None, None, True]


def test_a_sample_size_rings_when_it_is_small() -> None:
    alarms = Alarms({"effective_sample_size": 0.5}, looks=1, after_looks=0)
    assert rings(alarms, 0.6, 0.4, 0.52, 0.56, metric="learn/ess") == [None, True, None, False]


def test_an_engine_that_computes_something_else_rings_unless_told_otherwise_and_rounding_does_not() -> None:
    alarms = Alarms(DEFAULT_ALARMS, looks=1, after_looks=0)
    assert rings(alarms, 1e-6, 0.05, 0.4, 0.05, metric="learn/mismatch_mean") == [None, None, True, False]


def test_a_run_with_nothing_to_learn_from_rings_unless_told_otherwise_after_several_looks() -> None:
    alarms = Alarms(DEFAULT_ALARMS, looks=2, after_looks=3)
    silent = rings(alarms, *[1.0] * 12, 0.5, 0.5, metric="learn/without_signal")
    assert silent == [None] * 6 + [True] + [None] * 6 + [False]
    assert rings(Alarms(DEFAULT_ALARMS), *[0.9] * 12, metric="learn/without_signal") == [None] * 12


def test_a_number_that_is_missing_or_none_changes_nothing() -> None:
    alarms = Alarms({"stale_samples_ratio": 0.5}, looks=1, after_looks=0)
    assert alarms.note({STALE: 0.9})[0].on
    assert alarms.note({}) == []
    assert alarms.note({STALE: math.nan}) == []
    assert alarms.raised == {"stale_samples_ratio": 0.9}


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.floats(0, 1), max_size=60),
    st.floats(0, 1),
    st.sampled_from(["stale_samples_ratio", "effective_sample_size"]),
    st.integers(1, 3),
)
def test_rings_come_in_turns_and_only_past_the_threshold(
    values: list[float], threshold: float, name: str, looks: int
) -> None:
    alarms = Alarms({name: threshold}, looks=looks, after_looks=0)
    heard: list[Alarmed] = []
    for value in values:
        heard += alarms.note({KNOWN[name].metric: value})
    assert [ring.on for ring in heard] == [place % 2 == 0 for place in range(len(heard))]
    for ring in heard:
        is_past = ring.value > threshold if KNOWN[name].rings == "above" else ring.value < threshold
        assert is_past == ring.on
    assert len(heard) <= len(values) / looks
    assert bool(alarms.raised) == (len(heard) % 2 == 1) == bool(alarms.lines())


def test_every_alarm_looks_at_a_number_that_exists() -> None:
    for watched in KNOWN.values():
        assert watched.metric in MEANINGS or watched.metric.startswith("learn/")
    assert check_alarms(DEFAULT_ALARMS) == DEFAULT_ALARMS


@pytest.mark.parametrize(
    ("thresholds", "line"),
    [
        ({"stale_ratio": 0.5}, "unknown alarm 'stale_ratio'; did you mean 'stale_samples_ratio'?"),
        ({"error_rate": 2}, "alarm error_rate must be a number, at least 0 and at most 1, received 2"),
        ({"error_rate": -1.0}, "alarm error_rate must be a number, at least 0 and at most 1, received -1.0"),
        ({"staleness": math.inf}, "alarm staleness must be a number, at least 0, received inf"),
        ({"staleness": True}, "alarm staleness must be a number, at least 0, received True"),
        ({"idle_learner": "half"}, "alarm idle_learner must be a number, at least 0 and at most 1, received 'half'"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused_in_one_line(thresholds: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match="alarm") as raised:
        Alarms(thresholds)
    assert str(raised.value).startswith(line)
    with pytest.raises(ConfigError, match="alarms=") as refused:
        read_values(RunConfig, {"updates": 1, "alarms": thresholds})
    assert line in str(refused.value)


def test_alarms_are_settings_as_words_or_as_a_mapping() -> None:
    def alarms(value: Any) -> dict[str, float]:
        return read_values(RunConfig, {"updates": 1, "alarms": value}).alarms

    assert alarms("idle_learner=0.5, error_rate=0.1") == {"idle_learner": 0.5, "error_rate": 0.1}
    assert alarms({"idle_learner": 1}) == {"idle_learner": 1.0}
    assert alarms("") == alarms(None) == alarms({}) == {}
    assert read_values(RunConfig, {"updates": 1}).alarms == DEFAULT_ALARMS
    with pytest.raises(ConfigError, match="thresholds by name"):
        alarms(3)


# -- in a run ---------------------------------------------------------------------------------------


def collect(weights: float, ticket: Ticket) -> float:
    time.sleep(0.002)
    return 1.0


def train(weights: float, rollouts: list[float]) -> tuple[float, dict[str, float]]:
    return weights + 1, {"ess": 0.9 if 10 < weights < 20 else 0.1}


class Kept:
    def __init__(self) -> None:
        self.values: list[Mapping[str, float]] = []

    def write(self, moment: Any, values: Mapping[str, float]) -> None:
        self.values.append(values)

    def close(self) -> None:
        pass


def test_an_alarm_is_in_the_log_the_sinks_the_metrics_and_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept()
    headway.run(
        collect,
        train,
        weights=0.0,
        updates=30,
        max_lead=1,
        folder=tmp_path,
        sinks=[kept],
        metrics_interval_s=0,
        alarms={"effective_sample_size": 0.5, "error_rate": 0.1},
    )
    events = [event for event in read_events(tmp_path / "events.jsonl") if event["e"] == "alarm"]
    assert [(event["name"], event["on"]) for event in events] == [
        ("effective_sample_size", True),
        ("effective_sample_size", False),
        ("effective_sample_size", True),
    ]
    assert list(map(written, read_story(tmp_path).alarms)) == events
    told = [
        values["alarms/effective_sample_size"] for values in kept.values if "alarms/effective_sample_size" in values
    ]
    assert told == [1, 0, 1]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["alarms/effective_sample_size"] for line in lines if "alarms/effective_sample_size" in line] == told
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("headway: ALARM: effective_sample_size is 0.1, below 0.5")
    assert said[1] == "headway: alarm over: effective_sample_size is 0.9 (threshold 0.5)"
    assert len(said) == 3
    assert main(["status", str(tmp_path)]) == 0
    assert "ALARM: effective_sample_size is 0.1" in capsys.readouterr().out


def test_a_run_without_alarms_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headway.run(collect, train, weights=0.0, updates=10, folder=tmp_path, metrics_interval_s=0)
    assert capsys.readouterr().err == ""
