"""A learner on several processes that looks like one: rank 0 lives here, the others are started from here.

    learn(batch)  ---- the batch, once ---->  ranks 1 .. n-1   (rank_processes.py, ray_ranks.py)
         |                                        |
      rank 0 learns  <------ sums (rank.py) --->  they learn
         |                                        |
      LearnReport    <----------- done -----------+            a thread watches them meanwhile

    starting --> connected --> built --> working --> ended (closed, collected as garbage, a rank failed, this process
                                                            died)

Every rank is built by the same function and gets the same calls, so all of them hold the same state at all times:
rank 0's is the learner's, for snapshots and checkpoints, and a state that is loaded is loaded everywhere. Every
`check_every` updates the weights of all ranks are compared, bit for bit.

A model that is cut into shards (sharding.py) is held by all ranks together: each writes its own part of a checkpoint.

A rank that raises, ends or is silent for too long ends all others: whoever waited for it in a sum is woken by that,
and one line says which rank it was and why. After that the learner is of no use: its state may be half an update.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from headway.coordinator.state_files_saved_beside import SavedBeside, SavedSoon
from headway.core.protocols import Learner, explain
from headway.core.text_one_line import said
from headway.core.types import Batch, LearnReport
from headway.core.types_opaque import RoleAnswer, SavedState, Station, Weights
from headway.ranks.rank import Backend, Device, Meeting, Rank, RanksBroken
from headway.ranks.rank_torch_groups import find_store, open_store
from headway.runs.fingerprint import fingerprint

T = TypeVar("T")
MakeLearner = Callable[[Rank], Learner]
"""Builds one rank's learner, the same on every rank: whatever is random in it must come from a seed."""

CONNECT_S = 30.0
"""Ranks that are all there connect within milliseconds."""
SETTLE_S = 5.0
"""A rank that lost the others is a victim. This long is waited for the culprit to be known."""


TOLD = ("save_beside", "offer")
"""Methods of a learner whose results differ by rank."""


class RankFailed(RuntimeError):
    """One of the ranks ended, raised or hung, or has other weights than the rest. One line."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank says to a call, or what became of it: its value, or one of the three."""

    rank: int
    value: RoleAnswer = None
    raised: tuple[str, str] | None = None  # what, and its traceback
    lost_others: str = ""
    ended: str = ""


class Peers(Protocol):
    """How rank 0 reaches the others, once it has started them."""

    host: str
    """The address of this machine that they can reach."""
    backend: Backend

    def call(self, method: str, *args: object) -> None:
        """Ask all of them. Does not wait."""
        ...

    def answers(self, timeout_s: float) -> Sequence[Answer]:
        """Those that have come, waiting for the first; none if none came in time."""
        ...

    def num_sums(self) -> dict[int, int]:
        """How many sums each has begun; -1 if it cannot even say that."""
        ...

    def kill(self) -> None:
        """From any thread: they end at once. They hold nothing that is not here as well."""
        ...

    def close(self) -> None:
        """Kill them, and leave nothing of them."""
        ...


StartPeers = Callable[[MakeLearner, int, Device], Peers]


