"""Gives test files to the workers of pytest-xdist, also when one of them dies.

Its own `--dist loadfile` hangs then, or runs the test that killed the worker again and again: a dead worker's finished
files go back into the queue, and a worker that is given a single test waits for a second one before it begins.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FileScheduling(LoadFileScheduling):
    """One file, one worker; what a dead one has not begun goes to others."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test in which the worker died."""
        files = self.assigned_work.pop(node)
        begun = [(tests, test) for tests in files.values() for test, is_done in tests.items() if not is_done]
        if not begun:
            return None
        tests, crashed = begun[0]
        tests[crashed] = True
        self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
        for other in list(self.assigned_work):
            self._reschedule(other)
        return crashed

    def schedule(self) -> None:
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)  # a second file, or the news that there is none


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
