"""Colossal Cave played four ways: by chance, by a language model, by a world model's search, and by both together.

    python bench/colossal_cave.py [--ways random,prior,world_model,both] [--seeds 3] [--cpu_s 1200] [--model smollm2]
    python bench/colossal_cave.py --ways both --set prior_weight=0.3
    python bench/colossal_cave.py --results FILE       a line for each run, with its whole curve

Nothing learns by chance or by a frozen language model: these play `--episodes` episodes. The other two train for so
many seconds of a processor (of one core: a loaded machine gives the same figures, later), and are evaluated as they go.
What counts is the mean of the last three evaluations: one alone is a few episodes. Episodes are as long everywhere.
Each run is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from runs import keep, last_line

RESULTS = Path(__file__).parent / "results" / "priorzero.jsonl"
WAYS = ("random", "prior", "world_model", "both")
GAME = "colossal_cave"
COUNTED = 3
"""Evaluations at the end whose mean is the score of a run."""


class Spent(Exception):
    """The processor's time is over."""


def by_chance(settings: dict[str, Any], episodes: int) -> dict[str, Any]:
    """Plays as if all candidates were alike."""
    from headway.text_games.loading import load_story
    from headway.text_games.story_players import play_story

    steps = config_of(settings).max_episode_steps
    game = load_story(GAME)()
    first = settings["seed"] * episodes
    scores = [play_story(game, "random", first + number, max_steps=steps).score for number in range(episodes)]
    return {"score": statistics.mean(scores), "spread": statistics.stdev(scores), "most": max(scores)}


def config_of(settings: dict[str, Any]) -> Any:
    from headway.runs.config import read_values
    from headway.text_games import recipe_priorzero as priorzero

    return read_values(priorzero.CONFIG, settings)


def by_prior(settings: dict[str, Any], episodes: int) -> dict[str, Any]:
    """Acts as the language model says, by chance in proportion and as it finds likeliest; it learns nothing."""
    from headway.core.types import Snapshot
    from headway.text_games import recipe_priorzero as priorzero

    found: dict[str, Any] = {}
    for name, temperature in (("drawn", 1.0), ("likeliest", 0.0)):
        told = {"eval_mode": "prior", "eval_all_modes": False, "eval_temperature": temperature}
        config = config_of({**settings, **told, "eval_episodes": episodes})
        stations = priorzero.stations(config)
        evaluator = stations.evaluator()
        score = evaluator.evaluate(Snapshot(0, stations.learner().snapshot()), settings["seed"])
        found[name] = {measure.removeprefix("prior_"): value for measure, value in score.metrics.items()}
        evaluator.close()
    return {"score": max(one["score"] for one in found.values()), **found}


def by_learning(settings: dict[str, Any], cpu_s: float) -> dict[str, Any]:
    """Trains until the processor's time is spent."""
    from headway.coordinator.coordinator import Coordinator
    from headway.coordinator.role_calls import RunFailed
    from headway.runs.event_log import EventSink
    from headway.runtimes.build import build_runtime
    from headway.text_games import recipe_priorzero as priorzero

    curve: list[dict[str, Any]] = []
    counts = {"steps": 0, "updates": 0}
    asked: dict[str, float] = {}

    class Curve(EventSink):
        """Notes what every evaluation said, and when."""

        def record(self, time_s: float, kind: str, fields: Any) -> None:
            if kind == "land":
                counts["steps"] += fields["n"]
            elif kind == "learn":
                counts["updates"] += 1
                asked.update({name: v for name, v in fields["m"].items() if name.startswith("prior_")})
            elif kind == "score" and fields["value"] is not None:
                measures = {name: round(value, 3) for name, value in fields["m"].items()}
                curve.append({"cpu": round(time.process_time(), 1), **counts, "score": fields["value"], **measures})
                print(json.dumps(curve[-1]), file=sys.stderr, flush=True)

    def stop(*_: object) -> None:
        raise Spent

    config = config_of(settings)
    runtime = build_runtime(config.runtime)
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    began = time.monotonic()
    try:
        runtime.run(Coordinator(priorzero.stations(config), config.settings(), runtime, recorder=Curve()).run())
    except RunFailed as error:
        if Spent.__name__ not in str(error):
            raise
    except Spent:
        pass
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    last = [one["score"] for one in curve[-COUNTED:]]
    return {"score": statistics.mean(last), "wall": time.monotonic() - began, **counts, "prior": asked, "curve": curve}


def settings_for(way: str, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"env": GAME, "seed": seed, "runtime": "inline", "updates": 1_000_000}
    settings |= {"evaluate_in_background": False, "evaluate_every": 1200, "eval_episodes": 8, "eval_all_modes": False}
    settings |= {"prior": "none"} if way in ("random", "world_model") else {"prior": "frozen", "model": arguments.model}
    if way in ("prior", "both"):
        settings |= {"device": "cpu", "dispatch": "free"}
    if arguments.wall_s and way in ("world_model", "both"):
        settings["wall_s"] = arguments.wall_s
    changes = dict(one.split("=", 1) for one in arguments.set)
    return settings | {name: yaml.safe_load(value) for name, value in changes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--cpu_s", type=float, default=1200.0)
    parser.add_argument("--wall_s", type=float, help="no run takes longer, however little it got of the processor")
    parser.add_argument("--episodes", type=int, default=200, help="by chance; the language model plays a tenth of them")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", help="a way, its settings and how long, as JSON: one run, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        way, settings, limit = json.loads(arguments.one)
        play = {"random": by_chance, "prior": by_prior}.get(way, by_learning)
        print(json.dumps(play(settings, limit)))
        return
    for way in arguments.ways.split(","):
        limit = {"random": arguments.episodes, "prior": arguments.episodes // 10}.get(way, arguments.cpu_s)
        scores = []
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            settings = settings_for(way, arguments, seed)
            one = last_line([sys.executable, __file__, "--one", json.dumps([way, settings, limit])])
            keep(arguments.results, game=GAME, way=way, seed=seed, limit=limit, settings=settings, **one)
            scores.append(one["score"])
            print(f"{way} seed {seed}: {one['score']:.1f}", file=sys.stderr, flush=True)
        print(f"{way:<12} {statistics.mean(scores):6.1f}  ({', '.join(f'{one:.1f}' for one in scores)})", flush=True)


if __name__ == "__main__":
    main()
