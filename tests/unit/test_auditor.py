"""The auditor has teeth: a log that is changed in any way that breaks a rule is caught, by the name of that rule."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from virtual_runs import record

import headway.testing.auditor as auditor_module
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Retries
from headway.core.rules import ReplayRatio
from headway.core.rules_order import READY, OnStale, window
from headway.runtimes.virtual import Workload
from headway.testing import (
    audit_admission,
    audit_evaluations,
    audit_scaling,
    audit_terms,
    audit_versions,
    line_auditor,
)
from headway.testing.auditor import RULES, Terms, audit
from headway.tools.simulate.workloads import (
    Constant,
    Exponential,
    FaultyWorkload,
    Lognormal,
    SimulatedCollector,
    SimulatedReplayLearner,
    SteadyWorkload,
)

Event = dict[str, Any]
UPDATES = 24


@cache
def log(name: str) -> tuple[tuple[Event, ...], RunResult]:
    """A few runs, each with something of its own."""
    uneven = Lognormal(1.0, 1.5)
    faulty = FaultyWorkload(Lognormal(1.0, 1.0), Constant(0.3), seed=5, crash=0.1, error=0.1)
    ratio = ReplayRatio(2, min_size=3, samples_per_update=3, steps_per_ticket=1)
    replayed = Stations(lambda number: SimulatedCollector(uneven), lambda: SimulatedReplayLearner(3))
    runs: dict[str, tuple[dict[str, Any], Workload | None, Stations | None]] = {
        "free": ({"dispatch": "free", "evaluate_every": 2, "tickets_per_batch": 2, "publish_every": 2}, None, None),
        "pinned": ({"evaluate_every": 3, "tickets_per_batch": 2}, None, None),
        "window": ({"order": window(3)}, None, None),
        "ready": ({"order": READY}, None, None),
        "drops": ({"order": READY, "max_staleness": 1, "on_stale": OnStale.DROP}, None, None),
        "requeues": ({"order": READY, "max_staleness": 1, "on_stale": OnStale.REQUEUE}, None, None),
        "expires": ({"order": READY, "max_age_s": 1.0, "on_stale": OnStale.DROP}, None, None),
        "lanes": ({"collectors": 1, "lanes": 3, "dispatch": "free"}, None, None),
        "faulty": ({"dispatch": "free", "retries": Retries(attempts_on_error=9, max_restarts=99)}, faulty, None),
        "background": ({"dispatch": "free", "evaluate_every": 1, "evaluate_in_background": True}, None, None),
        "replay": ({"replay": ratio, "dispatch": "free"}, None, replayed),
        "pinned replay": ({"replay": ratio}, None, replayed),
        "small": ({"queue_capacity": 2, "dispatch": "free"}, None, None),
        "scaled": ({"dispatch": "free", "scalings": [(4.0, 5), (8.0, 2)]}, None, None),
        "pinned scaled": ({"scalings": [(4.0, 5), (8.0, 2)]}, None, None),
        "auto": ({"max_lead": "auto", "lead_interval": 1}, None, None),
    }
    more, workload, stations = runs[name]
    settings: dict[str, Any] = {"max_lead": 4, "collectors": 3, **more}
    workload = workload or SteadyWorkload(uneven, Constant(0.4), Exponential(2.0), seed=1)
    events, result = record(uneven, workload=workload, stations=stations, updates=UPDATES, **settings)
    return tuple(events), result


def counts_of(result: RunResult) -> dict[str, Any]:
    names = ("version", "updates", "stop_reason", "restarts", "evaluations_skipped", "lead")
    scores = [(score.version, score.value) for score in result.scores]
    return {**asdict(result.ledger), **{name: getattr(result, name) for name in names}, "scores": scores}


LOGS = [
    "free", "pinned", "window", "ready", "drops", "requeues", "expires", "lanes", "faulty", "background", "replay",
    "pinned replay", "small", "auto", "scaled", "pinned scaled",
]  # fmt: skip
TERMS = Terms(updates=UPDATES, evaluate_first=False, may_lose_payloads=False)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_nobody_touched_breaks_no_rule(name: str) -> None:
    events, result = log(name)
    assert audit(events, TERMS, result=counts_of(result)) == []
    assert audit(events) == []


def test_a_log_from_before_updates_said_how_much_they_drew_breaks_no_rule() -> None:
    events = [{name: value for name, value in event.items() if name != "n"} for event in log("replay")[0]]
    events = [{**event, "n": 1} if event["e"] == "land" else event for event in events]
    assert audit(events, TERMS) == []


# -- changes ------------------------------------------------------------------------------------------


def places(events: list[Event], kind: str) -> list[int]:
    return [at for at, event in enumerate(events) if event["e"] == kind]


def without(kind: str, which: int = -1) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        del events[places(events, kind)[which]]

    change.__name__ = f"without {kind} {which}"
    return change


def again(kind: str, which: int = -1) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        at = places(events, kind)[which]
        events.insert(at + 1, copy.deepcopy(events[at]))

    change.__name__ = f"{kind} {which} again"
    return change


def changed(kind: str, which: int = -1, **fields: Callable[[Any], Any]) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        event = events[places(events, kind)[which]]
        event.update({name: new(event[name]) for name, new in fields.items()})

    change.__name__ = f"{kind} {which} with another {', '.join(fields)}"
    return change


def told(**settings: Any) -> Callable[[list[Event]], None]:
    """The same log, of a run that was set differently."""

    def change(events: list[Event]) -> None:
        events[0].update(settings)

    change.__name__ = f"told {settings}"
    return change


def swapped_batches(events: list[Event]) -> None:
    """Two updates train on each other's tickets."""
    updates, learns = places(events, "update"), places(events, "learn")
    for ats in (updates, learns):
        first, second = events[ats[8]], events[ats[9]]
        first["k"], second["k"] = second["k"], first["k"]


