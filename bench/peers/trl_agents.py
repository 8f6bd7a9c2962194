"""TRL's GRPO trainer with an environment of many turns (`environment_factory`), on games that the benchmark hands over.

    python bench/peers/trl_agents.py MODEL_FOLDER JOB.json

The game is ours, the same code: `press`, its one method that is a tool, hands a reply to it. The job says seeds of
games, options of the game, group size, games an update, updates, turns, longest reply and episode, learning rate and
threads. Prints one JSON line: seconds of each update, generation and training together, and of processor time, the mean
reward of each, how many episodes ended and how many turns were played in all, and the episodes of the last update.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

OPTIONS: dict[str, Any] = {}
"""What the game is built with."""


class LightsEnvironment:
    """The game of lights as TRL plays it: every public method but `reset` is a tool."""

    def __init__(self) -> None:
        from headway.agents.games.lights import Lights

        self._game = Lights(**OPTIONS)
        self._earned, self._turns, self._over = 0.0, 0, True

    def reset(self, seed: int, **_: Any) -> str:
        self._earned, self._turns, self._over = 0.0, 0, False
        return self._game.reset(seed)

    def press(self, light: str) -> str:
        """
        Press a light.

        Args:
            light: The name of the light.

        Returns:
            What came of it.
        """
        step = self._game.step(light)
        self._earned, self._turns, self._over = self._earned + step.reward, self._turns + 1, step.done
        return step.text


def main() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    job = json.loads(Path(sys.argv[2]).read_text())
    OPTIONS.update(job["options"])
    torch.set_num_threads(job["threads"])
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in job["seeds"]]
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    played = {"episodes": 0, "turns": 0}
    rewards: list[float] = []
    marks: list[tuple[float, float]] = []
    last: list[dict[str, Any]] = []

    def earned(
        completion_ids: list[list[int]], environments: list[Any], seed: list[int], prompts: list[Any], **_: Any
    ) -> list[float]:
        """Reads the rewards off the games, and counts those that were played to their end."""
        returns = [one._earned for one in environments]
        played["episodes"] += sum(one._over for one in environments)
        played["turns"] += sum(one._turns for one in environments)
        rewards.append(sum(returns) / len(returns))
        last[:] = [
            {"seed": its_seed, "first": prompt[-1]["content"], "tokens": ids, "reward": reward}
            for its_seed, prompt, ids, reward in zip(seed, prompts, completion_ids, returns, strict=True)
        ]
        return returns

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append((time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            num_generations=job["group_size"],
            per_device_train_batch_size=job["group_size"] * job["games_per_update"],
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            num_iterations=1,
            max_tool_calling_iterations=job["turns"],
            max_completion_length=job["max_episode_tokens"],
            generation_kwargs={"max_new_tokens": job["max_turn_tokens"]},  # of one reply; TRL has no setting for it
            max_steps=job["updates"],
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",  # a mean over all tokens of the batch
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=job["seed"],
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=earned,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(sys.argv[1]),
            environment_factory=LightsEnvironment,
            callbacks=[Watch()],
        )
        marks.append((time.perf_counter(), time.process_time()))
        trainer.train()
    seconds = [later[0] - earlier[0] for earlier, later in pairwise(marks)]
    processor = [later[1] - earlier[1] for earlier, later in pairwise(marks)]
    print(json.dumps({"seconds": seconds, "processor": processor, "rewards": rewards, **played, "last": last}))


if __name__ == "__main__":
    main()
