"""TextZero's side of a search: which action is in which slot of which node, around the search model of its body.

    begin    rows --read--> features --> body --> queries . candidates         --> slots of the root
    expand   what is in the slots --> tokens --> body --> queries . known actions --> the likeliest K: slots of the node

A slot of the root is a candidate of the game, one of a node below it an entry of the table of known actions that can
probably be done there. A node at which nothing can be done is an end.

On a CPU everything but the products is computed by kernels (slot_kernels.py, and those of the body), elsewhere all of
it by torch. Both give the same numbers up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headway.text_games import textzero_slot_kernels as kernels
from headway.text_games.textzero_network import Reading, TextZeroNetwork
from headway.zero.model_calls_compiled_layers import room
from headway.zero.model_calls_device_calls import DeviceModel
from headway.zero.muzero_inference import TorchModel, VectorModel
from headway.zero.muzero_network import VectorNetwork
from headway.zero.planner_history import Past
from headway.zero.planner_planning import SearchableModel
from headway.zero.search_interface import Leaves
from headway.zero.unizero_inference import CompiledModel, UniZeroModel
from headway.zero.unizero_network import UniZeroNetwork
from headway.zero.world_model_packed import load_weights, writeable

LEAST_CHANCE = 0.05
"""An action is offered below the root if it can be done with at least this probability."""


def searchable(
    network: TextZeroNetwork, device: str = "cpu", *, context_steps: int = 0, least_chance: float = LEAST_CHANCE
) -> SearchableModel:
    """The fastest way this network can be searched with.

    :param context_steps: unizero: how many steps before the root it is shown
    """
    if context_steps and isinstance(network.body, VectorNetwork):
        raise ValueError(f"context_steps={context_steps}: body 'muzero' does not look back, it must be 0")
    if device == "cpu":
        return QuickTextModel(network, context_steps=context_steps, least_chance=least_chance)
    return TextModel(network, device, context_steps=context_steps, least_chance=least_chance)


class TextModel(DeviceModel[TextZeroNetwork]):
    """Any body, on any device."""

    def __init__(
        self,
        network: TextZeroNetwork,
        device: str = "cpu",
        *,
        context_steps: int = 0,
        least_chance: float = LEAST_CHANCE,
    ) -> None:
        super().__init__(network, device)
        self.context_steps = context_steps
        self._least = _least_answer(least_chance)
        self._body: VectorSteps | TokenSteps
        if isinstance(network.body, VectorNetwork):
            self._body = VectorSteps(network.body, device)
        else:
            self._body = TokenSteps(network.body, context_steps=context_steps, device=device)
        self._shape = (0, 0)

    @torch.inference_mode()
    def begin(self, obs: np.ndarray, num_nodes: int, past: Past | None = None) -> Leaves:
        """:param past: the steps before the roots; None: there were none"""
        reading = self._network.read(torch.from_numpy(writeable(obs)).to(self._device))
        leaves = _begin_body(self._network, self._body, reading, num_nodes, past)
        if self._shape != (num_nodes, len(obs)):
            self._make_room(num_nodes, len(obs))
        self._root.copy_(reading.vectors[reading.slots])
        self._known.copy_(self._network.vectors(self._network.known.words))
        return _root_leaves(leaves, reading)

    @torch.inference_mode()
    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        rewards, values, both, _, _ = super().expand(simulation, parents, actions)
        logits, legal = np.split(both, 2, 1)
        return Leaves(rewards, values, logits, legal > 0)

    def _expand(self, node: int, parents: Tensor, actions: Tensor) -> Tensor:
        at_root = self._root[self._rows, actions]
        below = self._known[self._offered[parents, self._rows, actions]]
        answer = self._body.answer(node, parents, torch.where(parents[:, None] == 0, at_root, below))
        good, possible = answer[:, 2:].chunk(2, 1)
        chances = possible @ self._known.T
        scores = good @ self._known.T + functional.logsigmoid(chances)
        scores = scores.masked_fill(~self._network.known.is_used | (chances < self._least), -math.inf)
        logits, offered = scores.topk(min(self._root.shape[1], scores.shape[1]), 1)
        missing = self._root.shape[1] - logits.shape[1]  # a table smaller than the slots
        logits = functional.pad(logits, (0, missing), value=-math.inf)
        self._offered[node] = functional.pad(offered, (0, missing))
        legal = logits > -math.inf
        return torch.cat((answer[:, :2], torch.where(legal, logits, 0.0), legal.to(logits)), 1)

    def _make_room(self, num_nodes: int, num_rows: int) -> None:
        a = self._network.architecture
        self._root = torch.zeros(num_rows, a.slots, a.embedding, device=self._device)
        self._known = torch.zeros(a.table, a.embedding, device=self._device)
        self._offered = torch.zeros(num_nodes, num_rows, a.slots, dtype=torch.long, device=self._device)
        self._rows = torch.arange(num_rows, device=self._device)
        self._calls.make_room(num_rows)
        self._shape = (num_nodes, num_rows)


class QuickTextModel:
    """The same on a CPU, products by torch and everything between by kernels.

    What `expand` answers is its own memory, good until the next question.
    """

    def __init__(self, network: TextZeroNetwork, *, context_steps: int = 0, least_chance: float = LEAST_CHANCE) -> None:
        self._network = network.eval()
        self.context_steps = context_steps
        self._least = np.float32(_least_answer(least_chance))
        self._body: QuickVectorSteps | QuickTokenSteps
        if isinstance(network.body, VectorNetwork):
            self._body = QuickVectorSteps(network.body)
        else:
            self._body = QuickTokenSteps(network.body, context_steps=context_steps)
        self._shape = (0, 0)
        self._read()

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        load_weights(self._network, weights)
        self._body.read()
        self._read()

    @torch.inference_mode()
    def _read(self) -> None:
        """What stands in the table, as the body and the queries want it."""
        network = self._network
        vectors = network.vectors(network.known.words)
        self._known = vectors.T.contiguous()
        self._known_tokens = network.body.action(vectors).numpy()
        self._is_used = network.known.is_used.numpy()

    @torch.inference_mode()
    def begin(self, obs: np.ndarray, num_nodes: int, past: Past | None = None) -> Leaves:
        """:param past: the steps before the roots; None: there were none"""
        if self._shape != (num_nodes, len(obs)):
            self._make_room(num_nodes, len(obs))
        reading = self._network.read(torch.from_numpy(writeable(obs)))
        leaves = _begin_body(self._network, self._body, reading, num_nodes, past)
        self._root_tokens = self._network.body.action(reading.vectors)[reading.slots].numpy()
        return _root_leaves(leaves, reading)

    @torch.inference_mode()
    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        tokens = self._tokens
        kernels.take(parents, actions, self._root_tokens, self._known_tokens, self._offered, tokens)
        rewards, values, queries, _, _ = self._body.step(simulation, parents, tokens)
        torch.mm(torch.from_numpy(queries).view(-1, self._known.shape[0]), self._known, out=self._answers.tensor)
        answers = self._answers.array.reshape(len(parents), 2, -1)
        kernels.offer(answers, self._is_used, self._least, self._offered[simulation + 1], self._logits, self._legal)
        return Leaves(rewards, values, self._logits, self._legal)

    def _make_room(self, num_nodes: int, num_rows: int) -> None:
        a = self._network.architecture
        self._offered = np.zeros((num_nodes, num_rows, a.slots), np.int32)
        self._tokens = np.zeros((num_rows, self._known_tokens.shape[1]), np.float32)
        self._answers = room(2 * num_rows, a.table)
        self._logits, self._legal = np.zeros((num_rows, a.slots), np.float32), np.zeros((num_rows, a.slots), bool)
        self._shape = (num_nodes, num_rows)


# -- bodies whose actions are vectors -----------------------------------------------------------------


class VectorSteps(TorchModel):
    """MuZero's body."""

    def answer(self, node: int, parents: Tensor, vectors: Tensor) -> Tensor:
        """Rewards, values and queries side by side [B, 2 + 2 E], after actions with vectors [B, E]."""
        return self._expand(node, parents, vectors)


