"""What a model of texts learns from: the losses of its body, and what can be done where.

    loss = 1/H sum_k  CE(policy) + CE(value) + CE(reward) + CE(legality) + what the body adds - entropy

The policy is over the candidates that were there. Legality is over the known actions: which of them were among the
candidates, each yes or no. Past a termination nothing can be done, and with `learn_endings` that is learned too.

Many of the rows of a batch are equal: each different one is read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headway.text_games.textzero_known_actions import keys_of
from headway.text_games.textzero_network import Reading, TextZeroNetwork, distinct
from headway.zero.model_learner_window_loss import Losses, LossWeights, Predictions, Targets, window_losses
from headway.zero.muzero_network import VectorNetwork
from headway.zero.unizero_network import UniZeroNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class TextZeroLossWeights(LossWeights):
    """How much each part counts."""

    policy: float = 1.0
    value: float = 0.25
    reward: float = 1.0
    legality: float = 1.0
    agreement: float = 2.0
    """Of latents that were stepped to with those of what was seen there: as directions, or as numbers (unizero)."""
    entropy: float = 5e-3
    learn_endings: bool = True


class _Window(NamedTuple):
    """What a window shows. N = (H + 1) * B observations, step by step, R different rows."""

    reading: Reading  # of the R rows
    rows: Tensor  # [N] int64, which of them each observation is
    done: Tensor  # [H, B, E], the vectors of what was done


class _Said(NamedTuple):
    """What the body says along a window, time first."""

    queries: Tensor  # [H + 1, B, 2 E]
    values: Tensor  # [H + 1, B, bins]
    rewards: Tensor  # [H, B, bins]
    disagreement: Tensor  # [H, B]


def textzero_losses(
    network: TextZeroNetwork, target: TextZeroNetwork, targets: Targets, weights: TextZeroLossWeights
) -> Losses:
    """:param target: whose encoder says what latents a transformer is to expect"""
    rows, where, first = _rows_of(targets)
    reading = network.read(rows[first])
    steps, batch = targets.actions.shape
    done = Reading(*(part[where[:-batch]] if part is not reading.vectors else part for part in reading))
    window = _Window(reading, where, done.chosen(targets.actions.flatten()).view(steps, batch, -1))
    if isinstance(network.body, VectorNetwork):
        said = _stepped(network.body, window, weights)
    else:
        assert isinstance(target.body, UniZeroNetwork)
        with torch.no_grad():
            wanted = target.body.encode(target.read(rows[first]).features)
        said = _looked_back(network.body, window, targets, wanted)
    good, possible = said.queries.flatten(0, 1).chunk(2, -1)
    logits = reading.logits(good, where).view(steps + 1, batch, -1)
    counted = targets.counted(weights.learn_endings)
    there = targets.mask.flatten()[:, None]
    return window_losses(
        targets,
        Predictions(logits, said.values, said.rewards),
        weights,
        (network.value_support, network.reward_support),
        legality=(_illegality(network, possible, reading.keys[where] * there.long()).view_as(counted), counted),
        agreement=(said.disagreement, (targets.mask if network.architecture.body == "muzero" else counted)[1:]),
    )


def _rows_of(targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
    """All observations [N, row], which of the different ones each is [N], and where each of those stands first [R]."""
    rows = targets.observations.flatten(0, 1).long()
    _, where, first = distinct(keys_of(rows))
    return rows, where, first


def _stepped(body: VectorNetwork, window: _Window, weights: TextZeroLossWeights) -> _Said:
    """Step after step from the first latent."""
    steps, batch, _ = window.done.shape
    encoded = body.encode(window.reading.features)
    latents, traces = [encoded[window.rows[:batch]]], []
    for vectors in window.done:
        latent, trace = body.step(latents[-1], vectors)
        latents.append(latent)
        traces.append(trace)
    every = torch.cat(latents)
    features = body.look(every)
    queries, value_logits = body.judge(features)
    reward_logits = body.rewards(features[batch:], torch.cat(traces))
    disagreement = features.new_zeros(steps, batch)
    if weights.agreement:
        with torch.no_grad():
            seen = body.project(encoded)[window.rows[batch:]]
        guessed = body.guess(body.project(every[batch:]))
        disagreement = -functional.cosine_similarity(guessed, seen, dim=-1).view(steps, batch)
    return _Said(
        queries.view(steps + 1, batch, -1),
        value_logits.view(steps + 1, batch, -1),
        reward_logits.view(steps, batch, -1),
        disagreement,
    )


def _looked_back(body: UniZeroNetwork, window: _Window, targets: Targets, wanted: Tensor) -> _Said:
    """One pass over what was seen and done; `wanted` [R, D] are the target's latents."""
    over = targets.ended.T[..., None] > 0  # [B, H + 1, 1]
    rows = window.rows.view(targets.mask.shape).T  # [B, H + 1]
    latents = torch.where(over, body.ending, body.encode(window.reading.features)[rows])
    expected_latents = torch.where(over, body.ending, wanted[rows])[:, 1:]
    sequence = body(latents, window.done.transpose(0, 1))
    queries, value_logits = body.judge(sequence.seen)
    expected, reward_logits = body.expect(sequence.done, latents[:, :-1])
    away = (expected - expected_latents).square().mean(-1)
    return _Said(*(part.transpose(0, 1) for part in (queries, value_logits, reward_logits, away)))


def _illegality(network: TextZeroNetwork, queries: Tensor, keys: Tensor) -> Tensor:
    """[N]: how wrong legality is, queries [N, E], where actions with keys [N, K] could be done."""
    known = network.known
    logits = queries @ network.vectors(known.words).T
    wrong = functional.binary_cross_entropy_with_logits(logits, known.among(keys), reduction="none")
    return (wrong * known.is_used).sum(-1) / network.architecture.slots
