"""One session of a run, from stations and settings to its end: everything around a coordinator.

Where the caller's thread has a running event loop (a notebook, asyncio) the coordinator has a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.run_result_control import INTERRUPTED
from headway.coordinator.settings import Settings
from headway.core.protocols import Runtime
from headway.core.text_messages import to_stderr
from headway.core.types_opaque import CoroutineOf, SettingValue
from headway.runs.console import StatusDisplay
from headway.runs.console_run_status import LatestStatus, look_at, look_by_the_clock
from headway.runs.event_log import EventSink, NoRecorder, PrintingRecorder, Recorder
from headway.runs.files_recording import Recording
from headway.runs.files_run_files import RecipeConfig, RunFiles, keep_config, open_files, with_absolute_paths
from headway.runs.files_system_failures import system_failed
from headway.runs.folder import RunFolder
from headway.runs.launch_signals import routed_signals
from headway.runs.log_file import TextLog
from headway.runs.monitor import Monitor, MonitorThread, load_monitor
from headway.runs.monitor_alarms import Alarms
from headway.runs.monitor_components import Reports
from headway.runs.requests import listening
from headway.runs.sinks import Deliveries, MetricsRecorder, Sink
from headway.runtimes.build import build_runtime
from headway.runtimes.loop_threads_own_thread import has_running_loop, run_in_own_thread


def launch(
    stations: Stations,
    settings: Settings,
    *,
    runtime: str | Runtime = "threads",
    folder: RunFolder | None = None,
    resume: bool = False,
    checkpoint: str | int | None = None,
    show_status: bool = False,
    print_events: bool = False,
    sinks: Sequence[Sink] = (),
    config: RecipeConfig | None = None,
    attach: Callable[[Coordinator], None] | None = None,
    **recording: SettingValue,
) -> RunResult:
    """Run to the end, or until a signal asks for it. The sinks are closed, however it ends.

    `config` is the recipe's name and settings: they are written into the folder, and into the log with each session.
    `attach` is called with the coordinator before it begins, for those who look at it from another thread.
    `recording` is what is kept of the run and who looks at it: the fields of `Recording` as keywords.
    """
    if checkpoint is not None and not resume:
        raise ValueError(f"checkpoint={checkpoint!r} is for a run that is resumed")
    config = None if config is None else (config[0], with_absolute_paths(config[1]))
    kept = Recording(**recording)
    alarms = Alarms(kept.alarms or {})
    if isinstance(kept.monitor, str):
        kept = replace(kept, monitor=load_monitor(kept.monitor))  # before anything of the run is there
    ended: list[RunResult] = []
    with ExitStack() as stack:
        stack.enter_context(_told_in_one_line(folder))
        deliveries = stack.enter_context(Deliveries(sinks))
        place = build_runtime(runtime, start_s=settings.deadlines.start_s) if isinstance(runtime, str) else runtime
        files = None
        if folder is not None:
            files = open_files(
                stack, folder, settings, kept, ended=ended, resume=resume, checkpoint=checkpoint, config=config
            )
            deliveries.add(files.numbers)
        elif resume:
            raise ValueError("resume needs the folder of the run")
        recorder = _recorder(files, deliveries, kept, alarms, lambda: coordinator, print_events=print_events)
        coordinator = Coordinator(
            stations,
            settings,
            place,
            recorder=recorder,
            checkpoints=None if files is None else files.store,
            best=None if files is None else files.best,
            samples=None if files is None else files.samples,
            resume=None if files is None else files.state,
            config=None if config is None else {"recipe": config[0], **config[1]},
            when_begun=keep_config(folder, config) if resume else None,
        )
        if attach is not None:
            attach(coordinator)
        is_apart = has_running_loop() and place.name != "virtual"  # whose loop knows how to stand in for another
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(routed_signals(coordinator, is_apart=is_apart))
        log = None
        if folder is not None and place.name != "virtual":
            log = stack.enter_context(TextLog(folder.log))
            stack.enter_context(listening(folder, coordinator))
        whole = _with_company(stack, coordinator, recorder, alarms, kept, log, show_status=show_status)
        if is_apart:
            ask = partial(coordinator.request_stop, f"{INTERRUPTED} by KeyboardInterrupt")
            result = run_in_own_thread(place, whole, partial(coordinator.call_soon, ask), coordinator.abort)
        else:
            result = place.run(whole)
        ended.append(result)
    return result


def _recorder(
    files: RunFiles | None,
    deliveries: Deliveries,
    kept: Recording,
    alarms: Alarms,
    coordinator: Callable[[], Coordinator],
    *,
    print_events: bool,
) -> Recorder | None:
    """Who is told every event: the log, the terminal, and the metrics, as far as there are any."""
    log: EventSink = NoRecorder() if files is None else files.events
    if print_events:
        log = PrintingRecorder(log)
    if not deliveries:
        return log if print_events else None
    began_s = time.process_time()
    return MetricsRecorder(
        log,
        deliveries.put,
        lambda: look_at(coordinator(), began_s=began_s),
        metrics=None if files is None else files.metrics,
        interval_s=kept.metrics_interval_s,
        aliases=kept.metric_aliases,
        alarms=alarms,
        in_background=not print_events,
    )


def _with_company(
    stack: ExitStack,
    coordinator: Coordinator,
    recorder: Recorder | None,
    alarms: Alarms,
    kept: Recording,
    log: TextLog | None,
    *,
    show_status: bool,
) -> CoroutineOf[RunResult]:
    """The coordinator's run, and beside it whoever looks at it: metrics by the clock, the console, statistics."""
    main = coordinator.run()
    stack.callback(main.close)  # if it never begins; one that has ended does not mind
    if isinstance(recorder, MetricsRecorder) and coordinator.runtime.name != "virtual":
        main = look_by_the_clock(main, coordinator, recorder)
        stack.callback(main.close)
    if show_status or log is not None:
        latest = LatestStatus(coordinator, alarms)
        stack.enter_context(StatusDisplay(latest.get, log=log, is_shown=show_status))
        main = latest.follow(main)
        stack.callback(main.close)
    assert not isinstance(kept.monitor, str)
    reports = Reports(
        coordinator,
        log=log,
        log_every_s=kept.statistics_every_s,
        watch=None if kept.monitor is None else _watch(coordinator, kept.monitor, log),
        watch_every_s=kept.monitor_every_s,
    )
    whole = reports.follow(main)
    stack.callback(whole.close)
    return whole


def _watch(coordinator: Coordinator, monitor: Monitor, log: TextLog | None) -> MonitorThread:
    """The monitor's thread; what it has to say goes to standard error and into the log."""

    def note(line: str) -> None:
        to_stderr(line)
        if log is not None:
            log.write(f"{line}\n")

    return MonitorThread(monitor, lambda why: coordinator.call_soon(lambda: coordinator.request_stop(why)), say=note)


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
