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
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.zero.world_model import WINDOW, Architecture, WorldModel

SMALLEST_RANGE = 1e-5  # of a latent's features, so that equal ones do not divide by zero


@dataclass(frozen=True, slots=True, kw_only=True)
class MuZeroArchitecture(Architecture):
    """What a network is made from."""

    latent: int = 64
    """Features of a latent; of each cell, where there are cells."""
    hidden: int = 64
    """Width of the layers between."""
    blocks: int = 1
    """Residual blocks of the convolutional encoder and of its dynamics."""
    projection: int = 64
    """Width of the space in which latents are compared."""


def build_network(architecture: MuZeroArchitecture, *, seed: int) -> MuZeroNetwork:
    """For vectors layers, for boards cells and windows of them, for other planes convolutions all the way."""
    if len(architecture.observation) == 1:
        return VectorNetwork(architecture, seed=seed)
    return (BoardNetwork if architecture.windows else PlanesNetwork)(architecture, seed=seed)


def normalise(latents: Tensor) -> Tensor:
    """Each latent [N, ...] to the range 0..1."""
    flat = latents.flatten(1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)  # aminmax has no derivative before torch 2.12
    return ((flat - low) / (high - low + SMALLEST_RANGE)).view_as(latents)


class MuZeroNetwork(WorldModel):
    """What search and learning ask of a network. All first dimensions are rows."""

    latent_shape: tuple[int, ...]

    def __init__(self, architecture: MuZeroArchitecture) -> None:
        super().__init__(architecture)
        self.architecture = architecture

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
        return self.policy_head(features), self.value_head(features)

    def predict(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Policy logits [N, A] and value logits [N, bins] of latents."""
        return self.judge(self.look(latents))

    def project(self, latents: Tensor) -> Tensor:
        """[N, projection], where latents are compared."""
        return self.projector(latents.flatten(1))

    def guess(self, projections: Tensor) -> Tensor:
        """What the projection of the observation is thought to be; only the branch that was stepped to has this."""
        return self.guesser(projections)

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

        def draw(weight: Tensor, random: torch.Generator) -> None:
            nn.init.kaiming_uniform_(weight, nonlinearity="relu", generator=random)

        self.begin_weights(seed, draw, self.policy_head, self.value_head, self.reward_head)


class VectorNetwork(MuZeroNetwork):
    """Layers on vectors. An action is a vector of its own that is added to what the latent becomes."""

    def __init__(self, architecture: MuZeroArchitecture, *, seed: int) -> None:
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
        return normalise(self.encoder(self.scaled(observations.flatten(1))))

    def step(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.dynamics_norm(self.dynamics_in(latents) + self.action(actions)))
        return normalise(latents + self.dynamics_out(hidden)), hidden

    def look(self, latents: Tensor) -> Tensor:
        return self.prediction(latents)

    def rewards(self, features: Tensor, traces: Tensor) -> Tensor:
        return self.reward_head(traces)


class BoardNetwork(MuZeroNetwork):
    """A board of cells that steps change, and a look at every window of 4 by 4 of them with the same weights.

    What makes a line is learned once and not for each place, after a step as well as before it. Everything, rewards
    too, is read from what the windows show: on a board a reward is for what is there, not for what was done.
    """

    def __init__(self, architecture: MuZeroArchitecture, *, seed: int) -> None:
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
        return self._normalise(self.encoder(self.scaled(observations)))

    def step(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        changed = self.dynamics_out(torch.relu(self.dynamics_in(self._beside_actions(latents, actions))))
        arrived = self._normalise(latents + changed)
        return arrived, arrived[:, :0]  # nothing: the reward is read where it led

    def look(self, latents: Tensor) -> Tensor:
        return self.prediction(torch.relu(self.windows(latents)).flatten(1))

    def rewards(self, features: Tensor, traces: Tensor) -> Tensor:
        return self.reward_head(features)

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

    def __init__(self, architecture: MuZeroArchitecture, *, seed: int) -> None:
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
        return normalise(self.encoder(self.scaled(observations)))

    def step(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        changed = self.dynamics_out(torch.relu(self.dynamics_in(self._beside_actions(latents, actions)) + latents))
        return normalise(changed), changed

    def look(self, latents: Tensor) -> Tensor:
        return self.prediction(latents)

    def rewards(self, features: Tensor, traces: Tensor) -> Tensor:
        return self.reward_head(self.reward_layer(traces))


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
