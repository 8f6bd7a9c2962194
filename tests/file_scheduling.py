"""Gives test files to the workers of pytest-xdist, in an order that leaves none waiting, also when one of them dies.

Files with many tests are first, and those that start Ray, which are few and long, are spread among them: left to the
end they are what everybody waits for, and all at once they are in each other's way.

Its own `--dist loadfile` hangs then, or runs the test that killed the worker again and again: a dead worker's finished
files go back into the queue, and a worker that is given a single test waits for a second one before it begins.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

RAY = "ray"
"""The folder of tests that start Ray."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order files as this page says, where workers share them."""
    if config.getvalue("dist") != "loadfile" and not hasattr(config, "workerinput"):
        return
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.split("::")[0], []).append(item)
    ordered = sorted(files.items(), key=lambda each: (-len(each[1]), each[0]))
    rest = [tests for file, tests in ordered if RAY not in file.split("/")]
    long = [tests for file, tests in ordered if RAY in file.split("/")]
    between = 0.8 * sum(map(len, rest)) / (len(long) + 1)
    found: list[pytest.Item] = []
    for number, tests in enumerate([*long, []]):
        while rest and len(found) < (number + 1) * between:
            found += rest.pop(0)
        found += tests
    items[:] = [*found, *(item for tests in rest for item in tests)]


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
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the files are in order
    return FileScheduling(config, log)
