"""The seams: what a station must offer, and what a runtime does with it.

A station is built where it runs, by a factory the runtime calls there, and is spoken to only through
`await runtime.call(role, method, ...)`. Stations never see each other, the coordinator or the runtime.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from headway.coordinator.state_files_saved_beside import SavedBeside
from headway.core.os_errors import limit_reached
from headway.core.text_one_line import said
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.core.types_opaque import CoroutineOf, Payload, RoleAnswer, SavedState, Station, Weights

T = TypeVar("T")


class Collector(Protocol):
    """Turns a ticket and a snapshot into a rollout."""

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout: ...


class Learner(Protocol):
    """Consumes batches, makes weights.

    `snapshot` may return the live weights: the runtime freezes them before anyone else sees them.
    """

    def learn(self, batch: Batch) -> LearnReport: ...

    def snapshot(self) -> Weights: ...

    def state_dict(self) -> SavedState: ...

    def load_state_dict(self, state: SavedState) -> None: ...


@runtime_checkable
class SavesBeside(Protocol):
    """A learner whose state is too large for one message: it writes files, and gives back where they are.

    `load_state_dict` takes what `save_beside` returned, wherever the files are by then.
    """

    @property
    def saves_beside(self) -> bool:
        """Whether it does."""
        ...

    def save_beside(self, folder: str) -> SavedBeside:
        """Write into this folder, which no checkpoint has yet. Returns when the files are on the disk, or, with a
        `SavedSoon`, before that: then it goes on writing while it learns."""
        ...


@runtime_checkable
class ReplayLearner(Protocol):
    """A learner that keeps rollouts and trains on samples of them: `learn` then gets an empty batch."""

    def insert(self, batch: Batch) -> None: ...


class SharedReplay(Protocol):
    """A replay with a role of its own: rollouts go in, draws go to the learner, its feedback comes back.

    `sample` draws for an update at `version`: a rollout that no ticket brought, whose `steps` are the samples in it.
    `learn` gets it as its batch, and what it reports as `feedback` is handed to `update`, perhaps after other draws
    and inserts. `statistics` are numbers about the replay; they join the metrics of the update a draw is for.
    """

    def insert(self, batch: Batch) -> None: ...

    def sample(self, version: int) -> Rollout: ...

    def update(self, feedback: Payload) -> None: ...

    def statistics(self) -> Mapping[str, float]: ...

    def state_dict(self) -> SavedState: ...

    def load_state_dict(self, state: SavedState) -> None: ...


@runtime_checkable
class OffersTargets(Protocol):
    """A replay whose stored targets can be made again with newer weights (or a learner that keeps such a replay).

    `oldest` gives what is due at `version`, as a rollout that no ticket brought, or None. What a reanalyzer made of it
    is handed to `refresh`, perhaps after other calls: what is gone by then is ignored. Asked again before that,
    `oldest` may give the same again.
    """

    def oldest(self, version: int) -> Rollout | None: ...

    def refresh(self, targets: Rollout) -> None: ...


class Evaluator(Protocol):
    """Measures one version. `seed` depends on the run's seed and the version alone."""

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score: ...


class Reanalyzer(Protocol):
    """Recomputes targets with a newer policy: those of `work`, which a replay gave that `OffersTargets`.

    The same work and snapshot give the same targets: a reanalyzer that died is built anew and does it again.
    """

    def reanalyze(self, snapshot: Snapshot, work: Rollout) -> Rollout: ...


@runtime_checkable
class Stateful(Protocol):
    """A collector or evaluator that carries something from one call to the next (open episodes, say).

    Its state comes back with every rollout, so that a restarted collector goes on where it was.
    """

    def state_dict(self) -> SavedState: ...

    def load_state_dict(self, state: SavedState) -> None: ...


@runtime_checkable
class BeginsAnew(Protocol):
    """A collector that can leave what it carries behind (open episodes, one of which failed) and begin something new.

    It is asked to after a ticket of it was dropped as failed: what led to the failure would lead there again. `seed` is
    another one each time. A stateful collector without this method is built anew instead.
    """

    def begin_anew(self, seed: int) -> None: ...


@runtime_checkable
class TakesSnapshots(Protocol):
    """A collector that holds the weights itself (an inference engine): they are pushed to it.

    A version becomes the newest one only when every such collector has applied it.
    """

    def apply(self, snapshot: Snapshot) -> None: ...


@runtime_checkable
class Concurrent(Protocol):
    """A collector that can work on several tickets at once (an inference engine does them as one batch).

    It says so with `is_concurrent = True`. Then `collect` may be called by several threads at the same time, and
    `apply`, if there is one, beside them. What a rollout is may not depend on its neighbours.
    """

    is_concurrent: bool


