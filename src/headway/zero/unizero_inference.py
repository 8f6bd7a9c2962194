"""UniZero's side of a search: keys and values by node, looked up along the path.

    begin    past of raw observations and actions, and the root's --> one pass over them --> slots 1..C + 1
    expand   path of the parent --> gather --> action token --> next latent --> its token --> slot of the new node

    slot          0        1 .. C         C + 1     C + 2 + s
    holds     nothing   the past before    root     node s + 1          two tokens each: (action, latent)

A slot keeps the keys and values of its two tokens in every layer, [2, L, 2, D], and the last `attention_steps` slots
of its path, itself last. So a new node looks exactly at what it would look at in a pass over its whole sequence; only
what is gathered is copied, and nothing is guessed from how near two latents are. Positions count from the root.

Nothing outlives a search: the past is encoded anew by each, with the weights there are.

On a CPU everything in `expand` but the products is computed by kernels (path_kernels.py), elsewhere all of it by torch.
Both give the same numbers up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headway.zero import unizero_path_kernels as kernels
from headway.zero.model_calls_compiled_layers import Product, array_of, bins_of, no_leaves, norm_of, product_of, room
from headway.zero.model_calls_device_calls import DeviceModel, unpack
from headway.zero.muzero_vector_kernels import announce
from headway.zero.planner_history import Past
from headway.zero.search_interface import Leaves
from headway.zero.unizero_network import Block, UniZeroNetwork, turns
from headway.zero.world_model_packed import writeable


def searchable(network: UniZeroNetwork, *, context_steps: int = 0, device: str = "cpu") -> UniZeroModel:
    """The fastest way this network can be searched with."""
    kind = CompiledModel if device == "cpu" else UniZeroModel
    return kind(network, context_steps=context_steps, device=device)


class UniZeroModel(DeviceModel[UniZeroNetwork]):
    """A network to search with. `context_steps`: how many steps before the root it is shown; 0: the root alone."""

    def __init__(self, network: UniZeroNetwork, *, context_steps: int = 0, device: str = "cpu") -> None:
        if context_steps < 0:
            raise ValueError(f"context_steps must be >= 0, received {context_steps!r}")
        self.context_steps = context_steps
        super().__init__(network, device)
        self._blocks = [block for block in network.blocks if isinstance(block, Block)]
        self._shape = (0, 0)

    @torch.inference_mode()
    def begin(self, obs: np.ndarray, num_nodes: int, past: Past | None = None) -> Leaves:
        """:param past: the steps before the roots; None: there were none"""
        if self._shape != (num_nodes, len(obs)):
            self._make_room(num_nodes, len(obs))
        num, steps = len(obs), self.context_steps
        everything, actions, lengths = self._sequence(obs, past)
        latents = self._network.encode(everything.flatten(0, 1)).view(num, steps + 1, -1)
        sequence = self._network(latents, actions, lengths)
        filled = self._memory.view(-1, num, *self._memory.shape[1:])[1 : steps + 2]  # [C + 1, B, 2, L, 2, D]
        filled[:, :, 1] = sequence.memory[:, ::2].transpose(0, 1)
        filled[1:, :, 0] = sequence.memory[:, 1::2].transpose(0, 1)
        self._look_back(lengths)
        self._latents[0] = latents[:, -1]
        self._depths[0] = 0
        seen = sequence.seen[:, -1]
        return unpack(self._answer(seen, seen.new_zeros(num)).cpu())

    def _sequence(self, obs: np.ndarray, past: Past | None) -> tuple[Tensor, Tensor, Tensor]:
        """Observations [B, C + 1, ...], actions [B, C] and how many of the observations there are [B]."""
        newest = torch.from_numpy(writeable(obs)).to(self._device, torch.float32)[:, None]
        num, steps = len(obs), self.context_steps
        if not steps:
            return newest, newest.new_zeros((num, 0), dtype=torch.long), self._ones
        if past is None:
            before = newest.new_zeros((num, steps, *newest.shape[2:]))
            return torch.cat((before, newest), 1), newest.new_zeros((num, steps), dtype=torch.long), self._ones
        if past.actions.shape != (num, steps):
            raise ValueError(f"the past of {num} roots is [{num}, {steps}], received {list(past.actions.shape)}")
        before = torch.from_numpy(past.obs).to(self._device, torch.float32)
        lengths = torch.from_numpy(past.lengths).to(self._device)
        return torch.cat((before, newest), 1), self._index(past.actions), lengths + 1

    def _look_back(self, lengths: Tensor) -> None:
        """The root's path, and which tokens of the past are there: of its first node only the latent."""
        num, steps, width = len(lengths), self.context_steps, self._paths.shape[2]
        age = torch.arange(steps, -1, -1, device=self._device)[:, None]  # [C + 1, 1]: 0 is the root
        seen = self._bias.view(-1, num, 2)[1 : steps + 2]
        seen[:, :, 1] = torch.where(age < lengths, 0.0, -math.inf)
        seen[:, :, 0] = torch.where(age < lengths - 1, 0.0, -math.inf)
        slots = torch.arange(steps + 2 - width, steps + 2, device=self._device).clamp(min=0)
        self._paths[0] = slots * num + self._rows[:, None]

    def _expand(self, node: int, parents: Tensor, actions: Tensor) -> Tensor:
        network, num = self._network, len(parents)
        at = parents * num + self._rows
        path = self._paths[node]
        path[:, :-1] = self._paths.view(-1, path.shape[1]).index_select(0, at)[:, 1:]
        path[:, -1] = self._rows + (self.context_steps + 1 + node) * num
        known = self._memory.index_select(0, path.flatten())  # the new node's own rows are filled in below
        known = known.view(num, -1, *self._memory.shape[2:])  # [B, 2 * width, L, 2, D]
        bias = self._bias.index_select(0, path.flatten()).view(num, 1, 1, -1)
        depths = self._depths.view(-1).index_select(0, at) + 1
        self._depths[node] = depths
        phases = self._turns.index_select(0, depths)  # [B, 2, head_dim / 2]
        before = self._latents.view(-1, self._latents.shape[2]).index_select(0, at)

        own = known.shape[1] - 2
        done = self._token(network.action(actions), own, phases[:, 0], known, bias)
        latents, reward_logits = network.expect(done, before)
        seen = self._token(latents, own + 1, phases[:, 1], known, bias)
        slot = (self.context_steps + 1 + node) * num
        self._memory[slot : slot + num] = known[:, own:]
        self._latents[node] = latents
        return self._answer(seen, network.reward_support.decode(reward_logits))

    def _token(self, token: Tensor, place: int, phases: Tensor, known: Tensor, bias: Tensor) -> Tensor:
        """What becomes of a token [B, D] that looks at all places up to its own; its keys and values go there."""
        x, phases, bias = token[:, None], phases[:, None, None, None], bias[..., : place + 1]
        for layer, block in enumerate(self._blocks):
            queries, known[:, place : place + 1, layer] = block.project(x, phases)
            x = block.attend(x, queries, known[:, : place + 1, layer], bias)
        return self._network.last(x[:, 0])

    def _make_room(self, num_nodes: int, num_rows: int) -> None:
        a, slots = self._network.architecture, self.context_steps + 1 + num_nodes
        zeros = partial(torch.zeros, device=self._device)
        self._memory = zeros(slots * num_rows, 2, a.layers, 2, a.dim)
        self._bias = zeros(slots * num_rows, 2)
        self._bias[:num_rows] = -math.inf  # of nothing
        self._paths = zeros(num_nodes, num_rows, a.attention_steps, dtype=torch.long)
        self._depths = zeros(num_nodes, num_rows, dtype=torch.long)
        self._latents = zeros(num_nodes, num_rows, a.dim)
        self._rows = torch.arange(num_rows, device=self._device)
        self._ones = torch.ones(num_rows, dtype=torch.long, device=self._device)
        places = 2 * torch.arange(num_nodes, device=self._device)[:, None] + torch.tensor([-1, 0], device=self._device)
        self._turns = turns(places, a.head_dim)
        self._calls.make_room(num_rows)
        self._shape = (num_nodes, num_rows)

    def _index(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self._device, torch.long)


