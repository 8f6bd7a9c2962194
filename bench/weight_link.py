"""How long do new weights take from one process to another?

    PYTHONPATH=src python bench/weight_link.py
    PYTHONPATH=src python bench/weight_link.py --device cuda --mb 300 3000
    PYTHONPATH=src python bench/weight_link.py --device cuda --one_gpu      # both processes on the same GPU

      learner's process                                         engine's process
      store    to the machine's memory, into shared memory      mapped; onto the device
      direct   a copy on the device, a handle                   NCCL or gloo; onto the device
      wire     the same handle                                  bytes over TCP; onto the device   (what direct falls to)

Each hand-over ends when all weights are in the engine's device memory. The ways take turns in every repeat, so that
they meet the same noise; the first hand-over of each way, which connects, stands for itself. Median and min..max of
REPEATS. NCCL refuses two ranks on one GPU, unless it takes them for two machines: --one_gpu tells it so, and what is
measured then is NCCL over the loopback network, which says that it works and nothing about two GPUs.
"""

from __future__ import annotations

import argparse
import os
import pickle
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from headway.llm.weights.receiver_weight_link import Intake
from headway.llm.weights.source_weight_source import WeightSource
from headway.runtimes.child_process_channel import Channel
from headway.runtimes.shared_memory_arena import Arena
from headway.runtimes.shared_memory_transport import Views, encode

REPEATS = 9
TENSORS = 64
WAYS = ("store", "direct", "wire")


def weights_of(mb: int, device: str) -> dict[str, torch.Tensor]:
    """bfloat16, as an engine wants them, in tensors of very different sizes."""
    shares = [1 + number % 7 for number in range(TENSORS)]
    total = mb * (1 << 20) // 2
    return {
        str(number): torch.randn(max(1, total * share // sum(shares)), device=device).to(torch.bfloat16)
        for number, share in enumerate(shares)
    }


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def engine(fd: int, device: str) -> None:
    """The other process: brings what it is told of onto its device, and says how it came and whether it is right."""
    channel, views, intake = Channel(socket.socket(fileno=fd)), Views(), Intake(device)
    torch.ones(1, device=device)
    channel.send(b"ready")
    while True:
        for body, fds in channel.receive():
            way, what, segments, total = pickle.loads(body)
            for (index, size), segment in zip(segments, fds, strict=True):
                views.attach((1, index), segment, size)
                os.close(segment)
            if way == "store":
                found = {name: tensor.to(device) for name, tensor in views.open(what, is_writable=False).items()}
                by = "shared memory"
            elif way == "direct":
                found = intake.plain(what)
                by = intake.backend
            else:
                found = {name: tensor.to(device) for name, tensor in what.take().items()}
                by = "TCP"
            if device == "cpu" and way == "store":
                found = {name: tensor.clone() for name, tensor in found.items()}  # as an engine would
            wait_for(device)
            done_at = time.perf_counter()
            right = total is None or abs(sum(float(tensor.double().sum()) for tensor in found.values()) - total) < 1e-6
            del found
            channel.send(pickle.dumps((by, right, done_at)))


def start_engine(device: str, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Channel]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, os.path.abspath(__file__), "--engine", str(theirs.fileno()), "--device", device]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=os.environ | environment)
    channel = Channel(ours)
    channel.receive()
    return process, channel


class Learner:
    """This process: makes a snapshot, tells the engine, and waits until it has it."""

    def __init__(self, mb: int, device: str, channel: Channel) -> None:
        self.device = device
        self.weights = weights_of(mb, device)
        self.total = sum(float(tensor.double().sum()) for tensor in self.weights.values())
        self.channel = channel
        self.arena = Arena(1)
        self.source = WeightSource(deadline_s=120.0)
        self.by = ""

    def hand_over(self, way: str, *, check: bool = False) -> float:
        wait_for(self.device)
        began = time.perf_counter()
        what: Any = encode(self.weights, self.arena) if way == "store" else self.source.offer(self.weights)
        new = self.arena.take_new_segments()
        message = way, what, [(one.index, one.size) for one in new], self.total if check else None
        self.channel.send(pickle.dumps(message), [one.fd for one in new])
        answers: list[Any] = []
        while not answers:
            answers = self.channel.receive()
        self.by, right, done_at = pickle.loads(answers[0][0])
        for one in new:
            os.close(one.fd)
        if way == "store":
            self.arena.free(what.serial)
        else:
            what.give_back()
            while self.source.keys:
                time.sleep(1e-3)
        if not right:
            raise SystemExit(f"{way}: what arrived is not what was sent")
        return float(done_at - began)  # one clock for all processes of a machine


def measure(mb: int, device: str, channel: Channel, report: Callable[[str], None]) -> None:
    learner = Learner(mb, device, channel)
    first = {way: learner.hand_over(way, check=True) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    came_by: dict[str, str] = {}
    for _ in range(REPEATS):
        for way in WAYS:
            times[way].append(learner.hand_over(way))
            came_by[way] = learner.by
    learner.source.close()
    for way in WAYS:
        median, low, high = statistics.median(times[way]), min(times[way]), max(times[way])
        ratio = statistics.median(a / b for a, b in zip(times[way], times["store"], strict=True))
        spread = f"{1e3 * low:>9,.1f} .. {1e3 * high:<8,.1f}"
        report(
            f"{mb:>7,} MB  {way:7} {came_by[way]:14} {1e3 * median:>9,.1f} ms {spread} {mb / 1024 / median:>7.2f} GB/s "
            f"{ratio:>6.2f} x   first {1e3 * first[way]:,.0f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 300])
    parser.add_argument("--one_gpu", action="store_true", help="NCCL shall take the two processes for two machines")
    parser.add_argument("--engine", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine >= 0:
        return engine(options.engine, options.device)
    theirs: dict[str, str] = {}
    if options.one_gpu:
        os.environ |= {"NCCL_HOSTID": "learner", "NCCL_SOCKET_IFNAME": "lo"}
        theirs = {"NCCL_HOSTID": "engine"}
    gpu = f", {torch.cuda.get_device_name()}" if options.device == "cuda" else ""
    print(f"median, min .. max of {REPEATS}; {os.cpu_count()} cores{gpu}, torch {torch.__version__}")
    process, channel = start_engine(options.device, theirs)
    try:
        for mb in options.mb:
            measure(mb, options.device, channel, lambda line: print(line, flush=True))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
