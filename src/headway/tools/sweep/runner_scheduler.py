"""Runs the runs of a sweep, a few at a time.

    waiting --start--> running --> finished
       ^                  |-----> failed (its own error): said in a line, tried again on demand
       |                  |-----> interrupted (it was asked to end): `--resume` goes on with it
       +---- its process was killed, up to `MAX_ATTEMPTS` starts: it goes on from its last checkpoint

The sweep is one loop in one thread: it starts, waits for the end of a child or the clock, notes what changed. Ctrl-C
asks every run to save and to end; a second one ends them at once, a third one kills them.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

from headway.tools.sweep.grid import SweepRun
from headway.tools.sweep.grid_folder import Sweep, SweepFolder, SweepRunState
from headway.tools.sweep.runner_worker import SweepWorker

MAX_ATTEMPTS = 3
LOOK_EVERY_S = 0.25


class Scheduler:
    """The runs of one sweep while it goes on."""

    def __init__(
        self,
        folder: SweepFolder,
        sweep: Sweep,
        *,
        workers: int,
        threads: int,
        retry: bool = False,
        say: Callable[[str], None] = print,
        when_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`say` is told in a line what happens; `when_changed` is called when a run is over."""
        self.folder = folder
        self.sweep = sweep
        self.states = folder.read_states(sweep)
        self.workers: list[SweepWorker] = []
        self.began_s: dict[str, float] = {}
        self._most = workers
        self._threads = threads
        self._say = say
        self._when_changed = when_changed
        self._asked = 0
        again = ("waiting", "interrupted", *(("failed",) if retry else ()))
        self._waiting = deque(run for run in sweep.runs if self.states[run.folder].state in again)
        for run in self._waiting:
            self.states[run.folder] = SweepRunState("waiting", 0)

    @property
    def is_interrupted(self) -> bool:
        return self._asked > 0

    def count(self, state: str) -> int:
        return sum(one.state == state for one in self.states.values())

    def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Until every run is over, or was asked to end and has. `look` is called a few times a second."""
        self._note()
        try:
            with self._signals():
                while self.workers or (self._waiting and not self._asked):
                    self._start_some()
                    look()
                    self._wait()
                    for worker in [one for one in self.workers if one.is_over]:
                        self._settle(worker)
                look()
        finally:
            for worker in self.workers:
                worker.kill()
            for worker in self.workers:
                worker.close()
            self._note()

    def _start_some(self) -> None:
        while self._waiting and len(self.workers) < self._most and not self._asked:
            run = self._waiting.popleft()
            path = self.folder.run_folder(run).path
            self.workers.append(
                SweepWorker(self.sweep.recipe, run, path, self.folder.console(run), run.settings, self._threads)
            )
            self.began_s[run.folder] = time.monotonic()
            self._move(run, "running", attempts=self.states[run.folder].attempts + 1)

    def _wait(self) -> None:
        """For the end of a child, or until it is time to look."""
        poll = select.poll()
        for worker in self.workers:
            poll.register(worker.fileno(), select.POLLIN)
        ended = poll.poll(1e3 * LOOK_EVERY_S)
        for worker in self.workers:
            if any(worker.fileno() == number for number, _ in ended):
                worker.how_it_ended()  # its socket is closed: it is gone in a moment

    def _settle(self, worker: SweepWorker) -> None:
        """A child is gone: what became of its run?"""
        run, how = worker.run, worker.how_it_ended()
        self.workers.remove(worker)
        worker.kill()  # whoever it has left behind in its group
        worker.close()
        state = self.states[run.folder]
        if self.folder.is_complete(run):
            self._move(run, "finished", error="")
            self._say(f"finished {run.folder}")
        elif self._asked:
            self._move(run, "interrupted")
        elif how.startswith("was killed") and state.attempts < MAX_ATTEMPTS:
            self._say(f"{run.folder} {how}: it is started again from its last checkpoint")
            self._move(run, "waiting")
            self._waiting.append(run)
        else:
            why = how if how.startswith("was killed") else self.folder.last_words(run) or how
            self._move(run, "failed", error=why)
            self._say(f"failed {run.folder}: {why}")
        self._when_changed()

    def _move(self, run: SweepRun, state: str, **changes: object) -> None:
        self.states[run.folder] = replace(self.states[run.folder], state=state, **changes)  # type: ignore[arg-type]
        self._note()

    def _note(self) -> None:
        self.folder.write_status(self.states, pid=os.getpid(), workers=self._most)

    # -- signals ------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Every run is to save and to end; asked again: at once; a third time: it is killed."""
        self._asked += 1
        for worker in self.workers:
            if self._asked < 3:
                worker.ask()
            else:
                worker.kill()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGHUP and self._asked:  # a terminal that closes sends several
                return
            self.ask()
            words = {1: "each run saves and ends after its update (again: at once)", 2: "ending now"}
            line = f"{signal.Signals(number).name}: {words.get(self._asked, 'killing what is left')}\n"
            with suppress(OSError):  # the terminal is gone
                os.write(2, line.encode())

        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)  # ignored: nohup
        try:
            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, *hangup)}
        except ValueError:  # another thread than the main one has no signals
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
