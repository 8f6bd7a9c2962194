"""The settings of PriorZero: story games, a world model that is searched in, a language model whose prior guides it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.agents.loading import env_options
from headway.coordinator.settings import Settings
from headway.coordinator.settings_line_settings import LineSettings
from headway.core.rules_order import OnStale
from headway.core.types_opaque import JsonObject, SettingValue
from headway.llm.config import ChatSettings, LanguageModelSettings, ReachableEngine
from headway.runs.config import with_defaults, without
from headway.runs.config_shared_settings import SettingsGroup
from headway.text_games.guidance import LINE
from headway.text_games.loading import load_story
from headway.text_games.loading_story_defaults import STORY_DEFAULTS, story_defaults
from headway.text_games.prior_learner_settings import PriorSettings
from headway.text_games.textzero_learner import TextZeroSettings
from headway.text_games.textzero_network import TextZeroArchitecture
from headway.text_games.vector_rows import RowShape
from headway.zero.config import PlayedBySearchConfig
from headway.zero.planner_prior_weight import AdaptiveWeight, AnnealedWeight, FixedWeight, Mode, PriorWeight

MADE = "made"
"""As the model: a small one that knows the words of the game, made on the spot."""
QUICK: dict[str, SettingValue] = {
    "updates": 8,
    "wall_s": 40.0,
    "num_envs": 2,
    "segment_steps": 10,
    "num_simulations": 4,
    "eval_simulations": 4,
    "max_episode_steps": 10,
    "num_unroll_steps": 3,
    "td_steps": 3,
    "batch_size": 8,
    "replay_min_size": 40,
    "evaluate_every": 4,
    "eval_episodes": 1,
    "prior_every": 2,
    "prior_max_states": 4,
    "min_spread": 0.0,  # in so few steps nothing is found that would tell more, and the language model is to learn, too
    "collect_deadline_s": 45.0,
}
"""What `quick_test` sets, where nobody says otherwise."""
PACES: dict[str, dict[str, SettingValue]] = {
    "made": {"prior_learning_rate": 3e-3, "prior_max_states": 64},
    "whole": {"prior_learning_rate": 5e-5, "prior_max_states": 16},
    "adapters": {"prior_learning_rate": 5e-4, "prior_max_states": 16},
}
"""How a prior learns, where nobody says otherwise: a small model that knows nothing takes large steps and is quick, one
that can read takes small ones, adapters to it larger ones."""
BROAD: dict[str, SettingValue] = {"prior_every": 1, "prior_tickets_per_batch": 4}
"""For a model whose updates are dear: as many updates, each on all tickets since the last. States that came several
times are read once, so their visits become less noisy for next to nothing."""


class StorySettings(SettingsGroup):
    """Games: what is played, and how much of it is seen."""

    env: str = "mini_world"
    """What is played, by its name. That is mini_world, colossal_cave, textworld:coin (treasure, quest, cooking), a
    Z-machine file of yours (zork1.z5), or a class of your own (file.py:Class, module:Class). Some games have defaults
    of their own: headway explain env=colossal_cave."""
    env_options: JsonObject = Field(default_factory=dict)
    """What the game is made with, like {"plan_steps": 8}."""
    max_episode_steps: int = Field(default=60, ge=1)
    """Steps after which an episode is cut. More: longer quests can be solved, and those that wander are waited for."""
    text_words: int = Field(default=64, ge=1)
    """Words of a text that the world model sees."""
    slots: int = Field(default=16, ge=1)
    """Actions that can be chosen from at once. Where there are more, the prior says which; what is cut is counted."""
    action_words: int = Field(default=6, ge=1)
    """Words of an action that the world model sees."""
    buckets: int = Field(default=4096, ge=1)
    """Numbers that words are hashed to. Fewer: different words look alike more often."""
    history_steps: int = Field(default=0, ge=0)
    """Steps before this one that the language model is told of. With more almost every prompt is new, and nothing is
    cached."""
    quick_test: bool = False
    """A run of a few updates, which ends within a minute."""

    @field_validator("env_options", mode="before")
    @classmethod
    def _options_are_an_object(cls, value: SettingValue) -> SettingValue:
        return env_options(value) if isinstance(value, str) else value


class WorldModelSettings(SettingsGroup):
    """World model: the network that is searched in."""

    body: Literal["muzero", "unizero"] = "muzero"
    """muzero: a step is a function of the latent. unizero: a transformer that sees the whole way."""
    embedding: int = Field(default=64, ge=1)
    """Features of a word, and of an action."""
    latent: int = Field(default=64, ge=1)
    """Features of a latent; of a token, where the body is a transformer."""
    hidden: int = Field(default=128, ge=1)
    """muzero: width of the layers between."""
    table: int = Field(default=256, ge=1)
    """Actions that the inside of a search chooses from. More: slower; fewer: rare ones are forgotten."""
    layers: int = Field(default=2, ge=1)
    """unizero: layers of the transformer."""
    heads: int = Field(default=4, ge=1)
    """unizero: heads of its attention; latent must be a multiple of twice as many."""
    context_steps: int = Field(default=0, ge=0)
    """unizero: steps before an observation that a search sees too."""
    attention_steps: int | None = Field(default=None, ge=1)
    """unizero: steps back that a token looks. Unset: num_unroll_steps + 1."""
    least_chance: float = Field(default=0.05, ge=0, lt=1)
    """An action is offered below the root if the model thinks that it can be done with at least this probability."""


class PriorUseSettings(SettingsGroup):
    """Prior: what the language model thinks of the actions, and how much that counts."""

    prior: Literal["none", "frozen", "learned"] = "learned"
    """none: the world model plays alone. frozen: the language model helps and stays as it is. learned: it learns from
    what the search finds, in a line of its own."""
    model: str = MADE
    """The language model: made, smollm2, a folder, or an id on the model hub. made is a small one that knows the words
    of the game and nothing else; it learns from the search. A folder may be that of a run that trained one."""
    prior_weight: float = Field(default=0.7, ge=0, le=1)
    """fixed, annealed: the prior's share in the root's opinion; the rest is the world model's. 0: it is not asked."""
    prior_weighting: Literal["fixed", "adaptive", "annealed"] = "adaptive"
    """adaptive: between prior_weight_low and prior_weight_high, by the entropy of the world model's policy. fixed:
    prior_weight everywhere; it is meant where prior_weight is set and nothing else is said. annealed: from prior_weight
    to final_prior_weight over prior_weight_versions."""
    prior_weight_low: float = Field(default=0.3, ge=0, le=1)
    """adaptive: the share where the world model is certain."""
    prior_weight_high: float = Field(default=1.0, ge=0, le=1)
    """adaptive: the share where all actions are the same to it."""
    final_prior_weight: float = Field(default=0.0, ge=0, le=1)
    """annealed: the share at the end."""
    prior_weight_versions: int = Field(default=1000, ge=1)
    """annealed: versions until then."""
    prior_floor: float = Field(default=0.0, ge=0, lt=1)
    """The least probability that the prior gives to any action. More: what it finds absurd is tried too."""
    prior_cache: int = Field(default=20_000, ge=0)
    """Opinions that are remembered, by version and text."""
    prior_deadline_s: float | None = Field(default=None, gt=0)
    """How long the language model may take for one step; then the search goes on without it, which is counted. The
    clock decides, so dispatch is free."""
    collect_mode: Mode = "both"
    """Who acts when collecting: both, world_model or prior. Whoever acts, every step is searched."""
    context_tokens: int = Field(default=1024, ge=16)
    """Tokens of a prompt with one action, at most: the room of a row in the engine."""


