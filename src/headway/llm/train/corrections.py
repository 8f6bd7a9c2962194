"""What makes up for data of another policy than the one being trained.

    pi_b      made the data: an older version, or the same weights in an engine that rounds differently
    pi_prox   the anchor of the trust region
    pi        being trained                            rho = pi_prox / pi_b      r = pi / pi_prox

    name             pi_prox         weight beside the loss       kept                        the loss does
    none             pi_b            1                            all                         A log pi
    clip             pi_b            1                            all                         clip r
    token_is         recomputed      min(rho, cap)                all                         clip r
    sequence_is      recomputed      min(product of rho, cap)     all                         clip r
    decoupled        recomputed or   min(rho, cap)                all                         clip r
                     interpolated
    icepop           recomputed      rho                          rho in [low, high]          clip r
    m2po             recomputed      rho                          mean of log^2 rho < limit   clip r
    sequence_mask    recomputed      1                            mean or product of rho      clip r
                                                                  of the sequence in a band
    cispo            pi_b            1                            all                         sg(clip(r)) A log pi
    topr             pi_b            1                            all                         sg(min(r, 1)) A log pi
                                                                                              where A < 0
    gspo             pi_b or         1                            all                         clip the geometric mean
                     recomputed                                                               of r over the sequence

A sequence is a reply, or all that the policy drew in an episode: the observations between its turns are no part of it.

Where nothing is stale all three policies are the same, and the gradient of each row is that of A log pi. Weights
carry no gradient. A masked token has weight 0 and still counts in the denominator of the loss, so masking some
tokens does not make the others louder. Log-ratios are clamped to +-20 before exp.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.llm.train.ragged import Ragged

MAX_LOG_RATIO = 20.0

Proximal = Literal["behaviour", "recomputed", "interpolated"]
Surrogate = Literal["plain", "clip", "cispo", "topr", "gspo"]


@dataclass(frozen=True, slots=True)
class Weighed:
    """The verdict on each token."""

    weights: Tensor  # [N], 0 where masked, no gradient
    kept: Tensor  # [N] bool


Weigh = Callable[[Tensor, Ragged], Weighed]  # log rho [N], as it is; the sequences


@dataclass(frozen=True, slots=True)
class Correction:
    """One row of the table, with its knobs filled in."""

    name: str
    proximal: Proximal
    """Where pi_prox comes from: pi_b itself, a forward pass before the update, or `interpolate`."""
    surrogate: Surrogate
    """What the loss does with r."""
    needs_whole_batch: bool
    """Its verdict on a token depends on the whole batch: weigh before cutting into microbatches."""
    rule: Weigh
    clip_range: tuple[float, float] | None = None
    """How far below and above 1 the loss lets its ratio go, where that is the correction's own affair."""

    def weigh(self, logp_prox: Tensor, logp_b: Tensor, sequences: Ragged) -> Weighed:
        """Weights and mask of tokens [N] from their log-probabilities under pi_prox and pi_b."""
        with torch.no_grad():
            return self.rule(logp_prox.detach() - logp_b.detach(), sequences)


def find_correction(name: str, **knobs: SettingValue) -> Correction:
    """The correction of that name; knobs it does not have, or values that cannot work, are refused."""
    if name not in CORRECTIONS:
        raise ValueError(unknown("correction", name, CORRECTIONS))
    entry = CORRECTIONS[name]
    allowed = [key for key, p in inspect.signature(entry.rule).parameters.items() if p.kind is p.KEYWORD_ONLY]
    if len(entry.proximals) > 1:
        allowed.append("proximal")
    if entry.clip_range is not None:
        allowed += CLIP_KNOBS
    for knob in knobs:
        if knob not in allowed:
            raise ValueError(unknown(f"setting of correction {name!r}", knob, allowed or ["(none)"]))
    proximal = knobs.pop("proximal", entry.proximals[0])
    if proximal not in entry.proximals:
        raise ValueError(unknown(f"proximal of correction {name!r}", str(proximal), entry.proximals))
    clip_range = None
    if entry.clip_range is not None:
        low, high = (knobs.pop(name, value) for name, value in zip(CLIP_KNOBS, entry.clip_range, strict=True))
        _require(0 <= low <= 1 and high >= 0, f"clip_low in [0, 1] and clip_high >= 0, received {low!r} and {high!r}")
        clip_range = float(low), float(high)
    rule = partial(entry.rule, **knobs)
    rule(torch.zeros(1), Ragged.of([1]))  # settings that cannot work are refused here, not in the first update
    return Correction(name, proximal, entry.surrogate, entry.needs_whole_batch, rule, clip_range)


