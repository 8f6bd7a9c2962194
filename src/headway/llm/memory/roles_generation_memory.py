"""What an engine needs: weights, a cache of keys and values for the tokens in use, and room to read prompts.

transformers    rows x context tokens, reserved when the engine starts
vllm            pages as they are used, inside of its share of the GPU (gpu_memory_utilization)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.core.text_naming import unknown
from headway.llm.memory.model_shape import ModelShape
from headway.llm.memory.roles_memory_items import RoleMemory, items_of

ENGINES = ("transformers", "vllm")
BURST = 16
"""Places behind a row's end, on a GPU."""
PREFILL_TOKENS = 4096
"""Tokens of prompts that the engine of ours reads at once, on a GPU."""
VLLM_PREFILL_TOKENS = 8192
VLLM_SHARE = 0.3
"""gpu_memory_utilization where nothing is said of it."""
VLLM_CPU_CACHE = 1 << 30
"""vLLM's cache on a CPU where nothing is said of it."""
GRAPHS_BYTES = 5 * 10**8
"""CUDA graphs and workspaces."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Says how an engine generates, in the words of the recipes' settings."""

    prompt_tokens: int = 128
    context_tokens: int = 384
    engine: str = "transformers"
    engine_rows: int = 64
    group_size: int = 8
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = VLLM_SHARE
    device: str = "cuda"

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(unknown("engine", self.engine, ENGINES))
        for name in ("prompt_tokens", "context_tokens", "engine_rows", "group_size", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, received {getattr(self, name)!r}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization is a share of a GPU, received {self.gpu_memory_utilization!r}")
        if self.tensor_parallel_size > 1 and self.engine != "vllm":
            raise ValueError(
                f"tensor_parallel_size={self.tensor_parallel_size} needs engine='vllm': the engine in this process has "
                "its model on one GPU"
            )

    @property
    def each(self) -> int:
        """Bytes of a weight."""
        return 2 if self.device == "cuda" else 4

    @property
    def cached_tokens(self) -> int:
        """Tokens that have a place in the cache when all rows are as long as they may become.

        vLLM keeps a prompt once for all replies to it; the engine in this process keeps it in every row.
        """
        if self.engine != "vllm":
            return self.engine_rows * (self.context_tokens + (BURST if self.device == "cuda" else 0))
        replies = self.engine_rows * max(0, self.context_tokens - self.prompt_tokens)
        return replies + math.ceil(self.engine_rows / self.group_size) * self.prompt_tokens


def engine_memory(model: ModelShape, generation: Generation, role: str = "engine") -> RoleMemory:
    """What an engine needs on each of the devices it is spread over."""
    parts, each = generation.tensor_parallel_size, generation.each
    weights = math.ceil(model.num_parameters * each / parts)
    cache = math.ceil(generation.cached_tokens * model.cache_bytes(each) / model.cache_parts(parts))
    is_own = generation.engine == "transformers"
    most = PREFILL_TOKENS if is_own else VLLM_PREFILL_TOKENS
    read = min(most, generation.engine_rows * generation.prompt_tokens)
    width = 3 * model.inner + 4 * model.hidden + model.query_width + 2 * model.key_width
    logits = generation.engine_rows * model.vocab * 12
    reading = read * each * width // parts + logits
    graphs = GRAPHS_BYTES if generation.device == "cuda" else 0
    tokens = f"{generation.cached_tokens:,} tokens"
    return RoleMemory(
        role,
        items_of(("weights", weights), ("cache", cache, tokens), ("graphs", graphs)),
        {
            "starting": items_of(("weights as they are read", weights if is_own else 0)),
            "reading": items_of(("reading", reading)),
        },
    )


def spare_bytes(model: ModelShape, generation: Generation) -> int:
    """Of the cache of `engine_memory`, what an engine can do without. vLLM has pages for as many rows as there is room
    for, the others wait: one whole row is enough to go on. The engine in this process has all of its rows or none."""
    if generation.engine != "vllm":
        return 0
    cache = engine_memory(model, generation).bytes_of("cache")
    least = math.ceil(cache / generation.cached_tokens * generation.context_tokens)
    if generation.device != "cuda":
        least = max(least, VLLM_CPU_CACHE)
    return max(0, cache - least)


def rows_bytes(model: ModelShape, generation: Generation) -> int:
    """What the engine in this process reserves for whole rows beyond the first; 0 for vLLM, which has pages."""
    if generation.engine == "vllm":
        return 0
    cache = engine_memory(model, generation).bytes_of("cache")
    return cache - cache // generation.engine_rows


def vllm_share_bytes(generation: Generation, gpu_bytes: int) -> int:
    """What vLLM reserves of a GPU when it starts, used or not; 0 for the engine in this process."""
    return int(generation.gpu_memory_utilization * gpu_bytes) if generation.engine == "vllm" else 0