@runtime_checkable
class Pausable(Protocol):
    """A concurrent collector that can stand still in the middle of its work: `pause` returns when it does, beside the
    calls of `collect` under way, and `resume` lets them go on as if nothing had been. Asked for what it does already,
    it does nothing."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@runtime_checkable
class Tells(Protocol):
    """A concurrent collector that can say what is under way in it, a line each, what has lasted longest first. It is
    asked beside the calls of `collect`, for `why()` and when one of them misses its deadline."""

    def doing(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a role would like to run. A runtime honours what it can: threads nothing, Ray everything."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    num_threads: int = 1
    """Compute threads for numeric libraries inside the role; more than the cores there are is slower."""
    resources: Mapping[str, float] = field(default_factory=dict)
    processes: int = 1
    """Processes that the role is made of, itself included, each of which wants all of this: the ranks of a learner."""


@dataclass(frozen=True, slots=True)
class Role:
    """A running thing: its name, how to build it where it runs, and where that should be.

    With more than one lane, up to `lanes` calls of `collect` are executed at the same time, and beside them one call of
    any other method.
    """

    name: str
    factory: Callable[[], Station]
    placement: Placement = Placement()
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"a role needs at least one lane, received lanes={self.lanes!r}")


class RoleError(RuntimeError):
    """A call to a role did not give a result. `role` and `method` say which."""

    def __init__(self, role: str, method: str, what: str) -> None:
        super().__init__(f"{role}.{method}: {what}")
        self.role = role
        self.method = method
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.role, self.method, self.what)


class CannotGoOn(RuntimeError):
    """Raised by a collector that will never again do what it is for, in `collect` or in `apply`. The run ends with it,
    whatever `on_failure` and `publish_attempts` say."""


Problem = tuple[str, str, bool]
"""An exception as it travels: one line, the traceback, and whether its collector cannot go on."""


def explain(error: BaseException) -> Problem:
    text = "".join(traceback.format_exception(error))
    line = ": ".join(filter(None, [type(error).__name__, said(error)]))
    return f"{line}{limit_reached(error)}", text, isinstance(error, CannotGoOn)


class RoleRaised(RoleError):
    """The station's own code raised. `details` holds its traceback; `is_final`: it cannot go on."""

    def __init__(self, role: str, method: str, what: str, details: str = "", is_final: bool = False) -> None:
        super().__init__(role, method, what)
        self.details = details
        self.is_final = is_final
        if details:
            self.add_note(f"raised in {role}:\n{details}")

    @classmethod
    def of(cls, role: str, method: str, error: BaseException) -> RoleRaised:
        """What a station raised, as one line and a traceback that can travel."""
        return cls(role, method, *explain(error))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.role, self.method, self.what, self.details, self.is_final)


class PayloadLost(RoleRaised):
    """What an argument refers to is gone, with the node that held it; the method was not called.

    `tickets` says whose rollouts, `versions` which snapshots. The role itself is as it was.
    """

    def __init__(
        self,
        role: str,
        method: str,
        what: str,
        details: str = "",
        tickets: Sequence[int] = (),
        versions: Sequence[int] = (),
    ) -> None:
        super().__init__(role, method, what, details)
        self.tickets = tuple(tickets)
        self.versions = tuple(versions)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.role, self.method, self.what, self.details, self.tickets, self.versions)


class NoRoom(RoleRaised):
    """There is no memory for what the method returned, or for what it was to be given. Nobody is to blame, and when
    others have let theirs go there may be."""


class RoleDied(RoleError):
    """The place where the role ran is gone. `never_began`: it was gone before this call, which changed nothing."""

    def __init__(self, role: str, method: str, what: str, never_began: bool = False) -> None:
        super().__init__(role, method, what)
        self.never_began = never_began

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.role, self.method, self.what, self.never_began)


class RoleLate(RoleError):
    """No answer within the deadline. The role is no longer to be trusted: restart it."""


@runtime_checkable
class Reserves(Protocol):
    """A runtime that keeps room for roles before any of them starts, so that none takes what another needs in one
    place. It refuses at once what can never have room."""

    async def reserve(self, roles: Sequence[Role]) -> None: ...


@runtime_checkable
class EndsRoles(Protocol):
    """A runtime in which a role can end while the others go on. What it made stays until it is released."""

    async def end(self, role: str) -> None:
        """Whatever runs the role is gone, or will be once it is idle; the name is free. No call to it is under way. A
        role that is not there, or was never built, is no error."""
        ...


@dataclass(frozen=True, slots=True)
class Notice:
    """The place where these roles run is going away."""

    roles: tuple[str, ...]
    why: str


@runtime_checkable
class GivesNotice(Protocol):
    """A runtime that hears beforehand that a place is going away, and can build a role a second time in another one
    while the first goes on.

    `prepare` does that, and says whether it could. `move` lets the second take over for all calls made from then on,
    and ends the first when its calls under way have ended; False if there is no second by then. Nothing is carried
    over. If the first dies before, `restart` takes the second.
    """

    async def wait_for_notice(self) -> Notice: ...

    async def prepare(self, role: str) -> bool: ...

    async def move(self, role: str) -> bool: ...


@runtime_checkable
class SendsCalls(Protocol):
    """A runtime whose calls leave this process. There a call has a way to go, which several tickets may share."""

    sends_calls: bool


class Runtime(Protocol):
    """Where the roles run. Calls to one role are executed one after another, in the order made.

    In a role with lanes that holds for all calls but `collect`: of those, as many as there are lanes overlap. If the
    role dies, all its calls under way raise RoleDied. If one of them is late, that one raises RoleLate and the others
    RoleDied, when the role is killed or restarted.

    Payloads of snapshots and rollouts may be replaced by references on their way; a runtime resolves them
    where they are used, `fetch` brings one to the caller, and `release` says it will not be used again. A call or a
    fetch that needs one which no longer exists raises PayloadLost.
    """

    @property
    def name(self) -> str: ...

    def run(self, main: CoroutineOf[T]) -> T:
        """Run the coordinator to its end on this runtime's clock."""
        ...

    def now(self) -> float: ...

    async def start(self, role: Role) -> None: ...

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer: ...

    async def restart(self, role: str) -> None:
        """Kill what runs the role, if anything does, and build it anew."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run blocking work of the coordinator itself (a file to write) without stopping its loops."""
        ...

    def fetch(self, payload: Payload) -> Payload: ...

    def release(self, payload: Payload) -> None: ...

    async def close(self) -> None: ...
