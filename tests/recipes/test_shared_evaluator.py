"""The first collector's engine answers held-out prompts while the run pauses: the same bits, one engine less."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.core.protocols import Runtime
from headway.llm.grpo import stations
from headway.llm.memory.check import planned_run
from headway.llm.memory.model_shapes import find_shape
from headway.runs.config import ConfigError
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.processes import Processes
from headway.runtimes.threads import Threads

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("shared_evaluator"))


def run(folder: Path, runtime: Runtime, recorder: MemoryRecorder | None = None, **settings: Any) -> RunResult:
    base = {"updates": 4, "evaluate_every": 2, "eval_prompts": 3, "evaluate_first": True}
    config = tiny(folder, **{**base, **settings})
    coordinator = Coordinator(stations(config), config.settings(), runtime, recorder=recorder)
    return runtime.run(coordinator.run())


@pytest.mark.parametrize("lead", [0, 2])
@pytest.mark.parametrize("lanes", [1, 3])
def test_who_answers_changes_no_bit_and_no_score(folder: Path, lead: int, lanes: int) -> None:
    results = []
    for evaluator in ("own", "engine"):
        done = run(folder, Threads(), evaluator=evaluator, max_lead=lead, lanes=lanes)
        results.append((fingerprint(done.weights), [(score.version, score.value) for score in done.scores]))
    assert results[0] == results[1]
    assert [version for version, _ in results[0][1]] == [0, 2, 4]


def test_there_is_no_role_for_it(folder: Path) -> None:
    wired = stations(tiny(folder, evaluator="engine", evaluate_every=2))
    assert "evaluator" not in [role.name for role in wired.roles(2)]
    assert wired.evaluator is not None  # for `headway evaluate`


class Killer(MemoryRecorder):
    """Kills the first collector when an evaluation of version 2 begins."""

    def __init__(self, runtime: Processes) -> None:
        super().__init__()
        self._runtime = runtime
        self.killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "evaluate" and fields["v"] == 2 and not self.killed:
            self.killed = self._runtime.pid("collector-0")
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_collector_that_dies_while_it_evaluates_is_built_anew_and_the_score_comes(folder: Path, lanes: int) -> None:
    alone = run(folder, Threads(), evaluator="own", max_lead=0, lanes=lanes)
    runtime = Processes(start_s=400)
    recorder = Killer(runtime)
    done = run(folder, runtime, recorder, evaluator="engine", max_lead=0, lanes=lanes)
    assert recorder.killed
    assert fingerprint(done.weights) == fingerprint(alone.weights)
    assert [(score.version, score.value) for score in done.scores] == [
        (score.version, score.value) for score in alone.scores
    ]


@pytest.mark.parametrize("settings", [{"evaluate_in_background": True}, {"evaluation_waits_for": "parked"}])
def test_an_engine_that_is_at_work_cannot_be_shared(folder: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="evaluator='engine' needs evaluations that pause the run"):
        tiny(folder, evaluator="engine", lanes=2, **settings)


def test_a_plan_has_one_engine_less(folder: Path) -> None:
    shape = find_shape(str(folder / "model"))
    assert planned_run(tiny(folder, evaluator="engine", evaluate_every=2), shape, "cpu").evaluator == "engine"
