"""LightZero's UniZero search with its own CartPole configuration, on demand: one line in, one repeat, one line out.

    python bench/peers/lightzero_unizero.py ROOTS SIMULATIONS LAYERS DIM

Each line on standard input is the least number of seconds to search for; the answer is simulations per second.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import time
import warnings


def main() -> None:
    roots, simulations, layers, dim = map(int, sys.argv[1:])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.chdir(tempfile.mkdtemp())
    out, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    import numpy as np
    import torch
    from ding.config import compile_config
    from ding.policy import create_policy

    torch.set_num_threads(1)
    config = importlib.import_module("zoo.classic_control.cartpole.config.cartpole_unizero_config")
    main_config, create = config.main_config, config.create_config
    policy_config = main_config.policy
    policy_config.cuda, policy_config.device, policy_config.num_simulations = False, "cpu", simulations
    world = policy_config.model.world_model_cfg
    world.device, world.num_layers, world.embed_dim = "cpu", layers, dim
    world.env_num = world.collector_env_num = policy_config.collector_env_num = roots
    main_config.env.collector_env_num = main_config.env.n_episode = roots
    compiled = compile_config(main_config, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False)
    policy = create_policy(compiled.policy, enable_field=["learn", "collect", "eval"]).collect_mode
    policy.reset(reset_init_data=True)
    rng = np.random.default_rng(0)
    masks, to_play = [np.ones(2, np.int8) for _ in range(roots)], [-1] * roots
    step = 0

    def search() -> None:
        nonlocal step
        obs = torch.from_numpy(rng.normal(size=(roots, 4)).astype(np.float32))
        policy.forward(obs, masks, 1.0, to_play, 0.0, np.arange(roots), [step] * roots)
        step += 1

    for _ in range(3):
        search()
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < float(line):
            search()
            done += 1
        print(done * roots * simulations / (time.perf_counter() - began), file=out, flush=True)


if __name__ == "__main__":
    main()
