"""From stations and settings to a finished run: runtime, folder, signals and status around a coordinator.

SIGINT, SIGTERM   finish the update, save, end (a second one ends at once)
SIGUSR1           print who waits for what

Where the caller's thread has a running event loop (a notebook, asyncio) the coordinator has a thread of its own.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from headway.coordinate.best_weights import FILE, BestWeights
from headway.coordinate.checkpoint import CheckpointError, CheckpointStore, RunState
from headway.coordinate.components import Reports
from headway.coordinate.coordinator import INTERRUPTED, Coordinator, RunResult, check_same_run
from headway.coordinate.functions import (
    CollectFunction,
    EvaluateFunction,
    TrainFunction,
    stations_from_functions,
)
from headway.coordinate.roles import LEARNER, Stations
from headway.coordinate.settings import Plan, Settings
from headway.coordinate.system_failures import system_failed, way_back
from headway.core.events import as_event
from headway.core.ledger import LedgerStatistics
from headway.core.naming import unknown
from headway.core.order import parse_on_stale, parse_order
from headway.core.protocols import Runtime
from headway.core.refusals import refusal
from headway.core.types import CUT_EPISODES
from headway.observe.alarms import Alarms
from headway.observe.console import REFRESH_S, RoleStatus, Status, StatusDisplay
from headway.observe.environment import describe_environment
from headway.observe.fingerprint import fingerprint
from headway.observe.folder import RunFolder
from headway.observe.log_file import TextLog
from headway.observe.log_parts import go_on_at, log_size
from headway.observe.messages import to_stderr
from headway.observe.metrics import Metrics, load_metrics
from headway.observe.monitor import Monitor, MonitorThread, load_monitor
from headway.observe.recorder import EventLog, EventSink, NoRecorder, PrintingRecorder, Recorder, read_events
from headway.observe.samples import SampleLog
from headway.observe.sinks import (
    INTERVAL_S,
    Deliveries,
    JsonLines,
    Look,
    MetricsRecorder,
    Sink,
    processor_s_of,
    resident_bytes,
    resident_bytes_of,
)
from headway.observe.statistics import seconds
from headway.observe.trace import write_trace
from headway.runtime.own_thread import has_running_loop, run_in_own_thread

RUNTIMES = ("inline", "threads", "processes", "ray")
STATISTICS_EVERY_S = 30.0
LOOK_EVERY_S = 1.0  # at the clock, whether a look at the run is due
TRACE_UP_TO_BYTES = 20 * 2**20  # of events: about 200,000, a few seconds to read


def build_runtime(name: str, **ray_options: Any) -> Runtime:
    """A runtime by name. `RayActors` says what `ray_options` there are; no other runtime has any."""
    if ray_options and name != "ray":
        raise ValueError(f"{', '.join(ray_options)}: for the runtime 'ray' only, received {name!r}")
    if name == "inline":
        from headway.runtime.inline import Inline

        return Inline()
    if name == "threads":
        from headway.runtime.threads import Threads

        return Threads()
    if name == "processes":
        from headway.runtime.processes import Processes

        return Processes()
    if name == "ray":
        try:
            from headway.runtime.ray_actors import RayActors
        except ModuleNotFoundError as error:
            raise ValueError(f"the runtime 'ray' needs {error.name}: pip install 'headway[ray]'") from None
        return RayActors(**ray_options)
    raise ValueError(unknown("runtime", name, RUNTIMES))


def has_tensorboard() -> bool:
    return find_spec("tensorboard") is not None


def build_sinks(
    folder: RunFolder,
    *,
    tensorboard: bool | None = None,
    use_wandb: bool = False,
    wandb_project: str = "headway",
    wandb_mode: Literal["online", "offline", "disabled"] = "online",
    prometheus_port: int | None = None,
    prometheus_host: str = "127.0.0.1",
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> list[Sink]:
    """The sinks these settings ask for; `tensorboard=None` is yes where the package is installed. `name` is what the
    run is called on Weights & Biases; its folder's name unless it is said."""
    sinks: list[Sink] = []
    extra, setting = "tensorboard", "tensorboard"
    with ExitStack() as unless_all_are_built:
        try:
            if prometheus_port is not None:
                from headway.observe.prometheus_sink import PrometheusSink

                sinks.append(PrometheusSink(prometheus_port, host=prometheus_host, run=folder.path.name))
                unless_all_are_built.callback(sinks[-1].close)
            if tensorboard or (tensorboard is None and has_tensorboard()):
                from headway.observe.tensorboard_sink import TensorBoardSink

                sinks.append(TensorBoardSink(folder.path / "tensorboard"))
            if use_wandb:
                extra, setting = "wandb", "use_wandb"
                from headway.observe.wandb_sink import WandbSink

                sinks.append(WandbSink(folder.path, project=wandb_project, mode=wandb_mode, config=config, name=name))
        except ModuleNotFoundError as error:
            missing = (error.name or extra).partition(".")[0]
            raise ValueError(f"{setting}=true needs {missing}: pip install 'headway[{extra}]'") from None
        unless_all_are_built.pop_all()
    return sinks


