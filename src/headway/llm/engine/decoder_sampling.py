"""Tokens from logits, with one random number per token that is made from seed, sample and place.

    u = uniform(seed, place)      a hash, no state: the same token is drawn wherever and with whomever it is made
    token = first i with P(0) + ... + P(i) > u

Drawing this way needs one pass over the probabilities that the log-probability needs anyway; noise for every entry
of a vocabulary would cost more than the entries.

A cut (`top_k`, then `top_p` of what is left) keeps the fewest of the most likely tokens that have the mass asked for.
What is drawn then has the probability p(token) / (sum of p over the kept), and that is the one which is recorded.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from headway.llm.engine.protocol_engine import Sampling

_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9 as a signed number
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_STEP = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15
_STEP_WORD = np.uint64(_STEP % 2**64)


def uniform(seeds: Tensor, places: Tensor) -> Tensor:
    """Makes numbers in [0, 1) from 64-bit seeds and places: [R] int64, [R] int64 -> [R] float32."""
    if seeds.device.type == "cpu":  # the same, in a third of the time: torch takes long to begin on so few numbers
        whole = _mix_words(seeds.numpy().view(np.uint64) + _mix_words(places.numpy().view(np.uint64) * _STEP_WORD))
        return torch.from_numpy((whole >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))
    bits = _mix(seeds + _mix(places * _STEP))
    return (_shift(bits, 40)).to(torch.float32) * 2.0**-24


def draw(logits: Tensor, numbers: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draws one token per row; returns it and its log-probability: [R, V], [R] -> [R] int64, [R] float32."""
    logits = logits.float()
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, torch.zeros(len(logits), device=logits.device)
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    log_probs = torch.log_softmax(scaled, -1)
    weights = _cut_tail(log_probs.exp(), sampling)
    sums = _cumulative(weights)
    tokens = torch.searchsorted(sums, (numbers * sums[:, -1]).unsqueeze(1), right=True).squeeze(1)
    tokens = tokens.clamp_max(logits.shape[1] - 1)
    chosen = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens, chosen - sums[:, -1].log() if sampling.is_cut else chosen


def log_kept_mass(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Returns the log of the probability that a cut leaves, from those at the temperature: [R, V] -> [R]."""
    return _cut_tail(log_probs.exp(), sampling).sum(-1).log()


def _cut_tail(probs: Tensor, sampling: Sampling) -> Tensor:
    if 0 < sampling.top_k < probs.shape[1]:
        least = probs.topk(sampling.top_k, -1).values[:, -1:]
        probs = torch.where(probs < least, 0.0, probs)
    if sampling.top_p < 1:
        ordered, places = probs.sort(-1, descending=True)
        sums = _cumulative(ordered)
        kept = torch.where(sums - ordered >= sampling.top_p * _total(ordered, sums), 0.0, ordered)
        probs = torch.zeros_like(probs).scatter_(1, places, kept)
    return probs


def _cumulative(weights: Tensor) -> Tensor:
    """Returns the sums up to each place. On a GPU torch's own would depend on the number of rows."""
    if not weights.is_cuda or find_spec("triton") is None:
        return weights.cumsum(-1)
    from headway.llm.engine.triton_kernels import cumulative

    return cumulative(weights)


def _total(weights: Tensor, sums: Tensor) -> Tensor:
    """Returns the sum of each row [R, 1], from the sums up to each place where torch's own depends on the rows."""
    return sums[:, -1:] if weights.is_cuda else weights.sum(-1, keepdim=True)


def _mix(bits: Tensor) -> Tensor:
    """Applies the finaliser of splitmix64, on signed integers that wrap around."""
    bits = (bits ^ _shift(bits, 30)) * _MIX_1
    bits = (bits ^ _shift(bits, 27)) * _MIX_2
    return bits ^ _shift(bits, 31)


def _mix_words(words: np.ndarray) -> np.ndarray:
    """The same on unsigned numbers [R]."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX_1 % 2**64)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX_2 % 2**64)
    mixed: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed


def _shift(bits: Tensor, places: int) -> Tensor:
    """Shifts to the right logically: torch's own shift drags the sign along."""
    return (bits >> places) & ((1 << (64 - places)) - 1)
