"""The settings that every recipe shares, in groups. Each is declared here, once, with what raising it does.

A recipe's config (`RunConfig`) inherits all of these groups, so a setting has the same flat name in Python, on the
command line and in `config.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headway.core.text_naming import unknown
from headway.runs.folder import check_name
from headway.runs.log_file import LOG_LIMIT_MB, wrong_log_limit
from headway.runs.monitor import load_monitor
from headway.runs.monitor_alarms import DEFAULT_ALARMS, check_alarms
from headway.runtimes.build import RUNTIMES


class SettingsGroup(BaseModel):
    """Settings that belong together: frozen, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class NameSettings(SettingsGroup):
    """Name: what the run is called."""

    name: str | None = None
    """What the run is called: at the end of its folder's name, in its report, its status and on Weights & Biases.
    Letters, digits, dots, dashes and underscores."""

    @field_validator("name")
    @classmethod
    def _name_can_end_that_of_a_folder(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value)


class AsynchronySettings(SettingsGroup):
    """Asynchrony: how far collection may run ahead, and which rollout is learned next."""

    max_lead: float | Literal["auto"] = 1.0
    """How far collection may run ahead of learning, in versions. 0 is the synchronous loop; raising it hides
    longer waits and makes the data older; auto steers it."""
    order: str = "oldest"
    """Which ready rollout is learned next: oldest, window(N) or ready. Looser orders wait less for slow
    rollouts and let them grow older."""
    max_staleness: int | None = Field(None, ge=0)
    """The age one rollout may reach, in versions. Lowering it waits or throws away more (see on_stale)."""
    on_stale: Literal["wait", "drop", "requeue", "keep"] = "wait"
    """What happens to a rollout that would be older: hold the learner back, drop it, collect it again, or
    train on it all the same."""
    max_age_s: float | None = Field(None, gt=0)
    """The seconds one rollout may wait for the learner, from its landing on; what happens then is on_stale, which must
    be drop, requeue or keep. Lowering it throws away more. The clock decides, so dispatch is free."""
    dispatch: Literal["pinned", "free"] | None = None
    """pinned: the seed determines every bit, at any lead. free: newest snapshot, first idle collector.
    Default: pinned where the order allows it."""
    collectors: int = Field(1, ge=1)
    """How many collectors work at once. Raise it when the learner waits and slots are free."""
    lanes: int = Field(1, ge=1)
    """Tickets one collector works on at once; only collectors that say they can (an engine) may have more than one."""
    on_publish: Literal["drain", "partial"] = "drain"
    """What a collector with lanes and weights of its own does for a new version: finish what it has begun, or change
    the weights in the middle of it (free dispatch only)."""
    tickets_per_batch: int = Field(1, ge=1)
    """Rollouts per learn call."""
    publish_every: int = Field(1, ge=1)
    """Updates per published version. Raising it makes publishing cheaper and the data older."""
    queue_capacity: int | None = Field(None, ge=1)
    """Rollouts that may wait for the learner, those on their way included."""
    queue_bytes_limit: int | None = Field(None, ge=1)
    """Bytes the rollouts that wait for the learner may hold; collection waits when it is reached. One batch may always
    wait, however big it is. Above max_lead=0 dispatch is free."""
    pacing_s: float = Field(0.0, ge=0)
    """Each collector, in each of its lanes, starts at most one ticket per this many seconds."""
    tickets_per_call: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Tickets that one call brings to a collector, where as many wait for it. Raising it makes a ticket cheaper, above
    all on Ray, and the first rollout of a call lands with the last. auto: as many as are collected while a call is on
    its way, which is one where a ticket takes long. A pinned run has the same bits with any number."""
    lead_limit: int = Field(64, ge=1)
    """The largest lead that max_lead=auto may choose."""
    lead_buffer_size: int | None = Field(None, ge=1)
    """Rollouts the buffer is meant to hold; auto starts from a tenth of it, in batches."""
    target_effective_sample_size: float = Field(0.7, gt=0, le=1)
    """Auto halves the lead when the learner reports an effective sample size below this in two looks in a row."""


class PlacementSettings(SettingsGroup):
    """Placement: where the work runs."""

    runtime: str = "threads"
    """Where the work runs: inline, threads, processes or ray."""
    ray_address: str | None = None
    """The cluster to join: HOST:PORT, or auto for the one this machine belongs to. Default: the variable RAY_ADDRESS,
    or else a Ray on this machine that begins and ends with the run."""
    ray_connect_s: float = Field(10.0, gt=0)
    """How long that address may take to answer. Raise it on a slow network."""
    ray_keep_copies: bool = True
    """Copy what is made on other nodes to the driver's, so that losing a node loses nothing that was finished. False
    saves that transfer, and what is lost with a node is collected again."""

    @field_validator("runtime")
    @classmethod
    def _runtime_is_known(cls, value: str) -> str:
        if value not in RUNTIMES:
            raise ValueError(unknown("runtime", value, RUNTIMES))
        return value

    @field_validator("ray_address")
    @classmethod
    def _address_can_be_one(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"auto|(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]{1,5}", value):
            raise ValueError("an address is HOST:PORT (of the cluster itself, not of a Ray client), or auto")
        return value

    @model_validator(mode="after")
    def _ray_settings_are_for_ray(self) -> Self:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name.startswith("ray_") and self.runtime != "ray" and value != field.default:
                raise ValueError(f"{name}={value!r} needs runtime='ray', received runtime={self.runtime!r}")
        return self


class PlanSettings(SettingsGroup):
    """Plan: when the run evaluates, saves and stops."""

    updates: int | None = Field(None, ge=1)
    """Stop after this many learn calls."""
    steps: int | None = Field(None, ge=1)
    """Stop once this many environment steps have been trained on."""
    wall_s: float | None = Field(None, gt=0)
    """Stop after this many seconds, of which the last evaluation may take as many as the longest one before."""
    target_score: float | None = None
    """Stop when an evaluation reaches this, with the weights that did."""
    evaluate_every: int = Field(0, ge=0)
    """Evaluate every n versions and at the end; 0: never. Where nothing is said, evaluations that pause the run are so
    rare that they take at most about a tenth of the steps (or replies) that it collects."""
    evaluate_first: bool = False
    """Evaluate the initial weights too, before anything is collected."""
    evaluate_in_background: bool = False
    """Evaluate beside collection and learning instead of pausing them."""
    evaluation_waits_for: Literal["landed", "parked"] = "landed"
    """What happens to what is in flight when an evaluation pauses the rest: it lands first, or it is parked where it is
    and goes on afterwards. parked is for collectors that can pause (agents), where waiting for the slowest is long."""
    save_every: int = Field(0, ge=0)
    """Write a checkpoint every n versions and at the end; 0: not by versions, only by time (save_every_s) and at the
    end."""
    save_every_s: float = Field(300.0, ge=0)
    """Write a checkpoint too when a version is published and none was written for so many seconds; 0: not by time.
    Raising it saves less often, and more is done again after a crash. What takes long to save is saved less often."""
    warmup_s: float = Field(0.0, ge=0)
    """The learner starts this much later than the collectors."""
    seed: int = Field(0, ge=0)
    """Everything random in the run derives from it."""


class RecordingSettings(SettingsGroup):
    """Recording: what is kept of the run, and where its metrics go."""

    log_level: Literal["info", "debug"] = "info"
    """debug prints every event as it happens."""
    report: bool = True
    """Write report.html at the end of the run: what happened, as one page."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many checkpoints to keep."""
    log_limit_mb: int = Field(LOG_LIMIT_MB, ge=0)
    """What the event log may have on the disk, in MiB: at least 64, or 0 for whatever it comes to. Beyond it the oldest
    parts of the log are let go, and the run can no longer be replayed from its beginning."""
    keep_best: bool = True
    """Keep the weights with the best score of an evaluation as well."""
    metrics_interval_s: float = Field(1.0, ge=0)
    """Write metrics at most once in this many seconds, after an update; 0: after every update. What the learner
    reports in between is averaged."""
    metric_aliases: bool = False
    """Write the metrics under the names known from other systems too."""
    alarms: dict[str, float] = Field(default_factory=lambda: dict(DEFAULT_ALARMS))
    """Thresholds that are said aloud when they are passed, as name=value,name=value: stale_samples_ratio, staleness,
    effective_sample_size, kl, engine_mismatch, nothing_to_learn, idle_learner, error_rate, queue_empty, queue_full,
    no_update_s, memory_mb. Empty: none."""
    statistics_every_s: float = Field(30.0, ge=0)
    """Write the statistics of every component into run.log once in this many seconds, and at the end; 0: never."""
    monitor: str | None = None
    """A function of your own that looks at these statistics: file.py:function or module:function. It can raise an alarm
    or end the run."""
    monitor_every_s: float = Field(30.0, gt=0)
    """How often it looks; once more at the end."""
    tensorboard: bool | None = None
    """Scalars for TensorBoard in the run's folder. Default: if the package is installed."""
    use_wandb: bool = False
    """Log to Weights & Biases."""
    wandb_project: str = Field("headway", min_length=1)
    """The project there."""
    wandb_mode: Literal["online", "offline", "disabled"] | None = None
    """offline: into the run's folder, to be sent with `wandb sync`; disabled: not at all. Default: what the variable
    WANDB_MODE says, or else online."""
    wandb_group: str | None = None
    """The group of runs there that this one belongs to; `headway sweep` sets it to the name of the sweep."""
    wandb_job_type: str | None = None
    """What kind of run it is within its group; `headway sweep` sets it to the settings that are varied."""
    prometheus_port: int | None = Field(None, ge=0, le=65535)
    """Serve the newest metrics for Prometheus on this port while the run goes on; 0: any free port."""
    prometheus_host: str = "127.0.0.1"
    """The address that port is bound to. 0.0.0.0 is reachable from other machines: they have to show the run's token,
    from HEADWAY_TOKEN or the file `token` in the run's folder."""

    @field_validator("log_limit_mb")
    @classmethod
    def _log_has_room_for_its_parts(cls, value: int) -> int:
        wrong = wrong_log_limit(value)
        if wrong:
            raise ValueError(wrong)
        return value

    @field_validator("monitor")
    @classmethod
    def _monitor_can_be_loaded(cls, value: str | None) -> str | None:
        if value is not None:
            load_monitor(value)
        return value

    @field_validator("alarms", mode="before")
    @classmethod
    def _alarms_are_known(cls, value: object) -> dict[str, float]:
        if value is None or value == "":
            return {}
        if isinstance(value, str):
            pairs = [part.partition("=") for part in value.split(",")]
            value = {name.strip(): _number(text) for name, _, text in pairs}
        if not isinstance(value, Mapping):
            raise ValueError("alarms are thresholds by name: name=value,name=value")
        return check_alarms(value)