def run(
    collect: CollectFunction,
    train: TrainFunction,
    evaluate: EvaluateFunction | None = None,
    *,
    weights: Any,
    updates: int | None = None,
    steps: int | None = None,
    wall_s: float | None = None,
    target_score: float | None = None,
    evaluate_every: int = 0,
    save_every: int = 0,
    save_every_s: float = 300.0,
    warmup_s: float = 0.0,
    max_lead: float | str = 1,
    order: str = "oldest",
    max_staleness: int | None = None,
    on_stale: str = "wait",
    collectors: int = 1,
    tickets_per_batch: int = 1,
    seed: int = 0,
    runtime: str | Runtime = "threads",
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint: str | int | None = None,
    show_status: bool = False,
    sinks: Sequence[Sink] = (),
    metrics_interval_s: float = INTERVAL_S,
    metric_aliases: bool = False,
    alarms: Mapping[str, float] | None = None,
    monitor: Monitor | str | None = None,
    monitor_every_s: float = STATISTICS_EVERY_S,
    statistics_every_s: float = STATISTICS_EVERY_S,
    keep_best: bool = True,
    **settings: Any,
) -> RunResult:
    """Collect, train and evaluate with three functions of your own, at the same time.

    `collect(weights, ticket)`, `train(weights, rollouts) -> weights`, `evaluate(weights) -> number`. Any other
    field of `Settings` may be given as a keyword too. With `folder`, events, metrics and checkpoints are kept
    there, and `resume=True` goes on from the last checkpoint, or from the one that `checkpoint` names (000007-v42) or
    that holds this version; `headway report FOLDER`, or `write_report` of
    `headway.reporting`, makes the page of it. `sinks` get the metrics too, and are closed at the end.
    `alarms` are thresholds by name (`headway.observe.alarms.KNOWN`), for runs with a folder or sinks. `monitor` is a
    function (or where it is: file.py:function) that is given statistics at intervals (`headway.observe.monitor`).
    """
    if evaluate is None and (evaluate_every or target_score is not None):
        raise ValueError("evaluate_every and target_score need an evaluate function")
    plan = Plan(
        updates=updates,
        steps=steps,
        wall_s=wall_s,
        target_score=target_score,
        evaluate_every=evaluate_every or (1 if target_score is not None else 0),
        evaluate_last=evaluate is not None,
        save_every=save_every,
        save_every_s=save_every_s,
        warmup_s=warmup_s,
    )
    return launch(
        stations_from_functions(collect, train, evaluate, weights=weights),
        Settings(
            plan=plan,
            collectors=collectors,
            max_lead=max_lead,  # type: ignore[arg-type]  # Settings says what is allowed
            order=parse_order(order),
            max_staleness=max_staleness,
            on_stale=parse_on_stale(on_stale),
            tickets_per_batch=tickets_per_batch,
            seed=seed,
            **settings,
        ),
        runtime=runtime,
        folder=None if folder is None else RunFolder(Path(folder)),
        resume=resume,
        checkpoint=checkpoint,
        show_status=show_status,
        sinks=sinks,
        metrics_interval_s=metrics_interval_s,
        metric_aliases=metric_aliases,
        alarms=alarms,
        monitor=monitor,
        monitor_every_s=monitor_every_s,
        statistics_every_s=statistics_every_s,
        keep_best=keep_best,
    )


