"""Where a run takes place: the machine, the versions of what is installed there, and whether its process is alive."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("headway", "numpy", "torch", "numba", "gymnasium", "ray", "transformers", "vllm", "pydantic")


def describe_environment() -> dict[str, Any]:
    """Plain values for `environment.json`. Nothing is imported for it."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "packages": versions,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]] if sys.argv else [],
    }


def process_is_alive(environment: Mapping[str, Any]) -> bool | None:
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


def not_known(environment: Mapping[str, Any]) -> str:
    """Why it is not known whether its process is alive."""
    host = environment.get("host")
    if host is None or host == platform.node():
        return "whether its process is alive is not known"
    return f"it ran on {host}, and whether its process is alive cannot be seen from here"
