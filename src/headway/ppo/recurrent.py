"""PPO for a policy that remembers: sequences instead of steps.

    a segment [T, N] is N sequences, each with the state [S] that its environment's policy had before the first step

    look      state --> T + 1 steps, zero where an episode begins --> values [T + 1, N], pi_prox
    minibatch some of the N sequences, whole: the state is computed again from the stored one, with a gradient

A sequence that is a few versions old begins with the state that the policy of that time had; everything after it is
computed by the policy as it is now. An environment's reset is a step that is no experience, and the observation after
it begins an episode: nothing that was remembered crosses it, and no gradient does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.ppo.learner import PPOLearner
from headway.ppo.learner_autograd_step import AutogradStep
from headway.ppo.mlp_flat import Adam
from headway.ppo.mlp_kernels import advantage_moments
from headway.ppo.mlp_memory import Loss
from headway.ppo.segments_segment import Segment


class Sequences(NamedTuple):
    """What is learned from, where it is computed. Rows are the valid steps, counted as in an array [T, N]."""

    obs: Tensor  # [T + 1, N, ...]
    actions: Tensor  # [T, N, ...]
    masks: Tensor | None  # [T, N, A]
    begins: Tensor  # [T + 1, N]: an episode begins with this observation
    state: Tensor  # [N, S] before the first observation
    valid: np.ndarray  # [T, N]
    places: np.ndarray  # [T, N]: the row of each valid step

    def rows_in(self, some: np.ndarray | slice) -> np.ndarray:
        """The rows of some sequences, step by step."""
        return self.places[:, some][self.valid[:, some]]


class SequenceStep(AutogradStep):
    """What a network that remembers does with sequences."""

    def sequences(self, data: Segment) -> Sequences:
        """The segment's, with what the policy remembered at its beginning."""
        valid = data.valid
        if data.state is None:
            raise ValueError("a policy with a memory learns from segments with a state, received one without")
        begins = np.concatenate([np.zeros((1, valid.shape[1]), bool), ~valid])  # the state is zero where the first does
        return Sequences(
            self._send(np.ascontiguousarray(data.obs)),
            self._send(data.actions),
            None if data.masks is None else self._send(data.masks),
            self._send(begins),
            self._send(np.ascontiguousarray(data.state[0])),
            valid,
            (np.cumsum(valid) - 1).reshape(valid.shape),
        )

    @torch.no_grad()
    def look(self, sequences: Sequences, some: slice) -> np.ndarray:
        """Values of T + 1 observations, then log-probabilities of T actions: [n, 2 T + 1] of n sequences."""
        self._follow()
        network: Any = self._network
        shown = network.unrolled(sequences.obs[:, some], sequences.state[some], sequences.begins[:, some])
        steps = len(sequences.actions)
        actions = sequences.actions[:, some]
        masks = None if sequences.masks is None else sequences.masks[:, some].flatten(0, 1)
        log_probs, _ = network.judged(shown[:-1].flatten(0, 1), actions.flatten(0, 1), masks)
        both = torch.cat([network.values_of(shown), log_probs.view(steps, -1)])
        return both.T.contiguous().cpu().numpy()

    def learn(  # type: ignore[override]
        self, rows: Sequences, columns: np.ndarray, order: np.ndarray, size: int, loss: Loss, adam: Adam, rate: float
    ) -> np.ndarray:
        """A pass over sequences in `order`, `size` of them a step of Adam; the measures of each step."""
        measured = []
        for start in range(0, len(order), size):
            part = order[start : start + size]
            moments = advantage_moments(columns, rows.rows_in(part))
            measured.append(self.gradient_of(rows, columns, part, moments, loss))
            adam.apply(self.gradient, rate)
        return np.stack(measured)

    def gradient_of(  # type: ignore[override]
        self, rows: Sequences, columns: np.ndarray, part: np.ndarray, moments: tuple[float, float], loss: Loss
    ) -> np.ndarray:
        """Writes the gradient of the mean loss over the rows of these sequences to `gradient`."""
        self._follow()
        network: Any = self._network
        some = self._send(part)
        shown = network.unrolled(rows.obs[:-1, some], rows.state[some], rows.begins[:-1, some])
        valid = self._send(np.ascontiguousarray(rows.valid[:, part]))
        masks = None if rows.masks is None else rows.masks[:, some][valid]
        judged = network.judged(shown[valid], rows.actions[:, some][valid], masks)
        evaluated = (*judged, network.values_of(shown[valid]))
        return self._gradient_by(evaluated, columns[rows.rows_in(part)], moments, loss)


class RecurrentPPOLearner(PPOLearner):
    """Trains a policy with a memory. A minibatch is `minibatch_size` steps, in whole sequences: at least one."""

    def _make_step(self, device: str) -> SequenceStep:
        return SequenceStep(self._network, device)

    def _look(self, data: Segment) -> tuple[Sequences, np.ndarray, np.ndarray]:
        rows = self._step.sequences(data)
        steps, width = data.valid.shape
        both = self._spread(width, lambda mine: self._step.look(rows, mine)).T
        return rows, both[: steps + 1], both[steps + 1 :][data.valid]

    def _minibatches(self, rows: Sequences, columns: np.ndarray) -> tuple[np.ndarray, int]:
        order = self._random.permutation(np.flatnonzero(rows.valid.any(0)))
        return order, max(1, round(self._settings.minibatch_size / len(rows.valid)))

    def _rows_in(self, rows: Sequences, part: np.ndarray) -> np.ndarray:
        return rows.rows_in(part)
