"""`headway.run` takes the fields of a plan, of the settings, of a launch and of a recording as keywords."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import headway
from headway.runs.files_recording import Recording
from headway.runs.launch_of_functions import KEYWORDS, LAUNCH

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


def test_all_unknown_keywords_are_named_at_once() -> None:
    with pytest.raises(TypeError) as refused:
        headway.run(lambda *_: np.ones(1), lambda weights, _: weights, weights=np.zeros(1), **{"max_laed": 2, "zzz": 1})
    assert str(refused.value) == (
        "unknown keyword of headway.run 'max_laed'; did you mean 'max_lead'?; unknown keyword of headway.run 'zzz'; "
        "help(headway.run) says which there are"
    )


def test_help_and_editors_see_every_keyword_with_its_default() -> None:
    seen = inspect.signature(headway.run).parameters
    assert seen.keys() >= KEYWORDS
    assert (seen["max_lead"].default, seen["updates"].default, seen["runtime"].default) == (1, None, "threads")
    assert seen["monitor_every_s"].default == Recording().monitor_every_s


# -- functions that cannot be what they are given as ------------------------------------------------


def collect(weights, ticket):  # type: ignore[no-untyped-def]
    return 1.0


def train(weights, rollouts):  # type: ignore[no-untyped-def]
    return weights


def evaluate(weights):  # type: ignore[no-untyped-def]
    return 0.0


async def later(weights, ticket):  # type: ignore[no-untyped-def]
    return 1.0


class CalledLater:
    async def __call__(self, weights, ticket):  # type: ignore[no-untyped-def]
        return 1.0


def yields(weights, ticket):  # type: ignore[no-untyped-def]
    yield 1.0


@pytest.mark.parametrize(
    ("functions", "line"),
    [
        ((later, train), "collect must be a plain function, received an async def"),
        ((CalledLater(), train), "collect must be a plain function, received an async def"),
        ((collect, train, later), "evaluate must be a plain function, received an async def"),
        ((yields, train), "collect must return its result, received a generator function"),
        ((train, collect), "collect takes 'rollouts', which train is given: are the two swapped?"),
        ((collect, evaluate, train), r"train is called as train\(weights, rollouts\), received train\(weights\)"),
        ((collect, train, collect), "evaluate takes 'ticket', which collect is given: are the two swapped?"),
        (
            (evaluate, train),
            r"collect is called as collect\(weights, ticket\), .*; the order is collect",
        ),
        ((3, train), "collect must be a function, received int"),
    ],
)
def test_functions_that_are_swapped_or_asynchronous_are_told(functions: tuple, line: str) -> None:
    with pytest.raises(TypeError, match=line):
        headway.run(*functions, weights=0.0, updates=1)


def test_functions_may_name_and_take_their_arguments_as_they_like() -> None:
    def any_number(*anything):  # type: ignore[no-untyped-def]
        return 1.0

    def with_more(policy, data, scale=2.0):  # type: ignore[no-untyped-def]
        return policy

    assert headway.run(any_number, with_more, max, weights=(0.0, 1.0), updates=1).updates == 1


def test_a_coroutine_that_comes_back_is_not_trained_on() -> None:
    from headway.coordinator.role_calls import RunFailed

    with pytest.raises(RunFailed, match="collect returned a coroutine, which nobody awaits"):
        headway.run(lambda weights, ticket: later(weights, ticket), train, weights=0.0, updates=1)
