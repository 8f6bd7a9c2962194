"""Which processes are there, and when they are gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from patience import wait_until


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


def wait_until_gone(pids: Iterable[int], seconds: float = 30.0) -> None:
    named = {pid: title(pid)[:80] for pid in pids}
    wait_until(lambda: not any(map(is_running, named)), seconds, what=f"the end of {named}")
