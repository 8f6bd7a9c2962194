"""The files of a run's folder while a session goes on: what it goes on from, and what it writes.

    hold the folder --> checkpoints, best weights --> the state to go on from --> samples, event log, metrics so far

However the session ends, its log is closed, a trace is written, and a run that got to its end leaves its summary. A
disk that does not answer keeps none of that waiting for long: it is said, and left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.coordinator.checkpoint import CheckpointError, CheckpointStore, RunState
from headway.coordinator.checkpoint_best_weights import FILE, BestWeights
from headway.coordinator.run_result import RunResult
from headway.coordinator.saving import check_same_run, with_number_in_force
from headway.coordinator.settings import Settings
from headway.core.events_written_events import as_event
from headway.core.os_errors import refusal
from headway.core.text_messages import to_stderr
from headway.core.types_opaque import SettingValue
from headway.runs.event_log import EventLog, read_events
from headway.runs.files_recording import Recording
from headway.runs.files_run_summary import summary_of
from headway.runs.files_system_failures import folder_lost, way_back
from headway.runs.folder import RunFolder
from headway.runs.folder_environment import describe_environment
from headway.runs.log_file import CLOSE_WITHIN_S
from headway.runs.log_parts import go_on_at, log_size
from headway.runs.metrics import Metrics, load_metrics
from headway.runs.samples import SampleLog
from headway.runs.sinks import JsonLines
from headway.runtimes.loop_threads_daemon_thread import in_daemon_thread
from headway.tools.report.timeline_trace import write_trace

TRACE_UP_TO_BYTES = 20 * 2**20  # of events: about 200,000, a few seconds to read

RecipeConfig = tuple[str, Mapping[str, SettingValue]]
"""The name of a recipe, and its settings."""


DATA = ("jsonl:", "parquet:", "gsm8k:", "datasets:")
"""What stands before the place of a task's data."""
FOLDERS = ("model", "reward_model", "held_out", "more_files")
"""Settings that may name a folder by a single word."""
NO_FOLDERS = ("smollm2", "made")
"""Words that mean something else there, whatever is called like them here."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What a session has in its folder."""

    store: CheckpointStore
    best: BestWeights | None
    samples: SampleLog
    events: EventLog
    metrics: Metrics
    """What the sessions before add up to."""
    numbers: JsonLines
    """metrics.jsonl"""
    state: RunState | None
    """What the session goes on from; None: it is the first, or nothing was saved yet."""


def open_files(
    stack: ExitStack,
    folder: RunFolder,
    settings: Settings,
    recording: Recording,
    *,
    ended: Sequence[RunResult],
    resume: bool,
    checkpoint: str | int | None,
    config: RecipeConfig | None,
) -> RunFiles:
    """Open a folder for a session. `stack` closes everything; `ended` will hold the result of a run that got to its
    end."""
    folder.path.mkdir(parents=True, exist_ok=True)
    stack.enter_context(folder.hold())  # before anything is read
    stack.enter_context(_in_its_place(folder))
    stack.callback(lambda: _leave_summary(folder, ended))  # last of all, before somebody else may come
    store = CheckpointStore(folder.checkpoints, keep=recording.keep_checkpoints)
    best = _best_weights(folder) if recording.keep_best else None
    state = None
    if resume:
        state = _state_to_go_on_from(folder, store, settings, checkpoint)
        folder.summary.unlink(missing_ok=True)
    elif folder.events.exists():
        raise ValueError(f"{folder.path} holds a run already: resume it, or choose another folder")
    elif config is not None:
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
    events = EventLog(folder.events, limit_bytes=recording.log_limit_mb << 20)
    stack.callback(_leave_trace, folder)
    stack.callback(events.close)
    if missing:
        to_stderr(f"{missing}: the run goes on, but cannot be replayed from its beginning")
        events.record(clock_s, "gap", {"why": missing})
    numbers = JsonLines(folder.metrics, until_s=clock_s if resume else None)
    return RunFiles(store, best, samples, events, metrics, numbers, state)


