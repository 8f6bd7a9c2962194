"""Acting and learning with the standard network, by kernels that know it.

For an `ActorCritic` of tanh layers, which is what vectors are observed with, a gradient step of autograd is
mostly overhead: a graph of a hundred small operations is built, walked back and thrown away. Here the
derivative is written down once (mlp_kernels.py) and a whole pass over a batch is one call without the GIL, so
that a collector in another thread goes on meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from headway.envs.gymnasium_vector import Continuous, Discrete
from headway.ppo import mlp_kernels as kernels
from headway.ppo.mlp_flat import Adam, flatten
from headway.ppo.mlp_memory import CHUNK, Loss, MLPLayout, MLPRows, Scratch

NUM_MEASURES = 5


class MLPStep:
    """What a two-tower tanh network does with rows. Its tensors become views of `flat`; buffers are its own."""

    def __init__(self, network: Any, layout: MLPLayout | None = None) -> None:
        self.flat = flatten(network)
        self.gradient = np.zeros_like(self.flat)
        self._action = network.action
        self.layout = layout_of(network, network.obs_mean.numel()) if layout is None else layout
        sizes, num_outputs = self.layout.sizes, self.layout.num_outputs
        widest = max((int(size) for size in sizes[1:]), default=1)
        self._scratch = Scratch(
            x=np.zeros((int(sizes[0]), CHUNK), np.float32),
            hidden=np.zeros((len(sizes) - 1, widest, CHUNK), np.float32),
            change=np.zeros((2, widest, CHUNK), np.float32),
            out=np.zeros((num_outputs, CHUNK), np.float32),
            chances=np.zeros((num_outputs, CHUNK), np.float32),
            entropies=np.zeros(CHUNK, np.float32),
        )
        self._no_masks = np.zeros((0, num_outputs), bool)

    def act(self, obs: np.ndarray, noise: np.ndarray, masks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Actions [B, ...] and their log-probabilities [B]."""
        num = len(obs)
        choices = np.empty((num, len(self.layout.choices)), np.int64)
        reals = np.empty((num, 0 if len(self.layout.choices) else self.layout.num_outputs), np.float32)
        log_probs = np.empty(num, np.float32)
        legal = self._no_masks if masks is None else masks
        out = self._outputs(0, obs)
        memory = (out, np.empty_like(out), np.arange(num))
        kernels.choose(self.flat, self.layout, *memory, noise, legal, choices, reals, log_probs)
        if isinstance(self._action, Continuous):
            return reals, log_probs
        return choices[:, 0] if isinstance(self._action, Discrete) else choices, log_probs

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Of observations [B, ...]."""
        return self._outputs(1, obs)[0]

    def log_probs(self, rows: MLPRows, part: slice) -> np.ndarray:
        """Of the actions in `part` of the rows."""
        some = MLPRows(*(array[part] for array in rows))
        entropies, log_probs = np.empty((2, len(some.obs)), np.float32)
        out = self._outputs(0, some.obs)
        memory = (out, np.empty_like(out), np.arange(len(log_probs)))
        kernels.log_probs_of(self.flat, self.layout, some, *memory, entropies, log_probs)
        return log_probs

    def _outputs(self, tower: int, obs: np.ndarray) -> np.ndarray:
        out = np.empty((1 if tower else self.layout.num_outputs, len(obs)), np.float32)
        rows = np.ascontiguousarray(obs.reshape(len(obs), -1))
        kernels.forward(self.flat, self.layout, tower, rows, np.arange(len(rows)), self._scratch, out)
        return out

    def gradient_of(
        self, rows: MLPRows, columns: np.ndarray, part: np.ndarray, moments: tuple[float, float], loss: Loss
    ) -> np.ndarray:
        """Writes the gradient of the mean loss over the rows in `part` to `gradient`; returns the measures."""
        measures = np.empty(NUM_MEASURES)
        kernels.gradient_of(
            self.flat, self.gradient, self.layout, loss, rows, columns, part, moments, self._scratch, measures
        )
        return measures

    def learn(
        self, rows: MLPRows, columns: np.ndarray, order: np.ndarray, size: int, loss: Loss, adam: Adam, rate: float
    ) -> np.ndarray:
        """A pass over `rows` in `order`, `size` rows a step of Adam, in one call; the measures of each step."""
        measured = np.empty((-(-len(order) // size), NUM_MEASURES))
        weights = (self.flat, self.gradient, self.layout)
        kernels.learn(*weights, loss, rows, columns, order, size, self._scratch, adam.memory, rate, measured)
        return measured

    def rows(self, obs: np.ndarray, actions: np.ndarray, masks: np.ndarray | None) -> MLPRows:
        """Arrays [B, ...] in the form the kernels take."""
        num, is_real = len(obs), isinstance(self._action, Continuous)
        return MLPRows(
            obs=np.ascontiguousarray(obs.reshape(num, -1)),
            choices=np.zeros((num, 0), np.int64) if is_real else actions.reshape(num, -1).astype(np.int64),
            reals=np.ascontiguousarray(actions, np.float32) if is_real else np.zeros((num, 0), np.float32),
            masks=self._no_masks if masks is None else np.ascontiguousarray(masks),
        )


def is_tanh_tower(tower: nn.Module) -> bool:
    """Whether the kernels know it: a vector (or something flattened) through Linear and Tanh by turns."""
    layers = list(tower.children())
    known = [nn.Linear, nn.Tanh] * (len(layers) // 2)
    return [type(layer) for layer in layers[1:]] == known and isinstance(layers[0], nn.Identity | nn.Flatten)


def layout_of(network: Any, width: int) -> MLPLayout:
    """Where what is in the flat vector, of layers that see `width` numbers."""
    begins, begin = {}, 0
    for name, parameter in network.named_parameters():
        begins[name] = begin
        begin += parameter.numel()
    hidden = [index for index, layer in enumerate(network.actor) if isinstance(layer, nn.Linear)]
    towers = ("actor", "head"), ("critic", "value_head")
    names = [[*(f"{tower}.{index}" for index in hidden), head] for tower, head in towers]
    places = [[[begins[f"{name}.weight"], begins[f"{name}.bias"]] for name in tower] for tower in names]
    action = network.action
    is_real = isinstance(action, Continuous)
    options = () if is_real else (action.n,) if isinstance(action, Discrete) else action.choices
    return MLPLayout(
        sizes=np.array([width, *(network.actor[index].out_features for index in hidden)]),
        places=np.array(places),
        choices=np.array(options, np.int64),
        num_outputs=network.head.out_features,
        log_std=begins.get("log_std", -1),
        mean=network.obs_mean.numpy().reshape(-1),
        scale=network.obs_scale.numpy().reshape(-1),
        normalise=network.normalise,
    )