def trained_again(events: list[Event]) -> None:
    """An update trains on what the first one had."""
    for kind in ("update", "learn"):
        ats = places(events, kind)
        events[ats[-1]]["k"] = events[ats[0]]["k"]


def short_batch(events: list[Event]) -> None:
    for kind in ("update", "learn"):
        event = events[places(events, kind)[4]]
        event["k"] = event["k"][:-1]


def settled_before_published(events: list[Event]) -> None:
    at = places(events, "settle")[3]
    publish = max(place for place in places(events, "publish") if place < at)
    events.insert(publish, events.pop(at))


def on_an_occupied_seat(events: list[Event]) -> None:
    first, second = places(events, "start")[:2]
    events[second]["c"] = events[first]["c"]


def without_the_last_evaluation(events: list[Event]) -> None:
    del events[places(events, "score")[-1]]
    del events[places(events, "evaluate")[-1]]


def after_the_end(events: list[Event]) -> None:
    events.append({"t": events[-1]["t"], "e": "publish", "v": 99})


def earlier(value: float) -> float:
    return value - 1


def later(value: float) -> float:
    return value + 1


HELD = Terms(updates=UPDATES, holds_weights=True, may_lose_payloads=False)
CHANGES: list[tuple[str, str, Callable[[list[Event]], None]]] = [
    ("log", "free", without("run", 0)),
    ("log", "free", after_the_end),
    ("log", "free", changed("learn", 5, t=lambda t: t - 5)),
    ("log", "free", without("end")),
    ("life", "free", without("land", 5)),
    ("life", "free", without("open", 5)),
    ("life", "free", again("open", 5)),
    ("life", "free", without("start", 5)),
    ("life", "ready", again("land", 5)),
    ("life", "requeues", again("requeue", 0)),
    ("settles once", "free", again("settle", 2)),
    ("settles once", "drops", again("drop", 0)),
    ("trained once", "free", trained_again),
    ("slots", "free", told(max_lead=3.5)),
    ("slots", "auto", told(lead_limit=1)),
    ("room", "small", told(queue_capacity=1)),
    ("room", "free", told(queue_bytes_limit=1)),
    ("budget", "free", lambda events: None),
    ("free slot", "free", told(max_lead=5)),
    ("free slot", "small", told(queue_capacity=3)),
    ("newest snapshot", "free", changed("start", v=earlier)),
    ("pinned birth", "pinned", changed("start", v=earlier)),
    ("pinned birth", "pinned", changed("start", 9, c=lambda seat: (seat + 1) % 3)),
    ("one ticket a seat", "free", on_an_occupied_seat),
    ("one ticket a seat", "free", changed("start", 4, c=lambda seat: 77)),
    ("one version a collector", "lanes", lambda events: None),
    ("scaling", "scaled", changed("scale", 0, before=later)),
    ("scaling", "scaled", changed("scale", 0, collectors=lambda count: count - 1)),
    ("scaling", "scaled", without("scale", 1)),
    ("scaling", "scaled", again("leave", 0)),
    ("scaling", "pinned scaled", changed("scale", 1, k=lambda ticket: ticket - 6)),
    ("pinned birth", "pinned scaled", changed("scale", 1, k=later)),
    ("span", "free", changed("land", v=lambda span: [span[0] - 1, span[1]])),
    ("span", "free", changed("land", v=lambda span: [span[0], span[1] + 1])),
    ("attempts", "faulty", changed("reissue", 1, a=lambda a: a + 2)),
    ("staleness", "free", told(max_staleness=0, on_stale="drop")),
    ("staleness", "drops", told(max_staleness=0)),
    ("staleness", "ready", told(order="window(2)")),
    ("age", "free", told(max_age_s=0.1, on_stale="drop")),
    ("age", "expires", told(max_age_s=0.5)),
    ("expiry", "drops", told(max_staleness=2)),
    ("expiry", "drops", told(on_stale="requeue")),
    ("expiry", "expires", told(max_age_s=3.0)),
    ("expiry", "requeues", changed("requeue", 0, reason=lambda reason: "expired")),
    ("order", "pinned", swapped_batches),
    ("order", "free", swapped_batches),
    ("order", "window", told(order="window(2)")),
    ("order", "ready", told(order="oldest")),
    ("order", "window", told(order="ready")),
    ("order", "pinned replay", changed("insert", 3, k=lambda k: [k[0] + 1])),
    ("batch", "free", short_batch),
    ("batch", "free", changed("update", v=earlier)),
    ("updates", "free", without("learn", 4)),
    ("updates", "free", without("update", 4)),
    ("updates", "free", changed("update", 4, u=later)),
    ("updates", "free", changed("learn", 4, u=later)),
    ("versions", "free", without("publish", 3)),
    ("versions", "free", again("publish", 3)),
    ("versions", "free", changed("publish", 3, v=later)),
    ("versions", "free", told(publish_every=3)),
    ("settles when published", "free", without("settle", 3)),
    ("settles when published", "free", settled_before_published),
    ("settles when published", "free", changed("settle", 3, k=lambda k: k[:-1])),
    ("replay ratio", "replay", lambda events: events[0]["replay"].update(samples_per_insert=1.9)),
    ("replay ratio", "replay", lambda events: events[0]["replay"].update(min_size=4)),
    ("replay ratio", "pinned replay", lambda events: events[0]["replay"].update(samples_per_insert=2.1)),
    ("replay ratio", "pinned replay", changed("learn", 3, n=lambda n: n + 3)),
    ("replay ratio", "pinned replay", changed("learn", 3, n=lambda n: n - 3)),
    ("evaluations", "free", without("evaluate", 1)),
    ("evaluations", "free", again("evaluate", 1)),
    ("evaluations", "free", without("score", 1)),
    ("evaluations", "free", changed("evaluate", 1, v=earlier)),
    ("evaluations", "background", without("skip_evaluation", 0)),
    ("pause", "background", told(evaluate_in_background=False)),
    ("last evaluation", "free", without_the_last_evaluation),
    ("nothing left behind", "free", without("settle")),
    ("counts", "free", changed("end", returned=later)),
    ("counts", "drops", changed("drop", 0, reason=lambda reason: "filtered")),
    ("counts", "free", changed("land", 3, n=later)),
]


