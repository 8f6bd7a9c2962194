"""Environments in processes beside a collector that is a Ray actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running_processes import title, wait_until_gone

from headway.coordinator.coordinator import Coordinator
from headway.ppo.recipe_ppo import PPOConfig, stations
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.launch_session import launch
from headway.runtimes.build import build_runtime

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Watch(MemoryRecorder):
    """Sees which workers are there when the first rollout lands; `mark` is in the text of their program."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark
        self.workers: set[int] = set()

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "land" and not self.workers:
            pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
            titles = {pid: title(pid) for pid in pids}
            self.workers = {pid for pid in pids if "headway environment" in titles[pid] and self._mark in titles[pid]}


@pytest.mark.usefixtures("local_ray")
def test_a_run_on_ray_gives_the_same_bits_and_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))  # so that our workers can be told from others
    base = PPOConfig(
        env="Acrobot-v1", env_backend="gymnasium", updates=3, num_envs=3, segment_steps=8, evaluate_every=0
    )
    apart = PPOConfig(**{**base.model_dump(), "stepping": "first_ready", "env_workers": 2})
    runtime, watch = build_runtime("ray"), Watch(str(tmp_path))
    result = runtime.run(Coordinator(stations(apart), apart.settings(), runtime, recorder=watch).run())
    vector = launch(stations(base), base.settings(), runtime="inline")
    assert fingerprint(result.weights) == fingerprint(vector.weights)
    assert len(watch.workers) == 2
    wait_until_gone(watch.workers)
