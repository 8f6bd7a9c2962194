"""The three functions of MuZero, for vectors, for boards and for pictures.

    observation --encode--> latent --look--> features --heads--> policy, value
                              |  action
                              +--step--> latent', trace --look--> features' --heads--> policy, value
                                           |                         |
                                           +-------------------------+--rewards--> reward

    consistency    latent reached by steps --project, guess--> ~ <--project-- encode(observation seen there)

A latent is normalised wherever it is made, so that what `step` makes looks like what `encode` makes however often it is
applied: to [0, 1] (its least feature 0, its largest 1), on boards to mean 0 and variance 1. A reward is read from the
trace of the step, or on boards from what there is to see where it led. Values and rewards are logits over a support.
Heads begin at zero: every action is as likely, every value and reward 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headway.learn.input_scale import InputScale, brightness, require_observation
from headway.learn.two_hot import Support

WINDOW = 4  # cells a side
SMALLEST_RANGE = 1e-5  # of a latent's features, so that equal ones do not divide by zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a network is made from."""

    observation: tuple[int, ...]
    """One dimension: a vector. Three: planes [C, height, width]."""
    num_actions: int
    latent: int = 64
    """Features of a latent; of each cell, where there are cells."""
    hidden: int = 64
    """Width of the layers between."""
    blocks: int = 1
    """Residual blocks of the convolutional encoder and of its dynamics."""
    windows: int = 0
    """For boards: features of every window of cells, which everything is read from. 0: no board."""
    projection: int = 64
    """Width of the space in which latents are compared."""
    normalise: bool = False
    """Bring the features of a vector to mean 0 and variance 1 first, by what was seen of them."""
    is_bytes: bool = False
    """Planes of brightnesses 0..255: they are divided by 255 first."""
    value_support: Support = field(default_factory=Support)
    reward_support: Support = field(default_factory=Support)

    def __post_init__(self) -> None:
        require_observation(self.observation, self.normalise, self.is_bytes)
        if self.windows < 0 or (self.windows and len(self.observation) != 3):
            raise ValueError(f"windows are for boards, received windows={self.windows} and {list(self.observation)}")
        for name in ("num_actions", "latent", "hidden", "blocks", "projection"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")


def build_network(architecture: Architecture, *, seed: int) -> MuZeroNetwork:
    """For vectors layers, for boards cells and windows of them, for other planes convolutions all the way."""
    if len(architecture.observation) == 1:
        return VectorNetwork(architecture, seed=seed)
    return (BoardNetwork if architecture.windows else PlanesNetwork)(architecture, seed=seed)


def normalise(latents: Tensor) -> Tensor:
    """Each latent [N, ...] to the range 0..1."""
    flat = latents.flatten(1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)  # aminmax has no derivative before torch 2.12
    return ((flat - low) / (high - low + SMALLEST_RANGE)).view_as(latents)


class MuZeroNetwork(nn.Module, ABC):
    """What search and learning ask of a network. All first dimensions are rows."""

    latent_shape: tuple[int, ...]
    action: nn.Embedding
    policy_head: nn.Linear
    value_head: nn.Linear
    reward_head: nn.Linear

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.inputs = InputScale(architecture.observation[0]) if architecture.normalise else None

    def _brightness(self, planes: Tensor) -> Tensor:
        return brightness(planes) if self.architecture.is_bytes else planes

    @abstractmethod
    def encode(self, observations: Tensor) -> Tensor:
        """Latents [N, ...] of observations [N, ...]."""

    @abstractmethod
    def step(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Latents [N, ...] after actions [N], and the trace [N, ...] that the steps leave for their rewards."""

    @abstractmethod
    def look(self, latents: Tensor) -> Tensor:
        """Features [N, hidden] that the heads read."""

    @abstractmethod
    def rewards(self, features: Tensor, traces: Tensor) -> Tensor:
        """Reward logits [N, bins] of steps, from the features of where they led and from their traces."""

    def judge(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Policy logits [N, A] and value logits [N, bins]."""
        return self.policy_head(features), self.value_head(features)

    def predict(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The same of latents."""
        return self.judge(self.look(latents))

    def project(self, latents: Tensor) -> Tensor:
        """[N, projection], where latents are compared."""
        result: Tensor = self.projector(latents.flatten(1))
        return result

    def guess(self, projections: Tensor) -> Tensor:
        """What the projection of the observation is thought to be; only the branch that was stepped to has this."""
        result: Tensor = self.guesser(projections)
        return result

    def _beside_actions(self, latents: Tensor, actions: Tensor) -> Tensor:
        """Latents with cells, and for each one plane more: its action."""
        plane = self.action(actions).view(len(latents), 1, *self.latent_shape[1:])
        return torch.cat((latents, plane), 1)

    def _finish(self, seed: int) -> None:
        """The layers both kinds have, and the first weights of all."""
        width, latent = self.architecture.projection, math.prod(self.latent_shape)
        self.projector = nn.Sequential(
            nn.Linear(latent, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width)
        )
        self.guesser = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
        heads = {id(head) for head in (self.policy_head, self.value_head, self.reward_head)}
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                if id(module) in heads:
                    nn.init.zeros_(module.weight)
                else:
                    nn.init.kaiming_uniform_(module.weight, nonlinearity="relu", generator=random)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=1.0, generator=random)


class VectorNetwork(MuZeroNetwork):
    """Layers on vectors. An action is a vector of its own that is added to what the latent becomes."""

    def __init__(self, architecture: Architecture, *, seed: int) -> None:
        super().__init__(architecture)
        a = architecture
        self.latent_shape = (a.latent,)
        layers = nn.Linear(math.prod(a.observation), a.hidden), nn.LayerNorm(a.hidden), nn.ReLU()
        self.encoder = nn.Sequential(*layers, nn.Linear(a.hidden, a.latent))
        self.action = nn.Embedding(a.num_actions, a.hidden)
        self.dynamics_in = nn.Linear(a.latent, a.hidden, bias=False)
        self.dynamics_norm = nn.LayerNorm(a.hidden)
        self.dynamics_out = nn.Linear(a.hidden, a.latent)
        self.reward_head = nn.Linear(a.hidden, a.reward_support.num_bins)
        self.prediction = nn.Sequential(nn.Linear(a.latent, a.hidden), nn.LayerNorm(a.hidden), nn.ReLU())
        self.policy_head = nn.Linear(a.hidden, a.num_actions)
        self.value_head = nn.Linear(a.hidden, a.value_support.num_bins)
        self._finish(seed)

    def encode(self, observations: Tensor) -> Tensor:
        flat = observations.flatten(1)
        return normalise(self.encoder(flat if self.inputs is None else self.inputs(flat)))

    def step(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.dynamics_norm(self.dynamics_in(latents) + self.action(actions)))
        return normalise(latents + self.dynamics_out(hidden)), hidden

    def look(self, latents: Tensor) -> Tensor:
        features: Tensor = self.prediction(latents)
        return features

    def rewards(self, features: Tensor, traces: Tensor) -> Tensor:
        logits: Tensor = self.reward_head(traces)
        return logits


class BoardNetwork(MuZeroNetwork):
    """A board of cells that steps change, and a look at every window of 4 by 4 of them with the same weights.

    What makes a line is learned once and not for each place, after a step as well as before it. Everything, rewards
    too, is read from what the windows show: on a board a reward is for what is there, not for what was done.
    """

    def __init__(self, architecture: Architecture, *, seed: int) -> None:
        super().__init__(architecture)
        a = architecture
        planes, height, width = a.observation
        side = min(WINDOW, height, width)
        places = (height - side + 1) * (width - side + 1)
        self.latent_shape = (a.latent, height, width)
        self.encoder = nn.Conv2d(planes, a.latent, 3, padding=1)
        self.action = nn.Embedding(a.num_actions, height * width)
        self.dynamics_in = nn.Conv2d(a.latent + 1, a.latent, 3, padding=1)
        self.dynamics_out = nn.Conv2d(a.latent, a.latent, 3, padding=1)
        self.windows = nn.Conv2d(a.latent, a.windows, side)
        self.prediction = nn.Sequential(nn.Linear(a.windows * places, a.hidden), nn.LayerNorm(a.hidden), nn.ReLU())
        self.policy_head = nn.Linear(a.hidden, a.num_actions)
        self.value_head = nn.Linear(a.hidden, a.value_support.num_bins)
        self.reward_head = nn.Linear(a.hidden, a.reward_support.num_bins)
        self._finish(seed)
        with torch.no_grad():
            self.action.weight.copy_(_where(a.num_actions, height, width))

    def encode(self, observations: Tensor) -> Tensor:
        return self._normalise(self.encoder(self._brightness(observations)))

    def step(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        changed = self.dynamics_out(torch.relu(self.dynamics_in(self._beside_actions(latents, actions))))
        arrived = self._normalise(latents + changed)
        return arrived, arrived[:, :0]  # nothing: the reward is read where it led

    def look(self, latents: Tensor) -> Tensor:
        features: Tensor = self.prediction(torch.relu(self.windows(latents)).flatten(1))
        return features

    def rewards(self, features: Tensor, traces: Tensor) -> Tensor:
        logits: Tensor = self.reward_head(features)
        return logits

    def _normalise(self, latents: Tensor) -> Tensor:
        return nn.functional.layer_norm(latents, self.latent_shape)


def _where(num_actions: int, height: int, width: int) -> Tensor:
    """Where on the board an action is at first, [A, cells]: a column or a cell, if there are as many of them."""
    if num_actions == width:
        return torch.eye(width).repeat(1, height)
    return torch.eye(num_actions, height * width)


class PlanesNetwork(MuZeroNetwork):
    """Convolutions on planes. Pictures larger than 16 cells a side are halved first until they are not.

    An action is a plane of its own beside those of the latent.
    """

    def __init__(self, architecture: Architecture, *, seed: int) -> None:
        super().__init__(architecture)
        a = architecture
        planes, height, width = a.observation
        stem: list[nn.Module] = [nn.Conv2d(planes, a.latent, 3, padding=1), nn.ReLU()]
        while max(height, width) > 16:
            stem += [nn.Conv2d(a.latent, a.latent, 3, stride=2, padding=1), nn.ReLU()]
            height, width = (height + 1) // 2, (width + 1) // 2
        self.latent_shape = (a.latent, height, width)
        cells = height * width
        self.encoder = nn.Sequential(*stem, *(_Block(a.latent) for _ in range(a.blocks)))
        self.action = nn.Embedding(a.num_actions, cells)
        self.dynamics_in = nn.Conv2d(a.latent + 1, a.latent, 3, padding=1)
        self.dynamics_out = nn.Sequential(*(_Block(a.latent) for _ in range(a.blocks)))
        self.reward_layer = nn.Sequential(*_flat(a.latent, cells, a.hidden))
        self.reward_head = nn.Linear(a.hidden, a.reward_support.num_bins)
        self.prediction = nn.Sequential(*_flat(a.latent, cells, a.hidden))
        self.policy_head = nn.Linear(a.hidden, a.num_actions)
        self.value_head = nn.Linear(a.hidden, a.value_support.num_bins)
        self._finish(seed)

    def encode(self, observations: Tensor) -> Tensor:
        return normalise(self.encoder(self._brightness(observations)))

    def step(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        changed = self.dynamics_out(torch.relu(self.dynamics_in(self._beside_actions(latents, actions)) + latents))
        return normalise(changed), changed

    def look(self, latents: Tensor) -> Tensor:
        features: Tensor = self.prediction(latents)
        return features

    def rewards(self, features: Tensor, traces: Tensor) -> Tensor:
        logits: Tensor = self.reward_head(self.reward_layer(traces))
        return logits


class _Block(nn.Module):
    """Two convolutions beside what goes around them. The second begins at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def _flat(channels: int, cells: int, hidden: int) -> list[nn.Module]:
    """From planes to a vector: few channels first, since every cell of each has weights of its own."""
    few = max(2, channels // 8)
    layers: list[nn.Module] = [nn.Conv2d(channels, few, 1), nn.ReLU(), nn.Flatten()]
    return [*layers, nn.Linear(few * cells, hidden), nn.LayerNorm(hidden), nn.ReLU()]