@pytest.mark.parametrize(
    ("rule", "name", "change"), CHANGES, ids=[f"{rule}, {name}, {change.__name__}" for rule, name, change in CHANGES]
)
def test_a_changed_log_is_caught_by_the_rule_it_breaks(
    rule: str, name: str, change: Callable[[list[Event]], None]
) -> None:
    events, result = log(name)
    mutant = copy.deepcopy(list(events))
    change(mutant)
    terms = {"budget": Terms(updates=UPDATES - 1), "one version a collector": HELD}.get(rule, TERMS)
    if not mutant or mutant[0]["e"] != "run":
        violations = audit([mutant[0]], terms)
    else:
        violations = audit(mutant, terms, result=counts_of(result))
    assert rule in {violation.rule for violation in violations}, violations[:3]


def test_every_rule_is_seen_to_catch_something() -> None:
    assert {rule for rule, _, _ in CHANGES} == set(RULES)


@pytest.mark.parametrize("name", sorted(counts_of(log("faulty")[1])))
def test_every_count_of_a_run_is_compared(name: str) -> None:
    events, result = log("faulty")
    counts = counts_of(result)
    value = counts[name]
    wrong: Any = value + 1 if isinstance(value, int | float) else "wrong" if isinstance(value, str) else [99]
    if isinstance(value, dict):
        wrong = {**value, 99: 1}
    violations = audit(events, TERMS, result={**counts, name: wrong})
    assert [violation.rule for violation in violations] == ["counts"]
    assert violations[0].what.startswith(name)


