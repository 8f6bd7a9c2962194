"""The snapshots someone still needs.

A snapshot stays while it is the newest, while a ticket may take off or is in flight with it, and while an
evaluation of it is due. Then its memory goes back to the runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headway.core.types import Snapshot
from headway.core.types_opaque import Payload


class HeldSnapshots:
    """Counts who holds which version."""

    def __init__(self, release: Callable[[Payload], None]) -> None:
        self._release = release
        self._snapshots: dict[int, Snapshot] = {}
        self._holders: Counter[int] = Counter()
        self._newest = -1
        self._times_replaced = 0  # of the newest

    def put(self, snapshot: Snapshot) -> None:
        """A version becomes the newest one."""
        previous, self._newest = self._newest, snapshot.version
        self._times_replaced = 0
        self._snapshots[snapshot.version] = snapshot
        self._forget(previous)

    def replace(self, snapshot: Snapshot) -> int:
        """The newest version was lost and is staged again; returns how often that has happened to it.

        What was lost is not released: whoever is about to use it shall be told.
        """
        assert snapshot.version == self._newest
        self._snapshots[self._newest] = snapshot
        self._times_replaced += 1
        return self._times_replaced

    def put_older(self, snapshot: Snapshot) -> None:
        """A version that is not the newest, when a run is resumed; then `forget_unheld`."""
        self._snapshots[snapshot.version] = snapshot

    def forget_unheld(self) -> None:
        for version in list(self._snapshots):
            self._forget(version)

    @property
    def newest(self) -> Snapshot:
        return self._snapshots[self._newest]

    def has(self, version: int) -> bool:
        return version in self._snapshots

    def get(self, version: int) -> Snapshot:
        return self._snapshots[version]

    def hold(self, version: int) -> Snapshot:
        self._holders[version] += 1
        return self._snapshots[version]

    def let_go(self, version: int) -> None:
        if self._holders[version] < 1:
            raise RuntimeError(f"nobody holds version {version}")
        self._holders[version] -= 1
        self._forget(version)

    def all(self) -> list[Snapshot]:
        return list(self._snapshots.values())

    def _forget(self, version: int) -> None:
        if version != self._newest and not self._holders[version]:
            snapshot = self._snapshots.pop(version, None)
            del self._holders[version]
            if snapshot is not None:
                self._release(snapshot.payload)
