"""Runs whose collectors come and go: told so when a version is published, or from a ticket on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from headway.coordinator.checkpoint import CheckpointStore, RunState
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.scaling import CollectorChange
from headway.coordinator.settings import Settings
from headway.core.protocols import Runtime
from headway.core.types import Batch, Rollout, Snapshot, Ticket, derive_seed
from headway.runs.log_file import Mark
from headway.testing.toy_stations import ToyCollector, ToyLearner


class ScaledRun:
    """One session, recorded.

    `at_versions` says how many collectors there shall be from a version on (a list: asked for at once), each change as
    many versions after the one before was made; `at_tickets` the same of a pinned run from a ticket on. With
    `ends_after` the run is asked to stop so many versions after the last change.
    """

    def __init__(
        self,
        runtime: Runtime,
        stations: Stations,
        settings: Settings,
        *,
        at_versions: dict[int, int | list[int]] | None = None,
        at_tickets: Sequence[tuple[int, int]] = (),
        ends_after: int | None = None,
        checkpoints: CheckpointStore | None = None,
        resume: RunState | None = None,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.answers: list[Future[CollectorChange]] = []
        self._at_versions = list((at_versions or {}).items())
        self._at_tickets = list(at_tickets)
        self._begins_with_tickets = bool(at_tickets)
        self._ends_after = ends_after
        self._stops_at: int | None = None
        self._asked_at = self._late = 0
        self.coordinator = Coordinator(
            stations, settings, runtime, recorder=self, checkpoints=checkpoints, resume=resume
        )
        self.result: RunResult = runtime.run(self.coordinator.run())

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.events.append({"t": time_s, "e": kind, **fields})
        loop = asyncio.get_running_loop()
        if kind == "publish":
            loop.call_soon(self._look, fields["v"])
        if kind == "start" and self._begins_with_tickets:
            self._begins_with_tickets = False
            loop.call_soon(self._scale_next)

    def _look(self, version: int) -> None:
        if not all(answer.done() for answer in self.answers):
            self._late = version - self._asked_at  # where building one takes longer than some versions
            return
        if self._at_versions and version >= self._at_versions[0][0] + self._late:
            self._asked_at = version - self._late
            asked = self._at_versions.pop(0)[1]
            for collectors in asked if isinstance(asked, list) else [asked]:
                self._scale(collectors)
        elif not self._at_versions and self._ends_after is not None:
            self._stops_at = self._stops_at or version + self._ends_after
            if version >= self._stops_at:
                self.coordinator.request_stop("seen enough")

    def mark(self) -> Mark:
        return Mark.at(len(self.events))

    def close(self) -> None:
        """Nothing is held."""

    def _scale(self, collectors: int, ticket: int | None = None) -> None:
        self.answers.append(Future())
        self.coordinator.scale(collectors, self.answers[-1], ticket)

    def _scale_next(self) -> None:
        loop = asyncio.get_running_loop()
        if self._at_tickets:
            ticket, collectors = self._at_tickets.pop(0)
            self._scale(collectors, ticket)
            self.answers[-1].add_done_callback(lambda _: loop.call_soon(self._scale_next))

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        """Its events of these kinds."""
        return [event for event in self.events if event["e"] in kinds]


def scaled_loop(settings: Settings, changes: Sequence[tuple[int, int]]) -> Any:
    """A pinned run whose collectors come and go, as one serial program: (ticket, collectors) says how many take turns
    from a ticket on. Who comes back begins with nothing."""
    assert settings.plan.updates is not None
    assert isinstance(settings.max_lead, int | float)
    learner, crew, count = ToyLearner(), dict[int, ToyCollector](), settings.collectors
    weights = [replace(Snapshot(0, None), payload={"weights": learner.snapshot()["weights"].copy()})]
    per_batch, per_version = settings.tickets_per_batch, settings.tickets_per_version
    slots, due = int((1 + settings.max_lead) * per_version), dict(changes)
    for update in range(settings.plan.updates):
        rollouts: list[Rollout] = []
        for index in range(update * per_batch, (update + 1) * per_batch):
            count = due.get(index, count)
            crew = {number: member for number, member in crew.items() if number < count}
            number, version = index % count, max(0, -((slots - index - 1) // per_version))
            member = crew.setdefault(number, ToyCollector(number))
            rollouts.append(
                member.collect(Ticket(index, derive_seed(settings.seed, "ticket", index)), weights[version])
            )
        learner.learn(Batch(len(weights) - 1, tuple(rollouts)))
        if (update + 1) % settings.publish_every == 0:
            weights.append(Snapshot(len(weights), {"weights": learner.snapshot()["weights"].copy()}))
    return learner.snapshot()
