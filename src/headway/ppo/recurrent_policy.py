"""A policy that remembers what it saw of an episode.

    obs --> [normalise] --> body, or tanh layers --> GRU or LSTM --> head --> distribution over actions
                                                        ^    |   \\--> value
                                                        +----+ state [S], zero where an episode begins

One trunk. Acting is a pure function of weights, state, observation and noise: whoever acts keeps the state, a collector
from segment to segment, an evaluation from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from headway.core.text_naming import unknown
from headway.envs.gymnasium_vector import Continuous, Spec
from headway.ppo.networks_bodies import NetworkName, begin_weights, make_body, tower
from headway.ppo.networks_memory_cells import CELLS, Memory
from headway.ppo.networks_network import ObservationScale
from headway.ppo.policy import load_weights, scaled
from headway.ppo.policy_action_choice import choose, judge, noise_for, num_outputs


class RecurrentActorCritic(ObservationScale):
    """A trunk that ends in a memory, and two heads."""

    log_std: Tensor | None

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int] | None = None,
        *,
        memory: Memory = "gru",
        memory_size: int = 128,
        network: NetworkName = "auto",
        normalise: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if memory not in CELLS:
            raise ValueError(unknown("memory", memory, CELLS))
        if memory_size < 1:
            raise ValueError(f"a memory needs at least 1 unit, received memory_size={memory_size!r}")
        random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
        self.action = spec.action
        self.normalise = normalise
        self.is_bytes = spec.is_bytes
        self.body, shape, towers = make_body(spec, network, hidden)
        self.layers, width = tower(shape, towers)
        self.memory = CELLS[memory](width, memory_size)
        self.head = nn.Linear(memory_size, num_outputs(spec.action))
        self.value_head = nn.Linear(memory_size, 1)
        begin_weights(self, {self.head: 0.01, self.value_head: 1.0}, random)
        self.memory.begin_weights(random)
        is_continuous = isinstance(spec.action, Continuous)
        self.log_std = nn.Parameter(torch.zeros(num_outputs(spec.action))) if is_continuous else None
        self.register_buffer("obs_mean", torch.zeros(spec.observation))
        self.register_buffer("obs_scale", torch.ones(spec.observation))

    @property
    def state_size(self) -> int:
        return self.memory.state_size

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, A] for observations [B, ...] after what `state` [B, S] remembers, and the state after them."""
        state = self.memory.step(self.memory.project(self._features(obs)), state)
        return self.head(self.memory.shown(state)), state

    def unrolled(self, obs: Tensor, state: Tensor, begins: Tensor) -> Tensor:
        """What the heads see of sequences: [T, B, size].

        :param obs: [T, B, ...]
        :param state: [B, S] before the first observation
        :param begins: [T, B] whether an episode begins with this observation
        """
        gates = self.memory.project(self._features(obs.flatten(0, 1))).unflatten(0, obs.shape[:2])
        keep = (~begins).to(state.dtype).unsqueeze(-1)
        shown = []
        for each, kept in zip(gates.unbind(0), keep.unbind(0), strict=True):
            state = self.memory.step(each, state * kept)
            shown.append(self.memory.shown(state))
        return torch.stack(shown)

    def values_of(self, shown: Tensor) -> Tensor:
        return self.value_head(shown).squeeze(-1)

    def judged(self, shown: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, each [B], of what the heads see [B, size]."""
        return judge(self.action, self.head(shown), self.log_std, actions, mask)

    def _features(self, obs: Tensor) -> Tensor:
        obs = scaled(self, obs)
        return self.layers(obs if self.body is None else self.body(obs))


class RecurrentActor:
    """Acts with given weights. Collectors give it the state; in an evaluation it keeps the state itself."""

    def __init__(self, network: RecurrentActorCritic) -> None:
        self._network = network.eval()
        self.state_size = network.state_size
        self._state = np.zeros((0, self.state_size), np.float32)

    def load(self, weights: object) -> None:
        load_weights(self._network, weights)

    def noise(self, seed: int, steps: int, num_envs: int) -> np.ndarray:
        return noise_for(self._network.action, seed, steps, num_envs)

    @torch.no_grad()
    def act_from(
        self, state: np.ndarray, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions [N, ...], their log-probabilities [N], and the state [N, S] afterwards."""
        outputs, after = self._network.step(torch.from_numpy(obs), torch.from_numpy(state))
        actions, log_probs = choose(self._network.action, outputs, self._network.log_std, noise, mask)
        return actions, log_probs, after.numpy()

    # -- where nobody else keeps the state ----------------------------------------------------------

    def forget(self, begins: np.ndarray) -> None:
        """What it is asked next begins an episode in these rows [N]."""
        if len(begins) != len(self._state):
            self._state = np.zeros((len(begins), self.state_size), np.float32)
        self._state = np.where(begins[:, None], np.float32(0), self._state)

    def best(self, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """The most likely action: for evaluation."""
        return self._act(obs, np.zeros((len(obs), num_outputs(self._network.action)), np.float32), mask)

    def drawn(self, obs: np.ndarray, mask: np.ndarray | None, seed: int) -> np.ndarray:
        """Actions by the policy's own chances."""
        return self._act(obs, self.noise(seed, 1, len(obs))[0], mask)

    def _act(self, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        if len(obs) != len(self._state):
            self.forget(np.ones(len(obs), bool))
        actions, _, self._state = self.act_from(self._state, obs, noise, mask)
        return actions
