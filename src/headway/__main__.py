"""`python -m headway` is `headway`."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn

from headway.cli import main


def run() -> NoReturn:
    """Ends with the command's exit code, whatever its threads are doing.

    A run that fails may leave a role's thread inside a library, compiling say. Python would tear it out of there, which
    some libraries answer by aborting the process: so what is left to do at the end is done, and then all is over.
    """
    code = 0

    def leave() -> None:
        if any(thread.daemon for thread in threading.enumerate()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    atexit.register(leave)  # the first that is registered is the last that is called
    code = main()
    sys.exit(code)


if __name__ == "__main__":
    run()
