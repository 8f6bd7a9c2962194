"""The link over NCCL. Two processes on one GPU are two machines to NCCL here, so one is enough to run this."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from headway.llm.weights.connection_weight_wire import LinkBroken
from headway.llm.weights.receiver_weight_link import Intake, LinkedWeights
from headway.llm.weights.source_weight_source import ON_DEVICE, WeightSource

pytestmark = pytest.mark.gpu

OTHER = """
import pickle, sys, time, torch
from headway.llm.weights.receiver_weight_link import Intake
from headway.llm.weights.source_weight_source import WeightSource

source, intake = WeightSource(deadline_s=60.0, bucket_bytes=4 << 20), Intake("cuda")
while True:
    try:
        what, value = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    if what == "offer_mb":
        like = {"device": "cuda", "dtype": torch.bfloat16}
        weights = {str(n): torch.full((1 << 19,), float(n % 100), **like) for n in range(value)}
        answer = source.offer(weights)
        for tensor in weights.values():
            tensor.zero_()  # the learner goes on
    elif what == "bring":
        found = intake.plain(value)
        answer = intake.backend, {name: float(tensor.float().mean()) for name, tensor in found.items()}
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class Other:
    """Another process on the same GPU, with a source and an engine's end."""

    def __init__(self, name: str) -> None:
        os.environ |= {"NCCL_HOSTID": "here", "NCCL_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"NCCL_HOSTID": name},
        )

    def say(self, what: str, value: Any) -> None:
        assert self.process.stdin is not None
        pickle.dump((what, value), self.process.stdin)
        self.process.stdin.flush()

    def ask(self, what: str, value: Any) -> Any:
        self.say(what, value)
        assert self.process.stdout is not None
        return pickle.load(self.process.stdout)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def means(mb: int) -> list[float]:
    return [float(n % 100) for n in range(mb)]


def assert_came(weights: Any, mb: int) -> None:
    assert all(tensor.is_cuda and tensor.dtype is torch.bfloat16 for tensor in weights.values())
    assert [float(weights[str(n)].float().mean()) for n in range(mb)] == means(mb)


def test_weights_go_from_gpu_to_gpu_and_a_source_that_stops_is_given_up_and_asked_again() -> None:
    other, intake = Other("other"), Intake("cuda")
    try:
        for _ in range(ON_DEVICE + 2):
            handle: LinkedWeights = other.ask("offer_mb", 64)
            assert_came(intake.plain(handle), 64)
        assert intake.backend == "nccl"
        oldest = replace(handle, key=0)  # in the machine's memory by now
        assert_came(intake.plain(oldest), 64)
        assert [float(t.float().mean()) for t in handle.take().values()] == means(64)

        os.kill(other.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(LinkBroken, match="not within 2 s"):
            intake.plain(replace(handle, deadline_s=2.0))
        assert time.monotonic() - began < 4
        os.kill(other.process.pid, signal.SIGCONT)
        assert_came(intake.plain(handle), 64)
        assert intake.backend == "nccl"
    finally:
        intake.close()
        other.close()


def test_a_source_killed_in_the_middle_is_one_line_and_this_process_lives_on() -> None:
    other, intake = Other("other"), Intake("cuda")
    handle = other.ask("offer_mb", 4000)

    def kill_when_some_came() -> None:
        while not intake.num_buckets:
            time.sleep(1e-4)
        other.process.kill()

    threading.Thread(target=kill_when_some_came, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(LinkBroken) as broken:
        intake.plain(handle)
    assert "\n" not in str(broken.value) and time.monotonic() - began < 30
    assert float(torch.ones(8, device="cuda").sum()) == 8
    other.close()
    again = Other("another")
    try:
        assert_came(intake.plain(again.ask("offer_mb", 16)), 16)
        assert intake.backend == "nccl"
    finally:
        intake.close()
        again.close()


def test_an_engine_killed_in_the_middle_leaves_the_learner_alone() -> None:
    weights = {str(n): torch.full((1 << 19,), float(n % 100), device="cuda", dtype=torch.bfloat16) for n in range(4000)}
    source = WeightSource(deadline_s=60.0, bucket_bytes=4 << 20)
    handle = source.offer(weights)
    first = Other("first")
    first.say("bring", handle)
    while not source._server._num_pairs:
        time.sleep(1e-3)
    time.sleep(1.5)
    first.close()
    time.sleep(1.0)
    second = Other("second")
    try:
        assert second.ask("bring", source.offer({str(n): weights[str(n)] for n in range(16)})) == (
            "nccl",
            {str(n): float(n % 100) for n in range(16)},
        )
    finally:
        second.close()
        source.close()
