"""What every recipe's configuration shares, and how it is read.

One frozen, validated model per recipe. A value comes from, in rising order: the default, `--config
file.yaml`, `--field value`. Names known from other systems are translated: flat ones by `known_names.py`, nested
ones (`trainer: {save_freq: 20}`, or `trainer.save_freq=20`) by `nested_names.py` and `lightzero_names.py`. Unknown
names are refused with the nearest known one. What cannot be is said all at once, one line for each problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headway.coordinate.settings import Deadlines, Plan, Retries, Settings
from headway.core.naming import unknown
from headway.core.order import OnStale, parse_order
from headway.core.protocols import Runtime
from headway.names import nested_names
from headway.names.known_names import KNOWN_NAMES, SYSTEMS, translate
from headway.names.lightzero_names import path_of
from headway.observe.alarms import DEFAULT_ALARMS, check_alarms
from headway.observe.folder import check_name
from headway.observe.monitor import load_monitor


class ConfigError(ValueError):
    """Settings that cannot be: one line, or where there are several problems a line for each."""

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        lines = self.problems
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} settings cannot be:", *lines]))


class RunConfig(BaseModel):
    """The knobs of the coordinator, the same for every recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    also_for_evaluation: ClassVar[tuple[str, ...]] = ()
    """Settings that a finished run may be evaluated with differently, besides those called eval_*."""

    name: str | None = None
    """What the run is called: at the end of its folder's name, in its report, its status and on Weights & Biases.
    Letters, digits, dots, dashes and underscores."""

    # -- asynchrony
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
    runtime: str = "threads"
    """Where the work runs: inline, threads, processes or ray."""

    # -- the runtime ray, and no other
    ray_address: str | None = None
    """The cluster to join: HOST:PORT, or auto for the one this machine belongs to. Default: the variable RAY_ADDRESS,
    or else a Ray on this machine that begins and ends with the run."""
    ray_connect_s: float = Field(10.0, gt=0)
    """How long that address may take to answer. Raise it on a slow network."""
    ray_keep_copies: bool = True
    """Copy what is made on other nodes to the driver's, so that losing a node loses nothing that was finished. False
    saves that transfer, and what is lost with a node is collected again."""

    # -- the auto lead
    lead_limit: int = Field(64, ge=1)
    """The largest lead that max_lead=auto may choose."""
    lead_buffer_size: int | None = Field(None, ge=1)
    """Rollouts the buffer is meant to hold; auto starts from a tenth of it, in batches."""
    target_effective_sample_size: float = Field(0.7, gt=0, le=1)
    """Auto halves the lead when the learner reports an effective sample size below this in two looks in a row."""

    # -- when to do what
    updates: int | None = Field(None, ge=1)
    """Stop after this many learn calls."""
    steps: int | None = Field(None, ge=1)
    """Stop once this many environment steps have been trained on."""
    wall_s: float | None = Field(None, gt=0)
    """Stop after this many seconds."""
    target_score: float | None = None
    """Stop when an evaluation reaches this."""
    evaluate_every: int = Field(0, ge=0)
    """Evaluate every n versions and at the end; 0: never."""
    evaluate_first: bool = False
    """Evaluate the initial weights too, before anything is collected."""
    evaluate_in_background: bool = False
    """Evaluate beside collection and learning instead of pausing them."""
    save_every: int = Field(0, ge=0)
    """Write a checkpoint every n versions and at the end; 0: not by versions, only by time (save_every_s) and at the
    end."""
    save_every_s: float = Field(300.0, ge=0)
    """Write a checkpoint too when a version is published and none was written for so many seconds; 0: not by time.
    Raising it saves less often, and more is done again after a crash. What takes long to save is saved less often."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many checkpoints to keep."""
    keep_best: bool = True
    """Keep the weights with the best score of an evaluation as well."""
    report: bool = True
    """Write report.html at the end of the run: what happened, as one page."""
    warmup_s: float = Field(0.0, ge=0)
    """The learner starts this much later than the collectors."""
    seed: int = Field(0, ge=0)
    """Everything random in the run derives from it."""
    log_level: Literal["info", "debug"] = "info"
    """debug prints every event as it happens."""

    # -- where the metrics go, besides metrics.jsonl
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
    wandb_mode: Literal["online", "offline", "disabled"] = "online"
    """offline: into the run's folder, to be sent with `wandb sync`; disabled: not at all."""
    prometheus_port: int | None = Field(None, ge=0, le=65535)
    """Serve the newest metrics for Prometheus on this port while the run goes on; 0: any free port."""
    prometheus_host: str = "127.0.0.1"
    """The address that port is bound to; 0.0.0.0 is reachable from other machines."""

    # -- what may go wrong
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

    @field_validator("name")
    @classmethod
    def _name_can_end_that_of_a_folder(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value)

    @field_validator("runtime")
    @classmethod
    def _runtime_is_known(cls, value: str) -> str:
        from headway.launching import RUNTIMES

        if value not in RUNTIMES:
            raise ValueError(unknown("runtime", value, RUNTIMES))
        return value

    @field_validator("monitor")
    @classmethod
    def _monitor_can_be_loaded(cls, value: str | None) -> str | None:
        if value is not None:
            load_monitor(value)
        return value

    @field_validator("ray_address")
    @classmethod
    def _address_can_be_one(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"auto|(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]{1,5}", value):
            raise ValueError("an address is HOST:PORT (of the cluster itself, not of a Ray client), or auto")
        return value

    @field_validator("alarms", mode="before")
    @classmethod
    def _alarms_are_known(cls, value: Any) -> dict[str, float]:
        if value is None or value == "":
            return {}
        if isinstance(value, str):
            pairs = [part.partition("=") for part in value.split(",")]
            value = {name.strip(): _number(text) for name, _, text in pairs}
        if not isinstance(value, Mapping):
            raise ValueError("alarms are thresholds by name: name=value,name=value")
        return check_alarms(value)

    @model_validator(mode="after")
    def _ray_settings_are_for_ray(self) -> RunConfig:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name.startswith("ray_") and self.runtime != "ray" and value != field.default:
                raise ValueError(f"{name}={value!r} needs runtime='ray', received runtime={self.runtime!r}")
        return self

    @model_validator(mode="after")
    def _can_work(self) -> RunConfig:
        self.settings()
        return self

    @classmethod
    def evaluation_settings(cls) -> list[str]:
        """What concerns evaluation alone, or where it is computed."""
        return [name for name in cls.model_fields if name.startswith("eval_") or name in cls.also_for_evaluation]

    def build_runtime(self) -> Runtime:
        """Where this run takes place."""
        from headway.launching import build_runtime

        if self.runtime != "ray":
            return build_runtime(self.runtime)
        return build_runtime(
            self.runtime,
            address=self.ray_address,
            connect_s=self.ray_connect_s,
            keeps_copies=self.ray_keep_copies,
            start_s=5 / 6 * self.start_deadline_s,  # before the coordinator gives up: it can say what was lacking
        )

    def settings(self) -> Settings:
        """The coordinator's settings; refuses combinations that deadlock or cannot hold."""
        return Settings(
            plan=Plan(
                updates=self.updates,
                steps=self.steps,
                wall_s=self.wall_s,
                target_score=self.target_score,
                evaluate_every=self.evaluate_every,
                evaluate_first=self.evaluate_first,
                save_every=self.save_every,
                save_every_s=self.save_every_s,
                warmup_s=self.warmup_s,
            ),
            collectors=self.collectors,
            lanes=self.lanes,
            on_publish=self.on_publish,
            max_lead=self.max_lead,
            order=parse_order(self.order),
            max_staleness=self.max_staleness,
            on_stale=OnStale(self.on_stale),
            max_age_s=self.max_age_s,
            dispatch=self.dispatch,
            tickets_per_batch=self.tickets_per_batch,
            publish_every=self.publish_every,
            queue_capacity=self.queue_capacity,
            queue_bytes_limit=self.queue_bytes_limit,
            pacing_s=self.pacing_s,
            evaluate_in_background=self.evaluate_in_background,
            lead_limit=self.lead_limit,
            lead_buffer_size=self.lead_buffer_size,
            target_effective_sample_size=self.target_effective_sample_size,
            seed=self.seed,
            deadlines=Deadlines(
                collect_s=self.collect_deadline_s,
                learn_s=self.learn_deadline_s,
                evaluate_s=self.evaluate_deadline_s,
                publish_s=self.publish_deadline_s,
                start_s=self.start_deadline_s,
                save_s=self.save_deadline_s,
                data_s=self.data_deadline_s,
            ),
            retries=Retries(
                attempts_on_error=self.attempts_on_error,
                attempts_on_loss=self.attempts_on_loss,
                on_failure=self.on_failure,
                max_failures_in_a_row=self.max_failures_in_a_row,
                max_restarts=self.max_restarts,
                publish_attempts=self.publish_attempts,
                publish_delay_s=self.publish_delay_s,
            ),
        )


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def require_correction(correction: str, max_lead: float | str) -> None:
    """An asynchronous policy gradient without a correction is silently biased: refuse it."""
    if correction == "none" and max_lead != 0:
        raise ValueError(
            f"correction='none' with max_lead={max_lead!r} trains on stale data as if they were fresh; "
            f"choose clip, decoupled or vtrace, or max_lead=0"
        )


