"""The numbers of a run, derived from its events: a pure object, events in, points out.

    event ---> Metrics ---> a point, where the event is a

        look      the run looked at itself: totals, and what happened since the last look
        score     an evaluation is over: its numbers, at the version they belong to
        alarm     a threshold was passed, or all is well again
        resume    a checkpoint was restored: from here on everything happens again

The coordinator decides when an update ends; the recorder (`sinks.py`) decides when to look, and writes into the
log what only the running process knows: how long each kind of role was busy, its memory, the lead. So a recorded
log gives the same points again (`metrics_of`), also the log of a run that was killed.

`MEANINGS` is the schema; docs/metrics.md shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.observe.activities import BETWEEN, CAUSES
from headway.observe.recorder import as_number

MEANINGS = {
    # -- at every look: where the run is
    "run/updates": "learn calls so far",
    "run/version": "the newest version",
    "run/steps": "environment steps (or tokens) trained on so far",
    "run/lead": "how far collection may run ahead now, in versions",
    "run/restarts": "roles that were built anew so far",
    "run/publish_retries": "attempts to hand a version on that failed so far",
    "run/evaluations_failed": "evaluations that ended without a score so far",
    "run/evaluations_skipped": "evaluations that a later version took the place of so far",
    "run/memory_mb": "resident memory of the coordinator's process, in MiB",
    "run/cpu_cores": "processor cores in use since the look before, by the processes of the run on this machine",
    "run/error_rate": "share of the flights since the look before that failed, or whose rollout was lost",
    "run/since_update_s": "seconds since the last update ended, or since the session began",
    # -- at every look: per second, since the look before
    "throughput/updates_per_s": "learn calls per second",
    "throughput/rollouts_per_s": "rollouts that came in, per second",
    "throughput/steps_per_s": "environment steps (or tokens) that came in, per second",
    "throughput/targets_per_s": "stored targets that were reanalyzed, per second, if any were",
    "time/update_s": "mean seconds of a learn call",
    "time/collect_s": "mean seconds from a ticket's start to its landing",
    "time/publish_lag_s": "mean seconds from the end of an update to the first rollout that took off with its version",
    # -- at every look: tickets
    "tickets/opened": "tickets opened so far",
    "tickets/landed": "rollouts that came in so far; a ticket that was requeued or lost counts each time",
    "tickets/taken": "rollouts the learner has taken so far",
    "tickets/learned": "tickets settled as learned so far",
    "tickets/reissued": "flights that failed and were flown again so far",
    "tickets/requeued": "rollouts that came too late and were collected again so far",
    "tickets/lost": "rollouts that were here, were gone with the node that held them and were collected again so far",
    "queue/open": "tickets that wait for a collector now",
    "queue/in_flight": "tickets being collected now",
    "queue/ready": "rollouts that wait for the learner now",
    "queue/taken": "rollouts with the learner now: their slots are not free yet",
    "queue/empty": "share of the time since the look before in which no rollout waited for the learner",
    "queue/bytes": "what the rollouts that wait for the learner hold now, in bytes",
    "drops/stale": "tickets dropped as too old so far, in versions (`max_staleness`)",
    "drops/expired": "tickets dropped as too old so far, in seconds (`max_age_s`)",
    "drops/filtered": "tickets dropped as without signal so far",
    "drops/failed": "tickets dropped because their collection failed so far",
    # -- at a look with rollouts taken since the look before
    "staleness/mean": "mean age of those rollouts when taken, in versions",
    "staleness/max": "the oldest of them",
    "staleness/nonzero": "share of them that were not of the newest version",
    "staleness/in_flight": "mean part of that age which had come up when they landed",
    "staleness/in_queue": "mean part which came up while they waited for the learner",
    "age/mean_s": "mean seconds from their landing to the moment they were taken",
    "age/max_s": "the longest of them",
    "age/expired": "share of those taken or thrown away for it that had waited longer than `max_age_s`",
    "length/bias": "how much shorter the trained rollouts are than the offered ones, so far (-0.2: a fifth)",
    # -- at every look: shares of the time since the look before
    "busy/learner": "share of the time the learner was in a call",
    "busy/collectors": "the same for the collectors, all of them together",
    "busy/evaluator": "the same for the evaluator, if there is one",
    "busy/reanalyzer": "the same for the reanalyzer, if there is one",
    "busy/replay": "the same for a replay with a role of its own, if there is one",
    "waiting/learner": "share of the time the learner waited, for whatever reason",
    "waiting/learner_for_data": "share of the time the learner waited for rollouts, or for a draw from the replay",
    "waiting/learner_for_evaluation": "share of the time the learner waited for an evaluation",
    "waiting/collectors": "share of the time the collectors waited",
    "waiting/collectors_for_slot": "share of the time the collectors waited for a free slot",
    "waiting/collectors_for_weights": "share of the time the collectors waited for weights",
    "waiting/collectors_for_evaluation": "share of the time the collectors waited for an evaluation",
    # -- when an evaluation is over
    "evaluate/score": "the score",
    "evaluate/version": "the version it belongs to",
    "time/evaluate_s": "seconds from the beginning of the evaluation to its score",
}
"""Every name with a fixed meaning. Besides them `learn/<name>` is the mean, since the look before, of what the
learner reports under that name, `evaluate/<name>` is what an evaluation reports besides its score, `memory/<role>_mb`
is the resident memory of a role with a process of its own (at every look, where the system says so), and
`alarms/<name>` is 1 when that alarm is raised and 0 when all is well again."""

ALIASES: dict[str, tuple[str, ...]] = {
    "global_steps": ("run/updates",),
    "processed_samples": ("tickets/taken",),
    "current_param_version": ("run/version",),
    "param_sync_count": ("run/version",),
    "param_sync_requests": ("run/version", "run/publish_retries"),
    "total_generated_samples": ("tickets/landed",),
    "generation_errors": ("tickets/reissued", "tickets/lost", "drops/failed"),
    "dropped_stale_samples": ("drops/stale", "drops/expired"),
    "avg_sample_age": ("staleness/mean",),
    "max_sample_age": ("staleness/max",),
    "stale_samples_ratio": ("staleness/nonzero",),
    "avg_sample_age_s": ("age/mean_s",),
    "max_sample_age_s": ("age/max_s",),
    "stale_samples_ratio_s": ("age/expired",),
    "queue_size": ("queue/ready",),
    "queue_bytes": ("queue/bytes",),
    "memory": ("queue/bytes",),
    "total_produced": ("tickets/landed",),
    "total_consumed": ("tickets/taken",),
    "dropped_samples": ("drops/stale", "drops/expired", "drops/filtered", "drops/failed"),
}
"""Names known from other systems; each is the sum of ours."""

ROLES = {"collector": "collectors"} | {role: role for role in ("learner", "evaluator", "reanalyzer", "replay")}
FOR = {"learner": ("data", "evaluation"), "collectors": ("slot", "weights", "evaluation")}  # causes with a share each
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in a run something was measured."""

    time_s: float
    """On the clock of the event log; a resumed run goes on from its checkpoint."""
    update: int
    """For a score: the update that made its version, however late it comes."""
    version: int


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers of one moment."""

    moment: Moment
    values: dict[str, float]


def with_aliases(values: Mapping[str, float]) -> dict[str, float]:
    """`values`, and those of the known names that can be computed from them."""
    known = {
        alias: sum(values[name] for name in names)
        for alias, names in ALIASES.items()
        if all(name in values for name in names)
    }
    return {**values, **known}


def metrics_of(events: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    """The points of a recorded run: `metrics_of(read_events(path))`."""
    metrics = Metrics()
    for event in events:
        point = metrics.note(event["t"], event["e"], event)
        if point is not None:
            yield point


class Metrics:
    """Follows the tickets of a run and adds up what happened.

    Every live ticket is in one phase; totals only grow; an interval lasts from one look to the next.
    """

    def __init__(self) -> None:
        self._update = self._version = 0
        self._steps = 0.0
        self._totals: Counter[str] = Counter(dict.fromkeys((n for n in MEANINGS if n.startswith(TOTALS)), 0))
        self._phases: dict[int, str] = {}  # live tickets
        self._sizes: Counter[str] = Counter({"open": 0, "in_flight": 0, "ready": 0, "taken": 0})
        self._landed: dict[int, _Landing] = {}  # ready tickets
        self._taking: Sequence[int] = ()  # tickets of the update under way
        self._ended: dict[int, float] = {}  # versions nobody has collected with yet: the end of their update
        self._learned_s = 0.0  # the end of the last update
        self._bytes = 0  # of them
        self._max_age_s: float | None = None
        self._session_began_s = 0.0
        self._started: dict[int, float] = {}  # tickets in flight: since when
        self._offered = self._trained = 0
        self._offered_length = self._trained_length = 0.0
        self._publish_every = 1
        self._evaluating: tuple[int, float] = (0, 0.0)  # version, since when
        self._interval = _Interval(0.0, {})
        self._notes: dict[str, Callable[[float, Mapping[str, Any]], Point | None]] = {
            "run": self._run,
            "open": self._open,
            "start": self._start,
            "land": self._land,
            "reissue": self._reissue,
            "requeue": self._requeue,
            "lose": self._lose,
            "drop": self._drop,
            "update": self._begin_update,
            "learn": self._learn,
            "insert": self._insert,
            "refresh": self._refresh,
            "settle": self._settle,
            "publish": self._publish,
            "publish_retry": self._publish_retry,
            "restart": self._restart,
            "evaluate": self._evaluate,
            "skip_evaluation": self._skip_evaluation,
            "score": self._score,
            "resume": self._resume,
            "look": self._look,
            "alarm": self._alarm,
        }

    def note(self, time_s: float, kind: str, fields: Mapping[str, Any]) -> Point | None:
        """Take an event in; what comes out is a point, if the event is one that gives one."""
        note = self._notes.get(kind)
        return None if note is None else note(time_s, fields)

    # -- tickets ------------------------------------------------------------------------------------

    def _open(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["tickets/opened"] += 1
        self._enter(fields["k"], "open")

    def _start(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._started[fields["k"]] = time_s
        if self._ended:
            self._use(time_s, fields["v"])
        self._enter(fields["k"], "in_flight")

    def _use(self, time_s: float, version: int) -> None:
        """The first rollout takes off with a version: those before it are of no use any more."""
        if version in self._ended:
            self._interval.lags.append(time_s - self._ended[version])
            self._ended = {later: end for later, end in self._ended.items() if later > version}

    def _land(self, time_s: float, fields: Mapping[str, Any]) -> None:
        index, steps, length = fields["k"], fields["n"], fields["l"]
        self._landed[index] = _Landing(fields["v"][0], steps, length, time_s, fields.get("b", 0), self._version)
        self._bytes += fields.get("b", 0)
        self._offered += 1
        self._offered_length += length
        self._totals["tickets/landed"] += 1
        interval = self._interval
        interval.landed += 1
        interval.steps += steps
        interval.collect_s += time_s - self._started.pop(index, time_s)
        if not self._sizes["ready"]:
            interval.fill(time_s)
        self._enter(index, "ready")

    def _reissue(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["tickets/reissued"] += 1
        self._interval.failed += 1
        self._started.pop(fields["k"], None)
        self._enter(fields["k"], "open")

    def _requeue(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["tickets/requeued"] += 1
        self._interval.expired += fields.get("reason") == "expired"
        self._withdraw(time_s, fields["k"])

    def _lose(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["tickets/lost"] += 1
        self._interval.failed += 1
        self._withdraw(time_s, fields["k"])

    def _withdraw(self, time_s: float, index: int) -> None:
        landed = self._pop_landing(index)
        if landed is not None:  # it will be offered again: the same ticket, counted once
            self._offered -= 1
            self._offered_length -= landed.length
        self._enter(index, "open")
        self._look_for_ready(time_s)

    def _drop(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals[f"drops/{fields['reason']}"] += 1
        self._interval.expired += fields["reason"] == "expired"
        self._interval.failed += fields["reason"] == "failed"
        self._leave(fields["k"])
        self._look_for_ready(time_s)

    def _settle(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["tickets/learned"] += len(fields["k"])
        for index in fields["k"]:
            self._leave(index)

    def _take(self, indices: Iterable[int], version: int, time_s: float) -> None:
        for index in indices:
            landed = self._pop_landing(index) or _Landing(version, 0.0, 0.0, time_s, 0, version)
            age_s = max(0.0, time_s - landed.at_s)
            self._interval.staleness[version - landed.oldest] += 1
            self._interval.stale_in_queue += version - max(landed.at_version, landed.oldest)
            self._interval.ages_s += age_s
            self._interval.max_age_s = max(self._interval.max_age_s, age_s)
            self._interval.kept_expired += self._max_age_s is not None and age_s > self._max_age_s
            self._trained += 1
            self._trained_length += landed.length
            self._totals["tickets/taken"] += 1
            self._steps += landed.steps
            self._enter(index, "taken")

    def _look_for_ready(self, time_s: float) -> None:
        """Rollouts have left the queue: it may be empty now."""
        if not self._sizes["ready"]:
            self._interval.drain(time_s)

    def _pop_landing(self, index: int) -> _Landing | None:
        landed = self._landed.pop(index, None)
        if landed is not None:
            self._bytes -= landed.size
        return landed

    def _enter(self, index: int, phase: str) -> None:
        before = self._phases.get(index)
        if before is not None:
            self._sizes[before] -= 1
        self._phases[index] = phase
        self._sizes[phase] += 1

    def _leave(self, index: int) -> None:
        phase = self._phases.pop(index, None)
        if phase is not None:
            self._sizes[phase] -= 1
        self._started.pop(index, None)
        self._pop_landing(index)

    # -- learning and versions ----------------------------------------------------------------------

    def _begin_update(self, time_s: float, fields: Mapping[str, Any]) -> None:
        """Its rollouts are with the learner. Those of an update that came to nothing are back."""
        for index in self._taking:
            if self._phases.get(index) == "taken":
                self._enter(index, "ready")
        self._taking = fields["k"]
        for index in self._taking:
            self._enter(index, "taken")
        self._look_for_ready(time_s)

    def _learn(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._taking = ()
        self._learned_s = time_s
        self._take(fields["k"], fields["v"], time_s - fields["d"])
        self._update = fields["u"]
        self._interval.add_update(fields["d"], fields["m"])

    def _insert(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._take(fields["k"], fields["v"], time_s - fields.get("d", 0.0))

    def _refresh(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._interval.targets += fields["n"]

    def _publish(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._version = fields["v"]
        if self._version:
            self._ended[self._version] = self._learned_s

    def _publish_retry(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["run/publish_retries"] += 1

    def _restart(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["run/restarts"] += 1

    # -- sessions -----------------------------------------------------------------------------------

    def _run(self, time_s: float, fields: Mapping[str, Any]) -> None:
        """A session begins: its roles have spent no time yet."""
        self._publish_every = fields.get("publish_every", 1)
        self._max_age_s = fields.get("max_age_s")
        self._session_began_s = time_s
        self._begin_interval(time_s, {})

    def _resume(self, time_s: float, fields: Mapping[str, Any]) -> Point:
        """What was in flight flies again. The time it took to get here makes no rollout older."""
        for index, landed in self._landed.items():
            self._landed[index] = landed._replace(at_s=landed.at_s + time_s - self._session_began_s)
        self._version, self._update = fields["v"], fields["updates"]
        self._started.clear()
        self._ended.clear()
        self._taking = ()
        for index, phase in list(self._phases.items()):
            if phase == "in_flight":
                self._enter(index, "open")
        return Point(self._moment(time_s), self._place())

    # -- points -------------------------------------------------------------------------------------

    def _evaluate(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._evaluating = (fields["v"], time_s)

    def _skip_evaluation(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._totals["run/evaluations_skipped"] += 1

    def _score(self, time_s: float, fields: Mapping[str, Any]) -> Point | None:
        version, value = fields["v"], as_number(fields["value"])
        if value is None:
            self._totals["run/evaluations_failed"] += 1
            return None
        update = min(version * self._publish_every, self._update)
        numbers = {f"evaluate/{name}": as_number(number) for name, number in fields["m"].items()}
        values = {name: number for name, number in numbers.items() if number is not None}
        values |= {"evaluate/score": value, "evaluate/version": float(version)}
        if self._evaluating[0] == version:
            values["time/evaluate_s"] = time_s - self._evaluating[1]
        return Point(Moment(round(time_s, 6), update, version), values)

    def _look(self, time_s: float, fields: Mapping[str, Any]) -> Point:
        """Totals, and what happened since the look before."""
        values = self._place() | {name: float(total) for name, total in self._totals.items()}
        values["run/steps"] = self._steps
        values["run/lead"] = float(fields["lead"])
        values["run/since_update_s"] = max(0.0, time_s - max(self._learned_s, self._session_began_s))
        values["run/memory_mb"] = fields["rss"] / MIB
        values |= {f"memory/{role}_mb": size / MIB for role, size in fields.get("memory", {}).items()}
        values |= {f"queue/{phase}": float(size) for phase, size in self._sizes.items()}
        values["queue/bytes"] = float(self._bytes)
        values |= self._interval.values(time_s, fields["spent"], fields.get("cpu"))
        if self._trained and self._offered_length:
            trained, offered = self._trained_length / self._trained, self._offered_length / self._offered
            values["length/bias"] = trained / offered - 1
        self._begin_interval(time_s, fields["spent"], fields.get("cpu", 0.0))
        return Point(self._moment(time_s), values)

    def _alarm(self, time_s: float, fields: Mapping[str, Any]) -> Point:
        return Point(self._moment(time_s), {f"alarms/{fields['name']}": float(fields["on"])})

    def _begin_interval(self, time_s: float, spent: Mapping[str, Mapping[str, float]], cpu_s: float = 0.0) -> None:
        self._interval = _Interval(time_s, spent, cpu_s)
        self._look_for_ready(time_s)

    def _moment(self, time_s: float) -> Moment:
        return Moment(round(time_s, 6), self._update, self._version)

    def _place(self) -> dict[str, float]:
        return {"run/updates": float(self._update), "run/version": float(self._version)}


TOTALS = ("run/restarts", "run/publish_retries", "run/evaluations_", "tickets/", "drops/")
"""How the names of counts begin that only grow, one by one."""


class _Landing(NamedTuple):
    """A rollout that waits for the learner."""

    oldest: int
    steps: float
    length: float
    at_s: float
    size: int
    at_version: int
    """The newest when it landed."""


class _Interval:
    """What happened since the last look."""

    def __init__(self, since_s: float, spent: Mapping[str, Mapping[str, float]], cpu_s: float = 0.0) -> None:
        self._since_s = since_s
        self._spent_before = spent
        self._cpu_s_before = cpu_s
        self.updates = 0
        self.landed = 0
        self.steps = 0.0
        self.targets = 0
        self.collect_s = 0.0
        self.staleness: Counter[int] = Counter()
        self.stale_in_queue = 0
        self.failed = 0
        self.lags: list[float] = []  # from the end of an update to the first use of its version
        self._empty_s = 0.0
        self._empty_since: float | None = None
        self.ages_s = self.max_age_s = 0.0  # of what was taken
        self.expired = self.kept_expired = 0
        self._learn_s = 0.0
        self._learned: dict[str, list[float]] = {}  # metric -> [sum, count]

    def drain(self, time_s: float) -> None:
        """No rollout is ready from here on."""
        if self._empty_since is None:
            self._empty_since = time_s

    def fill(self, time_s: float) -> None:
        """One is again."""
        if self._empty_since is not None:
            self._empty_s += time_s - self._empty_since
            self._empty_since = None

    def add_update(self, seconds: float, metrics: Mapping[str, Any]) -> None:
        self.updates += 1
        self._learn_s += seconds
        for name, value in metrics.items():
            number = as_number(value)
            if number is not None:
                total = self._learned.setdefault(name, [0.0, 0])
                total[0] += number
                total[1] += 1

    def values(self, now_s: float, spent: Mapping[str, Mapping[str, float]], cpu_s: float | None) -> dict[str, float]:
        values = {f"learn/{name}": total / count for name, (total, count) in self._learned.items()}
        elapsed_s = now_s - self._since_s
        if elapsed_s > 0:
            values["throughput/updates_per_s"] = self.updates / elapsed_s
            values["throughput/rollouts_per_s"] = self.landed / elapsed_s
            values["throughput/steps_per_s"] = self.steps / elapsed_s
            if self.targets:
                values["throughput/targets_per_s"] = self.targets / elapsed_s
            empty_s = self._empty_s + (0.0 if self._empty_since is None else now_s - self._empty_since)
            values["queue/empty"] = min(1.0, empty_s / elapsed_s)
            if cpu_s is not None:  # less than before, where a role's process was replaced
                values["run/cpu_cores"] = max(0.0, cpu_s - self._cpu_s_before) / elapsed_s
        if self.updates:
            values["time/update_s"] = self._learn_s / self.updates
        if self.landed:
            values["time/collect_s"] = self.collect_s / self.landed
        if self.landed + self.failed:
            values["run/error_rate"] = self.failed / (self.landed + self.failed)
        if self.lags:
            values["time/publish_lag_s"] = sum(self.lags) / len(self.lags)
        taken = self.staleness.total()
        if taken:
            values["staleness/mean"] = sum(age * count for age, count in self.staleness.items()) / taken
            values["staleness/max"] = float(max(self.staleness))
            values["staleness/nonzero"] = 1 - self.staleness[0] / taken
            values["staleness/in_queue"] = self.stale_in_queue / taken
            values["staleness/in_flight"] = values["staleness/mean"] - values["staleness/in_queue"]
            values["age/mean_s"] = self.ages_s / taken
            values["age/max_s"] = self.max_age_s
        if taken + self.expired:
            values["age/expired"] = (self.expired + self.kept_expired) / (taken + self.expired)
        for role, seconds in spent.items():
            if role in ROLES:
                values |= self._shares(ROLES[role], seconds, self._spent_before.get(role, {}))
        return values

    def _shares(self, name: str, now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
        """Parts of the time the role had; the rest was between two activities."""
        spent = {activity: seconds - before.get(activity, 0.0) for activity, seconds in now.items()}
        whole = sum(spent.values())
        if whole <= 0:
            return {}
        waited: dict[str, float] = {}
        for activity, seconds in spent.items():
            if activity in CAUSES:
                cause = CAUSES[activity]
                waited[cause] = waited.get(cause, 0.0) + seconds
        in_all = sum(waited.values())
        shares = {f"busy/{name}": 1 - (in_all + spent.get(BETWEEN, 0.0)) / whole}
        if name in FOR:
            shares[f"waiting/{name}"] = in_all / whole
            shares |= {f"waiting/{name}_for_{cause}": waited.get(cause, 0.0) / whole for cause in FOR[name]}
        return shares
