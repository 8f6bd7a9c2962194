"""What this machine has: GPUs and their memory, and how much of its own memory this process may still take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60
"""Control groups write a number near 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One of them, as torch sees it."""

    name: str
    total_bytes: int
    free_bytes: int


def gpus_here() -> tuple[Gpu, ...]:
    """The GPUs that this process can see; none where torch is not installed or sees none."""
    try:
        import torch
    except ModuleNotFoundError:
        return ()
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(Gpu(torch.cuda.get_device_name(index), int(total), int(free)))
    return tuple(found)


def host_bytes(root: Path = Path("/")) -> int | None:
    """What this process may still take of the machine's memory: what is available, or what its control group leaves.

    None where neither is known (another system than Linux).
    """
    known = [found for found in (_available(root), _left_by_group(root)) if found is not None]
    return min(known, default=None)


def _available(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_by_group(root: Path) -> int | None:
    """The limit of the control group less what it uses beyond caches, which can be let go. The strictest one counts."""
    lefts = []
    for folder in _group_folders(root):
        for limit_name, used_name, stat_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(_read(folder / limit_name))
            if limit is None or limit >= UNLIMITED:
                continue
            used = _number(_read(folder / used_name)) or 0
            cached = _fields(_read(folder / "memory.stat")).get(stat_name, 0)
            lefts.append(max(0, limit - max(0, used - cached)))
    return min(lefts, default=None)


def _group_folders(root: Path) -> list[Path]:
    """Of the groups this process is in, from its own up to the whole, in both versions of control groups."""
    home = root / "sys/fs/cgroup"
    folders = [home, home / "memory"]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "memory"):
            base = home / "memory" if controllers else home
            parts = [part for part in path.split("/") if part and part != ".."]
            folders += [base.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    return list(dict.fromkeys(folders))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


def _fields(text: str) -> Mapping[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


