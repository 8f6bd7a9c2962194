"""Values survive the crossing; blocks are used again only when nobody looks at them."""

from __future__ import annotations

import gc
import os
import pickle
import random
import socket
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from system_limits import no_descriptor_left

from headway.runtimes.child_process_channel import LOST, Channel, Frame
from headway.runtimes.shared_memory_arena import FIRST_SEGMENT_BYTES, Arena, SharedRef, block_size
from headway.runtimes.shared_memory_loans import Loans
from headway.runtimes.shared_memory_transport import INLINE_BYTES, Views, encode

pytestmark = pytest.mark.timeout(30)


class Pair:
    """An arena and the views of a second process, without the process."""

    def __init__(self) -> None:
        self.arena = Arena(1)
        self.views = Views()

    def encode(self, value: object) -> SharedRef:
        ref: SharedRef = pickle.loads(pickle.dumps(encode(value, self.arena)))
        for segment in self.arena.new_segments:
            self.views.attach((1, segment.index), segment.fd, segment.size)
            os.close(segment.fd)
        self.arena.new_segments.clear()
        return ref


@pytest.fixture
def pair() -> Pair:
    return Pair()


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor) and left.dtype == right.dtype and left.shape == right.shape
        return left.detach().reshape(-1).view(torch.uint8).equal(right.detach().reshape(-1).view(torch.uint8))
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray) and left.dtype == right.dtype and left.shape == right.shape
        return left.tobytes() == right.tobytes() if not left.dtype.hasobject else left.tolist() == right.tolist()
    if isinstance(left, dict):
        assert isinstance(right, dict)
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        assert type(left) is type(right)
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


