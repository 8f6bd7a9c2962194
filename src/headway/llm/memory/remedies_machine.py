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
    left_bytes: int


def gpus_here(*, is_used_here: bool = False) -> tuple[Gpu, ...]:
    """The GPUs that this process can see; none where torch is not installed or sees none.

    Only a process that will use them itself (`is_used_here`) asks what is free: the question alone takes memory there.
    """
    try:
        import torch
    except ModuleNotFoundError:
        return ()
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free = torch.cuda.mem_get_info(index)[0] if is_used_here else properties.total_memory
        found.append(Gpu(properties.name, int(properties.total_memory), int(free)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory of a machine that this process may have, and what others leave of it at the moment."""

    total_bytes: int
    left_bytes: int


def host_memory(root: Path = Path("/")) -> HostMemory | None:
    """What the machine has, or what the control group of this process may take of it, whichever is less.

    None where neither is known (another system than Linux).
    """
    whole = _fields(_read(root / "proc/meminfo").replace(":", "").replace(" kB", ""))
    found = _of_groups(root)
    if "MemTotal" in whole:
        found.append(HostMemory(1024 * whole["MemTotal"], 1024 * whole.get("MemAvailable", whole["MemTotal"])))
    if not found:
        return None
    return HostMemory(min(one.total_bytes for one in found), min(one.left_bytes for one in found))


def _of_groups(root: Path) -> list[HostMemory]:
    """Limits of the control groups, and those less what the group uses beyond caches, which can be let go."""
    found = []
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
            found.append(HostMemory(limit, max(0, limit - max(0, used - cached))))
    return found


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
