"""Colour Lines with a prioritized replay: every knob does something, runs repeat and resume, and it learns."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway import cli
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.rerun import replay
from headway.coordinator.run_result import RunResult
from headway.core.types import Batch, Snapshot, Ticket
from headway.ppo.colorlines.recipe import ColorLinesConfig, stations
from headway.runs.config import ConfigError, read_values
from headway.runs.event_log import read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.testing.auditor import audit

TINY: dict[str, Any] = {
    "replay_mode": "shared",
    "num_iterations": 12,
    "num_envs": 4,
    "segment_steps": 8,
    "width": 4,
    "eval_interval": 0,
    "num_epochs": 1,
    "batch_size": 16,
    "min_buffer_size": 32,
    "samples_per_insert": 0.5,
    "runtime": "inline",
}


def tiny(**more: Any) -> ColorLinesConfig:
    config = read_values(ColorLinesConfig, TINY, more)
    assert isinstance(config, ColorLinesConfig)
    return config


def run(config: ColorLinesConfig, folder: Path | None = None, *, resume: bool = False) -> RunResult:
    place = None if folder is None else RunFolder(folder)
    return launch(stations(config), config.settings(), runtime=config.runtime, folder=place, resume=resume)


@cache
def print_of_tiny() -> str:
    return fingerprint(run(tiny()).weights)


# -- bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [0, 2])
def test_a_pinned_run_gives_the_same_bits_wherever_the_replay_lives(lead: int) -> None:
    more = [
        {"replay_mode": "shared", "runtime": "inline"},
        {"replay_mode": "shared", "runtime": "threads"},
        {"replay_mode": "learner", "runtime": "inline"},
    ]
    runs = [run(tiny(max_lead=lead, num_workers=2, **each)) for each in more]
    assert len({fingerprint(result.weights) for result in runs}) == 1
    assert runs[0].metrics == runs[2].metrics


@pytest.mark.slow
def test_a_pinned_run_gives_the_same_bits_on_processes() -> None:
    assert fingerprint(run(tiny(runtime="processes")).weights) == print_of_tiny()


@pytest.mark.parametrize("where", ["learner", "shared"])
def test_a_run_resumed_from_its_middle_ends_with_the_same_bits(tmp_path: Path, where: str) -> None:
    """The replay's segments, priorities and random numbers are part of the checkpoint."""
    config = tiny(save_interval=8, replay_mode=where)
    whole = run(config, tmp_path)
    middle, last = CheckpointStore(tmp_path / "checkpoints").all()
    shutil.rmtree(last)
    resumed = run(config, tmp_path, resume=True)
    assert (middle.name[-2:], resumed.updates) == ("v8", 12)
    assert fingerprint(resumed.weights) == fingerprint(whole.weights)


def test_a_free_run_replays_to_the_same_bits(tmp_path: Path) -> None:
    config = tiny(max_lead=2, num_workers=2, order="ready", runtime="threads")
    result = run(config, tmp_path)
    again = replay(stations(config), read_events(tmp_path / "events.jsonl"))
    assert fingerprint(again.weights) == fingerprint(result.weights)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_the_log_of_a_run_whose_draws_differ_in_size_breaks_no_rule(tmp_path: Path, dispatch: str) -> None:
    """A draw has fewer steps where a segment in it ended early: the log says how many."""
    run(tiny(dispatch=dispatch), tmp_path)
    events = list(read_events(tmp_path / "events.jsonl"))
    assert len({event["n"] for event in events if event["e"] == "learn"}) > 1
    assert audit(events) == []


# -- learning -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_training_from_the_replay_beats_the_random_player_by_far() -> None:
    """Random moves make 0.6 points a game. Each move is drawn twice, on average, from all that was seen."""
    config = ColorLinesConfig(
        replay_mode="shared",
        samples_per_insert=2,
        num_envs=32,
        width=12,
        batch_size=128,
        num_epochs=4,
        updates=40,
        evaluate_every=40,
        eval_episodes=8,
    )
    result = run(config)
    score = result.scores[-1].value
    assert score is not None
    assert score > 6
    assert result.metrics["staleness_max"] > 20, "much of what was drawn was made by policies long gone"
    assert 0 < result.metrics["ess"] < 1


def test_the_policy_learns_from_the_boards_it_was_shown() -> None:
    """Boards are kept in a byte a cell: what comes out is what the collector saw."""
    config = tiny(batch_size=8)
    parts = stations(config)
    assert parts.replay is not None
    rollout = parts.collector(0).collect(Ticket(0, 1, 0), Snapshot(0, parts.learner().snapshot()))
    kept = parts.replay()
    kept.insert(Batch(0, (rollout,)))
    drawn = kept.sample(0).payload
    assert drawn.obs.dtype == np.uint8
    np.testing.assert_array_equal(drawn.obs[:, 0], rollout.payload.obs[:, drawn.ids[0]])
    np.testing.assert_array_equal(drawn.log_probs[:, 0], rollout.payload.log_probs[:, drawn.ids[0]])


