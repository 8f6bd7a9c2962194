"""How big values cross from one process to another: once through shared memory, by reference.

      producer                            driver                        consumer
      encode(value, arena) ----ref---->   passes it on   ----ref---->   Views.open(ref): arrays over the block
        |  a block in a segment           (holds the fd)                  |  a lease, alive while any array is
        v                                                                 v
      arena.free(serial)   <--free-----   when released  <--let go---   Views.settle()

A *segment* is anonymous memory (a memfd): whatever is killed, nothing stays behind in the file system, and
what a dead process wrote lives on while the driver holds the descriptor. A *block* is a piece of a segment;
it holds one pickled value, header first, then its out-of-band buffers, each aligned. A `SharedRef` names a
block (or carries a small value in itself) and is all that the sockets ever see.

Invariants: a block has one owner, the arena that made it; a serial is never used twice; a block is written
before its ref leaves and not again until its owner is told that nobody looks at it any more.
"""

from __future__ import annotations

import ctypes
import functools
import io
import itertools
import mmap
import pickle
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from headway.runtimes.shared_memory_arena import ALIGNMENT, Arena, BlockKey, SegmentKey, SharedRef

INLINE_BYTES = 1024
"""Values up to this size travel in the ref: frames stay small, and most calls need no block at all."""


# ---------------------------------------------------------------------------------------- values <-> bytes


class PayloadPickler(pickle.Pickler):
    """Keeps the bytes of arrays and tensors out of the header, also where their own pickling would not."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and kind is numpy.ndarray:
            dtype = value.dtype
            if dtype.hasobject:
                return NotImplemented
            if not value.flags.forc:
                value = numpy.ascontiguousarray(value)
            if dtype.isbuiltin != 1 or dtype.kind not in "biufc":
                return value.__reduce_ex__(5)
            # A plain dtype goes by its letter: numpy's own pickling of it takes longer than all the rest.
            order = "C" if value.flags.c_contiguous else "F"
            return kind, (value.shape, dtype.char, pickle.PickleBuffer(value), 0, None, order)
        if torch is None or (kind is not torch.Tensor and kind is not torch.nn.Parameter):
            return NotImplemented
        if value.layout is not torch.strided:
            return NotImplemented
        # As bytes, because numpy has no bfloat16; on the CPU, because no CUDA handle may cross.
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        requires_grad = value.requires_grad if kind is torch.nn.Parameter else None
        return _rebuild_tensor, (pickle.PickleBuffer(flat), value.dtype, tuple(value.shape), requires_grad)


def _rebuild_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool | None) -> Any:
    """A tensor over `buffer`. A parameter stays one; any other tensor (None) comes out detached."""
    import numpy
    import torch

    flat = numpy.frombuffer(buffer, numpy.uint8)
    if not flat.flags.writeable:
        # torch knows no read-only memory and warns of it: go back to the writable block `buffer` was cut from.
        whole = numpy.frombuffer(buffer.obj, numpy.uint8)
        start = flat.ctypes.data - whole.ctypes.data
        flat = whole[start : start + flat.size]
    tensor = torch.from_numpy(flat).view(dtype).reshape(shape)
    return tensor if requires_grad is None else torch.nn.Parameter(tensor, requires_grad)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a dictionary or a record of plain arrays lies in a block: worth remembering, for rollouts are all alike."""

    header: bytes
    sizes: tuple[int, ...]
    total: int
    starts: tuple[int, ...]  # of each array
    kind: type  # dict, or the class of the record
    items: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, letter of the dtype, shape; no letter: None


_LAYOUTS: dict[Any, _Layout | None] = {}  # by what the arrays are like, and by header (None: not flat)
_MAX_LAYOUTS = 512
_LETTERS: dict[Any, str] = {}  # by dtype
_NAMES: dict[type, tuple[str, ...]] = {}  # of the fields, by class; none if it is no frozen dataclass
_PLAIN_LETTERS = frozenset("?bBhHiIlLqQefdFD")


def _describe(value: Any) -> tuple[tuple[type, tuple[tuple[str, str, tuple[int, ...]], ...]], list[Any]] | None:
    """What a dictionary or a frozen dataclass of plain contiguous arrays is like, and the arrays; None for all else."""
    numpy, kind = sys.modules.get("numpy"), type(value)
    if numpy is None:
        return None
    pairs = value.items() if kind is dict else [(name, getattr(value, name)) for name in _names(kind)]
    ndarray, items, arrays = numpy.ndarray, [], []
    for name, array in pairs:
        if array is None and kind is not dict:
            items.append((name, "", ()))
            continue
        if type(array) is not ndarray or type(name) is not str:
            return None
        letter = _LETTERS.get(array.dtype)
        if letter is None:
            letter = _LETTERS[array.dtype] = _letter(array.dtype)
        if not (letter and array.flags.c_contiguous and array.size):
            return None
        items.append((name, letter, array.shape))
        arrays.append(array)
    return ((kind, tuple(items)), arrays) if arrays else None


def _names(kind: type) -> tuple[str, ...]:
    names = _NAMES.get(kind)
    if names is None:
        parameters = getattr(kind, "__dataclass_params__", None)
        is_record = parameters is not None and parameters.frozen and not hasattr(kind, "__post_init__")
        names = _NAMES[kind] = tuple(field.name for field in fields(kind)) if is_record else ()
    return names


def _letter(dtype: Any) -> str:
    """The letter of a plain dtype in this machine's byte order; nothing for any other."""
    return str(dtype.char) if dtype.char in _PLAIN_LETTERS and dtype.isnative else ""


def _remember(key: Any, layout: _Layout | None) -> None:
    if len(_LAYOUTS) < _MAX_LAYOUTS:
        _LAYOUTS[key] = layout