def launch(
    stations: Stations,
    settings: Settings,
    *,
    runtime: str | Runtime = "threads",
    folder: RunFolder | None = None,
    keep_checkpoints: int = 2,
    resume: bool = False,
    checkpoint: str | int | None = None,
    show_status: bool = False,
    print_events: bool = False,
    sinks: Sequence[Sink] = (),
    metrics_interval_s: float = INTERVAL_S,
    metric_aliases: bool = False,
    alarms: Mapping[str, float] | None = None,
    monitor: Monitor | str | None = None,
    monitor_every_s: float = STATISTICS_EVERY_S,
    statistics_every_s: float = STATISTICS_EVERY_S,
    keep_best: bool = True,
    config: tuple[str, Mapping[str, Any]] | None = None,
) -> RunResult:
    """Run to the end, or until a signal asks for it. The sinks are closed, however it ends.

    `config` is the recipe's name and settings: they are written into the folder, and into the log with each session.
    """
    if checkpoint is not None and not resume:
        raise ValueError(f"checkpoint={checkpoint!r} is for a run that is resumed")
    watch = Alarms(alarms or {})
    if isinstance(monitor, str):
        monitor = load_monitor(monitor)  # before anything of the run is there
    if monitor_every_s <= 0 or statistics_every_s < 0:
        wanted = f"received {monitor_every_s!r} and {statistics_every_s!r}"
        raise ValueError(f"monitor_every_s must be > 0 and statistics_every_s >= 0, {wanted}")
    ended: list[RunResult] = []
    with ExitStack() as stack:
        stack.enter_context(_told_in_one_line(folder))
        deliveries = stack.enter_context(Deliveries(sinks))
        place = build_runtime(runtime) if isinstance(runtime, str) else runtime
        store = best = samples = state = None
        recorder: Recorder | None = None
        log_of_events: EventSink = NoRecorder()
        metrics: Metrics | None = None
        if folder is not None:
            folder.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder.hold())  # before anything is read
            stack.callback(lambda: _leave_summary(folder, ended))  # last of all, before somebody else may come
            store = CheckpointStore(folder.checkpoints, keep=keep_checkpoints)
            best = _best_weights(folder) if keep_best else None
            if resume:
                begin = None if checkpoint is None else store.find(checkpoint)
                state = _newest_state(folder, store) if begin is None else store.load(begin)
                if state is not None:
                    check_same_run(state, settings)  # before anything of the run is touched
                for aside in store.set_aside_after(begin) if begin is not None else ():
                    to_stderr(f"set aside, as the run goes on before it: {aside}")
                folder.summary.unlink(missing_ok=True)
            elif folder.events.exists():
                raise ValueError(f"{folder.path} holds a run already: resume it, or choose another folder")
            if config is not None and not resume:
                folder.write_config(config[0], dict(config[1]))
            clock_s = state.events_s if state else 0.0
            samples = stack.enter_context(SampleLog(folder.samples))
            folder.note_session(describe_environment(), clock_s)
            missing = ""
            if resume:
                samples.go_on(state.updates if state else 0, [score.version for score in state.scores] if state else [])
                position, check = (state.events_position, state.events_check) if state else (0, None)
                missing = go_on_at(folder.events, position, check)
            metrics = Metrics() if state is None else _metrics_so_far(state, folder.events)
            recorder = log_of_events = EventLog(folder.events)
            stack.callback(_leave_trace, folder)
            stack.callback(recorder.close)
            if missing:
                to_stderr(f"{missing}: the run goes on, but cannot be replayed from its beginning")
                log_of_events.record(clock_s, "gap", {"why": missing})
            deliveries.add(JsonLines(folder.metrics, until_s=clock_s if resume else None))
        elif resume:
            raise ValueError("resume needs the folder of the run")
        if print_events:
            recorder = log_of_events = PrintingRecorder(log_of_events)
        if deliveries:
            began_s = time.process_time()
            recorder = MetricsRecorder(
                log_of_events,
                deliveries.put,
                lambda: look_at(coordinator, began_s=began_s),
                metrics=metrics,
                interval_s=metrics_interval_s,
                aliases=metric_aliases,
                alarms=watch,
                in_background=not print_events,
            )
        coordinator = Coordinator(
            stations,
            settings,
            place,
            recorder=recorder,
            checkpoints=store,
            best=best,
            samples=samples,
            resume=state,
            config=None if config is None else {"recipe": config[0], **config[1]},
            when_begun=_keep_config(folder, config) if resume else None,
        )
        is_apart = has_running_loop() and place.name != "virtual"  # whose loop knows how to stand in for another
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(_signals(coordinator, is_apart=is_apart))
        main = coordinator.run()
        stack.callback(main.close)  # if it never begins; one that has ended does not mind
        log = None
        if folder is not None and place.name != "virtual":
            log = stack.enter_context(TextLog(folder.log))
        if isinstance(recorder, MetricsRecorder) and place.name != "virtual":
            main = _look_by_the_clock(main, coordinator, recorder)
            stack.callback(main.close)
        if show_status or log is not None:
            latest = _LatestStatus(coordinator, watch)
            stack.enter_context(StatusDisplay(latest.get, log=log, is_shown=show_status))
            main = latest.follow(main)
            stack.callback(main.close)
        reports = Reports(
            coordinator,
            log=log,
            log_every_s=statistics_every_s,
            watch=None if monitor is None else _watch(coordinator, monitor, log),
            watch_every_s=monitor_every_s,
        )
        whole = reports.follow(main)
        stack.callback(whole.close)
        if is_apart:
            ask = partial(coordinator.request_stop, f"{INTERRUPTED} by KeyboardInterrupt")
            result = run_in_own_thread(place, whole, partial(coordinator.call_soon, ask), coordinator.abort)
        else:
            result = place.run(whole)
        ended.append(result)
    return result