def read_values(kind: type[RunConfig], *layers: Mapping[str, Any]) -> RunConfig:
    """A configuration from names and values, later layers over earlier ones; every problem in a clear line."""
    merged, _, problems = _understand(kind, layers)
    for name, value in list(merged.items()):
        annotation = kind.model_fields[name].annotation
        if isinstance(value, str) and get_origin(annotation) in (dict, list, tuple):
            value = merged[name] = _structure(value)
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            problems.append(f"{name} needs a value, received {value!r}")  # else a bare --updates would be 1
            del merged[name]
    try:
        config = kind(**merged)
    except ValidationError as error:
        problems += _lines(error, with_combinations=not problems)
    if problems:
        raise ConfigError(*problems)
    return config


class Said(NamedTuple):
    """A name from another system, its value, and what that is here: settings, or why it has no effect."""

    name: str
    value: Any
    meaning: dict[str, Any] | str


def understand(kind: type[RunConfig], *layers: Mapping[str, Any]) -> tuple[dict[str, Any], list[Said]]:
    """Layers in our words, later ones over earlier ones, and what was translated on the way."""
    merged, said, problems = _understand(kind, layers)
    if problems:
        raise ConfigError(*problems)
    return merged, said


def _understand(
    kind: type[RunConfig], layers: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Said], list[str]]:
    """The same, with what could not be understood beside it."""
    problems: list[str] = []
    merged: dict[str, Any] = {}
    said: dict[str, Said] = {}
    nested: dict[str, Any] = {}
    unknown_names: list[str] = []
    layers, systems = _systems(kind, layers, problems)
    together = {name: value for values in layers for name, value in values.items()}
    for values, names in zip(layers, systems, strict=True):
        theirs = {name: value for name, value in values.items() if nested_names.is_theirs(name, value)}
        paths = nested_names.flatten(theirs)
        paths |= nested_names.our_words(values, paths)
        nested = {name: value for name, value in (nested | paths).items() if value is not None}
        flat = {name: value for name, value in values.items() if name not in theirs}
        here: list[Said] = []
        for name, value in flat.items():
            if name in kind.model_fields:
                continue
            try:
                meaning = _flat_meaning(kind, name, flat, nested, names, together)
            except ValueError as error:
                problems.append(str(error))
                continue
            if meaning is None:
                unknown_names.append(str(name))
            elif value is not None or name in KNOWN_NAMES:
                here.append(Said(name, value, meaning))
        here += _translated_paths(kind, nested, paths, problems)
        for one in here:  # what it meant before counts no more
            before = said[one.name].meaning if one.name in said else {}
            for field, value in before.items() if isinstance(before, dict) else ():
                if field in merged and merged[field] == value:
                    del merged[field]
        merged |= _in_our_words(kind, values, here, problems)
        said |= {one.name: one for one in here}
    _imply(kind, merged, said)
    return merged, list(said.values()), [*_unknown(unknown_names, kind, problems), *problems]


