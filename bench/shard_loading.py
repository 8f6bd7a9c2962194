"""The memory that a rank needs to load its shard of a model, at its peak and afterwards.

    python bench/shard_loading.py [--ranks 1 2 4] [--layers 32]

A random Llama (32 layers: 109 million weights, 436 MB in float32) lies in safetensors files. Each rank loads it and is
cut, in two ways: "rows" reads only what the rank keeps, "whole" loads all of it first. Each measurement has fresh
processes. Memory is VmHWM and VmRSS of /proc/self/status, less what the process had before the model (imports are
done); every weight is touched once; the table has the largest of the ranks. One rank is not cut.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headway.core.types import Batch, LearnReport
from headway.llm.train.sharding import shard_model
from headway.ranks.rank import ALONE, Rank
from headway.ranks.rank_processes import RankProcesses
from headway.ranks.ranked_learner import RankedLearner

MB = 1e6


def write(folder: str, layers: int) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.for_model(
        "llama",
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="100MB")


def memory(name: str) -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(lines[name].split()[0]) * 1024 / MB


class Loaded:
    """One rank that has loaded its part; asked to learn, it says what that took."""

    def __init__(self, folder: str, way: str, rank: Rank) -> None:
        from torch.distributed.fsdp import fully_shard  # noqa: F401 - what is imported is no part of the model
        from transformers import LlamaForCausalLM  # noqa: F401

        from headway.llm.model.loading_models import load_model, load_unread

        torch.set_num_threads(1)
        self._rank = rank
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        before, began = memory("VmRSS"), time.process_time()
        self._model: Any = load_unread(folder) if way == "rows" and rank.size > 1 else load_model(folder)
        assert self._model is not None
        shard_model(self._model, rank, rank.size)
        for parameter in self._model.parameters():  # transformers maps files: what nobody has touched is not there
            (parameter.to_local() if rank.size > 1 else parameter).detach().sum()
        self._numbers = [memory("VmHWM") - before, memory("VmRSS") - before, time.process_time() - began]

    def learn(self, _: Batch) -> LearnReport:
        table = torch.zeros(3, self._rank.size, dtype=torch.float64)
        table[:, self._rank.index] = torch.tensor(self._numbers)
        self._rank.add_up(table)
        return LearnReport(dict(zip(("peak", "held", "cpu_s"), table.max(1).values.tolist(), strict=True)))

    def snapshot(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> None: ...

    def load_state_dict(self, state: object) -> None: ...


def measure(folder: str, way: str, size: int) -> None:
    make = partial(Loaded, folder, way)
    subject: Any = make(ALONE) if size == 1 else RankedLearner(make, size, RankProcesses, start_s=300.0)
    found = subject.learn(Batch(0, ())).metrics
    print(f"| {size} | {way} | {found['peak']:.0f} | {found['held']:.0f} | {found['cpu_s']:.1f} |", flush=True)
    if size > 1:
        subject.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS, metavar=("FOLDER", "WAY", "RANKS"))
    given = parser.parse_args()
    if given.one:
        measure(given.one[0], given.one[1], int(given.one[2]))
        return
    print("| ranks | reads | peak, MB | then held, MB | CPU s |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write(folder, given.layers)
        for size in given.ranks:
            for way in ("whole",) if size == 1 else ("whole", "rows"):
                subprocess.run([sys.executable, *sys.argv[:1], "--one", folder, way, str(size)], check=True)


if __name__ == "__main__":
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)  # freed tensors go back to the system at once
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
