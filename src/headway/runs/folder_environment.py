"""Where a run takes place: the machine, the versions of what is installed there, and whether its process is alive."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headway.core.types_opaque import JsonObject, SettingValue

PACKAGES = ("headway", "numpy", "torch", "numba", "gymnasium", "ray", "transformers", "vllm", "pydantic")


def describe_environment() -> JsonObject:
    """Plain values for `environment.json`. Nothing is imported for it."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    told = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "host": platform.node(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "git_commit": git_commit(Path.cwd()),
        "packages": versions,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]] if sys.argv else [],
    }
    return {name: value for name, value in told.items() if value not in (None, [])}


def _cpu() -> str | None:
    """Its model."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (OSError, ValueError, AttributeError):
        return None


def _gpus() -> list[str]:
    """Their models, from NVIDIA's driver: asking CUDA would start it, in this process."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found


def git_commit(folder: Path) -> str | None:
    """What the repository around a folder has checked out, read from its files. Changes on top are not seen."""
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if root is None:
        return None
    try:
        git = root / ".git"
        if git.is_file():  # a worktree: its own HEAD, the branches of the repository it belongs to
            git = root / git.read_text().removeprefix("gitdir:").strip()
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head or None
        branch = head.removeprefix("ref:").strip()
        for place in (git, shared):
            if (place / branch).is_file():
                return (place / branch).read_text().strip()
        for line in (shared / "packed-refs").read_text().splitlines():
            commit, _, name = line.partition(" ")
            if name == branch:
                return commit
    except (OSError, UnicodeDecodeError):
        pass
    return None


def process_is_alive(environment: Mapping[str, SettingValue]) -> bool | None:
    """Does the process of the last session run? None if it is not known here: it ran on another machine."""
    sessions = environment.get("sessions") or [{}]
    pid = sessions[-1].get("pid")
    if pid is None or environment.get("host") != platform.node():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def not_known(environment: Mapping[str, object]) -> str:
    """Why it is not known whether its process is alive."""
    host = environment.get("host")
    if host is None or host == platform.node():
        return "whether its process is alive is not known"
    return f"it ran on {host}, and whether its process is alive cannot be seen from here"