class PriorLineSettings(SettingsGroup):
    """Prior: how the language model's learner keeps step with collection."""

    prior_max_lead: float | Literal["auto"] | None = None
    """How far collection may run ahead of the prior's learner, in its versions. Unset: as max_lead."""
    prior_every: int = Field(default=4, ge=1)
    """The prior learns from every n-th ticket. Raising it makes it younger in comparison, and learn less."""
    prior_tickets_per_batch: int = Field(default=1, ge=1)
    """Tickets per update of the prior."""
    prior_publish_every: int = Field(default=1, ge=1)
    """Updates of the prior per version of it. A new version empties the cache of opinions."""
    prior_max_staleness: int | None = Field(default=None, ge=0)
    """The age a ticket may reach before the prior learns from it, in versions of the prior."""
    prior_on_stale: Literal["wait", "drop", "keep"] = "wait"
    """What happens to one that is older."""
    prior_learner_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that the prior's learner asks for, where the cluster has any and device allows it."""


class StoryEvaluationSettings(SettingsGroup):
    """Evaluation: whole episodes."""

    eval_episodes: int = Field(default=4, ge=1)
    """Episodes per evaluation, in each way to play."""
    eval_max_steps: int | None = Field(default=None, ge=1)
    """Steps after which an episode of an evaluation is cut. Unset: max_episode_steps."""
    eval_mode: Mode = "both"
    """Whose score is that of the version. Without a prior it is always the world model's."""
    eval_all_modes: bool = True
    """Play in the other ways too, and report them."""
    eval_temperature: float = Field(default=0.0, ge=0)
    """Chance in choosing when evaluating. 0: always the most visited, or the likeliest."""


