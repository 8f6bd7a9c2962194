"""Runs of PriorZero that are small enough for a test, and the plain loop they must equal."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Settings
from headway.core.rules import Tally
from headway.core.types import Batch, Snapshot, Ticket, derive_seed
from headway.llm.model.tiny_llama import make_word_model
from headway.runs.config import read_values
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.text_games import recipe_priorzero as priorzero
from headway.text_games.guidance import LINE
from headway.text_games.mini_world import MiniWorld
from headway.text_games.recipe_story_models import words_of

TINY: dict[str, Any] = {
    "num_envs": 2,
    "segment_steps": 6,
    "num_simulations": 4,
    "batch_size": 4,
    "replay_min_size": 20,
    "replay_capacity": 240,
    "replay_ratio": 0.2,
    "num_unroll_steps": 2,
    "td_steps": 2,
    "max_episode_steps": 9,
    "value_bins": 11,
    "embedding": 8,
    "latent": 8,
    "hidden": 8,
    "table": 16,
    "text_words": 24,
    "slots": 8,
    "updates": 8,
    "evaluate_every": 0,
    "prior_every": 2,
    "prior_learning_rate": 0.01,
    "prior_max_states": 4,
    "min_spread": 0.0,
    "device": "cpu",
    "engine_rows": 4,
    "context_tokens": 256,
    "seed": 3,
}


def tiny_model(folder: Path) -> str:
    """A language model of a few thousand weights that knows the words of the mini world."""
    path = folder / "model"
    if not path.exists():
        make_word_model(words_of(MiniWorld()), path, hidden=16, layers=1, heads=2, context=256)
    return str(path)


def tiny(**changes: Any) -> priorzero.PriorZeroConfig:
    values = {**TINY, **changes}
    if values.get("prior") == "none":
        for name in ("prior_every", "device", "engine_rows", "context_tokens", "model", "prior_weight"):
            values.pop(name, None)
    if values.get("prior") == "frozen":
        values.pop("prior_every", None)
    config = read_values(priorzero.CONFIG, values)
    assert isinstance(config, priorzero.PriorZeroConfig)
    return config


def run(config: priorzero.PriorZeroConfig, **more: Any) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(priorzero.stations(config), config.settings(), place, **more).run())


def bits(result: RunResult) -> tuple[str, ...]:
    """Of both lines, or the one there is."""
    return (fingerprint(result.weights), *(fingerprint(line.weights) for line in result.lines.values()))


def plain_loop(stations: Stations, settings: Settings) -> tuple[str, str]:
    """The loop without us: collect, let the prior learn, then the world model as often as the ratio allows, again."""
    ratio, tally, line = settings.replay, Tally(), settings.lines[LINE]
    assert ratio is not None
    assert stations.replay is not None
    assert settings.plan.updates is not None
    assert line.tickets_per_version == settings.tickets_per_version == 1
    world, prior, replay = stations.learner(), stations.lines[LINE].learner(), stations.replay()
    collector = stations.collector(0)
    newest = Snapshot(0, copy.deepcopy(world.snapshot()))
    opinion = Snapshot(0, copy.deepcopy(prior.snapshot()))
    index = 0
    for _ in range(settings.plan.updates):
        while not ratio.may_learn(tally):
            ticket = Ticket(index, derive_seed(settings.seed, "ticket", index), newest.version)
            rollout = collector.collect(ticket, Snapshot(newest.version, newest.payload, {LINE: opinion}))
            replay.insert(Batch(newest.version, (rollout,)))
            tally.inserted += rollout.steps
            if index % line.every == 0:
                prior.learn(Batch(opinion.version, (rollout,)))
                opinion = Snapshot(opinion.version + 1, copy.deepcopy(prior.snapshot()))
            index += 1
        draw = replay.sample(newest.version)
        report = world.learn(Batch(newest.version, (draw,)))
        replay.update(report.feedback)
        tally.sampled += draw.steps
        newest = Snapshot(newest.version + 1, copy.deepcopy(world.snapshot()))
    return fingerprint(newest.payload), fingerprint(opinion.payload)
