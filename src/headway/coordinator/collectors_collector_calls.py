"""What is said to the collectors, each of which may have several lanes.

With lanes several calls to one collector are under way at once (`lanes.Post`). Whatever brings it down fails all of
them, and whoever notices first restarts it. If one was late, that one alone is to blame: the others fly again without
an attempt being counted. If it died, nobody can say whose fault it was, and it counts for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headway.coordinator.collectors_applying import Applying, check_span, versions_of
from headway.coordinator.collectors_call_sizes import CallSizes
from headway.coordinator.collectors_flight_calls import FlightCalls
from headway.coordinator.collectors_lanes import Post
from headway.coordinator.collectors_posts import Posts
from headway.coordinator.role_calls import RoleCalls, RunFailed
from headway.coordinator.roles import EVALUATOR, LEARNER, Together, Traits
from headway.core.protocols import RoleDied, RoleError, RoleLate, RoleRaised
from headway.core.types import Rollout, Snapshot, Ticket
from headway.core.types_opaque import SavedState


class CollectorCalls:
    """Speaks to the collectors; knows what each one carries and which version it holds."""

    def __init__(self, calls: RoleCalls) -> None:
        settings = calls.settings
        self._calls = calls
        self._settings = settings
        self._board = calls.board
        self.posts = Posts(settings)
        self.applying = Applying(calls)
        self._has_lanes = settings.lanes > 1
        self._flights: FlightCalls | None = None
        self._collect_s = settings.deadlines.collect_s
        self._stateful = self._holds_weights = False
        self.is_watched = False
        """Do the collectors say what they do?"""
        self.warns_of_drains = False
        """Is it still to be said that draining takes longer than a version? Only where rollouts are episodes."""
        self.moves: set[int] = set()
        """Collectors for which a second one is ready in another place: it takes over after the ticket under way."""
        self.carried: dict[int, SavedState] = {}
        """Collector -> its state after its last landed rollout."""

    async def check(self) -> None:
        """Find out what the collectors are like, and refuse settings that do not fit them."""
        traits: Traits = await self._calls.ask_at_start(self.posts.of(0).role, "traits", name=self.posts.names[0])
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
        if self._settings.parks and not traits.can_pause:
            raise RunFailed(
                "evaluation_waits_for='parked' is for collectors with the methods pause and resume; "
                f"{traits.kind} has none"
            )
        if traits.holds_weights and on_publish == "drain":
            self.posts.drain()
        self.warns_of_drains = traits.can_pause
        if self._settings.parks or traits.tells:
            self._flights = FlightCalls(self._calls, self.posts, tells=traits.tells)
            self.is_watched = traits.tells

    async def move_soon(self, role: str) -> None:
        """A second collector is ready in another place. One with lanes carries nothing, and what it has in flight lands
        where it is; the loop of any other moves it between two tickets."""
        number = self.posts.roles.index(role)
        post = self.posts.of(number)
        if not self._has_lanes:
            self.moves.add(number)
            self._board.wake(self.posts.names[number])
        elif post.is_up and await self._calls.move(role):
            post.incarnation += 1
            post.applied = None
            self.applying.stir(post)

    async def move(self, number: int) -> None:
        """Go on in another place, from where it was after its last landed rollout."""
        self.moves.discard(number)
        role = self.posts.names[number]
        if not await self._calls.move(role):
            return
        self.posts.of(number).applied = None
        if number in self.carried:
            try:
                await self.restore_collector(number, self.carried[number])
            except RoleRaised:
                raise
            except RoleError as error:
                await self.recover(number, error)

    def forget(self, number: int) -> None:
        """A collector has left, with what it carried."""
        self.posts.of(number).go_down()
        self.moves.discard(number)
        self.carried.pop(number, None)

    async def collect(self, number: int, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._has_lanes:
            return await self._collect_in_lane(number, ticket, snapshot)
        role = self.posts.names[number]
        if self._holds_weights and self.posts.of(number).applied != versions_of(snapshot):
            await self.applying.apply(role, self.posts.of(number), snapshot)
        self._board.begin(role, "collect", ticket, self._collect_s)
        try:  # as in `call`, without a frame more: this is the path every ticket takes
            answer = await self._calls.runtime.call(role, "collect", ticket, snapshot, deadline_s=self._collect_s)
        finally:
            self._board.end(role)
        rollout: Rollout = answer[0]
        if self._stateful:
            self.carried[number] = answer[1]
        if self._holds_weights:
            check_span(self.posts.of(number), rollout)
        return rollout

    async def collect_several(
        self, number: int, flights: Sequence[tuple[Ticket, Snapshot]], sizes: CallSizes
    ) -> tuple[Sequence[Rollout], RoleRaised | None]:
        """Several tickets in one call: the rollouts up to the first that raised, and what that was."""
        role, post, calls, num = self.posts.names[number], self.posts.of(number), self._calls, len(flights)
        if self._holds_weights and post.applied != versions_of(flights[0][1]):
            await self.applying.apply(role, post, flights[0][1])
        within, limit = sizes.within_s(number), sizes.deadline_s(number, num)
        began = calls.runtime.now()
        self._board.begin(role, "collect", flights[0][0] if num == 1 else f"{flights[0][0]} and {num - 1} more", limit)
        try:
            answer = await calls.runtime.call(role, "collect_several", _together(flights), within, deadline_s=limit)
        finally:
            self._board.end(role, times=num)
        rollouts: Sequence[Rollout] = answer[0]
        state, problem, collecting_s = answer[1:]
        if rollouts:
            num_bytes = sum([rollout.size or 0 for rollout in rollouts])
            sizes.note(number, len(rollouts), calls.runtime.now() - began, collecting_s, num_bytes)
            if self._stateful:
                self.carried[number] = state
        if self._holds_weights:
            for rollout in rollouts:
                check_span(post, rollout)
        return rollouts, None if problem is None else RoleRaised(role, "collect", *problem)

    @property
    def holds_weights(self) -> bool:
        """Is a version applied before the tickets that fly with it?"""
        return self._holds_weights

    async def _collect_in_lane(self, seat: int, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        """The same beside other calls. Nothing is awaited between the coordinator's look at the post and `take_off`."""
        name, post = self.posts.names[seat], self.posts.at(seat)
        post.take_off(versions_of(snapshot))
        try:
            if self._holds_weights:
                await self.applying.bring(name, post, snapshot)
            post.note_call(name)
            if self._flights is not None:
                answer = await self._flights.collect(name, post.role, ticket, snapshot)
            else:
                limit = self._collect_s
                answer = await self._calls.call(post.role, "collect", ticket, limit, ticket, snapshot, name=name)
            rollout: Rollout = answer[0]
            if self._holds_weights:
                check_span(post, rollout)
            return rollout
        except RoleLate:
            post.blame(name)
            raise
        finally:
            post.land()
            if not post.in_flight:
                self.applying.stir(post)

    @property
    def evaluating_role(self) -> str:
        """Of the collector that lends itself to evaluations. A call there that fails is one of its incarnation now."""
        post = self.posts.of(0)
        post.note_call(EVALUATOR)
        return post.role

    def has_evaluated(self, snapshot: Snapshot) -> None:
        """The first collector has other weights now than those it acknowledged: the next ticket brings its own."""
        post = self.posts.of(0)
        post.applied, post.newest = None, max(post.newest, snapshot.version)

    async def see_to_evaluator(self, error: RoleError) -> None:
        """The first collector died, or hung, while it evaluated. Nothing was in flight; its seats wait meanwhile."""
        post = self.posts.of(0)
        if self._has_lanes:
            if isinstance(error, RoleLate):
                post.give_up(post.incarnation)
            return await self.revive(post, EVALUATOR, error)
        await self._calls.restart(post.role, error, EVALUATOR)
        post.applied = None
        if 0 in self.carried:
            limit = self._settings.deadlines.start_s
            await self._calls.call(post.role, "restore", "its state", limit, self.carried[0], name=EVALUATOR)

    async def watch_loop(self, number: int) -> None:
        """See `FlightCalls`."""
        assert self._flights is not None
        await self._flights.watch_loop(self.posts.of(number))

    async def park(self) -> None:
        """All collectors stand still, in the middle of what they do."""
        assert self._flights is not None
        await self._see_to(await self._flights.park())

    async def go_on(self) -> None:
        """What was parked goes on."""
        assert self._flights is not None
        await self._see_to(await self._flights.go_on())

    async def _see_to(self, failed: Sequence[tuple[Post, RoleError]]) -> None:
        """Some collectors could not be told to pause, or to go on. Who has died is noticed by who needs it next."""
        for post, error in failed:
            if isinstance(error, RoleRaised):
                raise RunFailed(f"{error.role} could not {error.method}: {error.what}") from error
            if isinstance(error, RoleLate):
                post.note_call(LEARNER)
                post.give_up(post.incarnation)
                await self.revive(post, LEARNER, error)

    def is_innocent(self, seat: int, error: RoleError) -> bool:
        """Did the call do nothing to bring its collector down, as far as anybody can say?"""
        if not isinstance(error, RoleDied):
            return False
        return error.never_began or self.posts.at(seat).was_given_up_for(self.posts.names[seat])

    async def revive(self, post: Post, name: str, error: RoleError) -> None:
        """Restart a collector with lanes, unless that was seen to since the call that failed."""
        if isinstance(error, RoleRaised) or not post.is_as_called_by(name):
            return
        post.go_down()
        await self._calls.restart(post.role, error, name)
        post.is_up = True
        self.applying.stir(post)

    async def recover(self, number: int, error: RoleError) -> None:
        """Bring a collector back to where it was after its last landed rollout."""
        role = self.posts.names[number]
        if self._has_lanes:
            return await self.revive(self.posts.at(number), role, error)
        while True:
            if not isinstance(error, RoleRaised):
                await self._calls.restart(role, error)
                self.posts.of(number).applied = None
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
        role = self.posts.names[number]
        if self._has_lanes:
            return await self.revive(self.posts.at(number), role, error)
        if not isinstance(error, RoleRaised):
            await self._calls.restart(role, error)
            if number in self.carried:
                await self.restore_collector(number, self.carried[number])
        state = await self._calls.call(role, "begin_anew", "new episodes", self._settings.deadlines.start_s, seed)
        self.posts.of(number).applied = None  # it may have been built anew
        if self._stateful:
            self.carried[number] = state

    async def restore_collector(self, number: int, carried: object) -> None:
        self.carried[number] = carried
        limit = self._settings.deadlines.start_s
        await self._calls.call(self.posts.names[number], "restore", "its state", limit, carried)


def _together(flights: Sequence[tuple[Ticket, Snapshot]]) -> Together:
    by_weights = itertools.groupby(flights, key=lambda flight: id(flight[1]))
    return tuple((held[0][1], tuple(ticket for ticket, _ in held)) for held in (list(group) for _, group in by_weights))