ONLY_WITH_PRIOR = (
    *(*PriorUseSettings.model_fields, *PriorLineSettings.model_fields),
    *(*LanguageModelSettings.model_fields, *ChatSettings.model_fields),
)
ONLY_LEARNED = tuple(PriorLineSettings.model_fields)
ONLY_WEIGHTING = {
    "adaptive": ("prior_weight_low", "prior_weight_high"),
    "annealed": ("final_prior_weight", "prior_weight_versions"),
}


@without("lanes", "on_publish", "weight_transport", "evaluation_waits_for")
@with_defaults(
    updates=1000,
    evaluate_every=50,
    evaluate_in_background=True,
    segment_steps=10,
    num_simulations=16,
    eval_simulations=16,
    value_norm_floor=0.5,
    gamma=0.97,
    final_temperature=1.0,
    batch_size=64,
    replay_ratio=0.4,
    replay_min_size=200,
    replay_capacity=50_000,
    td_steps=15,
    value_range=2.0,
    value_bins=41,
    prior_learning_rate=PACES["made"]["prior_learning_rate"],
    prior_max_states=PACES["made"]["prior_max_states"],
    engine_rows=16,
)
class PriorZeroConfig(
    StoryEvaluationSettings,
    PriorLineSettings,
    PriorUseSettings,
    StorySettings,
    WorldModelSettings,
    ReachableEngine,
    ChatSettings,
    LanguageModelSettings,
    PriorSettings,
    TextZeroSettings,
    PlayedBySearchConfig,
):
    """Run: what the recipe adds to the plan."""

    also_for_evaluation = (
        *("search_gpus", "torch_threads", "device", "engine", "engine_rows", "engine_deadline_s", "engine_restarts"),
        *("vllm_python", "vllm_options"),
    )
    defaults_by_env = STORY_DEFAULTS
    shown_first = "env quick_test prior model prior_weight max_lead updates target_score"

    @model_validator(mode="before")
    @classmethod
    def _more_games_fill_a_larger_replay(cls, values: SettingValue) -> SettingValue:
        """Before the first update, unless told when: a few steps more than have incomplete targets."""
        if not isinstance(values, dict) or values.get("replay_min_size") is not None:
            return values
        try:
            collectors, games, unrolled, summed = (
                int(values.get(name, cls.model_fields[name].default))
                for name in ("collectors", "num_envs", "num_unroll_steps", "td_steps")
            )
        except (TypeError, ValueError):
            return values  # refused by its own field
        wanted = collectors * games * (unrolled + summed + 5)
        return (
            values if wanted <= cls.model_fields["replay_min_size"].default else {**values, "replay_min_size": wanted}
        )

    @model_validator(mode="before")
    @classmethod
    def _a_share_that_is_set_is_fixed(cls, values: SettingValue) -> SettingValue:
        if not isinstance(values, dict) or "prior_weight" not in values or "prior_weighting" in values:
            return values
        return {**values, "prior_weighting": "fixed"}

    @model_validator(mode="before")
    @classmethod
    def _a_model_learns_at_its_own_pace(cls, values: SettingValue) -> SettingValue:
        if not isinstance(values, dict) or values.get("model", MADE) == MADE:
            return values
        pace = PACES["adapters" if values.get("lora_rank") not in (None, 0, "0") else "whole"]
        is_learned = values.get("prior", "learned") == "learned"
        often = BROAD if is_learned and not BROAD.keys() & values.keys() else {}
        return {**pace, **often, **values}

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_game(cls, values: SettingValue) -> SettingValue:
        if not isinstance(values, dict):
            return values
        return {**story_defaults(values.get("env", cls.model_fields["env"].default), values), **values}

    @model_validator(mode="before")
    @classmethod
    def _a_quick_test_is_small(cls, values: SettingValue) -> SettingValue:
        if not isinstance(values, dict) or values.get("quick_test") not in (True, "true", "True", 1):
            return values
        small = {name: value for name, value in QUICK.items() if values.get("prior") not in OFF or name not in _PRIORS}
        return {**small, **values}

    @model_validator(mode="after")
    def _settings_have_somebody_to_use_them(self) -> Self:
        if self.prior == "none":
            self._refuse_set(ONLY_WITH_PRIOR, "prior='frozen' or 'learned'", except_for=("prior",))
            for name in ("collect_mode", "eval_mode"):
                if getattr(self, name) == "prior":
                    raise ValueError(f"{name}='prior' needs a prior, received prior='none'")
        elif self.prior == "frozen":
            self._refuse_set(ONLY_LEARNED, "prior='learned'")
        for weighting, names in ONLY_WEIGHTING.items():
            if self.prior_weighting != weighting:
                self._refuse_set(names, f"prior_weighting={weighting!r}")
        if self.prior_weighting == "adaptive":
            self._refuse_set(("prior_weight",), "prior_weighting='fixed' or 'annealed'")
        self.weight_of_prior()
        return self

    def _refuse_set(self, names: tuple[str, ...], wanted: str, except_for: tuple[str, ...] = ()) -> None:
        for name in names:
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            value = getattr(self, name)
            is_of_quick_test = self.quick_test and value == QUICK.get(name)
            if name not in except_for and value != default and not is_of_quick_test:
                raise ValueError(f"{name}={value!r} needs {wanted}")

    @model_validator(mode="after")
    def _lateness_needs_a_clock(self) -> Self:
        if self.prior_deadline_s is not None and self.settings().is_pinned:
            raise ValueError(
                f"prior_deadline_s={self.prior_deadline_s:g} lets the clock decide what the search is told: "
                "it needs dispatch='free' and max_lead > 0"
            )
        return self

    @model_validator(mode="after")
    def _the_model_can_be(self) -> Self:
        self.architecture()
        if self.body == "unizero" and self.latent % (2 * self.heads):
            raise ValueError(f"latent must be a multiple of 2 * heads = {2 * self.heads}, received {self.latent}")
        if self.body == "muzero" and self.context_steps:
            raise ValueError(f"context_steps={self.context_steps} needs body='unizero': 'muzero' does not look back")
        return self

    @model_validator(mode="after")
    def _the_story_is_known(self) -> Self:
        load_story(self.env, self.env_options)
        return self

    stop_token_ids: ClassVar[tuple[int, ...]] = ()
    """Nothing is generated."""

    # -- what follows from them ---------------------------------------------------------------------

    @property
    def shape(self) -> RowShape:
        """Of a row that the world model sees."""
        return self.part(RowShape)

    def architecture(self) -> TextZeroArchitecture:
        """Of the world model."""
        return self.part(
            TextZeroArchitecture,
            attention_steps=self.attention_steps or self.num_unroll_steps + 1,
            value_support=self.support,
            reward_support=self.support,
        )

    def weight_of_prior(self) -> PriorWeight:
        """How much the prior counts."""
        if self.prior_weighting == "adaptive":
            return AdaptiveWeight(self.prior_weight_low, self.prior_weight_high)
        if self.prior_weighting == "annealed":
            return AnnealedWeight(self.prior_weight, self.final_prior_weight, self.prior_weight_versions)
        return FixedWeight(self.prior_weight)

    @property
    def has_prior(self) -> bool:
        return self.prior != "none"

    @property
    def is_learned(self) -> bool:
        return self.prior == "learned"

    def settings(self) -> Settings:
        first = super().settings()
        if not self.is_learned:
            return first
        line = LineSettings(
            max_lead=self.max_lead if self.prior_max_lead is None else self.prior_max_lead,
            every=self.prior_every,
            tickets_per_batch=self.prior_tickets_per_batch,
            publish_every=self.prior_publish_every,
            max_staleness=self.prior_max_staleness,
            on_stale=OnStale(self.prior_on_stale),
            lead_limit=self.lead_limit,
        )
        return replace(first, lines={LINE: line})


OFF = ("none",)
_PRIORS = ("prior_every", "prior_max_states")
