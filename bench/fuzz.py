"""Random fault schedules on the virtual runtime, each audited by its event log alone.

    python bench/fuzz.py                        2,000 schedules, from number 0 on
    python bench/fuzz.py --schedules 100000 --jobs 2
    python bench/fuzz.py --lines 2              others, each with two lines: a replay or a queue in either, any pace
    python bench/fuzz.py --seed 123 --verbose   one of them: what was drawn, every event, which rule was broken

A schedule draws settings, stations, durations, faults, stops, kills and resumes from its number
(`tests/fault_schedules.py`); the auditor (`headway.testing.auditor`) shares no code with what it audits. The
same numbers give the same runs, whatever the number of processes: the fingerprint in the last line says so. Exits with
1 if a rule was broken, and names the schedules. Ctrl-C ends it early, with the table of what was done.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.runtimes.child_process_in_child import die_with_parent
from headway.testing.auditor import RULES

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fault_schedules import draw
from schedule_runs import PROMISES, Outcome, run_schedule

IN_A_CHUNK = 50
LONGEST_S = 120  # for one schedule, which takes some milliseconds
SHOWN = 20  # failures, in full


class TookTooLong(Exception):
    """A schedule did not come back."""


@dataclass
class Totals:
    """What many schedules came to."""

    schedules: int = 0
    sessions: int = 0
    resumes: int = 0
    tickets: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    traits: Counter[str] = field(default_factory=Counter)
    failures: dict[int, list[str]] = field(default_factory=dict)
    digest: int = 0

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.sessions += outcome.sessions
        self.resumes += outcome.resumes
        self.tickets += outcome.tickets
        self.ends[outcome.end] += 1
        self.faults.update(outcome.faults)
        self.kinds.update(outcome.kinds)
        self.traits.update(outcome.traits)
        if outcome.violations:
            self.failures[outcome.number] = [str(violation) for violation in outcome.violations]
        self.digest = (self.digest + outcome.digest * (2 * outcome.number + 1)) % 2**64

    def merge(self, other: Totals) -> None:
        for name in ("schedules", "sessions", "resumes", "tickets"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("ends", "faults", "kinds", "traits", "failures"):
            getattr(self, name).update(getattr(other, name))
        self.digest = (self.digest + other.digest) % 2**64


def run_chunk(first: int, count: int, lines: int | None) -> Totals:
    """These schedules, one after another."""
    signal.signal(signal.SIGALRM, _give_up)
    totals = Totals()
    for number in range(first, first + count):
        signal.alarm(LONGEST_S)
        try:
            outcome = run_schedule(number, lines)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this schedule
            outcome = Outcome(number, end="broken")
            outcome.wrong("ends", f"{type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
        totals.add(outcome)
    return totals


def _give_up(number: int, frame: Any) -> None:
    raise TookTooLong(f"not over after {LONGEST_S} s")


def _follow_parent() -> None:
    """An interrupt is for the parent to answer, and whatever ends it ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()


def done_within(chunks: Iterable[tuple[int, int, int | None]], jobs: int, limit_s: float) -> Iterator[Totals]:
    """Run the chunks in `jobs` processes; none is begun after `limit_s`."""
    began = time.monotonic()
    in_time = itertools.takewhile(lambda chunk: time.monotonic() - began < limit_s, chunks)
    if jobs <= 1:
        yield from itertools.starmap(run_chunk, in_time)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_follow_parent) as pool:
        running: set[Future[Totals]] = set()
        for chunk in in_time:
            running.add(pool.submit(run_chunk, *chunk))
            if len(running) > jobs:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in running)


