"""What a ticket flies with: a snapshot of every line, joined to one.

    line a   v4 v5 [v6] \\
                          Snapshot(6, others={b: 3})   held in both lines until it is let go
    line b   v2 [v3] ---/

In a free run that is the newest version of each line. In a pinned run it is the version that the line's own ticket was
born with, so it follows from the ticket's index. With one line it is that line's snapshot as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.coordinator.collectors_lanes import Versions
from headway.coordinator.line import Line
from headway.core.types import Phase, Snapshot, Ticket


class JoinedSnapshots:
    """Says which versions go together, and holds and lets go of them in all lines at once."""

    def __init__(self, lines: Sequence[Line], *, is_pinned: bool) -> None:
        self._lines = lines
        self._first = lines[0]
        self._others = lines[1:]
        self._is_pinned = is_pinned

    def versions_for(self, ticket: Ticket) -> Versions:
        """What it will take off with: its own version (pinned) or the newest (free), of each line."""
        if not self._others:
            return self._first.version if ticket.version is None else ticket.version
        return tuple(self.version_of(line, ticket.index) for line in self._lines)

    @property
    def newest_versions(self) -> Versions:
        return tuple(line.version for line in self._lines) if self._others else self._first.version

    def version_of(self, line: Line, index: int) -> int:
        """What the rollout of this ticket uses of one line."""
        if self._is_pinned and line.has(index, Phase.OPEN):
            version = line.ledger.entry(index).ticket.version
            assert version is not None
            return version
        birth = line.birth(index)
        return line.version if birth is None else birth

    def hold_newest(self) -> Snapshot:
        """The newest weights of every line; `let_go` must follow."""
        return self.joined({line.name: line.snapshots.hold(line.version) for line in self._lines})

    def joined(self, parts: dict[str, Snapshot]) -> Snapshot:
        """The snapshot of each line as one; of a single line, that one as it is."""
        first = parts.pop("")
        return Snapshot(first.version, first.payload, parts) if parts else first

    def let_go(self, snapshot: Snapshot) -> None:
        self._first.snapshots.let_go(snapshot.version)
        for line in self._others:
            line.snapshots.let_go(snapshot.others[line.name].version)

    def are_newest(self, snapshot: Snapshot) -> bool:
        others = snapshot.others
        return self._first.version == snapshot.version and all(
            line.version == others[line.name].version for line in self._others
        )
