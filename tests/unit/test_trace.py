"""The trace follows the Trace Event format, its slices nest, its arrows begin and end in slices that exist."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.cli import main
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.events import Alarmed
from headway.core.rules import ReplayRatio
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.virtual import Virtual
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.timeline_trace import ROLLOUT, VERSIONS, WEIGHTS, trace_events, trace_text
from headway.tools.simulate.workloads import (
    Constant,
    Exponential,
    Lognormal,
    SimulatedCollector,
    SimulatedEvaluator,
    SimulatedLearner,
    SteadyWorkload,
)

Events = list[dict[str, Any]]
FIELDS = {  # phase -> what the format asks for, besides `ph`, `pid`, `tid` and `name`
    "M": {"args"},
    "X": {"ts", "dur", "cat", "args"},
    "i": {"ts", "s", "cat", "args"},
    "C": {"ts", "args"},
    "s": {"ts", "id", "cat"},
    "f": {"ts", "id", "cat", "bp"},
}


class ReplayTrainer(SimulatedLearner):
    def insert(self, batch: Batch) -> None:
        pass

    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport(samples=4)


class Steady:
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(None, steps=2)


def _steady(number: int) -> Steady:
    return Steady()


def _uneven(number: int) -> SimulatedCollector:
    return SimulatedCollector(Lognormal(1.0, 0.8))


def story_of(**settings: Any) -> Story:
    runtime = Virtual(SteadyWorkload(Lognormal(1.0, 0.8), Exponential(0.5), Constant(3.0), seed=3))
    replays = "replay" in settings
    stations = Stations(
        collector=_steady if replays else _uneven,
        learner=ReplayTrainer if replays else SimulatedLearner,
        evaluator=SimulatedEvaluator,
    )
    recorder = MemoryRecorder()
    options: dict[str, Any] = {"plan": Plan(updates=40, evaluate_every=5), "collectors": 3, **settings}
    runtime.run(Coordinator(stations, Settings(**options), runtime, recorder=recorder).run())
    return tell(recorder.events, recipe="test")


STORIES = {
    "a lead": partial(story_of, max_lead=2),
    "no lead": partial(story_of, max_lead=0),
    "auto": partial(story_of, max_lead="auto", lead_interval=2),
    "batches and lanes": partial(story_of, max_lead=1, tickets_per_batch=4, lanes=2, publish_every=2),
    "replay": partial(
        story_of, max_lead=2, replay=ReplayRatio(2, min_size=4, samples_per_update=4, steps_per_ticket=2)
    ),
    "background": partial(story_of, max_lead=2, evaluate_in_background=True),
}


@pytest.fixture(params=STORIES)
def story(request: pytest.FixtureRequest) -> Story:
    told: Story = STORIES[request.param]()
    return told


def check_schema(trace: dict[str, Any]) -> Events:
    """Strict: what the format asks for, no field it does not know, whole microseconds."""
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: Events = trace["traceEvents"]
    for event in events:
        assert set(event) == {"ph", "pid", "tid", "name"} | FIELDS[event["ph"]], event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        for name in ("ts", "dur", "id"):
            if name in event:
                assert type(event[name]) is int and event[name] >= 0, event
        if event["ph"] == "X":
            assert event["dur"] > 0
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        if event["ph"] == "f":
            assert event["bp"] == "e"
    return events


def slices_of(events: Events) -> dict[int, Events]:
    tracks: dict[int, Events] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
    return {track: sorted(slices, key=lambda each: each["ts"]) for track, slices in tracks.items()}


def slice_at(slices: Events, time_us: int) -> dict[str, Any]:
    """The one slice that lies around a moment."""
    (found,) = [each for each in slices if each["ts"] <= time_us < each["ts"] + each["dur"]]
    return found


def test_the_trace_follows_the_format(story: Story) -> None:
    check_schema(json.loads(trace_text(story)))


def test_every_role_has_a_track_with_a_name_in_order(story: Story) -> None:
    events = list(trace_events(story))
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert [names[track] for track in sorted(names, key=order.__getitem__)] == ["version", *story.roles]
    assert {e["tid"] for e in events if e["ph"] == "X"} <= set(names)


def test_slices_of_one_track_do_not_overlap(story: Story) -> None:
    for slices in slices_of(list(trace_events(story))).values():
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(slices))


def test_every_arrow_begins_and_ends_in_a_slice_and_goes_forward(story: Story) -> None:
    events = list(trace_events(story))
    tracks = slices_of(events)
    ends: dict[int, Events] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
    kinds: Counter[str] = Counter()
    for begin, end in ends.values():
        assert (begin["ph"], end["ph"]) == ("s", "f")
        assert begin["name"] == end["name"] and begin["cat"] == end["cat"]
        assert begin["ts"] <= end["ts"]
        source, target = slice_at(tracks[begin["tid"]], begin["ts"]), slice_at(tracks[end["tid"]], end["ts"])
        if begin["cat"] == ROLLOUT:
            assert source["name"] == "collect"
            assert target["name"] == ("insert" if story.settings["replay"] else "learn")
            assert source["ts"] + source["dur"] <= target["ts"] + 1
        else:
            assert begin["cat"] == WEIGHTS and begin["tid"] == VERSIONS
            assert (target["name"], target["args"]["version"]) == ("collect", source["args"]["version"])
        kinds[begin["cat"]] += 1
    trained = [ticket for ticket in story.tickets.values() if ticket.taken is not None]
    if story.settings["replay"]:  # in virtual time an insert takes none, and has no slice to point at
        assert kinds[ROLLOUT] <= len(trained)
    else:
        assert kinds[ROLLOUT] == len(trained)
    assert kinds[WEIGHTS] == sum(version.first_ticket is not None for version in story.versions) > 3


def test_an_arrow_points_at_the_very_update(story: Story) -> None:
    if story.settings["replay"]:
        return
    events = list(trace_events(story))
    tracks = slices_of(events)
    starts = {e["id"]: e for e in events if e["ph"] == "s" and e["cat"] == ROLLOUT}
    for event in events:
        if event["ph"] == "f" and event["cat"] == ROLLOUT:
            begin = starts[event["id"]]
            ticket = slice_at(tracks[begin["tid"]], begin["ts"])["args"]["ticket"]
            update = slice_at(tracks[event["tid"]], event["ts"])["args"]["update"]
            assert story.tickets[ticket].update == update


def test_versions_queue_and_lead_are_there() -> None:
    story = STORIES["auto"]()
    events = list(trace_events(story))
    versions = [e["name"] for e in events if e["ph"] == "i" and e["cat"] == "publish"]
    assert versions == [f"version {version.number}" for version in story.versions]
    moved = [e for e in events if e["ph"] == "i" and e["cat"] == "lead"]
    assert [e["ts"] for e in moved] == [round(1e6 * at) for at, _ in story.leads[1:]]
    assert moved[0]["name"] == f"lead {story.leads[0][1]:g} to {story.leads[1][1]:g}"
    leads = [e["args"]["lead"] for e in events if e["ph"] == "C" and e["name"] == "lead"]
    assert len(leads) > 1, "the auto lead moved, and the counter shows it"
    assert leads == [lead for _, lead in story.leads]
    tickets = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "tickets"]
    assert tickets[-1] == {"open": 0, "in flight": 0, "ready": 0, "taken": 0}
    scores = [e["args"]["score"] for e in events if e["ph"] == "X" and e["name"] == "evaluate"]
    assert len(scores) == 8


def test_what_happened_at_one_moment_is_an_instant_on_the_track_of_whom_it_happened_to() -> None:
    plain = STORIES["batches and lanes"]()
    plain.alarms = [Alarmed(2.0, "error_rate", True, 0.3, 0.1)]
    plain.restarts = [(3.0, "collector-1", "it was late")]
    plain.publish_retries = [(4.0, "learner", 2, "no answer")]
    failed = plain.evaluations[0]
    failed.value, failed.error = None, "evaluate returned nan"
    events = check_schema(json.loads(trace_text(plain)))
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {e["cat"]: e for e in events if e["ph"] == "i" and e["cat"] != "publish"}
    assert set(found) == {"alarm", "restart", "publish retry", "failed evaluation"}
    assert (found["alarm"]["ts"], found["alarm"]["s"]) == (2_000_000, "p"), "the whole run"
    assert found["alarm"]["args"]["what"].startswith("ALARM: error_rate is 0.3, above 0.1")
    assert (tracks[found["restart"]["tid"]], found["restart"]["s"]) == ("collector-1/0", "t")
    assert found["restart"]["args"]["what"] == "collector-1 is built anew: it was late"
    assert tracks[found["publish retry"]["tid"]] == "learner"
    assert tracks[found["failed evaluation"]["tid"]] == "evaluator"
    assert "evaluate returned nan" in found["failed evaluation"]["args"]["what"]


# -- a real run -------------------------------------------------------------------------------------


def collect(weights: float, ticket: Ticket) -> float:
    time.sleep(0.002)
    return 1.0


def train(weights: float, rollouts: list[float]) -> float:
    time.sleep(0.003)
    return weights + 1


def fail(weights: float, rollouts: list[float]) -> float:
    raise RuntimeError("no gradient")


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_a_run_leaves_a_trace_and_the_command_writes_it_again(
    tmp_path: Path, runtime: str, capsys: pytest.CaptureFixture[str]
) -> None:
    headway.run(collect, train, weights=0.0, updates=20, max_lead=2, folder=tmp_path, runtime=runtime)
    first = (tmp_path / "trace.json").read_text()
    events = check_schema(json.loads(first))
    tracks = slices_of(events)
    for event in events:
        if event["ph"] in "sf":
            slice_at(tracks[event["tid"]], event["ts"])
    assert sum(e["ph"] == "s" and e["cat"] == ROLLOUT for e in events) == 20
    (tmp_path / "trace.json").unlink()
    assert main(["trace", str(tmp_path)]) == 0
    assert (tmp_path / "trace.json").read_text() == first
    assert "ui.perfetto.dev" in capsys.readouterr().out
    elsewhere = tmp_path / "elsewhere.json"
    assert main(["trace", str(tmp_path), "--out", str(elsewhere)]) == 0
    assert elsewhere.read_text() == first
    assert main(["trace", str(tmp_path), "--output", "x"]) == 2
    assert "unknown option 'output'; did you mean 'out'?" in capsys.readouterr().err


def test_a_run_that_fails_leaves_its_trace(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no gradient"):
        headway.run(collect, fail, weights=0.0, updates=20, folder=tmp_path)
    check_schema(json.loads((tmp_path / "trace.json").read_text()))
