"""A payload that stays where it was made: what travels is a small handle, and whoever needs the value takes it there.

    maker keeps the value  <---- take() ----------  who needs it
                           <---- give_back() -----  the coordinator, when nobody will need it any more

Runtimes hand a `Lent` on as it is, in place of a reference of their own (`map_payloads`). What is written to disk or
handed to the user is the value, never the handle: `taken`.
"""

from __future__ import annotations

from headway.core.types_opaque import Payload


class LentLost(RuntimeError):
    """What was lent cannot be had: whoever keeps it is gone, silent, or has been told to forget it. One line."""


class Lent:
    """A handle. It is small, it can be pickled, and it says nothing about what it stands for."""

    __slots__ = ()

    def take(self) -> Payload:
        """The value itself, here, in memory of its own. Blocks, under a deadline; raises LentLost."""
        raise NotImplementedError

    def saved_in(self, folder: str) -> Payload:
        """What a checkpoint keeps: the value, unless whoever has it can write it into this folder, which is new.
        Blocks, under a deadline; raises LentLost."""
        return self.take()

    def give_back(self) -> None:
        """It will not be taken again. Does not block and does not fail: whoever is gone keeps nothing."""
        raise NotImplementedError


def taken(payload: Payload) -> Payload:
    """The payload itself: a plain one as it is."""
    return payload.take() if isinstance(payload, Lent) else payload
