"""Several tickets on one collector at once: which may take off, and whom a fault concerns.

    on_publish=drain      v4 v4 v4      |        | v5 v5 v5     a version has the collector to itself: the next one
                                        apply v5                is applied when all of it have landed
    on_publish=partial    v4 v4 v4 v4 v4 v5 v5                  weights change under what is in flight
                                apply v5

    up --(a call died or was late)--> down --(restarted)--> up, one incarnation further

A collector with n lanes has n *seats*; a ticket is given to a seat. Seat s is a lane of collector s mod collectors, so
tickets in their order go round the collectors, however many lanes these have.

A `Post` is one collector as the coordinator sees it. It counts and decides, and never waits: `CollectorCalls` speaks to
the collector, the coordinator's loops wait. Invariants: with drain, all that is in flight flies with one version, the
one that is applied or about to be; an incarnation is restarted once, however many of its calls failed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Versions = int | tuple[int, ...]
"""A version of the policy, or one of each line in a run with several; later ones compare as greater."""


class Post:
    """One collector: what it holds, what flies on it, and who waits for it."""

    def __init__(self, role: str, seats: range) -> None:
        self.role = role
        self.seats = seats
        self.drains = False
        """Does another version wait until all has landed?"""
        self.applied: Versions | None = None
        """The version (of each line) it acknowledged, if it holds weights."""
        self.newest = -1
        """The newest it was given, acknowledged or not."""
        self.is_applying = False
        self.in_flight = 0
        self.is_up = True
        self.incarnation = 0
        self.waiting: dict[str, None] = {}
        """Names on the board of those who wait for a change here."""
        self._version: Versions = -1  # of what is in flight, if it drains
        self._given_up = -1  # the incarnation that was ended because one of its calls was late
        self._called: dict[str, int] = {}  # name on the board -> incarnation when it was last called on its behalf

    def may_take_off(self, version: Versions, wanted: Collection[Any]) -> bool:
        """May a ticket with `version` take off, when the next tickets of all seats here have the versions `wanted`?

        The version it holds goes on while anybody wants it, then the oldest is next: so a pinned run comes back to a
        version it has left only when a ticket had to be collected again.
        """
        if not self.is_up:
            return False
        if not self.drains:
            return True
        if self.in_flight:
            return version == self._version
        return version == (self.applied if self.applied in wanted else min(wanted))

    def take_off(self, version: Versions) -> None:
        self._version = version
        self.in_flight += 1

    def land(self) -> None:
        self.in_flight -= 1

    def has(self, version: Any) -> bool:
        """Are its weights good for a ticket with `version`? Newer ones are, where they may change in the middle."""
        if self.applied is None:
            return False
        return bool(self.applied == version if self.drains else self.applied >= version)

    def go_down(self) -> None:
        """What ran here is gone, and the weights with it."""
        self.is_up = False
        self.incarnation += 1
        self.applied = None

    def note_call(self, name: str) -> None:
        """A call is made on behalf of `name`: if it fails, it is this incarnation that failed."""
        self._called[name] = self.incarnation

    def is_as_called_by(self, name: str) -> bool:
        """Is it still the incarnation of the last call on behalf of `name`?"""
        return self._called.get(name) == self.incarnation

    def blame(self, name: str) -> None:
        """The last call on behalf of `name` is known to be at fault."""
        self.give_up(self._called[name])

    def was_given_up_for(self, name: str) -> bool:
        """Was the incarnation given up that the last call on behalf of `name` went to?"""
        return name in self._called and self.was_given_up(self._called[name])

    def give_up(self, incarnation: int) -> None:
        """One call of this incarnation is known to be at fault: the others are not."""
        self._given_up = incarnation

    def was_given_up(self, incarnation: int) -> bool:
        return self._given_up == incarnation

    def why_not(self, version: Versions) -> str:
        """In words, what a ticket with `version` waits for."""
        if not self.is_up:
            return f"{self.role} to be restarted"
        if self.is_applying:
            return f"{self.role} to have applied version {version}"
        if not self.in_flight:
            return f"{self.role} to finish older tickets before version {version} is applied"
        tickets = "1 ticket" if self.in_flight == 1 else f"{self.in_flight} tickets"
        return f"{self.role} to finish {tickets} of version {self._version} before version {version} is applied"
