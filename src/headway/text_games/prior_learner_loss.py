"""The two losses of a prior, of some states or steps whose tokens were just read.

    imitation    of a state, with score(a) = mean log-probability of a's tokens and p = softmax(score / T):
                 - sum over candidates of visits(a) log p(a)
    ppo          of a token, with r = pi / pi_prox, rho = pi_prox / pi_b and A of the step it belongs to:
                 - clamp(rho, 0.5, 5) min(r A, clip(r) A) + kl_weight k3

Each is a mean over steps (imitation) or over their tokens (ppo): a state that came three times counts three times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.llm.train.corrections import Weighed, exp_ratio
from headway.llm.train.ragged import Ragged

LOW_WEIGHT, HIGH_WEIGHT = 0.5, 5.0
"""How far the weights that make up for another engine, or an older one, may go."""
IMITATION_SUMS = ("imitation_loss", "agreement", "visits_entropy", "prior_entropy")
"""What `imitation_loss` sums up over steps."""
TIE = 1e-6
"""Shares of visits that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class ImitationLoss:
    """Holds a loss to call backward on, summed over steps, and what was seen on the way."""

    value: Tensor  # []
    sums: Mapping[str, Tensor]  # each [], over the steps, without gradient


def imitation_loss(
    logs: Tensor,  # [N] of the candidates' tokens, with gradient
    tokens: Ragged,  # N tokens of S candidates
    candidates: Ragged,  # S candidates of G states
    visits: Tensor,  # [S]
    counts: Tensor,  # [G]: steps in that state
    temperature: float,
) -> ImitationLoss:
    """Returns the cross entropy between the visits and the prior of the candidates, summed over steps."""
    priors = action_log_priors(logs, tokens, candidates, temperature)
    per_state = -candidates.sums(visits * priors)
    with torch.no_grad():
        is_best = visits >= candidates.spread(candidates.largest(visits)) - TIE
        is_chosen = priors >= candidates.spread(candidates.largest(priors.detach()))
        agreed = candidates.sums((is_best & is_chosen).float()) > 0
        entropy = -candidates.sums(torch.special.xlogy(visits, visits))
        sums = {
            "imitation_loss": (counts * per_state).sum(),
            "agreement": (counts * agreed).sum(),
            "visits_entropy": (counts * entropy).sum(),
            "prior_entropy": -(counts * candidates.sums(priors.exp() * priors)).sum(),
        }
    return ImitationLoss((counts * per_state).sum(), sums)


def action_log_priors(logs: Tensor, tokens: Ragged, candidates: Ragged, temperature: float) -> Tensor:
    """Returns log softmax(mean token log-probability / temperature) over the candidates of each state, [S]."""
    scores = tokens.means(logs) / temperature
    shifted = scores - candidates.spread(candidates.largest(scores.detach()))
    return shifted - candidates.spread(candidates.sums(shifted.exp()).log())


def clamped_weights(logp_prox: Tensor, logp_b: Tensor) -> Weighed:
    """Returns rho [N] within its bounds; 1 where pi_b is not known (nan): then it is taken for pi_prox itself."""
    with torch.no_grad():
        log_rho = torch.nan_to_num(logp_prox.detach() - logp_b)
        weights = exp_ratio(log_rho).clamp(LOW_WEIGHT, HIGH_WEIGHT)
        return Weighed(weights, torch.ones_like(weights, dtype=torch.bool))
