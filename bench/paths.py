"""How long the path of one rollout is: the files and functions of ours that it crosses, on the inline runtime.

    python bench/paths.py                  one table: a CartPole rollout, an LLM sample, a search segment
    python bench/paths.py --path rollout --list    one of them, function by function
    PYTHONPATH=OTHER/src python bench/paths.py     the same for another state of the code

Each path is a run by the command line without a lead: ticket after ticket is opened, collected, learned from (or put
into the replay and drawn from it), published and settled, and its events are recorded. What is counted are the distinct
functions that were called for nearly every ticket, in any thread, from the collection of the third ticket to that of
the last one. So what happens once, or by the clock, does not count: the start, the end, a look at the
metrics, a checkpoint. Lambdas and comprehensions count as part of the function around them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

QUIET = ["--quiet", "--report", "false", "--tensorboard", "false", "--runtime", "inline", "--max_lead", "0"]
QUIET += ["--evaluate_every", "100000", "--tickets_per_batch", "1"]
CARTPOLE = {"num_envs": 4, "segment_steps": 16, "updates": 300, "target_score": 1000}
LLM = {"max_tokens": 2, "max_prompt_tokens": 64, "group_size": 2, "device": "cpu", "updates": 200}
SEARCH = {"env": "CartPole-v1", "num_envs": 2, "segment_steps": 4, "updates": 300, "batch_size": 8, "td_steps": 5}
SEARCH |= {"replay_min_size": 64, "num_simulations": 2, "replay_ratio": 0.125, "num_unroll_steps": 2}
SEARCH |= {"latent": 8, "hidden": 8, "value_bins": 11}
PATHS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rollout": ("one rollout (cartpole)", "cartpole", CARTPOLE),
    "sample": ("one LLM sample (grpo)", "grpo", LLM),
    "segment": ("one search segment (muzero)", "muzero", SEARCH),
}
NEARLY_EVERY = 0.9  # ticket: what the clock makes happen comes ten times a second, tickets come more often
WARM = 3  # tickets, after which everything has been built

Function = tuple[str, str]
"""A file of ours, from the package on, and the name of a function in it."""


class Calls:
    """Counts the calls of every function of the package, from one collection to another."""

    def __init__(self, source: Path) -> None:
        self._source = f"{source}{os.sep}"
        self._names: dict[CodeType, Function | None] = {}
        self._counts: Counter[Function] = Counter()
        self._until_last: Counter[Function] = Counter()
        self._tickets = -WARM

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._name(code)
        name = self._names[code]
        if name is None:
            return
        if code.co_name == "collect" and name[0].startswith("collect/"):
            self._tickets += 1
            if self._tickets <= 0:
                self._counts.clear()
            self._until_last = self._counts.copy()
        self._counts[name] += 1

    def crossed(self) -> list[Function]:
        """The functions that a ticket crosses."""
        return sorted(name for name, count in self._until_last.items() if count >= NEARLY_EVERY * self._tickets)

    def _name(self, code: CodeType) -> Function | None:
        if not code.co_filename.startswith(self._source) or code.co_name.startswith("<"):
            return None
        return code.co_filename.removeprefix(self._source), code.co_qualname


def cross(recipe: str, settings: dict[str, Any]) -> list[Function]:
    """Run the recipe here, and say what one of its rollouts crossed."""
    import torch

    import headway
    from headway.cli import main as command

    torch.set_num_threads(1)
    calls = Calls(Path(headway.__file__).parent)
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        code = command(["run", recipe, *words, *QUIET])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    if code:
        raise SystemExit(f"{recipe} ended with {code}")
    return calls.crossed()


def tiny_material(folder: Path) -> dict[str, Any]:
    """What a run of GRPO reads: a tiny model, prompts and a reward, in this folder."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from grpo_runs import make_material

    make_material(folder)
    reward = json.dumps({"reward": f"{folder / 'rewards.py'}:share_of_digits"})
    return {"model": folder / "model", "task": f"jsonl:{folder / 'prompts.jsonl'}", "task_options": reward}


def measure(path: str) -> list[Function]:
    _, recipe, settings = PATHS[path]
    with tempfile.TemporaryDirectory(prefix="paths-") as root:
        os.chdir(root)
        return cross(recipe, settings | tiny_material(Path(root)) if recipe == "grpo" else settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", choices=PATHS, help="this one only")
    parser.add_argument("--list", action="store_true", help="with --path: every function")
    given = parser.parse_args()
    if given.path and not given.list:
        print(json.dumps(measure(given.path)))
        return
    if given.path:
        print(*(f"{file:<40} {name}" for file, name in measure(given.path)), sep="\n")
        return
    print(f"{'path':<30} {'files':>5} {'functions':>9}   functions by folder")
    for path, (title, _, _) in PATHS.items():  # each in a process of its own: nothing is warm from the one before
        done = subprocess.run([sys.executable, __file__, "--path", path], stdout=subprocess.PIPE, text=True, check=True)
        crossed = json.loads(done.stdout.splitlines()[-1])
        folders = Counter(file.partition("/")[0] for file, _ in crossed)
        by_folder = ", ".join(f"{name} {count}" for name, count in folders.most_common())
        print(f"{title:<30} {len({file for file, _ in crossed}):>5} {len(crossed):>9}   {by_folder}", flush=True)


if __name__ == "__main__":
    main()
