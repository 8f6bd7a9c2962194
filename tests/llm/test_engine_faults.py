"""Whole runs whose engine lives in another process and dies, freezes, or fails to take weights."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import patient

pytest.importorskip("torch")

from bigram_engine import WEIGHT, bigram_engine, log_softmax, table
from log_totals import audit
from running_processes import all_children, title, wait_until_gone

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Retries, Settings
from headway.core.types import Batch, LearnReport
from headway.llm.collector import GroupCollector, GroupSettings
from headway.llm.engine.protocol_engine import Engine, Sampling
from headway.llm.tasks.tasks import Prompt, PromptTask, user_says
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.build import build_runtime

PROMPTS = 500
Deed = Callable[[], None]


class TableLearner:
    """Version v is the table of seed v. It refuses a token that was not made by the version it carries."""

    def __init__(self) -> None:
        self._updates = 0
        self._tickets = 0

    def learn(self, batch: Batch) -> LearnReport:
        for rollout in batch.rollouts:
            payload = rollout.payload
            before = 0
            for length in payload.lengths:
                part = slice(before, before + length)
                lasts = [int(payload.prompt[-1]), *payload.tokens[part][:-1].tolist()]
                for last, token, version, log_prob in zip(
                    lasts, payload.tokens[part], payload.versions[part], payload.log_probs[part], strict=True
                ):
                    assert version <= self._updates
                    assert abs(log_softmax(table(int(version))[last])[token] - log_prob) < 1e-4
                before += length
            self._tickets += 1
        self._updates += 1
        return LearnReport({"tickets": float(self._tickets)})

    def snapshot(self) -> dict[str, np.ndarray]:
        return {WEIGHT: table(self._updates)}

    def state_dict(self) -> Any:
        return {"updates": self._updates, "tickets": self._tickets}

    def load_state_dict(self, state: Any) -> None:
        self._updates, self._tickets = state["updates"], state["tickets"]


def make_engine(options: dict[str, Any]) -> Engine:
    return bigram_engine(**{"step_s": 2e-3, **options})


def make_collector(options: dict[str, Any], group: dict[str, Any], number: int) -> GroupCollector:
    prompts = [Prompt(f"p{n}", n, "train", "bigrams", (user_says(str(n)),)) for n in range(PROMPTS)]
    task = PromptTask("bigrams", prompts, (), _score)
    settings = GroupSettings(2, **{"sampling": Sampling(max_tokens=25, min_tokens=25), **group})
    return GroupCollector(partial(make_engine, options), task, _encode, settings)


def _score(prompt: Prompt, response: str) -> float:
    return float(response.count("A"))


def _encode(prompt: Prompt) -> tuple[int, ...]:
    return 3, 4, 5 + prompt.index % 10


class Saboteur(MemoryRecorder):
    """Does something once, at the n-th event of a kind."""

    def __init__(self, kind: str = "", count: int = 0, deed: Deed = lambda: None) -> None:
        super().__init__()
        self._kind, self._left, self._deed = kind, count, deed

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == self._kind:
            self._left -= 1
            if self._left == 0:
                self._deed()


def engine_pids() -> list[int]:
    return [pid for pid in all_children(os.getpid()) if "from bigram_engine import main" in title(pid)]


def strike(what: signal.Signals, struck: list[int]) -> None:
    struck += engine_pids()
    for pid in struck:
        os.kill(pid, what)


def run(
    log: Saboteur, runtime: str, options: dict[str, Any], group: dict[str, Any] | None = None, **more: Any
) -> RunResult:
    settings = Settings(
        plan=Plan(updates=12),
        **{"max_lead": 1, "lanes": 4, "tickets_per_batch": 2, "on_publish": "partial", "dispatch": "free", **more},
    )
    place = build_runtime(runtime)
    stations = Stations(collector=partial(make_collector, options, group or {}), learner=TableLearner)
    return place.run(Coordinator(stations, settings, place, recorder=log).run())


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize(
    ("runtime", "on_publish"),
    [("threads", "partial"), ("threads", "drain"), pytest.param("processes", "partial", marks=pytest.mark.slow)],
)
def test_an_engine_killed_or_frozen_in_the_middle_of_a_run_heals_inside_its_collector(
    runtime: str, on_publish: str, what: signal.Signals
) -> None:
    struck: list[int] = []
    log = Saboteur("land", 7, partial(strike, what, struck))
    result = run(log, runtime, {"deadline_s": patient(0.35)}, on_publish=on_publish)
    assert len(struck) == 1
    wait_until_gone([*struck, *engine_pids()])
    seen = audit(log.events)
    assert result.updates == 12 and result.restarts == 0, "the collector itself was never restarted"
    assert set(seen.learned.values()) == {1} and len(seen.learned) == 24
    assert not seen.dropped and result.ledger.closes


def test_an_engine_that_tears_weights_is_given_them_again_by_the_coordinator(tmp_path: Path) -> None:
    """No token carries a version that was not applied: the learner looks at each of them."""
    fuse = tmp_path / "fuse"
    fuse.touch()
    log = Saboteur()
    options = {"trouble": "tears load 4", "fuse": fuse}
    result = run(log, "threads", options, retries=Retries(publish_delay_s=0.01))
    retries = [event for event in log.events if event["e"] == "publish_retry"]
    assert len(retries) == 1 and "torn in the middle" in retries[0]["why"]
    assert result.updates == 12 and result.restarts == 0
    assert set(audit(log.events).learned.values()) == {1}


def test_an_engine_that_refuses_weights_for_good_ends_the_run_in_one_line() -> None:
    retries = Retries(publish_attempts=2, publish_delay_s=0.01, max_restarts=1)
    with pytest.raises(RunFailed, match=r"collector-0.*refused the weights: ValueError: not today") as failed:
        run(Saboteur(), "threads", {"trouble": "refuses weights"}, retries=retries)
    assert "\n" not in str(failed.value)
    wait_until_gone(engine_pids())


@pytest.mark.parametrize("on_failure", ["stop", "drop"])
def test_an_engine_whose_restarts_are_used_up_ends_the_run_in_one_line(on_failure: Any) -> None:
    line = "^collector-0 cannot go on: .*out of memory; it was replaced 1 times already, engine_restarts=1$"
    options, retries = {"trouble": "raises at step 30", "restarts": 1}, Retries(on_failure=on_failure)
    with pytest.raises(RunFailed, match=line) as failed:
        run(Saboteur(), "threads", options, retries=retries)
    assert "\n" not in str(failed.value)
    wait_until_gone(engine_pids())


def test_groups_that_are_not_whole_in_time_are_cut_short() -> None:
    """A step takes a fifteenth of the time and a group 25 of them, so none is whole."""
    log, limit_s = Saboteur(), patient(0.15)
    result = run(log, "threads", {"step_s": limit_s / 15}, {"deadline_s": limit_s, "on_deadline": "cut"})
    lengths = [event["l"] for event in log.events if event["e"] == "land"]
    assert result.updates == 12 and not result.ledger.dropped
    assert all(1 <= length < 25 for length in lengths)


def test_groups_that_are_not_whole_in_time_fail_and_are_dropped_with_their_reason() -> None:
    """Replies end by chance, one token in twenty: about half of the groups are whole after 25 steps."""
    log, limit_s = Saboteur(), patient(0.125)
    group = {"deadline_s": limit_s, "sampling": Sampling(max_tokens=100)}
    result = run(log, "threads", {"step_s": limit_s / 25}, group, retries=Retries(on_failure="drop"))
    drops = [event for event in log.events if event["e"] == "drop"]
    assert result.updates == 12 and result.ledger.dropped["failed"] == len(drops) > 0
    assert all(event["reason"] == "failed" and f"not whole within {limit_s:g} s" in event["why"] for event in drops)
    assert result.restarts == 0