class RankedLearner:
    """All ranks of a learner, as one. `deadline_s` bounds one call, `start_s` the time until all are there."""

    def __init__(
        self,
        make_learner: MakeLearner,
        size: int,
        start_peers: StartPeers,
        *,
        device: Device = "cpu",
        deadline_s: float = 600.0,
        start_s: float = 120.0,
        check_every: int = 10,
    ) -> None:
        if size < 2:
            raise ValueError(f"ranks are two or more, received {size!r}; one is a learner without any of this")
        for name, value in (("deadline_s", deadline_s), ("start_s", start_s), ("check_every", check_every)):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, received {value!r}")
        self.size = size
        self._deadline_s = deadline_s
        self._check_every = check_every
        self._updates = 0
        self._failure = ""
        peers = self._peers = start_peers(make_learner, size, device)
        rank = self._rank = Rank(0, size, device)
        self._end = weakref.finalize(self, _end, peers, rank)
        try:
            self._together(start_s, lambda: None)  # all are there
            self._connect(start_s)
            peers.call("build")
            self._learner: Station = self._together(start_s, lambda: make_learner(rank))[0]
            if hasattr(self._learner, "insert"):
                raise ValueError("the ranks of a learner cannot keep a replay each: put one around all of them")
            self._check("start with")
        except BaseException:
            self.close()
            raise

    def learn(self, batch: Batch) -> LearnReport:
        report: LearnReport = self._call("learn", batch)
        self._updates += 1
        if self._updates % self._check_every == 0:
            self._check("have")
        return report

    def snapshot(self) -> Weights:
        self._refuse_if_failed()
        if getattr(self._learner, "offers", False):
            own, others = self._call_all("offer")
            return self._learner.joined([own, *(others[rank] for rank in sorted(others))])
        return self._learner.snapshot()

    def state_dict(self) -> SavedState:
        self._refuse_if_failed()
        if getattr(self._learner, "offers", False):
            raise ValueError("no rank has the whole state of a model in shards: it is saved in files (save_beside)")
        return self._learner.state_dict()

    @property
    def saves_beside(self) -> bool:
        return getattr(self._learner, "saves_beside", False)

    def save_beside(self, folder: str) -> SavedBeside:
        """Each rank writes what it has, perhaps while it goes on."""
        own: SavedBeside
        own, others = self._call_all("save_beside", folder)
        files = dict(own.files)
        for other in others.values():
            files |= other.files
        if isinstance(own, SavedSoon):
            notes = [*own.notes, *(note for rank in sorted(others) for note in others[rank].notes)]
            return replace(own, files=files, notes=tuple(notes))
        return replace(own, files=files)

    def load_state_dict(self, state: object) -> None:
        self._call("load_state_dict", state)
        self._check("loaded")

    def close(self) -> None:
        """End the other ranks. What is not closed ends with this object, or with its process."""
        self._failure = self._failure or "the ranks are closed"
        self._end()

    def _call(self, method: str, *args: object) -> RoleAnswer:
        """Call a method of every rank's learner, all at once; the result of rank 0's."""
        return self._call_all(method, *args)[0]

    def _call_all(self, method: str, *args: object) -> tuple[RoleAnswer, dict[int, RoleAnswer]]:
        """The same, with the results of the other ranks where the method has any that is not rank 0's."""
        self._refuse_if_failed()
        self._peers.call(method, *args)
        return self._together(self._deadline_s, partial(getattr(self._learner, method), *args))

    def _refuse_if_failed(self) -> None:
        if self._failure:
            raise RankFailed(self._failure)

    def _connect(self, start_s: float) -> None:
        """Everybody is there, so this takes milliseconds."""
        peers, connect_s = self._peers, min(start_s, CONNECT_S)
        store, port = open_store(peers.host, self.size, connect_s)
        sum_s = 2 * self._deadline_s  # who is late is found out here, before those that wait for it give up
        meeting = Meeting(peers.host, port, peers.backend, connect_s, sum_s)
        peers.call("connect", meeting)
        self._together(start_s, lambda: self._rank.connect(meeting, store, peers.host))

    def _check(self, when: str) -> None:
        """All ranks have the weights of rank 0, bit for bit."""
        self._peers.call("fingerprint")
        here, others = self._together(self._deadline_s, lambda: fingerprint(_held_alike(self._learner)))
        for index, there in sorted(others.items()):
            if there != here:
                self._failure = (
                    f"rank {index} of {self.size}: the ranks {when} different weights: {there} there, {here} here"
                )
                self._peers.kill()
                raise RankFailed(self._failure)

    def _together(self, deadline_s: float, work: Callable[[], T]) -> tuple[T, dict[int, RoleAnswer]]:
        """Do rank 0's part of what the others were asked for: its result, and theirs. If one fails, all end."""
        watch = _Watch(self._peers, self._rank, deadline_s)
        try:
            with self._rank.together():
                result = work()
        except RanksBroken as error:
            watch.thread.join(SETTLE_S)
            watch.end(f"rank 0 of {self.size} lost the others: {error}")
        except BaseException as error:
            self._failure = f"rank 0 of {self.size}: {type(error).__name__}: {said(error)}"
            watch.end(self._failure)
            raise
        watch.thread.join()
        if watch.cause:
            self._failure = watch.cause
            failed = RankFailed(self._failure)
            if watch.details:
                failed.add_note(watch.details)
            raise failed
        return result, watch.values


