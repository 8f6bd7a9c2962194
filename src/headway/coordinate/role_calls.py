"""The roles of a run: started together, called by name, kept alive within a budget.

    call fails        raised           the station's own code: its state is put back, the caller decides
                      died, late       the place is gone or no longer trusted: restarted, state put back
    budget used up    the run fails, with one line that says which role and why

Handing on a snapshot has two phases. The learner *stages* it: the runtime freezes the weights and gives
back a reference. A collector that holds weights itself *applies* it and acknowledges by returning; only
then does a ticket take off there, stamped with exactly that version. Both are retried under a deadline.

With lanes several calls to one collector are under way at once (`lanes.Post`). Whatever brings it down fails all of
them, and whoever notices first restarts it. If one was late, that one alone is to blame: the others fly again without
an attempt being counted. If it died, nobody can say whose fault it was, and it counts for all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from headway.coordinate.evaluations import evaluation_seed
from headway.coordinate.journal import Journal
from headway.coordinate.lanes import Post
from headway.coordinate.roles import EVALUATOR, LEARNER, REANALYZER, REPLAY, Stations, Traits, collector_name
from headway.coordinate.settings import Settings
from headway.coordinate.waits import Board
from headway.core.events import Drawn, PublishRetried, Restarted
from headway.core.naming import seat_name
from headway.core.protocols import PayloadLost, Role, RoleDied, RoleError, RoleLate, RoleRaised, Runtime
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket


class RunFailed(RuntimeError):
    """The run cannot go on. One line: what failed, on which ticket, version and role."""


def end_if_final(error: RoleError) -> None:
    """A collector that says it cannot go on is neither asked again nor replaced."""
    if isinstance(error, RoleRaised) and error.is_final:
        raise RunFailed(f"{error.role} cannot go on: {error.what}") from error


class RoleCalls:
    """Speaks to the roles; knows what each collector carries and which version it holds."""

    def __init__(self, runtime: Runtime, board: Board, settings: Settings, journal: Journal) -> None:
        self._runtime = runtime
        self._board = board
        self._settings = settings
        self._journal = journal
        self.names = [seat_name(seat, settings.collectors, settings.lanes) for seat in range(settings.seats)]
        """Of the seats, on the board."""
        self._posts = [
            Post(collector_name(number), range(number, settings.seats, settings.collectors))
            for number in range(settings.collectors)
        ]
        self._has_lanes = settings.lanes > 1
        self._flown: dict[str, int] = {}  # who -> incarnation of the collector when it was last called
        self._collect_s = settings.deadlines.collect_s
        self._stateful = self._holds_weights = self._shares_replay = False
        self.carried: dict[int, Any] = {}  # collector -> its state after its last landed rollout
        self.restarts: Counter[str] = Counter()
        self.publish_retries = 0
        self.offers_targets = False
        """Is there a replay that gives work to the reanalyzer?"""

    async def start(self, stations: Stations) -> None:
        """Build every role, all at once."""
        try:
            async with asyncio.TaskGroup() as group:
                for role in stations.roles(self._settings.collectors, self._settings.lanes):
                    group.create_task(self._start(role))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        has_replay = await self.call(LEARNER, "has_replay", "set-up", self._settings.deadlines.start_s)
        self._shares_replay = stations.replay is not None
        if stations.reanalyzer is not None and (has_replay or self._shares_replay):
            keeper = REPLAY if self._shares_replay else LEARNER
            limit = self._settings.deadlines.start_s
            self.offers_targets = await self.call(keeper, "offers_targets", "set-up", limit)
        if has_replay and self._shares_replay:
            raise RunFailed("two replays: the learner keeps one (it has an insert method), and one has its own role")
        if (has_replay or self._shares_replay) and self._settings.replay is None:
            owner = "there is a replay with its own role" if self._shares_replay else "the learner keeps a replay"
            raise RunFailed(f"{owner} (it has an insert method): set `replay`")
        if self._settings.replay is not None and not (has_replay or self._shares_replay):
            raise RunFailed("`replay` is set, but the learner has no insert method, and no replay has its own role")
        traits: Traits = await self.call(
            self._posts[0].role, "traits", "set-up", self._settings.deadlines.start_s, name=self.names[0]
        )
        self._stateful, self._holds_weights = traits.is_stateful, traits.holds_weights
        if self._has_lanes:
            self._check_lanes(traits)

    def _check_lanes(self, traits: Traits) -> None:
        lanes, on_publish = self._settings.lanes, self._settings.on_publish
        if not traits.is_concurrent:
            raise RunFailed(
                f"lanes={lanes}, but {traits.kind} collects one ticket at a time: only a collector that says "
                "is_concurrent = True may have more than one lane"
            )
        if traits.is_stateful:
            raise RunFailed(
                f"lanes={lanes}, but {traits.kind} carries a state from one ticket to the next: with more than one "
                "lane it would depend on the order of arrival"
            )
        if on_publish == "partial" and not traits.holds_weights:
            raise RunFailed(f"on_publish='partial' is for collectors with an apply method; {traits.kind} has none")
        for post in self._posts:
            post.drains = traits.holds_weights and on_publish == "drain"

    async def call(
        self, role: str, method: str, doing: object, deadline_s: float, *args: Any, name: str | None = None
    ) -> Any:
        """One call, entered on the board under its method's name, for the role or for who is called `name` there."""
        name = name or role
        self._board.begin(name, method, doing, deadline_s)
        try:
            return await self._runtime.call(role, method, *args, deadline_s=deadline_s)
        finally:
            self._board.end(name)

    # -- collectors ---------------------------------------------------------------------------------

    def post(self, seat: int) -> Post:
        return self._posts[seat % len(self._posts)]

    async def collect(self, number: int, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._has_lanes:
            return await self._collect_in_lane(number, ticket, snapshot)
        role = self.names[number]
        if self._holds_weights and self._posts[number].applied != snapshot.version:
            await self._apply(role, self._posts[number], snapshot)
        self._board.begin(role, "collect", ticket, self._collect_s)
        try:  # as in `call`, without a frame more: this is the path every ticket takes
            answer = await self._runtime.call(role, "collect", ticket, snapshot, deadline_s=self._collect_s)
        finally:
            self._board.end(role)
        rollout: Rollout = answer[0]
        if self._stateful:
            self.carried[number] = answer[1]
        if self._holds_weights:
            _check_span(self._posts[number], rollout)
        return rollout

    async def _collect_in_lane(self, seat: int, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        """The same beside other calls. Nothing is awaited between the coordinator's look at the post and `take_off`."""
        name, post = self.names[seat], self.post(seat)
        post.take_off(snapshot.version)
        try:
            if self._holds_weights:
                await self._bring(name, post, snapshot)
            self._flown[name] = post.incarnation
            answer = await self.call(post.role, "collect", ticket, self._collect_s, ticket, snapshot, name=name)
            rollout: Rollout = answer[0]
            if self._holds_weights:
                _check_span(post, rollout)
            return rollout
        except RoleLate:
            post.give_up(self._flown[name])
            raise
        finally:
            post.land()
            if not post.in_flight:
                self._stir(post)

    async def push(self, number: int, name: str, snapshot: Snapshot) -> None:
        """Hand a version on in the middle of whatever collector `number` does."""
        post = self._posts[number]
        try:
            await self._bring(name, post, snapshot)
        except RoleLate:
            post.give_up(self._flown[name])
            raise

    async def _bring(self, name: str, post: Post, snapshot: Snapshot) -> None:
        """Wait until the collector has weights that are good for this version; apply them if nobody else does."""
        while not post.has(snapshot.version):
            if post.is_up and not post.is_applying:
                await self._apply(name, post, snapshot)
            else:
                post.waiting[name] = None
                why = partial(post.why_not, snapshot.version)
                await self._board.wait(name, "applying", why, self._settings.patience_s)

    def _stir(self, post: Post) -> None:
        """Something has changed: whoever waits for this collector looks again."""
        names, post.waiting = post.waiting, {}
        for name in names:
            self._board.wake(name)

    def is_innocent(self, seat: int, error: RoleError) -> bool:
        """Did the call do nothing to bring its collector down, as far as anybody can say?"""
        if not isinstance(error, RoleDied):
            return False
        return error.never_began or self.post(seat).was_given_up(self._flown.get(self.names[seat], -2))

    async def revive(self, number: int, name: str, error: RoleError) -> None:
        """Restart a collector with lanes, unless that was seen to since the call that failed."""
        post = self._posts[number]
        if isinstance(error, RoleRaised) or self._flown.get(name) != post.incarnation:
            return
        post.go_down()
        await self._restart(post.role, error, name)
        post.is_up = True
        self._stir(post)

    async def recover(self, number: int, error: RoleError) -> None:
        """Bring a collector back to where it was after its last landed rollout."""
        role = self.names[number]
        if self._has_lanes:
            return await self.revive(number % len(self._posts), role, error)
        while True:
            if not isinstance(error, RoleRaised):
                await self._restart(role, error)
                self._posts[number].applied = None
            if number not in self.carried:
                return
            try:
                return await self.restore_collector(number, self.carried[number])
            except RoleRaised:
                raise
            except RoleError as again:
                error = again

    async def begin_anew(self, number: int, seed: int, error: RoleError) -> None:
        """Let a collector leave behind what it was doing when it failed. One with lanes carries nothing."""
        role = self.names[number]
        if self._has_lanes:
            return await self.revive(number % len(self._posts), role, error)
        if not isinstance(error, RoleRaised):
            await self._restart(role, error)
            if number in self.carried:
                await self.restore_collector(number, self.carried[number])
        state = await self.call(role, "begin_anew", "new episodes", self._settings.deadlines.start_s, seed)
        self._posts[number].applied = None  # it may have been built anew
        if self._stateful:
            self.carried[number] = state

    async def restore_collector(self, number: int, carried: Any) -> None:
        self.carried[number] = carried
        limit = self._settings.deadlines.start_s
        await self.call(self.names[number], "restore", "its state", limit, carried)

    async def _apply(self, name: str, post: Post, snapshot: Snapshot) -> None:
        """For whoever is called `name` on the board."""
        post.is_applying = True
        post.newest = max(post.newest, snapshot.version)
        try:
            await self._try_to_apply(name, post, snapshot)
            if self._flown[name] == post.incarnation:  # if not, what has it now is gone
                post.applied = snapshot.version
        finally:
            post.is_applying = False
            self._stir(post)

    async def _try_to_apply(self, name: str, post: Post, snapshot: Snapshot) -> None:
        role = post.role
        retries, limit = self._settings.retries, self._settings.deadlines.publish_s
        doing = f"applying version {snapshot.version}"
        for attempt in range(retries.publish_attempts):
            if not post.is_up:  # another lane brought it down between two attempts
                raise RoleDied(role, "apply", "it is being restarted", never_began=True)
            self._flown[name] = post.incarnation
            try:
                await self.call(role, "apply", doing, limit, snapshot, name=name)
                return
            except PayloadLost:  # another attempt would find nothing either: the learner has to stage it again
                raise
            except RoleRaised as error:
                end_if_final(error)
                self._note_retry(role, snapshot.version, error.what)
                if attempt + 1 == retries.publish_attempts:
                    raise RoleLate(role, "apply", f"quarantined: {error.what}") from error
                await self._pause_before_retry(name)

    # -- learner and evaluator ----------------------------------------------------------------------

    async def learn(self, batch: Batch, publish_as: int | None) -> tuple[LearnReport, Snapshot | None, str]:
        """The report, and with `publish_as` the snapshot of that version, or why there is none."""
        doing = f"{len(batch.rollouts)} rollouts at version {batch.version}"
        answer: tuple[LearnReport, Snapshot | None, str] = await self.call(
            LEARNER, "learn", doing, self._settings.deadlines.learn_s, batch, publish_as
        )
        return answer

    async def stage_again(self, version: int, problem: str) -> Snapshot:
        """The first attempt failed, with the update that made this version."""
        self._note_retry(LEARNER, version, problem)
        return await self.stage(version, attempts_made=1)

    async def insert(self, batch: Batch) -> None:
        doing = f"{len(batch.rollouts)} rollouts for the replay"
        role = REPLAY if self._shares_replay else LEARNER
        await self.call(role, "insert", doing, self._settings.deadlines.learn_s, batch)

    async def sample(self, version: int) -> Rollout:
        """A draw of the replay with its own role, recorded in the order in which the replay sees its calls."""
        self._journal.write(Drawn, version)
        draw = await self.call(REPLAY, "sample", f"version {version}", self._settings.deadlines.learn_s, version)
        assert isinstance(draw, Rollout)
        return draw

    async def give_feedback(self, report: LearnReport) -> None:
        """What the learner says about a draw goes back to the replay that made it."""
        report = LearnReport(feedback=report.feedback)
        await self.call(REPLAY, "update", "the learner's feedback", self._settings.deadlines.learn_s, report)

    async def replay_state(self) -> Any:
        return await self.call(REPLAY, "state", "its content", self._settings.deadlines.learn_s)

    async def restore_replay(self, state: Any) -> None:
        await self.call(REPLAY, "restore", "its content", self._settings.deadlines.start_s, state)

    async def stage(self, version: int, attempts_made: int = 0, waiter: str = LEARNER) -> Snapshot:
        """The learner's weights, frozen, as `version`. Any other role that waits for them lets an update end first."""
        retries, limit = self._settings.retries, self._settings.deadlines.publish_s
        if waiter != LEARNER:
            limit += self._settings.deadlines.learn_s
        what = "no attempt was left"
        for attempt in range(attempts_made, retries.publish_attempts):
            if attempt:
                await self._pause_before_retry(waiter)
            try:
                doing = "snapshot" if waiter == LEARNER else "weights"
                self._board.begin(waiter, doing, f"version {version}", limit)
                snapshot = await self._runtime.call(LEARNER, "snapshot", version, deadline_s=limit)
                assert isinstance(snapshot, Snapshot)
                return snapshot
            except RoleRaised as error:
                self._note_retry(LEARNER, version, error.what)
                what = error.what
            finally:
                self._board.end(waiter)
        raise RunFailed(f"version {version} could not be published in {retries.publish_attempts} attempts: {what}")

    async def _pause_before_retry(self, name: str) -> None:
        delay_s = self._settings.retries.publish_delay_s
        self._board.begin(name, "retry", f"its next attempt (publish_delay_s={delay_s:g})", delay_s)
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._board.end(name)

    async def evaluate(self, snapshot: Snapshot) -> Score:
        """One evaluation of one version. A failed one is a score without a value, never an error."""
        settings = self._settings
        seed = evaluation_seed(settings.seed, snapshot.version)
        what = ""
        for _ in range(settings.retries.evaluate_attempts):
            try:
                score = await self.call(
                    EVALUATOR,
                    "evaluate",
                    f"version {snapshot.version}",
                    settings.deadlines.evaluate_s,
                    snapshot,
                    seed,
                )
                assert isinstance(score, Score)
                return score
            except RoleRaised as error:
                what = error.what
            except RoleError as error:
                what = error.what
                await self._restart(EVALUATOR, error)
        return Score(snapshot.version, None, error=what)

    # -- reanalyzer ---------------------------------------------------------------------------------

    async def reanalyze(self, snapshot: Snapshot) -> bool:
        doing = f"targets at version {snapshot.version}"
        return bool(await self.call(REANALYZER, "reanalyze", doing, self._settings.deadlines.learn_s, snapshot))

    async def oldest(self, version: int) -> Rollout | None:
        """What the replay, wherever it is, wants to have made again."""
        work = await self._ask_keeper("oldest", f"work at version {version}", version)
        assert work is None or isinstance(work, Rollout)
        return work

    async def reanalyze_work(self, snapshot: Snapshot, work: Rollout) -> Rollout:
        """Newer targets for `work`. A reanalyzer that died or was late is built anew and does it again."""
        doing = f"{work.steps} targets at version {snapshot.version}"
        while True:
            try:
                targets = await self.call(
                    REANALYZER, "reanalyze_work", doing, self._settings.deadlines.learn_s, snapshot, work
                )
                assert isinstance(targets, Rollout)
                return targets
            except RoleRaised:
                raise
            except RoleError as error:
                await self._restart(REANALYZER, error)

    async def refresh(self, targets: Rollout) -> None:
        await self._ask_keeper("refresh", "newer targets", targets)

    async def _ask_keeper(self, method: str, doing: str, *args: Any) -> Any:
        """A replay inside the learner is asked by the reanalyzer, as far as the board is concerned."""
        limit = self._settings.deadlines.learn_s
        if self._shares_replay:
            return await self.call(REPLAY, method, doing, limit, *args)
        return await self.call(LEARNER, method, doing, limit, *args, name=REANALYZER)

    def _note_retry(self, role: str, version: int, why: str) -> None:
        self.publish_retries += 1
        self._journal.write(PublishRetried, role, version, why)

    # -- keeping them alive -------------------------------------------------------------------------

    async def _start(self, role: Role) -> None:
        limit = self._settings.deadlines.start_s
        name = role.name if role.lanes == 1 else f"{role.name}/0"
        self._board.begin(name, "start", "starting", limit)
        try:
            async with asyncio.timeout(limit):
                await self._runtime.start(role)
        except TimeoutError:
            raise RoleLate(role.name, "start", f"not built within {limit:g} s") from None
        finally:
            self._board.end(name)

    async def _restart(self, role: str, error: RoleError, name: str | None = None) -> None:
        name = name or role
        limit, budget = self._settings.deadlines.start_s, self._settings.retries.max_restarts
        while True:
            if self.restarts[role] >= budget:
                raise RunFailed(f"{error} (restarted {self.restarts[role]} times, max_restarts={budget})")
            self.restarts[role] += 1
            self._journal.write(Restarted, role, error.what)
            self._board.begin(name, "restart", "restarting", limit)
            try:
                async with asyncio.timeout(limit):
                    await self._runtime.restart(role)
                return
            except TimeoutError:
                error = RoleLate(role, "restart", f"not built within {limit:g} s")
            except RoleError as again:
                error = again
            finally:
                self._board.end(name)


def _check_span(post: Post, rollout: Rollout) -> None:
    """No rollout is made by weights that its collector was never given."""
    span = rollout.span
    if span is not None and span.newest > post.newest:
        raise RunFailed(
            f"ticket {rollout.ticket} on {post.role}: its rollout claims version {span.newest}, but version "
            f"{post.newest} is the newest that was applied there"
        )
