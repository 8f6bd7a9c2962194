"""Whether a batch is ready is known without looking at every ticket, and the answer is that of a look at all."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from headway.core.ledger import Ledger
from headway.core.rules import MaxLead
from headway.core.types import DropReason, Phase

BATCH = 3
MOVES = ("open", "start", "land", "drop", "requeue", "lose", "reissue", "take", "put back", "settle", "resume")


def looked_at_all(ledger: Ledger) -> bool:
    if ledger.tally.ready < BATCH:
        return False
    untaken = [entry for entry in ledger.live() if entry.phase is not Phase.TAKEN]
    return all(entry.phase is Phase.READY for entry in islice(untaken, BATCH))


def move(ledger: Ledger, what: str, draw: int) -> Ledger:
    """Do it to one of the tickets that it can be done to, if there is one."""
    wanted = {
        "start": [Phase.OPEN],
        "land": [Phase.IN_FLIGHT],
        "reissue": [Phase.IN_FLIGHT],
        "drop": [Phase.OPEN, Phase.IN_FLIGHT, Phase.READY],
        "requeue": [Phase.READY],
        "lose": [Phase.READY],
    }.get(what, [])
    indices = [entry.ticket.index for entry in ledger.live() if entry.phase in wanted]
    index = indices[draw % len(indices)] if indices else None
    match what:
        case "open":
            ledger.open(0)
        case "take" if batch := ledger.choose(0).batch:
            ledger.take(batch, 0)
        case "put back":
            ledger.put_back([entry.ticket.index for entry in ledger.live() if entry.phase is Phase.TAKEN], 0)
        case "settle":
            ledger.settle()
        case "resume":
            again = made(ledger.terms.every)
            again.load_state_dict(ledger.state_dict())
            return again
        case "start" if index is not None:
            ledger.start(index, 0, 0)
        case "land" if index is not None:
            ledger.land(index)
        case "drop" if index is not None:
            ledger.drop(index, DropReason.FILTERED)
        case "requeue" if index is not None:
            ledger.requeue(index, 0)
        case "lose" if index is not None:
            ledger.lose(index, 0)
        case "reissue" if index is not None:
            ledger.reissue(index)
    return ledger


def made(every: int) -> Ledger:
    return Ledger(MaxLead(3, BATCH), tickets_per_batch=BATCH, every=every)


weights = [*MOVES, *(("open", "start", "start", "land", "land") * 4)]


@given(st.sampled_from([1, 2, 5]), st.lists(st.tuples(st.sampled_from(weights), st.integers(0, 99)), max_size=120))
def test_the_answer_is_that_of_a_look_at_all_whatever_happened(every: int, moves: list[tuple[str, int]]) -> None:
    ledger = made(every)
    for what, draw in moves:
        ledger = move(ledger, what, draw)
        assert ledger.may_choose() == looked_at_all(ledger)


def test_asking_after_every_landing_passes_each_ticket_a_few_times_at_most() -> None:
    looks = 0

    class Counting(dict):  # type: ignore[type-arg]
        def get(self, *args: object) -> object:
            nonlocal looks
            looks += 1
            return super().get(*args)

    size = 2000
    ledger = Ledger(MaxLead(1, size), tickets_per_batch=size)
    ledger._live.untaken = Counting()
    tickets = []
    while (ticket := ledger.open(0)) is not None:
        tickets.append(ticket.index)
        ledger.start(ticket.index, 0, 0)
    for index in [*tickets[1:], tickets[0]]:
        ledger.land(index)
        ledger.may_choose()
    assert ledger.may_choose()
    assert looks <= 3 * len(tickets)
