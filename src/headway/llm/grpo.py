"""GRPO and its relatives: a language model learns to answer questions that a rule can check.

    headway run grpo --task larger_than
    headway run grpo --task arithmetic --max_lead 1 --correction token_is
    headway run grpo --model path/to/a/model --task jsonl:prompts.jsonl --reward rewards.py:score

One ticket is one prompt with a group of replies. The engine generates for up to `lanes` tickets at once; the trainer
learns from `tickets_per_batch` groups per update and publishes; the engine takes the new weights when it has drained,
or in the middle of its replies (`on_publish`). Every token carries the version that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.text_messages import to_stderr
from headway.llm.build_language_model import build_engine, check_engine, check_model, learner_of
from headway.llm.build_trained_models import export_model, with_gpus
from headway.llm.collector import GroupCollector, GroupSettings
from headway.llm.engine.protocol_engine import Engine, Sampling
from headway.llm.evaluator_answers import AnswerEvaluator
from headway.llm.grpo_config import GRPOConfig
from headway.llm.memory.check import check_memory
from headway.llm.memory.check import memory_of as memory
from headway.llm.policy_language_policy import LanguagePolicy
from headway.llm.policy_trained_language_policies import language_policy
from headway.llm.prompts import Encoder, build_task, fitting_task
from headway.llm.tasks.rewards import overlong_penalty
from headway.llm.tasks.tasks import Generated, Task
from headway.llm.train.grpo_learner_learner import GRPOLearner
from headway.runs.recipes_package import Exported

__all__ = ["CONFIG", "GRPOConfig", "build_engine", "export", "load_policy", "memory", "stations"]

CONFIG = GRPOConfig


def stations(
    config: GRPOConfig, *, collector: type[GroupCollector] = GroupCollector, learner: type[GRPOLearner] = GRPOLearner
) -> Stations:
    """Everything wired: one line an edge. `collector` and `learner` may be classes of your own, derived from these."""
    if config.runtime == "ray":  # the model may be elsewhere
        build_task(config)  # what cannot be is said here, not by a role that starts
    else:
        check_model(config)
        fitting_task(config, say=to_stderr)
    check_engine(config)
    check_memory(config)
    engine = with_gpus(config, config.engine_gpus)
    trainer = with_gpus(config, config.learner_gpus, config.learner_ranks)
    return Stations(
        collector=partial(_collector, config, collector),
        learner=learner_of(config, learner, trainer),
        evaluator=partial(_evaluator, config),
        evaluator_of=partial(_borrowing_evaluator, config) if config.evaluator == "engine" else None,
        collector_placement=engine,
        learner_placement=trainer,
        evaluator_placement=engine,
    )


def _task_of_a_role(config: GRPOConfig) -> tuple[Task, int]:
    was_checked = config.on_long_prompt == "error" and config.runtime != "ray"
    return (build_task(config), 0) if was_checked else fitting_task(config)


def _collector(config: GRPOConfig, kind: type[GroupCollector], number: int) -> GroupCollector:
    penalty = None
    if config.overlong_tokens:
        penalty = partial(overlong_penalty, max_tokens=config.max_tokens, interval=config.overlong_tokens)
    task, left_out = _task_of_a_role(config)
    settings = GroupSettings(
        size=config.group_size,
        sampling=_sampling(config),
        filter_silent=config.filter_silent,
        length_penalty=penalty,
        deadline_s=config.generation_deadline_s,
        on_deadline=config.on_generation_deadline,
        drop_long=config.on_long_prompt == "drop",
        shown=Fraction(config.log_samples, config.tickets_per_batch),
        left_out=left_out,
        system_prompt=config.system_prompt,
        pool=config.pool_settings(config.collect_deadline_s),
    )
    return kind(partial(build_engine, config, settings.sampling), task, Encoder(config), settings)


def _sampling(config: GRPOConfig) -> Sampling:
    return Sampling(config.temperature, config.top_k, config.top_p, config.max_tokens, stop=config.stop)


def _eval_sampling(config: GRPOConfig) -> Sampling:
    return Sampling(config.eval_temperature, top_p=config.eval_top_p, max_tokens=config.max_tokens, stop=config.stop)


def _borrowing_evaluator(config: GRPOConfig, collector: GroupCollector) -> AnswerEvaluator:
    return _evaluator(config, lambda: collector.engine)


def _evaluator(config: GRPOConfig, make_engine: Callable[[], Engine] | None = None) -> AnswerEvaluator:
    sampling = _eval_sampling(config)
    task = _task_of_a_role(config)[0]
    evaluator = AnswerEvaluator(
        make_engine or partial(build_engine, config, sampling),
        task,
        Encoder(config),
        sampling=sampling,
        prompts=config.eval_prompts,
        samples=config.eval_samples,
        ks=sorted(set(config.eval_ks) or {1, config.eval_samples}),
        passes_at=config.eval_passes_at,
        drop_long=config.on_long_prompt == "drop",
        num_shown=config.log_eval_samples,
        system_prompt=config.system_prompt,
        pool=config.pool_settings(config.evaluate_deadline_s),
    )
    if isinstance(task.held_out, Generated) and evaluator.num_prompts < config.eval_prompts:
        to_stderr(
            f"task {config.task} holds out {evaluator.num_prompts} different prompts, fewer than "
            f"eval_prompts={config.eval_prompts}: evaluations ask those"
        )
    return evaluator


# -- for others -------------------------------------------------------------------------------------


def export(config: GRPOConfig, kept: Kept, folder: Path, *, adapters: bool = False) -> Exported:
    """The model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    return export_model(config, kept, folder, facts={"task": config.task}, adapters=adapters)


def load_policy(config: GRPOConfig, kept: Kept) -> LanguagePolicy:
    """The model with these weights, to ask elsewhere."""
    return language_policy(config, kept, "grpo", config.task, _eval_sampling(config), context=config.context_tokens)