STRUCTURED = np.dtype([("position", "<f4", (3,)), ("done", "?")])
NUMPY_DTYPES = ["?", "i1", "u2", "<i4", ">i4", "i8", "f2", "f4", "f8", "c16", "S3", "U2", "M8[ns]", STRUCTURED]
TORCH_DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
    shape = draw(st.lists(st.integers(0, 12), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    array = np.zeros(shape, dtype)
    if dtype.kind in "biufc":
        array[...] = rng.integers(0, 2, shape)
    layout = draw(st.sampled_from(["C", "F", "strided", "reversed", "transposed"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided":
        return array[::2] if array.ndim else array
    if layout == "reversed":
        return array[..., ::-1] if array.ndim else array
    return array.swapaxes(0, -1) if layout == "transposed" and array.ndim else array


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    shape = draw(st.lists(st.integers(0, 12), max_size=3))
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))).to(dtype)
    return tensor.transpose(0, -1) if tensor.ndim and draw(st.booleans()) else tensor


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=9) | st.binary(max_size=3000) | arrays() | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(value=values, is_writable=st.booleans())
def test_a_nested_value_survives_the_crossing(value: object, is_writable: bool) -> None:
    pair = Pair()
    ref = pair.encode(value)
    assert (ref.serial == 0) == (len(ref.inline) > 0)
    assert same(value, pair.views.open(ref, is_writable))
    assert same(value, pair.views.copy(ref))


@pytest.mark.parametrize("size", [3, 5000])
def test_arrays_are_read_only_or_writable_as_asked_and_tensors_always_writable(pair: Pair, size: int) -> None:
    ref = pair.encode({"array": np.zeros(size), "tensor": torch.zeros(size)})
    read_only = pair.views.open(ref, is_writable=False)
    assert not read_only["array"].flags.writeable
    read_only["tensor"][1] = 1.0
    writable = pair.views.open(ref, is_writable=True)
    writable["array"][2] = 2.0
    assert read_only["array"][2] == (2.0 if ref.serial else 0.0)


def test_a_parameter_stays_one_and_other_tensors_come_out_detached(pair: Pair) -> None:
    linear = torch.nn.Linear(40, 40)
    graph = (linear.weight * 2).sum(0)
    module, frozen, loose = pair.views.open(
        pair.encode((linear, torch.nn.Parameter(torch.ones(3), requires_grad=False), graph)), is_writable=False
    )
    assert isinstance(module.weight, torch.nn.Parameter) and module.weight.requires_grad
    assert isinstance(frozen, torch.nn.Parameter) and not frozen.requires_grad
    assert not loose.requires_grad and loose.equal(graph.detach())
    module(torch.ones(40)).sum().backward()
    assert module.weight.grad is not None


@dataclass(frozen=True, slots=True)
class Record:
    obs: np.ndarray
    masks: np.ndarray | None = None
    number: int | None = None


def test_a_record_of_arrays_crosses_as_a_dictionary_does(pair: Pair) -> None:
    for masks in (None, np.ones(300, bool)):
        for number in range(3):  # the first writes the layout, the others use it
            ref = pair.encode(Record(np.full(500, number, np.float32), masks))
            came = pair.views.open(ref, is_writable=False)
            assert type(came) is Record
            assert (came.obs == number).all() and not came.obs.flags.writeable
            assert same(came.masks, masks)
    assert len(ref.sizes) == 3, "a header and two arrays, written where they are read"
    with_number = pair.views.open(pair.encode(Record(np.zeros(500), None, 7)), is_writable=True)
    assert (with_number.number, with_number.obs.flags.writeable) == (7, True)


def test_one_tensor_seen_twice_is_written_once(pair: Pair) -> None:
    weight = torch.zeros(1000)
    ref = pair.encode({"embedding": weight, "head": weight})
    assert sum(ref.sizes) < 5000
    value = pair.views.open(ref, is_writable=True)
    assert value["embedding"] is value["head"]


def test_a_slice_does_not_drag_its_whole_storage_along(pair: Pair) -> None:
    assert sum(pair.encode(torch.zeros(1 << 20)[:300]).sizes) < 2000


def test_big_headers_are_kept_out_of_the_ref(pair: Pair) -> None:
    ref = pair.encode(["word"] * 9000 + [b"x" * 100_000])
    assert ref.serial and len(pickle.dumps(ref)) < 200


def test_a_copy_is_private(pair: Pair) -> None:
    ref = pair.encode(np.zeros(1000))
    copy = pair.views.copy(ref)
    copy[:] = 1.0
    assert pair.views.open(ref, is_writable=False).sum() == 0
    assert pair.views.settle() == ([], [])


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_a_lease_ends_with_the_last_view_derived_from_it(pair: Pair, kind: object) -> None:
    assert callable(kind)
    ref = pair.encode({"x": kind(np.arange(1000.0)), "y": kind(np.arange(1000.0))})
    value = pair.views.open(ref, is_writable=False)
    kept = value["x"].reshape(10, 100)[3:, ::2]
    del value
    assert pair.views.settle() == ([ref.key], [])
    assert pair.views.settle() == ([], [])
    del kept
    assert pair.views.settle() == ([], [ref.key])
    assert pair.views.settle() == ([], [])


def test_a_view_in_a_cycle_is_let_go_when_the_cycle_is_collected(pair: Pair) -> None:
    ref = pair.encode(np.arange(1000.0))
    cycle: list[object] = [pair.views.open(ref, is_writable=True)]
    cycle.append(cycle)
    del cycle
    assert pair.views.settle() == ([ref.key], [])
    gc.collect()
    assert pair.views.settle() == ([], [ref.key])


@given(size=st.integers(INLINE_BYTES, 1 << 40))
def test_a_size_class_wastes_at_most_an_eighth(size: int) -> None:
    block = block_size(size)
    assert size <= block <= size * 1.125 + 64
    assert block % 64 == 0 and block_size(block) == block


def test_an_arena_with_frees_stays_at_its_high_water_mark() -> None:
    arena, rng = Arena(1), random.Random(0)
    live: list[SharedRef] = []
    for _ in range(20_000):
        live.append(encode(bytes(rng.randrange(2_000, 60_000)), arena))
        if len(live) > 20:
            arena.free(live.pop(rng.randrange(len(live))).serial)
    assert arena.capacity_bytes <= 3 * FIRST_SEGMENT_BYTES
    for segment in arena.new_segments:
        os.close(segment.fd)


def test_a_value_larger_than_a_segment_gets_its_own() -> None:
    pair = Pair()
    value = np.ones(3 * FIRST_SEGMENT_BYTES, np.uint8)
    assert pair.views.open(pair.encode(value), is_writable=True).sum() == value.size


STEPS = ["make", "lend", "back", "keep", "release", "leave"]


@given(operations=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7))))
def test_a_block_is_free_exactly_when_released_and_back(operations: list[tuple[str, int]]) -> None:
    """Against a model that keeps plain lists: who borrows what, what is released, what was freed."""
    loans, maker = Loans(), Arena(1)
    loans.join(1)
    made: list[SharedRef] = []
    borrowed: dict[int, list[tuple[int, int]]] = {}
    released: set[tuple[int, int]] = set()
    freed: list[int] = []
    for step, pick in operations:
        reader = 2 + pick % 3
        if reader not in borrowed:
            loans.join(reader)
            borrowed[reader] = []
        if step == "make":
            ref = encode(bytes(5000), maker)
            loans.adopt(1, maker.new_segments)
            maker.new_segments.clear()
            made.append(loans.register(ref))
        elif step == "leave":
            loans.leave(reader)
            del borrowed[reader]
        elif step == "back" and borrowed[reader]:
            loans.settle(reader, [borrowed[reader].pop(pick % len(borrowed[reader]))], [], [])
        elif made:
            ref = made[pick % len(made)]
            if step == "release":
                loans.release(ref)
                released.add(ref.key)
            elif step in ("lend", "keep") and ref.key not in released:
                (key,) = loans.lend([ref], reader).lent
                borrowed[reader].append(key)
                if step == "keep":
                    loans.settle(reader, [key], [key], [])
        freed += loans.lend([], 1).frees
        in_use = {key for keys in borrowed.values() for key in keys}
        assert sorted(freed) == sorted(key[1] for key in released - in_use)
    loans.close()


