"""Three plain functions become the three stations.

    collect(weights, ticket)    -> anything          ticket.seed decides what is random about it
    train(weights, rollouts)    -> weights           or (weights, {"loss": 0.1})
    evaluate(weights)           -> a number

`weights` is whatever `train` returns: a dictionary of arrays, a state dict, an object. Collectors and the
evaluator get an immutable copy, so `train` may change it in place.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from headway.coordinator.roles import Stations
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.core.types_opaque import Payload, SavedState, Weights

CollectFunction = Callable[[Weights, Ticket], Payload]
TrainFunction = Callable[[Weights, list[Payload]], object]
EvaluateFunction = Callable[[Weights], object]


class FunctionCollector:
    """Calls `collect`; what it returns is the rollout's payload, unless it is a Rollout already."""

    def __init__(self, collect: CollectFunction) -> None:
        self._collect = collect

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        result = self._collect(snapshot.payload, ticket)
        _refuse_coroutine("collect", result)
        if result is None:
            raise TypeError("collect must return what was collected, received None")
        return result if isinstance(result, Rollout) else Rollout(result)


class FunctionLearner:
    """Holds the weights between calls of `train`."""

    def __init__(self, train: TrainFunction, weights: Weights) -> None:
        self._train = train
        self._weights = weights

    def learn(self, batch: Batch) -> LearnReport:
        result = self._train(self._weights, [rollout.payload for rollout in batch.rollouts])
        _refuse_coroutine("train", result)
        metrics: Mapping[str, float] = {}
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
            result, metrics = result
        if result is None:
            raise TypeError("train must return the new weights, received None")
        self._weights = result
        return LearnReport({name: float(value) for name, value in metrics.items()})

    def snapshot(self) -> Weights:
        return self._weights

    def state_dict(self) -> SavedState:
        return self._weights

    def load_state_dict(self, state: SavedState) -> None:
        self._weights = state


class FunctionEvaluator:
    """Calls `evaluate`, which may return a number, (number, metrics) or a Score."""

    def __init__(self, evaluate: EvaluateFunction) -> None:
        self._evaluate = evaluate

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        result = self._evaluate(snapshot.payload)
        _refuse_coroutine("evaluate", result)
        if isinstance(result, Score):
            return replace(result, version=snapshot.version)
        metrics: Mapping[str, float] = {}
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
            result, metrics = result
        if not isinstance(result, numbers.Real):
            raise TypeError(f"evaluate must return a number, received {type(result).__name__}")
        return Score(snapshot.version, float(result), dict(metrics))


def _collector(collect: CollectFunction, number: int) -> FunctionCollector:
    return FunctionCollector(collect)


ARGUMENTS = {"collect": ("weights", "ticket"), "train": ("weights", "rollouts"), "evaluate": ("weights",)}
"""What the three functions are given, in this order."""


def _check(name: str, function: object) -> None:
    """Refuses what cannot be this one of the three, in one line."""
    if not callable(function):
        raise TypeError(f"{name} must be a function, received {type(function).__name__}")
    called = function if inspect.isroutine(function) else type(function).__call__  # of an object: what calling it runs
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{name} must be a plain function, received an async def: run your coroutine inside of it")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} must return its result, received a generator function (it yields)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: it says nothing of what it takes
    wanted = ARGUMENTS[name]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [one.name for one in signature.parameters.values() if one.kind in positional]
    for other, arguments in ARGUMENTS.items():
        if other != name and len(arguments) == 2 and named[1:2] == [arguments[1]]:
            raise TypeError(f"{name} takes {arguments[1]!r}, which {other} is given: are the two swapped?")
    try:
        signature.bind(*wanted)
    except TypeError as error:
        given = ", ".join(wanted)
        order = "the order is collect, train, evaluate"
        raise TypeError(f"{name} is called as {name}({given}), received {name}{signature}: {error}; {order}") from None


def _refuse_coroutine(name: str, result: object) -> None:
    """What a plain function hands on unawaited would be trained on."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{name} returned a coroutine, which nobody awaits: run it inside of {name}")


def stations_from_functions(
    collect: CollectFunction,
    train: TrainFunction,
    evaluate: EvaluateFunction | None = None,
    *,
    weights: Weights,
) -> Stations:
    """The three functions (module-level ones, if they are to run in other processes) as stations."""
    for name, function in (("collect", collect), ("train", train), ("evaluate", evaluate)):
        if function is not None:
            _check(name, function)
    return Stations(
        collector=partial(_collector, collect),
        learner=partial(FunctionLearner, train, weights),
        evaluator=None if evaluate is None else partial(FunctionEvaluator, evaluate),
    )
