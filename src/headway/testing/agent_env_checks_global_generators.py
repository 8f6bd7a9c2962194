"""The random generators that all threads of a process share: Python's, and those of libraries that are loaded."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def generator_states() -> dict[str, bytes]:
    """Returns the state of each global generator, by the name with which it is seeded."""
    return {
        name: pickle.dumps(getattr(state, "tolist", lambda state=state: state)()) for name, state in _states().items()
    }


def scrambled(seed: int) -> None:
    """Seeds each of them."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@contextmanager
def generators_as_they_were() -> Iterator[None]:
    """Puts the generators back into the state they had before the block."""
    before = _states()
    try:
        yield
    finally:
        random.setstate(before["random.seed"])
        if "numpy.random.seed" in before:
            sys.modules["numpy"].random.set_state(before["numpy.random.seed"])
        if "torch.manual_seed" in before:
            sys.modules["torch"].set_rng_state(before["torch.manual_seed"])


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"random.seed": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy.random.seed"] = sys.modules["numpy"].random.get_state()
    if "torch" in sys.modules:
        states["torch.manual_seed"] = sys.modules["torch"].get_rng_state()
    return states
