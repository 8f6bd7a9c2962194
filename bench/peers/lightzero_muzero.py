"""LightZero's own MuZero configuration for CartPole, on CartPole-v1, for a number of seconds.

    python bench/peers/lightzero_muzero.py SECONDS SEED

Its settings are its own but for the environment's version, the score it stops at and the GPU it must not look for.
Time starts with the first collection. Prints one JSON line: every evaluation with its seconds, updates and steps.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from typing import Any

TARGET = 475


class TimeIsUp(BaseException):
    """Not an error, so that nobody in between handles it."""


def main() -> None:
    limit_s, seed = float(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.chdir(tempfile.mkdtemp())
    os.environ["WANDB_MODE"] = "disabled"
    import torch
    from lzero.entry import train_muzero
    from lzero.worker import MuZeroCollector, MuZeroEvaluator

    torch.set_num_threads(2)
    config = importlib.import_module("zoo.classic_control.cartpole.config.cartpole_muzero_config")
    config.main_config.env.env_id = "CartPole-v1"
    config.main_config.env.stop_value = TARGET
    config.main_config.policy.cuda = False
    began: list[float] = []
    scores: list[dict[str, float]] = []
    updates, steps_at_end = [0], list[int]()
    evaluate, collect = MuZeroEvaluator.eval, MuZeroCollector.collect

    def watched_eval(self: Any, save: Any, train_iter: int, envstep: int, *rest: Any, **named: Any) -> Any:
        stop, info = evaluate(self, save, train_iter, envstep, *rest, **named)
        if began:
            found = {"seconds": time.perf_counter() - began[0], "score": float(info["eval_episode_return_mean"])}
            scores.append(found | {"updates": int(train_iter), "steps": int(envstep)})
        return stop, info

    def watched_collect(self: Any, *args: Any, train_iter: int = 0, **named: Any) -> Any:
        if not began:
            began.append(time.perf_counter())
        updates[0] = train_iter
        if time.perf_counter() - began[0] > limit_s:
            steps_at_end.append(int(self.envstep))
            raise TimeIsUp
        return collect(self, *args, train_iter=train_iter, **named)

    MuZeroEvaluator.eval, MuZeroCollector.collect = watched_eval, watched_collect
    out, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        train_muzero([config.main_config, config.create_config], seed=seed, max_env_step=10**9)
    except TimeIsUp:
        pass
    sys.stdout = out
    found = {"scores": scores, "updates": updates[0], "steps": steps_at_end[0] if steps_at_end else scores[-1]["steps"]}
    print(json.dumps(found | {"seconds": time.perf_counter() - began[0]}), flush=True)
    os._exit(0)  # its environments' processes would keep this one


if __name__ == "__main__":
    main()