def _systems(
    kind: type[RunConfig], layers: Iterable[Mapping[str, Any]], problems: list[str]
) -> tuple[list[Mapping[str, Any]], list[str | None]]:
    """Whose names each layer speaks: as its own `names` says, or the last of all that do."""
    layers = list(layers)
    if "names" in kind.model_fields:
        return layers, [None] * len(layers)
    said = [None if values.get("names") is None else str(values["names"]).lower() for values in layers]
    last: str | None = None
    for system in said:
        last = system or last
        if system is not None and system not in SYSTEMS:
            problems.append(unknown("system of names", system, SYSTEMS))
    rest = [{name: value for name, value in values.items() if name != "names"} for values in layers]
    return list(rest), [system or last for system in said]


def _imply(kind: type[RunConfig], merged: dict[str, Any], said: dict[str, Said]) -> None:
    """What goes along with a known name, where nobody says otherwise."""
    for one in list(said.values()):
        known = KNOWN_NAMES.get(one.name)
        if known is None or known.implies is None or not isinstance(one.meaning, dict):
            continue
        setting, value, instead_of = known.implies
        field = kind.model_fields.get(setting)
        if field is not None and field.default == instead_of and merged.setdefault(setting, value) == value:
            said[one.name] = one._replace(meaning={**one.meaning, setting: value})


