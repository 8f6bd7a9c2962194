"""How long a test waits for what should come: seconds of a quiet machine, which last longer on a busy one.

A wait ends when its condition holds; its limit is there for what hangs. The limit is given in seconds in which the test
has a core to itself: while eight processes want two cores, such a second takes four. HEADWAY_PATIENCE=3 makes every
limit three times as long, on a machine that is slow for another reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

SCALE = float(os.environ.get("HEADWAY_PATIENCE", "1"))


def slowness() -> float:
    """How much longer everything takes now than on a quiet machine: the processes that want to run, for each core."""
    wanting = os.getloadavg()[0]  # over the last minute
    try:
        wanting = max(wanting, int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))  # in this moment
    except OSError:
        pass
    return SCALE * max(1.0, wanting / (os.cpu_count() or 1))


def patient(seconds: float) -> float:
    """A limit for somebody else who waits: these seconds as they are now, twice, because it may become busier."""
    return 2 * seconds * slowness()


def wait_until(condition: Callable[[], object], seconds: float = 30.0, what: str = "") -> None:
    left = seconds
    while not condition():
        assert left > 0, f"not within {seconds:g} s of a quiet machine: {what or 'the condition of this test'}"
        began = time.monotonic()
        time.sleep(0.01)
        left -= (time.monotonic() - began) / slowness()
