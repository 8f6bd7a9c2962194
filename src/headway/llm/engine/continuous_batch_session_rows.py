"""The rows of a decoder that sessions keep between their turns, and what of each session stands in them.

    rows of the decoder    [ 0 ... A - 1 take steps | A ... R - 1: parked sessions and free rows, in any order ]

    unread --place, read--> active --park--> parked --place, read--> active ...
       ^                                       |
       +--- evicted, or read by old weights ---+        closed: from anywhere, and the row is free

A row that takes steps is always among the first, so whoever becomes active gets row A. If another session is parked
there the two change places, or it moves to a free row; with no free row the least recently used is evicted, rather one
that nobody waits for. An evicted session is read again, all of it, when it is asked for its next reply.

Sessions that were opened together begin with the same tokens. Whoever has not read them copies them from any of the
others, active or parked, if the weights in use have read them there.

Invariants: a session stands in at most one row, and a row holds at most one; `cached` never counts a token that has
not been read into the session's row; nothing is copied that other weights have read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from headway.llm.engine.decoder import Decoder, Reads, StepsBesideReading


class SharedPrompt:
    """Knows the sessions that were opened together, which begin with the same tokens."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.sessions: list[CachedSession] = []


class CachedSession:
    """Says where a session's tokens are cached, and how many of them."""

    def __init__(self, prompt: SharedPrompt) -> None:
        self.prompt = prompt
        self.row: int | None = None
        self.cached = 0  # so many of its tokens stand in the row
        self.highest = 0  # so many of its tokens were read at some time
        self.prompt_read_by = 0  # which weights have read the prompt that stands in the row
        self.used = 0  # when it was parked last, in order
        self.is_waited_for = False  # somebody has asked for a reply that has not begun
        self.is_open = True
        prompt.sessions.append(self)


class SessionRows:
    """Places sessions in a decoder's rows and reads what is new in them."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._parked: dict[int, CachedSession] = {}  # by row
        self._uses = 0
        self._weights = 0  # counts those that were applied: a version may come back, but not what it has read
        self.tokens_read = self.tokens_reread = self.evictions = 0

    def statistics(self) -> dict[str, float]:
        return {
            "tokens_read": float(self.tokens_read),
            "tokens_reread": float(self.tokens_reread),
            "evictions": float(self.evictions),
            "parked": float(len(self._parked)),
        }

    def count_read(self, tokens: int, again: int = 0) -> None:
        """Notes that so many tokens were read, and how many of them had been read before."""
        self.tokens_read += tokens
        self.tokens_reread += again

    def change_weights(self, forget: bool) -> None:
        """Notes that other weights are used from now on; `forget` what earlier ones have left in parked rows."""
        self._weights += 1
        if forget:
            for session in list(self._parked.values()):
                self.leave(session)

    # -- rows ---------------------------------------------------------------------------------------

    def clear(self, row: int) -> None:
        """Makes the first row that takes no steps free for whoever is to take steps in it."""
        here = self._parked.get(row)
        if here is None:
            return
        free = next((other for other in range(row + 1, self._decoder.rows) if other not in self._parked), None)
        if free is None:
            oldest = min(self._parked.values(), key=lambda session: (session.is_waited_for, session.used))
            free = oldest.row
            self.leave(oldest)
            self.evictions += 1
        if here.row is not None and free is not None:  # it was not the oldest itself
            self._decoder.move(row, free, here.cached)
            self._put(here, free)

    def place(self, session: CachedSession, row: int) -> None:
        """Puts a session into the first row that takes no steps, from where it takes them."""
        here, before = self._parked.get(row), session.row
        if before is None:
            self.clear(row)
        else:
            del self._parked[before]
            if here is None:
                self._decoder.move(before, row, session.cached)
            elif here is not session:
                self._decoder.swap(row, before, max(here.cached, session.cached))
                self._put(here, before)
        session.row = row
        session.is_waited_for = False

    def park(self, session: CachedSession, row: int, cached: int) -> None:
        """Keeps a session in a row that takes no more steps, with so many of its tokens."""
        self._uses += 1
        session.used, session.cached = self._uses, cached
        session.highest = max(session.highest, cached)
        self._put(session, row)

    def leave(self, session: CachedSession) -> None:
        """Forgets what is cached of a session; the row is free."""
        if session.row is not None and self._parked.get(session.row) is session:
            del self._parked[session.row]
        session.row, session.cached = None, 0

    def close(self, session: CachedSession) -> None:
        self.leave(session)
        session.is_open = False
        if session in session.prompt.sessions:
            session.prompt.sessions.remove(session)

    def _put(self, session: CachedSession, row: int) -> None:
        if session.row is not None and self._parked.get(session.row) is session:
            del self._parked[session.row]
        self._parked[row] = session
        session.row = row

    # -- reading ------------------------------------------------------------------------------------

    def read(
        self, wanted: Sequence[tuple[CachedSession, Sequence[int]]], steps: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Reads what is new in the tokens of these active sessions; returns the logits that follow, [n, V].

        The last token is always read: its logits are wanted. Of sessions that share a prompt which nobody has read yet
        one reads it first. `steps`: what other rows do meanwhile (StepsBesideReading), [n + R, V] then.
        """
        waiting = list(range(len(wanted)))
        order: list[int] = []  # which of those wanted a line is
        lines: list[Tensor] = []
        while waiting:
            reads: Reads = []
            numbers: list[int] = []
            being_read: set[int] = set()
            for number in waiting:
                session, tokens = wanted[number]
                if session.row is not None and self._begin(session, len(tokens), being_read):
                    start = min(session.cached, len(tokens) - 1)
                    reads.append((torch.tensor(tokens[start:]), session.row, start))
                    numbers.append(number)
            waiting = [number for number in waiting if number not in set(numbers)]
            beside = None if waiting else steps
            lines.append(self._extend(reads, beside))
            for number, (_, _, start) in zip(numbers, reads, strict=True):
                session, tokens = wanted[number]
                self.count_read(len(tokens) - start, max(0, min(session.highest, len(tokens)) - start))
                session.cached = len(tokens)
                session.highest = max(session.highest, len(tokens))
            order += numbers
        found = lines[0] if len(lines) == 1 else torch.cat(lines)
        if len(lines) == 1:  # in the order in which they were wanted
            return found
        back = [order.index(number) for number in range(len(wanted))]
        return found[[*back, *range(len(wanted), len(found))]]

    def _extend(self, reads: Reads, steps: tuple[Tensor, Tensor] | None) -> Tensor:
        if steps is None:
            return self._decoder.extend(reads)
        return cast(StepsBesideReading, self._decoder).extend(reads, steps)

    def _begin(self, session: CachedSession, length: int, being_read: set[int]) -> bool:
        """Sees to the prompt of a session of so many tokens; says whether the rest can be read now."""
        if session.cached:
            return True
        places = min(session.prompt.length, length - 1)
        if places:
            source = self._source(session.prompt, places)
            if source is not None and source.row is not None and session.row is not None:
                self._decoder.move(source.row, session.row, places)
                session.cached = places
            elif id(session.prompt) in being_read:
                return False
            else:
                being_read.add(id(session.prompt))
        session.prompt_read_by = self._weights
        return True

    def _source(self, prompt: SharedPrompt, places: int) -> CachedSession | None:
        """Returns a session whose row has so many tokens of the prompt, read by the weights in use."""
        for session in prompt.sessions:
            if session.row is not None and session.cached >= places and session.prompt_read_by == self._weights:
                return session
        return None