# -- several sessions ---------------------------------------------------------------------------------


@pytest.fixture
def resumed(tmp_path: Path) -> list[Event]:
    """The log of a run that was resumed."""
    store = CheckpointStore(tmp_path, keep=9)
    uneven = Lognormal(1.0, 1.0)
    settings: dict[str, Any] = {"max_lead": 4, "dispatch": "free", "collectors": 3}
    first, _ = record(uneven, 0.2, updates=16, plan={"save_every": 3}, checkpoints=store, **settings)
    state = store.load(store.all()[0])  # of version 3
    again, _ = record(uneven, 0.2, updates=16, resume=state, **settings)
    return [*first[: state.events_position], *again]


def test_a_resumed_log_is_one_log(resumed: list[Event]) -> None:
    assert [event["e"] for event in resumed].count("run") == 2
    assert audit(resumed, Terms(updates=16)) == []


def test_what_was_in_flight_may_not_land_without_flying_again(resumed: list[Event]) -> None:
    at = places(resumed, "resume")[0]
    landed = {event["k"] for event in resumed[:at] if event["e"] == "land"}
    flown = {event["k"] for event in resumed[:at] if event["e"] == "start"} - landed
    del resumed[next(i for i in places(resumed, "start") if i > at and resumed[i]["k"] in flown)]
    assert {violation.rule for violation in audit(resumed)} >= {"life"}


def test_what_was_trained_on_may_not_be_trained_on_after_a_resume(resumed: list[Event]) -> None:
    at = places(resumed, "resume")[0]
    trained = resumed[places(resumed, "learn")[0]]["k"]
    for kind in ("update", "learn"):
        resumed[next(i for i in places(resumed, kind) if i > at)]["k"] = trained
    assert {violation.rule for violation in audit(resumed)} >= {"trained once"}


def test_a_session_begins_where_the_log_before_it_ends(resumed: list[Event]) -> None:
    resumed[places(resumed, "resume")[0]]["v"] += 1
    assert {violation.rule for violation in audit(resumed)} >= {"versions"}


# -- independence -------------------------------------------------------------------------------------


def test_the_auditor_shares_no_code_with_what_it_audits() -> None:
    imported = set()
    checks = (audit_admission, audit_evaluations, audit_scaling, audit_terms, audit_versions)
    own = (auditor_module, line_auditor, *checks)
    for module in own:
        tree = ast.parse(Path(str(module.__file__)).read_text())
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = imported - {module.__name__ for module in own}
    known = {"__future__", "math", "collections", "collections.abc", "dataclasses", "typing"}
    events = {"headway.core", "headway.core.events", "headway.core.events_written_events"}
    assert others - events == known, "besides the types of events"


def test_a_violation_says_where_it_is() -> None:
    events, _ = log("free")
    mutant = list(copy.deepcopy(events))
    del mutant[places(mutant, "land")[3]]
    first = audit(mutant)[0]
    assert str(first).startswith(f"{first.rule}: at event {first.at}, ")
