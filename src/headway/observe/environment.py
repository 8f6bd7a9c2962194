"""Where a run takes place: the machine, and the versions of what is installed there."""

from __future__ import annotations

import os
import platform
import sys
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