@contextmanager
def _told_in_one_line(folder: RunFolder | None) -> Iterator[None]:
    """What the operating system refuses ends the run with `SystemFailed`: one line, with the way back."""
    try:
        yield
    except Exception as error:
        failed = system_failed(error, None if folder is None else folder.path)
        if failed is None:
            raise
        raise failed from error


def _leave_summary(folder: RunFolder, ended: Sequence[RunResult]) -> None:
    """A run that got to its end has its result, also where there is no room to write it down."""
    try:
        for result in ended:
            folder.write_summary(summary_of(result))
    except OSError as error:
        to_stderr(f"no summary: {refusal(error)}{way_back(folder.path)}")


def _watch(coordinator: Coordinator, monitor: Monitor, log: TextLog | None) -> MonitorThread:
    """The monitor's thread; what it has to say goes to standard error and into the log."""

    def note(line: str) -> None:
        to_stderr(line)
        if log is not None:
            log.write(f"{line}\n")

    return MonitorThread(monitor, lambda why: coordinator.call_soon(lambda: coordinator.request_stop(why)), say=note)


async def _look_by_the_clock(
    main: Coroutine[Any, Any, RunResult], coordinator: Coordinator, recorder: MetricsRecorder
) -> RunResult:
    """`main`, and beside it looks at a run that makes no updates: alarms ring all the same."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            recorder.look_by_the_clock(coordinator.elapsed_s)

    return await _with_beside(main, watch())


async def _with_beside(main: Coroutine[Any, Any, RunResult], endless: Coroutine[Any, Any, None]) -> RunResult:
    """`main`, and beside it what goes on for as long as that does."""
    going_on = asyncio.create_task(endless)
    try:
        return await main
    finally:
        going_on.cancel()


def _best_weights(folder: RunFolder) -> BestWeights:
    """Those of the run so far. A damaged file is set aside: what scored best is no reason not to go on."""
    try:
        return BestWeights(folder.checkpoints)
    except CheckpointError as error:
        path = folder.checkpoints / FILE
        aside = path.with_name(f"damaged-{path.name}")
        to_stderr(f"{error}; it is set aside as {aside.name}, and the next best is kept in its place")
        path.replace(aside)
        return BestWeights(folder.checkpoints)


def _keep_config(folder: RunFolder | None, config: tuple[str, Mapping[str, Any]] | None) -> Callable[[], None] | None:
    """Write the settings a run was resumed with, once it goes on with them: a change that was refused must not stay."""
    if folder is None or config is None:
        return None
    recipe, values = config
    return lambda: folder.write_config(recipe, dict(values))


def _newest_state(folder: RunFolder, store: CheckpointStore) -> RunState | None:
    """What to go on from. A run that ended before its first checkpoint begins again."""
    if store.all() or not folder.events.exists():
        return store.load()
    to_stderr(f"nothing was saved yet in {folder.path}: the run begins again with its first ticket")
    return None


def _leave_trace(folder: RunFolder) -> None:
    """However the run ended. A log that takes long to read is left to `headway trace`."""
    failing = sys.exc_info()[1]
    is_refused = failing is not None and refusal(failing) is not None
    try:
        if log_size(folder.events) > TRACE_UP_TO_BYTES:
            to_stderr(f"a long run; to write its trace: headway trace {folder.path}")
            return
        write_trace(folder)
    except ValueError as error:
        to_stderr(f"no trace: {error}")
    except (OSError, MemoryError) as error:
        if not is_refused:  # if it is, the run ends with a line about it
            to_stderr(f"no trace: {refusal(error)}; to write it: headway trace {folder.path}")


def _metrics_so_far(state: RunState, events: Path) -> Metrics:
    """What the sessions before add up to: as the checkpoint has it, or else from the log. A damaged log costs the
    totals, it does not keep a run from going on."""
    metrics = load_metrics(state.metrics)
    if metrics is not None:
        return metrics
    metrics = Metrics()
    try:
        for event in read_events(events):
            metrics.apply(as_event(event))
    except ValueError as error:
        to_stderr(f"the totals of the metrics start anew: {error}")
        return Metrics()
    return metrics


def look_at(coordinator: Coordinator, *, began_s: float = 0.0) -> Look:
    """What no event says by itself. To be called in the coordinator's thread. `began_s` is the processor time that this
    process had used when the run began."""
    spent: dict[str, dict[str, float]] = {}
    for role, activities in coordinator.board.time_spent().seconds.items():
        kind = spent.setdefault(role.partition("-")[0], {})
        for activity, seconds_ in activities.items():
            kind[activity] = kind.get(activity, 0.0) + seconds_
    rounded = {kind: {name: round(s, 6) for name, s in by.items()} for kind, by in spent.items()}
    runtime = coordinator.runtime
    pids: dict[str, int] = runtime.pids() if isinstance(runtime, HasProcesses) else {}  # of roles on this machine
    sizes = {role: size for role, pid in pids.items() if (size := resident_bytes_of(pid)) is not None}
    cpu_s = time.process_time() - began_s + sum(processor_s_of(pid) for pid in pids.values())
    return Look(coordinator.lead, rounded, resident_bytes(), sizes, round(cpu_s, 3))


@runtime_checkable
class HasProcesses(Protocol):
    """A runtime whose roles run in processes of their own."""

    def pids(self) -> dict[str, int]: ...


class _LatestStatus:
    """Looks at the coordinator in its own thread, where nothing moves meanwhile; others read the last look."""

    def __init__(self, coordinator: Coordinator, alarms: Alarms) -> None:
        self._coordinator = coordinator
        self._alarms = alarms
        self._status = status_of(coordinator)

    def get(self) -> Status:
        return self._status

    async def follow(self, main: Coroutine[Any, Any, RunResult]) -> RunResult:
        return await _with_beside(main, self._watch())

    async def _watch(self) -> None:
        while True:
            self._status = status_of(self._coordinator, self._alarms.lines())
            await asyncio.sleep(REFRESH_S)


def status_of(coordinator: Coordinator, alarms: Sequence[str] = ()) -> Status:
    """A moment of the run. To be called in the coordinator's thread."""
    plan = coordinator.settings.plan
    statistics = coordinator.ledger.statistics()
    done, total, unit = float(coordinator.updates), plan.updates, "update"
    if plan.updates is None and plan.steps is not None:
        done, total, unit = statistics.steps, plan.steps, "step"
    elif plan.updates is None and plan.wall_s is not None:
        done, total, unit = coordinator.wall_s, int(plan.wall_s), "second"
    scores = [score for score in coordinator.evaluations.scores if score.value is not None]
    wall_s = max(coordinator.wall_s, 1e-9)
    restarts = coordinator.restarts
    return Status(
        done=done,
        total=total,
        unit=unit,
        version=coordinator.version,
        lead=coordinator.lead,
        staleness=statistics.mean_staleness,
        updates_per_s=coordinator.updates / wall_s,
        score=scores[-1].value if scores else None,
        roles=tuple(
            RoleStatus(doing.role, doing.activity, doing.words, doing.since_s, doing.answered_s, restarts[doing.role])
            for doing in coordinator.board.doing()
        ),
        max_staleness=statistics.max_staleness,
        rollouts_per_s=statistics.landed / wall_s,
        steps_per_s=statistics.steps / wall_s,
        score_version=scores[-1].version if scores else None,
        drops=dict(statistics.dropped),
        restarts=sum(restarts.values()),
        alarms=tuple(alarms),
    )