def exp_ratio(log_ratio: Tensor) -> Tensor:
    """exp, where a difference of log-probabilities can be anything."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def interpolate(
    logp: Tensor,  # [N]
    logp_b: Tensor,  # [N]
    born: Tensor,  # [N]: the version that made each token
    *,
    proximal_version: int,
    version: int,
) -> Tensor:
    """log pi_prox without a forward pass, on the line from log pi_b (at `born`) to log pi (at `version`).

    The weights an update starts from have its batch's version v, those it makes will be v + 1: so `proximal_version`
    is v and `version` v + 1. A token as new as the anchor has pi_prox = pi_b.
    """
    if proximal_version > version:
        raise ValueError(f"the anchor (version {proximal_version}) cannot be newer than the policy ({version})")
    logp = logp.detach()
    ahead, behind = (version - born).clamp(min=1), (proximal_version - born).clamp(min=0)
    return logp_b + behind.to(logp.dtype) / ahead * (logp - logp_b)


# -- the rules --------------------------------------------------------------------------------------


def unweighted(log_rho: Tensor, sequences: Ragged) -> Weighed:
    """Weight 1 for everybody."""
    return Weighed(torch.ones_like(log_rho), torch.ones_like(log_rho, dtype=torch.bool))


def truncated_by_token(log_rho: Tensor, sequences: Ragged, *, cap: float = 2.0) -> Weighed:
    """min(rho, cap): the variance of the weights is bounded, at the price of a bias toward pi_b."""
    _require(cap >= 1, f"cap must be >= 1, received {cap!r}")
    return Weighed(exp_ratio(log_rho).clamp(max=cap), torch.ones_like(log_rho, dtype=torch.bool))


def truncated_by_sequence(log_rho: Tensor, sequences: Ragged, *, cap: float = 5.0) -> Weighed:
    """min(product of rho over the sequence, cap), the same for each of its tokens."""
    _require(cap >= 1, f"cap must be >= 1, received {cap!r}")
    weights = exp_ratio(sequences.sums(log_rho)).clamp(max=cap)
    return Weighed(sequences.spread(weights), torch.ones_like(log_rho, dtype=torch.bool))


def within_band(log_rho: Tensor, sequences: Ragged, *, low: float = 0.5, high: float = 2.0) -> Weighed:
    """IcePop: weight rho inside the band, nothing outside of it."""
    _require_band(low, high)
    rho = exp_ratio(log_rho)
    kept = (rho >= low) & (rho <= high)
    return Weighed(torch.where(kept, rho, 0.0), kept)


def second_moment(log_rho: Tensor, sequences: Ragged, *, limit: float = 0.04) -> Weighed:
    """M2PO: the tokens with the largest log^2 rho go, until the mean over the rest is below the limit."""
    _require(limit > 0, f"limit must be > 0, received {limit!r}")
    squares = (log_rho.double()) ** 2
    ascending, order = torch.sort(squares, stable=True)
    ranks = torch.arange(1, len(squares) + 1, device=squares.device)
    means = ascending.cumsum(0) / ranks  # of the k smallest: never falls with k
    kept = torch.empty_like(order, dtype=torch.bool)
    kept[order] = means < limit
    return Weighed(torch.where(kept, exp_ratio(log_rho), 0.0), kept)


BANDS = {"geometric_mean": (0.99, 1.01), "product": (0.5, 2.0)}


def sequence_band(
    log_rho: Tensor,
    sequences: Ragged,
    *,
    statistic: str = "geometric_mean",
    low: float | None = None,
    high: float | None = None,
) -> Weighed:
    """A sequence goes, whole, when the geometric mean (or the product) of its rho leaves the band."""
    if statistic not in BANDS:
        raise ValueError(unknown("statistic", statistic, BANDS))
    low, high = BANDS[statistic][0] if low is None else low, BANDS[statistic][1] if high is None else high
    _require_band(low, high)
    logs = sequences.means(log_rho) if statistic == "geometric_mean" else sequences.sums(log_rho)
    ratios = exp_ratio(logs)
    kept = sequences.spread((ratios >= low) & (ratios <= high))
    return Weighed(kept.to(log_rho.dtype), kept)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _require_band(low: float, high: float) -> None:
    _require(0 <= low <= 1 <= high, f"a band needs 0 <= low <= 1 <= high, received [{low!r}, {high!r}]")


@dataclass(frozen=True, slots=True)
class _Row:
    rule: Callable[..., Weighed]
    surrogate: Surrogate = "clip"
    proximals: tuple[Proximal, ...] = ("recomputed",)
    """The first is the default."""
    needs_whole_batch: bool = False
    clip_range: tuple[float, float] | None = None


CLIP_KNOBS = ("clip_low", "clip_high")
CORRECTIONS: dict[str, _Row] = {
    "none": _Row(unweighted, "plain", ("behaviour",)),
    "clip": _Row(unweighted, "clip", ("behaviour",)),
    "token_is": _Row(truncated_by_token),
    "sequence_is": _Row(truncated_by_sequence),
    "decoupled": _Row(truncated_by_token, proximals=("recomputed", "interpolated")),
    "icepop": _Row(within_band),
    "m2po": _Row(second_moment, needs_whole_batch=True),
    "sequence_mask": _Row(sequence_band),
    "cispo": _Row(unweighted, "cispo", ("behaviour",)),
    "topr": _Row(unweighted, "topr", ("behaviour",)),
    "gspo": _Row(unweighted, "gspo", ("behaviour", "recomputed"), clip_range=(3e-4, 4e-4)),
}
