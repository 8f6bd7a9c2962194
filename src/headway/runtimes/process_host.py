"""What runs in a role's process: it builds the role's object, then answers calls one after another.

      Start --> prepare as multiprocessing does, build the object --> HostReply(0)
      Call  --> free and map what it names, resolve references --> object.method(...) --> HostReply
      empty frame, or the driver gone --> end

With lanes the main thread reads the frames, a thread for each lane collects, and one more does everything else.

Calls and replies are plain values and go by marshal, a quarter of pickle's time; both ends are the same
interpreter. Nothing heavy is imported here: what the process imports is up to the role. The process ignores
Ctrl-C, which goes to the driver as well: the driver decides.
"""

from __future__ import annotations

import marshal
import os
import pickle
import queue
import sys
import threading
import traceback
from typing import NamedTuple

from headway.core.protocols import explain
from headway.core.text_one_line import said
from headway.core.types import Snapshot, map_payloads
from headway.core.types_opaque import RoleAnswer, Station
from headway.runtimes.child_process_channel import Channel, not_lost
from headway.runtimes.child_process_in_child import begin
from headway.runtimes.child_process_sent_code import unpack_function
from headway.runtimes.shared_memory_arena import Arena, BlockKey, GuardedArena, SegmentKey, SharedRef
from headway.runtimes.shared_memory_transport import INLINE_BYTES, Views, encode


class Start(NamedTuple):
    """The first message to a process."""

    owner: int
    factory: bytes  # of runtimes/child_process_sent_code.py
    num_threads: int
    lanes: int


class Call(NamedTuple):
    """What the driver sends. The file descriptors of `segments` come with it."""

    number: int
    method: str
    args: SharedRef
    frees: list[int]  # serials of own blocks that may be used again
    segments: list[tuple[SegmentKey, int]]  # seen for the first time, with their sizes
    dropped: list[SegmentKey]  # never to be seen again

    def pack(self) -> bytes:
        return marshal.dumps((*self[:2], self.args.pack(), *self[3:]))

    @classmethod
    def parse(cls, body: bytes) -> Call:
        number, method, args, *rest = marshal.loads(body)
        return cls(number, method, SharedRef(*args), *rest)


class HostReply(NamedTuple):
    """What comes back. The file descriptors of `segments` come with it.

    `value` is the result, or what `explain` says of an exception. Every block lent with the call is given
    back by its reply, except those in `held`; of those held earlier, the ones in `let_go` are given back.
    """

    number: int
    is_result: bool
    value: SharedRef
    held: list[BlockKey]
    let_go: list[BlockKey]
    segments: list[tuple[int, int]]  # own new ones: index, size

    def pack(self) -> bytes:
        return marshal.dumps((*self[:2], self.value.pack(), *self[3:]))

    @classmethod
    def parse(cls, body: bytes) -> HostReply:
        number, is_result, value, *rest = marshal.loads(body)
        return cls(number, is_result, SharedRef(*value), *rest)


def main(fd: int) -> None:
    channel = begin(fd)
    frames = channel.frames()
    start = Start(*pickle.loads(next(frames)[0]))
    host = ProcessHost(channel, start, Arena(start.owner)) if start.lanes == 1 else ProcessLaneHost(channel, start)
    if host.build():
        for body, fds in frames:
            if not body:
                break
            call = Call.parse(body)
            try:
                host.take_in(call, fds)
            except OSError as error:  # no descriptor left, or no memory: what later calls refer to is missing too
                host.refuse(call, error)
                break
            host.answer(call)


