"""The weights of a network as one vector: what is published."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from headway.core.types_opaque import Weights


def pack_weights(network: nn.Module) -> np.ndarray:
    """All parameters [P] float32, in their order: what is published."""
    with torch.no_grad():
        packed: np.ndarray = nn.utils.parameters_to_vector(network.parameters()).cpu().numpy()
    return packed


def writeable(array: np.ndarray) -> np.ndarray:
    """A copy of memory that other processes see, which torch would warn of; anything else as it is."""
    return array if array.flags.writeable else array.copy()


def load_weights(network: nn.Module, weights: Weights) -> None:
    """The other way: copy a snapshot's weights into a network."""
    vector = torch.from_numpy(writeable(np.asarray(weights["network"])))
    expected = sum(parameter.numel() for parameter in network.parameters())
    if vector.shape != (expected,):
        raise ValueError(f"these weights are of another network: {list(vector.shape)} numbers, expected [{expected}]")
    with torch.no_grad():
        begin = 0
        for parameter in network.parameters():
            parameter.copy_(vector[begin : begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()
