"""A station that holds something outside its process lets go of it when its role ends or is restarted."""

from __future__ import annotations

from functools import partial

import pytest

from headway.coordinator.roles import CollectorRole, EvaluatorRole
from headway.core.protocols import Role, Runtime
from headway.runtimes.inline import Inline
from headway.runtimes.threads import Threads


class Holder:
    """A station that is asked for nothing."""

    def __init__(self, closed: list[int], name: int) -> None:
        self._closed, self._name = closed, name

    def close(self) -> None:
        self._closed.append(self._name)


class Bare:
    """One that holds nothing."""


@pytest.mark.parametrize("kind", [Inline, Threads])
@pytest.mark.parametrize("lanes", [1, 3])
def test_what_a_role_holds_is_closed_with_the_runtime(kind: type[Runtime], lanes: int) -> None:
    closed: list[int] = []
    runtime = kind()

    async def body() -> None:
        await runtime.start(Role("a", partial(CollectorRole, partial(Holder, closed, 1)), lanes=lanes))
        await runtime.start(Role("b", partial(EvaluatorRole, partial(Holder, closed, 2))))
        await runtime.start(Role("c", partial(CollectorRole, Bare)))
        assert closed == []
        await runtime.close()

    runtime.run(body())
    assert sorted(closed) == [1, 2]


def test_a_restarted_role_closes_what_its_predecessor_held() -> None:
    closed: list[int] = []
    runtime = Threads()

    async def body() -> None:
        await runtime.start(Role("a", partial(CollectorRole, partial(Holder, closed, 1))))
        await runtime.restart("a")
        await runtime.close()

    runtime.run(body())
    assert closed == [1, 1]
