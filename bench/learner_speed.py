"""Reply tokens a second of the learner: as it reads on a CPU, as it reads on a GPU, and beside a plain compiled loop.

    python bench/learner_speed.py [--shapes 135M,0.5B,1.5B] [--repeats 5] [--limit_s 270] [--device cuda]

    dense       trees in padded rows, a mask of every pair of places, nothing compiled
    auto        trees end to end, flash kernels, compiled layers, fused head: what `auto` is on a GPU
    flex        the same by FlexAttention
    plain       every reply behind its prompt in a row of its own, padded; the whole body compiled by torch.compile,
                log-probabilities of 4,096 tokens at a time, computed again in the backward pass
    auto body   as auto, but the whole body compiled as one (--ways)

Random weights in the shapes of SmolLM2-135M, Qwen2.5-0.5B and Qwen2.5-1.5B, float32, bfloat16 products, AdamW. One
prompt is 128 tokens with 8 replies of 256; an update is `--prompts` of them. One way after the other, so that the peak
of memory is its own; medians, least and most. Reply tokens are those that are trained on. MFU counts what the layers
and the head do for tokens that have to be read (a prompt once), not what a way adds to that, over `--peak` operations a
second. "first" is from nothing to the end of the second update, compilers included. The norm of the first gradient is
there to be compared. After `--limit_s` seconds the table is printed as it is.
"""

from __future__ import annotations

import argparse
import gc
import os
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import spread
from torch.utils.checkpoint import checkpoint

from headway.core.types import Batch, Rollout
from headway.llm.memory.roles_memory_items import GB
from headway.llm.rollouts_group import Group
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings
from headway.llm.train.model_in_training_policy import autocast

