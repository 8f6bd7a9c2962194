"""A line: one learner with its ledger, its lead, its versions and its snapshots.

A run has one or more lines. Collectors collect once and use a snapshot of every line; a rollout is offered to each line
that takes it (`LineSettings.every`), and each of these has a ticket of its own for it, under the same index, which
settles exactly once in its own ledger. The first line has the empty name: it says when the run is over, and what is
evaluated are its versions.
"""

from __future__ import annotations

from collections.abc import Mapping

from headway.coordinator.line_lead import LineLead
from headway.coordinator.line_turns import OnlyTurn, Turn
from headway.coordinator.publishing import Publishing
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.role_calls_learner_calls import LearnerCalls
from headway.coordinator.run_result import LineResult
from headway.core.ledger_live_tickets import LedgerError
from headway.core.types import Phase, Ticket
from headway.core.types_opaque import JsonObject, Weights


class Line:
    """What belongs to one learner."""

    def __init__(self, name: str, calls: RoleCalls) -> None:
        run = calls.settings
        self.name = name
        self.settings = run.all_lines[name]
        self.learner = LearnerCalls(calls, name)
        self.role = self.learner.role
        self.lead = LineLead(self.settings, run.seats, self.role)
        self.ledger = run.build_ledger(self.lead.rule, name)
        self.publishing = Publishing(name, self.learner, calls)
        self.snapshots = self.publishing.snapshots
        self.updates = 0
        self.updates_in_version = 0
        self.metrics: JsonObject = {}
        """Those of the last update."""
        self.births: dict[int, int] = {}
        """Of a pinned run, where this line does not take every rollout: one that it does not take and that has never
        landed -> the version it uses, that of the next ticket."""
        self.turn = (Turn if run.lines else OnlyTurn)(self.role, calls.board, run.patience_s)
        """Whoever has it finds nothing half done in this line."""

    @property
    def version(self) -> int:
        return self.publishing.version

    def takes(self, index: int) -> bool:
        """Is this line offered the rollout of ticket `index`?"""
        return index % self.settings.every == 0

    def has(self, index: int, phase: Phase) -> bool:
        """Has this line a live ticket of that index in this phase?"""
        return self.ledger.is_live(index) and self.ledger.entry(index).phase is phase

    def next_taken(self, index: int) -> int:
        """The first ticket from this one on that the line takes."""
        return index + -index % self.settings.every

    def note_birth(self, ticket: Ticket) -> range:
        """The line has opened a ticket. In a pinned run the rollouts before it that the line does not take use the same
        version, which is held for each. Returns their indices, and its own."""
        since = max(0, ticket.index - self.settings.every + 1)
        if ticket.version is not None:
            for index in range(since, ticket.index):
                self.births[index] = ticket.version
                self.snapshots.hold(ticket.version)
        return range(since, ticket.index + 1)

    def birth(self, index: int) -> int | None:
        """The version of the line's next ticket, for a rollout that it does not take; that is held for it. None once it
        has landed: one that was lost and flies again has its place behind it."""
        return self.births.get(index)

    def bear_again(self, index: int) -> int:
        """What a rollout was to use that the line does not take may be lost: it uses the newest version."""
        self.births[index] = self.version
        return self.version

    def end_birth(self, index: int) -> None:
        """The rollout of a ticket is here, or will never be."""
        self.births.pop(index, None)

    def restore_births(self, births: Mapping[int, int]) -> None:
        self.births = dict(births)
        for version in births.values():
            self.snapshots.hold(version)

    def close(self, weights: Weights) -> LineResult:
        """The run is over: the ledger is closed, and what the line came to is final."""
        self.ledger.close()
        statistics = self.ledger.statistics()
        if not statistics.closes:
            raise LedgerError(f"the ledger does not close: {statistics}")
        return LineResult(self.version, self.updates, weights, statistics, self.lead.current, self.metrics)

    def why(self) -> str:
        """One line: where this line is."""
        tally = self.ledger.tally
        prefix = f"line {self.name}: " if self.name else ""
        return (
            f"{prefix}version {self.version}, update {self.updates}, lead {self.lead.current:g}: {tally.live} tickets "
            f"live ({tally.ready} ready, {tally.taken} with the learner)"
        )
