"""A run that goes on and on while things go wrong: what grows, and is every ticket settled once?

    python bench/soak.py                                     20 minutes on processes
    python bench/soak.py --seconds 3600 --runtime ray
    python bench/soak.py --folder runs/soak --per_s 10       there, with ten tickets a second

    this process --kill -9, SIGSTOP, SIGINT--> the run (soak_run.py) and its processes
         |   <--------- what they hold --------------'  environments that raise, evaluations that never end
         '--> one table: start, quarters, end, slope with its uncertainty, a verdict for each resource
         '--> the log, all parts of it, through the auditor

An interrupted run goes on in the same process, so what a session leaves behind there is seen as well; `--without
interrupt` shows one session alone. Parts of the event log are linked aside as they are closed: the run lets them go,
the audit has them all. The limits of its files are 64 times smaller than they are (`--shrink`), so that what a run of
weeks comes to is reached in minutes. Exits with 1 if something grows, or if a rule was broken. What was measured stays
beside the folder (FOLDER.measured.json). Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from soak_measures import MIB, Series, family, is_bad, of_process, on_disk, shared_memory, table, verdict
from soak_run import LOG_PARTS, run_all

from headway.core import events as ev
from headway.core.events_written_events import as_event, written_kind
from headway.runs import log_file, samples
from headway.runs import sinks_json_lines as json_lines
from headway.runs import sinks_spacing as spacing
from headway.runs.event_log import parse_event
from headway.runs.folder import RunFolder
from headway.runs.log_parts import closed_parts, whole_lines
from headway.testing.auditor import audit

SAMPLE_EVERY_S = 5.0
FAULT_EVERY_S = {"processes": 20.0, "ray": 30.0}
"""On average; the pauses are drawn."""
FAULTS = {
    "kill a collector": 4,
    "stop a collector": 3,
    "stop it for a while": 2,
    "kill the evaluator": 2,
    "interrupt": 1,
}
"""How often each is drawn."""
TAIL_BYTES = 1 << 16
LOOK_BYTES = 2048
"""Of TensorBoard, with its share of scores."""
BEGINS_WITHIN_S = 300.0
ENDS_WITHIN_S = 300.0
IN_MIB = (
    "rss",
    "pss",
    "bytes",
    *("events", "metrics", "samples", "run.log", "tensorboard", "checkpoints", "other files"),
)


@dataclass
class Soak:
    """A run in a process of its own, what is done to it, and what it was seen to hold."""

    folder: Path
    run: subprocess.Popen[bytes]
    random: random.Random
    measured: dict[str, Series] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    without: tuple[str, ...] = ()
    """Faults that are left out."""
    asleep: dict[int, float] = field(default_factory=dict)
    """Processes that are to be woken, and when."""

    def pids_of(self, role: str) -> list[int]:
        """The living processes of a role."""
        alive = set(family(self.run.pid))
        named = (path.name.partition(".") for path in (self.folder / "roles").glob(f"*.{role}"))
        return [int(pid) for pid, _, _ in named if int(pid) in alive]

    def is_up(self) -> bool:
        """Has the newest session landed a ticket? One that only starts ends in a line when a role is killed."""
        try:
            with open(self.folder / "events.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                tail = file.read()
        except OSError:
            return False
        return tail.rfind(b'"e":"land"') > tail.rfind(b'"e":"run"')

    def disturb(self) -> None:
        """One fault, if there is somebody to suffer it."""
        if not self.is_up():
            return
        what = self.random.choices(list(FAULTS), list(FAULTS.values()))[0]
        if what in self.without:
            return
        pid = self.run.pid
        if what != "interrupt":
            pids = self.pids_of("evaluator" if "evaluator" in what else "collector")
            if not pids:
                return
            pid = self.random.choice(pids)
        number = signal.SIGINT if what == "interrupt" else signal.SIGKILL if "kill" in what else signal.SIGSTOP
        if send(pid, number):
            self.done[what] += 1
            if what == "stop it for a while":
                self.asleep[pid] = time.monotonic() + 2.0

    def wake(self, now: float) -> None:
        for pid in [pid for pid, at in self.asleep.items() if at <= now]:
            del self.asleep[pid]
            send(pid, signal.SIGCONT)

    def sample(self, time_s: float) -> None:
        pids = family(self.run.pid)
        numbers = {f"run: {name}": value for name, value in of_process(self.run.pid).items()}
        below: Counter[str] = Counter({"processes": len(pids)})
        for pid in pids:
            below.update(of_process(pid))
        numbers |= {f"its processes: {name}": value for name, value in below.items()}
        numbers |= shared_memory([self.run.pid, *pids])
        sizes = on_disk(self.folder)
        numbers |= {f"disk: {name}": value for name, value in sizes.items()}
        for name, value in numbers.items():
            scale = MIB if name.endswith(IN_MIB) else 1
            self.measured.setdefault(f"{name}, MiB" if scale == MIB else name, Series()).add(time_s, value / scale)

    def link_parts(self) -> None:
        """Closed parts of the log, before anybody lets them go."""
        archive = self.folder / "archive"
        archive.mkdir(exist_ok=True)
        for part in closed_parts(self.folder / "events.jsonl"):
            aside = archive / part.path.name
            if not aside.exists():
                try:
                    os.link(part.path, aside)
                except FileNotFoundError:  # it has just been compressed, or has gone: the next time
                    continue


def send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.2)


def soak(given: argparse.Namespace, folder: Path) -> Soak:
    """Start the run, disturb and measure it until it ends by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.out"), "wb") as out:
        options = [f"--{name}={getattr(given, name)}" for name in ("seconds", "runtime", "per_s", "shrink")]
        command = [sys.executable, __file__, "--inside", f"--folder={folder}", *options]
        run = subprocess.Popen(command, stdout=out, stderr=out)
        one = Soak(folder, run, random.Random(given.seed), without=tuple(given.without))
    try:
        wait_until(lambda: one.pids_of("collector") or one.run.poll() is not None, BEGINS_WITHIN_S, "a collector")
        began = time.monotonic()
        next_fault = began + 10.0
        next_sample = began
        while one.run.poll() is None:
            now = time.monotonic()
            one.wake(now)
            one.link_parts()
            if now >= next_sample:
                one.sample(now - began)
                next_sample = now + SAMPLE_EVERY_S
            if now >= next_fault and now < began + given.seconds - 30:
                one.disturb()
                next_fault = now + one.random.expovariate(1 / FAULT_EVERY_S[given.runtime])
            if now > began + 3 * given.seconds + ENDS_WITHIN_S:
                raise TimeoutError("the run does not end")
            time.sleep(0.5)
        one.link_parts()
    finally:
        if one.run.poll() is None:
            one.run.kill()
        one.run.wait()
    return one