def test_an_orphaned_segment_is_dropped_with_its_last_block() -> None:
    loans, maker = Loans(), Arena(1)
    loans.join(1)
    loans.join(2)
    refs = [encode(bytes([number]) * 5000, maker) for number in range(2)]
    loans.adopt(1, maker.new_segments)
    for ref in refs:
        loans.register(ref)
    parcel = loans.lend(refs, 2)
    assert [key for key, _ in parcel.segments] == [(1, 0)] and len(parcel.fds) == 1
    loans.leave(1)
    assert loans.copy(refs[1]) == bytes([1]) * 5000
    for ref in refs:
        loans.release(ref)
    assert loans.lend([], 2).dropped == []
    loans.settle(2, parcel.lent, [], [])
    assert loans.lend([], 2).dropped == [(1, 0)]
    with pytest.raises(OSError):
        os.fstat(parcel.fds[0])
    with pytest.raises(ValueError, match="released"):
        loans.copy(refs[0])


def test_frames_arrive_whole_in_order_and_with_their_descriptors() -> None:
    left, right = map(Channel, socket.socketpair())
    read, write = os.pipe()
    bodies = [b"", b"a" * 5, b"b" * 100_000, b"c"]
    left.send(bodies[0])
    left.send(bodies[1], [write])
    got: list[Frame] = []
    while len(got) < 2:
        got += right.receive()
    left.send(bodies[2])
    left.send(bodies[3])
    while len(got) < 4:
        got += right.receive()
    assert [body for body, _ in got] == bodies
    assert [len(fds) for _, fds in got] == [0, 1, 0, 0]
    os.write(got[1][1][0], b"x")
    assert os.read(read, 1) == b"x"
    left.close()
    with pytest.raises(EOFError):
        right.receive()
    right.close()
    for fd in (read, write, got[1][1][0]):
        os.close(fd)


def test_a_frame_whose_descriptors_did_not_fit_says_that_they_are_lost() -> None:
    left, right = map(Channel, socket.socketpair())
    with right.sock, left.sock:
        with no_descriptor_left():
            left.send(b"before")
            left.send(b"with two", [0, 1])
            left.send(b"without")
            got: list[Frame] = []
            while len(got) < 3:
                got += right.receive()
        assert got == [(b"before", []), (b"with two", LOST), (b"without", [])]
        left.send(b"later", [0])  # nobody could say which frame a descriptor belongs to from now on
        assert right.receive() == [(b"later", LOST)]
        left.close()
        right.close()