def statistics_rows(result: RunResult) -> dict[str, str]:
    """The lines of the statistics block: the familiar ones first."""
    ledger, spent, settings = result.ledger, result.time_spent, result.settings
    mode = "SYNCHRONOUS" if settings.is_synchronous else "ASYNCHRONOUS"
    dropped = ", ".join(f"{n} {reason}" for reason, n in ledger.dropped.items()) or "none"
    flown = {"reissued": ledger.reissued, "requeued": ledger.requeued, "lost": ledger.lost}
    again = ", ".join(f"{n} {why}" for why, n in flown.items() if n)
    wall = max(result.wall_s, 1e-9)
    rows = {
        "Mode": mode,
        "Collect iterations": str(ledger.landed),
        "Train iterations": str(result.updates),
        "Final lag": str(ledger.opened - ledger.learned - sum(ledger.dropped.values())),
        "Avg collect time": seconds(spent.mean("collector", "collect")),
        "Avg train time": seconds(spent.mean(LEARNER, "learn")),
        "Avg eval time": seconds(spent.mean("evaluator", "evaluate")),
        "Evaluations": _evaluations(result),
        "Wall time": seconds(result.wall_s),
        "Updates per second": f"{spent.count(LEARNER, 'learn') / wall:.2f}",  # of this session, as the time is
        "Lead / order / dispatch": f"{result.lead:g} / {settings.effective_order} / "
        + ("pinned" if settings.is_pinned else "free"),
        "Staleness mean / max": f"{ledger.mean_staleness:.2f} / {ledger.max_staleness}",
        **({"Age mean / max": _ages(ledger)} if settings.max_age_s is not None else {}),
        "Learner waited for data": f"{100 * spent.total(LEARNER, 'data') / wall:.1f}%",
        "Length bias": f"{100 * ledger.length_bias:+.1f}%",
        "Dropped": dropped,
        **({"Collected again": again} if again else {}),
        "Restarts": str(result.restarts),
        "Last score": _last_score(result),
        "Stopped": result.stop_reason,
    }
    return rows


