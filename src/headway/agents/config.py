"""The settings of agents: environment, episodes and evaluation, beside those of the model and of the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.agents.collector_group_filters import Compared, load_filter
from headway.agents.endpoint_player_endpoint_episodes import load_agent
from headway.agents.episodes_episode_loop import EpisodeLimits
from headway.agents.loading import env_options
from headway.agents.stepping import StepDeadlines, parse_where
from headway.core.types_opaque import JsonObject, SettingValue
from headway.llm.config import LanguageModelConfig
from headway.llm.train.advantages import GAE
from headway.llm.train.grpo_settings import GRPOSettings
from headway.runs.config import with_defaults, without
from headway.runs.config_shared_settings import SettingsGroup

OF_ENVIRONMENTS = (
    *("env", "env_options", "env_stepping", "max_steps_under_way", "held_out"),
    *("system_prompt", "reply_prefix"),
)
"""Settings that mean nothing to an agent that has its own loop."""


OF_STEPS = ("reset_deadline_s", "step_deadline_s")


class EnvironmentSettings(SettingsGroup):
    """Environment: what is played, and where it steps."""

    env: str = "lights"
    """What is played: a game of our own (lights, guess, shop, ...), file.py:Class, module:Class or library:ID (gem:,
    textarena:, openenv:, gymnasium:, skyrl:)."""
    agent: str = ""
    """In place of env: a function of your own that has its own loop, file.py:function or module:function. It is called
    with base_url and api_key of an OpenAI-compatible endpoint and a seed, and returns the reward."""
    env_options: JsonObject = Field(default_factory=dict)
    """What the environment is built with, like {"lights": 8}."""
    env_stepping: str = "here"
    """Where environments step. here: in the episode's thread, one at a time, for quick pure Python. threads(N): N at a
    time, for those that wait. processes(N): in N processes that can be killed, for those that compute, hang, crash or
    seed the global generator."""
    reset_deadline_s: float = Field(default=60.0, gt=0)
    """With env_stepping=threads or processes: an environment that takes longer to begin an episode is given up, and the
    episode is replayed on another."""
    step_deadline_s: float = Field(default=60.0, gt=0)
    """The same for a step. Raising it waits longer for slow steps, and notices hangs later."""
    max_steps_under_way: int | None = Field(default=None, ge=1)
    """At most so many calls of one collector's environments at a time, for those that share a slow server."""
    env_attempts: int = Field(default=3, ge=1)
    """Environments that one episode may use up before it is given up. Infrastructure never becomes a reward."""
    held_out: Literal["seeds", "texts"] = "seeds"
    """How held-out games are divided from those to train on: by seed, or by their first message, so that no game that
    begins like a held-out one is trained on."""
    held_out_share: float = Field(default=0.1, gt=0, lt=1)
    """With held_out=texts: the share of first messages that is held out."""

    @model_validator(mode="before")
    @classmethod
    def _one_is_played(cls, values: SettingValue) -> SettingValue:
        """An agent has its own loop: what is said of an environment would be of nobody."""
        if not isinstance(values, dict) or not values.get("agent"):
            return values
        for name in OF_ENVIRONMENTS:
            default = cls.model_fields[name].get_default(call_default_factory=True)
            if values.get(name, default) not in (default, "", None) or (name == "env" and values.get(name)):
                raise ValueError(
                    f"agent={values['agent']!r} has its own loop: {name}={values[name]!r} cannot be set too"
                )
        return {**values, "env": ""}

    @field_validator("agent")
    @classmethod
    def _agent_can_be_loaded(cls, value: str) -> str:
        if value:
            load_agent(value)
        return value

    @field_validator("env_options", mode="before")
    @classmethod
    def _options_are_an_object(cls, value: SettingValue) -> SettingValue:
        return env_options(value) if isinstance(value, str) else value

    @field_validator("env_stepping")
    @classmethod
    def _place_is_known(cls, value: str) -> str:
        parse_where(value)
        return value


class EpisodeLengthSettings(SettingsGroup):
    """Episodes: how long they may become, and which of them are learned from."""

    max_turns: int | None = Field(default=None, ge=1)
    """Replies in one episode; default: the environment's own limit."""
    max_turn_tokens: int = Field(default=16, ge=1)
    """Tokens of one reply. A longer one is cut, and the environment gets what there is."""
    max_episode_tokens: int = Field(default=384, ge=1)
    """Tokens of one episode behind its first message, drawn and said. An episode that needs more ends (end: tokens)."""
    max_context_tokens: int = Field(default=512, ge=1)
    """Tokens of an episode with its first message: the room of a row in the engine. Raising it takes more memory."""
    episode_deadline_s: float | None = Field(default=None, gt=0)
    """Seconds an episode may take; then it ends as it stands (end: deadline). Lowering it waits less for slow
    environments, and shortens what is learned from."""
    redundancy: int = Field(default=0, ge=0)
    """Episodes that begin in every group beside group_size; the last ones to end are abandoned. More wait less for
    slow episodes, waste their work, and prefer short ones: redundancy_bias_turns says how much at least."""
    min_group: int | None = Field(default=None, ge=1)
    """A group that lost episodes to infrastructure goes on with at least so many; default: all, else it fails."""
    reply_prefix: str | None = None
    """What every reply is made to begin with; default: what the environment says."""
    filter: str | None = None
    """A function of your own over a finished group, file.py:function: it returns None, or in a word why the group is
    not to be learned from. Counted as drops/filtered_WORD, and others are collected in their place."""

    @field_validator("filter")
    @classmethod
    def _filter_can_be_loaded(cls, value: str | None) -> str | None:
        if value is not None:
            load_filter(value)
        return value


