"""Which processes are there, and when they are gone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from waiting import wait_until


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


def shared_memory() -> set[str]:
    """The files in /dev/shm, without those that other programs use."""
    ours = {os.getpid(), *all_children(os.getpid())}
    theirs: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) not in ours:
            try:
                theirs.update(re.findall(r" /dev/shm/(\S+)", maps.read_text()))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return set(os.listdir("/dev/shm")) - theirs


def assert_no_more_shared_memory(before: set[str]) -> None:
    """Than there was. What another program has just made may not be known as its own yet."""
    wait_until(lambda: set(os.listdir("/dev/shm")) <= before or shared_memory() <= before, what="no more shared memory")


def title(pid: int) -> str:
    """What it calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until_gone(pids: Iterable[int], seconds: float = 30.0) -> None:
    named = {pid: title(pid)[:80] for pid in pids}
    wait_until(lambda: not any(map(is_running, named)), seconds, what=f"the end of {named}")
