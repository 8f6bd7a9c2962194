"""What a ticket costs the one thread that coordinates: measured, and shipped under the name of the runtime.

A coordinator is a serial resource. Asked for more than it can do, it gives each ticket one over its throughput of its
time: so the cost is the throughput at saturation, turned round. Its collectors shared two cores with it when these were
measured, so on a machine where they do not it costs less. Other machines, and other rollouts: measure, and say seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.text_naming import unknown


@dataclass(frozen=True, slots=True)
class TicketCost:
    """Seconds a ticket, and where the number is from."""

    seconds: float
    source: str


TICKET_COSTS: Mapping[str, TicketCost] = {
    "threads": TicketCost(1 / 6369, "bench/many_collectors.py, 1,000 collectors that wait 0.1 s, 2 busy cores"),
    "processes": TicketCost(473e-6, "bench/ray_overhead.py, no payload, 8 tickets an update, 2 cores"),
    "ray": TicketCost(1614e-6, "bench/ray_overhead.py, no payload, 8 tickets an update, 2 cores"),
}


def parse_ticket_cost(text: str) -> float:
    """The name of a runtime, or seconds."""
    if text in TICKET_COSTS:
        return TICKET_COSTS[text].seconds
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"{unknown('ticket_cost', text, TICKET_COSTS)}, or seconds") from None
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"ticket_cost must be >= 0 seconds, received {text}")
    return seconds
