"""Reads an event log as an auditor would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Audit:
    """What the log of one run (resumed or not) adds up to."""

    opened: list[int] = field(default_factory=list)
    learned: Counter[int] = field(default_factory=Counter)
    settled: Counter[int] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    births: dict[int, int] = field(default_factory=dict)
    born_late: list[int] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    max_live: int = 0
    published: list[int] = field(default_factory=list)
    scores: list[tuple[int, float | None]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


def audit(events: Iterable[dict[str, Any]]) -> Audit:
    """Add up a log."""
    result = Audit()
    newest = 0
    for event in events:
        kind = event["e"]
        result.kinds[kind] += 1
        if kind == "open":
            result.opened.append(event["k"])
        elif kind == "start":
            result.births[event["k"]] = event["v"]
            if event["v"] < newest:
                result.born_late.append(event["k"])
        elif kind == "learn":
            result.learned.update(event["k"])
            result.staleness.update(event["v"] - result.births[index] for index in event["k"])
        elif kind == "settle":
            result.settled.update(event["k"])
        elif kind == "drop":
            result.settled[event["k"]] += 1
            result.dropped[event["reason"]] += 1
        elif kind == "publish":
            newest = event["v"]
            result.published.append(newest)
        elif kind == "score":
            result.scores.append((event["v"], event["value"]))
        result.max_live = max(result.max_live, len(result.opened) - result.settled.total())
    return result