def _unknown(names: list[str], kind: type[RunConfig], others: list[str]) -> list[str]:
    """One line each. The list of all that are allowed is only there where it is the only line."""
    lines = [
        nested_names.unknown_path(name) if "." in name else unknown("setting", name, kind.model_fields)
        for name in dict.fromkeys(names)
    ]
    if len(lines) + len(others) == 1:
        return lines
    return [line.partition(" allowed: ")[0].rstrip(";") for line in lines]


def _in_our_words(
    kind: type[RunConfig], values: Mapping[str, Any], said: list[Said], problems: list[str]
) -> dict[str, Any]:
    """One layer. Within it, nothing may be said twice in different ways."""
    fields = kind.model_fields
    ours = {n: v for n, v in values.items() if n in fields and not nested_names.is_theirs(n, v)}
    for name, value, meaning in said:
        for field, wanted in meaning.items() if isinstance(meaning, dict) else ():
            if field not in fields:
                problems.append(f"setting {name!r} means {field!r}, which this recipe does not have")
            elif ours.setdefault(field, wanted) != wanted:
                problems.append(f"{name}={value!r} means {field}={wanted!r}, but {field}={ours[field]!r} is set too")
    return ours


def _flat_meaning(
    kind: type[RunConfig],
    name: str,
    values: Mapping[str, Any],
    nested: Mapping[str, Any],
    names: str | None,
    together: Mapping[str, Any],
) -> dict[str, Any] | str | None:
    """What a flat name that is not ours is; None: nobody knows it."""
    value, fields = values[name], kind.model_fields
    if name == "data_queue_size" and values.get("enable_async_training") is False:
        return "with enable_async_training off there is no queue"
    if not isinstance(value, Mapping):
        defaults = {field: info.default for field, info in fields.items()}
        meaning = translate(name, value, fields, names=names, together=together, defaults=defaults)
        if meaning is not None:
            return meaning
    path = path_of(name, fields)
    if path is not None:
        if value is None:
            return {}
        paths = {one: path_of(one, fields) for one in values}
        alone = {theirs: values[one] for one, theirs in paths.items() if theirs is not None and values[one] is not None}
        return nested_names.mean(path, {**nested, **alone}, fields)
    if isinstance(value, Mapping):
        raise ValueError(nested_names.unknown_path(str(name)))
    return None


def _translated_paths(
    kind: type[RunConfig], nested: Mapping[str, Any], here: Mapping[str, Any], problems: list[str]
) -> list[Said]:
    """The nested names of one layer, and those of earlier ones that mean something else now."""
    if not here:
        return []
    theirs: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    for name in nested:
        try:
            theirs[name] = nested_names.resolved(name, nested)
        except ValueError as error:
            theirs[name], unresolved[name] = nested[name], str(error)
    said, refused = [], dict[str, str]()
    for name in nested_names.touched(here.keys(), theirs):
        try:
            meaning = nested_names.mean(name, theirs, kind.model_fields)
        except ValueError as error:
            reason = str(error).removeprefix(f"{name}={theirs[name]!r}: ")
            if not any(reason == other and nested_names.are_read_together(name, one) for one, other in refused.items()):
                problems.append(unresolved.get(name, str(error)))
            refused[name] = reason
            continue
        if name in unresolved and isinstance(meaning, dict):
            problems.append(unresolved[name])
        else:
            said.append(Said(name, theirs[name], meaning))
    return said


def _structure(text: str) -> Any:
    """A mapping or a list that was written on the command line."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _lines(error: ValidationError, *, with_combinations: bool) -> list[str]:
    """A line for each value that cannot be. What only several settings together cause may be due to other problems."""
    by_name: dict[str, list[str]] = {}
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"][:1])
        message = problem["msg"].removeprefix("Value error, ")
        if name or with_combinations:
            by_name.setdefault(name, []).append(f"{name}={problem['input']!r}: {message}" if name else message)
    return ["; ".join(dict.fromkeys(lines)) for lines in by_name.values()]
