"""One learn call: what is known of each token when it starts, what is seen on the way, and what is reported of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.llm.train import grpo_loss_diagnostics as diagnostics
from headway.llm.train.corrections import Weighed
from headway.llm.train.grpo_loss_loss import SUMS, measures
from headway.llm.train.replies import Replies
from headway.ranks.rank import Rank


@dataclass(slots=True)
class GRPOUpdate:
    """Holds what is known of N tokens in one learn call; a tensor has one number each where nothing else is said."""

    data: Replies  # what is learned from
    version: int
    summary: Mapping[str, float]  # of the whole batch
    proximal: Tensor | None  # log-probabilities; None where they come on the way
    reference: Tensor | None  # log-probabilities
    values: Tensor | None
    advantages: Tensor
    targets: Tensor | None  # of the values
    whole: Weighed | None  # the correction's verdict, where that depends on the whole batch
    is_policy_waiting: bool
    mismatch: Mapping[str, float] | None  # of engine and trainer; None where it comes on the way
    logs: Tensor  # log-probabilities at the first look at each token
    weights: Tensor  # likewise
    is_nothing_left: bool = False  # every reply was cut, and those are left out
    sums: list[Mapping[str, Tensor]] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)  # of the policy's gradient, step by step
    critic_norms: list[Tensor] = field(default_factory=list)


def measure(update: GRPOUpdate, rank: Rank, epochs: int) -> dict[str, float]:
    """Measures an update over the whole batch; every rank gets the same numbers."""
    data, version = update.data, update.version
    found = dict(update.summary)
    if update.is_nothing_left:
        return found
    seen = torch.stack([update.logs, update.weights])
    rank.add_up(seen)
    logs, weights = seen
    num_steps = max(len(update.norms), len(update.critic_norms))
    found |= measures(sums_of_all_ranks(update.sums, rank, seen.device), data.num_tokens * epochs, num_steps)
    found |= diagnostics.behaviour(logs, data.log_probs, Weighed(weights, weights > 0))
    if update.mismatch is None:
        fresh = data.made_by(version)
        before = logs if update.proximal is None else update.proximal
        found |= diagnostics.mismatch(before[fresh], data.log_probs[fresh])
    else:
        found |= update.mismatch
    found |= diagnostics.staleness(version, data.versions)
    if update.values is not None and update.targets is not None:
        found["explained_variance"] = diagnostics.explained_variance(update.values, update.targets)
        found["value_mean"] = float(update.values.mean())
    return found


def sums_of_all_ranks(
    sums: Sequence[Mapping[str, Tensor]], rank: Rank, device: torch.device
) -> Sequence[Mapping[str, Tensor]]:
    """Adds sums up over ranks. One that had nothing to do has no names either: all names are sent, and who has them."""
    if rank.size == 1:
        return sums
    nothing = torch.zeros((), dtype=torch.float64, device=device)
    totals = torch.zeros(2, len(SUMS), dtype=torch.float64, device=device)
    for part in sums:
        totals[0] += torch.stack([part.get(name, nothing).double() for name in SUMS])
        totals[1] += torch.tensor([name in part for name in SUMS], device=device)
    rank.add_up(totals)
    return [{name: totals[0, n] for n, name in enumerate(SUMS) if totals[1, n] > 0}]
