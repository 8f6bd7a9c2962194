"""How weights lie end to end in a few large pieces of memory, so that they travel in a few large messages.

    name, dtype, shape of each tensor --> [ bucket 0: tensor | tensor | ... ][ bucket 1: ... ] ...

A bucket is bytes: tensors of any dtype lie in it one after another, each aligned. One that is larger than a bucket has
a bucket of its own. The layout follows from the names, dtypes and shapes alone, in their order: both ends agree on it
by telling each other those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.core.types_opaque import Weights

BUCKET_BYTES = 64 << 20
ALIGNMENT = 64
"""Of every tensor and bucket: every dtype can be read there, and a bucket is whole 8-byte words."""

Spec = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bucket: int
    start: int
    size: int


class BucketLayout:
    """Places of some tensors in buckets of at most `bucket_bytes`, as far as each fits one."""

    def __init__(self, specs: Sequence[Spec], bucket_bytes: int = BUCKET_BYTES) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be >= 1, received {bucket_bytes!r}")
        self.specs = tuple(specs)
        self.bucket_bytes = bucket_bytes
        self.sizes: list[int] = []  # of the buckets
        self.places = [self._put(*spec) for spec in self.specs]

    @classmethod
    def of(cls, weights: Mapping[str, Weights], bucket_bytes: int = BUCKET_BYTES) -> BucketLayout:
        for name, tensor in weights.items():
            if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
                raise TypeError(f"weights that are linked are dense tensors by name; {name} is {_kind(tensor)}")
        specs = [(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in weights.items()]
        return cls(specs, bucket_bytes)

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)

    def empty(self, device: torch.device | str) -> list[Tensor]:
        """Buckets of this layout, bytes [size] each."""
        return [torch.empty(size, dtype=torch.uint8, device=device) for size in self.sizes]

    def write(self, weights: Mapping[str, Tensor], buckets: Sequence[Tensor]) -> None:
        self.write_each(weights.items(), buckets)

    def write_each(self, weights: Iterable[tuple[str, Tensor]], buckets: Sequence[Tensor]) -> None:
        """Writes tensors as they come, in whatever order; no more than one of them is needed at a time."""
        places = {place.name: place for place in self.places}
        with torch.no_grad():
            for name, tensor in weights:
                self._view(places[name], buckets).copy_(tensor)

    def read(self, buckets: Sequence[Tensor]) -> dict[str, Tensor]:
        """The tensors, as views over the buckets."""
        return {place.name: self._view(place, buckets) for place in self.places}

    def _put(self, name: str, dtype_name: str, shape: Sequence[int]) -> TensorPlace:
        dtype = getattr(torch, dtype_name)
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // ALIGNMENT) * ALIGNMENT
        if not self.sizes or (self.sizes[-1] and self.sizes[-1] + room > self.bucket_bytes):
            self.sizes.append(0)
        start = self.sizes[-1]
        self.sizes[-1] += room
        return TensorPlace(name, dtype, tuple(shape), len(self.sizes) - 1, start, size)

    def _view(self, place: TensorPlace, buckets: Sequence[Tensor]) -> Tensor:
        flat = buckets[place.bucket][place.start : place.start + place.size]
        return flat.view(place.dtype).view(place.shape)


def checksum(bucket: Tensor) -> int:
    """A sum over the 8-byte words of a bucket: the same number wherever its bytes arrived."""
    return int(bucket.view(torch.int64).sum().item()) if bucket.numel() else 0


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(value: object) -> str:
    return f"a {value.layout} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
