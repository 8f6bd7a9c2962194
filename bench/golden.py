"""Hashes of runs, to be recorded before a change and compared after it.

    python bench/golden.py --write before.json        (the code as it was)
    python bench/golden.py --compare before.json      (the code as it is; exit code 1 if a hash is another)

Each case is a run by the command line: recipes x runtimes x leads, and with them runs that were stopped half-way and
resumed, and free runs that are done again from their log. What is compared are the fingerprints of the weights. They
depend on the processor and the libraries, so a file of hashes is for one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUIET = ["--quiet", "--report", "false", "--tensorboard", "false"]
CARTPOLE = {"num_envs": 4, "segment_steps": 16, "updates": 6, "evaluate_every": 3, "eval_episodes": 2}
CARTPOLE |= {"target_score": 1000}
PPO = {"num_envs": 4, "segment_steps": 16, "minibatch_size": 32, "updates": 6, "evaluate_every": 0}
LINES = {"num_envs": 4, "segment_steps": 8, "updates": 6, "batch_size": 16, "evaluate_every": 0}
SHARED = {"replay_mode": "shared", "replay_min_size": 32}
FUNCTIONS = {"updates": 12, "collect_ms": 1, "train_ms": 1, "evaluate_ms": 1, "evaluate_every": 6}
SEARCH = {
    "num_envs": 4,
    "segment_steps": 8,
    "updates": 6,
    "batch_size": 8,
    "replay_min_size": 128,
    "num_simulations": 4,
}
SEARCH |= {"evaluate_every": 0, "replay_ratio": 0.5, "td_steps": 5}
LLM = {"max_tokens": 8, "max_prompt_tokens": 64, "tickets_per_batch": 3, "group_size": 4, "learning_rate": 0.01}
LLM |= {"evaluate_every": 0, "device": "cpu", "updates": 4, "save_every": 2}

AGENT = {"env": "climb", "updates": 3, "tickets_per_batch": 3, "group_size": 3, "evaluate_every": 0, "device": "cpu"}
SFT = {"env": "lights", "updates": 4, "tickets_per_batch": 4, "evaluate_every": 0, "device": "cpu"}
PRIORZERO = {
    "updates": 8,
    "prior_every": 2,
    "evaluate_every": 0,
    "device": "cpu",
    "batch_size": 8,
    "num_simulations": 4,
}
TESTS = Path(__file__).parent.parent / "tests"


@dataclass(frozen=True)
class Case:
    """One run. `half` stops it after so many updates and resumes it; `again` does it again from its log instead."""

    recipe: str
    settings: dict[str, object]
    runtime: str
    lead: float
    half: int = 0
    again: bool = False

    @property
    def name(self) -> str:
        extras = {"half": self.half, "again": self.again}
        told = ("env", "order", "replay_mode", "estimator", "correction")
        own = [f"{name}={str(self.settings[name]).rpartition('/')[2]}" for name in told if name in self.settings]
        return " ".join(
            [self.recipe, self.runtime, f"lead={self.lead:g}", *own, *(name for name, is_so in extras.items() if is_so)]
        )


def cases(material: Path) -> Iterator[Case]:
    """All of them; `material` is a folder with a tiny model, its prompts and its reward."""
    grpo = LLM | {
        "model": str(material / "model"),
        "task": f"jsonl:{material / 'prompts.jsonl'}",
        "task_options": json.dumps({"reward": f"{material / 'rewards.py'}:share_of_digits"}),
    }
    for runtime in ("inline", "threads", "processes", "ray"):
        for lead in (0, 1, 2.5):
            yield Case("functions", FUNCTIONS | {"collectors": 2}, runtime, lead)
    for runtime in ("inline", "threads", "processes"):
        for lead in (0, 1, 3):
            yield Case("cartpole", CARTPOLE, runtime, lead)
        for lead in (0, 1):
            yield Case("grpo", grpo, runtime, lead)
    for lead in (0, 2):
        yield Case("ppo", PPO | {"env": "Pendulum-v1", "correction": "decoupled"}, "threads", lead)
        yield Case("ppo", PPO | {"env": "Acrobot-v1", "correction": "clip", "normalise": "true"}, "processes", lead)
        yield Case("colorlines", LINES, "threads", lead)
        yield Case("colorlines", LINES | SHARED, "processes", lead)
        yield Case("muzero", SEARCH | {"env": "tictactoe"}, "threads", lead)
        yield Case("unizero", SEARCH | {"env": "CartPole-v1"}, "inline", lead)
    yield Case("grpo", grpo | {"estimator": "gae"}, "threads", 1)
    for lead in (0, 1):
        yield Case("agent", AGENT, "threads", lead)
        yield Case("sft", SFT, "threads", lead)
        yield Case("priorzero", PRIORZERO, "threads", lead)
        yield Case("ppo", PPO | {"env": f"{TESTS / 'picture_games.py'}:Lights", "num_envs": 2}, "threads", lead)
    yield Case("functions", FUNCTIONS, "threads", 2, half=5)
    yield Case("cartpole", CARTPOLE, "processes", 1, half=3)
    yield Case("grpo", grpo, "threads", 1, half=2)
    yield Case("colorlines", LINES | SHARED, "threads", 1, half=3)
    yield Case("functions", FUNCTIONS | {"order": "ready", "collectors": 3}, "threads", 3, again=True)
    yield Case("colorlines", LINES | {"order": "ready", "collectors": 2}, "threads", 2, again=True)


def headway(*words: str, folder: Path) -> str:
    """What the command printed; its last words if it failed."""
    command = [sys.executable, "-m", "headway", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout


def fingerprint(case: Case, folder: Path) -> str:
    """Of the weights the run ends with; of a run that is done again, whether it gave the same bits."""
    settings = {**case.settings, "runtime": case.runtime, "max_lead": case.lead}
    if case.half:
        settings["updates"] = case.half
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    headway("run", case.recipe, *words, *QUIET, folder=folder)
    (run,) = (folder / "runs").iterdir()
    if case.half:
        headway("resume", str(run), "--updates", str(case.settings["updates"]), "--quiet", folder=folder)
    if case.again:
        said = headway("run", "--replay", str(run), folder=folder)
        return "the same bits" if "the same bits as recorded" in said else said
    found: str = json.loads((run / "summary.json").read_text())["fingerprint"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="a file to keep the hashes in")
    parser.add_argument("--compare", type=Path, help="a file of hashes that must be the same")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from grpo_runs import make_material

    os.environ["PYTHONHASHSEED"] = "0"
    before: dict[str, str] = json.loads(arguments.compare.read_text()) if arguments.compare else {}
    hashes: dict[str, str] = {}
    different = 0
    with tempfile.TemporaryDirectory(prefix="golden-") as root:
        for number, case in enumerate(cases(make_material(Path(root)))):
            if arguments.only not in case.name:
                continue
            folder = Path(root, str(number))
            folder.mkdir()
            hashes[case.name] = found = fingerprint(case, folder)
            expected = before.get(case.name, found)
            different += found != expected
            print(f"{case.name:<70} {found}" + ("" if found == expected else f"   was {expected}"), flush=True)
    if arguments.write:
        arguments.write.write_text(json.dumps(hashes, indent=1) + "\n")
    print(f"{len(hashes)} runs, {different} different" if before else f"{len(hashes)} runs")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
