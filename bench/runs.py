"""Trainings of benchmarks: one in this process, and what one in another printed last; where figures are kept."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.coordinator.run_result import RunResult


def recorded(recipe: str, settings: dict[str, Any]) -> tuple[RunResult, list[dict[str, Any]]]:
    """Train by a recipe here, on one thread of torch: what came of it, and every event."""
    import torch

    from headway.coordinator.coordinator import Coordinator
    from headway.runs.config import read_values
    from headway.runs.event_log import MemoryRecorder
    from headway.runs.recipes_package import load_recipe
    from headway.runtimes.build import build_runtime

    torch.set_num_threads(1)
    found = load_recipe(recipe)
    config = read_values(found.config, settings)
    runtime, recorder = build_runtime(config.runtime), MemoryRecorder()
    result = runtime.run(Coordinator(found.stations(config), config.settings(), runtime, recorder=recorder).run())
    return result, recorder.events


def keep(path: Path | None, **figures: Any) -> None:
    """Add a line to a file of figures, with the day and the load of the machine; None: nowhere."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {"at": datetime.now().isoformat(timespec="seconds"), "load": round(os.getloadavg()[0], 1), **figures}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def last_line(words: list[str]) -> dict[str, Any]:
    """Run it, and read what it printed last as JSON."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