class QuickVectorSteps(VectorModel):
    """MuZero's body on a CPU."""

    def read(self) -> None:
        """The weights are others now."""
        self._read()

    def step(self, simulation: int, parents: np.ndarray, tokens: np.ndarray) -> Leaves:
        """What follows actions with tokens [B, hidden]: to the body, row b does the action number b of a table."""
        self._actions = tokens
        return self.expand(simulation, parents, np.arange(len(tokens), dtype=np.int32))


class _VectorPast:
    """What a transformer is shown of the past, where actions are vectors."""

    context_steps: int
    _device: str
    _ones: Tensor
    _network: UniZeroNetwork

    def _sequence(self, obs: np.ndarray, past: Past | None) -> tuple[Tensor, Tensor, Tensor]:
        newest = torch.from_numpy(obs).to(self._device)[:, None]
        num, steps, size = len(obs), self.context_steps, self._network.action.num_embeddings
        if past is None:
            before, actions = newest.new_zeros(num, steps, newest.shape[2]), newest.new_zeros(num, steps, size)
            return torch.cat((before, newest), 1), actions, self._ones
        before, actions, lengths = (torch.from_numpy(part).to(self._device) for part in past)
        return torch.cat((before, newest), 1), actions, lengths + 1


class TokenSteps(_VectorPast, UniZeroModel):
    """UniZero's body."""

    def answer(self, node: int, parents: Tensor, vectors: Tensor) -> Tensor:
        """Rewards, values and queries side by side [B, 2 + 2 E], after actions with vectors [B, E]."""
        return self._expand(node, parents, vectors)


