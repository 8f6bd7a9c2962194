"""A GPU on which an engine generates and a trainer trains, both in this process and at the same time.

    engine      with generating(device): ...      somebody waits for tokens: small kernels, on a stream of high priority
    trainer     with share.turn(): ...            a microbatch: few large kernels

A GPU hands out its multiprocessors block by block. A block of a large kernel needs one that is empty, and beside an
engine none ever is: whoever trains waits. So a turn that begins while somebody generates computes on a part of the
multiprocessors, and small kernels find room on the others: both together get further than one after the other. A turn
that begins while nobody generates has all of them.

Turns are in order with everything else the trainer's thread does on the GPU, so what is computed is the same.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headway.llm.engine.gpu_share_part_of_gpu import NoPart, num_multiprocessors, stream_on_part

_lock = threading.Lock()
_waiting: Counter[torch.device] = Counter()
"""How many callers of this process wait for tokens that a device makes."""


@contextmanager
def generating(device: torch.device) -> Iterator[None]:
    """Says for a while that somebody waits for what an engine makes on this device."""
    with _lock:
        _waiting[device] += 1
    try:
        yield
    finally:
        with _lock:
            _waiting[device] -= 1


def is_generating(device: torch.device) -> bool:
    return _waiting[device] > 0


class GpuShare:
    """Decides where a trainer's turn computes. `share`: of the multiprocessors, beside an engine; 1: always all."""

    def __init__(self, device: torch.device, share: float) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"the share of a GPU must be in (0, 1], received {share!r}")
        self._device = device
        self.share = share
        self.num_shared = 0
        """Turns that were beside an engine so far."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Computes what is in it on a part of the GPU, if an engine is at work there."""
        part = self._part()
        if part is None:
            yield
            return
        whole = torch.cuda.current_stream(self._device)
        part.wait_stream(whole)
        try:
            with torch.cuda.stream(part):
                yield
        finally:
            whole.wait_stream(part)

    def _part(self) -> torch.cuda.Stream | None:
        if self._device.type != "cuda" or self.share == 1 or not is_generating(self._device):
            return None
        total = torch.cuda.get_device_properties(self._device).multi_processor_count
        try:
            stream = stream_on_part(self._device.index, num_multiprocessors(self.share, total))
        except NoPart as why:
            print(f"headway: training beside an engine uses all of the GPU: {why}", file=sys.stderr, flush=True)
            self.share = 1.0
            return None
        self.num_shared += 1
        return stream
