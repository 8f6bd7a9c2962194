"""What the components of a run have done, under the names that users of message-queue trainers know.

    trainer     global_steps  processed_samples  current_param_version  param_sync_count
    rollouter   total_generated_samples  dropped_stale_samples  generation_errors  param_sync_requests  sync_failures
    freshness   avg_sample_age  max_sample_age  stale_samples_ratio, in versions; avg_ and max_sample_age_s, in seconds
    queue       queue_size  queue_bytes  total_produced  total_consumed  dropped_samples
    learn       what the learner reported about its last update
    health      what each role does now, since when, and when it answered last
    engines     what each engine said of itself with its last rollout

A sample is what one ticket brings: for a language model, the group of replies to one prompt. `Reports` takes stock at
intervals, in the coordinator's thread, and hands that to a log and to a monitor.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.core.types_opaque import CoroutineOf, JsonObject
from headway.runs.log_file import TextLog
from headway.runs.monitor import MonitorThread, Statistics

RUNNING, ENDED, FAILED = "running", "ended", "failed"


def component_statistics(coordinator: Coordinator, state: str = RUNNING) -> dict[str, JsonObject]:
    """All of it, as plain values. To be called in the coordinator's thread."""
    ledger, tally = coordinator.ledger.statistics(), coordinator.ledger.tally
    dropped = ledger.dropped
    taken = sum(ledger.staleness.values())
    now = coordinator.runtime.now()
    return {
        "run": {"state": state, "wall_s": coordinator.wall_s, "lead": coordinator.lead},
        "trainer": {
            "global_steps": coordinator.updates,
            "processed_samples": taken,
            "current_param_version": coordinator.version,
            "param_sync_count": coordinator.version,
        },
        "rollouter": {
            "total_generated_samples": ledger.landed,
            "dropped_stale_samples": dropped.get("stale", 0) + dropped.get("expired", 0),
            "generation_errors": ledger.reissued + ledger.lost + dropped.get("failed", 0),
            "param_sync_requests": coordinator.version + coordinator.publish_retries,
            "sync_failures": coordinator.publish_retries,
        },
        "freshness": {
            "avg_sample_age": ledger.mean_staleness,
            "max_sample_age": ledger.max_staleness,
            "stale_samples_ratio": 1 - ledger.staleness.get(0, 0) / taken if taken else 0.0,
            "avg_sample_age_s": ledger.mean_age_s,
            "max_sample_age_s": ledger.max_age_s,
        },
        "queue": {
            "queue_size": tally.ready,
            "queue_bytes": tally.waiting_bytes,
            "total_produced": ledger.landed,
            "total_consumed": taken,
            "dropped_samples": sum(dropped.values()),
        },
        "learn": dict(coordinator.metrics),
        "health": {
            doing.role: f"{doing.words} (since {doing.since_s:.1f} s{_answered(doing.answered_s)})"
            for doing in coordinator.board.doing()
        },
        "engines": {
            name: {**health, "seconds_since_landing": now - at_s}
            for name, (at_s, health) in coordinator.engines.items()
        },
    }


def _answered(seconds: float | None) -> str:
    return "" if seconds is None else f", answered {seconds:.1f} s ago"


def statistics_lines(statistics: Statistics) -> list[str]:
    """The block for the log: a line a group, a line a role."""
    run, trainer = statistics["run"], statistics["trainer"]
    lines = [
        f"Component Statistics ({run['state']} for {run['wall_s']:.1f} s, update {trainer['global_steps']}, "
        f"version {trainer['current_param_version']}):"
    ]
    rollouter = statistics["rollouter"]
    lines.append(
        f"  Parameter sync: {trainer['param_sync_count']} versions, {rollouter['sync_failures']} failed attempts"
    )
    for group in ("trainer", "rollouter", "freshness", "queue", "learn"):
        if statistics[group]:
            lines.append(f"  {group}: {_in_a_row(statistics[group])}")
    lines += [f"  {role} {words}" for role, words in statistics["health"].items()]
    lines += [f"  engine of {name}: {_in_a_row(health)}" for name, health in statistics["engines"].items()]
    return lines


def _in_a_row(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Reports:
    """At intervals: a block of statistics into the log, a look of the monitor; both once more at the end."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        log: TextLog | None = None,
        log_every_s: float = math.inf,
        watch: MonitorThread | None = None,
        watch_every_s: float = math.inf,
    ) -> None:
        self._coordinator = coordinator
        self._log = log
        self._watch = watch
        self._log_every_s = math.inf if log is None or not log_every_s else log_every_s
        self._watch_every_s = math.inf if watch is None else watch_every_s

    async def follow(self, main: CoroutineOf[RunResult]) -> RunResult:
        """`main`, and beside it the reports."""
        reporting = asyncio.create_task(self._report_at_intervals())
        state = FAILED
        try:
            result = await main
            state = ENDED
            return result
        finally:
            reporting.cancel()
            statistics = component_statistics(self._coordinator, state)
            if math.isfinite(self._log_every_s):
                self._write(statistics)
            if self._watch is not None:
                self._watch.end(statistics)

    async def _report_at_intervals(self) -> None:
        now = self._coordinator.runtime.now
        next_log, next_look = now() + self._log_every_s, now() + self._watch_every_s
        while min(next_log, next_look) < math.inf:
            await asyncio.sleep(max(0.0, min(next_log, next_look) - now()))
            statistics = component_statistics(self._coordinator)
            if now() >= next_log:
                self._write(statistics)
                next_log = now() + self._log_every_s
            if now() >= next_look and self._watch is not None:
                self._watch.look(statistics)
                next_look = now() + self._watch_every_s

    def _write(self, statistics: Statistics) -> None:
        assert self._log is not None
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log.write("\n".join([f"{stamp} {line}" for line in statistics_lines(statistics)]) + "\n")
