"""A policy and its value estimate, for every kind of action the environments here have.

    vectors    obs --> [normalise] -------------------> tower --> head --> distribution over actions
                                                   \\--> tower --> value

    pictures   obs --> 0..1 --> planes --> halved until no side is longer than 8 --> the same two towers

Sampling takes its noise from outside (Gumbel for choices, normal for continuous actions), so that acting is a
pure function of weights, observation and noise. The running mean and scale of the observations are part of
the weights: a version that is published acts exactly as it was trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from headway.core.opaque import Weights
from headway.envs.gymnasium_vector import ActionSpec, Continuous, Discrete, Spec
from headway.learn.input_scale import brightness
from headway.learn.ppo.mlp_step import MLPStep, is_tanh_tower
from headway.learn.ppo.network import PPONetwork

MASKED = -1e9  # instead of -inf: its log-probability stays finite, and so do gradients
MAX_NORMALISED = 10.0
Widths = TypeVar("Widths", bound=Sequence[int])


class ActorCritic(PPONetwork):
    """Two towers of tanh layers, one for acting, one for the value. Pictures have convolutions before both."""

    body: nn.Sequential | None

    def __init__(self, spec: Spec, hidden: Sequence[int] = (64, 64), *, normalise: bool = False, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
        self.action = spec.action
        self.normalise = normalise
        self.is_bytes = spec.is_bytes
        self.body, shape = _body(spec)
        self.actor, width = _tower(shape, hidden)
        self.critic, _ = _tower(shape, hidden)
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
        """What both towers see of observations [B, ...]."""
        if self.normalise:
            obs = ((obs - self.obs_mean) / self.obs_scale).clamp(-MAX_NORMALISED, MAX_NORMALISED)
        elif self.is_bytes:
            obs = brightness(obs)
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
        if isinstance(self.action, Continuous):
            return _gaussian(outputs, self.log_std, actions)
        log_prob = entropy = outputs.new_zeros(len(outputs))
        for place, logits in enumerate(self._split(outputs, mask)):
            logs = torch.log_softmax(logits, -1)
            chosen = actions if isinstance(self.action, Discrete) else actions[:, place]
            log_prob = log_prob + logs.gather(1, chosen[:, None].long()).squeeze(1)
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return log_prob, entropy

    def _split(self, outputs: Tensor, mask: Tensor | None) -> list[Tensor]:
        """Logits of each choice; illegal actions are put out of reach."""
        if mask is not None:
            outputs = torch.where(mask, outputs, MASKED)
        if isinstance(self.action, Discrete):
            return [outputs]
        return list(outputs.split(list(self.action.choices), dim=-1))  # type: ignore[union-attr]


def compiled(network: nn.Module) -> MLPStep | None:
    """Kernels for exactly this network, if there are any: a subclass may compute something else."""
    if type(network) is not ActorCritic or network.body is not None:
        return None
    return MLPStep(network) if is_tanh_tower(network.actor) and is_tanh_tower(network.critic) else None


def require_widths(hidden: Widths) -> Widths:
    """The widths of layers, if there can be such layers: through a layer of no units nothing is seen."""
    if any(width < 1 for width in hidden):
        raise ValueError(f"a layer needs at least 1 unit, received {list(hidden)}; [] is a network without layers")
    return hidden


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

    def drawn(self, obs: np.ndarray, mask: np.ndarray | None, seed: int) -> np.ndarray:
        """Actions by the policy's own chances."""
        return self.act(obs, self.noise(seed, 1, len(obs))[0], mask)[0]

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
    require_widths(hidden)
    layers: list[nn.Module] = [nn.Flatten() if len(shape) != 1 else nn.Identity()]
    width = math.prod(shape)
    for size in hidden:
        layers += [nn.Linear(width, size), nn.Tanh()]
        width = size
    return nn.Sequential(*layers), width


FIRST_CHANNELS, MOST_CHANNELS = 16, 64
SMALL_SIDE = 16
"""The first convolution leaves a picture of this size or less as it is; it halves what is larger, as all others do."""
LAST_SIDE = 8
"""Convolutions follow each other until no side is longer."""


def _body(spec: Spec) -> tuple[nn.Sequential | None, tuple[int, ...]]:
    """Convolutions from pictures to a vector, if these are pictures; and the shape of what the towers see."""
    axes = _axes_of_planes(spec)
    if axes is None:
        return None, spec.observation
    *of_channels, height, width = (spec.observation[axis - 1] for axis in axes)
    layers: list[nn.Module] = [_Planes(axes)]
    channels, wanted, stride = math.prod(of_channels), FIRST_CHANNELS, 1 if max(height, width) <= SMALL_SIDE else 2
    is_small = False
    while not is_small:
        layers += [nn.Conv2d(channels, wanted, 3, stride, padding=1), nn.ReLU()]
        height, width = -(-height // stride), -(-width // stride)
        is_small = stride == 2 and max(height, width) <= LAST_SIDE
        channels, wanted, stride = wanted, min(2 * wanted, MOST_CHANNELS), 2
    return nn.Sequential(*layers, nn.Flatten()), (channels * height * width,)


def _axes_of_planes(spec: Spec) -> tuple[int, ...] | None:
    """Where a batch of pictures has its channels, then height and width; None for what is no picture."""
    shape = spec.observation
    if len(shape) == 3:
        channels = min(shape)
        if channels in (shape[0], shape[2]):
            return (1, 2, 3) if channels == shape[0] else (3, 1, 2)
    elif len(shape) == 2 and spec.is_bytes:
        return (1, 2)
    elif len(shape) == 4 and spec.is_bytes:
        return (1, 4, 2, 3)  # frames, one after the other
    if len(shape) == 3 or spec.is_bytes:
        raise ValueError(
            f"observations {list(shape)} are no picture that can be read; allowed: [height, width] of bytes, "
            "[height, width, channels] or [channels, height, width] with fewer channels than either, "
            "[frames, height, width, channels] of bytes"
        )
    return None


class _Planes(nn.Module):
    """Pictures [B, ...] as planes [B, channels, height, width]."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self._axes = axes

    def forward(self, pictures: Tensor) -> Tensor:
        planes = pictures.permute(0, *self._axes)
        return planes.unsqueeze(1) if planes.ndim == 3 else planes.flatten(1, -3)
