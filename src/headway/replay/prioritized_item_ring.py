"""The ring that a replay keeps its items in.

    id      0  1  2 | 3  4  5  6  7  8  9 | 10 ...      ids count the items ever inserted
            gone    | live: the last `capacity` ids | not yet given out
    slot    id % capacity

An id is generation * capacity + slot, so it names one item for ever: a slot that has been overwritten has a
newer id, and whatever comes late for the old one is told apart by comparing two numbers.

An item is one packed record, because a draw costs a cache miss per place it reads, not per byte:

    record  | version | fields, the widest elements first | padding |

The widest first leaves no gaps between fields. So the columns that B records are read into, one behind the
other, begin at B times the offsets, and are as well aligned as the fields.

Invariant: an insert that is refused has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, DTypeLike

from headway.core.types import State

Items = dict[str, np.ndarray]
Spec = Mapping[str, tuple[tuple[int, ...], DTypeLike]]

_VERSION = "__version__"  # the record's own field, not one of the caller's
_LINE = 64  # bytes the memory delivers at once


@dataclass(frozen=True, slots=True)
class DrawnItems:
    """What one draw brings: fresh arrays, the caller's to keep."""

    ids: np.ndarray  # [B] int64: hand them back to `update`
    items: Items  # each [B, ...]
    weights: np.ndarray  # [B] float32: each sample's own importance weight, at most 1; multiply losses, then average
    versions: np.ndarray  # [B] int64: the policy version that made each item
    staleness: np.ndarray | None  # [B] int64: the version being trained minus `versions`, when it was given


@dataclass(frozen=True, slots=True)
class ReplayStatistics:
    size: int
    capacity: int
    bytes: int
    inserted: int
    late_updates: int
    """Priorities that came after their item had been overwritten, and were ignored."""
    total_priority: float
    max_priority: float


class Field(NamedTuple):
    """Where one field lies in a record."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def lay_out(spec: Spec) -> tuple[tuple[Field, ...], int]:
    """The fields of a record, the version first, and the record's size in bytes."""
    whole = {_VERSION: ((), np.dtype(np.int64))} | {name: (shape, np.dtype(d)) for name, (shape, d) in spec.items()}
    fields, offset = [], 0
    for name, (shape, dtype) in sorted(whole.items(), key=lambda item: -item[1][1].alignment):
        if dtype.hasobject:
            raise TypeError(f"field {name!r} holds Python objects; a replay keeps plain arrays")
        fields.append(Field(name, tuple(shape), dtype, offset))
        offset += fields[-1].nbytes
    if offset <= _LINE:  # as a power of two it never straddles two cache lines
        return tuple(fields), 1 << (offset - 1).bit_length()
    return tuple(fields), offset + -offset % 8


