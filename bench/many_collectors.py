"""Tickets a second with many collectors: what one coordinator can hand out and take back.

    python bench/many_collectors.py                              threads with 1,000 collectors, Ray with 64
    python bench/many_collectors.py --per_call auto,1,8          with each of these tickets_per_call, in turns
    python bench/many_collectors.py --against OTHER/src          the same beside another copy of the sources, in turns

On threads each collector waits 0.1 s a ticket, as one that waits for an engine or a simulator does: 1,000 of them
offer 10,000 tickets a second. In processes and on Ray the stations do nothing, and `bare` is a loop written by hand
over as many actors, without accounts, deadlines or a log. An update takes four tickets a collector, with a lead of 4.
`coordinator` is processor time of the thread that decides, per ticket; `process` that of the whole process, and
`machine` that of its actors too. Every measurement is a process of its own; nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runtimes.build import build_runtime

PAUSE_S = 0.1
COLLECTORS = {"threads": 1000, "processes": 16, "ray": 64, "bare": 64}
TICKETS = {"threads": 60_000, "processes": 7_680, "ray": 7_680, "bare": 7_680}
LEAD = 4


class Collector:
    def __init__(self, pause_s: float, number: int) -> None:
        self._pause_s = pause_s

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._pause_s:
            time.sleep(self._pause_s)
        return Rollout(None)


class Learner:
    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport()

    def snapshot(self) -> None:
        return None

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


class Clock:
    """Seconds, processor seconds of this thread, of this process and of the machine, since it was made."""

    def __init__(self) -> None:
        self._began = self._now()

    @staticmethod
    def _now() -> tuple[float, ...]:
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")  # all but idle and waiting for disks
        return time.perf_counter(), time.thread_time(), time.process_time(), busy

    def per_ticket(self, tickets: int) -> dict[str, float]:
        wall, thread, process, machine = (now - was for now, was in zip(self._now(), self._began, strict=True))
        us = 1e6 / tickets
        return {"per_s": tickets / wall, "coordinator": us * thread, "process": us * process, "machine": us * machine}


class Timed(Coordinator):
    """Times the loops alone, without the start and the end of the roles."""

    async def _run_loops(self) -> None:
        clock = Clock()
        await super()._run_loops()
        self.took = clock.per_ticket(self.ledger.tally.learned)


def through_coordinator(
    name: str, collectors: int, tickets: int, per_call: str, pause_s: float, batch: int
) -> dict[str, float]:
    calls: dict[str, Any] = {}  # older sources do not know of it
    if per_call:
        calls["tickets_per_call"] = int(per_call) if per_call.isdecimal() else per_call
    settings = Settings(
        plan=Plan(updates=tickets // batch),
        max_lead=LEAD,
        collectors=collectors,
        tickets_per_batch=batch,
        dispatch="free",
        **calls,
    )
    runtime = build_runtime(name)
    pause_s = pause_s if name == "threads" else 0.0
    coordinator = Timed(Stations(partial(Collector, pause_s), Learner), settings, runtime)
    runtime.run(coordinator.run())
    return coordinator.took


class Bare:
    def collect(self, number: int, weights: object) -> int:
        return number


def bare_ray(collectors: int, tickets: int) -> dict[str, float]:
    """As many actors, each awaited by a task of its own, as asyncio and Ray offer it."""
    import ray

    ray.init("local", include_dashboard=False, log_to_driver=False, configure_logging=False)
    actors: list[Any] = [ray.remote(Bare).options(num_cpus=0).remote() for _ in range(collectors)]
    ray.get([actor.collect.remote(0, None) for actor in actors])

    async def loop(actor: Any) -> None:
        for number in range(tickets // collectors):
            await actor.collect.remote(number, None)

    async def all_loops() -> dict[str, float]:
        clock = Clock()
        await asyncio.gather(*map(loop, actors))
        return clock.per_ticket(tickets)

    try:
        return asyncio.run(all_loops())
    finally:
        ray.shutdown()


def measured_elsewhere(
    source: str, case: str, collectors: int, tickets: int, per_call: str, pause_s: float
) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", case, "--collectors", str(collectors), "--tickets", str(tickets)]
    command += ["--per_call", per_call, "--pause_s", str(pause_s)]
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{case} with {source} failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().rsplit("\n", 1)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="", help="a folder of other sources, measured in turns with these")
    parser.add_argument("--cases", default="threads,processes,ray,bare", help="of these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--collectors", type=int, default=0)
    parser.add_argument("--tickets", type=int, default=0)
    parser.add_argument("--per_call", default="auto", help="tickets_per_call of these sources, as many as shall be")
    parser.add_argument("--pause_s", type=float, default=PAUSE_S, help="what a collector on threads waits a ticket")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        if given.one == "bare":
            print(json.dumps(bare_ray(given.collectors, given.tickets)))
        else:
            print(
                json.dumps(
                    through_coordinator(
                        given.one, given.collectors, given.tickets, given.per_call, given.pause_s, 4 * given.collectors
                    )
                )
            )
        return
    here = os.environ.get("PYTHONPATH", "")
    sources = {f"{per_call} a call": (here, per_call) for per_call in given.per_call.split(",")}
    if given.against:
        sources["those"] = (given.against, "")
    columns = ("per_s", "coordinator", "process", "machine")
    head = " ".join(f"{name:>20}" for name in ("tickets/s", *(f"{name} us" for name in columns[1:])))
    print(f"{'median (min .. max)':24} {head}")
    for case in given.cases.split(","):
        collectors, tickets = given.collectors or COLLECTORS[case], given.tickets or TICKETS[case]
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for _ in range(given.repeats):
            for name in rows if case != "bare" else list(rows)[:1]:
                source, per_call = sources[name]
                rows[name].append(measured_elsewhere(source, case, collectors, tickets, per_call, given.pause_s))
        for name, values in rows.items():
            if values:
                cells = [[value[column] for value in values] for column in columns]
                told = [f"{statistics.median(c):.0f} ({min(c):.0f} .. {max(c):.0f})" for c in cells]
                title = f"{case} {collectors}" + (f", {name}" if len(sources) > 1 else "")
                print(f"{title:24} " + " ".join(f"{cell:>20}" for cell in told), flush=True)


if __name__ == "__main__":
    main()
