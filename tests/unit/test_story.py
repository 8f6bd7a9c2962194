"""A run told from its log: what each role did, where the time went, how tickets ended; whole, cut off or foreign."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import patient, slowness, wait_until

import headway
from headway.cli import main
from headway.coordinator.activities import BETWEEN, CAUSES, in_words
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.rules import ReplayRatio
from headway.core.rules_order import OLDEST, READY, OnStale, window
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runs.console import duration
from headway.runs.event_log import MemoryRecorder, read_events
from headway.runs.metrics import metrics_of
from headway.runtimes.virtual import Virtual
from headway.tools.report import recorded_run_run_history as story_module
from headway.tools.report.recorded_run_run_history import StoryReader, read_story, tell
from headway.tools.report.recorded_run_story_records import Story, role_order
from headway.tools.report.status import read_end_status, read_status, read_whole_status
from headway.tools.report.time_report import Distribution, account
from headway.tools.report.timeline_trace import trace_text, write_trace
from headway.tools.simulate.workloads import (
    Exponential,
    FaultyWorkload,
    Lognormal,
    SimulatedEvaluator,
    SimulatedLearner,
)

Events = list[dict[str, Any]]


# -- any run, in virtual time -----------------------------------------------------------------------


class Engine:
    """Uneven rollouts, some of them without signal."""

    is_concurrent = True

    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(None, steps=1 + ticket.seed % 7, length=1.0 + ticket.seed % 11, filtered=ticket.seed % 13 == 0)


class WeightHolder(Engine):
    def apply(self, snapshot: Snapshot) -> None:
        pass


class ReplayTrainer(SimulatedLearner):
    def insert(self, batch: Batch) -> None:
        pass

    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport(samples=3)


def any_settings(rng: random.Random) -> Settings:
    while True:
        try:
            return Settings(
                plan=Plan(
                    updates=rng.randint(4, 30), evaluate_every=rng.choice([0, 2, 3]), warmup_s=rng.choice([0, 3])
                ),
                collectors=rng.randint(1, 4),
                lanes=rng.choice([1, 1, 2]),
                max_lead=rng.choice([0, 0.5, 1, 2, 4, "auto"]),
                order=rng.choice([OLDEST, window(3), READY]),
                max_staleness=rng.choice([None, 0, 1, 3]),
                on_stale=rng.choice(list(OnStale)),
                tickets_per_batch=rng.randint(1, 3),
                publish_every=rng.randint(1, 3),
                pacing_s=rng.choice([0.0, 0.4]),
                evaluate_in_background=rng.random() < 0.5,
                replay=ReplayRatio(3, min_size=4, samples_per_update=3, steps_per_ticket=1)
                if rng.random() < 0.2
                else None,
                seed=rng.randrange(1000),
                deadlines=Deadlines(collect_s=30, learn_s=60, evaluate_s=60, publish_s=10, start_s=20),
                retries=Retries(attempts_on_error=3, attempts_on_loss=3, on_failure="drop", max_restarts=60),
            )
        except ValueError:
            continue


@cache
def any_run(seed: int) -> tuple[Events, RunResult | None]:
    """A run under any settings and faults: its events, and how it ended."""
    rng = random.Random(seed)
    settings = any_settings(rng)
    chances = {name: rng.choice([0, 0.08]) for name in ("crash", "hang", "error", "slow", "lose")}
    runtime = Virtual(FaultyWorkload(Lognormal(1.0, 1.0), Exponential(0.5), Exponential(3.0), seed=seed, **chances))
    stations = Stations(
        collector=WeightHolder if rng.random() < 0.5 else Engine,
        learner=SimulatedLearner if settings.replay is None else ReplayTrainer,
        evaluator=SimulatedEvaluator,
    )
    recorder = MemoryRecorder()
    coordinator = Coordinator(stations, settings, runtime, recorder=recorder)
    try:
        result: RunResult | None = runtime.run(coordinator.run())
    except RunFailed:
        result = None
    return recorder.events, result


def by_role(story: Story) -> dict[str, list[Any]]:
    roles: dict[str, list[Any]] = {role: [] for role in story.roles}
    for interval in story.intervals:
        roles[interval.role].append(interval)
    return roles


@pytest.mark.parametrize("seed", range(40))
def test_per_role_busy_and_blocked_time_add_up_to_the_wall_clock(seed: int) -> None:
    """In virtual time the coordinator's own moments take none, so nothing may be missing."""
    events, _ = any_run(seed)
    story = tell(events)
    sums = account(story)
    assert sums.wall_s == pytest.approx(story.end_s - story.begin_s)
    for role, of_role in sums.roles.items():
        if role.startswith("publisher"):
            continue  # they begin with the loops
        assert of_role.between_s == pytest.approx(0, abs=1e-6 * len(events)), (role, of_role)


