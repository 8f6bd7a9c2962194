"""In continuous integration only those tests may be skipped that need what its machine cannot have.

A pytest plugin: it counts the skips by their reason, and fails the session if one of them is not ALLOWED. Where the
variable CI is not set, everybody may lack what they like. Where HEADWAY_NO_SKIPS is set (`make test-gpu`) nothing
may be skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

ALLOWED = {
    "needs a GPU": "there is none",
    "vLLM is not installed: ": "it needs an environment of its own, of some gigabytes: make vllm",
    "a library of games is not installed: ": "each needs an environment of its own, some of hundreds of megabytes",
    "a story file of the user is not on this machine: ": "games that are sold are not ours to give away",
    "this kernel or user may not make machines: ": "namespaces need root, and a kernel that has them",
    "the data set is not on this machine": "GSM8K is for whoever has downloaded it",
}
"""How the reason of a skip may begin, and why that is no fault."""

_SKIPS = pytest.StashKey[Counter[str]]()


def is_strict() -> bool:
    return bool(os.environ.get("CI") or os.environ.get("HEADWAY_NO_SKIPS"))


def is_allowed(reason: str) -> bool:
    return not os.environ.get("HEADWAY_NO_SKIPS") and reason.startswith(tuple(ALLOWED))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SKIPS] = Counter()
    config.pluginmanager.register(_Count(config.stash[_SKIPS]), "count of skips")


class _Count:
    """Sees every report; with xdist that is the controller, where those of all workers arrive."""

    def __init__(self, skips: Counter[str]) -> None:
        self._skips = skips

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._skips[reason.removeprefix("Skipped: ")] += 1


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    refused = [reason for reason in session.config.stash[_SKIPS] if not is_allowed(reason)]
    if is_strict() and refused and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skips = config.stash[_SKIPS]
    if not is_strict() or not skips:
        return
    refused = {reason: count for reason, count in skips.items() if not is_allowed(reason)}
    terminalreporter.section("skips")
    terminalreporter.line(f"{skips.total()} skips, {skips.total() - sum(refused.values())} of them allowed")
    for reason, count in refused.items():
        terminalreporter.line(f"ERROR {count} times, which is not allowed here: {reason}", red=True)