def _evaluations(result: RunResult) -> str:
    counts = {
        "failed": sum(score.value is None for score in result.scores),
        "skipped": result.evaluations_skipped,
        "abandoned": len(result.evaluations_abandoned),
    }
    return ", ".join([str(len(result.scores)), *(f"{count} {what}" for what, count in counts.items() if count)])


def _last_score(result: RunResult) -> str:
    """The newest score there is, and in brackets what keeps it from being that of the last version as it is."""
    scored = [score for score in result.scores if score.value is not None]
    remarks = []
    if scored and (cut := scored[-1].metrics.get(CUT_EPISODES, 0)):
        remarks.append(f"{cut:g} of {scored[-1].metrics.get('episodes', 0):g} episodes were cut")
    if result.scores and result.scores[-1].value is None:
        why = next(iter((result.scores[-1].error or "").splitlines()), "no reason was given")
        remarks.append(f"that of version {result.scores[-1].version} failed: {why}")
    remarks += [f"that of version {version} was abandoned" for version in result.evaluations_abandoned]
    number = f"{scored[-1].value:.3f}" if scored else "-"
    return f"{number} ({'; '.join(remarks)})" if remarks else number


def _ages(ledger: LedgerStatistics) -> str:
    kept = f", {ledger.kept_expired} kept in spite of it" if ledger.kept_expired else ""
    return f"{seconds(ledger.mean_age_s)} / {seconds(ledger.max_age_s)}{kept}"


