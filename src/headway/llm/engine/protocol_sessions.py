"""A session as its caller sees it: tokens that only grow, and one reply at a time.

    say: [ prompt | said ]    reply: [ prompt | said | drawn ]    say: [ prompt | said | drawn | said ] ...

    idle --reply--> replying --> idle          closed, from anywhere, by any thread: whoever waits gets Aborted

Both kinds of sessions are the same here. Where the engine is in this process the request's tokens are for the most part
cached in a row (session_rows.py). An engine behind a socket is asked with everything so far (RereadSession): its own
cache of prefixes spares it the reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from headway.llm.engine.protocol_engine import (
    Aborted,
    EngineError,
    Reply,
    Request,
    Sample,
    Sampling,
    check_session_fits,
)

AGAIN_S = 0.01
"""How soon an engine that had not heard of a request is told again to give it up."""


class OpenSession:
    """Holds the tokens of one conversation, and asks for its replies.

    `draw` makes the sample of a request. `leave` frees what the engine keeps, and gives up the reply under way if it is
    told that there may be one.
    """

    def __init__(
        self,
        uid: str,
        prompt: Sequence[int],
        context: int,
        draw: Callable[[Request], Sample],
        leave: Callable[[bool], None],
    ) -> None:
        self.uid = uid
        self._tokens = [int(token) for token in prompt]
        self._context = context
        self._draw, self._leave = draw, leave
        self._changed = threading.Condition()  # one of the two flags
        self._is_replying = self._is_closed = False

    def say(self, tokens: Sequence[int]) -> None:
        with self._changed:
            self._refuse("say")
            self._tokens.extend(int(token) for token in tokens)

    def reply(
        self,
        sampling: Sampling,
        *,
        seed: int,
        deadline_s: float | None = None,
        on_deadline: Literal["fail", "cut"] = "fail",
    ) -> Reply:
        with self._changed:
            self._refuse("reply")
            request = Request(self.uid, tuple(self._tokens), 1, seed, sampling, deadline_s, on_deadline)
            check_session_fits(request, self._context)
            self._is_replying = True
        try:
            sample = self._draw(request)
        finally:
            with self._changed:
                self._is_replying = False
                self._changed.notify_all()
        with self._changed:
            self._refuse("reply")
            self._tokens.extend(sample.tokens.tolist())
        return Reply(
            sample.tokens, sample.log_probs, sample.versions, sample.finish, sample.text, int(sample.versions[0])
        )

    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            is_replying = self._is_replying
        self._leave(is_replying)

    def _refuse(self, what: str) -> None:
        if self._is_closed:
            raise Aborted(f"{self.uid}: the session was closed")
        if self._is_replying:
            raise EngineError(f"{self.uid}: cannot {what} while a reply of the session is under way")


class AskedTokens:
    """Counts what sessions have asked an engine to read whose cache nobody can look into from here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = self._reread = 0

    def note(self, read: int, again: int) -> None:
        with self._lock:
            self._read += read
            self._reread += again

    def statistics(self) -> dict[str, float]:
        with self._lock:
            counts = {"tokens_read": float(self._read), "tokens_reread": float(self._reread)}
        return {**counts, "evictions": 0.0, "parked": 0.0}


class GivesUp(Protocol):
    """An engine that can be asked for samples, and told to give one request up, if it has heard of it."""

    def generate(self, request: Request) -> list[Sample]: ...

    def give_up(self, request: Request, why: str) -> None: ...


class RereadSession(OpenSession):
    """Asks an engine with everything so far, each time.

    `salt` is asked for once, with the first reply: from then on the session may use what its own earlier turns have
    left in the engine's cache, whichever weights have read it. It is nothing where that is not wanted.
    """

    def __init__(
        self,
        engine: GivesUp,
        uid: str,
        prompt: Sequence[int],
        context: int,
        salt: Callable[[], str] = str,
        counts: AskedTokens | None = None,
    ) -> None:
        super().__init__(uid, prompt, context, self._ask, self._give_up)
        self._engine = engine
        self._choose_salt = salt
        self._counts = counts or AskedTokens()
        self._salt: str | None = None
        self._asked: Request | None = None
        self._read = 0  # tokens the engine was asked to read at some time

    def _ask(self, request: Request) -> Sample:
        if self._salt is None:
            self._salt = self._choose_salt()
        self._asked = replace(request, salt=self._salt)
        self._counts.note(len(request.prompt), self._read)
        self._read = len(request.prompt)
        try:
            (sample,) = self._engine.generate(self._asked)
        finally:
            self._asked = None
        return sample

    def _give_up(self, is_replying: bool) -> None:
        """Gives the reply up until it is over: the engine may hear of the request only after it was told so first."""
        with self._changed:
            while self._is_replying:
                if self._asked is not None:
                    self._engine.give_up(self._asked, "the session was closed")
                self._changed.wait(AGAIN_S)


def check_opening(uid: str, prompt: Sequence[int], count: int) -> None:
    """Refuses sessions that cannot begin."""
    if not len(prompt):
        raise EngineError(f"the prompt of {uid} is empty")
    if count < 1:
        raise EngineError(f"{uid}: count must be >= 1, received {count!r}")
