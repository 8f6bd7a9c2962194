"""The toy problem twice, without and with a lead, side by side: what the overlap bought and what it cost."""

from __future__ import annotations

from pathlib import Path

from headway.coordinate.coordinator import RunResult
from headway.coordinate.roles import LEARNER
from headway.launching import launch, statistics_rows
from headway.observe.folder import RunFolder
from headway.observe.recorder import read_events
from headway.observe.statistics import side_by_side
from headway.observe.timeline import text_timeline
from headway.recipes.functions import FunctionsConfig, stations

STRETCH_S = 0.4


def demo(root: Path, *, updates: int = 150) -> str:
    """Run both and say what happened."""
    runs: dict[str, tuple[RunResult, RunFolder]] = {}
    for lead in (0, 2):
        config = FunctionsConfig(max_lead=lead, updates=updates, evaluate_every=25)
        folder = RunFolder.create(root, "demo")
        folder.write_config("functions", config.model_dump(mode="json"))
        result = launch(stations(config), config.settings(), folder=folder, show_status=True)
        runs[f"max_lead={lead}"] = (result, folder)
    (serial, _), (ahead, _) = runs.values()
    measured = serial.wall_s / ahead.wall_s
    possible = serial.wall_s / floor_s(serial)
    lines = [side_by_side({name: statistics_rows(result) for name, (result, _) in runs.items()})]
    for name, (_, folder) in runs.items():
        lines.append(f"\n{name}: {1000 * STRETCH_S:g} ms of the run")
        lines.append(text_timeline(read_events(folder.events), skip_s=0.5, seconds=STRETCH_S))
    share = 100 * (measured - 1) / (possible - 1)
    lines.append(
        f"\nspeed-up measured {measured:.2f}x, possible {possible:.2f}x ({share:.0f} % of what overlap can give); "
        f"score {last_score(serial):.3f} without and {last_score(ahead):.3f} with a lead, "
        f"on data {ahead.ledger.mean_staleness:.1f} versions old"
    )
    lines.append(f"event logs, configurations and checkpoints: {', '.join(str(f.path) for _, f in runs.values())}")
    return "\n".join(lines)


def floor_s(result: RunResult) -> float:
    """The least time this work can take: the busier side, and evaluations that pause both."""
    spent = result.time_spent
    collecting = spent.total("collector", "collect") / result.settings.collectors
    return max(collecting, spent.total(LEARNER, "learn")) + spent.total("evaluator", "evaluate")


def last_score(result: RunResult) -> float:
    return next(score.value for score in reversed(result.scores) if score.value is not None)
