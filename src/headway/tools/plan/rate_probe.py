"""Measures on this machine how fast an engine generates and a learner learns, with random weights in a model's shape.

    engine     one batch of `engine_rows` replies of at most PROBED_TOKENS tokens, after one of a few to warm up
    learner    one update on a microbatch's worth of groups, after one to warm up

What it finds are rates of the parts as they are, on the device they would have: no task, no reward, no waiting.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from headway.core.text_messages import Say
from headway.core.types import Batch, Rollout, Span
from headway.llm.engine.protocol_engine import Request, Sampling
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder
from headway.llm.memory.model_shapes import random_model
from headway.llm.memory.planned_run import PlannedRun
from headway.llm.rollouts_group import Group
from headway.llm.train.grpo_learner_learner import GRPOLearner
from headway.llm.train.grpo_settings import GRPOSettings
from headway.tools.plan.division_rates import Rates

PROBED_TOKENS = 64
"""Tokens of each reply that are generated and learned from, at most."""


class _NoWords:
    """Stands in for a tokenizer: nobody reads what random weights say."""

    def decode(self, token_ids: list[int]) -> str:
        return ""


def probe(plan: PlannedRun, *, prompt_tokens: int, reply_tokens: int, say: Say) -> Rates:
    """Both rates, here. Lengths are those of the plan, replies at most PROBED_TOKENS."""
    assert plan.generation is not None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reply = min(reply_tokens, PROBED_TOKENS)
    name = torch.cuda.get_device_name() if device == "cuda" else "this CPU"
    say(f"probing {plan.model.name} on {name}: prompts of {prompt_tokens} tokens, replies of {reply}")
    engine = _engine_rate(plan, device, prompt_tokens, reply)
    learner = _learner_rate(plan, device, prompt_tokens, reply)
    return Rates(engine, learner, f"measured on {name}")


def _engine_rate(plan: PlannedRun, device: str, prompt: int, reply: int) -> float:
    assert plan.generation is not None
    rows, size = plan.generation.engine_rows, plan.generation.group_size
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = random_model(plan.model.name, dtype=dtype, device=device)
    engine = TransformersEngine(build_decoder(model, rows=rows, context=prompt + reply), _NoWords(), ())
    random = np.random.default_rng(0)

    def requests(count: int, tokens: int) -> list[Request]:
        sampling = Sampling(max_tokens=tokens)
        prompts = random.integers(plan.model.vocab, size=(max(1, count // size), prompt)).tolist()
        each = min(size, count)
        return [Request(str(number), tuple(one), each, number, sampling) for number, one in enumerate(prompts)]

    engine.generate_all(requests(rows, min(4, reply)))  # kernels are compiled and graphs captured
    asked = requests(rows, reply)
    began = time.perf_counter()
    samples = engine.generate_all(asked)
    took = time.perf_counter() - began
    engine.close()
    return sum(len(sample.tokens) for group in samples for sample in group) / took


def _learner_rate(plan: PlannedRun, device: str, prompt: int, reply: int) -> float:
    training, size = plan.training, plan.generation.group_size if plan.generation else 8
    if training.parameter_dtype != "float32" or training.lora_rank:
        raise ValueError("--probe measures a learner that trains all weights in float32")
    model = random_model(plan.model.name, dtype=torch.float32, device=device)
    if training.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    settings = GRPOSettings(
        microbatch_tokens=training.microbatch_tokens, logit_chunk_tokens=training.logit_chunk_tokens
    )
    learner = GRPOLearner(lambda: model, settings)
    groups = max(1, min(8, training.microbatch_tokens // (prompt + size * reply)))
    batch = made_up_batch(groups, size, prompt, reply, plan.model.vocab)
    took = []
    for _ in range(2):
        began = time.perf_counter()
        learner.learn(batch)
        took.append(time.perf_counter() - began)
    return groups * size * reply / took[-1]


def made_up_batch(groups: int, size: int, prompt: int, reply: int, vocab: int) -> Batch:
    """Makes a batch of random tokens: groups of `size` replies, all of one length."""
    random = np.random.default_rng(0)

    def group() -> Group:
        return Group(
            prompt=random.integers(vocab, size=prompt).astype(np.int32),
            tokens=random.integers(vocab, size=size * reply).astype(np.int32),
            lengths=np.full(size, reply, np.int64),
            log_probs=np.full(size * reply, -1.0, np.float32),
            versions=np.zeros(size * reply, np.int32),
            rewards=random.random(size).astype(np.float32),
        )

    rollouts: list[Any] = [Rollout(group(), steps=size * reply, span=Span(0, 0)) for _ in range(groups)]
    return Batch(0, tuple(rollouts))
