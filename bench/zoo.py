"""Tasks of the zoo of Stable-Baselines3, with the settings that it publishes, beside Stable-Baselines3 in the same run.

    pip install -e '.[box2d]' && python bench/peers/install.py main     once
    python bench/zoo.py [--only LunarLander] [--seeds 5]                what is missing in the results file, then tables
    python bench/zoo.py --most 1                                        one run of what is missing
    python bench/zoo.py --table                                         the tables of what is there

Both get the same settings under the same names: ours through `names: sb3`. Every way in turn for every seed, each in a
process of its own with one thread for torch, so that all see the same machine; each result is appended at once. Time
starts when training does and ends with its last step. `score` is the mean return of 100 episodes that the last policy
plays without chance in Gymnasium's own environment; `reached` is when the mean return of the last 100 training games,
with chance, first came to the target, looked at once an update.

What differs from the zoo: Pendulum draws its noise at every step, in both (the zoo's `use_sde` is not ours).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
EVALUATED = 100
LIMIT_S = 3600.0
PEER = "Stable-Baselines3"
SAID_BY_NONE = {"learning_rate": 3e-4, "batch_size": 64, "clip_range": 0.2, "vf_coef": 0.5, "max_grad_norm": 0.5}
"""What the zoo does not say is the default of Stable-Baselines3."""


class Task(NamedTuple):
    """An environment: what the zoo scored after how many steps, the return that counts as learned, and its settings."""

    zoo_score: float
    target: float
    settings: dict[str, Any]


TASKS = {
    "LunarLander-v3": Task(
        242.1,
        200,
        {"n_envs": 16, "n_timesteps": 1_000_000, "n_steps": 1024, "gae_lambda": 0.98, "gamma": 0.999}
        | {"n_epochs": 4, "ent_coef": 0.01},
    ),
    "Acrobot-v1": Task(
        -73.5,
        -100,
        {"n_envs": 16, "n_timesteps": 1_000_000, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99}
        | {"n_epochs": 4, "ent_coef": 0.0, "normalize": True},
    ),
    "Pendulum-v1": Task(
        -172.2,
        -250,
        {"n_envs": 4, "n_timesteps": 100_000, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9}
        | {"n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3},
    ),
    "BipedalWalker-v3": Task(
        213.3,
        200,
        {"n_envs": 32, "n_timesteps": 5_000_000, "n_steps": 2048, "gae_lambda": 0.95, "gamma": 0.999}
        | {"n_epochs": 10, "ent_coef": 0.0, "clip_range": 0.18, "normalize": True},
    ),
}
WAYS: dict[str, dict[str, Any] | None] = {
    "headway, lead 0": {"max_lead": 0, "env_backend": "gymnasium"},
    PEER: None,
    "headway, lead 1": {"max_lead": 1, "env_backend": "gymnasium"},
    "headway, lead 1, EnvPool": {"max_lead": 1, "env_backend": "envpool"},
}
"""All step Gymnasium's own environments, but the last, which is what `auto` chooses where EnvPool is installed."""


def settings_of(env: str) -> dict[str, Any]:
    """As Stable-Baselines3 calls them, none left to a default."""
    return SAID_BY_NONE | TASKS[env].settings


def run_headway(env: str, seed: int, more: dict[str, Any]) -> dict[str, Any]:
    """Ours, in this process, on the runtime that `headway run` uses."""
    import torch

    from headway.coordinator.checkpoint_best_weights import Kept
    from headway.coordinator.coordinator import Coordinator
    from headway.ppo.recipe_ppo import PPOConfig, load_policy, stations
    from headway.runs.config import read_values
    from headway.runs.event_log import MemoryRecorder
    from headway.runtimes.build import build_runtime

    class Watch(MemoryRecorder):
        """Says when the last 100 episodes were good enough."""

        steps = 0
        reached: dict[str, float] | None = None

        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            if kind == "land":
                self.steps += fields["n"]
            enough = kind == "learn" and fields["m"].get("return", -float("inf")) >= TASKS[env].target
            if enough and self.reached is None:
                wall, used = time.perf_counter() - began, time.process_time() - cpu
                self.reached = {"wall": wall, "cpu": used, "steps": self.steps}

    torch.set_num_threads(1)
    plan = {"seed": seed, "evaluate_every": 0, **more}
    config = read_values(PPOConfig, {"names": "sb3", "env": env, **settings_of(env), **plan})
    assert isinstance(config, PPOConfig)
    runtime, watch = build_runtime("threads"), Watch()
    tiny = config.model_copy(update={"updates": 1, "num_envs": 2, "segment_steps": 8, "minibatch_size": 4})
    runtime.run(Coordinator(stations(tiny), tiny.settings(), runtime).run())  # what is compiled is not part of a run
    runtime = build_runtime("threads")
    coordinator = Coordinator(stations(config), config.settings(), runtime, recorder=watch)
    began, cpu = time.perf_counter(), time.process_time()
    result = runtime.run(coordinator.run())
    found = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu, "steps": watch.steps}
    policy = load_policy(config, Kept(result.version, result.weights, None))
    returns = [episode.total for episode in policy.play(EVALUATED, seed=10_000)]
    return {**found, "score": statistics.fmean(returns), "reached": watch.reached}


