"""A policy and its value estimate, for every kind of action the environments here have.

    obs --> [normalise] --> tower --> head --> distribution over actions
                       \\--> tower --> value

Sampling takes its noise from outside (Gumbel for choices, normal for continuous actions), so that acting is a
pure function of weights, observation and noise. The running mean and scale of the observations are part of
the weights: a version that is published acts exactly as it was trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.envs.gymnasium_vector import ActionSpec, Continuous, Discrete, Spec
from headway.learn.ppo.mlp_step import MLPStep, is_tanh_tower

MASKED = -1e9  # instead of -inf: its log-probability stays finite, and so do gradients
MAX_NORMALISED = 10.0


class ActorCritic(nn.Module):
    """Two towers of tanh layers (or small convolutions for pictures), one for acting, one for the value."""

    obs_mean: Tensor
    obs_scale: Tensor

    def __init__(self, spec: Spec, hidden: Sequence[int] = (64, 64), *, normalise: bool = False, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
        self.action = spec.action
        self.normalise = normalise
        self.actor, width = _tower(spec.observation, hidden)
        self.critic, _ = _tower(spec.observation, hidden)
        self.head = nn.Linear(width, _num_outputs(spec.action))
        self.value_head = nn.Linear(width, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                scale = {id(self.head): 0.01, id(self.value_head): 1.0}.get(id(module), math.sqrt(2))
                nn.init.orthogonal_(module.weight, scale, generator=random)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if isinstance(spec.action, Continuous):
            self.log_std = nn.Parameter(torch.zeros(len(spec.action.low)))
        self.register_buffer("obs_mean", torch.zeros(spec.observation))
        self.register_buffer("obs_scale", torch.ones(spec.observation))

    def features(self, obs: Tensor) -> Tensor:
        if not self.normalise:
            return obs
        return ((obs - self.obs_mean) / self.obs_scale).clamp(-MAX_NORMALISED, MAX_NORMALISED)

    def outputs(self, obs: Tensor) -> Tensor:
        """What the distribution is made of: logits, or means."""
        result: Tensor = self.head(self.actor(self.features(obs)))
        return result

    def values(self, obs: Tensor) -> Tensor:
        result: Tensor = self.value_head(self.critic(self.features(obs))).squeeze(-1)
        return result

    def log_probs_and_entropy(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of each action [B], and the entropy of the distribution it was drawn from [B]."""
        outputs = self.outputs(obs)
        if isinstance(self.action, Continuous):
            return _gaussian(outputs, self.log_std, actions)
        log_prob = entropy = outputs.new_zeros(len(obs))
        for place, logits in enumerate(self._split(outputs, mask)):
            logs = torch.log_softmax(logits, -1)
            chosen = actions if isinstance(self.action, Discrete) else actions[:, place]
            log_prob = log_prob + logs.gather(1, chosen[:, None].long()).squeeze(1)
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return log_prob, entropy

    def evaluate(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values, each [B]: what a loss is made of."""
        return *self.log_probs_and_entropy(obs, actions, mask), self.values(obs)

    def _split(self, outputs: Tensor, mask: Tensor | None) -> list[Tensor]:
        """Logits of each choice; illegal actions are put out of reach."""
        if mask is not None:
            outputs = torch.where(mask, outputs, MASKED)
        if isinstance(self.action, Discrete):
            return [outputs]
        return list(outputs.split(list(self.action.choices), dim=-1))  # type: ignore[union-attr]


def compiled(network: nn.Module) -> MLPStep | None:
    """Kernels for exactly this network, if there are any: a subclass may compute something else."""
    is_known = type(network) is ActorCritic and is_tanh_tower(network.actor) and is_tanh_tower(network.critic)
    return MLPStep(network) if is_known else None


def load_weights(network: nn.Module, weights: Any) -> None:
    """Copy a snapshot's weights into a network, from wherever they lie."""
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            tensor.copy_(torch.as_tensor(weights[name]))


class Actor:
    """Acts with given weights. The collectors' side of the policy."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network.eval()
        self._compiled = compiled(network)

    def load(self, weights: Any) -> None:
        load_weights(self._network, weights)

    def noise(self, seed: int, steps: int, num_envs: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        shape = (steps, num_envs, _num_outputs(self._network.action))
        if isinstance(self._network.action, Continuous):
            return rng.standard_normal(shape, dtype=np.float32)
        return -np.log(-np.log(rng.random(shape, dtype=np.float32) * (1 - 2e-7) + 1e-7))

    @torch.no_grad()
    def act(self, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if self._compiled is not None:
            return self._compiled.act(obs, noise, mask)
        network = self._network
        outputs = network.outputs(torch.from_numpy(obs))
        drawn = torch.from_numpy(noise)
        if isinstance(network.action, Continuous):
            actions = outputs + network.log_std.exp() * drawn
            log_probs, _ = _gaussian(outputs, network.log_std, actions)
            return actions.numpy(), log_probs.numpy()
        legal = None if mask is None else torch.from_numpy(mask)
        chosen, log_prob, start = [], torch.zeros(len(obs)), 0
        for logits in network._split(outputs, legal):
            width = logits.shape[-1]
            action = (logits + drawn[:, start : start + width]).argmax(-1)
            log_prob = log_prob + torch.log_softmax(logits, -1).gather(1, action[:, None]).squeeze(1)
            chosen.append(action)
            start += width
        actions = chosen[0] if isinstance(network.action, Discrete) else torch.stack(chosen, -1)
        return actions.numpy(), log_prob.numpy()

    @torch.no_grad()
    def best(self, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """The most likely action: for evaluation."""
        silent = np.zeros((len(obs), _num_outputs(self._network.action)), np.float32)
        return self.act(obs, silent, mask)[0]


def _num_outputs(action: ActionSpec) -> int:
    if isinstance(action, Discrete):
        return action.n
    return len(action.low) if isinstance(action, Continuous) else sum(action.choices)


def _gaussian(means: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    scaled = (actions - means) / log_std.exp()
    log_probs = (-0.5 * scaled**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(means))
    return log_probs, entropy


def _tower(shape: tuple[int, ...], hidden: Sequence[int]) -> tuple[nn.Sequential, int]:
    """Layers from an observation to features, and how many of those there are."""
    layers: list[nn.Module] = []
    if len(shape) == 3:
        channels = min(shape)
        first = shape.index(channels) == 0
        layers += [nn.Identity() if first else _ChannelsFirst(), nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()]
        with torch.no_grad():
            width = int(nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1])
    else:
        layers.append(nn.Flatten() if len(shape) != 1 else nn.Identity())
        width = math.prod(shape)
    for size in hidden:
        layers += [nn.Linear(width, size), nn.Tanh()]
        width = size
    return nn.Sequential(*layers), width


class _ChannelsFirst(nn.Module):
    def forward(self, pictures: Tensor) -> Tensor:
        return pictures.permute(0, 3, 1, 2)
