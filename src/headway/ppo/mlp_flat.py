"""The parameters of a network as one vector, and Adam on it.

    values    [ actor.1.weight | actor.1.bias | ... | value_head.bias ]    the network's tensors are views of it
    gradient  [ same places                                           ]
    moments   [ same places                                           ]  x 2, Adam's

One vector is clipped by one norm, changed in one pass and sent to other ranks in one message.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from headway.core.types import State
from headway.ppo.mlp_kernels import adam
from headway.ppo.mlp_memory import Memory


def flatten(network: nn.Module) -> np.ndarray:
    """Move the parameters into one vector, in their order, and return it; a network that has one keeps it."""
    parameters = list(network.parameters())
    for name, parameter in network.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ValueError(f"{name} must be float32 on the CPU, received {parameter.dtype} on {parameter.device}")
    sizes = [parameter.numel() for parameter in parameters]
    begins = np.concatenate([[0], np.cumsum(sizes)])
    with torch.no_grad():
        first = parameters[0].detach()
        expected = [first.data_ptr() + 4 * int(begin) for begin in begins[:-1]]
        if [p.data_ptr() for p in parameters] != expected or not all(p.is_contiguous() for p in parameters):
            first = torch.cat([p.detach().reshape(-1) for p in parameters])
            for parameter, begin, size in zip(parameters, begins, sizes, strict=False):
                parameter.data = first[begin : begin + size].view(parameter.shape)
        vector: np.ndarray = first.as_strided((sum(sizes),), (1,), first.storage_offset()).numpy()
    return vector


class Adam:
    """Changes `values` by gradients, which it first scales down to `max_norm`."""

    def __init__(self, values: np.ndarray, *, max_norm: float) -> None:
        self._values = values
        self.memory = Memory(np.zeros((2, len(values)), np.float32), np.zeros(1, np.int64), max_norm)

    def apply(self, gradient: np.ndarray, rate: float) -> None:
        adam(self._values, gradient, self.memory, rate)

    def state_dict(self) -> State:
        return {"steps": int(self.memory.steps[0]), "moments": self.memory.moments.copy()}

    def load_state_dict(self, state: State) -> None:
        self.memory.steps[0] = state["steps"]
        self.memory.moments[:] = state["moments"]
