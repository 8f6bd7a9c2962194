"""Advantages and value targets, as pure functions on arrays [T, N]."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def gae(
    rewards: Array,  # [T, N]
    values: Array,  # [T + 1, N]
    terminated: Array,  # [T, N]
    truncated: Array,  # [T, N]
    valid: Array,  # [T, N]
    *,
    gamma: float,
    lam: float,
) -> tuple[Array, Array]:
    """Generalised advantage estimates and value targets, both [T, N].

    Truncation is not termination: the value of the last observation stands in for what was cut off. A step
    that only resets an environment (valid is False) has no advantage and passes none on.
    """
    continues = ~(terminated | truncated) & valid
    deltas = (rewards + gamma * np.where(terminated, 0.0, values[1:]) - values[:-1]) * valid
    advantages = _discounted(deltas, gamma * lam * continues)
    return advantages, advantages + values[:-1]


def vtrace(
    rewards: Array,  # [T, N]
    values: Array,  # [T + 1, N]
    terminated: Array,  # [T, N]
    truncated: Array,  # [T, N]
    valid: Array,  # [T, N]
    ratios: Array,  # [T, N]: current over behaviour policy
    *,
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace policy-gradient advantages and value targets v, both [T, N].

    An advantage is rho (r + gamma (lam v' + (1 - lam) V') - V). Where all ratios are 1, v' - V' is the advantage of
    the next step, so this is delta + gamma lam A': generalised advantage estimates.
    """
    continues = ~(terminated | truncated) & valid
    rho = np.minimum(ratios, rho_bar)
    c = lam * np.minimum(ratios, c_bar)
    next_values = np.where(terminated, 0.0, values[1:])
    deltas = rho * (rewards + gamma * next_values - values[:-1]) * valid
    targets = values[:-1] + _discounted(deltas, gamma * c * continues)
    next_targets = np.concatenate([targets[1:], values[-1:]])
    bootstraps = np.where(continues, lam * next_targets + (1 - lam) * next_values, next_values)
    advantages = rho * (rewards + gamma * bootstraps - values[:-1]) * valid
    return advantages, targets


def _discounted(deltas: Array, factors: Array) -> Array:
    """s[t] = deltas[t] + factors[t] * s[t + 1], both [T, N]; s[T] = 0."""
    sums = np.empty_like(deltas)
    following = np.zeros(deltas.shape[1], np.result_type(deltas, factors))
    for t in range(len(deltas) - 1, -1, -1):
        following *= factors[t]
        following += deltas[t]
        sums[t] = following
    return sums


def effective_sample_size(weights: Array) -> float:
    """(sum w)^2 / (n sum w^2): the share of the samples that still count. 1 is all of them."""
    square = float((weights * weights).sum())
    return float(weights.sum()) ** 2 / (weights.size * square) if square else 0.0
