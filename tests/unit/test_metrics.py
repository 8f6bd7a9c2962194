"""Metrics are derived from events: what they add up to, at which moment, under which names."""

from __future__ import annotations

import itertools
import math
import pickle
import random
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.coordinator.activities import WAITS, WAITS_FOR
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.events_written_events import read_event
from headway.core.rules import ReplayRatio
from headway.core.rules_order import OLDEST, READY, OnStale, window
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.runs.event_log import read_events
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.runs.metrics import (
    ALIASES,
    MEANINGS,
    Metrics,
    Moment,
    Point,
    as_number,
    load_metrics,
    metrics_of,
    with_aliases,
)
from headway.runtimes.virtual import Virtual
from headway.testing.replay_fakes import toy_reanalysis_stations
from headway.tools.simulate.workloads import (
    Constant,
    Exponential,
    FaultyWorkload,
    Lognormal,
    SimulatedLearner,
    SteadyWorkload,
)

DOCS = Path(__file__).parents[2] / "docs"


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.is_closed = False

    def write(self, moment: Moment, values: Any) -> None:
        self.points.append(Point(moment, dict(values)))

    def close(self) -> None:
        self.is_closed = True

    @property
    def looks(self) -> list[Point]:
        return [point for point in self.points if "run/lead" in point.values]

    @property
    def scores(self) -> list[Point]:
        return [point for point in self.points if "evaluate/score" in point.values]


# -- by hand ----------------------------------------------------------------------------------------


def look(time_s: float, **spent: dict[str, float]) -> tuple[float, str, dict[str, Any]]:
    return time_s, "look", {"lead": 1.0, "spent": spent, "rss": 3 * 2**20}


def told(*events: tuple[float, str, dict[str, Any]]) -> list[Point]:
    """The points a sequence of events gives."""
    return list(metrics_of({"t": time_s, "e": kind, **fields} for time_s, kind, fields in events))


RUN = (0.0, "run", {"publish_every": 1})


def life(index: int, *, start: float, land: float, born: int, steps: int = 4, length: float = 4.0) -> Any:
    return [
        (start, "open", {"k": index}),
        (start, "start", {"k": index, "c": 0, "v": born}),
        (land, "land", {"k": index, "v": [born, born], "n": steps, "l": length}),
    ]


def learned(time_s: float, update: int, *indices: int, seconds: float = 0.5, **metrics: Any) -> Any:
    return [
        (time_s, "learn", {"u": update, "v": update - 1, "k": list(indices), "d": seconds, "m": metrics}),
        (time_s, "publish", {"v": update}),
        (time_s, "settle", {"k": list(indices)}),
    ]


def test_cores_in_use_are_processor_time_since_the_look_before() -> None:
    looks = [(time_s, cpu_s, look(time_s)) for time_s, cpu_s in ((2.0, 3.0), (4.0, 4.0), (6.0, 1.5))]
    points = told(RUN, *((at, kind, {**fields, "cpu": cpu_s}) for at, cpu_s, (_, kind, fields) in looks))
    # the last: a role with a process of its own was replaced, and its time is gone
    assert [point.values["run/cpu_cores"] for point in points] == [1.5, 0.5, 0.0]
    (point,) = told(RUN, look(1.0))
    assert "run/cpu_cores" not in point.values  # a log of before


def test_a_point_says_what_happened_since_the_look_before() -> None:
    (point,) = told(
        RUN,
        *life(0, start=0.0, land=1.0, born=0, steps=4),
        *life(1, start=0.0, land=2.0, born=0, steps=6),
        *learned(2.5, 1, 0, loss=2.0),
        *learned(3.0, 2, 1, loss=4.0, seconds=0.3),
        look(4.0),
    )
    values = point.values
    assert point.moment == Moment(4.0, 2, 2, env_steps=10)
    assert values["throughput/updates_per_s"] == 2 / 4
    assert values["throughput/rollouts_per_s"] == 2 / 4
    assert values["throughput/steps_per_s"] == 10 / 4
    assert values["time/update_s"] == pytest.approx((0.5 + 0.3) / 2)
    assert values["time/collect_s"] == (1.0 + 2.0) / 2
    assert values["learn/loss"] == 3.0
    assert (values["staleness/mean"], values["staleness/max"], values["staleness/nonzero"]) == (0.5, 1, 0.5)
    assert (values["run/updates"], values["run/version"], values["run/steps"]) == (2, 2, 10)
    assert (values["run/lead"], values["run/memory_mb"]) == (1, 3)


