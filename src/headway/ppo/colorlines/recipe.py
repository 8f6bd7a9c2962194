"""PPO on Colour Lines: whole boards in, one of 6561 moves out, a correction for what is stale.

    headway run colorlines
    headway run colorlines --num_workers 2 --weight_sync_interval 2 --learning_rate 1e-3
    headway run colorlines --runtime ray --buffer_capacity 100000 --per_alpha 0.6
    headway watch runs/colorlines-20260401-101500

Rewards are points with potential-based shaping (the learner's own discount, zero at the end), so runs that are begun
count at once and yet the best policy stays the same. Evaluations count points alone.

    replay_mode=none      collect --> learn                             each segment is used once
    replay_mode=learner   collect --> learner (replay --> learn)        each is drawn any number of times, in one place
    replay_mode=shared    collect --> replay --> learn                  the same draws, the replay in a role of its own
                                        ^---- priorities ----+

The names of the replay that users of parallel PPO know (buffer_capacity, per_alpha) imply replay_mode=shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Settings
from headway.core.rules import ReplayRatio
from headway.core.types import derive_seed
from headway.core.types_opaque import SettingValue
from headway.envs.evaluator_episodes import EpisodeEvaluator
from headway.envs.gymnasium_vector import describe
from headway.envs.policy_env_policy import EnvPolicy
from headway.ppo.colorlines.network_cells import CellsActor, CellsActorCritic
from headway.ppo.colorlines.replay_segment_replay import SegmentReplay
from headway.ppo.colorlines.replayed import ReplayedPPOLearner
from headway.ppo.colorlines.vector_gymnasium_single import GYMNASIUM_ID, single_game
from headway.ppo.colorlines.vector_gymnasium_vector import ColorLinesVector
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.policy import load_weights
from headway.ppo.segments import SegmentCollector, segment_collector
from headway.ranks.rank import Rank
from headway.ranks.settings import RankedConfig, over_ranks
from headway.replay.with_replay import WithReplay
from headway.runs.config import require_correction, with_defaults
from headway.runs.recipes_facts import Facts

REPLAY_DEFAULTS: dict[str, SettingValue] = {
    "replay_capacity": 100_000,
    "replay_min_size": 1000,
    "samples_per_insert": 2.0,
    "replay_alpha": 0.6,
    "replay_beta_start": 0.4,
    "version_decay": 1.0,
}


@with_defaults(
    updates=300,
    evaluate_every=20,
    evaluate_in_background=True,  # good games are long
    learning_rate=3e-3,
    gamma=0.95,
    lam=0.7,
    num_epochs=2,
    entropy_weight=0.005,
    max_grad_norm=1.0,
)
class ColorLinesConfig(PPOSettings, RankedConfig):
    """Game: its rewards, its segments and its replay."""

    shown_first = "num_envs segment_steps collectors max_lead updates learning_rate replay_mode shaping"
    former_names: ClassVar[Mapping[str, str]] = {
        "lr": "learning_rate",
        "final_lr": "final_learning_rate",
        "batch_size": "minibatch_size",
    }

    num_envs: int = Field(default=64, ge=1)
    """Games per collector, stepped together. More make each policy call cheaper per step."""
    segment_steps: int = Field(default=16, ge=1)
    """Moves of each game per ticket. Longer segments mean better advantages and older data."""
    eval_episodes: int = Field(default=32, ge=1)
    """Games per evaluation."""
    eval_max_steps: int = Field(default=100_000, ge=1)
    """Moves after which a game of an evaluation is cut: it counts with its points so far. Lowering it makes evaluations
    shorter once the policy plays so well that games take thousands of moves."""
    shaping: float = Field(default=3.0, ge=0)
    """Weight of the potential in the reward: runs of two, three, four. 0: points alone. Raising it rewards runs that
    are begun more, next to those that are completed."""
    reward_scale: float = Field(default=0.1, gt=0)
    """Factor of the rewards the learner sees, so that returns are around 1."""
    max_moves: int | None = Field(default=None, ge=1)
    """Cut games of the collectors after this many moves; unset: never. Evaluations play to the end."""
    width: int = Field(default=24, ge=1)
    """Features per colour and cell. More see more and cost more."""

    minibatch_size: int = Field(default=256, ge=1)
    """Moves per gradient step; with a replay also moves per draw, a multiple of segment_steps."""

    # -- replay: what is not set has the value in REPLAY_DEFAULTS
    replay_mode: Literal["none", "learner", "shared"] = "none"
    """none: every segment is learned from once. learner: segments are kept beside the learner, and each update draws
    `minibatch_size` moves of them. shared: the same, with the replay in a role of its own."""
    replay_capacity: int | None = Field(default=None, ge=1)
    """Moves the replay keeps (100000). More remember longer, and are older on average."""
    replay_min_size: int | None = Field(default=None, ge=1)
    """Moves that must be there before the learner begins (1000)."""
    samples_per_insert: float | None = Field(default=None, gt=0)
    """How often a move is drawn on average (2). Raising it learns more from each move, and from older ones.
    Collection starts by itself when the learner has drawn that much of what is there, and pauses when it has not."""
    replay_alpha: float | None = Field(default=None, ge=0, le=1)
    """How much priorities decide what is drawn (0.6): 0 not at all, 1 in proportion."""
    replay_beta_start: float | None = Field(default=None, ge=0, le=1)
    """How much of that the importance weights undo at first (0.4); at the end of the run all of it."""
    version_decay: float | None = Field(default=None, gt=0, le=1)
    """Factor of a segment's priority for each version it is old (1.0): lower draws recent ones more often."""

    @model_validator(mode="after")
    def _stale_data_need_a_correction(self) -> ColorLinesConfig:
        require_correction(self.correction, self.max_lead)
        if self.correction == "none" and self.replay_mode != "none":
            raise ValueError(
                f"correction='none' with replay_mode={self.replay_mode!r} trains on old data as if they were fresh"
            )
        return self

    @model_validator(mode="after")
    def _the_replay_can_work(self) -> ColorLinesConfig:
        if self.replay_mode == "none":
            for name in REPLAY_DEFAULTS:
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} needs a replay: set replay_mode to learner or shared"
                    )
            return self
        capacity, least = self.of_replay("replay_capacity"), self.of_replay("replay_min_size")
        if least > capacity:
            raise ValueError(f"replay_min_size={least} is more than replay_capacity={capacity} ever holds")
        if capacity < self.moves_per_ticket:
            raise ValueError(
                f"replay_capacity={capacity} cannot hold one rollout of {self.moves_per_ticket} moves "
                f"(num_envs * segment_steps)"
            )
        if self.updates is None and self.steps is None and self.of_replay("replay_beta_start") < 1:
            raise ValueError("replay_beta_start rises to 1 over the run: say with updates or steps how long it is")
        _replay(self)  # refuses a batch that does not fit
        return self

    def of_replay(self, name: str) -> SettingValue:
        """A knob of the replay, or its default."""
        value = getattr(self, name)
        return REPLAY_DEFAULTS[name] if value is None else value

    @property
    def moves_per_ticket(self) -> int:
        return self.num_envs * self.segment_steps

    def settings(self) -> Settings:
        settings = super().settings()
        if self.replay_mode == "none":
            return settings
        ratio = ReplayRatio(
            self.of_replay("samples_per_insert"),
            self.of_replay("replay_min_size"),
            samples_per_update=self.minibatch_size,
            steps_per_ticket=self.moves_per_ticket,
        )
        return replace(settings, replay=ratio)