def _state_to_go_on_from(
    folder: RunFolder, store: CheckpointStore, settings: Settings, checkpoint: str | int | None
) -> RunState | None:
    """That of the named checkpoint, or of the newest. What was saved after a named one is set aside."""
    begin = None if checkpoint is None else store.find(checkpoint)
    state = _newest_state(folder, store) if begin is None else store.load(begin)
    if state is not None:
        check_same_run(state, with_number_in_force(settings, state))  # before anything of the run is touched
    for aside in store.set_aside_after(begin) if begin is not None else ():
        to_stderr(f"set aside, as the run goes on before it: {aside}")
    return state


def with_absolute_paths(values: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings whose files and folders are found from any other folder too, as a run's folder keeps them."""
    return {name: _absolute(name, value) for name, value in values.items()}


def _absolute(name: str, value: SettingValue) -> SettingValue:
    if isinstance(value, Mapping):
        return with_absolute_paths(value)
    if isinstance(value, list | tuple):
        return [_absolute(name, one) for one in value]
    if not isinstance(value, str):
        return value
    before = next((kind for kind in (*DATA, "made:") if value.startswith(kind)), "")
    place, is_code, function = value.removeprefix(before).partition(".py:")
    place += ".py" if is_code else ""
    is_place = before in DATA or os.sep in place or bool(Path(place).suffix)
    is_place |= name in FOLDERS and not before and place not in NO_FOLDERS
    found = os.path.expanduser(place)
    if not is_place or not os.path.exists(found):
        return value
    return f"{before}{os.path.abspath(found)}{':' if is_code else ''}{function}"


def keep_config(folder: RunFolder | None, config: RecipeConfig | None) -> Callable[[], None] | None:
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


@contextmanager
def _in_its_place(folder: RunFolder) -> Iterator[None]:
    """Raises FolderLost if the folder was deleted or moved, however the block ends otherwise."""
    try:
        yield
    finally:
        is_lost, now_at = folder.lost()
        if is_lost:
            raise folder_lost(folder.path, now_at) from None


def _within(seconds: float, work: Callable[[], object]) -> None:
    """TimeoutError: the disk is not heard of; whoever speaks to it is left behind."""
    in_daemon_thread(work, "ends the run's files").result(seconds)


def _leave_trace(folder: RunFolder) -> None:
    """However the run ended. A log that takes long to read is left to `headway trace`."""
    failing = sys.exc_info()[1]
    if folder.lost()[0]:
        return
    is_refused = failing is not None and refusal(failing) is not None
    try:
        if log_size(folder.events) > TRACE_UP_TO_BYTES:
            to_stderr(f"a long run; to write its trace: headway trace {folder.path}")
            return
        _within(CLOSE_WITHIN_S, lambda: write_trace(folder))
    except TimeoutError:
        to_stderr(f"no trace: the disk has not answered within {CLOSE_WITHIN_S:g} s; headway trace {folder.path}")
    except ValueError as error:
        to_stderr(f"no trace: {error}")
    except (OSError, MemoryError) as error:
        if not is_refused:  # if it is, the run ends with a line about it
            to_stderr(f"no trace: {refusal(error)}; to write it: headway trace {folder.path}")


def _leave_summary(folder: RunFolder, ended: Sequence[RunResult]) -> None:
    """A run that got to its end has its result, also where there is no room to write it down."""
    if folder.lost()[0]:
        return
    try:
        for result in ended:
            _within(CLOSE_WITHIN_S, partial(folder.write_summary, summary_of(result)))
    except TimeoutError:
        to_stderr(f"no summary: the disk has not answered within {CLOSE_WITHIN_S:g} s")
    except OSError as error:
        to_stderr(f"no summary: {refusal(error)}{way_back(folder.path)}")
