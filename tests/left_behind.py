"""Which processes are there, and when they are gone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_children(pid: int) -> list[int]:
    """Of the process and of its children."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            found += [int(child), *all_children(int(child))]
    return found


def title(pid: int) -> str:
    """What it calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until_gone(pids: Iterable[int], timeout_s: float = 20.0) -> None:
    pids = list(pids)
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, [title(pid)[:80] for pid in left]
        time.sleep(0.05)