CONFIG = ColorLinesConfig


def stations(config: ColorLinesConfig) -> Stations:
    """Everything wired: one line an edge."""
    learner = over_ranks(config, partial(_learner, config))
    if config.replay_mode == "learner":
        learner = partial(WithReplay, learner, partial(_replay, config))
    return Stations(
        collector=partial(_collector, config),
        learner=learner,
        evaluator=partial(_evaluator, config),
        replay=partial(_replay, config) if config.replay_mode == "shared" else None,
        collector_placement=config.placement,
        learner_placement=config.placement,
        evaluator_placement=config.placement,
    )


def policy(config: ColorLinesConfig, spec: object = None) -> CellsActor:
    """The acting side, before weights are loaded. The game has one spec, so it is not looked at."""
    return CellsActor(_network(config))


def _network(config: ColorLinesConfig) -> CellsActorCritic:
    return CellsActorCritic(config.width, seed=derive_seed(config.seed, "network"))


def _games(config: ColorLinesConfig) -> ColorLinesVector:
    return ColorLinesVector(
        config.num_envs,
        shaping=config.shaping,
        gamma=config.gamma,
        max_steps=config.max_moves,
        reward_scale=config.reward_scale,
        compact=True,
        masks=False,
    )


def _eval_games(num_envs: int) -> ColorLinesVector:
    return ColorLinesVector(num_envs, compact=True, masks=False)


def _collector(config: ColorLinesConfig, number: int) -> SegmentCollector:
    return segment_collector(
        partial(_games, config),
        partial(policy, config),
        steps=config.segment_steps,
        seed=derive_seed(config.seed, "environment", number) % 2**31,
    )


def _replay(config: ColorLinesConfig) -> SegmentReplay:
    return SegmentReplay(
        config.of_replay("replay_capacity"),
        segment_steps=config.segment_steps,
        batch_size=config.minibatch_size,
        total_draws=config.updates,
        total_steps=config.steps,
        alpha=config.of_replay("replay_alpha"),
        beta_start=config.of_replay("replay_beta_start"),
        version_decay=config.of_replay("version_decay"),
        store_as={"obs": "uint8"},
        seed=derive_seed(config.seed, "replay"),
    )


def _learner(config: ColorLinesConfig, rank: Rank) -> PPOLearner:
    kind = PPOLearner if config.replay_mode == "none" else ReplayedPPOLearner
    return kind(partial(_network, config), config.part(PPOSettings), seed=config.seed, rank=rank)


def _evaluator(config: ColorLinesConfig) -> EpisodeEvaluator:
    return EpisodeEvaluator(
        _eval_games, partial(policy, config), episodes=config.eval_episodes, max_steps=config.eval_max_steps
    )


# -- for others -------------------------------------------------------------------------------------


def load_policy(config: ColorLinesConfig, kept: Kept) -> EnvPolicy:
    """The policy with these weights, to act with elsewhere. It sees 81 colours and the 3 that come [84]."""
    vector = _eval_games(1)
    network = _network(config)
    load_weights(network, kept.weights)
    return EnvPolicy(
        Facts("colorlines", GYMNASIUM_ID, kept.version, kept.score),
        CellsActor(network),
        network,
        describe(vector),
        vector.single_observation_space,
        vector.single_action_space,
        make_env=lambda render_mode: single_game(compact=True, render_mode=render_mode),
        deployable="its network finds patterns with compiled code of its own, which no other program has",
        seed=config.seed,
    )
