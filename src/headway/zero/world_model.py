"""What networks have in common that are searched with: how they see observations, and how their weights begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from headway.envs.input_scale import InputScale, brightness
from headway.zero.world_model_two_hot import Support

WINDOW = 4  # cells a side


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a network is made from. A kind of network adds its sizes."""

    observation: tuple[int, ...]
    """One dimension: a vector. Three: planes [C, height, width]."""
    num_actions: int
    windows: int = 0
    """For boards: features of every window of cells, which everything is read from. 0: no board."""
    normalise: bool = False
    """Bring the features of a vector to mean 0 and variance 1 first, by what was seen of them."""
    is_bytes: bool = False
    """Planes of brightnesses 0..255: they are divided by 255 first."""
    value_support: Support = field(default_factory=Support)
    reward_support: Support = field(default_factory=Support)

    def __post_init__(self) -> None:
        shape = self.observation
        if len(shape) not in (1, 3):
            raise ValueError(f"an observation is [features] or [planes, height, width], received {shape}")
        if self.normalise and len(shape) != 1:
            raise ValueError(f"normalise is for vectors, received observations {list(shape)}")
        if self.is_bytes and len(shape) != 3:
            raise ValueError(f"is_bytes is for planes, received observations {list(shape)}")
        if self.windows < 0 or (self.windows and len(shape) != 3):
            raise ValueError(f"windows are for boards, received windows={self.windows} and {list(shape)}")
        for name in (one.name for one in fields(self) if one.type == "int" and one.name != "windows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")


class WorldModel(nn.Module, ABC):
    """A network that says what follows an action. All first dimensions are rows."""

    action: nn.Embedding
    policy_head: nn.Linear
    value_head: nn.Linear
    reward_head: nn.Linear

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.inputs = InputScale(architecture.observation[0]) if architecture.normalise else None
        self.is_bytes = architecture.is_bytes
        self.value_support, self.reward_support = architecture.value_support, architecture.reward_support

    @abstractmethod
    def encode(self, observations: Tensor) -> Tensor:
        """Latents [N, ...] of observations [N, ...]."""

    @abstractmethod
    def judge(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Policy logits [..., A] and value logits [..., bins] of features [..., F]."""

    def scaled(self, observations: Tensor) -> Tensor:
        """Observations [N, ...] as the first layer sees them."""
        if self.inputs is not None:
            return self.inputs(observations.flatten(1))
        return brightness(observations) if self.is_bytes else observations

    def begin_weights(self, seed: int, draw: Callable[[Tensor, torch.Generator], object], *heads: nn.Module) -> None:
        """The first weights of all layers: `heads` and biases are zero, the others are drawn."""
        random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                if any(module is head for head in heads):
                    nn.init.zeros_(module.weight)
                else:
                    draw(module.weight, random)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=1.0, generator=random)
