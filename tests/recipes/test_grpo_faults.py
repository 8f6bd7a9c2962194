"""GRPO with every role in a process of its own, and each of them killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import patient

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny_values
from log_totals import audit
from running_processes import all_children, title, wait_until_gone
from with_vllm import needs_vllm, vllm_python

from headway.coordinator.coordinator import Coordinator
from headway.llm.grpo import GRPOConfig, stations
from headway.runs.config import read_values
from headway.runs.event_log import MemoryRecorder, read_events
from headway.runs.fingerprint import fingerprint
from headway.runtimes.processes import Processes
from headway.runtimes.threads import Threads
from headway.testing.tiny_models import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("grpo_faults"))


def values_of(folder: Path, **more: Any) -> dict[str, Any]:
    settled = {"updates": 8, "evaluate_every": 4, "eval_prompts": 4, "start_deadline_s": 480}
    return tiny_values(folder, **{**settled, **more})


class Saboteur(MemoryRecorder):
    """Kills a role's process at an event."""

    def __init__(self, runtime: Processes, kind: str, field: str, number: int, role: str) -> None:
        super().__init__()
        self._runtime = runtime
        self._when = kind, field, number
        self._role = role
        self.killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if (kind, fields.get(self._when[1])) == (self._when[0], self._when[2]) and not self.killed:
            self.killed = self._runtime.pid(self._role)
            os.kill(self.killed, signal.SIGKILL)


def run(folder: Path, log: Any = None, runtime: Processes | None = None) -> Any:
    config = read_values(GRPOConfig, values_of(folder))
    assert isinstance(config, GRPOConfig)
    runtime = runtime or Processes(start_s=400)
    return runtime.run(Coordinator(stations(config), config.settings(), runtime, recorder=log).run())


@pytest.mark.parametrize(
    ("role", "kind", "field", "number"), [("collector-0", "start", "k", 13), ("evaluator", "evaluate", "v", 4)]
)
def test_a_role_killed_in_the_middle_heals_and_the_run_has_the_same_bits(
    folder: Path, role: str, kind: str, field: str, number: int
) -> None:
    runtime = Processes(start_s=400)
    log = Saboteur(runtime, kind, field, number, role)
    result = run(folder, log, runtime)
    assert log.killed and result.restarts == 1
    seen = audit(log.events)
    assert sorted(seen.learned) == list(range(24)) and set(seen.learned.values()) == {1}
    assert result.ledger.closes and not seen.dropped
    assert [score.version for score in result.scores] == [4, 8]
    assert all(score.value is not None for score in result.scores)
    assert fingerprint(result.weights) == fingerprint(run(folder).weights)


def test_a_trainer_killed_in_the_middle_is_resumed_and_every_prompt_is_trained_once(
    folder: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    values = values_of(folder, updates=14, evaluate_every=0, save_every=2, runtime="processes")
    config.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "headway.cli"]
    start = [*command, "run", "grpo", "--config", str(config), "--runs", str(tmp_path / "runs"), "--quiet"]
    driver = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + patient(300)
    while not (saved := list((tmp_path / "runs").glob("*/checkpoints/*/manifest.json"))):
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    roles = [pid for pid in all_children(driver.pid) if "headway role" in title(pid)]
    (trainer,) = [pid for pid in roles if "headway role learner" in title(pid)]
    os.kill(trainer, signal.SIGKILL)
    _, said = driver.communicate(timeout=patient(300))
    assert driver.returncode != 0 and "SIGKILL" in said
    wait_until_gone(roles)

    run_folder = saved[0].parents[2]
    resumed = subprocess.run([*command, "resume", str(run_folder), "--quiet"], timeout=patient(300), check=False)
    assert resumed.returncode == 0
    seen = audit(read_events(run_folder / "events.jsonl"))
    assert sorted(seen.learned) == list(range(42)) and set(seen.learned.values()) == {1}
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["complete"]

    whole = [*start[:-3], "--runs", str(tmp_path / "whole"), "--quiet", "--runtime", "threads"]
    subprocess.run(whole, timeout=patient(300), check=True, stdout=subprocess.DEVNULL)
    undisturbed = json.loads(next((tmp_path / "whole").glob("*/summary.json")).read_text())
    assert summary["fingerprint"] == undisturbed["fingerprint"]


@needs_vllm
@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_vllm_killed_or_frozen_in_the_middle_heals_inside_its_collector(
    folder: Path, tmp_path: Path, what: signal.Signals
) -> None:
    save_tiny_model(tmp_path / "model", head_dim=64)  # the sizes of heads that vLLM has on a CPU begin at 32
    vllm = {"engine": "vllm", "vllm_python": vllm_python(), "vllm_options": {"kv_cache_memory_bytes": 1 << 26}}
    more = {"model": str(tmp_path / "model"), "evaluate_every": 0, "engine_deadline_s": 10, "updates": 10}
    config = read_values(GRPOConfig, values_of(folder, **vllm, **more, on_publish="partial", dispatch="free"))
    assert isinstance(config, GRPOConfig)
    runtime = Threads()
    struck: list[int] = []

    class Killer(MemoryRecorder):
        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            super().record(time_s, kind, fields)
            if kind == "land" and fields["k"] == 9:
                struck.extend(pid for pid in all_children(os.getpid()) if "vllm_host.py" in title(pid))
                os.kill(struck[0], what)

    log = Killer()
    result = runtime.run(Coordinator(stations(config), config.settings(), runtime, recorder=log).run())
    assert len(struck) == 1 and result.restarts == 0
    wait_until_gone([pid for pid in all_children(os.getpid()) if "vllm_host.py" in title(pid)] + struck)
    seen = audit(log.events)
    assert set(seen.learned.values()) == {1} and len(seen.learned) == 30 and not seen.dropped
    assert result.updates == 10 and result.ledger.closes
    assert result.metrics["token_staleness_max"] <= 1


@needs_vllm
def test_without_a_lead_vllm_and_the_trainer_agree_about_every_token(folder: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", head_dim=64)
    vllm = {"engine": "vllm", "vllm_python": vllm_python(), "vllm_options": {"kv_cache_memory_bytes": 1 << 26}}
    more = {"model": str(tmp_path / "model"), "evaluate_every": 2, "max_lead": 0, "updates": 4, "temperature": 0.8}
    config = read_values(GRPOConfig, values_of(folder, **vllm, **more))
    assert isinstance(config, GRPOConfig)
    runtime = Threads()
    result = runtime.run(Coordinator(stations(config), config.settings(), runtime).run())
    assert result.metrics["token_staleness_max"] == 0
    assert result.metrics["mismatch_max"] < 1e-4
    assert [score.version for score in result.scores if score.value is not None] == [2, 4]
