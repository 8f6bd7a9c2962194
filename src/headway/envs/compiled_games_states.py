"""Games as arrays: what a state must look like to be gone on from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def require_state(state: Mapping[str, np.ndarray], mine: Mapping[str, np.ndarray]) -> None:
    """Refuse a state that has not exactly these arrays, by name, type and shape."""
    if set(state) != set(mine):
        raise ValueError(f"state must hold {sorted(mine)}, got {sorted(state)}")
    for name, array in mine.items():
        if state[name].shape != array.shape or state[name].dtype != array.dtype:
            raise ValueError(
                f"{name} must be {array.dtype} of shape {array.shape}, "
                f"got {state[name].dtype} of shape {state[name].shape}"
            )
