"""A policy and its value estimate, for every kind of action the environments here have.

    vectors    obs --> [normalise] -------------------> tower --> head --> distribution over actions
                                                   \\--> tower --> value

    pictures   obs --> 0..1 --> planes --> convolutions, a layer --> head, value      one trunk (bodies.py)

Sampling takes its noise from outside (action_choice.py), so that acting is a pure function of weights, observation and
noise. The running mean and scale of the observations are part of the weights: a version that is published acts exactly
as it was trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from headway.core.types_opaque import Weights
from headway.envs.gymnasium_vector import Continuous, Spec
from headway.envs.input_scale import brightness
from headway.ppo.mlp_step import MLPStep, is_tanh_tower
from headway.ppo.networks_bodies import NetworkName, begin_weights, make_body, tower
from headway.ppo.networks_network import ObservationScale, PPONetwork
from headway.ppo.policy_action_choice import choose, judge, noise_for, num_outputs
from headway.ppo.sparse_planes_plane_step import PlaneStep, SparsePlanes, require_plane_network

MAX_NORMALISED = 10.0


class ActorCritic(PPONetwork):
    """One trunk for pictures, of which acting and the value are two heads; two towers of tanh layers for vectors."""

    body: nn.Sequential | None
    log_std: Tensor | None

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int] | None = None,
        *,
        network: NetworkName = "auto",
        normalise: bool = False,
        sparse_planes: SparsePlanes = "off",
        seed: int = 0,
    ) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
        self.action = spec.action
        self.normalise = normalise
        self.is_bytes = spec.is_bytes
        self.body, shape, towers = make_body(spec, network, hidden)
        self.actor, width = tower(shape, towers)
        self.critic, _ = tower(shape, towers)
        self.head = nn.Linear(width, num_outputs(spec.action))
        self.value_head = nn.Linear(width, 1)
        begin_weights(self, {self.head: 0.01, self.value_head: 1.0}, random)
        is_continuous = isinstance(spec.action, Continuous)
        self.log_std = nn.Parameter(torch.zeros(num_outputs(spec.action))) if is_continuous else None
        self.register_buffer("obs_mean", torch.zeros(spec.observation))
        self.register_buffer("obs_scale", torch.ones(spec.observation))
        require_plane_network(self, sparse_planes)
        self.sparse_planes = sparse_planes

    def features(self, obs: Tensor) -> Tensor:
        """What both towers see of observations [B, ...]."""
        obs = scaled(self, obs)
        return obs if self.body is None else self.body(obs)

    def outputs(self, obs: Tensor) -> Tensor:
        """What the distribution is made of: logits, or means."""
        return self.head(self.actor(self.features(obs)))

    def values(self, obs: Tensor) -> Tensor:
        return self._values_of(self.features(obs))

    def log_probs_and_entropy(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of each action [B], and the entropy of the distribution it was drawn from [B]."""
        return self._judge(self.outputs(obs), actions, mask)

    def evaluate(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values, each [B]: what a loss is made of."""
        features = self.features(obs)
        return *self._judge(self.head(self.actor(features)), actions, mask), self._values_of(features)

    def _values_of(self, features: Tensor) -> Tensor:
        return self.value_head(self.critic(features)).squeeze(-1)

    def _judge(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return judge(self.action, outputs, self.log_std, actions, mask)


def scaled(network: ObservationScale, obs: Tensor) -> Tensor:
    """Observations [B, ...] as a network's first layer takes them: by their moments, or pictures as 0..1."""
    if network.normalise:
        return ((obs - network.obs_mean) / network.obs_scale).clamp(-MAX_NORMALISED, MAX_NORMALISED)
    return brightness(obs) if network.is_bytes else obs


def compiled(network: nn.Module) -> MLPStep | PlaneStep | None:
    """Kernels for exactly this network, if there are any: a subclass may compute something else."""
    if type(network) is not ActorCritic:
        return None
    if network.sparse_planes != "off":
        return PlaneStep(network, network.sparse_planes)
    if network.body is not None:
        return None
    return MLPStep(network) if is_tanh_tower(network.actor) and is_tanh_tower(network.critic) else None


def load_weights(network: nn.Module, weights: Weights) -> None:
    """Copy a snapshot's weights into a network, from wherever they lie."""
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            tensor.copy_(torch.as_tensor(weights[name]))


class Actor:
    """Acts with given weights. The collectors' side of the policy."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network.eval()
        self._compiled = compiled(network)

    def load(self, weights: object) -> None:
        load_weights(self._network, weights)

    def noise(self, seed: int, steps: int, num_envs: int) -> np.ndarray:
        return noise_for(self._network.action, seed, steps, num_envs)

    @torch.no_grad()
    def act(self, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if self._compiled is not None:
            return self._compiled.act(obs, noise, mask)
        network = self._network
        return choose(network.action, network.outputs(torch.from_numpy(obs)), network.log_std, noise, mask)

    def drawn(self, obs: np.ndarray, mask: np.ndarray | None, seed: int) -> np.ndarray:
        """Actions by the policy's own chances."""
        return self.act(obs, self.noise(seed, 1, len(obs))[0], mask)[0]

    @torch.no_grad()
    def best(self, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """The most likely action: for evaluation."""
        silent = np.zeros((len(obs), num_outputs(self._network.action)), np.float32)
        return self.act(obs, silent, mask)[0]