@pytest.mark.parametrize("seed", range(40))
def test_the_story_and_the_board_agree_on_what_every_role_did(seed: int) -> None:
    events, result = any_run(seed)
    if result is None:
        return  # it failed, as it should: there is no result to compare with
    told: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for interval in tell(events).intervals:
        told[interval.role][interval.what] += interval.seconds
    for role, spent in result.time_spent.seconds.items():
        for activity, seconds in spent.items():
            if activity != BETWEEN:
                assert told[role][activity] == pytest.approx(seconds, abs=1e-6 * len(events)), (role, activity)


@pytest.mark.parametrize("seed", range(40))
def test_nobody_does_two_things_at_once(seed: int) -> None:
    events, _ = any_run(seed)
    story = tell(events)
    for role, intervals in by_role(story).items():
        assert all(before.end <= after.begin + 1e-6 for before, after in pairwise(intervals)), role
        assert all(story.begin_s <= each.begin < each.end <= story.end_s for each in intervals)


@pytest.mark.parametrize("seed", range(40))
def test_the_story_agrees_with_the_ledger(seed: int) -> None:
    events, result = any_run(seed)
    if result is None:
        return  # it failed, as it should: there is no result to compare with
    story, ledger = tell(events), result.ledger
    sums = account(story)
    assert len(story.tickets) == ledger.opened
    how = Counter(ticket.how for ticket in story.tickets.values())
    assert how["learned"] == ledger.learned
    assert how["dropped"] == sum(ledger.dropped.values())
    assert dict(story.drops) == {reason: count for reason, count in ledger.dropped.items() if count}
    assert sum(story.queue[-1][1:]) == ledger.returned == len(story.tickets) - how["learned"] - how["dropped"]
    assert sums.ages == Counter(ledger.staleness)
    assert sums.staleness.mean == pytest.approx(ledger.mean_staleness)
    assert sums.stale_in_flight + sums.stale_in_queue == pytest.approx(sums.staleness.mean)
    assert (len(story.reissued), len(story.requeued), len(story.lost)) == (
        ledger.reissued,
        ledger.requeued,
        ledger.lost,
    )
    assert (story.version, len(story.updates)) == (result.version, result.updates)
    assert [(e.version, e.value) for e in story.evaluations if e.end is not None] == [
        (score.version, score.value) for score in result.scores
    ]
    assert sums.length_bias == pytest.approx(ledger.length_bias)
    for ticket in story.tickets.values():
        if ticket.staleness is not None:
            assert min(ticket.stale_in_flight or 0, ticket.stale_in_queue or 0) >= 0
        if ticket.how == "learned" and not story.settings["replay"]:
            assert ticket.update is not None
            assert ticket.opened <= ticket.began <= ticket.ended <= ticket.taken <= ticket.settled  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_is_cut_off_anywhere_is_told_up_to_there(seed: int) -> None:
    events, _ = any_run(seed)
    rng = random.Random(seed)
    for length in [1, 2, *(rng.randint(3, len(events)) for _ in range(12))]:
        part = events[:length]
        story = tell(part)
        assert story.end_s == max(event["t"] for event in part)
        assert story.num_events == length
        sizes = Counter(ticket.how for ticket in story.tickets.values())
        live = sum(story.queue[-1][1:]) if story.queue else 0
        assert live == sum(sizes[how] for how in ("open", "in flight", "ready", "taken"))
        for of_role in account(story).roles.values():
            assert -1e-6 * length <= of_role.between_s <= of_role.wall_s + 1e-9
        if not story.is_over:
            assert all(interval.end == story.end_s for interval in story.under_way.values())
        assert json.loads(trace_text(story))["traceEvents"]


