"""Payloads in Ray's object store: how values become memory and memory becomes values again."""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray import cloudpickle

from headway.core.types_opaque import Payload
from headway.runtimes.shared_memory_transport import INLINE_BYTES, PayloadPickler

Parts = tuple[bytes, Sequence[bytes | memoryview | pickle.PickleBuffer]]
"""A payload: its pickled frame and the memory of its arrays."""


@dataclass(frozen=True, slots=True)
class RayRef:
    """Stands for a payload in the driver, which holds the object for it until released; a tiny one is `inline`."""

    serial: int
    size: int
    inline: Parts | None = None


class RayPickler(cloudpickle.CloudPickler):
    """Arrays and tensors out of band, as between processes; classes and functions as Ray sends them."""

    def reducer_override(self, value: object) -> Any:
        reduced = PayloadPickler.reducer_override(self, value)  # type: ignore[arg-type]
        return super().reducer_override(value) if reduced is NotImplemented else reduced


def encode_parts(payload: object) -> tuple[Parts, int]:
    """The parts of a payload, over its own memory, and their size."""
    buffers: list[pickle.PickleBuffer] = []
    header = io.BytesIO()
    RayPickler(header, 5, buffer_callback=buffers.append).dump(payload)
    raw = [buffer.raw() for buffer in buffers]
    size = header.tell() + sum(memory.nbytes for memory in raw)
    if size <= INLINE_BYTES:
        return (header.getvalue(), [bytes(memory) for memory in raw]), size
    return (header.getvalue(), raw), size


def decode_parts(parts: Parts, is_writable: bool) -> Payload:
    """The payload, its arrays over the memory of the parts."""
    header, buffers = parts
    views = [_open(buffer) for buffer in buffers]
    return pickle.loads(header, buffers=views if is_writable else [view.toreadonly() for view in views])


def _open(buffer: bytes | memoryview | pickle.PickleBuffer) -> memoryview:
    """A writable view: Ray marks its memory read-only, and neither torch nor code that works in place likes that."""
    if isinstance(buffer, bytes) or not memoryview(buffer).nbytes:
        return memoryview(bytearray(buffer))
    import numpy

    flat = numpy.frombuffer(memoryview(buffer), numpy.uint8)
    block = (ctypes.c_ubyte * flat.size).from_address(flat.ctypes.data)
    block.source = flat  # type: ignore[attr-defined]  # the memory stays while anything looks at the block
    return memoryview(block)
