"""Which versions of the other lines go with the first line: with each of its rollouts, and with its newest version.

    ticket 7 flies with (first 3, prior 1) --lands--> kept: {7: {prior: 1}}
    version 4 of the first line is made from tickets up to 7 --> it is evaluated together with version 1 of prior

In a pinned run that is a function of the ticket's index, so a score does not depend on timing. A free run evaluates
with the newest version of each line, and keeps nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.coordinator.line import Line
from headway.core.types import Snapshot


class Companions:
    """Holds the versions of other lines that the first line was accompanied by."""

    def __init__(self, others: Sequence[Line], *, is_pinned: bool) -> None:
        self._others = {line.name: line for line in others}
        self._are_kept = is_pinned and bool(others)
        self.of_tickets: dict[int, Mapping[str, int]] = {}
        """Ticket of the first line that has landed -> the versions of the others it flew with."""
        self.of_newest: Mapping[str, int] = dict.fromkeys(self._others, 0)
        """Those of the last ticket that the newest version of the first line was made from."""

    def begin(self) -> None:
        """Version 0 of every line is there."""
        if self._are_kept:
            self._hold(self.of_newest)

    def keep(self, index: int, snapshot: Snapshot) -> bool:
        """A ticket of the first line has landed: is what it flew with kept? Then it stays held."""
        if self._are_kept:
            self.forget(index)
            self.of_tickets[index] = {name: part.version for name, part in snapshot.others.items()}
        return self._are_kept

    def forget(self, index: int) -> None:
        """The first line is done with this rollout, or it is collected again."""
        self._let_go(self.of_tickets.pop(index, {}))

    def note_published(self, index: int) -> None:
        """The first line has published what was made from tickets up to this one."""
        if self._are_kept:
            before, self.of_newest = self.of_newest, self.of_tickets.get(index, self.of_newest)
            self._hold(self.of_newest)
            self._let_go(before)

    def restore(self, of_tickets: Mapping[int, Mapping[str, int]], of_newest: Mapping[str, int]) -> None:
        if self._are_kept:
            self.of_tickets = {index: dict(versions) for index, versions in of_tickets.items()}
            self.of_newest = dict(of_newest)
            for versions in (*self.of_tickets.values(), self.of_newest):
                self._hold(versions)

    def _hold(self, versions: Mapping[str, int]) -> None:
        for name, version in versions.items():
            self._others[name].snapshots.hold(version)

    def _let_go(self, versions: Mapping[str, int]) -> None:
        for name, version in versions.items():
            self._others[name].snapshots.let_go(version)
