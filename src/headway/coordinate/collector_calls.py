"""What is said to the collectors, each of which may have several lanes.

A collector that holds weights itself *applies* a snapshot and acknowledges by returning; only then does a ticket take
off there, stamped with exactly that version. That is retried under a deadline.

With lanes several calls to one collector are under way at once (`lanes.Post`). Whatever brings it down fails all of
them, and whoever notices first restarts it. If one was late, that one alone is to blame: the others fly again without
an attempt being counted. If it died, nobody can say whose fault it was, and it counts for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from headway.coordinate.call_sizes import CallSizes
from headway.coordinate.flight_calls import FlightCalls
from headway.coordinate.lanes import Post, Versions
from headway.coordinate.role_calls import RoleCalls, RunFailed, end_if_final
from headway.coordinate.roles import EVALUATOR, LEARNER, Together, Traits, collector_name
from headway.core.naming import place_of, seat_name, seats_of
from headway.core.opaque import SavedState
from headway.core.protocols import PayloadLost, RoleDied, RoleError, RoleLate, RoleRaised
from headway.core.types import Rollout, Snapshot, Ticket


def versions_of(snapshot: Snapshot) -> Versions:
    """Which weights these are: a version, or one of each line."""
    if not snapshot.others:
        return snapshot.version
    return (snapshot.version, *(other.version for other in snapshot.others.values()))


class CollectorCalls:
    """Speaks to the collectors; knows what each one carries and which version it holds."""

    def __init__(self, calls: RoleCalls) -> None:
        settings = calls.settings
        self._calls = calls
        self._settings = settings
        self._board = calls.board
        self.names = [seat_name(seat, settings.collectors, settings.lanes) for seat in range(settings.seats)]
        """How each seat is called on the board."""
        self._numbers = [place_of(seat, settings.collectors, settings.lanes)[0] for seat in range(settings.seats)]
        """The collector of each seat."""
        self._posts = [
            Post(collector_name(number), seats_of(number, settings.collectors, settings.lanes))
            for number in range(settings.collectors)
        ]
        self.num = settings.collectors
        """How many there are, without those that are leaving."""
        self._drains = False
        self._has_lanes = settings.lanes > 1
        self._flights: FlightCalls | None = None
        self._flown: dict[str, int] = {}  # who -> incarnation of the collector when it was last called
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
        traits: Traits = await self._calls.ask_at_start(self._posts[0].role, "traits", name=self.names[0])
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
        self._drains = traits.holds_weights and on_publish == "drain"
        for post in self._posts:
            post.drains = self._drains
        self.warns_of_drains = traits.can_pause
        if self._settings.parks or traits.tells:
            self._flights = FlightCalls(self._calls, self._posts, tells=traits.tells)
            self.is_watched = traits.tells

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(post.role for post in self._posts)

    async def move_soon(self, role: str) -> None:
        """A second collector is ready in another place. One with lanes carries nothing, and what it has in flight lands
        where it is; the loop of any other moves it between two tickets."""
        number = self.roles.index(role)
        post = self._posts[number]
        if not self._has_lanes:
            self.moves.add(number)
            self._board.wake(self.names[number])
        elif post.is_up and await self._calls.move(role):
            post.incarnation += 1
            post.applied = None
            self._stir(post)

    async def move(self, number: int) -> None:
        """Go on in another place, from where it was after its last landed rollout."""
        self.moves.discard(number)
        role = self.names[number]
        if not await self._calls.move(role):
            return
        self._posts[number].applied = None
        if number in self.carried:
            try:
                await self.restore_collector(number, self.carried[number])
            except RoleRaised:
                raise
            except RoleError as error:
                await self.recover(number, error)

    def post(self, seat: int) -> Post:
        return self._posts[self._numbers[seat]]

    def post_of(self, number: int) -> Post:
        return self._posts[number]

    def add(self, number: int) -> Post:
        """There is a collector with this number, as new as its post: a further one, or one that has left before."""
        collectors, lanes = self._settings.collectors, self._settings.lanes
        for further in range(len(self._posts), number + 1):
            post = Post(collector_name(further), seats_of(further, collectors, lanes))
            post.is_up = False
            self._posts.append(post)
            self._numbers += [further] * lanes
            self.names += [seat_name(seat, collectors, lanes) for seat in post.seats]
        post = self._posts[number] = Post(collector_name(number), seats_of(number, collectors, lanes))
        post.drains = self._drains
        return post

    def forget(self, number: int) -> None:
        """A collector has left, with what it carried."""
        self._posts[number].go_down()
        self.moves.discard(number)
        self.carried.pop(number, None)

    async def collect(self, number: int, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._has_lanes:
            return await self._collect_in_lane(number, ticket, snapshot)
        role = self.names[number]
        if self._holds_weights and self._posts[number].applied != versions_of(snapshot):
            await self._apply(role, self._posts[number], snapshot)
        self._board.begin(role, "collect", ticket, self._collect_s)
        try:  # as in `call`, without a frame more: this is the path every ticket takes
            answer = await self._calls.runtime.call(role, "collect", ticket, snapshot, deadline_s=self._collect_s)
        finally:
            self._board.end(role)
        rollout: Rollout = answer[0]
        if self._stateful:
            self.carried[number] = answer[1]
        if self._holds_weights:
            _check_span(self._posts[number], rollout)
        return rollout

    async def collect_several(
        self, number: int, flights: Sequence[tuple[Ticket, Snapshot]], sizes: CallSizes
    ) -> tuple[Sequence[Rollout], RoleRaised | None]:
        """Several tickets in one call: the rollouts up to the first that raised, and what that was."""
        role, post, calls, num = self.names[number], self._posts[number], self._calls, len(flights)
        if self._holds_weights and post.applied != versions_of(flights[0][1]):
            await self._apply(role, post, flights[0][1])
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
                _check_span(post, rollout)
        return rollouts, None if problem is None else RoleRaised(role, "collect", *problem)

    @property
    def holds_weights(self) -> bool:
        """Is a version applied before the tickets that fly with it?"""
        return self._holds_weights

    async def _collect_in_lane(self, seat: int, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        """The same beside other calls. Nothing is awaited between the coordinator's look at the post and `take_off`."""
        name, post = self.names[seat], self.post(seat)
        post.take_off(versions_of(snapshot))
        try:
            if self._holds_weights:
                await self._bring(name, post, snapshot)
            self._flown[name] = post.incarnation
            if self._flights is not None:
                answer = await self._flights.collect(name, post.role, ticket, snapshot)
            else:
                limit = self._collect_s
                answer = await self._calls.call(post.role, "collect", ticket, limit, ticket, snapshot, name=name)
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

    @property
    def evaluating_role(self) -> str:
        """Of the collector that lends itself to evaluations. A call there that fails is one of its incarnation now."""
        self._flown[EVALUATOR] = self._posts[0].incarnation
        return self._posts[0].role

    def has_evaluated(self, snapshot: Snapshot) -> None:
        """The first collector has other weights now than those it acknowledged: the next ticket brings its own."""
        post = self._posts[0]
        post.applied, post.newest = None, max(post.newest, snapshot.version)

    async def see_to_evaluator(self, error: RoleError) -> None:
        """The first collector died, or hung, while it evaluated. Nothing was in flight; its seats wait meanwhile."""
        post = self._posts[0]
        if self._has_lanes:
            if isinstance(error, RoleLate):
                post.give_up(post.incarnation)
            return await self.revive(0, EVALUATOR, error)
        await self._calls.restart(post.role, error, EVALUATOR)
        post.applied = None
        if 0 in self.carried:
            limit = self._settings.deadlines.start_s
            await self._calls.call(post.role, "restore", "its state", limit, self.carried[0], name=EVALUATOR)

    async def watch_loop(self, number: int) -> None:
        """See `FlightCalls`."""
        assert self._flights is not None
        await self._flights.watch_loop(self._posts[number])

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
                self._flown[LEARNER] = post.incarnation
                post.give_up(post.incarnation)
                await self.revive(self._posts.index(post), LEARNER, error)

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
        wanted = versions_of(snapshot)
        while not post.has(wanted):
            if post.is_up and not post.is_applying:
                await self._apply(name, post, snapshot)
            else:
                post.waiting[name] = None
                why = partial(post.why_not, wanted)
                await self._board.wait(name, "applying", why, self._calls.patience_s)

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
        await self._calls.restart(post.role, error, name)
        post.is_up = True
        self._stir(post)

    async def recover(self, number: int, error: RoleError) -> None:
        """Bring a collector back to where it was after its last landed rollout."""
        role = self.names[number]
        if self._has_lanes:
            return await self.revive(self._numbers[number], role, error)
        while True:
            if not isinstance(error, RoleRaised):
                await self._calls.restart(role, error)
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
            return await self.revive(self._numbers[number], role, error)
        if not isinstance(error, RoleRaised):
            await self._calls.restart(role, error)
            if number in self.carried:
                await self.restore_collector(number, self.carried[number])
        state = await self._calls.call(role, "begin_anew", "new episodes", self._settings.deadlines.start_s, seed)
        self._posts[number].applied = None  # it may have been built anew
        if self._stateful:
            self.carried[number] = state

    async def restore_collector(self, number: int, carried: object) -> None:
        self.carried[number] = carried
        limit = self._settings.deadlines.start_s
        await self._calls.call(self.names[number], "restore", "its state", limit, carried)

    async def _apply(self, name: str, post: Post, snapshot: Snapshot) -> None:
        """For whoever is called `name` on the board."""
        post.is_applying = True
        post.newest = max(post.newest, snapshot.version)
        try:
            await self._try_to_apply(name, post, snapshot)
            if self._flown[name] == post.incarnation:  # if not, what has it now is gone
                post.applied = versions_of(snapshot)
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


def _together(flights: Sequence[tuple[Ticket, Snapshot]]) -> Together:
    by_weights = itertools.groupby(flights, key=lambda flight: id(flight[1]))
    return tuple((held[0][1], tuple(ticket for ticket, _ in held)) for held in (list(group) for _, group in by_weights))


def _check_span(post: Post, rollout: Rollout) -> None:
    """No rollout is made by weights that its collector was never given."""
    span = rollout.span
    if span is not None and span.newest > post.newest:
        raise RunFailed(
            f"ticket {rollout.ticket} on {post.role}: its rollout claims version {span.newest}, but version "
            f"{post.newest} is the newest that was applied there"
        )
