"""How fast an engine generates and a learner learns, by the size of the model: measured, or calculated from that.

measured: one H200, random weights in four real shapes, prompts of 128 tokens, replies of 256 (docs/lab.md)
    other sizes       between two measured ones by the logarithm of the parameters; beyond, in proportion to them
    other lengths     attention and cache are counted: more context is more of both
    experts           a token costs the weights it goes through; an engine also reads those of the other rows
    other machines    not carried over: `headway plan --probe` measures there
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from headway.llm.memory.model_shape import ModelShape

MEASURED_ON = "NVIDIA H200"
PROMPT, REPLY, GROUP = 128, 256, 8
"""Lengths that the shipped rates were measured with."""
ENGINE_RATES: Mapping[int, Mapping[int, float]] = {
    134_515_008: {64: 50_349, 256: 128_242, 1024: 212_834},
    494_032_768: {64: 39_315, 256: 97_660},
    1_543_714_304: {64: 25_203, 256: 58_609},
    7_615_616_512: {64: 10_831, 256: 21_819},
}
"""Parameters -> rows at once -> tokens a second."""
LEARNER_RATES: Mapping[int, float] = {
    134_515_008: 173_000,
    494_032_768: 111_710,
    1_543_714_304: 47_133,
    7_615_616_512: 6_835 * 4 / 3,
}
"""Parameters -> reply tokens a second without checkpointing, by flash kernels and compiled, microbatches of 15,360. The
smallest is the slowest that was seen, for the host holds it up. The largest was measured by dense masks and with
checkpointing, a third more work."""
CACHE_BYTES_PER_S = 4e12
"""How fast the cache is read, and so are weights."""
PUBLISH_BYTES_PER_S = 2.5e9
"""1,000 MB took 0.40 s from process to process."""
SPREAD_LEARNER, SPREAD_ENGINE = 0.9, 0.8
"""What is left of each further GPU's speed: assumed, not measured, for ranks of a learner and parts of an engine."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of one engine and of one rank, and where the numbers are from."""

    engine_tokens_per_s: float
    learner_tokens_per_s: float
    source: str

    def __post_init__(self) -> None:
        for name in ("engine_tokens_per_s", "learner_tokens_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, received {getattr(self, name)!r}")


def shipped_rates(
    model: ModelShape,
    *,
    engine_rows: int = 64,
    prompt_tokens: int = PROMPT,
    reply_tokens: int = REPLY,
    group_size: int = GROUP,
    gradient_checkpointing: bool = False,
) -> Rates:
    """What one H200 would do, as engine or as rank."""
    size = model.parameters_used_by(1)
    engine = _interpolated({count: _by_rows(rows, engine_rows) for count, rows in ENGINE_RATES.items()}, size)
    context = prompt_tokens + reply_tokens / 2
    more = max(0.0, context - (PROMPT + REPLY / 2)) * model.cache_bytes(2) / CACHE_BYTES_PER_S  # seconds a token
    more += 2 * (model.parameters_used_by(engine_rows) - size) / engine_rows / CACHE_BYTES_PER_S
    engine = 1 / (1 / engine + more)
    learner = _interpolated(LEARNER_RATES, size)
    learner *= _trained_share(prompt_tokens, reply_tokens, group_size) / _trained_share(PROMPT, REPLY, GROUP)
    learner *= _work(model, PROMPT + REPLY) / _work(model, max(PROMPT + REPLY, prompt_tokens + reply_tokens))
    learner *= 3 / 4 if gradient_checkpointing else 1
    told = prompt_tokens, reply_tokens, group_size
    was_measured = size in LEARNER_RATES and told == (PROMPT, REPLY, GROUP)
    was_measured &= engine_rows in ENGINE_RATES.get(size, ()) and gradient_checkpointing == (size == max(LEARNER_RATES))
    source = "measured" if was_measured else "calculated from measured ones"
    source += " of models without experts" if model.used_experts < 1 else ""
    return Rates(engine, learner, f"one {MEASURED_ON}, {source}")


def _trained_share(prompt: int, reply: int, group: int) -> float:
    """Of the tokens that the learner reads."""
    return group * reply / (prompt + group * reply)


def _work(model: ModelShape, tokens: int) -> float:
    """What a token costs: its way through the weights, and attention to half of those before it."""
    return 6 * model.parameters_used_by(1) + 6 * model.layers * model.query_width * tokens


def _by_rows(measured: Mapping[int, float], rows: int) -> float:
    """Between two measured numbers of rows in a straight line; fewer in proportion; more than the most as there."""
    counts = sorted(measured)
    if rows <= counts[0]:
        return measured[counts[0]] * rows / counts[0]
    for low, high in itertools.pairwise(counts):
        if rows <= high:
            return measured[low] + (measured[high] - measured[low]) * (rows - low) / (high - low)
    return measured[counts[-1]]


def _interpolated(measured: Mapping[int, float], size: int) -> float:
    """By the logarithm of the size; smaller than the smallest as that, larger than the largest in proportion."""
    sizes = sorted(measured)
    if size <= sizes[0]:
        return measured[sizes[0]]
    if size >= sizes[-1]:
        return measured[sizes[-1]] * sizes[-1] / size
    low, high = next(pair for pair in itertools.pairwise(sizes) if size <= pair[1])
    part = math.log(size / low) / math.log(high / low)
    return math.exp((1 - part) * math.log(measured[low]) + part * math.log(measured[high]))


def spread(rate: float, count: int, left: float) -> float:
    """The rate over `count` GPUs, of which each but the first adds `left` of one's speed."""
    return rate * (1 + left * (count - 1))
