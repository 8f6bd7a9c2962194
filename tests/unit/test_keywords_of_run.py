"""`headway.run` takes the fields of a plan, of the settings, of a launch and of a recording as keywords."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import headway
from headway.launching.of_functions import KEYWORDS, LAUNCH
from headway.launching.recording import Recording

FORMER = [
    "updates",
    "steps",
    "wall_s",
    "target_score",
    "evaluate_every",
    "save_every",
    "save_every_s",
    "warmup_s",
    "max_lead",
    "order",
    "max_staleness",
    "on_stale",
    "collectors",
    "tickets_per_batch",
    "seed",
    "runtime",
    "resume",
    "checkpoint",
    "show_status",
    "sinks",
    "metrics_interval_s",
    "metric_aliases",
    "alarms",
    "monitor",
    "monitor_every_s",
    "statistics_every_s",
    "keep_best",
]
"""Those that stood in its signature before they were declared once."""


@pytest.mark.parametrize("name", FORMER)
def test_every_former_parameter_is_a_keyword(name: str) -> None:
    assert name in KEYWORDS


def test_the_keywords_of_a_launch_are_those_it_has() -> None:
    assert inspect.signature(headway.launch).parameters.keys() >= LAUNCH


@pytest.mark.parametrize(("wrong", "right"), [("max_led", "max_lead"), ("sink", "sinks"), ("update", "updates")])
def test_an_unknown_keyword_is_refused_with_the_nearest_one(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"unknown keyword of headway.run '{wrong}'; did you mean '{right}'"):
        headway.run(lambda *_: np.ones(1), lambda weights, _: weights, weights=np.zeros(1), **{wrong: 1})


def test_help_and_editors_see_every_keyword_with_its_default() -> None:
    seen = inspect.signature(headway.run).parameters
    assert seen.keys() >= KEYWORDS
    assert (seen["max_lead"].default, seen["updates"].default, seen["runtime"].default) == (1, None, "threads")
    assert seen["monitor_every_s"].default == Recording().monitor_every_s
