"""What a role holds in memory, as items that add up: some always, some only in one moment of its work.

peak = what is always held + the moment that needs most         learning | adding up | publishing | saving | ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GB = 10**9


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One thing in memory and how many bytes it takes."""

    name: str
    num_bytes: int
    note: str = ""

    def __post_init__(self) -> None:
        if self.num_bytes < 0:
            raise ValueError(f"{self.name} cannot take {self.num_bytes} bytes")


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """What one process of a role needs, on the device it computes on or in the machine's own memory."""

    role: str
    held: Sequence[MemoryItem]
    moments: Mapping[str, Sequence[MemoryItem]] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        return _sum(self.held)

    @property
    def peak_moment(self) -> str:
        """The moment that needs most; empty where nothing comes and goes."""
        return max(self.moments, key=lambda name: _sum(self.moments[name]), default="")

    @property
    def peak_bytes(self) -> int:
        return self.held_bytes + max((_sum(items) for items in self.moments.values()), default=0)

    def bytes_of(self, name: str) -> int:
        """Of the items with this name, wherever they stand."""
        items = [*self.held, *(item for some in self.moments.values() for item in some)]
        return sum(item.num_bytes for item in items if item.name == name)


def _sum(items: Sequence[MemoryItem]) -> int:
    return sum(item.num_bytes for item in items)


def items_of(*pairs: tuple[str, int] | tuple[str, int, str]) -> tuple[MemoryItem, ...]:
    """Items of names, bytes and notes; what takes nothing is left out."""
    return tuple(MemoryItem(*pair) for pair in pairs if pair[1])


def in_gb(num_bytes: float) -> str:
    """`30.5 GB`; below one `0.54 GB`, below a hundredth in megabytes."""
    gb = num_bytes / GB
    if gb >= 100:
        return f"{gb:.0f} GB"
    return f"{gb:.1f} GB" if gb >= 1 else f"{gb:.2f} GB" if gb >= 0.01 else f"{gb * 1000:.1f} MB"