def summary_of(result: RunResult) -> dict[str, Any]:
    """`summary.json`."""
    ledger = result.ledger
    return {
        "stop_reason": result.stop_reason,
        "complete": result.is_complete,
        "version": result.version,
        "updates": result.updates,
        "fingerprint": fingerprint(result.weights),
        "wall_s": result.wall_s,
        "scores": [{"version": s.version, "value": s.value, "error": s.error} for s in result.scores],
        "tickets": {
            "opened": ledger.opened,
            "learned": ledger.learned,
            "dropped": ledger.dropped,
            "returned": ledger.returned,
            "reissued": ledger.reissued,
            "requeued": ledger.requeued,
            "lost": ledger.lost,
        },
        "staleness": ledger.staleness,
        "age_s": {"mean": ledger.mean_age_s, "max": ledger.max_age_s, "kept_expired": ledger.kept_expired},
        "length_bias": ledger.length_bias,
        "restarts": result.restarts,
        "lead": result.lead,
        "seconds": result.time_spent.seconds,
    }


@contextmanager
def _signals(coordinator: Coordinator, *, is_apart: bool) -> Iterator[None]:
    """Route the signals to the coordinator, which may be in another thread; put the old handlers back at the end."""
    asked = 0

    def say(line: str) -> None:
        try:
            print(line, file=sys.stderr, flush=True)
        except RuntimeError:  # the signal came in the middle of another line, which has to be whole first
            coordinator.call_soon(lambda: print(line, file=sys.stderr, flush=True))

    def stop(number: int, frame: Any) -> None:
        nonlocal asked
        asked += 1
        name = signal.Signals(number).name
        if asked > 1:
            say(f"{name} again: ending now")
            coordinator.abort()
        else:
            say(f"{name}: saving and ending after this update (again: at once)")
            coordinator.call_soon(lambda: coordinator.request_stop(f"{INTERRUPTED} by {name}"))

    def explain(number: int, frame: Any) -> None:
        if is_apart:  # in the thread where nothing moves meanwhile
            coordinator.call_soon(lambda: say(coordinator.why()))
        else:
            say(coordinator.why())

    handlers: dict[int, Callable[[int, Any], None]] = {
        signal.SIGINT: stop,
        signal.SIGTERM: stop,
        signal.SIGUSR1: explain,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