# -- every knob ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", 2),
        ("batch_size", 32),
        ("min_buffer_size", 120),
        ("weight_sync_interval", 3),
        ("buffer_capacity", 40),
        ("per_alpha", 0.0),
        ("per_beta_start", 1.0),
        ("num_iterations", 13),
        ("num_epochs", 2),
        ("lr", 3e-4),
        ("samples_per_insert", 2.0),
        ("version_decay", 0.3),
        ("correction", "vtrace"),
        ("max_importance", 1.0001),
        ("seed", 3),
    ],
)
def test_every_knob_of_the_parallel_ppo_does_something(name: str, value: Any) -> None:
    assert fingerprint(run(tiny(**{name: value})).weights) != print_of_tiny()


def test_the_knobs_that_only_say_when_are_kept() -> None:
    plan = tiny(eval_interval=3, save_interval=4, warmup_seconds=2).settings().plan
    assert (plan.evaluate_every, plan.save_every, plan.warmup_s) == (3, 4, 2)


def test_the_defaults_are_those_its_users_know() -> None:
    config = ColorLinesConfig(replay_mode="shared")
    ratio = config.settings().replay
    assert ratio is not None
    assert (ratio.min_size, ratio.samples_per_update, ratio.steps_per_ticket) == (1000, 256, 64 * 16)
    assert config.of_replay("replay_capacity") == 100_000
    assert (config.of_replay("replay_alpha"), config.of_replay("replay_beta_start")) == (0.6, 0.4)
    assert ColorLinesConfig().settings().replay is None


def test_collection_starts_by_itself_when_the_learner_has_drawn_enough() -> None:
    """Four samples per move: 96 updates of 16 take a fourth as many moves, above the first 32."""
    result = run(tiny(num_iterations=96, samples_per_insert=4))
    slack = 16 + 4 * 32
    drawn = 4 * (result.ledger.steps - 32)
    assert 96 * 12 - slack <= drawn <= 96 * 16 + slack, "a few moves of a draw may be resets, which do not count"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"buffer_capacity": 48, "batch_size": 64}, "a replay of 48 steps cannot hold a batch of 64"),
        ({"min_buffer_size": 500, "buffer_capacity": 400}, "replay_min_size=500 is more than replay_capacity=400 ever"),
        ({"buffer_capacity": 30}, "replay_capacity=30 cannot hold one rollout of 32 moves"),
        ({"batch_size": 20}, "batch_size=20 must be a multiple of segment_steps=8"),
        ({"correction": "none", "max_lead": 0}, "correction='none' with replay_mode='shared' trains on old data"),
        (
            {"num_iterations": None, "wall_s": 5.0},
            "replay_beta_start rises to 1 over the run: say with updates or steps",
        ),
        ({"per_alpha": 1.5}, "per_alpha=1.5 (replay_alpha=1.5): Input should be less than or equal to 1"),
        ({"samples_per_insert": 0}, "samples_per_insert=0: Input should be greater than 0"),
        ({"replay_mode": "both"}, "replay_mode='both': Input should be 'none', 'learner' or 'shared'"),
        ({"max_staleness": 4}, "on_stale='wait' needs a fixed max_lead and a queue"),
    ],
)
def test_settings_that_cannot_work_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        tiny(**{"min_buffer_size": 16, **values})
    assert "\n" not in str(caught.value)


def test_a_run_without_a_length_needs_no_exponent_that_rises() -> None:
    assert tiny(num_iterations=None, wall_s=5.0, per_beta_start=1.0).updates is None


def test_the_command_line_takes_every_known_name_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {
        "num_workers": 2,
        "batch_size": 16,
        "min_buffer_size": 64,
        "weight_sync_interval": 2,
        "eval_interval": 0,
        "save_interval": 2,
        "lr": 3e-4,
        "buffer_capacity": 1000,
        "per_alpha": 0.6,
        "per_beta_start": 0.4,
        "num_iterations": 6,
        "num_epochs": 1,
        "warmup_seconds": 0,
        "samples_per_insert": 4,
    }
    more = {"replay_mode": "shared", "num_envs": 4, "segment_steps": 8, "width": 4}
    words = [word for name, value in {**known, **more}.items() for word in (f"--{name}", str(value))]
    assert cli.main(["run", "colorlines", "--runs", str(tmp_path), "--quiet", *words]) == 0
    folder = next(tmp_path.iterdir())
    assert cli.main(["resume", str(folder), "--quiet", "--num_iterations", "8"]) == 0
    assert "replay_capacity: 1000" in (folder / "config.yaml").read_text()
    assert cli.main(["explain", "buffer_capacity=500", "min_buffer_size"]) == 0
    shown = capsys.readouterr().out
    assert "buffer_capacity=500  ->  replay_capacity=500" in shown
    assert "min_buffer_size=1000  ->  replay_min_size=1000" in shown