def measure(env: str, way: str, seed: int) -> dict[str, Any]:
    """One run in a process of its own. Raises what the process said, if it failed."""
    words = [sys.executable, __file__, "--one", env, way, str(seed)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        if WAYS[way] is None:
            json.dump(settings_of(env), file)
            file.flush()
            python, script = ROOT / ".bench-venv/bin/python", ROOT / "bench/peers/sb3_zoo.py"
            words = [str(python), str(script), env, str(seed), str(TASKS[env].target), str(EVALUATED), file.name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{env}, {way}, seed {seed}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return {"env": env, "way": way, "seed": seed, **json.loads(done.stdout.strip().splitlines()[-1])}


def is_there(way: str) -> bool:
    return WAYS[way] is not None or (ROOT / ".bench-venv/.installed").exists()


def run_missing(envs: Sequence[str], ways: Sequence[str], seeds: int, file: Path, most: int) -> None:
    have = {(row["env"], row["way"], row["seed"]) for row in read(file)}
    wanted = [(env, way, seed) for env, seed, way in product(envs, range(seeds), ways)]
    for env, way, seed in [one for one in wanted if one not in have and is_there(one[1])][:most]:
        try:
            row = measure(env, way, seed)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"FAILED: {error}", flush=True)  # not recorded: the same command tries again
            continue
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"{env}, {way}, seed {seed}: {row['wall']:.0f} s, score {row['score']:.1f}", flush=True)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(env: str, ways: Sequence[str], rows: list[dict[str, Any]]) -> str:
    task = TASKS[env]
    lines = [
        f"{env}: {task.settings['n_timesteps']:,} steps; the zoo's policy scored {task.zoo_score:g}",
        f"{'':25} {'runs':>5} {'score':>24} {'wall s':>18} {'CPU s':>18} {f'steps to {task.target:g}':>28} CPU s",
    ]
    for way in ways:
        mine = [row for row in rows if row["env"] == env and row["way"] == way]
        if not mine:
            lines.append(f"{way:25} {'not run' if is_there(way) else 'absent: make bench-peers says why'}")
            continue
        there = [row["reached"] for row in mine if row["reached"]]
        reached = f"{len(there)}/{len(mine)}" + (
            f" {_middle([row['steps'] for row in there], ',.0f')}" if there else ""
        )
        used = f"{statistics.median(row['cpu'] for row in there):.0f}" if there else "-"
        columns = [
            _middle([row[key] for row in mine], form)
            for key, form in (("score", ".1f"), ("wall", ".0f"), ("cpu", ".0f"))
        ]
        lines.append(
            f"{way:25} {len(mine):5} {columns[0]:>24} {columns[1]:>18} {columns[2]:>18} {reached:>28} {used:>5}"
        )
    return "\n".join(lines)


def _middle(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}..{max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", metavar="WORD", default="", help="environments whose name contains this")
    parser.add_argument("--ways", metavar="WORD", default="", help="ways whose name contains this")
    parser.add_argument("--most", type=int, default=10**9, metavar="N", help="no more runs than this")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results" / "zoo.jsonl")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--one", nargs=3, metavar=("ENV", "WAY", "SEED"), help="run one of ours here, print it as JSON")
    options = parser.parse_args()
    if options.one:
        env, way, seed = options.one
        print(json.dumps(run_headway(env, int(seed), WAYS[way] or {})))
        return
    envs = [env for env in TASKS if options.only.lower() in env.lower()]
    ways = [way for way in WAYS if options.ways.lower() in way.lower()]
    if not envs or not ways:
        parser.error(f"nothing is called so; there are {', '.join(TASKS)}, by {', '.join(WAYS)}")
    if not options.table:
        run_missing(envs, ways, options.seeds, options.results, options.most)
    print("\n\n".join(table(env, ways, read(options.results)) for env in envs))


if __name__ == "__main__":
    main()
