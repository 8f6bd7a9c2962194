"""Where metrics go besides the run's folder: TensorBoard, Weights & Biases, Prometheus."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Literal

from headway.runs.folder import RunFolder
from headway.runs.local_server_this_machine import is_loopback
from headway.runs.sinks import Sink


def has_tensorboard() -> bool:
    """Whether the package is installed."""
    return find_spec("tensorboard") is not None


def run_token(folder: RunFolder) -> str:
    """What others have to show to be answered by the run: the variable HEADWAY_TOKEN, or what the run's file `token`
    says, which is made up the first time and which only its owner may read."""
    said = os.environ.get("HEADWAY_TOKEN", "").strip()
    if said:
        return said
    if not folder.token.exists():
        with os.fdopen(os.open(folder.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return folder.token.read_text().strip()


def build_sinks(
    folder: RunFolder,
    *,
    tensorboard: bool | None = None,
    use_wandb: bool = False,
    wandb_project: str = "headway",
    wandb_mode: Literal["online", "offline", "disabled"] | None = None,
    wandb_group: str | None = None,
    wandb_job_type: str | None = None,
    prometheus_port: int | None = None,
    prometheus_host: str = "127.0.0.1",
    config: Mapping[str, object] | None = None,
    name: str | None = None,
) -> list[Sink]:
    """The sinks these settings ask for; `tensorboard=None` is yes where the package is installed. `name` is what the
    run is called on Weights & Biases; its folder's name unless it is said."""
    sinks: list[Sink] = []
    extra, setting = "tensorboard", "tensorboard"
    with ExitStack() as unless_all_are_built:
        try:
            if prometheus_port is not None:
                from headway.runs.prometheus_sink import PrometheusSink

                token = "" if is_loopback(prometheus_host) else run_token(folder)
                sinks.append(PrometheusSink(prometheus_port, host=prometheus_host, run=folder.path.name, token=token))
                unless_all_are_built.callback(sinks[-1].close)
            if tensorboard or (tensorboard is None and has_tensorboard()):
                from headway.runs.tensorboard_sink import TensorBoardSink

                sinks.append(TensorBoardSink(folder.path / "tensorboard"))
            if use_wandb:
                extra, setting = "wandb", "use_wandb"
                from headway.runs.wandb_sink import WandbSink

                sink = WandbSink(
                    folder.path,
                    project=wandb_project,
                    mode=wandb_mode,
                    config=config,
                    name=name,
                    group=wandb_group,
                    job_type=wandb_job_type,
                )
                sinks.append(sink)
        except ModuleNotFoundError as error:
            missing = (error.name or extra).partition(".")[0]
            raise ValueError(f"{setting}=true needs {missing}: pip install 'headway[{extra}]'") from None
        unless_all_are_built.pop_all()
    return sinks