class CompiledModel(UniZeroModel):
    """The same on a CPU: products by torch, everything between by kernels, nothing allocated on the way.

    What `expand` answers is its own memory, good until the next question.
    """

    def __init__(self, network: UniZeroNetwork, *, context_steps: int = 0, device: str = "cpu") -> None:
        if device != "cpu":
            raise ValueError(f"kernels are compiled for the CPU, received device {device!r}")
        super().__init__(network, context_steps=context_steps)
        self._read()

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        super().load(weights)
        self._read()

    def _read(self) -> None:
        """The network's weights as the products want them: [in, out], and what reads the same rows side by side."""
        net, dim = self._network, self._network.architecture.dim
        self._actions = array_of(net.action.weight)
        self._layers = [
            (
                *(norm_of(block.before), product_of(block.ask), product_of(block.answer)),
                *(norm_of(block.between), product_of(block.inner), product_of(block.outer)),
            )
            for block in self._blocks
        ]
        self._last = norm_of(net.last)
        self._seen = product_of(net.seen_layer), product_of(net.policy_head, net.value_head)
        self._done = product_of(net.done_layer), product_of(net.change_head, net.reward_head)
        self._plain = np.ones(dim, np.float32), np.zeros(dim, np.float32)

    def _make_room(self, num_nodes: int, num_rows: int) -> None:
        super()._make_room(num_nodes, num_rows)
        a = self._network.architecture
        rows = partial(room, num_rows)
        self._x, self._before = rows(a.dim).array, rows(a.dim).array
        self._normed, self._heard, self._change = rows(a.dim), rows(a.dim), rows(a.dim)
        self._asked, self._inner, self._hidden = rows(3 * a.dim), rows(4 * a.dim), rows(2 * a.dim)
        self._judged = rows(a.num_actions + a.value_support.num_bins)
        self._expected = rows(a.dim + a.reward_support.num_bins)
        self._scores = np.zeros(2 * a.attention_steps, np.float32)
        self._tree = self._memory.numpy(), self._bias.numpy(), self._paths.numpy(), self._depths.numpy()
        self._latent_rows = self._latents.numpy()
        self._angles = torch.view_as_real(self._turns).numpy()
        self._value_bins, self._reward_bins = bins_of(a.value_support), bins_of(a.reward_support)
        self._leaves = no_leaves(num_rows, a.num_actions)

    @torch.inference_mode()
    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        node, x, answer = simulation + 1, self._x, self._leaves
        _, _, paths, depths = self._tree
        latents = self._latent_rows
        kernels.follow(paths, depths, latents, parents, node, self.context_steps + 1, self._before)
        kernels.look_up(self._actions, actions, x)
        self._pass(node, 0)
        self._read_off(self._done, self._expected.tensor)
        announce(self._expected.array, self._change.array, answer.rewards, *self._reward_bins)
        kernels.arrive(self._before, self._change.array, *self._plain, latents[node], x)
        self._pass(node, 1)
        self._read_off(self._seen, self._judged.tensor)
        announce(self._judged.array, answer.logits, answer.values, *self._value_bins)
        return answer

    def _pass(self, node: int, token: int) -> None:
        """What becomes of the token x, normed."""
        memory, bias, paths, depths = self._tree
        x, (rows, normed), change = self._x, self._normed, self._change
        self._change.array[:] = 0
        for layer, (before, ask, answer, between, inner, outer) in enumerate(self._layers):
            kernels.add_norm(x, change.array, *before, rows)
            torch.addmm(ask[1], normed, ask[0], out=self._asked.tensor)
            kernels.attend(
                *(self._asked.array, memory, bias, paths, depths, node, token, layer),
                *(self._angles, self._network.architecture.heads, self._scores, self._heard.array),
            )
            torch.addmm(answer[1], self._heard.tensor, answer[0], out=change.tensor)
            kernels.add_norm(x, change.array, *between, rows)
            torch.addmm(inner[1], normed, inner[0], out=self._inner.tensor)
            kernels.activate(self._inner.array)
            torch.addmm(outer[1], self._inner.tensor, outer[0], out=change.tensor)
        kernels.add_norm(x, change.array, *self._last, rows)

    def _read_off(self, heads: tuple[Product, Product], out: Tensor) -> None:
        first, last = heads
        torch.addmm(first[1], self._normed.tensor, first[0], out=self._hidden.tensor)
        kernels.activate(self._hidden.array)
        torch.addmm(last[1], self._hidden.tensor, last[0], out=out)
