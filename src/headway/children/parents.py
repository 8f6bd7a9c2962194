"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """From now on the kernel ends this process when its parent is gone, whatever ended that. On Linux; elsewhere the
    end of its socket has to do."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