# -- by hand ----------------------------------------------------------------------------------------


def told(*events: tuple[float, str, dict[str, Any]]) -> Story:
    head = {"t": 0.0, "e": "run", "collectors": 1, "lanes": 1, "max_lead": 2}
    return tell([head, *({"t": time_s, "e": kind, **fields} for time_s, kind, fields in events)])


def test_staleness_is_split_at_the_landing_and_lags_and_queues_are_measured() -> None:
    story = told(
        (0.0, "publish", {"v": 0}),
        (0.0, "open", {"k": 0}),
        (1.0, "start", {"k": 0, "c": 0, "v": 0}),
        (1.5, "publish", {"v": 1}),  # one version while it flies
        (2.0, "land", {"k": 0, "v": [0, 0], "n": 8, "l": 8.0, "b": 64}),
        (2.5, "publish", {"v": 2}),  # two while it waits
        (3.0, "publish", {"v": 3}),
        (4.0, "update", {"u": 1, "v": 3, "k": [0]}),
        (5.0, "learn", {"u": 1, "v": 3, "k": [0], "d": 1.0, "m": {"ess": 0.5}}),
        (5.25, "publish", {"v": 4}),
        (5.25, "settle", {"k": [0]}),
        (5.25, "open", {"k": 1}),
        (5.75, "start", {"k": 1, "c": 0, "v": 4}),
    )
    ticket = story.tickets[0]
    assert (ticket.staleness, ticket.stale_in_flight, ticket.stale_in_queue) == (3, 1, 2)
    assert (ticket.queue_s, ticket.num_bytes, ticket.how, ticket.update) == (2.0, 64, "learned", 1)
    last = story.versions[-1]
    assert (last.number, last.update, last.publish_s, last.first_ticket, last.lag_s) == (4, 1, 0.25, 1, 0.75)
    assert story.tickets[1].how == "in flight"
    sums = account(story)
    assert sums.publish_lag_s == Distribution(1, 0.75, 0.75, 0.75)
    assert sums.queue_s.mean == 2.0
    assert sums.learner == {"ess": 0.5}
    assert sums.updates_per_s == pytest.approx(1 / 5.75)


def test_roles_stand_in_the_order_of_their_numbers() -> None:
    roles = ["evaluator", "collector-10", "collector-9/1", "collector-9/0", "learner", "replay", "stranger"]
    ordered = ["learner", "collector-9/0", "collector-9/1", "collector-10", "replay", "evaluator", "stranger"]
    assert sorted(roles, key=role_order) == ordered


def test_every_cause_has_a_heading_and_words() -> None:
    for activity in CAUSES:
        assert in_words(activity).startswith("waits for ")
    assert in_words("learn") == "is busy: learn"
    assert in_words(BETWEEN) == "is idle"


# -- real time --------------------------------------------------------------------------------------


def collect(weights: float, ticket: Ticket) -> float:
    time.sleep(0.02)
    return 1.0


def train(weights: float, rollouts: list[float]) -> float:
    time.sleep(0.03)
    return weights + 1


