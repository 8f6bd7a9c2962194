"""The process of the `headway` command, which ends when the command does, whatever its threads are doing.

A role's thread may be inside a library when a run fails, compiling say: Python would tear it out of there, which some
libraries answer by aborting the process. A thread of an environment may never end: Python would wait for it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import NoReturn

from headway.cli import main
from headway.core.text_messages import to_stderr

GRACE_S = 10.0
"""How long threads that are left at the end of a command may take to end by themselves."""


def run() -> NoReturn:
    """Ends the process with the command's exit code."""
    code = 1

    def leave() -> None:
        """Ends it before Python tears threads out of what they are doing, when all that is registered was done."""
        if any(thread.daemon for thread in threading.enumerate()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    atexit.register(leave)  # the first that is registered is the last that is called
    code = main()
    threading.Thread(target=_end_without_threads, args=(code,), daemon=True).start()
    sys.exit(code)


def _end_without_threads(code: int) -> None:
    """Ends the process if threads that something else has left behind (an environment, say) keep it from ending."""
    threading.main_thread().join()
    time.sleep(GRACE_S)
    left = [one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    if left:
        to_stderr(f"ended without threads that a user's code has left behind: {', '.join(left[:3])}")
        os._exit(code)


if __name__ == "__main__":
    run()