RATE = 1e-6
CHUNK = 4096
SLOW = {"plain": 1, "auto body": 2}
"""What takes long to compile comes last."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 64, "inner": 128, "layers": 2, "heads": 4, "shared": 2, "words": 512},
    "135M": {"width": 576, "inner": 1536, "layers": 30, "heads": 9, "shared": 3, "words": 49152},
    "0.5B": {"width": 896, "inner": 4864, "layers": 24, "heads": 14, "shared": 2, "words": 151936, "kind": "qwen2"},
    "1.5B": {"width": 1536, "inner": 8960, "layers": 28, "heads": 12, "shared": 2, "words": 151936, "kind": "qwen2"},
}


def load(shape: str, device: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = SHAPES[shape]
    config = AutoConfig.for_model(
        sizes.get("kind", "llama"),
        vocab_size=sizes["words"],
        hidden_size=sizes["width"],
        intermediate_size=sizes["inner"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["shared"],
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config).train()


def make_batch(given: argparse.Namespace, words: int) -> Batch:
    random = np.random.default_rng(0)
    rollouts = []
    for _ in range(given.prompts):
        tokens = random.integers(5, words, given.group * given.new).astype(np.int32)
        payload = Group(
            prompt=random.integers(5, words, given.prompt).astype(np.int32),
            tokens=tokens,
            lengths=np.full(given.group, given.new),
            log_probs=np.full(len(tokens), -np.log(words), np.float32),
            versions=np.zeros(len(tokens), np.int32),
            rewards=random.random(given.group).astype(np.float32),
        )
        rollouts.append(Rollout(payload, steps=len(tokens)))
    return Batch(0, tuple(rollouts))


class Plain:
    """A loop over padded rows that knows what is quick on a GPU."""

    def __init__(self, shape: str, given: argparse.Namespace) -> None:
        self._model = load(shape, given.device)
        self._body = torch.compile(self._model.model, dynamic=False)
        self._rows = max(1, given.microbatch // (given.prompt + given.new))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
        self._device = torch.device(given.device)

    def learn(self, batch: Batch) -> float:
        rows, advantages = [], []
        for rollout in batch.rollouts:
            group, rewards = rollout.payload, rollout.payload.rewards
            advantages += ((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)).tolist()
            rows += [np.concatenate([group.prompt, reply]) for reply in group.replies]
        prompt, trained = len(group.prompt), sum(len(row) - len(group.prompt) for row in rows)
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(self._device)
        factors = torch.tensor(advantages, device=self._device)
        self._optimizer.zero_grad(set_to_none=True)
        for some, part in zip(tokens.split(self._rows), factors.split(self._rows), strict=True):
            with autocast(self._device):
                hidden = self._body(input_ids=some, use_cache=False).last_hidden_state[:, prompt - 1 : -1]
                logs = self._log_probs(hidden.reshape(-1, hidden.shape[-1]), some[:, prompt:].reshape(-1))
            (-(part[:, None] * logs.view(len(some), -1)).sum() / trained).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0, foreach=True)
        self._optimizer.step()
        return float(norm)

    def _log_probs(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        def some(rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
            logits = torch.nn.functional.linear(rows, self._model.lm_head.weight)
            return -torch.nn.functional.cross_entropy(logits.float(), chosen, reduction="none")

        parts = zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
        found = [checkpoint(some, rows, chosen, use_reentrant=False) for rows, chosen in parts]
        return torch.cat(found)  # type: ignore[arg-type]


class Ours:
    """The learner, told how to run its model."""

    def __init__(self, shape: str, given: argparse.Namespace, attention: str, compiling: str, body: bool) -> None:
        settings = GRPOSettings(
            learning_rate=RATE,
            microbatch_tokens=given.microbatch,
            logit_chunk_tokens=CHUNK,
            correction="none",  # as the plain loop
            trainer_attention=attention,  # type: ignore[arg-type]
            compile_trainer=compiling,  # type: ignore[arg-type]
        )
        self._learner = GRPOLearner(lambda: load(shape, given.device), settings)
        self.kernels = self._learner._training.kernels
        if body:
            from headway.llm.train.heads_layer_compiler import undo_compiling

            model: Any = self._learner._training.model
            undo_compiling(model)
            model.model.forward = torch.compile(model.model.forward, dynamic=False)

    def learn(self, batch: Batch) -> float:
        return self._learner.learn(batch).metrics["grad_norm"]


@dataclass
class Way:
    """What was seen of one way to train a shape."""

    shape: str
    name: str
    build: Callable[[], Any]
    speeds: list[float] = field(default_factory=list)
    norm: float = 0.0
    peak: float = 0.0
    first: float = 0.0
    note: str = "no time left"

    @property
    def middle(self) -> float:
        return float(np.median(self.speeds)) if self.speeds else 0.0


def flops_of(shape: str, given: argparse.Namespace) -> float:
    """Of an update: 6 for each weight and token read, with the head for trained tokens; attention over what is seen."""
    sizes = SHAPES[shape]
    head = sizes["width"] // sizes["heads"]
    projections = 2 * head * (sizes["heads"] + sizes["shared"])
    layers = sizes["layers"] * sizes["width"] * (projections + 3 * sizes["inner"])
    read = given.prompt + given.group * (given.new - 1)
    trained = given.group * given.new
    pairs = given.prompt**2 / 2 + given.group * (given.prompt * given.new + given.new**2 / 2)
    attention = 12 * sizes["layers"] * sizes["width"] * pairs
    return float(given.prompts * (6 * layers * read + 6 * sizes["width"] * sizes["words"] * trained + attention))


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(way: Way, given: argparse.Namespace, until: float) -> None:
    """Builds a way, lets it compile, and times it; the others are not in memory, so the peak is its own."""
    batch = make_batch(given, SHAPES[way.shape]["words"])
    tokens = sum(rollout.steps for rollout in batch.rollouts)
    gc.collect()
    if given.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    try:
        subject = way.build()
        way.norm = subject.learn(batch)
        subject.learn(batch)
        wait(given.device)
        way.first = time.perf_counter() - began
        while len(way.speeds) < given.repeats and (time.monotonic() < until or not way.speeds):
            began = time.perf_counter()
            subject.learn(batch)
            wait(given.device)
            way.speeds.append(tokens / (time.perf_counter() - began))
    except Exception as error:  # noqa: BLE001 - the others are still worth their time
        way.note = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        traceback.print_exc(limit=-6)
    else:
        kernels = getattr(subject, "kernels", None)
        is_flex = kernels is None or kernels.windows is not None
        way.note = "" if is_flex or way.name == "dense" else "fell back to dense"
        if way.name == "auto" and given.device == "cuda":
            way.note = f"{way.note} waits in an update: {waits(subject, batch)}".strip()
    way.peak = torch.cuda.max_memory_allocated() / GB if given.device == "cuda" else 0.0
    print(f"  {way.shape} {way.name}: {spread(way.speeds)} tokens/s, first {way.first:.1f} s {way.note}", flush=True)


def waits(subject: Any, batch: Batch) -> str:
    """Where the program waits for the GPU in an update, and how often."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            subject.learn(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = Counter(f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchroniz" in str(one.message))
    return ", ".join(f"{place} x{count}" for place, count in places.most_common(12)) or "none"


