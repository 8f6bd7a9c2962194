"""How benchmarks print what they measured."""

from __future__ import annotations

import statistics


def spread(values: list[float], digits: int = 0) -> str:
    """The median, and the least and the most of them."""
    if not values:
        return "-"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}..{max(values):,.{digits}f})"
