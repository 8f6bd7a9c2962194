"""Segments of text for a learner of priors: random ones, and those of a game in which one action is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.text_games.segment import RaggedFloats, RaggedTokens, TextSegment

SLOTS = 4


def text_segment(
    prompts: Sequence[Sequence[int]],
    actions: Sequence[Sequence[Sequence[int]]],
    policies: Sequence[Sequence[float]],
    *,
    taken: Sequence[int] | None = None,
    log_probs: Sequence[Sequence[float]] | None = None,
    **changes: Any,
) -> TextSegment:
    """One game's steps, one after another; slots that are not named are empty."""
    steps = len(prompts)
    slots = [[*some, *[()] * (SLOTS - len(some))] for some in actions]
    shares = np.zeros((steps, 1, SLOTS), np.float32)
    for step, some in enumerate(policies):
        shares[step, 0, : len(some)] = some
    values: dict[str, Any] = {
        "obs": np.zeros((steps, 1, 2), np.int32),
        "actions": np.array(taken if taken is not None else [0] * steps, np.int32)[:, None],
        "rewards": np.zeros((steps, 1), np.float32),
        "terminated": np.zeros((steps, 1), bool),
        "truncated": np.zeros((steps, 1), bool),
        "valid": np.ones((steps, 1), bool),
        "to_play": np.zeros((steps, 1), np.int8),
        "policies": shares,
        "values": np.zeros((steps, 1), np.float32),
        "stream": 0,
        "serial": 0,
        "prompt_tokens": RaggedTokens.of(prompts),
        "action_tokens": RaggedTokens.of([action for some in slots for action in some]),
        "action_log_probs": RaggedFloats.of(log_probs if log_probs is not None else [()] * steps),
        "spreads": np.ones((steps, 1), np.float32),
    }
    return TextSegment(**{**values, **changes})


def random_segment(seed: int, steps: int = 6, *, logs_of: Any = None, **changes: Any) -> TextSegment:
    """Random prompts and candidates; `logs_of(prompt, action)` gives the log-probabilities of the executed ones."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, 200, random.integers(3, 12)).tolist() for _ in range(steps)]
    counts = random.integers(2, SLOTS + 1, steps)
    actions = [[random.integers(3, 200, random.integers(1, 6)).tolist() for _ in range(count)] for count in counts]
    taken = [int(random.integers(count)) for count in counts]
    pairs = zip(prompts, actions, taken, strict=True)
    logs = None if logs_of is None else [logs_of(prompt, some[slot]) for prompt, some, slot in pairs]
    return text_segment(
        prompts,
        actions,
        [random.dirichlet(np.ones(count)).tolist() for count in counts],
        taken=taken,
        log_probs=logs,
        **{
            "rewards": random.normal(size=(steps, 1)).astype(np.float32),
            "values": random.normal(size=(steps, 1)).astype(np.float32),
            **changes,
        },
    )
