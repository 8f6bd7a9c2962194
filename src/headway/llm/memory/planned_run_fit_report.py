"""Which processes share a place (a GPU, or the machine's memory), whether they fit, and what would help.

    Tenant: a role's process and its needs --> Place: the tenants of a GPU or of the host --> fits, is tight, or not

What is always held is exact, what comes and goes is an estimate: a place is refused only if it would not fit even where
the estimate is too high by `ESTIMATE_ERROR`, and it is tight from `TIGHT` of its room on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.llm.memory.roles_memory_items import RoleMemory, in_gb

ESTIMATE_ERROR = 0.1
TIGHT = 0.8
PROCESS_BYTES = 6 * 10**8
"""What a process takes of a GPU before it has a tensor: context, kernels, workspaces."""

Verdict = Literal["fits", "tight", "does not fit", "unknown"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """`count` processes of a role in one place. `reserves`: they take so much there whatever they need, and can do
    without the `spare` part of their needs (vLLM)."""

    memory: RoleMemory
    count: int = 1
    reserves: int = 0
    spare: int = 0

    @property
    def peak_bytes(self) -> int:
        return self.count * max(self.memory.peak_bytes - self.spare, self.reserves)

    @property
    def least_bytes(self) -> int:
        """What is needed even where the estimates are too high."""
        memory = self.memory
        coming = memory.peak_bytes - memory.held_bytes
        return self.count * max(memory.held_bytes - self.spare + int((1 - ESTIMATE_ERROR) * coming), self.reserves)


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU, or the memory of a machine, and who is in it. `room_bytes` is None where nobody knows it.

    `left_bytes` is what others leave of the room at the moment: less than is needed is a warning, for others may go.
    """

    name: str
    tenants: Sequence[Tenant]
    room_bytes: int | None
    is_gpu: bool = True
    left_bytes: int | None = None

    @property
    def overhead_bytes(self) -> int:
        return PROCESS_BYTES * sum(tenant.count for tenant in self.tenants) if self.is_gpu else 0

    @property
    def peak_bytes(self) -> int:
        return self.overhead_bytes + sum(tenant.peak_bytes for tenant in self.tenants)

    @property
    def verdict(self) -> Verdict:
        if self.room_bytes is None:
            return "unknown"
        if self.overhead_bytes + sum(tenant.least_bytes for tenant in self.tenants) > self.room_bytes:
            return "does not fit"
        is_taken = self.left_bytes is not None and self.peak_bytes > self.left_bytes
        return "tight" if is_taken or self.peak_bytes > TIGHT * self.room_bytes else "fits"

    @property
    def room_in_words(self) -> str:
        """`24.0 GB`, or `24.0 GB (6.1 GB left now)` where others have the rest and it matters."""
        room = in_gb(self.room_bytes or 0)
        if self.left_bytes is None or self.left_bytes >= min(self.peak_bytes, self.room_bytes or 0):
            return room
        return f"{room} ({in_gb(self.left_bytes)} left now)"

    def in_a_line(self) -> str:
        """`GPU 0: 2 x learner 2.9 GB + engine 1.2 GB = 7.6 GB of 150 GB`"""
        parts = [f"{_named(tenant)} {in_gb(tenant.peak_bytes // tenant.count)}" for tenant in self.tenants]
        room = "" if self.room_bytes is None else f" of {self.room_in_words}"
        total = f" = {in_gb(self.peak_bytes)}" if len(parts) > 1 or self.is_gpu else ""
        return f"{self.name}: {' + '.join(parts)}{total}{room}"


def _named(tenant: Tenant) -> str:
    return tenant.memory.role if tenant.count == 1 else f"{tenant.count} x {tenant.memory.role}"


def table_rows(places: Sequence[Place]) -> list[list[str]]:
    """Rows of a table: the place, the role, the item, when it is there, how much it takes. A row for each sum too."""
    rows: list[list[str]] = []
    for place in places:
        where = place.name
        for tenant in place.tenants:
            memory, who = tenant.memory, _named(tenant)
            lines = [(item, "always") for item in memory.held]
            lines += [(item, moment) for moment, items in memory.moments.items() for item in items]
            for item, when in lines:
                when = f"{when} (peak)" if when == memory.peak_moment else when
                rows.append([where, who, item.name, when, in_gb(item.num_bytes), item.note])
                where = who = ""
            peak = "its share" if tenant.reserves > memory.peak_bytes - tenant.spare else "at the peak"
            rows.append(["", "", peak, "", in_gb(tenant.peak_bytes), ""])
        if place.overhead_bytes:
            rows.append(["", "", "CUDA itself", "always", in_gb(place.overhead_bytes), ""])
        room = "" if place.room_bytes is None else f"of {place.room_in_words}: {place.verdict}"
        rows.append(["", "", "in all", "", in_gb(place.peak_bytes), room])
    return rows
