"""Layers and memory in the form that compiled kernels and torch's products take together.

Everything that is read off a layer is a copy: the network may be loaded meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headway.zero.search_interface import Leaves
from headway.zero.world_model_two_hot import Support

Product = tuple[Tensor, Tensor]
"""Weights [in, out] and bias [out]."""


def product_of(*layers: nn.Linear) -> Product:
    """Of layers that read the same rows, side by side."""
    weights = torch.cat([layer.weight.detach() for layer in layers]).T.contiguous()
    return weights, torch.cat([layer.bias.detach() for layer in layers])


def norm_of(layer: nn.LayerNorm) -> tuple[np.ndarray, np.ndarray]:
    """Gain and shift."""
    return array_of(layer.weight), array_of(layer.bias)


def array_of(parameter: Tensor) -> np.ndarray:
    return parameter.detach().clone().numpy()


class ArrayAndTensor(NamedTuple):
    """The same memory for kernels and for products."""

    array: np.ndarray  # [...] float32
    tensor: Tensor


def room(*shape: int) -> ArrayAndTensor:
    tensor = torch.zeros(shape)
    return ArrayAndTensor(tensor.numpy(), tensor)


def bins_of(support: Support) -> tuple[np.float32, np.float32]:
    """Where the bins begin, and how far apart they are."""
    return np.float32(support.low), np.float32(support.step)


def no_leaves(num_rows: int, num_actions: int) -> Leaves:
    """Memory for answers."""
    each = np.zeros(num_rows, np.float32)
    return Leaves(each, each.copy(), np.zeros((num_rows, num_actions), np.float32))