def show(ways: list[Way], given: argparse.Namespace) -> None:
    tokens = given.prompts * given.group * given.new
    titles = f"{'x dense':>8}{'x plain':>8}{'MFU':>7}{'GB':>7}{'first, s':>9}{'grad norm':>11}"
    print(f"\n{'shape':<6}{'way':<11}{'reply tokens/s':>32}{titles}")
    for way in ways:
        line = f"{way.shape:<6}{way.name:<11}{spread(way.speeds):>32}"
        for name in ("dense", "plain"):
            base = next((other.middle for other in ways if (other.shape, other.name) == (way.shape, name)), 0.0)
            line += f"{way.middle / base:>8.2f}" if base and way.middle else f"{'-':>8}"
        mfu = flops_of(way.shape, given) * way.middle / tokens / given.peak
        print(f"{line}{mfu:>7.3f}{way.peak:>7.1f}{way.first:>9.1f}{way.norm:>11.5f}  {way.note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="135M,0.5B,1.5B")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit_s", type=float, default=270, help="end after so many seconds, with what is known")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prompts", type=int, default=35)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--microbatch", type=int, default=15360, help="tokens a microbatch")
    parser.add_argument("--peak", type=float, default=989e12, help="operations a second of the device")
    parser.add_argument("--ways", default="auto,flex,dense,plain", help="of them, and auto body")
    given = parser.parse_args()
    until = time.monotonic() + given.limit_s
    print(f"torch {torch.__version__}, {given.device}, {given.prompts} prompts an update", flush=True)
    attention = "flash" if given.device == "cpu" else "auto"
    builders: dict[str, Callable[[str], Any]] = {
        "auto": lambda shape: Ours(shape, given, attention, "on", body=False),
        "flex": lambda shape: Ours(shape, given, "flex", "on", body=False),
        "dense": lambda shape: Ours(shape, given, "dense", "off", body=False),
        "plain": lambda shape: Plain(shape, given),
        "auto body": lambda shape: Ours(shape, given, attention, "on", body=True),
    }
    builders = {name: builders[name] for name in given.ways.split(",")}
    shapes = given.shapes.split(",")
    ways = [Way(shape, name, partial(builders[name], shape)) for shape in shapes for name in builders]

    def give_up() -> None:
        show(ways, given)
        os._exit(0)

    alarm = threading.Timer(given.limit_s + 10, give_up)
    alarm.daemon = True
    alarm.start()
    for way in sorted(ways, key=lambda way: SLOW.get(way.name, 0)):
        if time.monotonic() < until:
            measure(way, given, until)
    alarm.cancel()
    show(ways, given)


if __name__ == "__main__":
    main()
