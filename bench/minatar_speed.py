"""MinAtar to a score: ours beside PPO in one file, with the same network and environments.

    python bench/minatar_speed.py [--games Breakout:8 SpaceInvaders:30] [--seeds 3] [--limit 120]
    python bench/minatar_speed.py --as-used     the file with the settings that CleanRL's ppo_atari.py has

Both stop when the mean return of the last 100 training episodes reaches the score. They take turns, so that
whatever else the machine does hits both. Processor time stands beside the clock. What numba compiles, once a machine,
is compiled before the clock of a run begins.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.ppo.sparse_planes_plane_step import SparsePlanes

PEER = Path(__file__).parent / "peers" / "single_file_minatar.py"
SETTINGS: dict[str, Any] = {
    "envs": 64,
    "steps": 32,
    "minibatch": 256,
    "passes": 4,
    "rate": 1e-3,
    "gamma": 0.99,
    "lam": 0.95,
    "clip": 0.2,
    "entropy": 0.01,
    "value": 0.5,
    "max_norm": 0.5,
    "threads": 1,
}
AS_USED = SETTINGS | {"envs": 8, "steps": 128, "rate": 2.5e-4, "clip": 0.1}
"""CleanRL's ppo_atari.py, but for the linear decay of its rate over ten million steps, which a score reached before
would hardly see."""


class UntilReached:
    """Notes when the training return first reaches the target, and asks for the end of the run then."""

    def __init__(self, target: float, limit_s: float) -> None:
        self.target, self.limit_s = target, limit_s
        self.coordinator: Any = None
        self.began = self.cpu = 0.0
        self.result: dict[str, Any] | None = None
        self.steps = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        if kind == "land":
            self.steps += fields["n"]
        if kind != "learn" or self.result is not None:
            return
        wall, cpu = time.perf_counter() - self.began, time.process_time() - self.cpu
        last = fields["m"].get("return", 0.0)
        reached = last >= self.target and fields["u"] > 4
        if reached or cpu > self.limit_s:
            self.result = {"solved": reached, "wall": wall, "cpu": cpu, "steps": self.steps, "last": last}
            self.coordinator.request_stop()

    def mark(self) -> None:
        return None

    def close(self) -> None:
        pass


def ours(game: str, seed: int, target: float, limit_s: float, lead: float, planes: SparsePlanes) -> dict[str, Any]:
    """In this process: threads for collecting and learning."""
    from headway.coordinator.coordinator import Coordinator
    from headway.ppo.recipe_ppo import PPOConfig, stations
    from headway.runtimes.build import build_runtime

    s = SETTINGS
    config = PPOConfig(
        env=f"MinAtar/{game}-v1",
        num_envs=s["envs"],
        segment_steps=s["steps"],
        minibatch_size=s["minibatch"],
        num_epochs=s["passes"],
        learning_rate=s["rate"],
        gamma=s["gamma"],
        lam=s["lam"],
        clip=s["clip"],
        entropy_weight=s["entropy"],
        value_weight=s["value"],
        max_grad_norm=s["max_norm"],
        torch_threads=s["threads"],
        seed=seed,
        max_lead=lead,
        updates=100_000,
        evaluate_every=0,
        learner_gpus=0,
        sparse_planes=planes,
    )
    place = build_runtime("threads")
    tiny = config.model_copy(update={"updates": 2, "num_envs": 2, "segment_steps": 8, "minibatch_size": 8})
    place.run(Coordinator(stations(tiny), tiny.settings(), place).run())
    place, watch = build_runtime("threads"), UntilReached(target, limit_s)
    coordinator = watch.coordinator = Coordinator(stations(config), config.settings(), place, recorder=watch)
    watch.began, watch.cpu = time.perf_counter(), time.process_time()
    place.run(coordinator.run())
    assert watch.result is not None
    return watch.result


def in_a_process(*words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f}..{max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["Breakout:8", "SpaceInvaders:30"], help="GAME:SCORE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="processor seconds for one run")
    parser.add_argument("--lead", type=float, default=1.0)
    parser.add_argument("--planes", choices=["off", "float32", "bfloat16"], default="bfloat16", help="sparse_planes")
    parser.add_argument("--as-used", action="store_true", help="the one file with CleanRL's own settings")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for both")
    parser.add_argument("--one", nargs=3, metavar=("GAME", "SEED", "SCORE"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    SETTINGS["threads"] = a.threads
    if a.one:
        print(json.dumps(ours(a.one[0], int(a.one[1]), float(a.one[2]), a.limit, a.lead, a.planes)))
        return
    theirs = (AS_USED if a.as_used else SETTINGS) | {"threads": a.threads}
    print("| game | score | who | seconds | processor seconds | steps | reached |\n|---|---|---|---|---|---|---|")
    for game, _, score in (one.partition(":") for one in a.games):
        rows: dict[str, list[dict[str, Any]]] = {"headway": [], "one file": []}
        for seed in range(a.seeds):
            limit = ["--limit", str(a.limit), "--lead", str(a.lead), "--threads", str(a.threads), "--planes", a.planes]
            rows["headway"].append(in_a_process(__file__, *limit, "--one", game, str(seed), score))
            peer = (game, str(seed), score, str(a.limit), json.dumps(theirs))
            rows["one file"].append(in_a_process(str(PEER), *peer))
        for who, runs in rows.items():
            columns = " | ".join(shown([run[name] for run in runs]) for name in ("wall", "cpu", "steps"))
            print(f"| {game} | {score} | {who} | {columns} | {sum(run['solved'] for run in runs)} of {len(runs)} |")
        for name in ("wall", "cpu"):
            ratios = [peer[name] / own[name] for own, peer in zip(*rows.values(), strict=True)]
            print(f"{game}: the one file takes {shown(ratios)} times the {name} of ours", flush=True)


if __name__ == "__main__":
    main()
