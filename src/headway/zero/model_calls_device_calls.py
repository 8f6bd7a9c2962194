"""Questions to a model that may be on a GPU: numbers in, one answer out, no more words with the device than that.

    parents, actions --one copy--> device --function--> answer [B, F] --one copy--> here
                                       |
                                       +-- on a GPU: run once as it is, captured the second time, replayed ever after

A search asks one small question for every simulation, and a small question costs a GPU nearly nothing: what takes time
is to launch its hundred kernels one by one. Replayed as a graph they are launched at once. A graph is of one shape and
of memory that stays where it is: the weights are loaded into the same tensors, and whoever makes room anew forgets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from headway.zero.search_interface import Leaves
from headway.zero.world_model import WorldModel
from headway.zero.world_model_packed import load_weights

Network = TypeVar("Network", bound=WorldModel)

Function = Callable[[Tensor, Tensor], Tensor]
"""Of parents [B] and actions [B] int64: rewards, values and policy logits side by side, [B, 2 + A]."""


class DeviceCalls:
    """Asks functions of whole numbers [B] on `device`. All questions of one room are of one size."""

    def __init__(self, device: str) -> None:
        self._is_gpu = torch.device(device).type == "cuda"
        self._device = device
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._seen: set[int] = set()
        self._pool: Any = None

    def make_room(self, num_rows: int) -> None:
        """For questions of this size; what was captured before is forgotten."""
        self._graphs, self._seen, self._pool = {}, set(), None
        self._words = torch.zeros(2, num_rows, dtype=torch.long, pin_memory=self._is_gpu)
        self._given = torch.zeros(2, num_rows, dtype=torch.long, device=self._device)

    def ask(self, key: int, function: Function, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        """What `function` says; the same key stands for the same work on the same memory."""
        words = self._words.numpy()
        words[0], words[1] = parents, actions
        self._given.copy_(self._words, non_blocking=True)
        return unpack(self._run(key, function).cpu())

    def _run(self, key: int, function: Function) -> Tensor:
        if not self._is_gpu:
            return function(*self._given)
        if key not in self._seen:  # libraries choose their kernels and take their memory now
            self._seen.add(key)
            return function(*self._given)
        if key not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                answer = function(*self._given)
            self._pool = self._pool or graph.pool()
            self._graphs[key] = graph, answer
        graph, answer = self._graphs[key]
        graph.replay()
        return answer


class DeviceModel(ABC, Generic[Network]):
    """A network on a device to search with: every simulation is one question to it."""

    def __init__(self, network: Network, device: str = "cpu") -> None:
        self._network = network.to(device).eval()
        self._device = device
        self._calls = DeviceCalls(device)

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        load_weights(self._network, weights)

    @torch.inference_mode()
    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        return self._calls.ask(simulation, partial(self._expand, simulation + 1), parents, actions)

    @abstractmethod
    def _expand(self, node: int, parents: Tensor, actions: Tensor) -> Tensor:
        """The answer for the new node of every row, on the device."""

    def _answer(self, features: Tensor, rewards: Tensor) -> Tensor:
        """Rewards [B], and what the heads say of features [B, F], side by side."""
        logits, value_logits = self._network.judge(features)
        values = self._network.value_support.decode(value_logits)
        return torch.cat((rewards[:, None], values[:, None], logits), 1)


def unpack(answer: Tensor) -> Leaves:
    """What `DeviceModel` answers, here."""
    numbers = answer.numpy()
    return Leaves(numbers[:, 0], numbers[:, 1], numbers[:, 2:])
