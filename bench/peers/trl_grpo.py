"""TRL's GRPO trainer on prompts that the benchmark hands over.

    python bench/peers/trl_grpo.py MODEL_FOLDER JOB.json

The job says prompts with their numbers, group size, prompts an update, updates, longest reply, learning rate, threads.
Prints one JSON line: seconds of each update, generation and training together, and of processor time, and the mean
reward of each.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def is_larger(completions: list[Any], number: list[float], **_: Any) -> list[float]:
    """1 where the last number of the reply is larger than the one in the question."""
    texts = [reply[0]["content"] for reply in completions]
    found = [NUMBER.findall(text) for text in texts]
    pairs = zip(found, number, strict=True)
    return [float(bool(some) and float(some[-1].replace(",", "")) > limit) for some, limit in pairs]


def main() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with open(sys.argv[2]) as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    rows = [{"prompt": [{"role": "user", "content": text}], "number": number} for text, number in job["prompts"]]
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            num_generations=job["group_size"],
            per_device_train_batch_size=job["group_size"] * job["prompts_per_update"],
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            max_completion_length=job["max_tokens"],
            max_steps=job["updates"],
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant",
            temperature=1.0,
            beta=0.0,
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=job["seed"],
        )
        rewards: list[float] = []
        marks: list[tuple[float, float]] = []

        class Watch(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                marks.append((time.perf_counter(), time.process_time()))

            def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
                if logs and "reward" in logs:
                    rewards.append(float(logs["reward"]))

        trainer = GRPOTrainer(
            model=model,
            reward_funcs=is_larger,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(sys.argv[1]),
            callbacks=[Watch()],
        )
        marks.append((time.perf_counter(), time.process_time()))
        trainer.train()
    seconds = [later[0] - earlier[0] for earlier, later in pairwise(marks)]
    processor = [later[1] - earlier[1] for earlier, later in pairwise(marks)]
    print(json.dumps({"seconds": seconds, "processor": processor, "rewards": rewards}))


if __name__ == "__main__":
    main()
