"""The settings of recipes that play by search: games, search, a replay of segments, reanalysis.

A recipe adds the settings of its model and of its learner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.coordinator.settings import Settings
from headway.core.protocols import Placement
from headway.core.rules import ReplayRatio
from headway.core.types_opaque import SettingValue
from headway.envs.source_env_settings import EnvSettings
from headway.runs.config import RunConfig, with_defaults
from headway.runs.config_shared_settings import SettingsGroup
from headway.runs.user_code_user_functions import load_function
from headway.zero.board_games_matches import moves_ahead
from headway.zero.board_games_package import GAMES
from headway.zero.model_learner import ModelSettings
from headway.zero.planner_planning import Prior
from headway.zero.replay_game_segments import Windows, segments_per_stream
from headway.zero.search_interface import SearchSettings, TreeSettings
from headway.zero.world_model_two_hot import Support

BOARD_GAMES = {"tictactoe": "tic_tac_toe", **{name: name for name in GAMES}}
"""What the user may say, and the game it is."""


ANY_BOARD: dict[str, SettingValue] = {
    "gamma": 1.0,
    "num_envs": 32,
    "value_bins": 21,
    "value_range": 1.0,
    "value_weight": 1.0,
    "consistency_weight": 0.0,
    "replay_alpha": 0.0,  # how a game ended says little about one position: large errors are mostly chance
    "root_dirichlet_alpha": 0.5,
    "eval_episodes": 100,
}
BOARD_DEFAULTS: dict[str, dict[str, SettingValue]] = {
    "tic_tac_toe": {
        **ANY_BOARD,
        "td_steps": 9,
        "replay_ratio": 0.05,
        "segment_steps": 20,
        "opponents": ("random", "perfect"),
    },
    "connect_four": {
        **ANY_BOARD,
        "td_steps": 42,
        "replay_ratio": 0.02,
        "replay_capacity": 200_000,
        "replay_min_size": 4000,
        "segment_steps": 32,
        "batch_size": 256,
        "num_simulations": 50,
        "num_unroll_steps": 3,
        "opponents": ("random", "depth_2"),
        "eval_simulations": 200,
    },
}
"""Where a board game wants other defaults."""


def _any_board(game: str) -> dict[str, SettingValue]:
    """For a game that is not in the table: rewards to the end, and twice as much before the first update as has
    incomplete targets."""
    cells = GAMES[game].num_cells
    replay = {"replay_min_size": max(1000, 2 * ANY_BOARD["num_envs"] * (5 + cells)), "td_steps": cells}
    return {**ANY_BOARD, **replay, "opponents": ("random", "depth_2")}


ONLY_FOR_ROOT = {
    "puct": ("temperature", "final_temperature", "temperature_versions", "temperature_moves", "root_noise_weight"),
    "gumbel": ("max_considered_actions", "gumbel_scale", "gumbel_c_visit", "gumbel_c_scale"),
}
"""Settings that one kind of root uses and the other does not."""


class ReplaySettings(SettingsGroup):
    """Replay: where segments are kept, and how often they are drawn."""

    replay_mode: Literal["learner", "shared"] = "learner"
    """Where segments are kept: beside the learner, or in a role of their own. Only there can reanalysis run beside
    learning, and draws be made ahead (with free dispatch)."""
    replay_capacity: int = Field(default=100_000, ge=1)
    """Steps the replay keeps. More remember longer; data and, without reanalysis, targets are older."""
    replay_min_size: int = Field(default=1000, ge=1)
    """Steps that must be there before the learner begins."""
    replay_ratio: float = Field(default=0.05, gt=0)
    """Updates per step collected. Raising it learns more from each step. Learning never
    outruns this, nor does collection by more than a few tickets: often a stricter limit than max_lead."""
    update_per_collect: float | None = Field(default=None, gt=0)
    """The same as updates per ticket (num_envs * segment_steps steps), instead of replay_ratio."""
    batch_size: int = Field(default=128, ge=1)
    """Positions per update."""
    num_unroll_steps: int = Field(default=5, ge=1)
    """Steps the model is unrolled along in learning. More: it is right further ahead, and updates cost more."""
    td_steps: int = Field(default=20, ge=1)
    """Rewards that are summed before a value is trusted. More: less bias of the value, more variance."""
    replay_alpha: float = Field(default=0.6, ge=0, le=1)
    """How much priorities decide what is drawn: 0 not at all, 1 in proportion."""
    replay_beta_start: float = Field(default=0.4, ge=0, le=1)
    """How much of that the importance weights undo at first."""
    replay_beta_end: float = Field(default=0.4, ge=0, le=1)
    """The same at the end of the run, if updates or steps says how long it is. 1 undoes all of it, and leaves most of a
    draw almost without weight."""


class ReanalysisSettings(SettingsGroup):
    """Reanalysis: targets that are searched again with newer weights."""

    reanalyze_ratio: float = Field(default=0.0, ge=0)
    """Targets searched again with newer weights, per position drawn. 0: none. More keeps targets younger."""
    reanalyze_partition: float = Field(default=1.0, gt=0, le=1)
    """Share of the segments, the ones longest in the replay, that are searched again."""
    reanalyze_min_age: int = Field(default=50, ge=1)
    """Targets younger than this many versions are left alone."""
    reanalyze_roots: int = Field(default=256, ge=1)
    """Positions that are searched together."""


class PlayedBySearchConfig(ReanalysisSettings, ReplaySettings, TreeSettings, ModelSettings, RunConfig):
    """Games: how they are played by search and learned from, whatever they are."""

    num_envs: int = Field(default=8, ge=1)
    """Games per collector, searched together. More make each network call cheaper per step."""
    segment_steps: int = Field(default=50, ge=1)
    """Steps of each game per ticket; weights change only between segments. Longer: fewer tickets, older weights."""
    eval_simulations: int = Field(default=25, ge=1)
    """Simulations per move in evaluations."""
    gamma: float = Field(default=0.997, gt=0, le=1)
    """Discount. Closer to 1 looks further ahead, with more variance."""
    temperature: float = Field(default=1.0, ge=0)
    """puct: how much chance there is in choosing by visits when collecting, at first. 0: always the most visited."""
    final_temperature: float = Field(default=0.5, ge=0)
    """The same at the end of `temperature_versions`."""
    temperature_versions: int = Field(default=2000, ge=1)
    """Versions over which the temperature goes linearly from one to the other."""
    temperature_moves: int | None = Field(default=None, ge=0)
    """Moves of an episode that have a temperature; after them the most visited is always taken. Fewer: games end as
    good play ends them, and fewer of them differ. Unset: all."""
    value_bins: int = Field(default=101, ge=2)
    """Bins of the supports of values and rewards. More: finer, slower."""
    value_range: float = Field(default=50.0, gt=0)
    """Their reach to both sides, after squashing: 50 is a value of about 2300; 1 is one of about 3."""
    value_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of every target that is spread over all bins. More: values and rewards are never quite certain."""
    learner_gpus: float = Field(default=0.0, ge=0)
    """GPUs for the learner, if there are any: 0 is the CPU, which small networks are faster on."""
    search_gpus: float = Field(default=0.0, ge=0)
    """GPUs for each role that searches (collectors, evaluator, reanalyzer), if there are any. Worth it for large
    networks and many games at once (`num_envs`)."""
    torch_threads: int = Field(default=1, ge=1)
    """Threads of torch in each process. One, where roles share the cores: more are slower, and differ in bits."""

    @model_validator(mode="after")
    def _settings_are_for_this_root(self) -> Self:
        for root, names in ONLY_FOR_ROOT.items():
            for name in names:
                value = getattr(self, name)
                if root != self.root and value != type(self).model_fields[name].default:
                    raise ValueError(f"{name}={value!r} needs root={root!r}, received root={self.root!r}")
        return self

    @model_validator(mode="after")
    def _the_replay_can_work(self) -> Self:
        if self.replay_min_size > self.replay_capacity:
            raise ValueError(
                f"replay_min_size={self.replay_min_size} is more than replay_capacity={self.replay_capacity} ever holds"
            )
        tail = self.collectors * self.num_envs * (self.num_unroll_steps + self.td_steps)
        if self.replay_min_size <= tail:
            raise ValueError(
                f"replay_min_size={self.replay_min_size} may be all incomplete targets: it must be above {tail} = "
                "collectors * num_envs * (num_unroll_steps + td_steps)"
            )
        if self.update_per_collect is not None and self.replay_ratio != type(self).model_fields["replay_ratio"].default:
            raise ValueError("update_per_collect and replay_ratio say the same thing: set one of them")
        segments_per_stream(self.replay_capacity, self.collectors * self.num_envs, self.segment_steps, self.windows)
        return self

    @property
    def support(self) -> Support:
        return Support(-self.value_range, self.value_range, self.value_bins, self.value_smoothing)

    @property
    def steps_per_ticket(self) -> int:
        return self.num_envs * self.segment_steps

    @property
    def updates_per_step(self) -> float:
        if self.update_per_collect is not None:
            return self.update_per_collect / self.steps_per_ticket
        return self.replay_ratio

    @property
    def windows(self) -> Windows:
        return Windows(num_unroll_steps=self.num_unroll_steps, td_steps=self.td_steps, discount=self.gamma)

    @property
    def placement(self) -> Placement:
        return Placement(num_cpus=self.torch_threads, num_threads=self.torch_threads)

    def search_settings(self, players: int, num_simulations: int) -> SearchSettings:
        """For games of so many players. Evaluations have simulations of their own."""
        return self.part(SearchSettings, num_simulations=num_simulations, discount=self.gamma, players=players)

    def settings(self) -> Settings:
        ratio = ReplayRatio(
            self.updates_per_step * self.batch_size,
            self.replay_min_size,
            samples_per_update=self.batch_size,
            steps_per_ticket=self.steps_per_ticket,
        )
        return replace(super().settings(), replay=ratio)


