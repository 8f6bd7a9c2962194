"""What a rank holds of a model in shards, and what an update takes.

    python bench/shards.py                 1, 2 and 4 ranks on this machine's CPUs, in shards; 2 as replicas too
    python bench/shards.py --ranks 2       only so many

Each row is a learner of its own: a random Llama of 27 million weights in float32, updates on made-up groups, AdamW.
Memory is that of the processes (VmRSS, VmHWM in /proc/self/status) after the last update, less what they had before
the model; the table shows the largest of the ranks. The C library is told to give freed tensors back to the system at
once (MALLOC_MMAP_THRESHOLD_), so that what is counted is what is held. Seconds are of CPU time, over all ranks: they
share cores here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.core.types import Batch, LearnReport, Rollout
from headway.llm.rollouts_group import Group
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings
from headway.llm.weights.source_offered_rows import OffersRows
from headway.llm.weights.source_weight_source import WeightSource
from headway.ranks.rank import ALONE, Rank
from headway.ranks.rank_processes import RankProcesses
from headway.ranks.ranked_learner import RankedLearner

WORDS = 8192
MB = 1e6


def model(dtype: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama",
        vocab_size=WORDS,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=7,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(dtype)


def batch(version: int) -> Batch:
    rollouts = []
    for number in range(4):
        dice = np.random.default_rng([version, number])
        tokens = dice.integers(0, WORDS, 4 * 32).astype(np.int32)
        payload = Group(
            prompt=dice.integers(0, WORDS, 32).astype(np.int32),
            tokens=tokens,
            lengths=np.full(4, 32),
            log_probs=np.full(len(tokens), -9.0, np.float32),
            versions=np.full(len(tokens), version, np.int32),
            rewards=dice.random(4).astype(np.float32),
        )
        rollouts.append(Rollout(payload))
    return Batch(version, tuple(rollouts))


def memory() -> dict[str, float]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: float(lines[name].split()[0]) * 1024 / MB for name in ("VmRSS", "VmHWM")}


class Measured(GRPOLearner):
    """Says how much memory every rank has after an update, and the CPU time they have taken together."""

    before: dict[str, float]

    def learn(self, data: Batch) -> LearnReport:
        began = time.process_time()
        report = super().learn(data)
        took = time.process_time() - began
        found = memory()
        numbers = torch.zeros(3, self._rank.size, dtype=torch.float64)
        numbers[:, self._rank.index] = torch.tensor(
            [found["VmRSS"] - self.before["VmRSS"], found["VmHWM"] - self.before["VmRSS"], took]
        )
        self._rank.add_up(numbers)
        held = {"rss": float(numbers[0].max()), "peak": float(numbers[1].max()), "cpu_s": float(numbers[2].sum())}
        return LearnReport({**report.metrics, **held})


def build(shards: bool, state: str, dtype: Any, rank: Rank) -> Any:
    torch.set_num_threads(1)
    from torch.distributed.fsdp import fully_shard  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401 - what is imported is no part of the model

    before = memory()
    settings = GRPOSettings(learning_rate=1e-5, microbatch_tokens=256, optimizer_state=state)
    subject = Measured(
        partial(model, dtype),
        settings,
        rank=rank,
        shard_ranks=rank.size if shards else None,
        publish_dtype=torch.bfloat16,
    )
    subject.before = before
    return OffersRows(subject, partial(WeightSource, rank.here)) if shards and rank.size > 1 else subject


def row(size: int, *, shards: bool, state: str = "full", dtype: Any = torch.float32, updates: int = 3) -> None:
    make = partial(build, shards, state, dtype)
    subject: Any = make(ALONE) if size == 1 else RankedLearner(make, size, RankProcesses, start_s=600.0)
    try:
        for version in range(updates):
            found = subject.learn(batch(version)).metrics
        cells = [f"{size}", "shards" if shards else "replicas", state, str(dtype).removeprefix("torch.")]
        cells += [f"{found['rss']:.0f}", f"{found['peak']:.0f}", f"{found['cpu_s']:.1f}"]
        if size > 1 and shards:
            handle = subject.snapshot()
            cells.append(f"{max(part.kept.num_bytes for part in handle.parts) / MB:.0f}")
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                saving = subject.save_beside(f"{folder}/state")
                returned = time.perf_counter() - began
                subject.learn(batch(updates))
                updated = time.perf_counter() - began
                while (saved := saving.when_written()) is None:
                    time.sleep(0.01)
                written = time.perf_counter() - began
                cells.append(f"{max(saved.files.values()) / MB:.0f}")
                cells.append(f"{returned:.2f}, {updated:.2f}, {written:.2f}")
        else:
            whole = subject.snapshot().values()
            cells += [f"{sum(t.numel() * t.element_size() for t in whole) / MB:.0f}", "-", "-"]
        print("| " + " | ".join(cells) + " |", flush=True)
    finally:
        if size > 1:
            subject.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--updates", type=int, default=3)
    chosen = parser.parse_args()
    print("| ranks | each holds | optimizer_state | weights | memory, MB | at its peak | CPU s an update | "
          "published by a rank, MB | its file, MB | seconds until a save returns, an update beside it is done, "
          "the files are there |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for size in chosen.ranks:
        row(size, shards=True, updates=chosen.updates)
        if size == 1:
            row(size, shards=True, state="8bit", updates=chosen.updates)
            row(size, shards=True, dtype=torch.bfloat16, state="8bit", updates=chosen.updates)
        elif size == 2:
            row(size, shards=False, updates=chosen.updates)


if __name__ == "__main__":
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)  # read when a process starts
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
