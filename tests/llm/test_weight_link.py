"""Weights from the device of one process to that of another: whole or not at all, within a deadline, and given back."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from waiting import patient, wait_until

from headway.core.types import Batch, LearnReport, Rollout, Snapshot, carriers, map_payloads
from headway.core.types_lent import Lent, LentLost, taken
from headway.llm.weights.connection_weight_pair import BYTES, GLOO, NCCL, End, choose_backend
from headway.llm.weights.connection_weight_wire import LinkBroken
from headway.llm.weights.receiver_weight_layout import BucketLayout, checksum
from headway.llm.weights.receiver_weight_link import Intake, LinkedWeights
from headway.llm.weights.source_linked_learner import LinkedLearner
from headway.llm.weights.source_weight_source import WeightSource

SOURCE = """
import pickle, sys, torch
from headway.llm.weights.source_weight_source import WeightSource

source = WeightSource(**pickle.load(sys.stdin.buffer))
while True:
    try:
        what, value = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    if what == "offer":
        weights = pickle.loads(value)
        answer = source.offer(weights)
        for tensor in weights.values():
            tensor.zero_()  # the learner goes on
        del weights, value
    elif what == "offer_mb":
        answer = source.offer({str(n): torch.full((1 << 18,), float(n)) for n in range(value)})
    elif what == "keys":
        answer = source.keys
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class Elsewhere:
    """A source in a process of its own."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-c", SOURCE]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._say(options)

    def _say(self, value: Any) -> None:
        assert self.process.stdin is not None
        pickle.dump(value, self.process.stdin)
        self.process.stdin.flush()

    def _ask(self, what: str, value: Any = None) -> Any:
        self._say((what, value))
        assert self.process.stdout is not None
        return pickle.load(self.process.stdout)

    def offer(self, weights: dict[str, Any]) -> LinkedWeights:
        handle = self._ask("offer", pickle.dumps(weights))
        assert isinstance(handle, LinkedWeights)
        return handle

    def offer_mb(self, mb: int) -> LinkedWeights:
        handle = self._ask("offer_mb", mb)
        assert isinstance(handle, LinkedWeights)
        return handle

    def keys(self) -> tuple[int, ...]:
        keys: tuple[int, ...] = self._ask("keys")
        return keys

    def resident_mb(self) -> float:
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def source() -> Iterator[Elsewhere]:
    elsewhere = Elsewhere(deadline_s=patient(20.0), bucket_bytes=1 << 20)
    yield elsewhere
    elsewhere.close()


def mixed() -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    return {
        "embed.weight": torch.randn(300, 50, generator=random).bfloat16(),
        "norm.weight": torch.randn(7, generator=random),
        "scale": torch.tensor(3.5),
        "half": torch.randn(9, 9, generator=random).half(),
        "turned": torch.randn(6, 4, generator=random).t(),
        "counts": torch.arange(5),
        "mask": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 4),
        "large": torch.randn(700, 500, generator=random),  # more than a bucket
    }


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


def when_some_came(intake: Intake, then: Callable[[], object]) -> threading.Thread:
    def watch() -> None:
        while not intake.num_buckets:
            time.sleep(1e-4)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


# -- the way there ----------------------------------------------------------------------------------


def test_weights_of_every_dtype_arrive_bit_for_bit_and_the_learner_may_go_on(source: Elsewhere) -> None:
    handle, intake = source.offer(mixed()), Intake("cpu")
    assert len(pickle.dumps(handle)) < 1024 and "token" not in repr(handle)
    for _ in range(3):
        assert_same(intake.plain(handle), mixed())
    assert intake.backend == GLOO
    assert_same(handle.take(), mixed())
    intake.close()


def test_one_link_brings_every_version_and_another_engine_has_its_own(source: Elsewhere) -> None:
    first, second = Intake("cpu"), Intake("cpu")
    for number in range(3):
        handle = source.offer({"w": torch.full((1000,), float(number))})
        for intake in (first, second):
            assert intake.plain(handle)["w"].tolist() == [number] * 1000
    first.close()
    assert second.plain(handle)["w"][0] == 2
    second.close()


def test_what_is_taken_is_plain_and_in_memory_of_its_own(source: Elsewhere) -> None:
    weights = taken(source.offer(mixed()))
    assert_same(weights, mixed())
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in weights.values())
    assert taken(weights) is weights
    plain = {"w": torch.ones(2)}
    assert Intake("cpu").plain(plain) is plain


def test_where_no_group_can_be_made_the_bytes_go_over_the_wire(capfd: pytest.CaptureFixture[str]) -> None:
    here, intake = WeightSource(deadline_s=patient(5.0)), Intake("cpu")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    here._server._store = torch.distributed.HashStore(), port  # the engine finds nobody there
    assert_same(intake.plain(here.offer(mixed())), mixed())
    assert intake.backend == BYTES
    assert "weights cannot come from the learner at 127.0.0.1" in capfd.readouterr().err
    intake.close()
    here.close()


def test_nccl_is_for_two_gpus_and_gloo_for_everything_else() -> None:
    both = NCCL, GLOO
    source = End("a", "gpu 0", both)
    assert choose_backend(source, End("a", "gpu 1", both)) == NCCL
    assert choose_backend(source, End("b", "gpu 0", both)) == NCCL
    assert choose_backend(source, End("a", "gpu 0", both)) == GLOO  # NCCL refuses two ranks on one GPU
    assert choose_backend(source, End("b", "", both)) == GLOO
    assert choose_backend(source, End("b", "gpu 0", (GLOO,))) == GLOO
    assert choose_backend(source, End("b", "gpu 0", ())) == BYTES


def test_a_layout_follows_from_names_dtypes_and_shapes() -> None:
    layout = BucketLayout.of(mixed(), 4096)
    again = BucketLayout(layout.specs, 4096)
    assert again.sizes == layout.sizes and again.places == layout.places
    assert all(size % 8 == 0 for size in layout.sizes) and max(layout.sizes) == 700 * 500 * 4
    buckets = layout.empty("cpu")
    layout.write(mixed(), buckets)
    assert_same(again.read(buckets), mixed())
    before = checksum(buckets[0])
    buckets[0][3] += 1
    assert checksum(buckets[0]) != before
    with pytest.raises(TypeError, match="dense tensors by name; w is a list"):
        BucketLayout.of({"w": [1.0]})


# -- what may go wrong ------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_in_one_line(source: Elsewhere) -> None:
    handle = source.offer({"w": torch.ones(3)})
    stranger = replace(handle, token=b"guess" * 8)
    with pytest.raises(LinkBroken, match=r"does not let us in: it does not accept this token$"):
        Intake("cpu").plain(stranger)
    stranger.give_back()
    with pytest.raises(LentLost, match="does not let us in"):
        stranger.take()
    assert handle.take()["w"].tolist() == [1, 1, 1]


def test_a_source_that_stops_in_the_middle_is_given_up_at_the_deadline_and_asked_again_later(source: Elsewhere) -> None:
    handle, intake = replace(source.offer_mb(300), deadline_s=patient(1.0)), Intake("cpu")
    stop = when_some_came(intake, lambda: os.kill(source.process.pid, signal.SIGSTOP))
    try:
        with pytest.raises(LinkBroken, match=r"did not come from the learner .* by gloo \([1-9]\d* messages did\)"):
            intake.plain(handle)
        with pytest.raises(LinkBroken, match=r"not within 0\.3 s|timed out"):
            intake.plain(replace(handle, deadline_s=0.3))
    finally:
        stop.join()
        os.kill(source.process.pid, signal.SIGCONT)
    weights = intake.plain(replace(handle, deadline_s=patient(20.0)))
    assert [float(weights[str(n)].mean()) for n in range(300)] == list(range(300))
    handle.give_back()
    intake.close()


def test_a_source_killed_in_the_middle_is_one_line_and_a_new_one_is_found(source: Elsewhere) -> None:
    first = Elsewhere(deadline_s=patient(20.0), bucket_bytes=1 << 20)
    handle, intake = first.offer_mb(300), Intake("cpu")
    try:
        watch = when_some_came(intake, first.process.kill)
        with pytest.raises(LinkBroken) as broken:
            intake.plain(handle)
        watch.join()
        assert "\n" not in str(broken.value) and "did not come from the learner" in str(broken.value)
        first.process.wait()
        with pytest.raises(LinkBroken, match="does not answer"):
            intake.plain(handle)
    finally:
        first.close()
    assert_same(intake.plain(source.offer(mixed())), mixed())
    intake.close()


def test_what_comes_with_another_checksum_is_refused() -> None:
    here, intake = WeightSource(deadline_s=patient(5.0)), Intake("cpu")
    handle = here.offer(mixed())
    here._server._held[handle.key].sums = [0]
    with pytest.raises(LinkBroken, match="bucket 0 of 1 has the checksum"):
        intake.plain(handle)
    here.close()
    with pytest.raises(LinkBroken, match="does not answer"):
        intake.plain(handle)


def test_what_is_given_back_is_no_longer_kept(source: Elsewhere) -> None:
    kept = set(source.keys())
    resident = []
    for _ in range(4):
        handles = [source.offer_mb(100) for _ in range(2)]
        resident.append(source.resident_mb())
        for handle in handles:
            handle.give_back()
        wait_until(lambda: set(source.keys()) <= kept)
    assert resident[-1] < resident[0] + 100  # else 700
    with pytest.raises(LinkBroken, match=r"does not have them, or not any more$"):
        Intake("cpu").plain(handles[0])
    handles[0].give_back()  # again: nothing happens


@pytest.mark.parametrize("options", [{"deadline_s": 0}, {"bucket_bytes": 0}])
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        WeightSource(**options).offer({"w": torch.ones(1)})
    with pytest.raises(ValueError, match="no weights to offer"):
        WeightSource().offer({})


# -- where it is used -------------------------------------------------------------------------------


def test_a_runtime_hands_on_what_is_lent_as_it_is() -> None:
    lent = Lent()
    snapshot, rollout = Snapshot(3, lent), Rollout("here")
    found = map_payloads((snapshot, rollout), lambda payload: "a reference")
    assert found[0].payload is lent and found[1].payload == "a reference"
    assert list(carriers((snapshot, rollout))) == [rollout]


class Fixed:
    """A learner that says what it was asked."""

    def __init__(self) -> None:
        self.weights = {"w": torch.zeros(3)}

    def learn(self, batch: Batch) -> LearnReport:
        self.weights["w"] += 1
        return LearnReport({"n": 1.0})

    def snapshot(self) -> Any:
        return self.weights

    def state_dict(self) -> Any:
        return {"w": self.weights["w"].clone()}

    def load_state_dict(self, state: Any) -> None:
        self.weights["w"].copy_(state["w"])


def test_a_linked_learner_publishes_handles_of_what_its_weights_were() -> None:
    learner = LinkedLearner(Fixed())
    before = learner.snapshot()
    assert learner.learn(Batch(0, ())).metrics == {"n": 1.0}
    after = learner.snapshot()
    assert before.take()["w"].tolist() == [0, 0, 0] and after.take()["w"].tolist() == [1, 1, 1]
    assert learner.state_dict()["w"].tolist() == [1, 1, 1]
    learner.load_state_dict({"w": torch.full((3,), 5.0)})
    assert learner.snapshot().take()["w"].tolist() == [5, 5, 5]
    assert LinkedLearner(Fixed(), only_gpu=True).snapshot()["w"].tolist() == [0, 0, 0]


def test_an_engine_keeps_its_weights_until_all_of_the_new_ones_are_there(source: Elsewhere) -> None:
    pytest.importorskip("transformers", reason="needs headway[llm]")
    from headway.llm.engine.protocol_engine import Request, Sampling
    from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder
    from headway.testing.tiny_models import tiny_model, tiny_tokenizer

    def engine_of(seed: int) -> TransformersEngine:
        decoder = build_decoder(tiny_model("gpt2", seed=seed), rows=4, context=64)
        return TransformersEngine(decoder, tiny_tokenizer(), [0], intake=Intake("cpu"))

    def reply(engine: TransformersEngine) -> list[int]:
        (sample,) = engine.generate(Request("a", (5, 6, 7), sampling=Sampling(max_tokens=12)))
        tokens: list[int] = sample.tokens.tolist()
        return tokens

    engine, other = engine_of(0), engine_of(1)
    before, wanted = reply(engine), reply(other)
    assert before != wanted
    names = dict(tiny_model("gpt2", seed=1).named_parameters())
    handle = source.offer({name: parameter.detach() for name, parameter in names.items()})
    with pytest.raises(LinkBroken):
        engine.apply(1, replace(handle, key=10**6))
    assert engine.version == 0 and reply(engine) == before
    engine.apply(1, handle)
    assert engine.version == 1 and reply(engine) == wanted
    engine.close()
