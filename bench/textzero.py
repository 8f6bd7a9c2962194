"""How soon a world model of texts solves the quest of the mini world, with and without somebody else's opinion.

    python bench/textzero.py --prior none soft oracle --seeds 3 --set learning_rate=0.001 max_steps=100

One process, one thread: steps and CPU seconds until a search without any prior wins in at most twice the shortest way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from headway.core.types import Batch, Snapshot, Ticket, derive_seed
from headway.text_games.mini_world import MiniWorld
from headway.text_games.textzero_inference import searchable
from headway.text_games.textzero_learner import TextZeroLearner, TextZeroSettings
from headway.text_games.textzero_network import TextZeroArchitecture, TextZeroNetwork
from headway.text_games.vector_story_games import StoryGames
from headway.zero.planner_planning import Planner
from headway.zero.replay_game_segments import GameSegments
from headway.zero.replay_game_windows import Windows
from headway.zero.search_interface import SearchSettings
from headway.zero.self_play_search_segments import SearchSegmentCollector, Temperature
from headway.zero.world_model_two_hot import Support

LIKED = {"take": 4.0, "unlock": 5.0, "open": 3.0, "go": 2.0, "close": 1.0, "look": 1.0, "wait": 0.5, "shout": 0.5}
"""What a reader without a plan might think of verbs: who acts by it wins 8 % of episodes of 30 steps."""


@dataclass(frozen=True)
class Run:
    """What can be varied."""

    body: str = "muzero"
    steps: int = 8000
    cpu_s: float = 60.0
    num_envs: int = 8
    segment_steps: int = 10
    max_steps: int = 40
    num_simulations: int = 16
    value_norm_floor: float = 0.5
    pb_c_init: float = 1.25
    root_noise_weight: float = 0.25
    root_dirichlet_alpha: float = 0.3
    gamma: float = 0.93
    temperature: float = 1.0
    batch_size: int = 48
    replay_ratio: float = 0.4
    replay_min_size: int = 240
    alpha: float = 0.6
    num_unroll_steps: int = 5
    td_steps: int = 20
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    target_every: int = 20
    average: float = 0.0
    entropy_weight: float = 0.03
    value_weight: float = 0.25
    legality_weight: float = 1.0
    agreement_weight: float = 2.0
    latent: int = 64
    hidden: int = 128
    embedding: int = 64
    value_range: float = 2.0
    value_bins: int = 41
    prior_weight: float = 0.5
    least_chance: float = 0.05
    plan_steps: int = 8
    rooms: int = 6
    world_seed: int = 0
    in_a_row: int = 3
    """Versions that must win one after another for the quest to count as solved, by the first of them."""


def soft(games: StoryGames, index: int) -> list[float]:
    """Verbs that are liked more or less."""
    return [LIKED[action.split()[0]] ** 0.75 for action in games.shown[index]]


def oracle(games: StoryGames, index: int) -> list[float]:
    """The next action of the shortest way to win."""
    game = games.games[index]
    assert isinstance(game, MiniWorld)
    plan = game.plan()
    return [float(bool(plan) and action == plan[0]) for action in games.shown[index]]


PRIORS: dict[str, Callable[[StoryGames, int], list[float]] | None] = {"none": None, "soft": soft, "oracle": oracle}


def make_world(run: Run) -> MiniWorld:
    return MiniWorld(run.rooms, run.plan_steps, run.world_seed)


def learn(run: Run, prior: str, seed: int) -> tuple[int | None, float, float, dict[str, float]]:
    """Steps until solved (None: never), CPU seconds, the first step at which anybody won, last metrics."""
    torch.set_num_threads(1)
    games = StoryGames(lambda: make_world(run), run.num_envs, seed=seed, max_steps=run.max_steps)
    opinion = PRIORS[prior]
    asked: set[tuple[str, tuple[str, ...]]] = set()

    def rows(obs: np.ndarray, legal: np.ndarray) -> np.ndarray:
        assert opinion is not None
        found = np.zeros(legal.shape, np.float32)
        for index in np.flatnonzero(~games.ended):
            asked.add((games.scenes[index].text, games.shown[index]))
            found[index, : len(games.shown[index])] = opinion(games, index)
        return found

    support = Support(-run.value_range, run.value_range, run.value_bins)
    architecture = TextZeroArchitecture(
        body=run.body,  # type: ignore[arg-type]
        latent=run.latent,
        hidden=run.hidden,
        embedding=run.embedding,
        attention_steps=run.num_unroll_steps + 1,
        value_support=support,
        reward_support=support,
    )

    def make_network() -> TextZeroNetwork:
        return TextZeroNetwork(architecture, seed=derive_seed(seed, "network") % 2**31)

    names = TextZeroSettings.model_fields.keys() & asdict(run).keys()
    learner = TextZeroLearner(make_network, TextZeroSettings(**{name: getattr(run, name) for name in names}))
    names = SearchSettings.model_fields.keys() & asdict(run).keys()
    search = SearchSettings(discount=run.gamma, **{name: getattr(run, name) for name in names})
    guided = {} if opinion is None else {"prior": rows, "prior_weight": run.prior_weight}
    planner = Planner(searchable(make_network(), least_chance=run.least_chance), search, **guided)  # type: ignore[arg-type]
    judge = Planner(searchable(make_network(), least_chance=run.least_chance), search)
    collector = SearchSegmentCollector(
        lambda: games,
        lambda: planner,
        steps=run.segment_steps,
        temperature=Temperature(run.temperature, run.temperature),
    )
    replay = GameSegments(
        50_000,
        num_streams=run.num_envs,
        segment_steps=run.segment_steps,
        observation=(architecture.row,),
        num_actions=architecture.slots,
        batch_size=run.batch_size,
        windows=Windows(num_unroll_steps=run.num_unroll_steps, td_steps=run.td_steps, discount=run.gamma),
        store_as=np.int32,
        has_masks=True,
        alpha=run.alpha,
        beta_end=0.4,
        seed=derive_seed(seed, "replay"),
    )
    done = updates = 0
    first = float("nan")
    began = time.process_time()
    metrics: dict[str, float] = {}
    version = 0
    wins = 0
    held: tuple[int, ...] = ()
    while done < run.steps and time.process_time() - began < run.cpu_s:
        snapshot = Snapshot(version, learner.snapshot())
        rollout = collector.collect(Ticket(version, derive_seed(seed, "ticket", version)), snapshot)
        replay.insert(Batch(version, (rollout,)))
        done += rollout.steps
        won = sum(score > 0 for score, _ in rollout.info["episodes"])
        wins += won
        if won and first != first:
            first = done
        while done >= run.replay_min_size and len(replay) and updates < run.replay_ratio * done:
            report = learner.learn(Batch(version, (replay.sample(version),)))
            replay.update(report.feedback)
            metrics = dict(report.metrics) | {"scenes_asked": len(asked)}
            updates += 1
        version += 1
        judge.load(learner.snapshot())
        held = (*held, done) if wins and solves(run, judge) else ()
        if len(held) == run.in_a_row:
            return held[0], time.process_time() - began, first, metrics
    return None, time.process_time() - began, first, metrics


def solves(run: Run, planner: Planner) -> bool:
    """Does a search without noise and without a prior win in at most twice the shortest way?"""
    games = StoryGames(lambda: make_world(run), 1, max_steps=2 * run.plan_steps)
    for _ in range(2 * run.plan_steps):
        rewards, terminated, _ = games.step(planner.best(games.obs, games.legal))
        if terminated[0]:
            return bool(rewards[0] > 0)
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prior", nargs="+", choices=PRIORS, default=list(PRIORS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], help="name=value of the run")
    parser.add_argument("--metrics", action="store_true")
    told = parser.parse_args()
    changes = {}
    for one in told.set:
        name, value = one.split("=")
        kind = type(getattr(Run(), name))
        changes[name] = kind(value)
    run = replace(Run(), **changes)
    for prior in told.prior:
        took = []
        for seed in range(told.first_seed, told.first_seed + told.seeds):
            steps, cpu_s, first, metrics = learn(run, prior, seed)
            took.append(steps or float("inf"))
            print(
                f"{prior:7} seed {seed}: first won {first:6.0f}, solved {steps}, {cpu_s:5.1f} CPU s", end="", flush=True
            )
            print(f", {metrics.get('scenes_asked', 0):.0f} scenes asked about" if prior != "none" else "", flush=True)
            if told.metrics:
                print({name: round(value, 3) for name, value in metrics.items()})
        print(f"{prior:7} median {statistics.median(took)}  {' '.join(told.set)}", flush=True)


if __name__ == "__main__":
    main()