class ProcessHost:
    """The role's object and the shared memory of its process."""

    def __init__(self, channel: Channel, start: Start, arena: Arena) -> None:
        self.channel = channel
        self.start = start
        self.arena = arena
        self.views = Views()
        self.object: Station = None

    def build(self) -> bool:
        try:
            self.object = unpack_function(self.start.factory)()
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self.start.num_threads)
            self._reply(0, True, encode(None, self.arena))
        except Exception as error:
            self._reply(0, False, self._explain(error))
            return False
        return True

    def take_in(self, call: Call, fds: list[int] | None) -> None:
        """What the call says about memory, before anything else happens."""
        fds = not_lost(fds)
        for serial in call.frees:
            self.arena.free(serial)
        for (key, size), fd in zip(call.segments, fds, strict=True):
            self.views.attach(key, fd, size)
            os.close(fd)
        for key in call.dropped:
            self.views.detach(key)

    def refuse(self, call: Call, error: Exception) -> None:
        self._reply(call.number, False, self._explain(error))

    def answer(self, call: Call) -> None:
        try:
            is_result, value = True, self._execute(call)
        except Exception as error:
            is_result, value = False, self._explain(error)
        self._reply(call.number, is_result, value)

    def _execute(self, call: Call) -> SharedRef:
        """A function of its own, so that its references are gone when the reply says what is still held."""
        args = self._resolve(self.views.copy(call.args))
        return self._share(call.method, getattr(self.object, call.method)(*args))

    def _resolve(self, value: RoleAnswer) -> RoleAnswer:
        """Put views in place of references: of snapshots read-only, for many look at the same memory."""
        if type(value) is tuple:
            return tuple(self._resolve(item) for item in value)
        is_writable = not isinstance(value, Snapshot)
        return map_payloads(value, lambda ref: self.views.open(ref, is_writable))

    def _share(self, method: str, result: object) -> SharedRef:
        payloads: list[SharedRef] = []

        def share(payload: object) -> SharedRef:
            payloads.append(encode(payload, self.arena))
            return payloads[-1]

        try:
            return encode(map_payloads(result, share), self.arena)
        except Exception as error:
            for ref in payloads:
                if ref.serial:
                    self.arena.free(ref.serial)
            if isinstance(error, OSError | MemoryError):  # it could be sent if there were room for it
                raise
            raise TypeError(f"what {method} returned cannot be sent to another process: {said(error)}") from error

    def _explain(self, error: Exception) -> SharedRef:
        what = explain(error)
        try:
            return encode(what, self.arena)
        except OSError:  # no room for the traceback either; what is short needs none
            return encode((what[0][: INLINE_BYTES // 4], "", what[2]), self.arena)

    def _reply(self, number: int, is_result: bool, value: SharedRef) -> None:
        held, let_go = self.views.settle()
        new = self.arena.take_new_segments()
        reply = HostReply(number, is_result, value, held, let_go, [(segment.index, segment.size) for segment in new])
        self.channel.send(reply.pack(), [segment.fd for segment in new])
        for segment in new:
            os.close(segment.fd)


class ProcessLaneHost(ProcessHost):
    """The same with lanes: calls overlap, and replies go out one at a time, in the order in which they settle.

    A reply says what is held by any call, its own or one that is still under way: whoever borrows twice gives back
    twice, so the driver's count of a block never falls to nothing while something here looks at it. For that the
    driver must hear of what is held before it hears that it was let go, and of a segment before a block in it.
    """

    def __init__(self, channel: Channel, start: Start) -> None:
        super().__init__(channel, start, GuardedArena(start.owner))
        self._replying = threading.Lock()
        self._collects: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._others: queue.SimpleQueue[Call] = queue.SimpleQueue()

    def build(self) -> bool:
        if not super().build():
            return False
        for inbox in [self._others, *[self._collects] * self.start.lanes]:
            threading.Thread(target=self._work, args=(inbox,), daemon=True).start()
        return True

    def answer(self, call: Call) -> None:
        (self._collects if call.method == "collect" else self._others).put(call)

    def _work(self, inbox: queue.SimpleQueue[Call]) -> None:
        code = 1
        try:
            while True:
                super().answer(inbox.get())
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # as a whole: a thread that left alone would leave its calls without an answer

    def _reply(self, number: int, is_result: bool, value: SharedRef) -> None:
        with self._replying:
            super()._reply(number, is_result, value)
