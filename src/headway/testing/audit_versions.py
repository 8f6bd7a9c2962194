"""Where a line is: its newest version, and the updates that go into the next one, counted for the audit alone.

update, update, ... --> publish --> update, ...    at most publish_every updates make a version, numbered from 0
"""

from __future__ import annotations

from collections.abc import Callable


class AuditedVersions:
    """Counts the updates and versions of a line, and tells `wrong` (a rule, a line) what cannot be."""

    def __init__(self, wrong: Callable[[str, str], None]) -> None:
        self.newest = -1
        self.updates = 0
        self.in_version = 0
        """Updates since the newest was published."""
        self.is_short = False
        """The newest was made by fewer updates than publish_every."""
        self.is_published = True
        """All updates are in a published version."""
        self._wrong = wrong

    def require(self, version: int, updates: int, rule: str, what: str) -> None:
        """The run says that it is here; it has `what`."""
        if (version, updates) != (self.newest, self.updates):
            here = f"the log is at version {self.newest}, update {self.updates}"
            self._wrong(rule, f"{what} at version {version}, update {updates}; {here}")

    def count_update(self, publish_every: int) -> None:
        self.updates += 1
        self.in_version += 1
        self.is_published = False
        if self.in_version > publish_every:
            self._wrong("versions", f"{self.in_version} updates since version {self.newest}")

    def publish(self, version: int, publish_every: int) -> None:
        if version != self.newest + 1:
            self._wrong("versions", f"version {version} is published after {self.newest}")
        if version and not 0 < self.in_version <= publish_every:
            self._wrong("versions", f"version {version} was made by {self.in_version} updates, not {publish_every}")
        self.is_short = version > 0 and self.in_version < publish_every
        self.newest, self.in_version, self.is_published = version, 0, True
