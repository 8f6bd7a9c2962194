"""How fast do rollouts and weights cross from one process to another?

    PYTHONPATH=src python bench/transport.py

      producer process ---- 64 KB or 1 MB rollouts ----> consumer process (reads every page)
      learner's process --- 1M float32 parameters ------> usable in another process
      driver -------------- an empty call --------------> role and back

The ways of one group take turns in every repeat, so that they meet the same noise; median and min..max of
REPEATS, and the median of each repeat's ratio to the first way. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import itertools
import marshal
import multiprocessing
import os
import pickle
import queue
import socket
import statistics
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp

from headway.core.protocols import Role
from headway.core.types import Snapshot
from headway.runtimes.child_process_channel import Channel
from headway.runtimes.processes import Processes
from headway.runtimes.shared_memory_arena import Arena, SharedRef
from headway.runtimes.shared_memory_transport import Views, encode

REPEATS = 7
WINDOW = 64  # rollouts on their way at a time, everywhere
FREED_TOGETHER = WINDOW // 4  # the runtime sends these notices along with its next call
CONTEXT = mp.get_context("spawn")
PLAIN = multiprocessing.get_context("spawn")


def rollout(size: int) -> dict[str, np.ndarray]:
    """Observations and actions, `size` bytes together."""
    return {"obs": np.zeros(size * 15 // 16 // 4, np.float32), "action": np.zeros(size // 16 // 8, np.int64)}


def touch(payload: dict[str, Any]) -> None:
    """Read something of every page: enough to see that the data are there, little beside what brought them."""
    for array in payload.values():
        max(array[:: 4096 // array.itemsize].tolist())


@dataclass(frozen=True)
class Way:
    """One way to get something across. `run(n)` does it n times; `stop` ends its process."""

    name: str
    run: Callable[[int], None]
    num: int
    stop: Callable[[], None]


def compare(title: str, unit: str, ways: list[Way]) -> None:
    """Rates ("/s") or times ("ms", "us") of `ways`, one after another in every repeat."""
    scale = {"/s": 0.0, "ms": 1e3, "us": 1e6}[unit]
    results: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        way.run(way.num // 4)  # the first pages, the start of the process
    for _ in range(REPEATS):
        for way in ways:
            began = time.perf_counter()
            way.run(way.num)
            each_s = (time.perf_counter() - began) / way.num
            results[way.name].append(each_s * scale if scale else 1 / each_s)
    for way in ways:
        way.stop()
    print(f"\n{title}")
    first = results[ways[0].name]
    for name, values in results.items():
        ratio = statistics.median(value / other for value, other in zip(values, first, strict=True))
        spread = f"{min(values):,.4g} .. {max(values):,.4g}"
        print(f"  {name:52} {statistics.median(values):>9,.4g} {unit}  {spread:>20}  {ratio:8.3g} x", flush=True)


def end(process: Any) -> None:
    process.kill()
    process.join()


# ---------------------------------------------------------------------------------------- rollouts


def headway_producer(fd: int, size: int, num_together: int) -> None:
    """Sends as many rollouts as it is asked for; a message back lists the blocks that are free again."""
    channel, arena = Channel(socket.socket(fileno=fd)), Arena(1)
    payload, todo, ahead = rollout(size), 0, 0
    while True:
        while todo and ahead + num_together <= WINDOW:
            refs = [encode(payload, arena) for _ in range(min(num_together, todo))]
            new, arena.new_segments = arena.new_segments, []
            packed = [ref.pack() for ref in refs]
            channel.send(marshal.dumps((packed, [(s.index, s.size) for s in new])), [s.fd for s in new])
            todo, ahead = todo - len(refs), ahead + len(refs)
        for body, _ in channel.receive():
            order, serials = marshal.loads(body)
            todo += order
            ahead -= len(serials)
            for serial in serials:
                arena.free(serial)


def headway_way(size: int, num: int, num_together: int) -> Way:
    ours, theirs = socket.socketpair()
    process = CONTEXT.Process(target=start_on_socket, args=(headway_producer, theirs, size, num_together), daemon=True)
    process.start()
    theirs.close()
    channel, views = Channel(ours), Views()

    def run(num: int) -> None:
        channel.send(marshal.dumps((num, [])))
        serials: list[int] = []
        while num:
            for body, fds in channel.receive():
                packed, segments = marshal.loads(body)
                for (index, length), fd in zip(segments, fds, strict=True):
                    views.attach((1, index), fd, length)
                    os.close(fd)
                for ref in itertools.starmap(SharedRef, packed):
                    touch(views.open(ref, is_writable=True))
                    serials.append(ref.serial)
                num -= len(packed)
            assert views.settle() == ([], [])
            if len(serials) >= FREED_TOGETHER or not num:
                channel.send(marshal.dumps((0, serials)))
                serials.clear()

    return Way(f"headway transport, refs sent {num_together} at a time", run, num, partial(end, process))


def start_on_socket(target: Callable[..., None], sock: socket.socket, *args: Any) -> None:
    target(sock.detach(), *args)


def queue_producer(rollouts: Any, orders: Any, size: int, is_torch: bool) -> None:
    payload: Any = rollout(size)
    while True:
        for _ in range(orders.get()):
            # A fresh copy each time: torch shares memory in place, and a real rollout is new.
            rollouts.put({k: torch.from_numpy(v.copy()) for k, v in payload.items()} if is_torch else payload)


def queue_way(name: str, size: int, num: int, context: Any, is_torch: bool) -> Way:
    rollouts, orders = context.Queue(WINDOW), context.Queue()
    start = threading.Thread if context is queue else CONTEXT.Process
    producer = start(target=queue_producer, args=(rollouts, orders, size, is_torch), daemon=True)
    producer.start()

    def run(num: int) -> None:
        orders.put(num)
        for _ in range(num):
            touch(rollouts.get())

    return Way(name, run, num, (lambda: None) if context is queue else partial(end, producer))


# ---------------------------------------------------------------------------------------- weights


def weights() -> dict[str, torch.Tensor]:
    """A small MLP: 1.0 M float32 parameters in 8 tensors."""
    widths = [128, 640, 640, 640, 128]
    shapes = [shape for a, b in itertools.pairwise(widths) for shape in ((b, a), (b,))]
    return {str(number): torch.randn(shape) for number, shape in enumerate(shapes)}


def headway_receiver(fd: int) -> None:
    channel, views = Channel(socket.socket(fileno=fd)), Views()
    while True:
        for body, fds in channel.receive():
            ref, segments = pickle.loads(body)
            for (index, length), segment in zip(segments, fds, strict=True):
                views.attach((1, index), segment, length)
                os.close(segment)
            value = views.open(ref, is_writable=False)
            assert value["0"].shape[1] == 128
            channel.send(b"")


def pipe_receiver(connection: Any) -> None:
    while True:
        assert connection.recv()["0"].shape[1] == 128
        connection.send(None)


def queue_receiver(snapshots: Any, answers: Any) -> None:
    while True:
        assert snapshots.get()["0"].shape[1] == 128
        answers.put(None)


def headway_weights(num: int) -> Way:
    ours, theirs = socket.socketpair()
    process = CONTEXT.Process(target=start_on_socket, args=(headway_receiver, theirs), daemon=True)
    process.start()
    theirs.close()
    channel, arena, live, earlier = Channel(ours), Arena(1), weights(), list[SharedRef]()

    def run(num: int) -> None:
        for _ in range(num):
            ref = encode(live, arena)
            new, arena.new_segments = arena.new_segments, []
            channel.send(pickle.dumps((ref, [(s.index, s.size) for s in new])), [s.fd for s in new])
            channel.receive()
            earlier.append(ref)
            if len(earlier) > 2:  # collectors still use the version before
                arena.free(earlier.pop(0).serial)

    return Way("headway transport", run, num, partial(end, process))


def pipe_weights(num: int) -> Way:
    here, there = PLAIN.Pipe()
    process = PLAIN.Process(target=pipe_receiver, args=(there,), daemon=True)
    process.start()
    live = {name: tensor.numpy() for name, tensor in weights().items()}  # as arrays: no torch reductions

    def run(num: int) -> None:
        for _ in range(num):
            here.send(live)
            here.recv()

    return Way("pickled through a Pipe", run, num, partial(end, process))


def torch_weights(num: int) -> Way:
    snapshots, answers = CONTEXT.Queue(), CONTEXT.Queue()
    process = CONTEXT.Process(target=queue_receiver, args=(snapshots, answers), daemon=True)
    process.start()
    live = weights()

    def run(num: int) -> None:
        for _ in range(num):
            snapshots.put({name: tensor.clone() for name, tensor in live.items()})
            answers.get()

    return Way("torch.multiprocessing.Queue", run, num, partial(end, process))


# ---------------------------------------------------------------------------------------- the whole runtime


class Station:
    def __init__(self) -> None:
        self.live = weights()

    def nothing(self) -> None: ...

    def snapshot(self, version: int) -> Snapshot:
        return Snapshot(version, self.live)

    def apply(self, snapshot: Snapshot) -> None:
        assert snapshot.payload["0"].shape[1] == 128


def runtime_ways(loop: asyncio.AbstractEventLoop, runtime: Processes) -> tuple[Way, Way, Way]:
    async def start() -> None:
        await asyncio.gather(*(runtime.start(Role(name, Station)) for name in ("learner", "collector")))

    async def publish(num: int) -> None:
        earlier: list[Any] = []
        for version in range(num):
            snapshot = await runtime.call("learner", "snapshot", version, deadline_s=60)
            await runtime.call("collector", "apply", snapshot, deadline_s=60)
            earlier.append(snapshot.payload)
            if len(earlier) > 2:
                runtime.release(earlier.pop(0))
        for payload in earlier:
            runtime.release(payload)

    async def one_by_one(num: int) -> None:
        for _ in range(num):
            await runtime.call("learner", "nothing", deadline_s=60)

    async def together(num: int) -> None:
        await asyncio.gather(*(runtime.call("learner", "nothing", deadline_s=60) for _ in range(num)))

    def way(name: str, work: Callable[[int], Coroutine[Any, Any, None]], num: int) -> Way:
        return Way(name, lambda num: loop.run_until_complete(work(num)), num, lambda: None)

    loop.run_until_complete(start())
    return (
        way("headway runtime (snapshot call + apply call)", publish, 40),
        way("headway runtime, one at a time", one_by_one, 1000),
        way("headway runtime, all outstanding", together, 1000),
    )


def main() -> None:
    print(f"median, min .. max of {REPEATS}; {os.cpu_count()} cores, torch {torch.__version__}")
    for label, size, num in (("64 KB", 1 << 16, 8000), ("1 MB", 1 << 20, 1000)):
        ways = [queue_way("multiprocessing.Queue", size, num // 4, PLAIN, False)]
        ways += [headway_way(size, num, together) for together in (1, FREED_TOGETHER)]
        for strategy in ("file_descriptor", "file_system"):
            mp.set_sharing_strategy(strategy)  # type: ignore[no-untyped-call]
            ways.append(queue_way(f"torch.multiprocessing.Queue ({strategy})", size, num // 8, CONTEXT, True))
        ways.append(queue_way("queue.Queue between threads (no copy)", size, num, queue, False))
        compare(f"{label} rollouts from one process to another", "/s", ways)
    runtime, loop = Processes(), asyncio.new_event_loop()
    publish, one_by_one, together = runtime_ways(loop, runtime)
    compare("1M parameters published", "ms", [pipe_weights(40), headway_weights(40), publish, torch_weights(40)])
    compare("An empty call to a role and back", "us", [one_by_one, together])
    loop.run_until_complete(runtime.close())
    loop.close()


if __name__ == "__main__":
    main()
