"""MuZero's side of a search: latents by node number, and a batch of the network for every simulation.

    begin(obs) --> node 0 of every row        expand(s, parents, actions) --> node s + 1 of every row

For vectors on a CPU everything but the products is computed by kernels (vector_kernels.py), else all of it by torch.
Both give the same numbers up to rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.learn.device_calls import DeviceCalls, pack, unpack
from headway.learn.input_scale import InputScale
from headway.learn.muzero import vector_kernels as kernels
from headway.learn.muzero.network import MuZeroNetwork, VectorNetwork
from headway.learn.packed import load_weights, writeable
from headway.search.interface import Leaves
from headway.search.planning import SearchableModel


def searchable(network: MuZeroNetwork, device: str = "cpu") -> SearchableModel:
    """The fastest way this network can be searched with."""
    if type(network) is VectorNetwork and device == "cpu":  # a subclass may compute something else
        return VectorModel(network)
    return TorchModel(network, device)


class TorchModel:
    """Any network, on any device."""

    def __init__(self, network: MuZeroNetwork, device: str = "cpu") -> None:
        self._network = network.to(device).eval()
        self._device = device
        self._calls = DeviceCalls(device)
        self._latents = torch.zeros(0, 0, device=device)

    def load(self, weights: Any) -> None:
        load_weights(self._network, weights)

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

    @torch.inference_mode()
    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        return self._calls.ask(simulation, partial(self._expand, simulation + 1), parents, actions)

    def _expand(self, node: int, parents: Tensor, actions: Tensor) -> Tensor:
        latents, traces = self._network.step(self._latents[parents, self._rows], actions)
        self._latents[node] = latents
        features = self._network.look(latents)
        reward_logits = self._network.rewards(features, traces)
        return self._answer(features, self._network.architecture.reward_support.decode(reward_logits))

    def _answer(self, features: Tensor, rewards: Tensor) -> Tensor:
        logits, value_logits = self._network.judge(features)
        return pack(rewards, self._network.architecture.value_support.decode(value_logits), logits)


class VectorModel:
    """A `VectorNetwork`: products by torch, everything between by kernels, nothing allocated on the way.

    What it answers is its own memory, good until the next question.
    """

    def __init__(self, network: VectorNetwork) -> None:
        self._network = network
        self._latents = np.zeros((0, 0, network.architecture.latent), np.float32)
        self._read()

    def load(self, weights: Any) -> None:
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
            self._actions = net.action.weight.detach().clone().numpy()

    def begin(self, obs: np.ndarray, num_nodes: int) -> Leaves:
        rows = writeable(np.ascontiguousarray(obs.reshape(len(obs), -1), np.float32))
        if self._latents.shape[:2] != (num_nodes, len(rows)):
            self._make_room(num_nodes, len(rows))
        function = self._encoder
        with torch.inference_mode():
            torch.addmm(function.bias, torch.from_numpy(rows), function.first, out=self._hidden)
            kernels.activate(self._hidden_array, *function.norm)
            torch.addmm(function.last_bias, self._hidden, function.last, out=self._latent_tensors[0])
            kernels.normalise(self._latents[0])
            self._predict(0)
        return self._leaves

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        function, node = self._dynamics, simulation + 1
        kernels.pick(self._latents, parents, self._before_array)
        with torch.inference_mode():
            torch.mm(self._before, function.first, out=self._hidden)
            kernels.activate_with_action(self._hidden_array, self._actions, actions, *function.norm)
            torch.addmm(function.last_bias, self._hidden, function.last, out=self._stepped)
            rewards = (self._leaves.rewards, *self._reward_bins)
            kernels.arrive(self._before_array, self._stepped_array, self._latents[node], *rewards)
            self._predict(node)
        return self._leaves

    def _predict(self, node: int) -> None:
        function, leaves = self._prediction, self._leaves
        torch.addmm(function.bias, self._latent_tensors[node], function.first, out=self._hidden)
        kernels.activate(self._hidden_array, *function.norm)
        torch.addmm(function.last_bias, self._hidden, function.last, out=self._announced)
        kernels.announce(self._announced_array, leaves.logits, leaves.values, *self._value_bins)

    def _make_room(self, num_nodes: int, num_rows: int) -> None:
        a = self._network.architecture

        def room(*shape: int) -> tuple[np.ndarray, Tensor]:
            array = np.zeros(shape, np.float32)
            return array, torch.from_numpy(array)

        self._latents, latents = room(num_nodes, num_rows, a.latent)
        self._latent_tensors = list(latents)
        self._before_array, self._before = room(num_rows, a.latent)
        self._hidden_array, self._hidden = room(num_rows, a.hidden)
        self._stepped_array, self._stepped = room(num_rows, a.latent + a.reward_support.num_bins)
        self._announced_array, self._announced = room(num_rows, a.num_actions + a.value_support.num_bins)
        self._value_bins = np.float32(a.value_support.low), np.float32(a.value_support.step)
        self._reward_bins = np.float32(a.reward_support.low), np.float32(a.reward_support.step)
        self._leaves = Leaves(
            np.zeros(num_rows, np.float32),
            np.zeros(num_rows, np.float32),
            np.zeros((num_rows, a.num_actions), np.float32),
        )


class _Function:
    """A layer, its norm, and the layers that follow side by side. Copies: the network may be loaded meanwhile."""

    def __init__(self, before: Any, norm: Any, *after: Any, inputs: InputScale | None = None) -> None:
        weight = before.weight.detach()
        self.bias = torch.zeros(0) if before.bias is None else before.bias.detach().clone()
        if inputs is not None:
            weight = weight * inputs.scale
            self.bias -= weight @ inputs.mean
        self.first = weight.T.contiguous()
        self.norm = norm.weight.detach().clone().numpy(), norm.bias.detach().clone().numpy()
        self.last = torch.cat([layer.weight.detach() for layer in after]).T.contiguous()
        self.last_bias = torch.cat([layer.bias.detach() for layer in after])
