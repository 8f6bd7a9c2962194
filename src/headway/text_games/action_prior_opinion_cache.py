"""What was scored already, by the version of the weights, the prompt and the action: bounded, the oldest version first.

A version names its weights: what it said once it would say again. So nothing is thrown away when weights change, and a
version that comes back (to be evaluated, say) finds what it left. Only where room is needed something goes: of the
oldest version while there are several, else what was asked for longest ago.

Whoever asks the same model in the same process may share one: what a collector asked about an evaluation finds.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

import numpy as np

EntryKey = tuple[bytes, str]


def prompt_digest(prompt: str) -> bytes:
    """Returns what stands for a prompt in the cache, so that thousands of long texts need not be kept."""
    return hashlib.blake2b(prompt.encode(), digest_size=16).digest()


class OpinionCache:
    """Holds the log-probabilities of at most `size` actions. Any thread may ask; a pickle of it is empty."""

    def __init__(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"cache_size must be >= 0 actions, received {size!r}")
        self._size = size
        self._count = 0
        self._versions: dict[int, OrderedDict[EntryKey, np.ndarray]] = {}
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[type[OpinionCache], tuple[int]]:
        return OpinionCache, (self._size,)

    def __len__(self) -> int:
        return self._count

    def find(self, version: int, prompt: bytes, action: str) -> np.ndarray | None:
        """Returns the log-probabilities of the action's tokens [T]; None if they are not here."""
        with self._guard:
            entries = self._versions.get(version)
            if entries is None or (prompt, action) not in entries:
                return None
            entries.move_to_end((prompt, action))
            return entries[prompt, action]

    def keep(self, version: int, prompt: bytes, action: str, log_probs: np.ndarray) -> None:
        with self._guard:
            entries = self._versions.setdefault(version, OrderedDict())
            self._count += (prompt, action) not in entries
            entries[prompt, action] = log_probs
            entries.move_to_end((prompt, action))
            while self._count > self._size:
                oldest = min(self._versions)
                self._versions[oldest].popitem(last=False)
                self._count -= 1
                if not self._versions[oldest]:
                    del self._versions[oldest]