def logged(folder: Path) -> list[ev.Event]:
    """Every event of the run, from the parts that were kept and those that were linked aside."""
    path = folder / "events.jsonl"
    found = {part.path.name: part for part in [*closed_parts(folder / "archive" / "events.jsonl"), *closed_parts(path)]}
    parts = {(part.begin, part.end): part for part in found.values()}
    events, at = [], 0
    while True:
        ends = [end for begin, end in parts if begin == at]
        if not ends:
            break
        part = parts[at, max(ends)]
        with part.open() as file:
            events += [parse_event(line, part.path, 0) for line in whole_lines(file)]
        at = part.end
    with open(path, "rb") as file:
        events += [parse_event(line, path, 0) for line in whole_lines(file)]
    return [as_event(event) for event in events]


def limits_of(shrink: int, seconds: float) -> dict[str, float]:
    """What the files may have, in MiB. One that is written anew has its limit, and half of it beside; looks for
    TensorBoard are as many as `spacing.py` says."""
    limits = {"events": LOG_PARTS * log_file.PART_BYTES, "run.log": 2 * log_file.TEXT_BYTES}
    limits |= {"metrics": 1.5 * json_lines.LIMIT_BYTES, "samples": 1.5 * samples.LIMIT_BYTES}
    bounds = {kind: limit / shrink for kind, limit in limits.items()}
    looks = spacing.LOOKS / shrink
    bounds["tensorboard"] = LOOK_BYTES * looks * (1 + math.log(max(1.0, seconds / looks)))
    return {f"disk: {kind}, MiB": bound / MIB for kind, bound in bounds.items()}


def report(one: Soak, given: argparse.Namespace) -> int:
    """The table, the audit, the counts; 0 if all is well."""
    known = {name: {"s": series.times, "value": series.values} for name, series in one.measured.items()}
    one.folder.with_name(f"{one.folder.name}.measured.json").write_text(json.dumps(known))
    bounds = limits_of(given.shrink, one.measured["run: rss, MiB"].times[-1])
    print(*table(one.measured, bounds), sep="\n")
    events = logged(one.folder)
    kinds = Counter(written_kind(event) for event in events)
    print(f"faults: {', '.join(f'{name} {count}' for name, count in one.done.most_common())}")
    names = ("open", "settle", "drop", "reissue", "restart", "resume", "publish", "score")
    print(f"events: {len(events):,}; {', '.join(f'{name} {kinds[name]:,}' for name in names)}")
    violations = audit(events)
    print(f"audit: {len(violations)} violations", *violations[:10], sep="\n  ")
    grow = [name for name, series in one.measured.items() if is_bad(verdict(series, bounds.get(name)))]
    code = one.run.returncode
    print(f"the run ended with {code}, {len(grow)} resources grow{': ' if grow else ''}{', '.join(grow)}")
    if grow and one.done["interrupt"]:
        resumed = f"{one.done['interrupt']} times in the same process, where the allocator keeps some of each session"
        print(f"the run was resumed {resumed}; to see one session alone: --without interrupt")
    return 1 if violations or grow or code else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200.0, help="of running, starts of sessions not counted")
    parser.add_argument("--runtime", choices=tuple(FAULT_EVERY_S), default="processes")
    parser.add_argument("--per_s", type=float, default=20.0, help="tickets a second at most")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--shrink", type=int, default=64, help="make the limits of files so many times smaller")
    parser.add_argument("--without", choices=tuple(FAULTS), action="append", default=[], help="leave this fault out")
    parser.add_argument("--folder", type=Path, help="of the run, kept; one that is thrown away unless it is said")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        sessions = run_all(RunFolder(given.folder), given.runtime, given.seconds, given.per_s, given.shrink)
        print(json.dumps({"sessions": sessions}))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "run"
        return report(soak(given, folder), given)


if __name__ == "__main__":
    sys.exit(main())
