"""Settings: what is refused, in which words, and what follows from what is set."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.rules import MaxLead, ReplayRatio
from headway.core.rules_lead import AutoLead, FixedLead
from headway.core.rules_order import OLDEST, READY, OnStale, window

PLAN = Plan(updates=10)


def settings(**values: Any) -> Settings:
    return Settings(**{"plan": PLAN, **values})


# -- Deadlines and Retries --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(Deadlines)])
@pytest.mark.parametrize("value", [0, -1.0, math.nan])
def test_a_deadline_that_is_no_time_at_all_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be > 0 seconds, received {value!r}$"):
        Deadlines(**{name: value})


@pytest.mark.parametrize("name", ["attempts_on_error", "attempts_on_loss", "publish_attempts", "evaluate_attempts"])
@pytest.mark.parametrize("value", [0, -1])
def test_nothing_can_be_tried_less_than_once(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be >= 1, received {value}$"):
        Retries(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("max_restarts", -1), ("publish_delay_s", -0.5), ("publish_delay_s", math.nan)]
)
def test_negative_restarts_and_pauses_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be >= 0, received {value!r}$"):
        Retries(**{name: value})


def test_a_failure_stops_or_drops_and_nothing_else() -> None:
    with pytest.raises(ValueError, match=r"^on_failure must be 'stop' or 'drop', received 'ignore'$"):
        Retries(on_failure="ignore")  # type: ignore[arg-type]


# -- Plan -------------------------------------------------------------------------------------------


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^a run needs an end: set at least one of updates, steps, wall_s, target_score$"
    ):
        Plan(evaluate_every=3)


@pytest.mark.parametrize("name", ["updates", "steps", "wall_s"])
@pytest.mark.parametrize("value", [0, -5])
def test_an_end_that_is_there_already_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be > 0, received {value}$"):
        Plan(**{name: value})


@pytest.mark.parametrize("name", ["evaluate_every", "save_every", "save_every_s", "warmup_s"])
def test_negative_intervals_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be >= 0, received -1$"):
        Plan(updates=1, **{name: -1})


def test_a_target_score_needs_evaluations() -> None:
    with pytest.raises(ValueError, match=r"^target_score=0.9 needs evaluations: set evaluate_every$"):
        Plan(target_score=0.9)
    assert Plan(target_score=0.9, evaluate_every=1).updates is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_target_score_that_no_evaluation_can_reach_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"^target_score must be a finite number, received {value!r}$"):
        Plan(target_score=value, evaluate_every=1)


@pytest.mark.parametrize("name", ["wall_s", "warmup_s"])
def test_a_plan_refuses_nan(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .* received nan$"):
        Plan(**{"updates": 1, name: math.nan})


# -- Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"collectors": 0}, "collectors must be >= 1, received 0"),
        ({"lanes": 0}, "lanes must be >= 1, received 0"),
        ({"on_publish": "abort", "lanes": 2}, "on_publish must be 'drain' or 'partial', received 'abort'"),
        (
            {"on_publish": "partial"},
            "on_publish='partial' needs lanes > 1: with one, a collector does one thing at a time",
        ),
        (
            {"on_publish": "partial", "lanes": 2, "max_lead": 0},
            "on_publish='partial' needs max_lead > 0: without a lead nothing is in flight when a version comes",
        ),
        (
            {"on_publish": "partial", "lanes": 2, "dispatch": "pinned"},
            "dispatch='pinned' is impossible: on_publish='partial' changes weights in the middle of a rollout, when is "
            "a matter of timing",
        ),
        ({"tickets_per_batch": 0}, "tickets_per_batch must be >= 1, received 0"),
        ({"publish_every": 0}, "publish_every must be >= 1, received 0"),
        ({"pacing_s": -0.1}, "pacing_s must be >= 0, received -0.1"),
        ({"pacing_s": math.nan}, "pacing_s must be >= 0, received nan"),
        ({"lead_interval": 0}, "lead_interval must be >= 1, received 0"),
        ({"max_lead": "Auto"}, "max_lead must be a number >= 0 or 'auto', received 'Auto'"),
        ({"max_lead": -1}, "max_lead must be a finite number >= 0 or 'auto', received -1"),
        ({"max_lead": math.inf}, "max_lead must be a finite number >= 0 or 'auto', received inf"),
        ({"max_lead": math.nan}, "max_lead must be a finite number >= 0 or 'auto', received nan"),
        ({"dispatch": "random"}, "dispatch must be 'pinned' or 'free', received 'random'"),
        (
            {"dispatch": "pinned", "order": READY},
            "dispatch='pinned' is impossible: order=ready takes rollouts as they come",
        ),
        (
            {"dispatch": "pinned", "order": window(4)},
            "dispatch='pinned' is impossible: order=window(4) takes rollouts as they come",
        ),
        (
            {"dispatch": "pinned", "max_lead": "auto"},
            "dispatch='pinned' is impossible: max_lead='auto' follows measured times",
        ),
        (
            {"dispatch": "pinned", "max_staleness": 1, "on_stale": OnStale.REQUEUE},
            "dispatch='pinned' is impossible: on_stale='requeue' collects again out of turn",
        ),
        (
            {"dispatch": "pinned", "retries": Retries(on_failure="drop")},
            "dispatch='pinned' is impossible: on_failure='drop' lets faults decide what is trained on",
        ),
        (
            {"queue_capacity": 3, "tickets_per_batch": 4},
            "a buffer of 3 deadlocks: the learner waits for batches of 4",
        ),
        ({"max_staleness": -1}, "max_staleness must be >= 0 or None, received -1"),
        (
            {"max_lead": 4, "max_staleness": 2},
            "max_staleness=2 with on_stale=wait cannot hold under max_lead=4 (rollouts reach age 4); lower max_lead to "
            "2 or choose on_stale=drop, requeue or keep",
        ),
        (
            {"max_lead": "auto", "max_staleness": 2},
            "on_stale='wait' needs a fixed max_lead and a queue; choose drop, requeue or keep",
        ),
        (
            {"replay": ReplayRatio(1.0), "max_staleness": 2},
            "on_stale='wait' needs a fixed max_lead and a queue; choose drop, requeue or keep",
        ),
        ({"max_lead": "auto", "lead_limit": 0}, "auto lead needs 1 <= start <= limit, received start=0, limit=0"),
        (
            {"max_lead": "auto", "target_effective_sample_size": 0.0},
            "target_effective_sample_size must be in (0, 1], received 0.0",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_reason(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        settings(**values)
    assert str(refused.value) == message


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().max_lead = 3  # type: ignore[misc]


# -- what follows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "pinned"),
    [
        ({}, True),
        ({"dispatch": "pinned"}, True),
        ({"dispatch": "free"}, False),
        ({"max_lead": 0, "dispatch": "free"}, True),  # the plain loop has nothing to choose
        ({"max_lead": 0, "order": READY}, True),
        ({"max_lead": 8}, True),
        ({"order": READY}, False),
        ({"order": window(2)}, False),
        ({"order": window(1)}, True),
        ({"max_lead": "auto"}, False),
        ({"max_staleness": 3, "on_stale": OnStale.REQUEUE}, False),
        ({"on_stale": OnStale.REQUEUE}, True),  # without a limit nothing is ever requeued
        ({"max_staleness": 3, "on_stale": OnStale.DROP}, True),
        ({"retries": Retries(on_failure="drop")}, False),
        ({"max_age_s": 5.0, "on_stale": OnStale.DROP}, False),
        ({"max_age_s": 5.0, "on_stale": OnStale.KEEP}, True),  # it only counts
        ({"queue_bytes_limit": 100}, False),
        ({"queue_bytes_limit": 100, "max_lead": 0}, True),
        ({"lanes": 4}, True),
        ({"lanes": 4, "on_publish": "partial"}, False),
    ],
)
def test_a_run_is_pinned_where_nothing_depends_on_timing(values: dict[str, Any], pinned: bool) -> None:
    assert settings(**values).is_pinned is pinned


def test_without_a_lead_the_order_is_the_plain_one() -> None:
    assert settings(max_lead=0, order=READY).effective_order is OLDEST
    assert settings(max_lead=1, order=READY).effective_order is READY
    assert settings(max_lead="auto", order=READY).effective_order is READY
    assert settings(max_lead=0).is_synchronous
    assert not settings(max_lead="auto").is_synchronous


@pytest.mark.parametrize(
    ("values", "bound"),
    [
        ({"max_lead": 0}, 0),
        ({"max_lead": 3}, 3),
        ({"max_lead": 3, "tickets_per_batch": 8, "publish_every": 2}, 3),
        ({"max_lead": 0.5, "tickets_per_batch": 8}, 1),
        ({"max_lead": 3, "order": window(5)}, 7),
        ({"max_lead": 3, "order": READY}, None),
        ({"max_lead": 3, "order": READY, "max_staleness": 4}, 4),
        ({"max_lead": 3, "order": READY, "max_staleness": 4, "on_stale": OnStale.DROP}, 4),
        ({"max_lead": 3, "order": READY, "max_staleness": 4, "on_stale": OnStale.KEEP}, None),
        ({"max_lead": 3, "max_staleness": 1, "on_stale": OnStale.DROP}, 1),
        ({"max_lead": 3, "max_staleness": 9, "on_stale": OnStale.KEEP}, 3),
        ({"max_lead": "auto", "lead_limit": 6}, 6),
        ({"replay": ReplayRatio(1.0)}, None),
        ({"replay": ReplayRatio(1.0), "max_staleness": 5, "on_stale": OnStale.DROP}, 5),
    ],
)
def test_the_staleness_bound_follows_from_lead_order_and_limit(values: dict[str, Any], bound: int | None) -> None:
    assert settings(**values).staleness_bound == bound


@pytest.mark.parametrize(
    ("deadline", "times"),
    [("collect_s", 3), ("learn_s", 1), ("evaluate_s", 2), ("publish_s", 5), ("start_s", 4 + 1)],
)
def test_patience_outlasts_every_deadline_on_every_attempt(deadline: str, times: int) -> None:
    """Somebody may wait for a role that fails each time it is allowed to: one second more each makes that much more."""
    retries = Retries(attempts_on_error=2, attempts_on_loss=3, max_restarts=4, publish_attempts=5, evaluate_attempts=2)
    short = settings(retries=retries, deadlines=Deadlines(**{deadline: 10.0}))
    longer = settings(retries=retries, deadlines=Deadlines(**{deadline: 11.0}))
    assert longer.patience_s - short.patience_s >= times
    assert short.data_deadline_s == short.patience_s


def test_patience_grows_with_the_tickets_one_collector_may_have_before_it() -> None:
    limits = Deadlines(collect_s=100.0)
    retries = Retries(attempts_on_loss=1)
    one, many = (settings(max_lead=lead, deadlines=limits, retries=retries).patience_s for lead in (0, 9))
    assert many - one >= 9 * 100.0


def test_patience_outlasts_the_updates_that_the_credit_of_a_replay_allows_in_a_row() -> None:
    limits = Deadlines(learn_s=10.0, evaluate_s=1.0, publish_s=1.0)
    few, many = (
        settings(replay=ReplayRatio(ratio, samples_per_update=4, steps_per_ticket=4), deadlines=limits).patience_s
        for ratio in (1, 100)
    )
    assert many - few >= 100 * 10.0
    endless = ReplayRatio(1, slack=math.inf)
    assert settings(replay=endless).patience_s == math.inf


def test_patience_with_lanes_outlasts_a_drain_for_every_ticket_and_a_restart_in_the_middle_of_each() -> None:
    retries = Retries(attempts_on_loss=1, max_restarts=3, publish_attempts=2)
    limits = Deadlines(collect_s=100.0, publish_s=10.0)
    one, many = (settings(max_lead=9, deadlines=limits, retries=retries, lanes=lanes).patience_s for lanes in (1, 4))
    assert many - one >= 3 * 100.0 + 10 * 2 * 10.0


def test_a_deadline_for_data_replaces_the_patience_of_the_learner_only() -> None:
    short = settings(deadlines=Deadlines(data_s=5))
    assert short.data_deadline_s == 5
    assert short.patience_s == settings().patience_s > 5


def test_a_version_takes_the_tickets_of_all_its_batches() -> None:
    assert settings(tickets_per_batch=8, publish_every=3).tickets_per_version == 24


def test_a_fixed_lead_is_built_fixed_and_auto_starts_from_a_tenth_of_the_buffer() -> None:
    assert isinstance(settings(max_lead=3).build_lead(), FixedLead)
    lead = settings(max_lead="auto", tickets_per_batch=4, lead_buffer_size=400, lead_limit=32).build_lead()
    assert isinstance(lead, AutoLead)
    assert (lead.current, lead.limit) == (10, 32)
    assert settings(max_lead="auto", lead_buffer_size=400, lead_limit=6).build_lead().current == 6
    assert settings(max_lead="auto").build_lead().current == 1


def test_the_ledger_opens_no_ticket_that_the_plan_cannot_learn_from() -> None:
    few = settings(plan=Plan(updates=2), tickets_per_batch=3, max_lead=50)
    ledger = few.build_ledger(MaxLead(50, few.tickets_per_version))
    opened = 0
    while ledger.open(0) is not None:
        opened += 1
    assert opened == 2 * 3


def test_the_ledger_keeps_the_buffer_within_its_capacity() -> None:
    small = settings(plan=Plan(updates=100), max_lead=50, queue_capacity=4)
    ledger = small.build_ledger(MaxLead(50))
    opened = 0
    while ledger.open(0) is not None:
        opened += 1
    assert opened == 4


def test_the_ledger_is_cut_as_the_settings_say() -> None:
    one = settings(collectors=3, tickets_per_batch=2, publish_every=4, seed=9, max_lead=2)
    ledger = one.build_ledger(MaxLead(2, 8))
    assert (ledger.pinned_collectors, ledger.tickets_per_batch, ledger.updates_per_version, ledger.seed) == (3, 2, 4, 9)
    in_lanes = dataclasses.replace(one, lanes=4)
    assert in_lanes.seats == in_lanes.build_ledger(MaxLead(2, 8)).pinned_collectors == 12
    free = dataclasses.replace(one, order=READY)
    assert free.build_ledger(MaxLead(2, 8)).pinned_collectors is None


def test_the_description_names_what_follows_too() -> None:
    described = settings(max_lead=2, order=READY, seed=4).describe()
    assert described == {
        "max_lead": 2,
        "order": "ready",
        "dispatch": "free",
        "max_staleness": None,
        "on_stale": "wait",
        "max_age_s": None,
        "queue_bytes_limit": None,
        "staleness_bound": None,
        "collectors": 1,
        "lanes": 1,
        "on_publish": "drain",
        "tickets_per_batch": 1,
        "publish_every": 1,
        "queue_capacity": None,
        "replay": None,
        "pacing_s": 0.0,
        "tickets_per_call": "auto",
        "warmup_s": 0.0,
        "target_score": None,
        "evaluate_every": 0,
        "evaluate_in_background": False,
        "evaluation_waits_for": "landed",
        "save_every": 0,
        "save_every_s": 300.0,
        "lead_limit": 64,
        "lead_buffer_size": None,
        "lead_interval": 8,
        "target_effective_sample_size": 0.7,
        "seed": 4,
    }
