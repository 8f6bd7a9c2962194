"""Episodes a second where environments take their time: lock-step, own pace, a lead, redundancy, limits.

    python bench/agent_pace.py                 steps that wait Pareto 3, 1.6 and 1.2; about a quarter of an hour
    python bench/agent_pace.py --quick         one of them, once

64 episodes of 3 to 8 turns an update, in groups of 8, with a real engine and a tiny model. Every step of an environment
waits: scale x Pareto(alpha), cut at 200 x scale. Training is a wait of 110 x scale, so the floor of an update is exact:
training that never waits, or what the engine itself computes for a batch, if that is more.

    lock-step     a plain loop: all episodes reply, all step, the slowest is waited for, turn by turn; then training
    own pace      each episode goes on when it can; training when all have ended (max_lead=0)
    lead L        the same with a lead, in ticket order
    + redundancy  R more episodes begin in each group and the last R are abandoned
    + limit       an episode ends after so many seconds as it stands

The ways take turns; the first update, which nothing can overlap, is left out. `x lock-step` is against lock-step in the
same repeat, `training aside` the same for collecting alone, `of floor` against the floor: median (least..most). The
price: how much shorter the learned episodes are than all that began (turns), the share of episodes abandoned, cut by
the limit, and the mean age of what was learned from. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from figures import spread

from headway.agents.config import AgentConfig
from headway.agents.env import AgentEnv, EnvFacts, Step
from headway.agents.episodes_episode_player import game_seed, seed_of_turn
from headway.agents.games.lights import Lights
from headway.agents.loading import load_env
from headway.agents.recipe import build_conversation, build_player, stations
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.core.types import MEASURES, Batch, LearnReport, derive_seed
from headway.llm.engine.protocol_engine import Engine, Sampling
from headway.llm.model.conversation import Conversation
from headway.runtimes.build import build_runtime

GROUPS, GROUP = 8, 8
MOST, TRAINING = 200, 110
"""The longest step and a training, in scales."""


class PacedLights(Lights):
    """Lights that never ends before its turns are over, and whose steps wait. How long depends on what was said."""

    def __init__(self, alpha: float, scale_s: float) -> None:
        super().__init__(turns=3)
        self._alpha, self._scale_s = alpha, scale_s
        self.max_turns = 8
        self._said = ""

    def begin(self) -> str:
        self._last = self.rng.randint(3, 8)
        self._chance = self.rng.random()
        self._said = ""
        self._off = set(self.rng.sample(self.names, 3))
        return self._view()

    def answer(self, reply: str) -> Step:
        self._said += f"{self.turn}{reply}"
        drawn = random.Random(f"{self._chance}{self._said}").paretovariate(self._alpha)
        time.sleep(self._scale_s * min(MOST, drawn))
        step = super().answer(reply)
        if not self._off:
            self._off = set(self.names[:3])
        is_last = self.turn >= self._last
        return replace(step, text="All lights are on." if is_last else self._view(), done=is_last)


@dataclass(frozen=True)
class Way:
    """One way to run, and what it is called."""

    name: str
    lead: float = 0.0
    redundancy: int = 0
    limit: float | None = None
    """Of an episode, in scales."""


WAYS = (
    Way("own pace"),
    Way("lead 1", 1),
    Way("lead 1, redundancy 2", 1, 2),
    Way("lead 1, limit", 1, 0, 60),
    Way("lead 2", 2),
    Way("lead 2, redundancy 2", 2, 2),
)


@dataclass(frozen=True)
class Paced:
    """What one run came to."""

    update_s: float
    turns: float = 0.0
    abandoned: float = 0.0
    cut: float = 0.0
    staleness: float = 0.0


class WaitingLearner:
    """Waits instead of training, and counts what it was given."""

    def __init__(self, seconds: float, seen: list[Batch], ends: list[float]) -> None:
        self._seconds, self._seen, self._ends = seconds, seen, ends

    def learn(self, batch: Batch) -> LearnReport:
        self._seen.append(batch)
        time.sleep(self._seconds)
        self._ends.append(time.perf_counter())
        return LearnReport()

    def snapshot(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


def config_of(way: Way, alpha: float, scale_s: float, updates: int, seed: int) -> AgentConfig:
    return AgentConfig(
        seed=seed,
        env=f"{Path(__file__).resolve()}:PacedLights",
        env_options={"alpha": alpha, "scale_s": scale_s},
        env_stepping=f"threads({4 * GROUPS * (GROUP + 2)})",
        model="made:lights",
        max_turn_tokens=3,
        group_size=GROUP,
        tickets_per_batch=GROUPS,
        lanes=3 * GROUPS,
        engine_rows=3 * GROUPS * (GROUP + 2),
        max_lead=way.lead,
        redundancy=way.redundancy,
        episode_deadline_s=None if way.limit is None else way.limit * scale_s,
        dispatch="free" if way.redundancy else "pinned",
        updates=updates,
        evaluate_every=0,
        log_samples=0,
        correction="token_is",
        device="cpu",
    )


def run(way: Way, alpha: float, scale_s: float, updates: int, seed: int) -> tuple[Paced, float]:
    """Runs one of ours; returns what it came to, and the engine's own seconds an update."""
    seen: list[Batch] = []
    trained_at: list[float] = []
    config = config_of(way, alpha, scale_s, updates, seed)
    learner = partial(WaitingLearner, TRAINING * scale_s, seen, trained_at)
    wired = replace(stations(config), learner=learner, evaluator=None)
    runtime = build_runtime("threads")
    began = time.process_time()
    result: RunResult = runtime.run(Coordinator(wired, config.settings(), runtime).run())
    computed = (time.process_time() - began) / updates
    measures = [rollout.info[MEASURES] for batch in seen for rollout in batch.rollouts]
    ends = [end for batch in seen for rollout in batch.rollouts for end in rollout.payload.end]
    begun = GROUP + way.redundancy
    age = result.ledger.staleness
    paced = Paced(
        (trained_at[-1] - trained_at[0]) / (updates - 1),
        statistics.fmean(one.get("redundancy_bias_turns", 0.0) for one in measures),
        sum(one["episodes_abandoned"] for one in measures) / (begun * len(measures)),
        ends.count("deadline") / len(ends),
        sum(at * number for at, number in age.items()) / max(1, sum(age.values())),
    )
    return paced, computed


