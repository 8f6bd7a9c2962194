"""Runs of agents small enough for a test: a tiny model, episodes of three turns, a few tokens each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_runs import START_S

from headway.agents.recipe import AgentConfig, stations
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.core.protocols import Runtime
from headway.core.types import Rollout, Snapshot, Ticket
from headway.runs.config import read_values
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.build import build_runtime

GAMES = Path(__file__).parent / "counting_games.py"


def tiny_values(model: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "env": f"{GAMES}:Counting",
        "max_turn_tokens": 4,
        "max_episode_tokens": 64,
        "max_context_tokens": 96,
        "tickets_per_batch": 2,
        "group_size": 3,
        "lanes": 4,
        "engine_rows": 16,
        "learning_rate": 1e-2,
        "warmup_updates": 0,
        "updates": 3,
        "max_lead": 0,
        "evaluate_every": 0,
        "eval_games": 3,
        "device": "cpu",
        "start_deadline_s": START_S,
        **changes,
    }


def tiny_agent(model: Path, **changes: Any) -> AgentConfig:
    values = {name: value for name, value in tiny_values(model, **changes).items() if value is not None}
    config = read_values(AgentConfig, values)
    assert isinstance(config, AgentConfig)
    return config


def run_agent(config: AgentConfig, runtime: str | Runtime = "threads", log: MemoryRecorder | None = None) -> RunResult:
    start_s = config.settings().deadlines.start_s
    place = build_runtime(runtime, start_s=start_s) if isinstance(runtime, str) else runtime
    return place.run(Coordinator(stations(config), config.settings(), place, recorder=log).run())


def collected(config: AgentConfig, *tickets: Ticket) -> list[Rollout]:
    """What a collector of the run makes of these tickets, with the weights it began with."""
    collector: Any = stations(config).collector(0)
    try:
        return [collector.collect(ticket, Snapshot(0, None)) for ticket in tickets]
    finally:
        collector.close()