def run_all(first: int, count: int, lines: int | None, jobs: int, limit_s: float) -> tuple[Totals, float]:
    """All of them, with a line about how far it is now and then."""
    began, totals, told, is_screen = time.monotonic(), Totals(), 0.0, sys.stderr.isatty()
    chunks = ((at, min(IN_A_CHUNK, first + count - at), lines) for at in range(first, first + count, IN_A_CHUNK))
    try:
        for part in done_within(chunks, jobs, limit_s):
            totals.merge(part)
            seconds = time.monotonic() - began
            if seconds - told >= (0.5 if is_screen else 15):
                told = seconds
                line = f"{totals.schedules}/{count} schedules, {totals.schedules / seconds:.0f}/s, "
                line += f"{totals.resumes} resumes, {len(totals.failures)} failures"
                print(f"\r{line} " if is_screen else line, end="" if is_screen else "\n", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"\ninterrupted after {totals.schedules} of {count} schedules", file=sys.stderr)
    if is_screen:
        print(file=sys.stderr)
    return totals, time.monotonic() - began


def table(totals: Totals, seconds: float) -> list[str]:
    """What there is to say about them."""

    def row(name: str, value: object) -> str:
        return f"{name:<28} {value}"

    def counts(counter: Counter[str]) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in sorted(counter.items(), key=lambda item: -item[1]))

    drops = Counter({kind: n for kind, n in totals.kinds.items() if kind.startswith("drop ")})
    again = Counter({kind: totals.kinds[kind] for kind in ("reissue", "requeue", "lose", "restage", "restart")})
    rate = totals.schedules / seconds if seconds else 0.0
    return [
        row("schedules", f"{totals.schedules:,} in {seconds:.0f} s, {rate:.0f} a second"),
        row("ended", counts(totals.ends)),
        row("sessions, resumes", f"{totals.sessions:,}, {totals.resumes:,}"),
        row("tickets audited", f"{totals.tickets:,}"),
        row("faults injected", f"{totals.faults.total():,}: {counts(totals.faults)}"),
        row("collected or built again", counts(again)),
        row("drops", counts(drops)),
        row("examples of", counts(totals.traits)),
        row("failures", len(totals.failures)),
        row("fingerprint", f"{totals.digest:016x}"),
    ]


def show(number: int, lines: int | None) -> int:
    """One schedule, with everything about it."""
    outcome = run_schedule(number, lines)
    print(*draw(number, lines).lines(), sep="\n")
    broken: dict[int, list[str]] = {}
    for violation in outcome.violations:
        broken.setdefault(violation.at, []).append(str(violation))
    for at, event in enumerate(outcome.log):
        rest = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("t", "e"))
        print(f"{at:5d} {event['t']:10.3f} {event['e']:<12} {rest}")
        for line in broken.get(at, []):
            print(f"      ^^^^^^ {line}")
    print(f"{outcome.end}: {outcome.why} ({outcome.sessions} sessions, {outcome.resumes} resumes)")
    explain([str(violation) for violation in outcome.violations])
    return 1 if outcome.violations else 0


def explain(lines: list[str]) -> None:
    for line in lines:
        rule = line.partition(":")[0]
        print(f"  {line}\n    rule: {({**RULES, **PROMISES}).get(rule, rule)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=2000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--lines", type=int, choices=(2,), help="all of them with two; otherwise one of six has two")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit_s", type=float, default=float("inf"), help="begin no more after so many seconds")
    parser.add_argument("--verbose", action="store_true", help="with --seed: what was drawn, and every event")
    given = parser.parse_args()
    if given.seed is not None and given.verbose:
        return show(given.seed, given.lines)
    first, count = (given.start, given.schedules) if given.seed is None else (given.seed, 1)
    totals, seconds = run_all(first, count, given.lines, given.jobs, given.limit_s)
    print(*table(totals, seconds), sep="\n")
    said = f" --lines {given.lines}" if given.lines else ""
    for number, found in sorted(totals.failures.items())[:SHOWN]:
        print(f"schedule {number} (python bench/fuzz.py --seed {number}{said} --verbose):")
        explain(found[:3])
    if len(totals.failures) > SHOWN:
        print("and", *sorted(totals.failures)[SHOWN:])
    return 1 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