def lock_step(alpha: float, scale_s: float, updates: int, seed: int) -> Paced:
    """The plain loop: every turn waits for the slowest step of all episodes. It plays the same games as a pinned run of
    ours, with the same replies, so the waits are the same too."""
    config = config_of(Way("lock-step"), alpha, scale_s, updates, seed)
    factory = load_env(config.env, config.env_options)
    facts, sampling = EnvFacts.of(factory()), Sampling(max_tokens=config.max_turn_tokens)
    player, speaker = build_player(config, factory, facts, sampling), build_conversation(config, facts)
    trained_at = []
    with ThreadPoolExecutor(2 * GROUPS * GROUP) as pool:
        for update in range(updates):
            games = [factory() for _ in range(GROUPS * GROUP)]
            tickets = [derive_seed(seed, "ticket", update * GROUPS + group) for group in range(GROUPS)]
            play_in_step(tickets, games, player.engine, speaker, sampling, pool)
            time.sleep(TRAINING * scale_s)
            trained_at.append(time.perf_counter())
    player.close()
    return Paced((trained_at[-1] - trained_at[0]) / (updates - 1))


def play_in_step(
    tickets: Sequence[int],
    games: Sequence[AgentEnv],
    engine: Engine,
    speaker: Conversation,
    sampling: Sampling,
    pool: ThreadPoolExecutor,
) -> None:
    """All reply, then all step, until the last game is over."""
    texts = list(pool.map(lambda at: games[at].reset(game_seed(tickets[at // GROUP])), range(len(games))))
    sessions = [engine.open(f"{at}", speaker.first(text))[0] for at, text in enumerate(texts)]
    going = [(at, 0) for at in range(len(games))]  # game, turn
    while going:
        seeds = [seed_of_turn(tickets[at // GROUP], at % GROUP, turn) for at, turn in going]
        replies = list(pool.map(lambda one, seed: sessions[one[0]].reply(sampling, seed=seed), going, seeds))
        texts = [reply.text for reply in replies]
        steps = list(pool.map(lambda at, text: games[at].step(text), [at for at, _ in going], texts))
        left = []
        for (at, turn), reply, step in zip(going, replies, steps, strict=True):
            if not step.done:
                sessions[at].say(speaker.following(step.text, ended=int(reply.tokens[-1]) == speaker.end_token))
                left.append((at, turn + 1))
        going = left
    for session in sessions:
        session.close()


def table(alpha: float, scale_s: float, updates: int, repeats: int, ways: Sequence[Way]) -> None:
    found: dict[str, list[Paced]] = {"lock-step": [], **{way.name: [] for way in ways}}
    floors: dict[str, list[float]] = {name: [] for name in found}
    for seed in range(repeats):
        found["lock-step"].append(lock_step(alpha, scale_s, updates, seed))
        for way in ways:
            paced, computed = run(way, alpha, scale_s, updates, seed)
            found[way.name].append(paced)
            floors[way.name].append(max(TRAINING * scale_s, computed))
    print(f"\nPareto {alpha:g}: steps of {1000 * scale_s:g} ms and more, {updates} updates, {repeats} repeats")
    print(
        f"{'':22} {'episodes/s':>22} {'x lock-step':>20} {'training aside':>20} {'of floor':>20} {'turns':>7} "
        f"{'abandoned':>9} {'cut':>6} {'age':>5}"
    )
    for name, all_of in found.items():
        rates = [GROUPS * GROUP / one.update_s for one in all_of]
        times = [plain.update_s / one.update_s for plain, one in zip(found["lock-step"], all_of, strict=True)]
        if name in ("lock-step", "own pace"):  # nothing overlaps: what is not training is collecting
            trained_s = TRAINING * scale_s
            alone = [(plain.update_s - trained_s) / (one.update_s - trained_s)
                     for plain, one in zip(found["lock-step"], all_of, strict=True)]  # fmt: skip
        else:
            alone = []
        of_floor = [floor / one.update_s for floor, one in zip(floors[name], all_of, strict=False)]
        price = [statistics.fmean(getattr(one, of) for one in all_of) for of in ("turns", "abandoned", "cut")]
        age = statistics.fmean(one.staleness for one in all_of)
        print(
            f"{name:22} {spread(rates, 1):>22} {spread(times, 2):>20} {spread(alone, 2):>20} {spread(of_floor, 2):>20} "
            f"{price[0]:>+7.1%} {price[1]:>9.1%} {price[2]:>6.1%} {age:>5.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alphas", type=float, nargs="+", default=[3.0, 1.6, 1.2])
    parser.add_argument("--scale_ms", type=float, default=40.0)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=[way.name for way in WAYS], choices=[way.name for way in WAYS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    alphas, updates, repeats = given.alphas, given.updates, given.repeats
    if given.quick:
        alphas, updates, repeats = [1.6], 3, 1
    for alpha in alphas:
        ways = [way for way in WAYS if way.name in given.ways]
        table(alpha, given.scale_ms / 1000, updates, repeats, ways)


if __name__ == "__main__":
    main()
