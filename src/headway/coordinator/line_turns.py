"""Whose turn it is: of several lines, none is in the middle of an update while the first saves the run or evaluates.

    a line     enter --> take, learn, publish --> leave;   while it waits for rollouts, its turn is free
    the first  has the turns of all others while it saves or evaluates

So whoever has the turn of a line finds nothing half done there: what it has taken was learned from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType

from headway.coordinator.activities_waits import Board


class Turn:
    """The right to change a line, which its learn loop has unless it waits for rollouts."""

    def __init__(self, role: str, board: Board, patience_s: float) -> None:
        self._role = role
        self._board = board
        self._patience_s = patience_s
        self._lock = asyncio.Lock()
        self._is_inside = False

    async def __aenter__(self) -> None:
        if self._lock.locked():
            await self.enter(self._role, "the first line, which saves the run or evaluates")
        else:
            await self._lock.acquire()
        self._is_inside = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Who fails in the middle of an update keeps the turn: nobody may save what is half done."""
        if self._is_inside and kind is None:
            self._leave()

    def _leave(self) -> None:
        self._is_inside = False
        self._lock.release()

    async def wait_outside(self, cause: str, explain: object, deadline_s: float) -> None:
        """The loop that is inside waits for news; whoever wants the turn may have it meanwhile."""
        self._leave()
        await self._board.wait(self._role, cause, explain, deadline_s)
        await self.__aenter__()

    async def enter(self, role: str, what: str) -> None:
        """`role` waits for `what`, and then has the turn; `give_back` must follow."""
        self._board.begin(role, "lines", what, self._patience_s)
        try:
            await self._lock.acquire()
        finally:
            self._board.end(role)

    def give_back(self) -> None:
        self._lock.release()


class OnlyTurn(Turn):
    """The turn of a run's only line, which nobody else ever wants."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def wait_outside(self, cause: str, explain: object, deadline_s: float) -> None:
        await self._board.wait(self._role, cause, explain, deadline_s)


@asynccontextmanager
async def all_turns(turns: Sequence[tuple[str, Turn]], role: str) -> AsyncIterator[None]:
    """`role` waits until none of these lines is in the middle of an update, and keeps it so."""
    async with AsyncExitStack() as stack:
        for name, turn in turns:
            await turn.enter(role, f"the update of line {name} to end")
            stack.callback(turn.give_back)
        yield
