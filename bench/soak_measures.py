"""What a run and its processes hold, from /proc and from its folder; and whether that grows.

    processes --sample--> numbers by name, every few seconds --> Series --> start, quarters, end, slope +- uncertainty

The slope is that of the last three quarters: the first is for warming up. Its uncertainty comes from the means of
`BLOCKS` stretches, so that what swings slowly does not pass for many independent measurements.

What warms up for longer than a quarter grows less and less. Of the three thirds of the blocks the last must have grown
by less than `SETTLES` of what the one before did, by more than chance: neither a line nor a flight of stairs does that.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MIB = 2**20
BLOCKS = 12
T_95 = 2.23
"""Of Student's distribution with BLOCKS - 2 degrees of freedom, both sides."""
WARM_UP = 0.25
SETTLES = 0.6
LEAST = 0.05
"""MiB or things: what has grown by less has not grown."""


def family(pid: int) -> list[int]:
    """The processes below this one."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _text(tasks).split():
            found += [int(child), *family(int(child))]
    return found


def _text(path: Path) -> str:
    """Empty where the process is gone."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def of_process(pid: int) -> Counter[str]:
    """Bytes of memory, descriptors and threads of one process."""
    memory, status = _text(Path(f"/proc/{pid}/smaps_rollup")), _text(Path(f"/proc/{pid}/status"))
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        descriptors = 0
    sizes = {name.lower(): _field(memory, name) * 1024 for name in ("Rss", "Pss")}
    return Counter(sizes | {"descriptors": descriptors, "threads": _field(status, "Threads")})


def shared_memory(pids: Iterable[int]) -> Counter[str]:
    """Files in /dev/shm and anonymous ones that these processes have open or mapped, each once."""
    pids = list(pids)
    seen = {number: (path, size) for pid in pids for path, number, size in _opened(pid)}
    for pid in pids:
        for path, number, size in _mapped(pid):  # whose file may be closed: as large as what is mapped of it
            seen.setdefault(number, (path, size))
    found = Counter({"memfd files": 0, "memfd bytes": 0, "/dev/shm files": 0, "/dev/shm bytes": 0})
    for path, size in seen.values():
        kind = "memfd" if path.startswith("/memfd:") else "/dev/shm"
        found.update({f"{kind} files": 1, f"{kind} bytes": size})
    return found


def _is_shared(path: str) -> bool:
    return path.startswith(("/memfd:", "/dev/shm/"))


def _opened(pid: int) -> Iterator[tuple[str, int, int]]:
    """Path, inode and bytes in memory of each."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        link = f"/proc/{pid}/fd/{number}"
        try:
            path = os.readlink(link)
            if _is_shared(path):
                known = os.stat(link)
                yield path, known.st_ino, known.st_blocks * 512
        except OSError:
            continue


def _mapped(pid: int) -> Iterator[tuple[str, int, int]]:
    for line in _text(Path(f"/proc/{pid}/maps")).splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and _is_shared(parts[5]):
            begin, end = (int(place, 16) for place in parts[0].split("-"))
            yield parts[5], int(parts[4]), end - begin


KINDS = ("events", "metrics", "samples", "run.log", "tensorboard", "checkpoints")


def on_disk(folder: Path) -> Counter[str]:
    """Bytes of a run's folder by what they are of; `archive` and `roles` are the soak's own."""
    sizes = Counter(dict.fromkeys((*KINDS, "other files"), 0))
    for path in folder.rglob("*"):
        first = path.relative_to(folder).parts[0]
        if first in ("archive", "roles"):
            continue
        try:
            size = path.stat().st_size if path.is_file() else 0
        except OSError:  # it was renamed or removed meanwhile
            continue
        name = first.removeprefix(".")
        sizes[next((kind for kind in KINDS if name.startswith(kind)), "other files")] += size
    return sizes


@dataclass
class Series:
    """One number over time."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, time_s: float, value: float) -> None:
        self.times.append(time_s)
        self.values.append(value)

    def around(self, share: float) -> float:
        """The median around a moment, as a share of the whole time."""
        place = round(share * (len(self.values) - 1))
        near = max(1, len(self.values) // 20)
        return statistics.median(self.values[max(0, place - near) : place + near + 1])

    def blocks(self) -> tuple[list[float], list[float]]:
        """The mean times and values of the blocks after warming up; fewer than BLOCKS of too few samples."""
        begin = int(WARM_UP * len(self.values))
        times, values = self.times[begin:], self.values[begin:]
        cuts = [round(place * len(times) / BLOCKS) for place in range(BLOCKS + 1)]
        blocks = [slice(first, last) for first, last in itertools.pairwise(cuts) if last > first]
        return [statistics.mean(times[block]) for block in blocks], [statistics.mean(values[block]) for block in blocks]

    def settles(self) -> bool:
        """Whether it grows less and less, so much so that it is about to end."""
        _, y = self.blocks()
        third = BLOCKS // 3
        one, two, three = (statistics.mean(y[place : place + third]) for place in range(0, BLOCKS, third))
        bends = [abs(a - 2 * b + c) for a, b, c in zip(y, y[1:], y[2:], strict=False)]
        noise = statistics.median(bends) / (0.6745 * 6**0.5)  # of a block, as normal noise would bend them
        weights = SETTLES, -1 - SETTLES, 1.0  # of the three means: what the last third grew, less what it may
        by_chance = noise * (sum(weight**2 for weight in weights) / third) ** 0.5
        return (three - two) - SETTLES * (two - one) < -T_95 * by_chance

    def slope(self) -> tuple[float, float]:
        """A second, and half of its 95 % interval, after warming up."""
        x, y = self.blocks()
        if len(y) < BLOCKS:
            return 0.0, float("inf")
        slope, level = statistics.linear_regression(x, y)
        rest = sum((b - level - slope * a) ** 2 for a, b in zip(x, y, strict=True)) / (BLOCKS - 2)
        spread = sum((a - statistics.mean(x)) ** 2 for a in x)
        return slope, T_95 * (rest / spread) ** 0.5


def verdict(series: Series, bound: float | None = None) -> str:
    """Whether it stays as it is. What has a bound may grow up to that."""
    if bound is not None:
        most = max(series.values)
        return f"bounded: at most {bound:,.1f}" if most <= bound else f"BEYOND its bound of {bound:,.1f}: {most:,.1f}"
    slope, half = series.slope()
    if half == float("inf"):
        return "too few samples"
    if slope - half > 0 and slope * (series.times[-1] - series.times[0]) > LEAST:
        return "settles" if series.settles() else "GROWS"
    return "falls" if slope + half < 0 else "flat"


def is_bad(found: str) -> bool:
    return found.startswith(("GROWS", "BEYOND"))


def table(measured: dict[str, Series], bounds: dict[str, float]) -> list[str]:
    """A line for each of them."""
    head = ["resource", "start", "25 %", "50 %", "75 %", "end", "slope an hour", "verdict"]
    rows = []
    for name, series in measured.items():
        slope, half = series.slope()
        shown = [f"{series.around(share):,.1f}" for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        rows.append([name, *shown, f"{3600 * slope:+,.2f} +- {3600 * half:,.2f}", verdict(series, bounds.get(name))])
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if place in (0, 7) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
