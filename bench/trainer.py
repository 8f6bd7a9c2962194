"""Trained tokens per second of the learner next to a plain transformers loop, same model, replies and gradient.

    python bench/trainer.py [--models tiny,smollm2] [--device cuda] [--repeats 5] [--shape 64,16,8,2]

      groups of replies to one prompt ──> one update: forward, backward, AdamW

The plain loop is what one writes first: every reply with its prompt is a row, rows are padded to the longest of their
microbatch, the model gives logits for every place, log_softmax and autograd do the rest. Both get microbatches of the
same number of tokens. Before anything is timed the two must agree on the gradient. They take turns, so that they meet
the same noise; medians and min..max. On a CPU: one torch thread and seconds of CPU time, which other work on the
machine disturbs less. On a GPU: seconds of the clock, bfloat16 products.

--shape: tokens of a prompt, longest reply, replies a prompt, prompts. Replies have random lengths from half of the
longest on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from figures import spread

from headway.core.types import Batch, Rollout
from headway.llm.rollouts_group import Group
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings
from headway.testing.tiny_models import tiny_model

SHAPES = {"tiny": ((64, 32, 8, 16),), "smollm2": ((64, 16, 8, 4), (128, 96, 8, 1))}
RATE = 1e-6
BUDGET = 1024


def load(name: str, device: str) -> Any:
    if name == "tiny":
        return tiny_model(context=4096).to(device)
    from headway.llm.model.loading_models import load_model

    return load_model(name, device=device)


def make_batch(shape: tuple[int, ...], words: int) -> Batch:
    prompt, longest, replies, prompts = shape
    random = np.random.default_rng(0)
    rollouts = []
    for _ in range(prompts):
        lengths = random.integers(longest // 2, longest + 1, replies)
        payload = Group(
            prompt=random.integers(5, words, prompt).astype(np.int32),
            tokens=random.integers(5, words, lengths.sum()).astype(np.int32),
            lengths=lengths,
            log_probs=np.full(lengths.sum(), -5.0, np.float32),
            versions=np.zeros(lengths.sum(), np.int32),
            rewards=random.random(replies).astype(np.float32),
        )
        rollouts.append(Rollout(payload, steps=int(lengths.sum())))
    return Batch(0, tuple(rollouts))


class Plain:
    """The loop one writes first."""

    def __init__(self, model: Any, budget: int) -> None:
        self.model = model.train()
        self._budget = budget
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
        self._device = next(model.parameters()).device

    def learn(self, batch: Batch) -> None:
        rows = list(self._rows(batch))
        num_tokens = sum(len(reply) for _, reply, _ in rows)
        self._optimizer.zero_grad()
        for part in self._microbatches(rows):
            width = max(len(prompt) + len(reply) for prompt, reply, _ in part)
            tokens = torch.zeros(len(part), width, dtype=torch.int64)
            trained = torch.zeros(len(part), width)
            for n, (prompt, reply, advantage) in enumerate(part):
                end = len(prompt) + len(reply)
                tokens[n, :end] = torch.from_numpy(np.concatenate([prompt, reply]).astype(np.int64))
                trained[n, len(prompt) : end] = advantage
            tokens, trained = tokens.to(self._device), trained.to(self._device)
            with torch.autocast("cuda", torch.bfloat16) if self._device.type == "cuda" else nullcontext():
                logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1]
            logs = torch.log_softmax(logits.float(), -1).gather(2, tokens[:, 1:, None])[..., 0]
            (-(trained[:, 1:] * logs).sum() / num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()

    def _rows(self, batch: Batch) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
        for rollout in batch.rollouts:
            group = rollout.payload
            rewards = group.rewards
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            for reply, advantage in zip(group.replies, advantages, strict=True):
                yield group.prompt, reply, float(advantage)

    def _microbatches(self, rows: list[Any]) -> Iterator[list[Any]]:
        part: list[Any] = []
        for row in rows:
            width = max(len(prompt) + len(reply) for prompt, reply, _ in [*part, row])
            if part and width * (len(part) + 1) > self._budget:
                yield part
                part = []
            part.append(row)
        yield part


def check(ours: GRPOLearner, plain: Plain, batch: Batch) -> float:
    """Both take a step from the same weights; the largest relative difference of a gradient."""
    ours.learn(batch)
    plain.learn(batch)
    mine = dict(ours._training.model.named_parameters())
    gaps = []
    for name, parameter in plain.model.named_parameters():
        scale = float(parameter.grad.abs().max())
        gaps.append(float((parameter.grad - mine[name].grad).abs().max()) / scale if scale else 0.0)
    return max(gaps)


def measure(learn: Any, batch: Batch, device: str) -> float:
    num_tokens = sum(rollout.steps for rollout in batch.rollouts)
    if device == "cpu":
        began = time.process_time()
        learn(batch)
        return num_tokens / (time.process_time() - began)
    torch.cuda.synchronize()
    began = time.perf_counter()
    learn(batch)
    torch.cuda.synchronize()
    return num_tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="tiny,smollm2")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=int, default=BUDGET, help="tokens of a microbatch")
    parser.add_argument("--shape", help="prompt,reply,replies,prompts instead of the built-in ones")
    options = parser.parse_args()
    torch.set_num_threads(1)
    title = f"{'model':<9}{'prompt':>7}{'reply':>6}{'replies':>9}{'gradients differ by':>21}"
    print(f"{title}{'plain, tokens/s':>26}{'ours, tokens/s':>26}{'ratio':>20}")
    for name in options.models.split(","):
        shapes = [tuple(map(int, options.shape.split(",")))] if options.shape else SHAPES.get(name, SHAPES["smollm2"])
        for shape in shapes:
            first, second = load(name, options.device), load(name, options.device)
            settings = GRPOSettings(correction="none", learning_rate=RATE, microbatch_tokens=options.budget)
            ours, plain = GRPOLearner(lambda model=first: model, settings), Plain(second, options.budget)
            batch = make_batch(shape, min(first.config.vocab_size, 40_000))
            gap = check(ours, plain, batch)
            speeds: dict[str, list[float]] = {"plain": [], "ours": []}
            for _ in range(options.repeats):
                speeds["plain"].append(measure(plain.learn, batch, options.device))
                speeds["ours"].append(measure(ours.learn, batch, options.device))
            ratios = [b / a for a, b in zip(speeds["plain"], speeds["ours"], strict=True)]
            line = f"{name:<9}{shape[0]:>7}{shape[1]:>6}{shape[2] * shape[3]:>9}{gap:>21.1e}"
            print(f"{line}{spread(speeds['plain']):>26}{spread(speeds['ours']):>26}{spread(ratios, 2):>20}", flush=True)


if __name__ == "__main__":
    main()