@with_defaults(evaluate_every=250, evaluate_in_background=True)
class SearchConfig(EnvSettings, PlayedBySearchConfig):
    """Games: what is played and how it is evaluated.

    For board games some defaults differ (BOARD_DEFAULTS of the recipe).
    """

    own_board_defaults: ClassVar[dict[str, dict[str, SettingValue]]] = {}
    """Where a recipe wants others yet, by game."""
    also_for_evaluation = ("opponents", "search_gpus", "torch_threads")
    shown_first = "env num_envs num_simulations max_lead replay_ratio reanalyze_ratio wall_s target_score"

    env: str = "CartPole-v1"
    """A Gymnasium environment with discrete actions: a registered name, `module:Id`, file.py:Class or module:Class. Or
    a board game: tictactoe, connect_four."""
    eval_episodes: int = Field(default=20, ge=1)
    """Episodes per evaluation; for a board game, games against each opponent."""
    eval_max_steps: int = Field(default=10_000, ge=1)
    """Steps after which an episode of an evaluation is cut: it counts with its return so far. Raise it where episodes
    that long end by themselves; without a bound, those of a policy that goes round in circles never do. Board
    games always end."""
    opponents: tuple[str, ...] = ()
    """Whom a board game is evaluated against: random, perfect, depth_N (looks N moves ahead); one of them or several,
    with commas. The score is the mean, over them, of the games won plus half of those drawn."""
    prior: str | None = None
    """What somebody else thinks of the actions at every root, as a function of your own: file.py:function or
    module:function. It is given observations [B, ...] and what is legal [B, A], and answers probabilities [B, A]."""
    prior_weight: float = Field(default=0.5, ge=0, le=1)
    """Its share in the root's opinion; the rest is the policy's. 0: it is not asked."""
    normalise: bool | None = None
    """Bring each feature of a vector to mean 0 and variance 1 by what was seen of it. Unset: for all but boards and
    pictures."""

    symmetries: bool = True
    """Board games: see each position drawn turned or mirrored in one of the ways that leave the game the same."""

    @field_validator("prior")
    @classmethod
    def _prior_can_be_loaded(cls, value: str | None) -> str | None:
        if value is not None:
            load_prior(value)
        return value

    @field_validator("opponents", mode="before")
    @classmethod
    def _one_opponent_or_several(cls, value: object) -> SettingValue:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_game(cls, values: SettingValue) -> SettingValue:
        game = BOARD_GAMES.get(values.get("env", "")) if isinstance(values, dict) else None
        if game is None:
            return values
        every = {**(BOARD_DEFAULTS.get(game) or _any_board(game)), **cls.own_board_defaults.get(game, {})}
        defaults = {name: value for name, value in every.items() if name in cls.model_fields}
        if values.get("update_per_collect") is not None:
            del defaults["replay_ratio"]
        return {**defaults, **values}

    @model_validator(mode="after")
    def _a_weight_needs_a_prior(self) -> SearchConfig:
        if self.prior is None and self.prior_weight != type(self).model_fields["prior_weight"].default:
            raise ValueError(f"prior_weight={self.prior_weight!r} needs prior: whose opinion?")
        return self

    @model_validator(mode="after")
    def _the_game_is_known(self) -> SearchConfig:
        if self.is_board_game:
            for name in self.opponents:
                moves_ahead(name, GAMES[BOARD_GAMES[self.env]])
            if self.eval_episodes < 2:
                raise ValueError(f"eval_episodes={self.eval_episodes}: a match needs 2 games, one begun by each side")
            plain = EnvSettings()
            for name in EnvSettings.model_fields:
                if name != "env" and getattr(self, name) != getattr(plain, name):
                    raise ValueError(f"{name} is for Gymnasium environments, received env={self.env!r}")
            if self.evaluate_every and not self.opponents:
                raise ValueError(f"env={self.env!r} is evaluated against opponents: set opponents")
            if "perfect" in self.opponents and GAMES[BOARD_GAMES[self.env]].num_cells > 9:
                raise ValueError(f"opponent 'perfect' cannot look to the end of {self.env}: choose depth_N")
        else:
            if self.opponents:
                raise ValueError(f"opponents={self.opponents} are for board games, received env={self.env!r}")
            try:
                self.source.check()
            except ValueError as error:
                raise ValueError(f"{error}; board games: {', '.join(BOARD_GAMES)}") from None
        return self

    @property
    def is_board_game(self) -> bool:
        return self.env in BOARD_GAMES

    def normalises(self, observation: tuple[int, ...]) -> bool:
        """Whether observations of this shape, as the network sees them, are brought to one scale."""
        return (len(observation) == 1 and not self.is_board_game) if self.normalise is None else self.normalise


def load_prior(spec: str) -> Prior:
    """The opinion of somebody else: a function by its place."""
    return load_function(spec, "prior", ("observations", "legal"), by_name=False)