def test_the_next_point_starts_again_while_totals_go_on() -> None:
    events = [RUN, *life(0, start=0.0, land=1.0, born=0), *learned(1.0, 1, 0, loss=1.0), look(2.0)]
    _, second = told(*events, *life(1, start=2.0, land=3.0, born=1), look(4.0))
    assert second.values["throughput/updates_per_s"] == 0
    assert second.values["throughput/rollouts_per_s"] == 1 / 2
    assert second.values["tickets/landed"] == 2
    assert "learn/loss" not in second.values
    assert "staleness/mean" not in second.values, "nothing was taken"


def test_every_live_ticket_is_in_one_queue() -> None:
    (point,) = told(
        RUN,
        *[(0.0, "open", {"k": index}) for index in range(5)],
        *[(0.0, "start", {"k": index, "c": 0, "v": 0}) for index in range(1, 5)],
        *[(1.0, "land", {"k": index, "v": [0, 0], "n": 1, "l": 1.0}) for index in (2, 3, 4)],
        (1.0, "learn", {"u": 1, "v": 0, "k": [4], "d": 0.1, "m": {}}),
        (1.0, "drop", {"k": 3, "reason": "filtered", "why": ""}),
        look(2.0),
    )
    queues = {name: point.values[name] for name in ("queue/open", "queue/in_flight", "queue/ready", "queue/taken")}
    assert queues == {"queue/open": 1, "queue/in_flight": 1, "queue/ready": 1, "queue/taken": 1}
    assert point.values["drops/filtered"] == 1


def test_what_sends_a_ticket_back_is_counted_and_takes_its_length_along() -> None:
    (point,) = told(
        RUN,
        *life(0, start=0.0, land=1.0, born=0, length=100.0),
        (1.0, "requeue", {"k": 0}),
        *life(1, start=0.0, land=1.0, born=0, length=100.0),
        (1.0, "lose", {"k": 1, "why": "the node is gone"}),
        (1.0, "open", {"k": 2}),
        (1.0, "start", {"k": 2, "c": 0, "v": 0}),
        (1.0, "reissue", {"k": 2, "c": 0, "a": 1, "why": "died"}),
        *life(3, start=1.0, land=2.0, born=0, length=10.0),
        *life(4, start=1.0, land=2.0, born=0, length=30.0),
        *learned(2.0, 1, 3),
        look(3.0),
    )
    values = point.values
    assert [values[f"tickets/{name}"] for name in ("requeued", "lost", "reissued", "landed")] == [1, 1, 1, 4]
    assert values["length/bias"] == 10 / 20 - 1
    assert (values["queue/open"], values["queue/ready"]) == (3, 1)


def test_shares_of_the_time_are_those_since_the_look_before() -> None:
    before = {"learn": 1.0, "data": 1.0, "between": 0.0}
    after = {"learn": 2.0, "data": 1.5, "landing": 0.25, "between": 0.25}
    collectors = {"collect": 6.0, "slot": 1.0, "pacing": 1.0}
    _, point = told(RUN, look(2.0, learner=before), look(4.0, learner=after, collector=collectors, stranger={"x": 1.0}))
    shares = {name: value for name, value in point.values.items() if name.startswith(("busy/", "waiting/"))}
    assert shares == {
        "busy/learner": pytest.approx(1.0 / 2.0),
        "waiting/learner": pytest.approx(0.75 / 2.0),
        "waiting/learner_for_data": pytest.approx(0.5 / 2.0),
        "waiting/learner_for_evaluation": pytest.approx(0.25 / 2.0),
        "busy/collectors": 6 / 8,
        "waiting/collectors": 2 / 8,
        "waiting/collectors_for_slot": 1 / 8,
        "waiting/collectors_for_weights": 0,
        "waiting/collectors_for_evaluation": 0,
    }


