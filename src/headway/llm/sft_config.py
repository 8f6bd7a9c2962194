"""The settings of supervised learning: what is imitated and how it becomes tokens, beside model and learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from headway.coordinator.settings import Settings
from headway.core.types_opaque import JsonObject, SettingValue
from headway.llm.config import ChatSettings, LanguageModelSettings, MemorySettings
from headway.llm.train.imitation_settings import ImitationSettings
from headway.ranks.settings import ShardedConfig
from headway.runs.config import with_defaults
from headway.runs.config_shared_settings import SettingsGroup

DEFAULT_ENV = "lights"


class ImitatedSettings(SettingsGroup):
    """Imitation: what is imitated."""

    env: str = ""
    """An environment whose players are imitated: a game by name, file.py:Class or module:Class. Default: lights, unless
    data is given."""
    env_options: JsonObject = Field(default_factory=dict)
    """Settings of the environment, like {lights: 8} for lights."""
    data: str = ""
    """In place of an environment: a file with conversations, a JSON object a line with messages of role and content."""
    expert_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the games that the expert plays; the others are random. With 1 a model only ever sees good states; with
    0 it learns how to reply and nothing of what is good."""
    episodes: int | None = Field(default=None, ge=1)
    """Stop after about so many episodes, if that is earlier."""
    data_epochs: float | None = Field(default=None, gt=0)
    """Stop after this many passes over the conversations of the file, if that is earlier."""
    tickets_per_batch: int = Field(default=32, ge=1)
    """Episodes per update."""
    reply_prefix: str | None = None
    """What every reply of a game is made to begin with, which is not trained on; default: what the environment says."""
    max_context_tokens: int = Field(default=512, ge=2)
    """Tokens of an episode with its first message: room for the longest. Raising it takes more memory."""
    on_long_episode: Literal["error", "drop"] = "error"
    """An episode that needs more ends the run, those of a file before it begins; or it is left out, and counted as
    filtered."""


class ImitationEvaluationSettings(SettingsGroup):
    """Evaluation: held-out episodes, and games that the model plays."""

    eval_records: int = Field(default=32, ge=1)
    """Held-out episodes whose likelihood is measured: games of the expert, or at most a tenth of the file."""
    eval_games: int = Field(default=16, ge=0)
    """Held-out games that the model plays itself, with an engine; 0, or with data: none."""
    eval_temperature: float = Field(default=0.0, ge=0)
    """0: the most likely token. 1 plays as reinforcement learning would begin."""
    max_turn_tokens: int = Field(default=16, ge=1)
    """Tokens of one reply in these games. A longer one is cut, and the environment gets what there is."""


@with_defaults(updates=200, evaluate_every=50, learning_rate=1e-3, tickets_per_batch=32)
class SFTConfig(
    ImitationEvaluationSettings,
    ImitatedSettings,
    ChatSettings,
    LanguageModelSettings,
    MemorySettings,
    ImitationSettings,
    ShardedConfig,
):
    """Run: what the recipe adds to the plan."""

    shown_first = "env data model expert_share episodes tickets_per_batch updates learning_rate"
    also_for_evaluation = ("device", "torch_threads")

    model: str = ""
    """A folder (also of a run that trained one), an id on the model hub, smollm2, or made:GAME, a small one that knows
    the words of a game. Default: made:ENV; with data smollm2."""
    learner_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that the trainer asks for, each rank of it, where the cluster has any. A fraction shares one."""

    @model_validator(mode="before")
    @classmethod
    def _what_is_not_said(cls, values: SettingValue) -> SettingValue:
        if not isinstance(values, dict):
            return values
        env = values.get("env") or ("" if values.get("data") else DEFAULT_ENV)
        options = values.get("env_options") or {}
        made = f"made:{env}" + (f" {json.dumps(options)}" if options else "")
        return {**values, "env": env, "model": values.get("model") or (made if env else "smollm2")}

    @model_validator(mode="after")
    def _can_imitate(self) -> SFTConfig:
        if self.env and self.data:
            raise ValueError(f"env={self.env!r} and data={self.data!r}: imitate either players or a file")
        if self.data_epochs is not None and not self.data:
            raise ValueError(f"data_epochs={self.data_epochs:g} needs data: games do not repeat themselves")
        for name in ("env_options", "reply_prefix"):
            if self.data and getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r} goes with env, received data={self.data!r}")
        if self.microbatch_tokens < self.max_context_tokens:
            raise ValueError(
                f"microbatch_tokens={self.microbatch_tokens} cannot hold an episode "
                f"(max_context_tokens={self.max_context_tokens})"
            )
        if self.lr_schedule != "constant" and self.settings().plan.updates is None:
            raise ValueError(f"lr_schedule={self.lr_schedule!r} needs updates: over which run shall it fall?")
        return self

    def settings(self) -> Settings:
        limits = [] if self.updates is None else [self.updates]
        if self.episodes is not None:
            limits.append(max(1, self.episodes // self.tickets_per_batch))
        if self.data_epochs is not None and Path(self.data).is_file():  # one that is not there is said elsewhere
            from headway.llm.sft_episodes import chats_of

            limits.append(max(1, int(self.data_epochs * len(chats_of(self)[0])) // self.tickets_per_batch))
        if not limits or limits == [self.updates]:
            return super().settings()
        return self.model_copy(update={"updates": min(limits), "episodes": None, "data_epochs": None}).settings()
