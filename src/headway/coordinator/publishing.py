"""Who holds which version of a line, and how the weights of one are had.

    learner --stage--> Snapshot --put--> newest --hold--> tickets, evaluations, reanalysis --let_go--> released

A version that was lost with the node that held it is staged again by the learner, as it has it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from headway.coordinator.publishing_snapshots import HeldSnapshots
from headway.coordinator.role_calls import RoleCalls, RunFailed
from headway.coordinator.role_calls_learner_calls import LearnerCalls
from headway.core.events import Published, Restaged
from headway.core.protocols import PayloadLost
from headway.core.types import Snapshot
from headway.core.types_lent import Lent, LentLost
from headway.core.types_opaque import Weights

FolderFor = Callable[[int], str]
"""Where files of a version may be written: a folder that is not there yet."""


class Publishing:
    """The versions of one line: the newest, and those that somebody still needs."""

    def __init__(self, line: str, learner: LearnerCalls, calls: RoleCalls) -> None:
        self._line = line
        self._learner = learner
        self._calls = calls
        self.version = 0
        self.snapshots = HeldSnapshots(self.release)

    async def begin(self) -> None:
        """Version 0 is what the learner begins with."""
        self.put(await self._learner.stage(0))

    def put(self, snapshot: Snapshot) -> None:
        """This version exists from now on, and is the newest."""
        self.version = snapshot.version
        self.snapshots.put(snapshot)
        self._calls.journal.write(Published, snapshot.version, self._line)

    async def stage_again(self, role: str, lost: Snapshot) -> None:
        """The newest weights are gone: `role` waits until the learner has staged them again, as they are now.

        Nothing is to be done if they are no longer the newest, or if somebody else was faster.
        """
        if not self._is_newest(lost):
            return
        snapshot = await self._learner.stage(lost.version, waiter=role)
        if not self._is_newest(lost):
            self.release(snapshot.payload)
            return
        self._calls.journal.write(Restaged, snapshot.version, self._line)
        if self.snapshots.replace(snapshot) > self._calls.settings.retries.publish_attempts:
            raise RunFailed(f"version {snapshot.version} was lost more than publish_attempts times")

    def _is_newest(self, snapshot: Snapshot) -> bool:
        newest = self.snapshots.newest
        return newest.version == snapshot.version and newest.payload is snapshot.payload

    async def newest_weights(self, role: str, folder: FolderFor | None = None) -> Weights:
        """The newest weights themselves, here, or in files of such a folder; `role` waits for them."""
        while True:
            newest = self.snapshots.newest
            try:
                return await self.weights_of(newest, role, folder)
            except PayloadLost:
                await self.stage_again(role, newest)

    async def weights_of(self, snapshot: Snapshot, role: str, folder: FolderFor | None = None) -> Weights:
        """The weights themselves, here. What the learner has lent is taken beside the loops; `role` waits for it.
        With a folder they may be in files there instead."""
        runtime, board = self._calls.runtime, self._calls.board
        payload = runtime.fetch(snapshot.payload)
        if not isinstance(payload, Lent):
            return payload
        self.snapshots.hold(snapshot.version)
        board.begin(role, "weights", f"version {snapshot.version}", self._calls.settings.deadlines.publish_s)
        try:
            return await runtime.offload(_taking(payload, snapshot.version, folder))
        except LentLost as error:
            raise PayloadLost("driver", "fetch", str(error), versions=[snapshot.version]) from error
        finally:
            board.end(role)
            self.snapshots.let_go(snapshot.version)

    async def all_weights(self, role: str, folder: FolderFor) -> dict[int, Weights]:
        """Version -> weights of everything that somebody needs, as a checkpoint keeps them."""
        weights = {self.version: await self.newest_weights(role, folder)}
        for snapshot in self.snapshots.all():
            if snapshot.version not in weights and self.snapshots.has(snapshot.version):
                weights[snapshot.version] = await self.weights_of(snapshot, role, folder)
        return weights

    def hold_all(self) -> list[Snapshot]:
        """Everything that somebody needs, held until `let_go_of` it."""
        return [self.snapshots.hold(snapshot.version) for snapshot in self.snapshots.all()]

    def let_go_of(self, held: Iterable[Snapshot]) -> None:
        for snapshot in held:
            self.snapshots.let_go(snapshot.version)

    async def stage_last(self, version: int, role: str, folder: FolderFor) -> tuple[Snapshot | None, Weights]:
        """The version a run ends with, and its weights as a checkpoint keeps them; nothing if they were lost on the
        way."""
        snapshot = await self._learner.stage(version, waiter=role)
        try:
            payload = self._calls.runtime.fetch(snapshot.payload)
            if not isinstance(payload, Lent):
                return snapshot, payload
            return snapshot, await self._calls.runtime.offload(_taking(payload, version, folder))
        except (PayloadLost, LentLost):
            self.release(snapshot.payload)
            return None, None

    def restore(self, version: int, weights: dict[int, Weights]) -> None:
        """Go on with the versions of a checkpoint; whoever needs the older ones holds them next."""
        self.version = version
        for number in sorted(weights):
            snapshot = Snapshot(number, weights[number])
            (self.snapshots.put if number == version else self.snapshots.put_older)(snapshot)

    def release(self, payload: object) -> None:
        """Nobody needs these weights any more."""
        if isinstance(payload, Lent):
            payload.give_back()
        else:
            self._calls.runtime.release(payload)


def _taking(payload: Lent, version: int, folder: FolderFor | None) -> Callable[[], Weights]:
    return payload.take if folder is None else partial(payload.saved_in, folder(version))
