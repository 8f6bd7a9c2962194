"""A gradient step for any network, by autograd: what `mlp_step` does for the one it knows.

The gradients of the network's tensors are views of one vector, so that what follows (the norm, Adam, other ranks)
need not know the network.

    here (CPU)     flat --------+            +--> gradient --> Adam changes flat
    on a GPU                    +--> a copy --+

On another device a copy of the network computes, with the weights of the moment. Weights, gradient and optimizer stay
here, so nothing that leaves the learner was ever on that device.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.ppo.mlp_flat import Adam, flatten
from headway.ppo.mlp_kernels import MAX_LOG_RATIO, advantage_moments
from headway.ppo.mlp_memory import Loss
from headway.ppo.networks_network import ObservationScale


class TensorRows(NamedTuple):
    """What is learned from, where it is computed."""

    obs: Tensor  # [B, ...]
    actions: Tensor  # [B, ...]
    masks: Tensor | None  # [B, A]: which actions were legal, where some are not

    def at(self, index: Tensor | slice) -> TensorRows:
        return TensorRows(self.obs[index], self.actions[index], None if self.masks is None else self.masks[index])


class AutogradStep:
    """What a network does with rows, on `device`. Its tensors become views of `flat`.

    `columns` [B, 5] are for each row: anchor (a log-probability), advantage, target of the value, value before, weight
    of staleness. A sixth is the weight of replay, which the whole loss of a row is multiplied by.
    """

    def __init__(self, network: ObservationScale, device: str = "cpu") -> None:
        self.flat = flatten(network)
        self.gradient = np.zeros_like(self.flat)
        self._device = device
        self._original = network
        self._network: Any = network if device == "cpu" else copy.deepcopy(network).to(device)
        self._weights, self._gradient = self._send(self.flat), self._send(self.gradient)
        begin = 0
        for parameter in self._network.parameters():
            part = slice(begin, begin + parameter.numel())
            parameter.data = self._weights[part].view(parameter.shape)
            parameter.grad = self._gradient[part].view(parameter.shape)
            begin = part.stop

    def rows(self, obs: np.ndarray, actions: np.ndarray, masks: np.ndarray | None) -> TensorRows:
        return TensorRows(self._send(obs), self._send(actions), None if masks is None else self._send(masks))

    @torch.no_grad()
    def values(self, obs: np.ndarray) -> np.ndarray:
        """Of observations [B, ...]."""
        self._follow()
        return self._network.values(self._send(obs)).cpu().numpy()

    @torch.no_grad()
    def log_probs(self, rows: TensorRows, part: slice) -> np.ndarray:
        """Of the actions in `part` of the rows."""
        self._follow()
        log_probs, _ = self._network.log_probs_and_entropy(*rows.at(part))
        return log_probs.cpu().numpy()

    def learn(
        self, rows: TensorRows, columns: np.ndarray, order: np.ndarray, size: int, loss: Loss, adam: Adam, rate: float
    ) -> np.ndarray:
        """A pass over `rows` in `order`, `size` rows a step of Adam; the measures of each step."""
        mixed, numbers = rows.at(self._send(order)), columns[order]
        measured, every = [], np.arange(len(order))
        for start in range(0, len(order), size):
            part = every[start : start + size]
            measured.append(self.gradient_of(mixed, numbers, part, advantage_moments(numbers, part), loss))
            adam.apply(self.gradient, rate)
        return np.stack(measured)

    def gradient_of(
        self, rows: TensorRows, columns: np.ndarray, part: np.ndarray, moments: tuple[float, float], loss: Loss
    ) -> np.ndarray:
        """Writes the gradient of the mean loss over the rows in `part` to `gradient`; returns the measures."""
        self._follow()
        return self._gradient_by(self._network.evaluate(*rows.at(self._send(part))), columns[part], moments, loss)

    def _gradient_by(
        self,
        evaluated: tuple[Tensor, Tensor, Tensor],
        columns: np.ndarray,
        moments: tuple[float, float],
        loss: Loss,
    ) -> np.ndarray:
        """The same, of rows whose log-probabilities, entropies and values are known."""
        log_probs, entropies, values = evaluated
        anchor, advantages, targets, old_values, weights, *replayed = self._send(columns).unbind(1)
        advantages = (advantages - moments[0]) / moments[1]
        log_ratio = (log_probs - anchor).clamp(-float(MAX_LOG_RATIO), float(MAX_LOG_RATIO))
        ratio = log_ratio.exp()
        if loss.is_plain:
            policy_loss = -(advantages * log_probs).mean()
        else:
            clipped = ratio.clamp(1 - loss.clip, 1 + loss.clip)
            weights = replayed[0] * weights if replayed else weights
            policy_loss = -(weights * torch.minimum(ratio * advantages, clipped * advantages)).mean()
        errors = _value_errors(values, old_values, targets, loss.value_clip)
        value_loss, bonus = ((replayed[0] * each if replayed else each).mean() for each in (errors, entropies))
        self._gradient.zero_()
        (policy_loss + loss.value_weight * value_loss - loss.entropy_weight * bonus).backward()
        if self._network is not self._original:
            torch.from_numpy(self.gradient).copy_(self._gradient)
        with torch.no_grad():
            moved = (ratio - 1 - log_ratio).mean()
            clip_fraction = ((ratio - 1).abs() > loss.clip).float().mean()
            measures = torch.stack([policy_loss, value_loss, entropies.mean(), moved, clip_fraction]).double()
        return measures.cpu().numpy()

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    @torch.no_grad()
    def _follow(self) -> None:
        """A copy elsewhere gets the weights as they are now."""
        if self._network is self._original:
            return
        self._weights.copy_(torch.from_numpy(self.flat))
        for theirs, ours in zip(self._network.buffers(), self._original.buffers(), strict=True):
            theirs.copy_(ours)


def _value_errors(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    errors = (values - targets) ** 2
    if clip < float("inf"):
        near = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (near - targets) ** 2)
    return errors
