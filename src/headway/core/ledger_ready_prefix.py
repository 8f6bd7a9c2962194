"""How many of the oldest untaken tickets are ready, one after another: what a learner that takes in order may have.

    untaken   3 ready   4 ready   6 ready   7 in flight   8 ready        prefix 3, blocked by 7
                                            ^ looked at again only when asked

A landing asks whether a batch is there. To look at the whole batch each time would cost a ticket as much as a batch has
tickets; here each ticket is passed once between two takes, however many land.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headway.core.types import Phase


class _HasPhase(Protocol):
    phase: Phase


class ReadyPrefix:
    """Counts ready tickets up to the first that is not. Whoever changes a ticket that was counted says so."""

    __slots__ = ("_ahead", "_every", "_frontier")

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._frontier: int | None = None  # all untaken tickets before this index are ready; None: begin anew
        self._ahead = 0  # how many these are

    def reaches(self, wanted: int, untaken: Mapping[int, _HasPhase], next_index: int) -> bool:
        """Are the first `wanted` of those that are untaken ready? They are in the order of their index."""
        if self._frontier is None:
            self._frontier, self._ahead = next(iter(untaken), next_index), 0
        index, ahead = self._frontier, self._ahead
        while ahead < wanted and index < next_index:
            entry = untaken.get(index)
            if entry is not None:  # else it was taken or dropped before anybody came by
                if entry.phase is not Phase.READY:
                    break
                ahead += 1
            index += self._every
        self._frontier, self._ahead = index, ahead
        return ahead >= wanted

    def leave(self, index: int) -> None:
        """A ticket is untaken no more."""
        if self._frontier is not None and index < self._frontier:
            self._ahead -= 1

    def begin_anew(self) -> None:
        """A ticket that was ready is so no more, or one has come back."""
        self._frontier = None
