"""When each receiver has the weights of a new version.

    each      learner -> 1, then -> 2, then -> 3        whole after whole: the last waits for all before it
    chain     learner -> 1 -> 2 -> 3                    in pieces: everybody sends on what has come
    tree:2    learner -> 1 -> 3, 4                      in pieces: everybody sends each piece to two others
                      -> 2 -> 5, 6

A link carries one thing at a time. Latencies are left out: a piece is large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

PIECE_BYTES = 16e6
"""What is sent on as soon as it has come."""
EACH = 0
"""The degree of a learner that sends to all others itself."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """How weights get from the learner to many."""

    weights_bytes: float
    bytes_per_s: float
    """Of one link."""
    degree: int = EACH
    """How many each one sends to; 1 is a chain."""
    piece_bytes: float = PIECE_BYTES
    piece_s: float = field(init=False)
    pieces: int = field(init=False)

    def __post_init__(self) -> None:
        for name in ("weights_bytes", "bytes_per_s", "piece_bytes"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be above 0, received {getattr(self, name)!r}")
        if self.degree < 0:
            raise ValueError(f"degree must be >= 0, received {self.degree!r}")
        pieces = max(1, math.ceil(self.weights_bytes / self.piece_bytes))
        object.__setattr__(self, "pieces", pieces)
        object.__setattr__(self, "piece_s", self.weights_bytes / pieces / self.bytes_per_s)

    @property
    def alone_s(self) -> float:
        """From one to one other."""
        return self.weights_bytes / self.bytes_per_s

    def arrival_s(self, number: int, receivers: int) -> float:
        """Seconds from the beginning until receiver `number` of so many has everything."""
        if self.degree == EACH:
            return (number + 1) * self.alone_s
        degree = min(self.degree, receivers)
        if degree == 1:
            return self.piece_s * (self.pieces + number)
        turns = 0  # pieces that go before the first one that reaches this receiver
        place = number + 1  # the learner is 0, and the receivers of k are k * degree + 1 and so on
        while place:
            turns += (place - 1) % degree + 1
            place = (place - 1) // degree
        return self.piece_s * ((self.pieces - 1) * degree + turns)

    def last_s(self, receivers: int) -> float:
        """Until everybody has everything."""
        return max(self.arrival_s(number, receivers) for number in range(receivers))

    def sender_s(self, receivers: int) -> float:
        """How long the learner sends: the next version begins after that."""
        return (receivers if self.degree == EACH else min(self.degree, receivers)) * self.alone_s


def parse_fanout(text: str) -> int:
    """`each`, `chain` or `tree:D` as a degree."""
    kind, _, degree = text.partition(":")
    if text in ("each", "chain"):
        return EACH if text == "each" else 1
    if kind == "tree" and degree.isdecimal() and int(degree) >= 2:
        return int(degree)
    raise ValueError(f"unknown fanout {text!r}; allowed: each, chain, tree:D with D of 2 or more")
