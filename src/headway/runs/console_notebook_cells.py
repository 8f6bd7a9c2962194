"""A text in the cell of a notebook that is replaced by the next: where a terminal would have a live block.

Nothing here imports IPython: where it runs, it is there already.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable


def replaceable_text() -> Callable[[str], None] | None:
    """What shows a text in the cell that is being executed, in place of the one before; None outside of notebooks.

    It may be called from any thread.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    cell = contextvars.copy_context()  # the kernel finds the cell by it
    handle = sys.modules["IPython.display"].display({"text/plain": ""}, raw=True, display_id=True)

    def show(text: str) -> None:
        cell.copy().run(handle.update, {"text/plain": text}, raw=True)

    return show
