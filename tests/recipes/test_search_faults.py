"""Recipes that play by search with every role in a process of its own, a collector and the reanalyzer killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("gymnasium")

from running_processes import wait_until_gone
from search_runs import run, tiny

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.recipes_package import load_recipe
from headway.runtimes.processes import Processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REANALYSIS = {"replay_mode": "shared", "reanalyze_ratio": 2.0, "reanalyze_min_age": 1, "reanalyze_roots": 16}
COLLECTOR, REANALYZER = "collector-1", "reanalyzer"
KINDS = ("land", "insert", "work", "refresh")


class Saboteur(MemoryRecorder):
    """Kills a role's process when it begins something for the so-manieth time; `healed` are those that worked again."""

    def __init__(self, runtime: Processes, **when: tuple[str, int]) -> None:
        super().__init__()
        self._runtime = runtime
        self._when = when  # kind of event -> role, number
        self._begun: Counter[str] = Counter()
        self._seats: dict[int, int] = {}
        self.killed: dict[str, int] = {}
        self.restarted: list[str] = []
        self.healed: set[str] = set()
        self.when_healed: Callable[[], None] = lambda: None

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "start":
            self._seats[fields["k"]] = fields["c"]
        if kind == "restart":
            self.restarted.append(fields["role"])
        worked = {"refresh": REANALYZER, "land": COLLECTOR}.get(kind)
        if worked in self.restarted and (kind == "refresh" or self._seats[fields["k"]] == 1):
            self.healed.add(worked)
            if len(self.healed) == 2:
                self.when_healed()
        role, number = self._when.get(kind, ("", 0))
        if not role or (role == COLLECTOR and fields["c"] != 1):
            return
        self._begun[kind] += 1
        if self._begun[kind] == number:
            self.killed[role] = self._runtime.pid(role)
            os.kill(self.killed[role], signal.SIGKILL)


def run_sabotaged(recipe: str, config: Any, until_healed: bool, **when: tuple[str, int]) -> tuple[RunResult, Saboteur]:
    runtime = Processes()
    log = Saboteur(runtime, **when)
    coordinator = Coordinator(load_recipe(recipe).stations(config), config.settings(), runtime, recorder=log)
    if until_healed:
        log.when_healed = partial(coordinator.request_stop, "healed")
    return runtime.run(coordinator.run()), log


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("recipe", ["muzero", "unizero"])
def test_a_killed_collector_and_a_killed_reanalyzer_heal_and_nothing_is_lost_or_doubled(
    recipe: str, dispatch: str
) -> None:
    is_pinned = dispatch == "pinned"
    common = {**REANALYSIS, "collectors": 2, "max_lead": 1, "updates": 16 if is_pinned else 10**6}
    config = tiny(recipe, **common, dispatch=dispatch)
    when = {"start": (COLLECTOR, 4), "work": (REANALYZER, 2 if is_pinned else 1)}
    result, log = run_sabotaged(recipe, config, not is_pinned, **when)
    assert set(log.killed) == log.healed == {COLLECTOR, REANALYZER}
    assert sorted(log.restarted) == [COLLECTOR, REANALYZER]
    assert result.restarts == 2
    assert result.stop_reason == ("reached 16 updates" if is_pinned else "healed")
    wait_until_gone(log.killed.values())

    assert result.ledger.closes
    assert not result.ledger.dropped
    kinds: dict[str, list[Any]] = {kind: [e for e in log.events if e["e"] == kind] for kind in KINDS}
    inserted = [index for event in kinds["insert"] for index in event["k"]]
    landed = Counter(event["k"] for event in kinds["land"])
    assert len(inserted) == len(set(inserted)), "no segment twice"
    assert set(landed.values()) == {1}
    assert set(inserted) <= set(landed)
    left_out = set(range(max(inserted) + 1)) - set(inserted)
    assert len(left_out) <= (0 if is_pinned else config.collectors), "none but what is under way at the end"
    assert result.metrics["replay_broken_chains"] == 0, "games go on where they were"
    given, back = ([event["n"] for event in kinds[kind]] for kind in ("work", "refresh"))
    assert len(back) in (len(given), len(given) - 1), "the run may end with work under way"
    assert back == given[: len(back)], "each target once"
    if is_pinned:
        whole = run(recipe, tiny(recipe, **common, runtime="inline"))
        assert fingerprint(result.weights) == fingerprint(whole.weights)
        assert result.metrics == whole.metrics


def test_games_that_cannot_be_carried_begin_anew_and_the_replay_counts_it() -> None:
    config = tiny("muzero", env="picture_games:Lights-locked-v0", collectors=2, updates=16, latent=4)
    result, log = run_sabotaged("muzero", config, False, start=(COLLECTOR, 4))
    assert set(log.killed) == log.healed == {COLLECTOR}
    assert result.restarts == 1
    assert result.metrics["replay_broken_chains"] == config.num_envs, "one chain of each of its games"
