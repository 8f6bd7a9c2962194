"""Names for what Headway carries without looking inside. Each can really be anything; the name says whose it is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Payload: TypeAlias = Any
"""What a rollout or a snapshot carries: experience, weights, or the reference that a runtime put in their place."""

Weights: TypeAlias = Any
"""What a learner publishes: arrays, tensors, a module's dictionary, or whatever a user's own function returns."""

SavedState: TypeAlias = Any
"""What a station gives as its state and gets back after a restart: only that station knows what it means."""

RoleAnswer: TypeAlias = Any
"""What a method of a role returns. The method is called by name, so its caller says which type it expects."""

Station: TypeAlias = Any
"""The object behind a role, as the runtime that calls its methods by name sees it."""

SettingValue: TypeAlias = Any
"""What somebody wrote for a setting, before the model that declares it has checked it."""

JsonObject: TypeAlias = dict[str, Any]
"""An object as JSON has it, read from a file or about to be written: its reader knows which names there are."""

CoroutineOf: TypeAlias = Coroutine[Any, Any, T]
"""A coroutine that ends with a T. What goes in and out on the way is between it and its event loop."""

UserFunction: TypeAlias = Callable[..., Any]
"""A function that a user named; how it is called, and what with, depends on what it is for."""
