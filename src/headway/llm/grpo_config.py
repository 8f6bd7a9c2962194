"""The settings of GRPO: task, prompts and evaluation, beside those of the language model and of the learner."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headway.coordinator.settings import Settings
from headway.core.types_opaque import JsonObject
from headway.llm.config import ComparisonSettings, LanguageModelConfig
from headway.llm.grpo_config_reward_settings import RewardSettings
from headway.llm.prompts import build_task, fitting_task
from headway.llm.train.advantages import GAE
from headway.runs.config import with_defaults
from headway.runs.config_shared_settings import SettingsGroup


class TaskSettings(SettingsGroup):
    """Task: what is asked, and how."""

    task: str = "larger_than"
    """What is asked: larger_than, arithmetic, gsm8k:FOLDER, reasoning_gym:DATASET, jsonl:FILE, parquet:FILE or
    datasets:FOLDER_OR_ID."""
    task_options: JsonObject = Field(default_factory=dict)
    """Settings of the task, like {level: 2} for arithmetic."""


class ReplySettings(ComparisonSettings):
    """Replies: how groups are made."""

    overlong_tokens: int = Field(default=0, ge=0)
    """Over the last so many tokens before max_tokens the reward falls by up to 1; 0: no penalty."""


class PromptSettings(SettingsGroup):
    """Engine: what generates."""

    max_prompt_tokens: int = Field(default=256, ge=1)
    """Room for the longest prompt."""
    on_long_prompt: Literal["error", "drop"] = "error"
    """A prompt that needs more is refused, before the first one is asked; or left out, which is said and counted.
    Prompts that are made on demand are looked at when their turn comes."""
    generation_deadline_s: float | None = Field(default=None, gt=0)
    """A group that is not whole in this time is ended, in the engine too. Raising it waits longer for stragglers; None:
    as long as they take."""
    on_generation_deadline: Literal["fail", "cut"] = "fail"
    """What such a group is then: failed (attempts_on_error and on_failure say what follows), or what there is of it. A
    reply cut short is scored as it stands, and a group with a reply that has no token yet fails."""


class AnswerSettings(SettingsGroup):
    """Evaluation: held-out prompts and their answers."""

    eval_prompts: int = Field(default=32, ge=1)
    """Held-out prompts per evaluation."""
    eval_samples: int = Field(default=1, ge=1)
    """Answers per prompt; more than one for pass@k."""
    eval_temperature: float = Field(default=0.0, ge=0)
    """0: the most likely token. Needs to be above 0 with several answers."""
    eval_top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the most likely tokens that together have this probability."""
    eval_ks: tuple[int, ...] = ()
    """For which k the share of prompts with a pass among k answers is reported (pass@k). Empty: 1 and eval_samples."""
    eval_passes_at: float = 1.0
    """A reward of at least this is a pass. Lower it where rewards are graded."""


@with_defaults(
    updates=40,
    evaluate_every=10,
    save_every=10,
    learning_rate=1e-5,
    microbatch_tokens=1024,
    tickets_per_batch=8,
    lanes=8,
)
class GRPOConfig(AnswerSettings, PromptSettings, ReplySettings, RewardSettings, TaskSettings, LanguageModelConfig):
    """Run: what the recipe adds to the plan."""

    also_for_evaluation = (*LanguageModelConfig.also_for_evaluation, *RewardSettings.for_evaluation)

    shown_first = "model task group_size tickets_per_batch max_tokens max_lead updates learning_rate"

    evaluator: Literal["own", "engine"] = "own"
    """Who answers held-out prompts: an engine of its own, or the first collector's while the run pauses for it, which
    saves an engine's memory, or its GPUs."""
    data_epochs: float | None = Field(default=None, gt=0)
    """Stop after this many passes over the training prompts, if that is earlier (updates=null: only then)."""

    @model_validator(mode="after")
    def _a_fall_has_an_end(self) -> GRPOConfig:
        if self.lr_schedule != "constant" and self.updates is None and self.data_epochs is None:
            raise ValueError(f"lr_schedule={self.lr_schedule!r} needs updates: over which run shall it fall?")
        return self

    @model_validator(mode="after")
    def _can_learn(self) -> GRPOConfig:
        if self.estimator not in ("reinforce_plus_plus", GAE) and self.group_size == 1:
            raise ValueError(f"estimator {self.estimator!r} compares replies to one prompt: group_size must be >= 2")
        if self.microbatch_tokens < self.context_tokens:
            raise ValueError(
                f"microbatch_tokens={self.microbatch_tokens} cannot hold a prompt and a reply "
                f"(max_prompt_tokens + max_tokens = {self.context_tokens})"
            )
        if self.eval_samples > 1 and self.eval_temperature == 0:
            raise ValueError("eval_samples > 1 needs eval_temperature > 0: the most likely answer is always the same")
        if self.eval_top_p < 1 and self.eval_temperature == 0:
            raise ValueError("eval_top_p < 1 needs eval_temperature > 0: the most likely token is always among them")
        for k in self.eval_ks:
            if not 1 <= k <= self.eval_samples:
                raise ValueError(
                    f"eval_ks: pass@{k} needs at least {k} answers, received eval_samples={self.eval_samples}"
                )
        if self.overlong_tokens > self.max_tokens:
            raise ValueError(f"overlong_tokens={self.overlong_tokens} must not exceed max_tokens={self.max_tokens}")
        version = self.tickets_per_batch * self.group_size * self.publish_every
        self.evaluate_rarely(self.eval_prompts * self.eval_samples, version)
        return self

    @model_validator(mode="after")
    def _can_share_an_engine(self) -> GRPOConfig:
        if self.evaluator == "engine" and (self.evaluate_in_background or self.evaluation_waits_for != "landed"):
            raise ValueError(
                "evaluator='engine' needs evaluations that pause the run and let what is in flight land: "
                "evaluate_in_background=false, evaluation_waits_for=landed"
            )
        return self

    @model_validator(mode="after")
    def _can_generate(self) -> GRPOConfig:
        limit = self.generation_deadline_s
        if limit is not None and limit >= self.collect_deadline_s:
            raise ValueError(
                f"generation_deadline_s={limit:g} must be below collect_deadline_s={self.collect_deadline_s:g}, "
                "or the collector is restarted first"
            )
        return self

    @model_validator(mode="after")
    def _can_be_scored(self) -> GRPOConfig:
        self.check_rewards(by_option="reward" in self.task_options, collect_deadline_s=self.collect_deadline_s)
        return self

    def idle(self) -> dict[str, str]:
        return {
            name: f"{name}={getattr(self, name):g} has no effect in grpo: a reply is one turn, and nothing follows it"
            for name in ("turn_gamma", "step_reward_gamma")
            if getattr(self, name) != type(self).model_fields[name].default
        }

    @property
    def all_task_options(self) -> JsonObject:
        """task_options, and what a recipe has as settings of its own."""
        return self.task_options

    @property
    def context_tokens(self) -> int:
        return self.max_prompt_tokens + self.max_tokens

    def settings(self) -> Settings:
        if self.data_epochs is None:
            return super().settings()
        task = build_task(self) if self.on_long_prompt == "error" else fitting_task(self)[0]
        updates = max(1, int(self.data_epochs * len(task)) // self.tickets_per_batch)
        if self.updates is not None:
            updates = min(updates, self.updates)
        return self.model_copy(update={"updates": updates, "data_epochs": None}).settings()