class QuickTokenSteps(_VectorPast, CompiledModel):
    """UniZero's body on a CPU."""

    def read(self) -> None:
        """The weights are others now."""
        self._read()

    def step(self, simulation: int, parents: np.ndarray, tokens: np.ndarray) -> Leaves:
        """What follows actions with tokens [B, D]: to the body, row b does the action number b of a table."""
        self._actions = tokens
        return self.expand(simulation, parents, np.arange(len(tokens), dtype=np.int32))


class _BeginsWithPast(Protocol):
    context_steps: int

    def begin(self, obs: np.ndarray, num_nodes: int, past: Past | None = None) -> Leaves: ...


def _begin_body(
    network: TextZeroNetwork,
    body: VectorModel | TorchModel | _BeginsWithPast,
    reading: Reading,
    num_nodes: int,
    past: Past | None,
) -> Leaves:
    """What the body says of the roots."""
    features = reading.features.cpu().numpy()
    if isinstance(body, VectorModel | TorchModel):
        return body.begin(features, num_nodes)
    if past is None or not body.context_steps:
        return body.begin(features, num_nodes)
    num, steps = len(features), body.context_steps
    if past.actions.shape != (num, steps):
        raise ValueError(f"the past of {num} roots is [{num}, {steps}], received {list(past.actions.shape)}")
    device = reading.features.device
    before = network.read(torch.from_numpy(past.obs).flatten(0, 1).to(device))
    vectors = before.chosen(torch.from_numpy(past.actions).flatten().to(device))
    seen, done = (part.unflatten(0, (num, steps)).cpu().numpy() for part in (before.features, vectors))
    return body.begin(features, num_nodes, Past(seen, done, past.lengths))


def _root_leaves(leaves: Leaves, reading: Reading) -> Leaves:
    """What the body says, with the candidates in the slots."""
    queries = torch.from_numpy(leaves.logits).to(reading.features.device)
    logits = reading.logits(queries[:, : reading.vectors.shape[1]])
    legal = reading.keys != 0
    return Leaves(leaves.rewards, leaves.values, logits.masked_fill(~legal, 0.0).cpu().numpy(), legal.cpu().numpy())


def _least_answer(chance: float) -> float:
    """The logit of a probability; of 0 it is below all."""
    if not 0 <= chance < 1:
        raise ValueError(f"least_chance must be in [0, 1), received {chance!r}")
    return math.log(chance / (1 - chance)) if chance else -math.inf
