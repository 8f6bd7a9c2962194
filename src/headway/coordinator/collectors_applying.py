"""Weights for the collectors that hold them themselves: a version is applied before the tickets that fly with it.

A collector *applies* a snapshot and acknowledges by returning; only then does a ticket take off there, stamped with
exactly that version. That is retried under a deadline. With lanes, whoever comes first applies and the others wait.
"""

from __future__ import annotations

from functools import partial

from headway.coordinator.collectors_lanes import Post, Versions
from headway.coordinator.role_calls import RoleCalls, RunFailed, end_if_final
from headway.core.protocols import PayloadLost, RoleDied, RoleLate, RoleRaised
from headway.core.types import Rollout, Snapshot


def versions_of(snapshot: Snapshot) -> Versions:
    """Which weights these are: a version, or one of each line."""
    if not snapshot.others:
        return snapshot.version
    return (snapshot.version, *(other.version for other in snapshot.others.values()))


class Applying:
    """Brings versions to the collectors, on behalf of whoever is called `name` on the board."""

    def __init__(self, calls: RoleCalls) -> None:
        self._calls = calls
        self._settings = calls.settings
        self._board = calls.board

    async def push(self, post: Post, name: str, snapshot: Snapshot) -> None:
        """Hand a version on in the middle of whatever the collector does."""
        try:
            await self.bring(name, post, snapshot)
        except RoleLate:
            post.blame(name)
            raise

    async def bring(self, name: str, post: Post, snapshot: Snapshot) -> None:
        """Wait until the collector has weights that are good for this version; apply them if nobody else does."""
        wanted = versions_of(snapshot)
        while not post.has(wanted):
            if post.is_up and not post.is_applying:
                await self.apply(name, post, snapshot)
            else:
                post.waiting[name] = None
                why = partial(post.why_not, wanted)
                await self._board.wait(name, "applying", why, self._calls.patience_s)

    def stir(self, post: Post) -> None:
        """Something has changed: whoever waits for this collector looks again."""
        names, post.waiting = post.waiting, {}
        for name in names:
            self._board.wake(name)

    async def apply(self, name: str, post: Post, snapshot: Snapshot) -> None:
        post.is_applying = True
        post.newest = max(post.newest, snapshot.version)
        try:
            await self._try_to_apply(name, post, snapshot)
            if post.is_as_called_by(name):  # if not, what has it now is gone
                post.applied = versions_of(snapshot)
        finally:
            post.is_applying = False
            self.stir(post)

    async def _try_to_apply(self, name: str, post: Post, snapshot: Snapshot) -> None:
        role = post.role
        retries, limit = self._settings.retries, self._settings.deadlines.publish_s
        doing = f"applying version {snapshot.version}"
        for attempt in range(retries.publish_attempts):
            if not post.is_up:  # another lane brought it down between two attempts
                raise RoleDied(role, "apply", "it is being restarted", never_began=True)
            post.note_call(name)
            try:
                await self._calls.call(role, "apply", doing, limit, snapshot, name=name)
                return
            except PayloadLost:  # another attempt would find nothing either: the learner has to stage it again
                raise
            except RoleRaised as error:
                end_if_final(error)
                self._calls.note_retry(role, snapshot.version, error.what)
                if attempt + 1 == retries.publish_attempts:
                    raise RoleLate(role, "apply", f"quarantined: {error.what}") from error
                await self._calls.pause_before_retry(name)


def check_span(post: Post, rollout: Rollout) -> None:
    """No rollout is made by weights that its collector was never given."""
    span = rollout.span
    if span is not None and span.newest > post.newest:
        raise RunFailed(
            f"ticket {rollout.ticket} on {post.role}: its rollout claims version {span.newest}, but version "
            f"{post.newest} is the newest that was applied there"
        )
