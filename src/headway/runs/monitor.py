"""A function of the user's own that looks at a run while it goes on.

    every monitor_every_s, and once more when the run has ended:

        statistics ---> monitor ---> None         all is well
                                     a text       an alarm: said on standard error and in run.log
                                     StopRun(why) the run finishes its update, saves and ends

`statistics` are groups of numbers under the names users know (`runs/monitor_components.py`). A monitor with two
arguments
is given those of the trainer and those of the rollouter. It has a thread of its own: a slow one misses looks, and never
holds up the run. One that raises anything else is named in one line and is off from then on, and the run goes on.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headway.core.text_messages import to_stderr
from headway.core.text_one_line import in_a_line, shortened
from headway.core.types_opaque import SettingValue, UserFunction
from headway.runs.log_worker import Worker
from headway.runs.user_code_user_functions import find_function, load_function

END_WITHIN_S = 10.0
Statistics = Mapping[str, Mapping[str, SettingValue]]
"""Group -> name -> value: `statistics["queue"]["queue_size"]`."""


class StopRun(Exception):
    """Raised by a monitor: end the run, and why."""


class Monitor(Protocol):
    """Looks at a run. What it returns is said; nothing is nothing."""

    def __call__(self, statistics: Statistics) -> str | None: ...


def load_monitor(spec: str) -> Monitor:
    """`folder/file.py:function` or `package.module:function`."""
    wants_both = _takes(find_function(spec, "monitor"), BOTH_SIDES)
    return load_function(spec, "monitor", BOTH_SIDES if wants_both else ("statistics",), by_name=False)


BOTH_SIDES = ("trainer", "rollouter")
"""The groups for a monitor with two arguments."""


def _of_both_sides(function: UserFunction) -> Monitor:
    """A monitor of the whole statistics around one that wants two groups of them."""

    def look(statistics: Statistics) -> str | None:
        said: str | None = function(*(statistics[group] for group in BOTH_SIDES))
        return said

    return look


def _takes(function: UserFunction, arguments: Sequence[str]) -> bool:
    """Whether it must be given that many arguments, and no fewer."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # written in C, it does not say
    needed = [one for one in parameters if one.default is one.empty and one.kind in POSITIONAL]
    return len(needed) == len(arguments)


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class MonitorThread:
    """A monitor and its thread, until `end`."""

    def __init__(
        self,
        monitor: Monitor,
        stop: Callable[[str], None],
        *,
        say: Callable[[str], None] = to_stderr,
        end_within_s: float = END_WITHIN_S,
    ) -> None:
        self._monitor = _of_both_sides(monitor) if _takes(monitor, BOTH_SIDES) else monitor
        self._stop = stop
        self._say = say
        self._end_within_s = end_within_s
        self._name = getattr(monitor, "__name__", type(monitor).__name__)
        self._under_way = threading.Semaphore()  # one look at a time
        self._is_off = False
        self._worker: Worker[Statistics] = Worker("monitor", self._call)
        self._worker.start()

    def look(self, statistics: Statistics) -> None:
        """Without waiting: while the monitor is still at the look before, this one is left out."""
        if not self._is_off and self._under_way.acquire(blocking=False):
            self._worker.put(statistics)

    def end(self, statistics: Statistics) -> None:
        """The last look, whatever became of the run; then the thread ends."""
        self._worker.put(statistics)
        self._worker.close()
        if not self._worker.has_ended(self._end_within_s):
            self._say(f"the monitor {self._name} has not ended within {self._end_within_s:g} s")

    def _call(self, statistics: Statistics) -> None:
        if not self._is_off:
            self._ask(statistics)
        self._under_way.release()

    def _ask(self, statistics: Statistics) -> None:
        try:
            said = self._monitor(statistics)
        except StopRun as reason:
            self._stop(f"stopped by the monitor: {shortened(reason) or self._name}")
        except Exception as error:  # noqa: BLE001 - whatever a monitor raises, the run goes on without it
            self._is_off = True
            self._say(f"the monitor {self._name} is off, the run goes on: it raised {in_a_line(error)}")
        else:
            if said is not None:
                self._say(f"ALARM by {self._name}: {shortened(said, 500)}")
