"""Runs that have gone on for long: what they leave on the disk, how fast they are resumed, how fast they are looked at.

    python bench/long_runs.py make FOLDER TICKETS            a real run on the virtual runtime, stations that do nothing
    python bench/long_runs.py write FOLDER TICKETS           its events alone, through the recorder's own code: faster
    python bench/long_runs.py resume FOLDER [FOLDER ...]     go on with each in turns: seconds until its first event
    python bench/long_runs.py look FOLDER [FOLDER ...]       headway status, doctor and report of each, in turns
    python bench/long_runs.py disk FOLDER [FOLDER ...]       bytes by what they are of, and a ticket

What is looked at is a command in a process of its own, imports and all; processor seconds stand beside wall seconds.
`write` folds every event as a run does and writes log and metrics; it has no checkpoint, so it cannot be resumed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from soak_measures import on_disk

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core import events as ev
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.runs import files_run_files as run_files
from headway.runs import launch_session as launching
from headway.runs.event_log import EventLog
from headway.runs.folder import RunFolder
from headway.runs.folder_environment import describe_environment
from headway.runs.log_file import LOG_LIMIT_MB
from headway.runs.metrics import Metrics
from headway.runs.sinks import JsonLines
from headway.runs.sinks_point_maker import PointMaker
from headway.runtimes.virtual import Virtual
from headway.tools.simulate.workloads import Constant, Lognormal, SteadyWorkload

run_files.TRACE_UP_TO_BYTES = 0  # what a short run writes at its end, and a long one does not
COLLECTORS = 8
BATCH = 4
COLLECT_S, LEARN_S = 0.4, 0.15
EVALUATE_EVERY = 1000
REPEATS = 5


class Collector:
    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(None, steps=16)


class Learner:
    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport({"loss": 0.123456789, "ess": 0.987654321, "kl": 0.0123})

    def snapshot(self) -> None:
        return None

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


class Evaluator:
    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        return Score(snapshot.version, snapshot.version % 97 / 97, {"length": 20.0})


def settings(tickets: int) -> Settings:
    plan = Plan(updates=tickets // BATCH, evaluate_every=EVALUATE_EVERY, save_every=25_000)
    return Settings(plan=plan, collectors=COLLECTORS, tickets_per_batch=BATCH, max_lead=4, dispatch="free")


def launch(folder: Path, tickets: int, *, resume: bool = False) -> None:
    workload = SteadyWorkload(Lognormal(COLLECT_S, 1.0), Constant(LEARN_S))
    with contextlib.redirect_stderr(io.StringIO()):
        launching.launch(
            Stations(Collector, Learner, Evaluator),
            settings(tickets),
            runtime=Virtual(workload),
            folder=RunFolder(folder),
            resume=resume,
            alarms={"stale_samples_ratio": 1.0},
        )


# -- a log without a run ----------------------------------------------------------------------------


def written(tickets: int, described: dict[str, object]) -> Iterator[list[ev.Event]]:
    """The events of a run in which eight collectors and the learner take turns, an update at a time."""
    now, opened, version = 0.0, 0, 0
    yield [ev.RunBegan(now, described), ev.Published(now, 0)]
    spent = {"learner": {"learn": 0.0, "data": 0.0}, "collector": {"collect": 0.0}}
    looked = 0.0
    while opened < tickets:
        batch = list(range(opened, opened + BATCH))
        events: list[ev.Event] = [ev.RoleWaits(now, "learner", "data"), *(ev.Opened(now, index) for index in batch)]
        events += [ev.Started(now, index, index % COLLECTORS, version) for index in batch]
        now += COLLECT_S * BATCH / COLLECTORS
        events += [ev.Landed(now, index, (version, version), 16, 16.0) for index in batch]
        events.append(ev.UpdateBegan(now, version + 1, version, batch))
        now += LEARN_S
        version += 1
        metrics = {"loss": 1 / (1 + version), "ess": 0.98, "kl": 0.0123}
        events.append(ev.Updated(now, version, version - 1, batch, LEARN_S, metrics))
        events += [ev.Published(now, version), ev.Settled(now, batch)]
        if version % EVALUATE_EVERY == 0:
            score = version % 97 / 97
            events += [
                ev.EvaluationBegan(now, version),
                ev.EvaluationEnded(now + 0.1, version, score, {"length": 20.0}),
            ]
            now += 0.1
        spent["learner"]["learn"] += LEARN_S
        spent["learner"]["data"] += COLLECT_S * BATCH / COLLECTORS
        spent["collector"]["collect"] += COLLECT_S * BATCH
        if now >= looked + 1.0:
            looked = now
            told = {role: dict(activities) for role, activities in spent.items()}
            events.append(ev.Looked(now, 4.0, told, 60 << 20, {}, 0.5 * now, None))
        opened += BATCH
        yield events


def write(folder: Path, tickets: int) -> None:
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    run.note_session(describe_environment(), 0.0)
    log, numbers = EventLog(run.events, limit_bytes=LOG_LIMIT_MB << 20), JsonLines(run.metrics)
    put = lambda point: numbers.write(point.moment, point.values)  # noqa: E731
    points = PointMaker(log, put, Metrics(), aliases=False, alarms=None, say=print)
    for place, events in enumerate(written(tickets, {**settings(tickets).describe(), "runtime": "threads"})):
        points.take([event._replace(time_s=round(event.time_s, 6)) for event in events])
        if place % 50 == 0:
            points.write()
        if place % 10_000 == 0:  # the disk need not keep up with a run that takes no time
            log.mark().wait(600)
    points.close()
    numbers.close()


# -- what is measured -------------------------------------------------------------------------------


def tickets_in(folder: Path) -> int:
    from headway.tools.report.status_log_end import read_numbers

    return int(read_numbers(folder / "metrics.jsonl").last["tickets/opened"])


def resume_once(folder: Path) -> tuple[float, float]:
    """Seconds, and those of the processor, of ten updates more, from the folder to the end."""
    tickets = tickets_in(folder) + 10 * BATCH
    began, cpu = time.perf_counter(), time.process_time()
    launch(folder, tickets, resume=True)
    return time.perf_counter() - began, time.process_time() - cpu


def command_once(words: list[str]) -> tuple[float, float]:
    """Seconds, and those of the processor, of a headway command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "headway", *words], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turns(cases: dict[str, Callable[[], tuple[float, float]]], repeats: int) -> None:
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            seen[name].append(case())
    for name, times in seen.items():
        walls, cpus = zip(*times, strict=True)
        told = [f"{statistics.median(of):.2f} ({min(of):.2f}..{max(of):.2f})" for of in (walls, cpus)]
        print(f"{name:<52} wall {told[0]:<24} processor {told[1]} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "write", "resume", "look", "disk"))
    parser.add_argument("folders", nargs="+", help="the last one is a number of tickets for make and write")
    parser.add_argument("--commands", nargs="+", default=["status", "doctor", "report"], help="for look")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    if given.what in ("make", "write"):
        folder, tickets = Path(given.folders[0]), int(float(given.folders[1]))
        began, cpu = time.perf_counter(), time.process_time()
        (launch if given.what == "make" else write)(folder, tickets)
        spent = time.process_time() - cpu
        seconds, each = time.perf_counter() - began, 1e6 * spent / tickets
        print(f"{folder}: {tickets:,} tickets in {seconds:.0f} s, {each:.1f} us of the processor each")
        return
    folders = [Path(name) for name in given.folders]
    if given.what == "disk":
        for folder in folders:
            sizes, tickets = on_disk(folder), tickets_in(folder)
            parts = ", ".join(f"{kind} {size / 2**20:.1f}" for kind, size in sizes.items())
            print(f"{folder}: {tickets:,} tickets; MiB: {parts}; {sizes['events'] / tickets:.1f} bytes of log a ticket")
    elif given.what == "resume":
        in_turns({f"resume {folder}": partial(resume_once, folder) for folder in folders}, given.repeats)
    else:
        bare = {"headway --version": partial(command_once, ["--version"])}
        words = {f"headway {verb} {folder}": [verb, str(folder)] for folder in folders for verb in given.commands}
        in_turns(bare | {name: partial(command_once, of) for name, of in words.items()}, given.repeats)


if __name__ == "__main__":
    main()