class GameEvaluationSettings(SettingsGroup):
    """Evaluation: held-out games."""

    eval_games: int = Field(default=32, ge=1)
    """Held-out games per evaluation."""
    eval_samples: int = Field(default=1, ge=1)
    """Episodes of each."""
    eval_temperature: float = Field(default=0.0, ge=0)
    """0: the most likely token. Needs to be above 0 with several episodes."""
    eval_top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the most likely tokens that together have this probability."""


@without("max_tokens")
@with_defaults(
    model="made:lights",
    updates=80,
    evaluate_every=10,
    save_every=10,
    learning_rate=6e-4,
    warmup_updates=8,
    tickets_per_batch=16,
    lanes=16,
    engine_rows=128,
    evaluation_waits_for="parked",
)
class AgentConfig(GameEvaluationSettings, EpisodeLengthSettings, EnvironmentSettings, LanguageModelConfig):
    """Run: what the recipe adds to the plan."""

    shown_first = "env model group_size tickets_per_batch max_turn_tokens max_lead redundancy updates learning_rate"
    former_names: ClassVar[Mapping[str, str]] = {"max_tokens": "max_turn_tokens"}

    @model_validator(mode="after")
    def _can_play(self) -> Self:
        self.limits(1)
        if self.estimator not in ("reinforce_plus_plus", GAE) and self.group_size == 1:
            raise ValueError(f"estimator {self.estimator!r} compares episodes of one game: group_size must be >= 2")
        if self.min_group is not None and self.min_group > self.group_size:
            raise ValueError(f"min_group={self.min_group} must not exceed group_size={self.group_size}")
        if self.microbatch_tokens < self.max_context_tokens:
            raise ValueError(
                f"microbatch_tokens={self.microbatch_tokens} cannot hold an episode: max_context_tokens="
                f"{self.max_context_tokens}"
            )
        limit = self.episode_deadline_s
        if limit is not None and limit >= self.collect_deadline_s:
            raise ValueError(
                f"episode_deadline_s={limit:g} must be below collect_deadline_s={self.collect_deadline_s:g}, "
                "or the collector is restarted first"
            )
        for name in OF_STEPS:
            is_idle = (
                parse_where(self.env_stepping)[0] == "here"
                and getattr(self, name) == type(self).model_fields[name].default
            )
            if getattr(self, name) >= self.collect_deadline_s and not is_idle:
                raise ValueError(
                    f"{name}={getattr(self, name):g} must be below collect_deadline_s={self.collect_deadline_s:g}, "
                    "or the collector is restarted before its environment"
                )
        if self.eval_samples > 1 and self.eval_temperature == 0:
            raise ValueError("eval_samples > 1 needs eval_temperature > 0: the most likely episode is always the same")
        if self.eval_top_p < 1 and self.eval_temperature == 0:
            raise ValueError("eval_top_p < 1 needs eval_temperature > 0: the most likely token is always among them")
        version = self.tickets_per_batch * self.group_size * self.publish_every
        self.evaluate_rarely(self.eval_games * self.eval_samples, version)
        return self

    @model_validator(mode="after")
    def _can_be_repeated(self) -> Self:
        """What depends on timing or on faults has no place in a pinned run."""
        if not self.settings().is_pinned:
            return self
        what = "a run that is pinned (max_lead=0, or dispatch other than free)"
        if self.redundancy:
            raise ValueError(
                f"redundancy={self.redundancy} lets timing decide which episodes are learned from, not in {what}"
            )
        if self.min_group is not None and self.min_group < self.group_size:
            raise ValueError(f"min_group={self.min_group} lets faults decide what is trained on, not in {what}")
        return self

    def idle(self) -> dict[str, str]:
        why = {}
        if self.agent:
            why = dict.fromkeys((*OF_STEPS, "held_out_share"), f"agent={self.agent!r}, which has its own loop")
        else:
            if parse_where(self.env_stepping)[0] == "here":
                why |= dict.fromkeys(
                    OF_STEPS,
                    "env_stepping=here, where nothing interrupts an environment: say threads(N) or processes(N)",
                )
            if self.held_out != "texts":
                why["held_out_share"] = f"held_out={self.held_out}: it goes with held_out=texts"
        return {
            name: f"{name}={getattr(self, name):g} has no effect with {reason}"
            for name, reason in why.items()
            if getattr(self, name) != type(self).model_fields[name].default
        }

    @property
    def context_tokens(self) -> int:
        return self.max_context_tokens

    @property
    def share_held_out(self) -> float:
        """By first message; 0 where games are divided by their seeds."""
        return self.held_out_share if self.held_out == "texts" else 0.0

    @property
    def compared(self) -> Compared:
        """What can still tell something of a group whose returns are all equal."""
        if self.credit == "gigpo":
            return "states"
        return "turns" if self.credit == "turn" or self.estimator == GAE else "episodes"

    @property
    def step_deadlines(self) -> StepDeadlines:
        return StepDeadlines(reset_s=self.reset_deadline_s, step_s=self.step_deadline_s)

    def limits(self, of_the_game: int) -> EpisodeLimits:
        """How long an episode may become, in a game with so many turns."""
        return EpisodeLimits(
            max_turns=of_the_game if self.max_turns is None else self.max_turns,
            max_turn_tokens=self.max_turn_tokens,
            max_episode_tokens=self.max_episode_tokens,
            max_context_tokens=self.max_context_tokens,
            deadline_s=self.episode_deadline_s,
        )

    def learner_settings(self) -> GRPOSettings:
        """The longest that the policy can draw in one episode is what its loss may be divided by."""
        return self.part(GRPOSettings, updates=self.settings().plan.updates, max_tokens=self.max_episode_tokens)
