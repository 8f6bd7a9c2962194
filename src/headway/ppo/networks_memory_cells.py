"""What a policy remembers of an episode: a GRU or an LSTM, step by step.

    features --project--> gates --+                     an episode begins: its state is zero
                                  v
    state ----------(keep)--> step --> state --> what the heads see

Gates of all steps are projected in one product; what is left of a step is small. A state is one row of numbers [S]: of
a GRU its units, of an LSTM its units and its cells beside each other.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Memory = Literal["none", "gru", "lstm"]


class MemoryCell(nn.Module):
    """`size` units that remember."""

    def __init__(self, width: int, size: int, num_gates: int, num_parts: int) -> None:
        super().__init__()
        self.size = size
        self.state_size = num_parts * size
        self.project = nn.Linear(width, num_gates * size)
        self.recall = nn.Linear(size, num_gates * size, bias=False)

    def begin_weights(self, random: torch.Generator) -> None:
        """Orthogonal gate by gate."""
        with torch.no_grad():
            for gates in (self.project.weight, self.recall.weight):
                for gate in gates.split(self.size):
                    nn.init.orthogonal_(gate, 1.0, generator=random)
            nn.init.zeros_(self.project.bias)

    def step(self, gates: Tensor, state: Tensor) -> Tensor:
        """The state [B, S] after a step whose projected features are `gates`."""
        raise NotImplementedError

    def shown(self, state: Tensor) -> Tensor:
        """What others see of a state: [..., size]."""
        return state[..., : self.size]


class GRU(MemoryCell):
    """Cho et al. (2014), with the reset after the product, as it is usually computed."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(width, size, 3, 1)

    def step(self, gates: Tensor, state: Tensor) -> Tensor:
        seen_reset, seen_update, seen_new = gates.chunk(3, -1)
        reset, update, new = self.recall(state).chunk(3, -1)
        update = torch.sigmoid(seen_update + update)
        new = torch.tanh(seen_new + torch.sigmoid(seen_reset + reset) * new)
        return new + update * (state - new)


class LSTM(MemoryCell):
    """Hochreiter and Schmidhuber (1997), with a gate that forgets, which is open at first (Gers et al., 2000)."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(width, size, 4, 2)

    def begin_weights(self, random: torch.Generator) -> None:
        super().begin_weights(random)
        with torch.no_grad():
            self.project.bias[self.size : 2 * self.size] = 1.0

    def step(self, gates: Tensor, state: Tensor) -> Tensor:
        units, cells = state.chunk(2, -1)
        let_in, keep, new, show = (gates + self.recall(units)).chunk(4, -1)
        cells = torch.sigmoid(keep) * cells + torch.sigmoid(let_in) * torch.tanh(new)
        return torch.cat([torch.sigmoid(show) * torch.tanh(cells), cells], -1)


CELLS: dict[str, type[GRU] | type[LSTM]] = {"gru": GRU, "lstm": LSTM}
