"""Weights & Biases. One run there for one run folder: a resumed run goes on in the same one. Of a long run fewer looks
are sent (`spacing.py`)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import wandb

from headway.runs.metrics import Moment
from headway.runs.metrics_metric_names import BY_ENV_STEP, by_env_step
from headway.runs.sinks_spacing import Spacing

Mode = Literal["online", "offline", "disabled"]


class WandbSink:
    """Logs to `project`. `folder` gets wandb's files, and remembers the id of the run there.

    Without a `mode` it is what the variable WANDB_MODE says.
    """

    def __init__(
        self,
        folder: Path,
        *,
        project: str,
        mode: Mode | None = None,
        config: Mapping[str, object] | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
    ) -> None:
        self._spacing = Spacing()
        mode_in_words = mode or os.environ.get("WANDB_MODE") or "online"
        self._what = f"Weights & Biases project {project} ({mode_in_words})"
        files = folder / "wandb"
        files.mkdir(parents=True, exist_ok=True)
        run_id = files / "run-id"
        if not run_id.exists():
            run_id.write_text(secrets.token_hex(4))
        try:
            self._run = wandb.init(
                project=project,
                name=name or folder.name,
                group=group,
                job_type=job_type,
                id=run_id.read_text(),
                resume="allow",
                mode=mode,
                dir=folder,
                config=dict(config or {}),
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.Error, ValueError) as error:
            without = "--wandb_mode offline writes into the run's folder instead"
            raise ValueError(f"Weights & Biases: {' '.join(str(error).split())} ({without})") from None
        self._run.define_metric("*", step_metric="update")
        self._run.define_metric("evaluate/*", step_metric="evaluate/version")
        self._run.define_metric(f"{BY_ENV_STEP}*", step_metric="env_steps")

    def __str__(self) -> str:
        return self._what

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        if not self._spacing.takes(moment, values):
            return
        # Not with `step=`: wandb refuses steps that go back, and a score may come late.
        self._run.log({**asdict(moment), **values, **by_env_step(values)})

    def close(self) -> None:
        self._run.finish()
