"""Lets torch's operators on a GPU add up in a fixed order, so that they give the same bits each time.

Gradients of attention, and sums where indices repeat, are otherwise added up in whatever order the GPU's blocks come to
them. torch has one switch for the process and no other, which makes some operators slow that had a fixed order anyway.
So it is on while an operator that needs it is started; where attention is torch's own choice, it is on for good.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fixed_order() -> Iterator[None]:
    """Fixes the order of what is started within."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=True)  # torch's own function sets the compiler too
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


def fix_order() -> None:
    """Fixes it from now on, in this process. torch warns of an operator that has no fixed order."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch wants it said
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