class _Watch:
    """One call to the other ranks: a thread that waits for their answers and ends them all when one goes wrong.

    It knows nothing of the RankedLearner, which would never be collected otherwise.
    """

    def __init__(self, peers: Peers, rank: Rank, deadline_s: float) -> None:
        self.values: dict[int, RoleAnswer] = {}
        self.cause = ""
        self.details = ""
        self._missing = set(range(1, rank.size))
        self._lost_others = ""
        self._peers, self._rank, self._deadline_s = peers, rank, deadline_s
        self.thread = threading.Thread(target=self._wait, name="headway ranks", daemon=True)
        self.thread.start()

    def end(self, line: str) -> None:
        """Rank 0 cannot go on, because of `line` unless a cause is known already."""
        self._blame(line)
        self._peers.kill()
        self.thread.join()

    def _wait(self) -> None:
        try:
            self._take_answers()
        except Exception as error:  # noqa: BLE001 - in a thread of its own nobody else would notice
            self._blame(f"the answers of the ranks could not be taken: {type(error).__name__}: {said(error)}")
        self._blame(self._lost_others)
        if self.cause:
            self._peers.kill()
            self._rank.disconnect()

    def _take_answers(self) -> None:
        ends_at = time.monotonic() + self._deadline_s
        while self._missing and not self.cause:
            answers = self._peers.answers(max(0.0, ends_at - time.monotonic()))
            for answer in answers:
                self._note(answer)
            if not answers:
                self._blame(self._lost_others or self._say_who_is_late())
            elif self._lost_others:
                ends_at = min(ends_at, time.monotonic() + SETTLE_S)

    def _blame(self, line: str, details: str = "") -> None:
        """The first cause is the cause; what follows, follows from it."""
        if not self.cause:
            self.cause, self.details = line, details

    def _note(self, answer: Answer) -> None:
        self._missing.discard(answer.rank)
        name = f"rank {answer.rank} of {self._rank.size}"
        if answer.ended:
            self._blame(f"{name} {answer.ended}")
        elif answer.raised is not None:
            what, details = answer.raised
            self._blame(f"{name}: {what}", f"raised in {name}:\n{details}")
        elif answer.lost_others:
            self._lost_others = f"{name} lost the others: {answer.lost_others}"
        else:
            self.values[answer.rank] = answer.value

    def _say_who_is_late(self) -> str:
        """Ranks wait for each other in sums: the one that began the fewest keeps the others waiting."""
        sums = {rank: number for rank, number in self._peers.num_sums().items() if rank in self._missing}
        fewest = min(sums.values())
        late = [str(rank) for rank, number in sorted(sums.items()) if number == fewest]
        if self._rank.num_sums < fewest:
            late = ["0"]
        words = "rank" if len(late) == 1 else "ranks"
        return f"{words} {', '.join(late)} of {self._rank.size} gave no answer within {self._deadline_s:g} s"


def _end(peers: Peers, rank: Rank) -> None:
    rank.disconnect()
    peers.close()
    rank.leave()


class RankHost:
    """What runs where a rank other than 0 lives."""

    def __init__(self, rank: Rank, here: str, make_learner: MakeLearner) -> None:
        self._rank = rank
        self._here = here
        self._make_learner = make_learner
        self._learner: Station = None

    def connect(self, meeting: Meeting) -> None:
        store = find_store(meeting.host, meeting.port, self._rank.size, meeting.connect_s)
        self._rank.connect(meeting, store, self._here)

    def build(self) -> None:
        self._learner = self._make_learner(self._rank)

    def fingerprint(self) -> str:
        return fingerprint(_held_alike(self._learner))

    def answer(self, method: str, args: Sequence[object]) -> Answer:
        try:
            with self._rank.together():
                if method in ("connect", "build", "fingerprint"):
                    return Answer(self._rank.index, getattr(self, method)(*args))
                found = getattr(self._learner, method)(*args)
            return Answer(self._rank.index, found if method in TOLD else None)
        except RanksBroken as error:
            return Answer(self._rank.index, lost_others=str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 says it
            return raised(self._rank.index, error)


def _held_alike(learner: Station) -> object:
    """What must have the same bits on every rank: the weights, and what a learner has besides those it publishes."""
    return learner.held_alike() if hasattr(learner, "held_alike") else learner.snapshot()


def raised(rank: int, error: Exception) -> Answer:
    what, details, _ = explain(error)
    return Answer(rank, raised=(what, details))
