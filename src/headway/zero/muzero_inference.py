"""MuZero's side of a search: latents by node number, and a batch of the network for every simulation.

    begin(obs) --> node 0 of every row        expand(s, parents, actions) --> node s + 1 of every row

For vectors on a CPU everything but the products is computed by kernels (vector_kernels.py), else all of it by torch.
Both give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.envs.input_scale import InputScale
from headway.zero import muzero_vector_kernels as kernels
from headway.zero.model_calls_compiled_layers import array_of, bins_of, no_leaves, norm_of, product_of, room
from headway.zero.model_calls_device_calls import DeviceModel, unpack
from headway.zero.muzero_network import MuZeroNetwork, VectorNetwork
from headway.zero.planner_planning import SearchableModel
from headway.zero.search_interface import Leaves
from headway.zero.world_model_packed import load_weights, writeable


def searchable(network: MuZeroNetwork, device: str = "cpu") -> SearchableModel:
    """The fastest way this network can be searched with."""
    if type(network) is VectorNetwork and device == "cpu":  # a subclass may compute something else
        return VectorModel(network)
    return TorchModel(network, device)


class TorchModel(DeviceModel[MuZeroNetwork]):
    """Any network, on any device."""

    def __init__(self, network: MuZeroNetwork, device: str = "cpu") -> None:
        super().__init__(network, device)
        self._latents = torch.zeros(0, 0, device=device)

    @torch.inference_mode()
    def begin(self, obs: np.ndarray, num_nodes: int) -> Leaves:
        latents = self._network.encode(torch.from_numpy(writeable(obs)).to(self._device, torch.float32))
        if self._latents.shape[:2] != (num_nodes, len(obs)):
            self._latents = torch.zeros(num_nodes, *latents.shape, device=self._device)
            self._rows = torch.arange(len(obs), device=self._device)
            self._calls.make_room(len(obs))
        self._latents[0] = latents
        features = self._network.look(latents)
        return unpack(self._answer(features, features.new_zeros(len(obs))).cpu())

    def _expand(self, node: int, parents: Tensor, actions: Tensor) -> Tensor:
        latents, traces = self._network.step(self._latents[parents, self._rows], actions)
        self._latents[node] = latents
        features = self._network.look(latents)
        reward_logits = self._network.rewards(features, traces)
        return self._answer(features, self._network.reward_support.decode(reward_logits))


class VectorModel:
    """A `VectorNetwork`: products by torch, everything between by kernels, nothing allocated on the way.

    What it answers is its own memory, good until the next question.
    """

    def __init__(self, network: VectorNetwork) -> None:
        self._network = network
        self._latents = np.zeros((0, 0, network.architecture.latent), np.float32)
        self._read()

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        load_weights(self._network, weights)
        self._read()

    def _read(self) -> None:
        """The network's weights as the products want them: [in, out], and what reads the same rows side by side."""
        net = self._network
        encoder_in, encoder_norm, _, encoder_out = net.encoder
        prediction_in, prediction_norm, _ = net.prediction
        with torch.no_grad():
            self._encoder = _Function(encoder_in, encoder_norm, encoder_out, inputs=net.inputs)
            self._dynamics = _Function(net.dynamics_in, net.dynamics_norm, net.dynamics_out, net.reward_head)
            self._prediction = _Function(prediction_in, prediction_norm, net.policy_head, net.value_head)
            self._actions = array_of(net.action.weight)

    def begin(self, obs: np.ndarray, num_nodes: int) -> Leaves:
        rows = writeable(np.ascontiguousarray(obs.reshape(len(obs), -1), np.float32))
        if self._latents.shape[:2] != (num_nodes, len(rows)):
            self._make_room(num_nodes, len(rows))
        function = self._encoder
        with torch.inference_mode():
            torch.addmm(function.bias, torch.from_numpy(rows), function.first, out=self._hidden.tensor)
            kernels.activate(self._hidden.array, *function.norm)
            torch.addmm(function.last_bias, self._hidden.tensor, function.last, out=self._latent_tensors[0])
            kernels.normalise(self._latents[0])
            self._predict(0)
        return self._leaves

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        function, node = self._dynamics, simulation + 1
        kernels.pick(self._latents, parents, self._before.array)
        with torch.inference_mode():
            torch.mm(self._before.tensor, function.first, out=self._hidden.tensor)
            kernels.activate_with_action(self._hidden.array, self._actions, actions, *function.norm)
            torch.addmm(function.last_bias, self._hidden.tensor, function.last, out=self._stepped.tensor)
            rewards = (self._leaves.rewards, *self._reward_bins)
            kernels.arrive(self._before.array, self._stepped.array, self._latents[node], *rewards)
            self._predict(node)
        return self._leaves

    def _predict(self, node: int) -> None:
        function, leaves = self._prediction, self._leaves
        torch.addmm(function.bias, self._latent_tensors[node], function.first, out=self._hidden.tensor)
        kernels.activate(self._hidden.array, *function.norm)
        torch.addmm(function.last_bias, self._hidden.tensor, function.last, out=self._announced.tensor)
        kernels.announce(self._announced.array, leaves.logits, leaves.values, *self._value_bins)

    def _make_room(self, num_nodes: int, num_rows: int) -> None:
        a = self._network.architecture
        self._latents, latents = room(num_nodes, num_rows, a.latent)
        self._latent_tensors = list(latents)
        self._before = room(num_rows, a.latent)
        self._hidden = room(num_rows, a.hidden)
        self._stepped = room(num_rows, a.latent + a.reward_support.num_bins)
        self._announced = room(num_rows, a.num_actions + a.value_support.num_bins)
        self._value_bins, self._reward_bins = bins_of(a.value_support), bins_of(a.reward_support)
        self._leaves = no_leaves(num_rows, a.num_actions)


class _Function:
    """A layer, its norm, and the layers that follow side by side."""

    def __init__(self, before: Any, norm: Any, *after: Any, inputs: InputScale | None = None) -> None:
        weight = before.weight.detach()
        self.bias = torch.zeros(0) if before.bias is None else before.bias.detach().clone()
        if inputs is not None:
            weight = weight * inputs.scale
            self.bias -= weight @ inputs.mean
        self.first = weight.T.contiguous()
        self.norm = norm_of(norm)
        self.last, self.last_bias = product_of(*after)