def evaluate(weights: float) -> float:
    time.sleep(0.05)
    return weights


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
@pytest.mark.parametrize("in_background", [False, True])
def test_in_real_time_the_accounts_are_those_of_the_board(tmp_path: Path, runtime: str, in_background: bool) -> None:
    result = headway.run(
        collect,
        train,
        evaluate,
        weights=0.0,
        updates=10,
        evaluate_every=4,
        evaluate_in_background=in_background,
        max_lead=1,
        collectors=2,
        folder=tmp_path,
        runtime=runtime,
    )
    story = read_story(tmp_path)
    sums = account(story)
    assert set(sums.roles) == {"learner", "collector-0", "collector-1", "evaluator"}
    slow = slowness()  # two clocks are read one after the other, and a busy machine may do something else between
    nearly_s = 0.02 * slow * sums.wall_s
    for role, of_role in sums.roles.items():
        spent = result.time_spent.seconds[role]
        blocked: dict[str, float] = defaultdict(float)
        for activity, seconds in spent.items():
            if activity in CAUSES:
                blocked[CAUSES[activity]] += seconds
            elif activity != BETWEEN:
                assert of_role.busy[activity] == pytest.approx(seconds, abs=nearly_s), (role, activity)
        for cause, seconds in blocked.items():
            assert of_role.blocked.get(cause, 0.0) == pytest.approx(seconds, abs=nearly_s), (role, cause)
        assert 0 <= of_role.between_s < 0.1 * slow * of_role.wall_s, "what is missing is the coordinator's"
        whole_s, between_s = sum(spent.values()), spent.get(BETWEEN, 0.0)  # by a clock that knows nothing of the log
        assert of_role.busy_s + of_role.blocked_s + between_s == pytest.approx(whole_s, rel=0.01 * slow)
        assert whole_s == pytest.approx(sums.wall_s, rel=0.1 * slow), "roles come a moment after the run"
    learner = sums.roles["learner"]
    assert learner.busy["learn"] >= 10 * 0.03
    if not in_background:
        assert learner.blocked["evaluation"] >= 3 * 0.05, "a pause for an evaluation is waiting, for that"
    assert sums.memory["run"] > 2**20
    if runtime == "processes" and sys.platform == "linux":
        assert set(sums.memory) >= {"learner", "collector-0", "collector-1", "evaluator"}
    assert story.environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert abs((story.began_at or 0) + story.end_s - time.time()) < patient(30)


def test_a_resumed_run_is_one_story_with_two_sessions(tmp_path: Path) -> None:
    options: dict[str, Any] = {"weights": 0.0, "max_lead": 1, "folder": tmp_path, "save_every": 3}
    headway.run(collect, train, updates=6, **options)
    headway.run(collect, train, updates=9, resume=True, **options)
    story = read_story(tmp_path)
    assert [session.how for session in story.sessions] == ["", "end"], "the first end lies behind the checkpoint"
    assert [update.number for update in story.updates] == list(range(1, 10))
    assert len(story.environment["sessions"]) == 2
    events = list(read_events(folder_of(tmp_path).events))
    second = next(place for place, event in enumerate(events) if place and event["e"] == "run")
    lengths = [part[-1]["t"] - part[0]["t"] for part in (events[:second], events[second:])]
    for of_role in account(story).roles.values():
        assert of_role.between_s >= 0
        assert of_role.wall_s == pytest.approx(sum(lengths)), "what lies between the sessions is nobody's time"


# -- a run that is killed ---------------------------------------------------------------------------


