"""Copies to a device that nobody waits for.

A plain copy to a GPU waits until everything that was asked of the GPU before is done. From memory that cannot be moved
it is one more thing asked of it, and the program goes on to ask for the next.
"""

from __future__ import annotations

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Returns the tensor on a device. What is computed from it there comes after the copy."""
    if torch.device(device).type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