def test_a_score_stands_where_its_version_was_made_however_late_it_comes() -> None:
    (point,) = told(
        (0.0, "run", {"publish_every": 3}),
        *[(float(u), "learn", {"u": u, "v": (u - 1) // 3, "k": [], "d": 0.1, "m": {}}) for u in range(1, 10)],
        (9.0, "evaluate", {"v": 2}),
        (9.5, "score", {"v": 2, "value": 1.5, "m": {"std": 0.5, "note": "text"}, "error": None}),
    )
    assert point.moment == Moment(9.5, update=6, version=2)
    values = {"evaluate/score": 1.5, "evaluate/version": 2, "evaluate/std": 0.5, "time/evaluate_s": 0.5}
    assert point.values == values


def test_the_environment_steps_behind_an_update_are_those_trained_on_and_those_thrown_away() -> None:
    points = told(
        RUN,
        *life(0, start=0.0, land=1.0, born=0, steps=10),
        *life(1, start=0.0, land=1.0, born=0, steps=7),
        *life(2, start=0.0, land=1.0, born=0, steps=5),
        *learned(2.0, 1, 0),
        look(2.5),  # two rollouts wait: they have taught nothing yet
        (3.0, "drop", {"k": 1, "reason": "stale", "why": ""}),
        look(3.5),
        (4.0, "requeue", {"k": 2, "reason": "stale"}),  # collected again: both times count
        (4.0, "start", {"k": 2, "c": 0, "v": 1}),
        (5.0, "land", {"k": 2, "v": [1, 1], "n": 6, "l": 6.0}),
        *learned(6.0, 2, 2),
        look(7.0),
    )
    assert [point.moment.env_steps for point in points] == [10, 17, 28]
    assert [point.values["run/env_steps"] for point in points] == [10, 17, 28]
    assert [point.values["run/steps"] for point in points] == [10, 10, 16], "those that were trained on"


def test_a_flight_that_ends_in_a_drop_costs_no_steps_that_are_known() -> None:
    points = told(
        RUN,
        (0.0, "open", {"k": 0}),
        (0.0, "start", {"k": 0, "c": 0, "v": 0}),
        (1.0, "drop", {"k": 0, "reason": "failed", "why": ""}),
        look(2.0),
    )
    assert points[-1].moment.env_steps == 0


def test_a_late_score_stands_at_the_environment_steps_behind_its_version() -> None:
    score = told(
        RUN,
        *life(0, start=0.0, land=1.0, born=0, steps=10),
        *life(1, start=0.0, land=1.0, born=0, steps=20),
        *learned(1.0, 1, 0),
        (1.0, "evaluate", {"v": 1}),
        *learned(2.0, 2, 1),
        (3.0, "score", {"v": 1, "value": 0.5, "m": {}, "error": None}),
    )[-1]
    assert (score.moment.version, score.moment.env_steps) == (1, 10)


def test_metrics_in_a_checkpoint_of_an_earlier_release_are_left_to_the_log() -> None:
    metrics = Metrics()
    assert load_metrics(pickle.dumps(metrics)) is not None
    del metrics._history.first.steps
    assert load_metrics(pickle.dumps(metrics)) is None


def test_the_score_of_a_last_short_version_stands_at_the_last_update() -> None:
    updates = [(1.0, "learn", {"u": u, "v": 0, "k": [], "d": 0.1, "m": {}}) for u in (1, 2)]
    score = (2.0, "score", {"v": 1, "value": 0.0, "m": {}, "error": None})
    assert told((0.0, "run", {"publish_every": 5}), *updates, score)[0].moment.update == 2


def test_a_failed_evaluation_is_counted_and_gives_no_point() -> None:
    failed = (1.0, "score", {"v": 1, "value": None, "m": {}, "error": "late"})
    (point,) = told(RUN, failed, (1.0, "skip_evaluation", {"v": 2}), look(2.0))
    assert (point.values["run/evaluations_failed"], point.values["run/evaluations_skipped"]) == (1, 1)


def test_a_resumed_run_says_where_it_goes_on_and_flies_again_what_was_in_flight() -> None:
    resumed, point = told(
        RUN,
        *life(0, start=0.0, land=1.0, born=0),
        *learned(1.0, 1, 0),
        (1.0, "open", {"k": 1}),
        (1.0, "start", {"k": 1, "c": 0, "v": 1}),
        (5.0, "run", {"publish_every": 1}),
        (5.0, "resume", {"v": 1, "updates": 1}),
        look(6.0),
    )
    assert (resumed.moment, resumed.values) == (Moment(5.0, 1, 1, 4), {"run/updates": 1.0, "run/version": 1.0})
    assert (point.values["queue/open"], point.values["queue/in_flight"]) == (1, 0)
    assert point.values["throughput/rollouts_per_s"] == 0, "what came in before belongs to the session before"


def test_what_the_learner_reports_is_a_number_or_left_out() -> None:
    values = [1, 2.5, "3.5", True, torch.tensor(4.0), "text", None, [1.0], torch.tensor([1.0, 2.0]), 10**400]
    assert [as_number(value) for value in values] == [1, 2.5, 3.5, 1, 4, None, None, None, None, None]
    (point,) = told(RUN, *learned(1.0, 1, loss=math.nan, text="no", norm="1.5"), look(2.0))
    assert math.isnan(point.values["learn/loss"])
    assert "learn/text" not in point.values
    assert point.values["learn/norm"] == 1.5


def test_kinds_of_events_nobody_knows_change_nothing() -> None:
    assert Metrics().apply(read_event({"t": 0.0, "e": "flux", "k": 1})) is None


# -- names known from elsewhere ---------------------------------------------------------------------


def test_an_alias_is_the_sum_of_ours() -> None:
    drops = {"drops/stale": 2.0, "drops/expired": 0.0, "drops/filtered": 3.0, "drops/failed": 4.0}
    values = with_aliases({**drops, "run/updates": 7.0})
    assert values["dropped_samples"] == 9
    assert values["global_steps"] == 7
    assert "avg_sample_age" not in values, "there is nothing to compute it from"


def test_every_alias_is_made_of_names_that_exist_and_hides_none() -> None:
    for alias, names in ALIASES.items():
        assert set(names) <= set(MEANINGS)
        assert alias not in MEANINGS


# -- against the ledger, in virtual time ------------------------------------------------------------


class Engine:
    """Uneven rollouts, some of them without signal."""

    def __init__(self, filters: bool, number: int) -> None:
        self._filters = filters

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        filtered = self._filters and ticket.seed % 5 == 0
        return Rollout(None, steps=1 + ticket.seed % 7, length=1.0 + ticket.seed % 11, filtered=filtered)


class Trainer(SimulatedLearner):
    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport({"tickets": float(len(batch.rollouts))})


class ReplayTrainer(SimulatedLearner):
    def insert(self, batch: Batch) -> None:
        pass

    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport({"tickets": 0.0}, samples=3)


class Store:
    """A replay with a role of its own."""

    def insert(self, batch: Batch) -> None:
        pass

    def sample(self, version: int) -> Rollout:
        return Rollout(None, steps=3)

    def update(self, feedback: Any) -> None:
        pass

    def statistics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


class Judge:
    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        if seed % 5 == 0:
            raise RuntimeError("the arena is closed")
        return Score(snapshot.version, float(seed % 100), {"seed": float(seed % 7)})


def any_settings(rng: random.Random) -> Settings:
    """Any combination that the constructor accepts."""
    while True:
        replays = rng.random() < 0.2
        try:
            return Settings(
                plan=Plan(updates=rng.randint(4, 30), evaluate_every=rng.choice([0, 2, 3])),
                collectors=rng.randint(1, 4),
                max_lead=rng.choice([0, 0.5, 1, 2, 4, "auto"]),
                order=rng.choice([OLDEST, window(3), READY]),
                max_staleness=rng.choice([None, 0, 1, 3]),
                on_stale=rng.choice(list(OnStale)),
                dispatch=rng.choice([None, "free"]),
                tickets_per_batch=rng.randint(1, 3),
                publish_every=rng.randint(1, 3),
                pacing_s=rng.choice([0.0, 0.4]),
                evaluate_in_background=rng.random() < 0.5,
                replay=ReplayRatio(3, min_size=4, samples_per_update=3, steps_per_ticket=1) if replays else None,
                seed=rng.randrange(1000),
                deadlines=Deadlines(collect_s=30, learn_s=60, evaluate_s=60, publish_s=10, start_s=20),
                retries=Retries(
                    attempts_on_error=3, attempts_on_loss=3, on_failure=rng.choice(["stop", "drop"]), max_restarts=60
                ),
            )
        except ValueError:
            continue


def faulty_run(seed: int, folder: RunFolder | None = None) -> tuple[Kept, RunResult | RunFailed]:
    rng = random.Random(seed)
    settings = any_settings(rng)
    chances = {name: rng.choice([0, 0.08]) for name in ("crash", "hang", "error", "slow", "lose")}
    workload = FaultyWorkload(Lognormal(1.0, 1.0), Exponential(0.5), Exponential(3.0), seed=seed, **chances)
    is_shared = settings.replay is not None and rng.random() < 0.5
    stations = Stations(
        collector=partial(Engine, settings.replay is None and rng.random() < 0.3),
        learner=ReplayTrainer if settings.replay and not is_shared else Trainer,
        evaluator=Judge,
        replay=Store if is_shared else None,
    )
    kept = Kept()
    options: dict[str, Any] = {"sinks": [kept], "metrics_interval_s": rng.choice([0.0, 1.0, 5.0]), "folder": folder}
    try:
        return kept, launch(stations, settings, runtime=Virtual(workload), **options)
    except RunFailed as failure:
        return kept, failure


def test_the_last_point_agrees_with_the_ledger_whatever_happened() -> None:
    ends: Counter[str] = Counter()
    for seed in range(200):
        kept, result = faulty_run(seed)
        assert kept.is_closed
        last = kept.looks[-1].values
        ends[type(result).__name__] += 1
        if isinstance(result, RunFailed):
            continue
        ledger, scored = result.ledger, [score for score in result.scores if score.value is not None]
        counts = {
            name: last[f"tickets/{name}"] for name in ("opened", "landed", "learned", "reissued", "requeued", "lost")
        }
        assert counts == {name: getattr(ledger, name) for name in counts}, seed
        dropped = {name: last[f"drops/{name}"] for name in ("stale", "expired", "filtered", "failed")}
        assert dropped == {name: ledger.dropped.get(name, 0) for name in dropped}, seed
        assert last["tickets/taken"] == sum(ledger.staleness.values()), seed
        assert last["run/steps"] == ledger.steps, seed
        assert last.get("length/bias", 0.0) == pytest.approx(ledger.length_bias), seed
        assert sum(last[f"queue/{name}"] for name in ("open", "in_flight", "ready", "taken")) == ledger.returned, seed
        assert (last["run/updates"], last["run/version"]) == (result.updates, result.version)
        assert (last["run/lead"], last["run/restarts"]) == (result.lead, result.restarts)
        assert last["run/evaluations_failed"] == len(result.scores) - len(scored), seed
        assert last["run/evaluations_skipped"] == result.evaluations_skipped, seed
        at = [(point.moment.version, point.values["evaluate/score"]) for point in kept.scores]
        assert at == [(score.version, score.value) for score in scored], seed
    assert ends["RunResult"] > 100 and ends["RunFailed"] > 10


def test_the_points_of_a_run_add_up_to_it() -> None:
    """Intervals leave nothing out and count nothing twice."""
    for seed in range(60):
        kept, result = faulty_run(seed)
        if isinstance(result, RunFailed):
            continue
        updates = rollouts = 0.0
        before = 0.0
        for point in kept.looks:
            updates += point.values.get("throughput/updates_per_s", 0.0) * (point.moment.time_s - before)
            rollouts += point.values.get("throughput/rollouts_per_s", 0.0) * (point.moment.time_s - before)
            before = point.moment.time_s
            for role in ("learner", "collectors"):
                shares = point.values.get(f"busy/{role}", 0.0) + point.values.get(f"waiting/{role}", 0.0)
                assert -1e-6 <= shares <= 1 + 1e-6
        assert updates == pytest.approx(result.updates), seed
        assert rollouts == pytest.approx(result.ledger.landed), seed


def test_the_log_of_a_run_gives_the_same_points_again(tmp_path: Path) -> None:
    for seed in range(15):
        folder = RunFolder(tmp_path / str(seed))
        kept, _ = faulty_run(seed, folder)
        assert list(metrics_of(read_events(folder.events))) == kept.points


# -- when a look is taken ---------------------------------------------------------------------------


def steady(updates: int, learn_s: float, *, sinks: list[Any], **options: Any) -> RunResult:
    runtime = Virtual(SteadyWorkload(Constant(0.01), Constant(learn_s)))
    settings = Settings(plan=Plan(updates=updates), max_lead=2)
    return launch(Stations(partial(Engine, False), Trainer), settings, runtime=runtime, sinks=sinks, **options)


@pytest.mark.parametrize(
    ("learn_s", "interval_s", "looks"),
    [(0.3, 1.0, 10 + 1), (0.3, 0.0, 40 + 1), (5.0, 1.0, 40 + 1), (0.3, 1000.0, 1)],
    ids=["every second", "every update", "slow updates", "only at the end"],
)
def test_a_look_is_taken_after_an_update_at_most_once_an_interval(
    learn_s: float, interval_s: float, looks: int
) -> None:
    kept = Kept()
    steady(40, learn_s, sinks=[kept], metrics_interval_s=interval_s)
    assert abs(len(kept.looks) - looks) <= 1
    times = [point.moment.time_s for point in kept.looks[:-1]]
    assert all(after - before >= interval_s for before, after in itertools.pairwise(times))


def test_an_interval_that_cannot_be_is_refused() -> None:
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="metrics_interval_s must be a finite number >= 0, received"):
            steady(1, 0.1, sinks=[Kept()], metrics_interval_s=value)


def test_a_run_without_folder_and_sinks_takes_no_look() -> None:
    assert steady(3, 0.1, sinks=[]).updates == 3


def test_aliases_are_written_when_asked_for() -> None:
    plain, known = Kept(), Kept()
    steady(8, 0.5, sinks=[plain])
    steady(8, 0.5, sinks=[known], metric_aliases=True)
    assert not set(ALIASES) & set(plain.looks[-1].values)
    last = known.looks[-1].values
    assert (last["global_steps"], last["current_param_version"], last["total_produced"]) == (
        8,
        8,
        last["tickets/landed"],
    )
    seen = {name for point in known.points for name in point.values}
    assert set(ALIASES) <= seen


# -- the schema -------------------------------------------------------------------------------------


def documented(heading: str) -> dict[str, str]:
    """The rows of the tables under one heading of docs/metrics.md: name -> meaning."""
    page = (DOCS / "metrics.md").read_text()
    section = re.split(r"^## ", page, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(f"{heading}\n")]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return {row[1].strip().strip("`"): row[2].strip() for row in rows}


def test_the_page_on_metrics_lists_every_name_with_its_meaning() -> None:
    rows = documented("Names")
    patterns = {name for name in rows if "<" in name}
    assert patterns == {
        *("learn/<name>", "evaluate/<name>", "memory/<role>_mb", "alarms/<name>"),
        "drops/filtered_<reason>",
    }
    assert {name: meaning for name, meaning in rows.items() if name not in patterns} == MEANINGS


def test_the_page_on_metrics_lists_every_alias_with_its_formula() -> None:
    rows = documented("Names you may know")
    assert rows == {alias: " + ".join(f"`{name}`" for name in names) for alias, names in ALIASES.items()}


def reanalyzed_run() -> Kept:
    """Looked at once, at the end."""
    kept = Kept()
    ratio = ReplayRatio(2, min_size=12, samples_per_update=4, steps_per_ticket=4)
    settings = Settings(plan=Plan(updates=9), replay=ratio)
    workload = SteadyWorkload(Constant(1.0), Constant(1.0))
    launch(toy_reanalysis_stations(), settings, runtime=Virtual(workload), sinks=[kept], metrics_interval_s=1000.0)
    return kept


def test_a_real_run_writes_every_name_there_is_and_no_other() -> None:
    seen: set[str] = set()
    for seed in range(60):
        for point in faulty_run(seed)[0].points:
            seen |= set(point.values)
    seen |= set(reanalyzed_run().looks[-1].values) & {"throughput/targets_per_s", "busy/reanalyzer"}
    free = {name for name in seen if name in ("learn/tickets", "evaluate/seed")}
    assert len(free) == 2
    assert seen - free == set(MEANINGS)


def test_every_cause_of_waiting_is_known() -> None:
    source = DOCS.parent / "src/headway/coordinator"
    text = "".join(path.read_text() for path in source.glob("*.py"))
    causes = set(re.findall(r"board\.wait\(\s*[\w.]+(?:\(\w+\))?,\s*\"([\w-]+)\"", text))
    causes |= set(re.findall(r"turn\.wait_outside\(\s*\"([\w-]+)\"", text))
    causes |= set(re.findall(r"board\.rest\(.*, \"([\w-]+)\", ", text))
    assert {"data", "ending"} <= causes <= WAITS
    assert [cause for cause in WAITS if f'"{cause}"' not in text] == [], "nobody waits for it"
    assert set(WAITS_FOR) == WAITS