def test_a_killed_run_has_a_story_a_trace_and_metrics_up_to_its_last_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "headway.cli", "run", "functions", "--runs", str(tmp_path), "--quiet"]
    command += ["--updates", "1000000", "--collect_ms", "2", "--train_ms", "2", "--evaluate_every", "0"]
    command += ["--metrics_interval_s", "0.05", "--tensorboard", "false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().split(" in ")[1].strip())
            events = folder / "events.jsonl"
            while not (events.exists() and events.read_bytes().count(b'"e":"learn"') >= 50):
                assert process.poll() is None
                time.sleep(0.01)
            live = ""

            def shows_the_collector() -> bool:  # unless it is just between two tickets
                nonlocal live
                assert main(["status", str(folder)]) == 0
                live = capsys.readouterr().out
                return "collector-0" in live

            wait_until(shows_the_collector, what="the collector in the status")
            before = time.time()
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert "running for" in live
    story = read_story(folder)
    assert not story.is_over
    assert len(story.updates) >= 50
    assert before - ((story.began_at or 0.0) + story.end_s) < patient(0.5), "no more than a moment is lost"
    write_trace(folder_of(folder))
    assert len(json.loads((folder / "trace.json").read_text())["traceEvents"]) > 200
    points = list(metrics_of(read_events(events)))
    assert points[-1].moment.update <= len(story.updates)
    gone = read_status(folder)
    assert f"its process is gone after {duration(story.end_s)}; to go on: headway resume {folder}" in gone.headline
    assert {interval.role for interval in story.intervals} >= {"learner", "collector-0"}
    assert {role.role for role in gone.status.roles} == set(story.under_way), "a kill may come between two activities"
    for role in gone.status.roles:
        assert role.words.startswith(("was busy: ", "waited for "))
        assert role.since_s == story.end_s - story.under_way[role.role].begin, "it takes no longer than it took"
    for of_role in account(story).roles.values():
        assert 0 <= of_role.between_s < 0.2 * slowness() * of_role.wall_s


def folder_of(path: Path) -> Any:
    from headway.runs.folder import RunFolder

    return RunFolder(path)


@pytest.mark.parametrize("cut", [1, 5, 17])
def test_a_half_written_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    headway.run(collect, train, weights=0.0, updates=3, folder=tmp_path)
    log = tmp_path / "events.jsonl"
    whole = read_story(tmp_path)
    log.write_bytes(log.read_bytes()[:-cut])
    assert read_story(tmp_path).num_events == whole.num_events - 1


# -- a log that grows -------------------------------------------------------------------------------


@cache
def any_log(seed: int) -> bytes:
    """The bytes of a log: a run under any settings and faults, cut off somewhere and begun again, or not."""
    events, _ = any_run(seed)
    if seed % 2:
        more, _ = any_run(seed + 100)
        first = max(event["k"] for event in events if event["e"] == "open") + 1
        later = [{**event, "t": event["t"] + events[-1]["t"]} for event in more if event["e"] != "restart"]
        events = [*events, *(with_tickets_from(first, event) for event in later)]
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def with_tickets_from(first: int, event: dict[str, Any]) -> dict[str, Any]:
    tickets = event.get("k")
    if tickets is None:
        return event
    return {**event, "k": [first + k for k in tickets] if isinstance(tickets, list | tuple) else first + tickets}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_story_read_bit_by_bit_is_the_story_read_whole(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever was there each time: half a line, less than before, another log."""
    reader, log = StoryReader(tmp_path), tmp_path / "events.jsonl"
    whole = any_log(data.draw(st.integers(0, 9)))
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.integers(0, 5)) == 0:
            whole = any_log(data.draw(st.integers(0, 9)))
        size = data.draw(st.integers(0, len(whole)))
        log.write_bytes(whole[:size])
        is_same = reader.read() == read_story(tmp_path)  # the difference of two stories takes minutes to print
        assert is_same
    log.write_bytes(whole)
    is_same = reader.read() == read_story(tmp_path)
    assert is_same


def test_a_reader_goes_on_at_every_line_and_in_the_middle_of_every_line(tmp_path: Path) -> None:
    whole = any_log(3)[:20_000]
    reader, log = StoryReader(tmp_path), tmp_path / "events.jsonl"
    log.write_bytes(b"")
    with open(log, "ab", buffering=0) as file:
        for line in whole.splitlines(keepends=True):
            for part in (line[: len(line) // 2], line[len(line) // 2 :]):
                file.write(part)
                reader.read()
    assert reader.read() == read_story(tmp_path)


def test_a_reader_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, parsed = tmp_path / "events.jsonl", []
    lines = any_log(0).splitlines(keepends=True)
    parse = story_module.parse_event

    def counted(line: bytes, path: Path, number: int) -> dict[str, Any]:
        parsed.append(number)
        return parse(line, path, number)

    monkeypatch.setattr(story_module, "parse_event", counted)
    reader = StoryReader(tmp_path)
    log.write_bytes(b"".join(lines[:40]))
    reader.read()
    log.write_bytes(b"".join(lines[:50]))
    reader.read()
    assert parsed == list(range(1, 51))
    log.write_bytes(b"".join(lines[:45]))
    reader.read()
    assert parsed[50:] == list(range(1, 46)), "it was cut back: from its beginning"


def test_a_line_that_is_no_event_is_told_again_and_again_until_it_is_gone(tmp_path: Path) -> None:
    log, lines = tmp_path / "events.jsonl", any_log(0).splitlines(keepends=True)
    reader = StoryReader(tmp_path)
    log.write_bytes(b"".join(lines[:20]))
    reader.read()
    log.write_bytes(b"".join([*lines[:20], b"hello\n"]))
    for _ in range(2):
        with pytest.raises(ValueError, match="line 21: not an event"):
            reader.read()
    log.write_bytes(b"".join(lines))
    assert reader.read() == read_story(tmp_path)


# -- the end of a long log --------------------------------------------------------------------------


@pytest.mark.parametrize("late_s", [0.0, 5.0], ids=["at once", "after 5 s"])
def test_a_status_from_the_end_of_a_log_is_the_one_of_all_of_it(tmp_path: Path, late_s: float) -> None:
    options: dict[str, Any] = {"weights": 0.0, "max_lead": 2, "collectors": 2, "evaluate_every": 5}
    alarms = {"idle_learner": 0.0, "queue_empty": 0.0}
    headway.run(
        quick, quick_train, evaluate, updates=120, folder=tmp_path, metrics_interval_s=0, alarms=alarms, **options
    )
    run = folder_of(tmp_path)
    lines = [later(line, "t", late_s) for line in run.events.read_bytes().splitlines()]
    numbers = b"".join(later(line, "time_s", late_s) for line in run.metrics.read_bytes().splitlines())
    looks = [place for place, line in enumerate(lines) if b'"e":"look"' in line]
    for place in [len(lines), *(look + 1 for look in looks[60:110:7])]:
        part = lines[:place]
        run.events.write_bytes(b"".join(part))
        until = json.loads(part[-1])["t"]
        run.metrics.write_bytes(
            b"".join(one for one in numbers.splitlines(keepends=True) if json.loads(one)["time_s"] <= until)
        )
        whole, end = read_whole_status(run), read_end_status(run, tail_bytes=4000)
        assert end is not None
        assert end.headline.partition(" for ")[0] == whole.headline.partition(" for ")[0]  # then comes the clock
        told, known = end.status, whole.status
        assert {role.role: (role.activity, role.words) for role in told.roles} == {
            role.role: (role.activity, role.words) for role in known.roles
        }
        for name in ("done", "total", "version", "lead", "max_staleness", "score", "score_version", "restarts"):
            assert getattr(told, name) == getattr(known, name), name
        assert set(told.alarms) == set(known.alarms)
        assert {reason: count for reason, count in told.drops.items() if count} == known.drops
        for name in ("staleness", "updates_per_s", "rollouts_per_s", "steps_per_s"):
            assert getattr(told, name) == pytest.approx(getattr(known, name), rel=0.02), name


def later(line: bytes, clock: str, seconds: float) -> bytes:
    """A line of a log as if the run had begun so much later."""
    told = json.loads(line)
    return json.dumps({**told, clock: told[clock] + seconds}, separators=(",", ":")).encode() + b"\n"


def quick(weights: float, ticket: Ticket) -> float:
    return 1.0


def quick_train(weights: float, rollouts: list[float]) -> float:
    return weights + 1


def test_a_status_of_a_long_log_reads_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headway.run(quick, quick_train, weights=0.0, updates=20, folder=tmp_path)
    known = read_status(tmp_path).status
    monkeypatch.setattr("headway.tools.report.status.UP_TO_BYTES", 100)
    monkeypatch.setattr("headway.tools.report.status.read_whole_status", None)
    assert read_status(tmp_path).status.done == known.done == 20


def test_a_status_says_that_the_event_log_is_not_written_any_more(tmp_path: Path) -> None:
    headway.run(quick, quick_train, weights=0.0, updates=2, folder=tmp_path)
    assert "has not been written" not in read_status(tmp_path).headline
    written_at = (tmp_path / "metrics.jsonl").stat().st_mtime
    os.utime(tmp_path / "events.jsonl", (written_at - 300, written_at - 300))
    headline = read_status(tmp_path).headline
    assert headline.endswith("; events.jsonl has not been written for 5 min: this is the state before that")


def test_a_status_of_a_long_run_that_was_resumed_reads_its_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for updates, resume in ((20, False), (30, True)):
        headway.run(quick, quick_train, weights=0.0, updates=updates, folder=tmp_path, resume=resume)
    monkeypatch.setattr("headway.tools.report.status.UP_TO_BYTES", 100)
    assert read_status(tmp_path).status.done == 30
    for tail_bytes in range(200, 12_000, 400):  # from within the session that goes on to before it
        told = read_end_status(folder_of(tmp_path), tail_bytes=tail_bytes)
        assert told is not None
        assert told.status.done == 30


# -- what is no run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "is not a run folder: it has no events.jsonl"),
        ('{"t":0,"e":"open","k":0}\n', "is not the log of a run: it begins with 'open'"),
        ('{"t":0,"e":"run"}\n{"t":1,"e":"start"}\n', "line 2: not a 'start' event of a run: it has no 'k'"),
        ('{"t":0,"e":"run"}\n{"t":1,"e":"land","k":7,"v":[0,0],"n":1,"l":1}\n', "line 2: not a 'land' event of a run"),
        ('{"t":0,"e":"run"}\nhello\n{"t":1,"e":"stop"}\n', "line 2: not an event"),
        ("\x00\x01\n", "line 1: not an event"),
    ],
)
def test_what_is_no_run_is_one_clear_line(
    tmp_path: Path, content: str | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_text(content)
    with pytest.raises(ValueError, match="events") as raised:
        read_story(tmp_path)
    assert line in str(raised.value)
    for command in ("status", "trace"):
        assert main([command, str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("headway: ")
        assert said.count("\n") == 1
    assert not (tmp_path / "trace.json").exists()


def test_a_folder_that_is_not_there_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["status", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err == f"headway: no run folder at {tmp_path / 'nothing'}\n"
    assert main(["trace"]) == 2
    assert capsys.readouterr().err == "headway: trace needs the folder of a run: headway trace RUN\n"


def test_an_empty_log_has_an_empty_story(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    story = read_story(tmp_path)
    assert (story.num_events, story.roles, account(story).wall_s) == (0, [], 0.0)


def test_a_hundred_thousand_events_are_read_in_a_few_seconds() -> None:
    events: Events = [{"t": 0.0, "e": "run", "collectors": 1, "lanes": 1, "max_lead": 1}]
    for k in range(14_000):
        t = k / 1000
        events += [
            {"t": t, "e": "open", "k": k},
            {"t": t, "e": "start", "k": k, "c": 0, "v": k},
            {"t": t + 0.0004, "e": "land", "k": k, "v": [k, k], "n": 1, "l": 1.0, "b": 8},
            {"t": t + 0.0004, "e": "update", "u": k + 1, "v": k, "k": [k]},
            {"t": t + 0.0009, "e": "learn", "u": k + 1, "v": k, "k": [k], "d": 0.0005, "m": {}},
            {"t": t + 0.0009, "e": "publish", "v": k + 1},
            {"t": t + 0.0009, "e": "settle", "k": [k]},
        ]
    began = time.process_time()
    story = tell(events)
    account(story)
    assert time.process_time() - began < 5
    assert len(story.updates) == 14_000
