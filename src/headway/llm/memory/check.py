"""What a run of a language model will need, said before anything is loaded; what cannot fit is refused.

The model's config and the settings say what is needed; torch and the operating system say what there is. On Ray the
machines are elsewhere: there the needs are said, and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.core.text_messages import Say, to_stderr
from headway.llm.config import LanguageModelConfig
from headway.llm.memory.model_shape import ModelShape
from headway.llm.memory.model_shapes import find_shape
from headway.llm.memory.planned_run import (
    EvaluatorPlace,
    PlannedRun,
    line_about_pages,
    places_apart,
    places_together,
    tree_tokens,
)
from headway.llm.memory.planned_run_fit_report import Place
from headway.llm.memory.remedies import (
    MemoryReport,
    PlacesFor,
    engine_changes,
    find_remedies,
    is_refused,
    learner_changes,
    roomier_microbatch,
)
from headway.llm.memory.remedies_machine import gpus_here, host_memory
from headway.llm.memory.roles_generation_memory import VLLM_SHARE, Generation, engine_memory
from headway.llm.memory.roles_memory_items import RoleMemory, items_of
from headway.llm.memory.roles_training_memory import Training
from headway.llm.model.types import ModelError
from headway.llm.sft_config import SFTConfig
from headway.runs.config import ConfigError

Checked = LanguageModelConfig | SFTConfig
OF_TRAINING = (
    *("logit_chunk_tokens", "learner_ranks", "lora_rank", "gradient_checkpointing"),
    *("sharding", "parameter_dtype", "optimizer_state", "trainer_attention", "compile_trainer"),
)
"""Settings that a learner's memory depends on, as far as a recipe has them."""


def check_memory(config: Checked, say: Say = to_stderr) -> None:
    """Refuses a run that cannot fit, or says so; silent where it fits."""
    report = memory_of(config)
    if report is None or not report.is_refused:
        return
    if config.memory_check == "warn":
        say(report.refusal())
        return
    raise ConfigError(f"{report.refusal()}\nmemory_check=warn begins all the same")


def memory_of(config: Checked) -> MemoryReport | None:
    """What the run needs; None where it is not asked for, or where the model is not here."""
    if config.memory_check == "off":
        return None
    try:
        shape = find_shape(config.model)
    except (ModelError, ValueError):
        return None  # whoever loads it says what is wrong
    is_cuda = config.device != "cpu" and _sees_gpus()
    run = planned_run(config, shape, "cuda" if is_cuda else "cpu")
    if config.runtime == "ray":
        gpu_run = planned_run(config, shape, "cpu" if config.device == "cpu" else "cuda")
        return MemoryReport(places_apart(gpu_run, None, None))
    gpus = gpus_here(is_used_here=config.runtime in ("inline", "threads")) if is_cuda else ()
    host = host_memory()
    places = places_together(run, gpus, host)

    def places_for(change: Mapping[str, object]) -> list[Place]:
        return places_together(run.changed(change), gpus, host)

    if not is_refused(places):
        return MemoryReport(places, quicker=_quicker(config, places_for) if gpus else "")
    why = line_about_pages(run, places)
    changes = learner_changes(
        microbatch_tokens=run.training.microbatch_tokens,
        least_tokens=_least_microbatch(config),
        learner_ranks=run.training.learner_ranks,
        max_ranks=max(1, len(gpus)),
        is_sharded=run.training.sharding != "replicas",
    )
    if run.generation is not None:
        generation = run.generation
        changes += engine_changes(
            engine_rows=generation.engine_rows,
            is_vllm=generation.engine == "vllm",
            share=generation.gpu_memory_utilization,
            wants_vllm=bool(why),
            may_share=run.evaluator == "own" and not config.evaluate_in_background,
        )
    known = {*type(config).model_fields, "gpu_memory_utilization"}
    return MemoryReport(places, find_remedies(places_for, changes, known), why)


def planned_run(config: Checked, shape: ModelShape, device: str) -> PlannedRun:
    """The run that these settings ask for."""
    known: dict[str, Any] = {name: getattr(config, name) for name in OF_TRAINING if hasattr(config, name)}
    prompt, reply, group = lengths_of(config)
    batch = config.tickets_per_batch * (prompt + group * reply)
    microbatch = max(_least_microbatch(config), min(config.microbatch_tokens, batch))
    critic = getattr(config, "critic", "none") if getattr(config, "estimator", "") == "gae" else "none"
    training = Training(
        microbatch_tokens=microbatch,
        row_tokens=min(microbatch, tree_tokens(shape, prompt, reply, group)),
        has_reference=bool(getattr(config, "kl_weight", 0)),
        critic=critic,
        ranks_per_node=getattr(config, "ranks_of_a_model", None) or 1,
        device=device,
        max_lead=1.0 if config.max_lead == "auto" else config.max_lead,
        check_engine_every=getattr(config, "check_engine_every", 0),
        **known,
    )
    evaluator: EvaluatorPlace = "own" if config.evaluate_every else "none"
    if isinstance(config, SFTConfig):
        return PlannedRun(shape, training, None, 0, "none", _likelihood(config, shape, device))
    if getattr(config, "evaluator", "own") == "engine" and evaluator == "own":
        evaluator = "engine"
    options = config.vllm_options
    generation = Generation(
        prompt_tokens=prompt,
        context_tokens=config.context_tokens,
        engine=config.engine,
        engine_rows=config.engine_rows,
        group_size=group,
        tensor_parallel_size=int(options.get("tensor_parallel_size", 1)),
        gpu_memory_utilization=float(options.get("gpu_memory_utilization", VLLM_SHARE)),
        device=device,
    )
    return PlannedRun(shape, training, generation, config.collectors, evaluator)


def lengths_of(config: Checked) -> tuple[int, int, int]:
    """Tokens of the longest prompt and reply, and replies to each: of episodes, what comes first and what follows."""
    if isinstance(config, SFTConfig):
        return 1, max(1, config.max_context_tokens - 1), 1
    episode = getattr(config, "max_episode_tokens", None)
    reply = int(getattr(config, "max_tokens", 1) if episode is None else min(episode, config.context_tokens - 1))
    return max(1, config.context_tokens - reply), reply, config.group_size


def _least_microbatch(config: Checked) -> int:
    return config.max_context_tokens if isinstance(config, SFTConfig) else config.context_tokens


def _likelihood(config: SFTConfig, shape: ModelShape, device: str) -> tuple[RoleMemory, ...]:
    """The evaluator of imitation has a model in float32, and an engine where it plays."""
    if not config.evaluate_every:
        return ()
    held = items_of(("weights to score with", 4 * shape.num_parameters))
    if not config.env or not config.eval_games:
        return (RoleMemory("evaluator", held),)
    context = config.max_context_tokens
    rows = Generation(prompt_tokens=context, context_tokens=context, engine_rows=128, device=device)
    engine = engine_memory(shape, rows, "evaluator")
    return (RoleMemory("evaluator", (*held, *engine.held), engine.moments),)


def _quicker(config: Checked, places_for: PlacesFor) -> str:
    """A line where the learner's passes are so small that a GPU waits for its host between them, and need not be."""
    prompt, reply, group = lengths_of(config)
    batch = config.tickets_per_batch * (prompt + group * reply) // config.learner_ranks
    found = roomier_microbatch(places_for, config.microbatch_tokens, batch)
    if found is None:
        return ""
    few = f"--microbatch_tokens {found}: a pass of {config.microbatch_tokens} tokens is small for a GPU"
    return f"quicker, with room for it: {few}, what is learned is the same"


def _sees_gpus() -> bool:
    import torch

    return torch.cuda.is_available()
