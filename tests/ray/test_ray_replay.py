"""A replay in a Ray actor of its own: the same bits, nothing through the driver, one line when it dies."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import patient

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.protocols import Runtime
from headway.core.rules import ReplayRatio
from headway.core.types import Rollout, Snapshot, Ticket
from headway.ppo.colorlines.recipe import ColorLinesConfig, stations
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.launch_session import launch
from headway.runtimes.inline import Inline
from headway.runtimes.ray_actors import RayActors
from headway.testing.replay_fakes import plain_replay_loop, toy_replay_stations
from headway.testing.toy_stations import Pause, ToyCollector

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90), pytest.mark.usefixtures("local_ray")]
RATIO = ReplayRatio(2, min_size=12, samples_per_update=4, steps_per_ticket=4)
HEAVY = 20_000  # numbers: enough to stay in the store of a node


def run(settings: Settings, parts: Stations, runtime: Runtime | None = None, **more: Any) -> RunResult:
    place = runtime or RayActors(start_s=patient(50))
    return place.run(Coordinator(parts, settings, place, **more).run())


def settings_for(lead: float, updates: int = 30, save_every: int = 0, **more: Any) -> Settings:
    plan = Plan(updates=updates, save_every=save_every)
    return Settings(plan=plan, max_lead=lead, collectors=2, replay=RATIO, seed=5, **more)


def test_lead_zero_equals_the_plain_loop() -> None:
    result = run(settings_for(0), toy_replay_stations(Pause(0.002)))
    assert fingerprint(result.weights) == fingerprint(plain_replay_loop(toy_replay_stations(), settings_for(0)))


def test_a_recorded_free_run_replays_to_the_same_bits() -> None:
    recorder, parts = MemoryRecorder(), toy_replay_stations(Pause(0.004))
    result = run(settings_for(3, dispatch="free"), parts, recorder=recorder)
    assert fingerprint(replay(parts, recorder.events).weights) == fingerprint(result.weights)


class Heavy(ToyCollector):
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        return Rollout({**rollout.payload, "more": np.full(HEAVY, ticket.index)}, steps=rollout.steps)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_rollouts_draws_and_feedback_go_from_actor_to_actor_without_the_driver(dispatch: Any) -> None:
    """Every payload is heavy here: what is below a kilobyte travels with the reply, and is counted as such."""
    toy = toy_replay_stations(ballast=HEAVY)
    runtime = RayActors(start_s=patient(50))
    result = run(
        settings_for(1, updates=20, dispatch=dispatch),
        Stations(collector=Heavy, learner=toy.learner, replay=toy.replay),
        runtime,
    )
    assert result.updates == 20
    assert runtime.driver_payload_bytes == 0


class Saboteur(MemoryRecorder):
    """Kills the replay's process when an update is recorded."""

    def __init__(self, runtime: RayActors, update: int) -> None:
        super().__init__()
        self._runtime, self._update = runtime, update

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "learn" and fields["u"] == self._update:
            os.kill(self._runtime.pid("replay"), signal.SIGKILL)


def test_a_replay_whose_actor_dies_ends_the_run_and_a_resumed_one_has_the_same_bits(tmp_path: Path) -> None:
    settings, runtime = settings_for(1, save_every=5), RayActors(start_s=patient(50))
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(
        RunFailed, match=r"^replay\.\w+: its actor died .*; what it held is gone: `headway resume "
    ) as line:
        run(settings, toy_replay_stations(), runtime, recorder=Saboteur(runtime, 12), checkpoints=store)
    assert "\n" not in str(line.value)
    resumed = run(settings, toy_replay_stations(), Inline(), resume=store.load(), checkpoints=store)
    whole = run(settings, toy_replay_stations(), Inline())
    assert fingerprint(resumed.weights) == fingerprint(whole.weights)


@pytest.mark.timeout(240)  # three actors that import torch and numba, on a machine that may be busy
def test_colour_lines_gives_the_same_bits_with_its_replay_in_an_actor() -> None:
    base: dict[str, Any] = {"updates": 6, "num_envs": 4, "segment_steps": 8, "width": 4, "evaluate_every": 0}
    base |= {"batch_size": 16, "num_epochs": 1, "replay_mode": "shared", "replay_min_size": 32}
    config = ColorLinesConfig(**base, start_deadline_s=200)
    parts = replace(stations(config), evaluator=None)
    prints = {
        fingerprint(launch(parts, config.settings(), runtime=runtime).weights)
        for runtime in ("inline", RayActors(start_s=200))
    }
    assert len(prints) == 1
