"""Who looks at what: all shared memory of a run, as the driver knows it.

      registered --> lent any number of times --> released --> every loan back --> free for its owner

No clock, no sockets, no waiting: the processes runtime asks it what may be sent and tells it what came back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headway.core.types_opaque import Payload
from headway.runtimes.shared_memory_arena import Arena, BlockKey, MemorySegment, SegmentKey, SharedRef
from headway.runtimes.shared_memory_transport import Views, encode

DRIVER = 0


@dataclass(frozen=True, slots=True)
class Parcel:
    """What must travel with a call: the blocks it lends, and news about memory that waited for a message."""

    lent: list[BlockKey]
    frees: list[int]
    segments: list[tuple[SegmentKey, int]]
    fds: list[int]
    dropped: list[SegmentKey]


@dataclass(slots=True)
class _Block:
    segment: SegmentKey
    num_lent: int = 0
    is_released: bool = False


@dataclass(slots=True)
class _SharedSegment:
    segment: MemorySegment
    num_blocks: int = 0


@dataclass(slots=True)
class _Member:
    borrowed: Counter[BlockKey] = field(default_factory=Counter)
    mapped: set[SegmentKey] = field(default_factory=set)
    frees: list[int] = field(default_factory=list)
    dropped: list[SegmentKey] = field(default_factory=list)


class Loans:
    """All shared memory, as the driver knows it: which blocks there are, who borrows them, when one is free.

    A block is registered, lent any number of times, and released once. It is free when it is released and
    every loan came back, by a settled call or with the borrower's end. No clock, no sockets, no waiting.
    """

    def __init__(self) -> None:
        self._arena = Arena(DRIVER)
        self._views = Views()
        self._segments: dict[SegmentKey, _SharedSegment] = {}
        self._blocks: dict[BlockKey, _Block] = {}
        self._members: dict[int, _Member] = {}

    def join(self, owner: int) -> None:
        self._members[owner] = _Member()

    def leave(self, owner: int) -> None:
        """It ended: what it borrowed is back, what it made stays until released."""
        member = self._members.pop(owner)
        for key, count in member.borrowed.items():
            self._come_back(key, count)
        for segment_key in [key for key in self._segments if key[0] == owner]:
            self._drop_if_unused(segment_key)

    def adopt(self, owner: int, segments: Sequence[MemorySegment]) -> None:
        """Map new segments, whose descriptors are ours from now on, or closed if that fails."""
        for place, segment in enumerate(segments):
            try:
                self._views.attach((owner, segment.index), segment.fd, segment.size)
            except OSError:
                for left in segments[place:]:
                    os.close(left.fd)
                raise
            self._segments[owner, segment.index] = _SharedSegment(segment)

    def place(self, value: object) -> SharedRef:
        """A value of the driver's own, registered."""
        ref = encode(value, self._arena)
        self.adopt(DRIVER, self._arena.take_new_segments())
        return self.register(ref)

    def register(self, ref: SharedRef) -> SharedRef:
        if ref.serial:
            segment_key = ref.owner, ref.segment
            self._blocks[ref.key] = _Block(segment_key)
            self._segments[segment_key].num_blocks += 1
        return ref

    def lend(self, refs: Iterable[SharedRef], borrower: int) -> Parcel:
        member = self._members[borrower]
        refs = [ref for ref in refs if ref.serial]
        unseen = {self._blocks[ref.key].segment for ref in refs} - member.mapped
        segments = [(key, self._segments[key].segment) for key in unseen]
        for ref in refs:
            self._blocks[ref.key].num_lent += 1
        lent = [ref.key for ref in refs]
        member.borrowed.update(lent)
        member.mapped |= unseen
        parcel = Parcel(
            lent,
            member.frees,
            [(key, segment.size) for key, segment in segments],
            [segment.fd for _, segment in segments],
            member.dropped,
        )
        member.frees, member.dropped = [], []
        return parcel

    def settle(
        self, borrower: int, lent: Iterable[BlockKey], held: Sequence[BlockKey], let_go: Sequence[BlockKey]
    ) -> None:
        """A call is over: its loans are back, except what is held, and so is what was held before and let go."""
        member = self._members[borrower]
        back = Counter(lent)
        back.subtract(held)
        back.update(let_go)
        for key, count in back.items():
            member.borrowed[key] -= count
            if not member.borrowed[key]:
                del member.borrowed[key]
            self._come_back(key, count)

    def release(self, ref: SharedRef) -> None:
        block = self._blocks.get(ref.key)
        if block is not None:
            block.is_released = True
            self._come_back(ref.key, 0)

    def copy(self, ref: SharedRef) -> Payload:
        self.refuse_if_released(ref)
        return self._views.copy(ref)

    def take(self, ref: SharedRef) -> Payload:
        """Copy a value that was made for the driver alone; its block is free at once."""
        if ref.serial:
            self._members[ref.owner].frees.append(ref.serial)
        return self._views.copy(ref)

    def close(self) -> None:
        for shared in self._segments.values():
            os.close(shared.segment.fd)
        self._segments.clear()
        self._blocks.clear()
        self._arena, self._views = Arena(DRIVER), Views()  # which unmaps

    def refuse_if_released(self, ref: SharedRef) -> None:
        if ref.serial and (ref.key not in self._blocks or self._blocks[ref.key].is_released):
            raise ValueError(f"payload {ref.key} was released: it may have been overwritten since")

    def _come_back(self, key: BlockKey, count: int) -> None:
        block = self._blocks[key]
        block.num_lent -= count
        if block.num_lent or not block.is_released:
            return
        del self._blocks[key]
        owner, serial = key
        if owner == DRIVER:
            self._arena.free(serial)
        elif owner in self._members:
            self._members[owner].frees.append(serial)
        self._segments[block.segment].num_blocks -= 1
        self._drop_if_unused(block.segment)

    def _drop_if_unused(self, key: SegmentKey) -> None:
        """A segment is kept for its owner to fill again, so it goes only when that has ended."""
        owner, _ = key
        if owner == DRIVER or owner in self._members or self._segments[key].num_blocks:
            return
        os.close(self._segments.pop(key).segment.fd)
        self._views.detach(key)
        for member in self._members.values():
            if key in member.mapped:
                member.mapped.remove(key)
                member.dropped.append(key)