class FaultSettings(SettingsGroup):
    """Faults: how long anything may take, and how often it may fail."""

    collect_deadline_s: float = Field(600.0, gt=0)
    """A collect call that takes longer is given up and its collector restarted."""
    learn_deadline_s: float = Field(600.0, gt=0)
    """A learn call that takes longer ends the run."""
    evaluate_deadline_s: float = Field(1800.0, gt=0)
    """An evaluation that takes longer is given up."""
    publish_deadline_s: float = Field(60.0, gt=0)
    """One attempt to hand a snapshot on."""
    start_deadline_s: float = Field(120.0, gt=0)
    """Building a role, imports included."""
    save_deadline_s: float = Field(600.0, gt=0)
    """Writing a checkpoint; a disk that takes longer ends the run."""
    data_deadline_s: float | None = Field(None, gt=0)
    """How long the learner may wait for a batch before the run ends with an explanation."""
    attempts_on_error: int = Field(1, ge=1)
    """Attempts at a ticket when the collector's code raises."""
    attempts_on_loss: int = Field(3, ge=1)
    """Attempts at a ticket when its collector dies or hangs, or its rollout is lost with a node."""
    on_failure: Literal["stop", "drop"] = "stop"
    """When they are used up: stop the run, or drop the ticket, count it and begin new episodes."""
    max_failures_in_a_row: int = Field(20, ge=1)
    """With on_failure=drop: tickets of one collector that may fail one after the other before the run stops all the
    same. Raising it lets longer outages pass, and a collector that can never work goes on for longer."""
    max_restarts: int = Field(10, ge=0)
    """Restarts of any one role."""
    publish_attempts: int = Field(4, ge=1)
    """Attempts to hand a snapshot on."""
    publish_delay_s: float = Field(1.0, ge=0)
    """Pause between two of them."""


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