def encode(value: Any, arena: Arena) -> SharedRef:
    """Write `value` into a block of `arena`, or into the ref when it is small."""
    described = _describe(value)
    layout = _LAYOUTS.get(described[0]) if described else None
    if layout is not None and described is not None:
        ref, memory = arena.allocate(layout.sizes, layout.total)
        memory[: len(layout.header)] = layout.header
        for array, start in zip(described[1], layout.starts, strict=True):
            memory[start : start + array.nbytes] = memoryview(array).cast("B")
        return ref
    buffers: list[pickle.PickleBuffer] = []
    header = io.BytesIO()
    PayloadPickler(header, 5, buffer_callback=buffers.append).dump(value)
    parts = [header.getbuffer(), *(buffer.raw() for buffer in buffers)]
    sizes = tuple([part.nbytes for part in parts])
    total = _extent(sizes)
    if total > INLINE_BYTES:
        ref, memory = arena.allocate(sizes, total)
        _write(parts, memory)
        if described and len(sizes) == len(described[1]) + 1:  # the same array twice is written once
            _remember(described[0], _layout(bytes(parts[0]), sizes, *described[0]))
        return ref
    inline = bytearray(total)
    _write(parts, memoryview(inline))
    return SharedRef(arena.owner, 0, 0, 0, total, sizes, bytes(inline))


def _layout(
    header: bytes, sizes: tuple[int, ...], kind: type, items: tuple[tuple[str, str, tuple[int, ...]], ...]
) -> _Layout:
    ends = list(itertools.accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))
    return _Layout(header, sizes, ends[-1], tuple(ends[:-1]), kind, items)


def _write(parts: Sequence[memoryview], memory: memoryview) -> None:
    start = 0
    for part in parts:
        memory[start : start + part.nbytes] = part
        start += -(-part.nbytes // ALIGNMENT) * ALIGNMENT


def _split(memory: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    parts, start = [], 0
    for size in sizes:
        parts.append(memory[start : start + size])
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return parts


def _extent(sizes: Sequence[int]) -> int:
    return sum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes])


# ---------------------------------------------------------------------------------------- looking at it


@functools.cache
def _block_type(size: int) -> Any:
    return ctypes.c_ubyte * size


class _Lease(weakref.ref):
    """Ends when the last array over its block is gone."""

    __slots__ = ("key",)
    key: BlockKey


def _lay_out(layout: _Layout, block: Any, is_writable: bool) -> Any:
    """The arrays of a dictionary or a record over `block`, without asking pickle again."""
    ndarray = sys.modules["numpy"].ndarray
    value, starts = dict[str, Any](), iter(layout.starts)
    for name, letter, shape in layout.items:
        if not letter:
            value[name] = None
            continue
        array = value[name] = ndarray(shape, letter, block, next(starts))
        if not is_writable:
            array.flags.writeable = False
    return value if layout.kind is dict else layout.kind(**value)


class Views:
    """The segments one process has mapped, and which of their blocks something there still looks at.

    Every array cut from a block keeps one small ctypes object alive; a weak reference to that tells when
    the last of them is gone, wherever they were copied, sliced or wrapped to. Any thread may open and any may drop
    the last array, at any moment; `settle` is for one at a time.
    """

    def __init__(self) -> None:
        self._segments: dict[SegmentKey, mmap.mmap] = {}
        self._opened: deque[_Lease] = deque()  # since the last settle()
        self._kept: dict[int, _Lease] = {}  # alive at an earlier settle(), by id
        self._let_go: deque[BlockKey] = deque()

    def attach(self, key: SegmentKey, fd: int, size: int) -> None:
        self._segments[key] = mmap.mmap(fd, size)

    def detach(self, key: SegmentKey) -> None:
        """Unmapped when the last array over it is gone: now, as a rule."""
        del self._segments[key]

    def open(self, ref: SharedRef, is_writable: bool) -> Any:
        """The value, its arrays over the block itself."""
        if ref.serial:
            segment = self._segments[ref.owner, ref.segment]
            block = _block_type(ref.size).from_buffer(segment, ref.offset)
            lease = _Lease(block, self._end)
            lease.key = ref.key
            self._opened.append(lease)
            memory = memoryview(block)
            layout = _LAYOUTS.get(bytes(memory[: ref.sizes[0]]))
            if layout is not None:
                return _lay_out(layout, block, is_writable)
        else:
            memory = memoryview(bytearray(ref.inline))
        header, *buffers = _split(memory if is_writable else memory.toreadonly(), ref.sizes)
        value = pickle.loads(header, buffers=buffers)
        if ref.serial:
            described = _describe(value)
            if described and len(ref.sizes) == len(described[1]) + 1:
                _remember(bytes(header), _layout(bytes(header), ref.sizes, *described[0]))
        return value

    def copy(self, ref: SharedRef) -> Any:
        """The value, in memory of its own."""
        memory = memoryview(ref.inline)
        if ref.serial:
            memory = memoryview(self._segments[ref.owner, ref.segment])[ref.offset :]
        header, *buffers = _split(memory, ref.sizes)
        return pickle.loads(header, buffers=map(bytearray, buffers))

    def settle(self) -> tuple[list[BlockKey], list[BlockKey]]:
        """(opened since the last settle and still looked at, reported so before and now let go)."""
        held = []
        for _ in range(len(self._opened)):
            lease = self._opened.popleft()
            self._kept[id(lease)] = lease  # before the look: the collector of garbage may run at any point
            if lease() is not None or self._kept.pop(id(lease), None) is None:
                held.append(lease.key)
        return held, [self._let_go.popleft() for _ in range(len(self._let_go))]

    def _end(self, lease: _Lease) -> None:
        if self._kept.pop(id(lease), None) is not None:
            self._let_go.append(lease.key)