class ItemRing:
    """The last `capacity` items, oldest overwritten first. Its layout comes from `spec` or the first insert."""

    def __init__(self, capacity: int, spec: Spec | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, received {capacity!r}")
        self.capacity = capacity
        self.end = 0  # the id the next item gets
        self._fields: tuple[Field, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._views: Items = {}  # each [capacity, ...], strided over the records
        if spec is not None:
            self._allocate(spec)

    def __len__(self) -> int:
        return min(self.end, self.capacity)

    @property
    def nbytes(self) -> int:
        return self._records.nbytes if self._fields else 0

    @property
    def versions(self) -> np.ndarray:  # [capacity] int64
        return self._views[_VERSION]

    def _allocate(self, spec: Spec) -> None:
        self._fields, stride = lay_out(spec)
        self._names = frozenset(spec)
        spare = np.zeros(self.capacity * stride + _LINE, np.uint8)  # untouched pages cost nothing
        skip = -spare.ctypes.data % _LINE
        self._records = spare[skip : skip + self.capacity * stride]
        self._views = {
            field.name: np.ndarray(
                (self.capacity, *field.shape),
                field.dtype,
                self._records,
                field.offset,
                (stride, *np.empty(field.shape, field.dtype).strides),
            )
            for field in self._fields
        }
        self._stride = stride
        self._copies = np.array([_in_words(field, stride) for field in self._fields], np.int64)  # [fields, 4]

    def check(self, items: Mapping[str, ArrayLike], version: ArrayLike) -> tuple[Items, np.ndarray]:
        """The items and their versions, [N] or [], as arrays that `append` can take, or an error."""
        arrays = {name: np.asarray(values) for name, values in items.items()}
        num = num_items(arrays)
        if num > self.capacity:
            raise ValueError(f"capacity {self.capacity} cannot take {num} items at once")
        if _VERSION in arrays:
            raise ValueError(f"the field name {_VERSION!r} is taken")
        if self._names and arrays.keys() != self._names:
            raise ValueError(f"fields must be {sorted(self._names)}, received {sorted(arrays)}")
        for name, values in arrays.items():
            here = self._views.get(name, values)
            if values.shape != (num, *here.shape[1:]) or not _fits(values.dtype, here.dtype):
                raise ValueError(
                    f"field {name!r} must be {here.dtype} {[num, *here.shape[1:]]}, "
                    f"received {values.dtype} {list(values.shape)}"
                )
        versions = np.asarray(version)
        low = versions.min(initial=0) if versions.ndim else versions
        if versions.dtype.kind not in "iu" or versions.shape not in ((), (num,)) or low < 0:
            raise ValueError(f"version must be an integer >= 0, or {num} of them, received {version!r}")
        return arrays, versions

    def append(self, arrays: Items, versions: np.ndarray) -> np.ndarray:
        """Write what `check` returned; the ids [N]."""
        if not self._fields:
            self._allocate({name: (values.shape[1:], values.dtype) for name, values in arrays.items()})
        num, slot = num_items(arrays), self.end % self.capacity
        head = min(num, self.capacity - slot)  # the rest wraps around
        for name, values in (*arrays.items(), (_VERSION, versions)):
            view = self._views[name]
            view[slot : slot + head] = values[:head] if values.ndim else values
            if head < num:
                view[: num - head] = values[head:] if values.ndim else values
        self.end += num
        return np.arange(self.end - num, self.end)

    def read(self, slots: np.ndarray) -> tuple[np.ndarray, Items, np.ndarray]:
        """The ids, the fields and the versions of the items in `slots` [B]; all fields in one pass."""
        num = len(slots)
        out = np.empty(num * self._stride, np.uint8)
        ids = _read(self._records, self._copies, slots, out, self.end, self.capacity)
        fields = {f.name: np.ndarray((num, *f.shape), f.dtype, out, num * f.offset) for f in self._fields}
        return ids, fields, fields.pop(_VERSION)

    def locate(self, ids: ArrayLike) -> tuple[np.ndarray, int]:
        """The slots [N] of `ids` [N], -1 where the item has been overwritten, and how many are such."""
        wanted = np.array(ids, np.int64, ndmin=1)  # a copy: read-only arrays would be compiled for again
        slots, late, unknown = _locate(wanted, self.end, self.capacity)
        if unknown >= 0:
            raise ValueError(f"id {wanted[unknown]} at position {unknown} was never given out")
        return slots, late

    def state_dict(self) -> State:
        return {"end": self.end, "fields": {name: view[: len(self)].copy() for name, view in self._views.items()}}

    def load_state_dict(self, state: State) -> None:
        fields = dict(state["fields"])
        self.end, self._fields, self._names, self._views = state["end"], (), frozenset(), {}
        if fields:
            versions = fields.pop(_VERSION)
            self._allocate({name: (values.shape[1:], values.dtype) for name, values in fields.items()})
            for name, values in (*fields.items(), (_VERSION, versions)):
                self._views[name][: len(values)] = values


def num_items(arrays: Items) -> int:
    for name, values in arrays.items():
        if values.ndim == 0:
            raise ValueError(f"field {name!r} must be an array [N, ...]")
        return len(values)
    raise ValueError("no fields to insert")


def _fits(received: np.dtype, kept: np.dtype) -> bool:
    return received == kept or np.can_cast(received, kept, "same_kind")


def _in_words(field: Field, stride: int) -> tuple[int, int, int, int]:
    """The widest word a field can be copied with: its bytes; then in such words offset, record, field."""
    word = next(word for word in (8, 4, 1) if field.nbytes % word == 0 and field.offset % word == 0)
    return word, field.offset // word, stride // word, field.nbytes // word


@njit(cache=True, nogil=True)
def _read(records, copies, slots, out, end, capacity):
    """Copy the records in `slots` [B] to the columns of `out`, by words; their ids [B]."""
    for f in range(copies.shape[0]):
        word, offset, stride, width = copies[f]
        if word == 8:
            _copy(records.view(np.uint64), offset, stride, width, slots, out.view(np.uint64))
        elif word == 4:
            _copy(records.view(np.uint32), offset, stride, width, slots, out.view(np.uint32))
        else:
            _copy(records, offset, stride, width, slots, out)
    ids = np.empty(slots.size, np.int64)
    begin = end - end % capacity  # the id of slot 0 in the newest generation
    for n in range(slots.size):
        ids[n] = begin + slots[n] - (capacity if begin + slots[n] >= end else 0)
    return ids


@njit(cache=True, nogil=True)
def _copy(source, offset, stride, width, slots, target):
    words = np.uint64(width)  # unsigned: an index that might be negative keeps the loop from being vectorised
    start = np.uint64(slots.size * offset)
    for n in range(slots.size):
        at = np.uint64(slots[n] * stride + offset)
        for k in range(words):
            target[start + k] = source[at + k]
        start += words


@njit(cache=True, nogil=True)
def _locate(ids, end, capacity):
    """Slots [N] with -1 for those overwritten, their number, and the first position with an unknown id or -1."""
    slots = np.empty(ids.size, np.int64)
    late, unknown = 0, -1
    for n in range(ids.size - 1, -1, -1):
        slots[n] = ids[n] % capacity
        if ids[n] < end - capacity:
            slots[n] = -1
            late += 1
        if ids[n] < 0 or ids[n] >= end:
            unknown = n
    return slots, late, unknown


def check_draw(batch_size: int, ring: ItemRing) -> None:
    if not 1 <= batch_size <= ring.capacity:
        raise ValueError(f"batch_size must be >= 1 and at most the capacity, {ring.capacity}, received {batch_size!r}")
    if not len(ring):
        raise ValueError("nothing to draw: the replay is empty")


def staleness_of(versions: np.ndarray, version: int | None) -> np.ndarray | None:
    return None if version is None else version - versions
