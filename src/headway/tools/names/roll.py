"""The names of ROLL's pipeline for agents, as rows: theirs, ours, an example, how it is translated, what else decides.

    async_generation_ratio: 0.5                    -->   max_lead: 0.5     (said flat: `flat.py`)
    actor_infer: {generating_args: {top_k: 100}}   -->   top_k: 100
    actor_train: {device_mapping: list(range(4))}  -->   learner_ranks: 4 on Ray; elsewhere nothing, with the reason

`PATHS` are translated, `WITHOUT_EFFECT` are accepted and said to have none. Names without a dot stand at the top of
their file; they are theirs only in the recipe for agents, and only where we have no setting of that name. Others,
in `flat.py`, mean the same in several systems.

`headway explain --config FILE` prints the translation of a file, `docs/guides/roll.md` the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headway.tools.names import roll_episodes as played
from headway.tools.names import roll_learning as learned
from headway.tools.names import rows_gpu_places as gpus
from headway.tools.names.roll_episodes import ENVS, GENERATE, INFER, TRAIN, VAL
from headway.tools.names.rows import KnownPath, by_path, only, row

_GAE = (learned.ESTIMATOR,)
_NOT_HERE = (
    ("advantage_clip", "advantages are not clipped here", ()),
    ("reward_clip", "rewards are not clipped here: let the environment say what a step is worth", ()),
    ("whiten_rewards", "rewards are not whitened here; whiten_advantages is", (False,)),
    ("use_reward_scaling", "rewards are not scaled here", (False,)),
    ("use_reward_norm", "rewards are not normalized here; adv_estimator says how they are compared", (False,)),
    ("add_len_reward", "a reward comes from the environment alone", (False,)),
    ("target_kl", "the weight of the penalty stays as it is: kl_loss_coef or init_kl_coef", ()),
    ("l2", "weight_decay says it", (0, 0.0)),
    ("resume_from_checkpoint", "`headway resume RUN` goes on from the last checkpoint", (False,)),
    (f"{ENVS}.format_penalty", "a reply that cannot be read costs what the environment says", (0, 0.0)),
    (f"{ENVS}.group_filter_cls", "a filter is a function here: filter=file.py:function", ()),
    ("train_infer_correction.is_weight.enabled", "correction says it: docs/corrections.md", (False,)),
)
_ONLY = (
    (f"{GENERATE}.num_beams", (1,), "replies are sampled"),
    (f"{GENERATE}.do_sample", (True,), "replies to train on are sampled"),
    (f"{GENERATE}.repetition_penalty", (1.0, 1), "a token is drawn with the policy's own probability"),
    (f"{TRAIN}.model_args.lora_target", ("all-linear",), "adapters go to every linear layer"),
    ("kl_penalty", ("kl", "k3"), "the k3 estimate is used"),
    ("norm_mean_type", ("group",), "episodes of one game are compared"),
    ("norm_std_type", ("group",), "episodes of one game are compared"),
    ("ratio_type", ("token",), "correction says what is compared: gspo compares sequences"),
)

PATHS = by_path(
    row("pretrain", "model", "some/model"),
    row(
        "reward_pretrain", "(rewards come from the environment)", "some/model", learned.reward_model, *_GAE, "pretrain"
    ),
    row("track_with", "use_wandb, tensorboard", "tensorboard", learned.tracker),
    row("tracker_kwargs.project", "wandb_project", "agents"),
    row("max_ckpt_to_keep", "keep_checkpoints", 2),
    # how long, how many
    row(
        played.SEQUENCE,
        "max_context_tokens, max_episode_tokens, microbatch_tokens",
        8192,
        played.lengths,
        played.PER_DEVICE,
    ),
    row(
        played.RESPONSE,
        "max_context_tokens, max_episode_tokens, microbatch_tokens (with prompt_length)",
        4096,
        played.prompt_length,
        *played.ALL_LENGTHS,
        played.PER_DEVICE,
    ),
    row(
        played.PROMPT,
        "max_context_tokens, max_episode_tokens, microbatch_tokens (with response_length)",
        2048,
        played.prompt_length,
        *played.ALL_LENGTHS,
        played.PER_DEVICE,
    ),
    row(played.BATCH, "tickets_per_batch (over group_size)", 64, played.episodes, "group_size", played.GROUP_SIZE),
    row(
        played.ACTIONS,
        "max_turns (unless the environment says it)",
        10,
        played.turns,
        played.TAGS,
        f"{played.CUSTOM}.*",
    ),
    row(
        played.STEP_TOKENS,
        "max_turn_tokens",
        128,
        played.turn_tokens,
        played.NEW_TOKENS,
        played.TAGS,
        f"{played.CUSTOM}.*",
    ),
    row(played.VAL_BATCH, "eval_games (over val_env_manager.group_size)", 64, played.evaluation, played.VAL_GROUP),
    # what is learned
    row(
        learned.ESTIMATOR,
        "estimator, credit (gigpo)",
        "grpo",
        learned.estimator,
        learned.WHITEN,
        learned.METHOD,
    ),
    row(
        learned.METHOD,
        "estimator (mean: dr_grpo), credit (gigpo)",
        "mean_std",
        learned.normalization,
        learned.ESTIMATOR,
        learned.WHITEN,
    ),
    row(learned.GROUPING, "(only traj_group_id)", "traj_group_id", learned.grouping, learned.ESTIMATOR),
    row("gamma", "gae_gamma (with gae)", 1.0, learned.with_gae("gae_gamma", (1, 1.0)), *_GAE),
    row("lambd", "gae_lambda (with gae)", 0.95, learned.with_gae("gae_lambda"), *_GAE),
    row("entropy_loss_coef", "entropy_weight", 0.0),
    row(learned.CLIP, "clip_low, clip_high", 0.2, learned.clip, *learned.ALL_CLIPS),
    row(learned.USE_RANGE, "clip_low, clip_high", True, learned.clip, *learned.ALL_CLIPS),
    row(learned.LOW, "clip_low, clip_high (with use_pg_clip_range)", 0.2, learned.clip, *learned.ALL_CLIPS),
    row(learned.HIGH, "clip_low, clip_high (with use_pg_clip_range)", 0.28, learned.clip, *learned.ALL_CLIPS),
    row(learned.DUAL, "dual_clip (1 + 2 * pg_clip)", True, learned.dual_clip, learned.CLIP),
    row(learned.USE_KL, "kl_weight (0 when off)", True, learned.kl, *learned.ALL_KL_PATHS),
    row(learned.KL, "kl_weight (unless use_kl_loss is off)", 0.001, learned.kl, *learned.ALL_KL_PATHS),
    row(learned.TOKEN_KL, "kl_weight, kl_in_reward", False, learned.kl, *learned.ALL_KL_PATHS),
    row(learned.INIT_KL, "kl_weight, kl_in_reward (with add_token_level_kl)", 0.0, learned.kl, *learned.ALL_KL_PATHS),
    # the trainer
    row(f"{TRAIN}.training_args.learning_rate", "learning_rate", 1e-6),
    row(f"{TRAIN}.training_args.weight_decay", "weight_decay", 0.0),
    row(f"{TRAIN}.training_args.lr_scheduler_type", "lr_schedule", "constant"),
    row(f"{TRAIN}.training_args.adam_beta1", "adam_beta1", 0.9),
    row(f"{TRAIN}.training_args.adam_beta2", "adam_beta2", 0.999),
    row(f"{TRAIN}.training_args.adam_epsilon", "adam_eps", 1e-8),
    row(
        played.PER_DEVICE,
        "num_minibatches, microbatch_tokens",
        1,
        played.per_device,
        *played.ALL_BATCH_PATHS,
        *played.ALL_LENGTHS,
    ),
    row(played.ACCUMULATION, "num_minibatches", 16, played.minibatches, *played.ALL_BATCH_PATHS),
    row(played.WARMUP, "warmup_updates", 10, played.warmup, played.EPOCHS, *played.ALL_BATCH_PATHS),
    row(
        gpus.TRAIN_DEVICES,
        "learner_ranks (on Ray)",
        "list(range(0,4))",
        gpus.train_devices,
        gpus.RUNTIME,
        gpus.INFER_DEVICES,
        *gpus.CUTS,
    ),
    row(
        gpus.INFER_DEVICES,
        "collectors, engine_gpus (on Ray; over tensor_parallel_size)",
        "list(range(4,8))",
        gpus.infer_devices,
        gpus.RUNTIME,
        gpus.INFER_PARTS,
        gpus.PER_NODE,
    ),
    row(
        gpus.TRAIN_STRATEGY,
        "sharding (full, over several ranks on Ray)",
        "fsdp2_train",
        gpus.train_strategy,
        gpus.RUNTIME,
        gpus.TRAIN_DEVICES,
        gpus.ROLL_FSDP_SIZE,
    ),
    row(
        gpus.ROLL_FSDP_SIZE,
        "sharding, shard_ranks (hybrid, where fewer than all; on Ray)",
        4,
        gpus.train_fsdp_size,
        gpus.RUNTIME,
        gpus.TRAIN_DEVICES,
    ),
    row(
        f"{TRAIN}.model_args.disable_gradient_checkpointing",
        "gradient_checkpointing (not)",
        False,
        learned.gradient_checkpointing,
    ),
    row(f"{TRAIN}.model_args.model_name_or_path", "model", "some/model"),
    row(f"{TRAIN}.model_args.lora_rank", "lora_rank", 16),
    row(f"{TRAIN}.model_args.lora_alpha", "lora_alpha", 32),
    row(
        "critic.training_args.learning_rate",
        "critic_learning_rate (with gae)",
        1e-5,
        learned.with_gae("critic_learning_rate"),
        *_GAE,
    ),
    # the engine
    row(
        played.NEW_TOKENS,
        "max_turn_tokens",
        1024,
        played.turn_tokens,
        played.STEP_TOKENS,
        played.TAGS,
        f"{played.CUSTOM}.*",
    ),
    row(f"{GENERATE}.temperature", "temperature", 0.99),
    row(f"{GENERATE}.top_p", "top_p", 0.99),
    row(f"{GENERATE}.top_k", "top_k (-1: 0, all)", 100, learned.top_k),
    row(f"{GENERATE}.stop_strings", "stop", ["</answer>"], learned.stop),
    row(f"{GENERATE}.num_return_sequences", "(only 1)", 1, learned.replies),
    row(
        learned.ENGINE, "engine (hf_infer: transformers; vllm needs a GPU)", "vllm", learned.engine, "engine", "device"
    ),
    KnownPath(
        f"{learned.ENGINE_CONFIG}.*",
        "vllm_options (vllm)",
        learned.stop,
        0.8,
        (learned.ENGINE, "engine", "device", f"{learned.ENGINE_CONFIG}.*"),
        learned.engine_option,
    ),
    # environments
    row(played.GROUP_SIZE, "group_size", 8),
    row(f"{ENVS}.group_size_redundancy", "redundancy", 2),
    row(f"{ENVS}.num_env_groups", "lanes", 8),
    row(played.TAGS, "(which of custom_envs is env)", ["FrozenLake"], played.tags, "env", f"{played.CUSTOM}.*"),
    row(played.VAL_GROUP, "eval_samples, eval_games (with val_batch_size)", 1, played.evaluation, played.VAL_BATCH),
    row(f"{VAL}.generating_args.temperature", "eval_temperature", 0.0),
    row(f"{VAL}.generating_args.top_p", "eval_top_p", 1.0),
    KnownPath(
        f"{played.CUSTOM}.*",
        "env, env_options, max_turns, max_turn_tokens, system_prompt, max_steps_under_way (of the one in tags)",
        learned.stop,
        "FrozenLake",
        (played.TAGS, played.NEW_TOKENS, played.STEP_TOKENS, "env", f"{played.CUSTOM}.*"),
        played.custom_env,
    ),
    *(KnownPath(path, f"(only {allowed[0]})", only(*allowed, why=why), allowed[0]) for path, allowed, why in _ONLY),
    *(KnownPath(path, "(off)", learned.never(why, *off), False) for path, why, off in _NOT_HERE),
)

_ROLES = "engine, learner and evaluations are roles of their own, placed by the runtime (headway run --runtime ray)"
_FOLDER = "a run has a folder of its own under --runs"
_MEMORY = "the learner keeps its state where it computes"
_LOGS = "metrics.jsonl, samples.jsonl and report.html are always written"
_PRECISION = "bfloat16 on a GPU, float32 on a CPU"
_TEMPLATE = "a model has its own chat template (chat_template takes another)"
_ANCHOR = "correction says which log-probabilities are the anchor: docs/corrections.md"
_SAID = "environments are told what they are by env_options"

WITHOUT_EFFECT: dict[str, str] = {
    "logging_steps": "metrics_interval_s says how often metrics are written",
    "logging_dir": _FOLDER,
    "output_dir": _FOLDER,
    "base_dir": _FOLDER,
    "model_name": _FOLDER,
    "checkpoint_config.*": _FOLDER,
    "render_save_dir": _LOGS,
    "rollout_dump_dir": _LOGS,
    "profiler_timeline": _LOGS,
    "profiler_memory": _LOGS,
    "profiler_output_dir": _LOGS,
    "length_profiler_dir": _LOGS,
    "report_length_and_rewards": _LOGS,
    "tracker_kwargs.*": "logs are in the run's folder; wandb_project and wandb_mode say the rest",
    "system_envs.*": "variables are set where the command is started",
    "num_gpus_per_node": _ROLES,
    "num_nodes": _ROLES,
    "local_rank": _ROLES,
    "rpc_timeout": "collect_deadline_s, learn_deadline_s and others bound every call",
    "generate_opt_level": "requests are always scheduled one by one",
    "max_running_requests": "engine_rows says how many replies are generated at once",
    "is_num_return_sequences_expand": "a first message is read once for its group",
    "is_use_additional_prompts": "redundancy says how many more episodes begin",
    "max_additional_running_prompts": "redundancy says how many more episodes begin",
    "is_offload_states": _MEMORY,
    "is_offload_optimizer_states_in_train_step": _MEMORY,
    "model_update_buffer_size_mb": "weights are handed on by the runtime",
    "model_download_type": "a model is read from where it is",
    "batch_adjust_mode": "a batch is always as large as it was asked for",
    "enable_reference": "the reference is there where a penalty needs it",
    "enable_old_logprobs_recompute": _ANCHOR,
    "force_disable_old_logprobs_recompute": _ANCHOR,
    "kl_horizon": "the weight of the penalty stays as it is",
    "val_prompt_length": "held-out games have the same limits",
    "val_sequence_length": "held-out games have the same limits",
    "env_manager_cls": _ROLES,
    "all_response_pattern": "an environment reads replies itself",
    "action_pattern": "an environment reads replies itself",
    "think_action_pattern": "an environment reads replies itself",
    "sokoban_format_penalty": _SAID,
    "frozen_format_penalty": _SAID,
    "agent_system_template": "custom_envs says what an environment is told, or system_prompt",
    "agent_template": "what the environment says is said as it is",
    "single_prompt_agent_system_template": "custom_envs says what an environment is told, or system_prompt",
    "single_prompt_agent_template": "what the environment says is said as it is",
    "train_infer_correction.*": "correction says it: docs/corrections.md",
    f"{TRAIN}.model_args.*": "a model is loaded as its own config says",
    f"{TRAIN}.model_args.dtype": _PRECISION,
    f"{TRAIN}.training_args.*": "gradients are summed over the whole minibatch, whatever its microbatches",
    f"{TRAIN}.strategy_args.*": "the learner is one process, or learner_ranks of them",
    f"{TRAIN}.infer_batch_size": "microbatch_tokens says how much is computed at once",
    f"{TRAIN}.data_args.*": _TEMPLATE,
    f"{TRAIN}.*": _ROLES,
    f"{INFER}.model_args.*": "an engine has the learner's model",
    f"{INFER}.model_args.dtype": _PRECISION,
    f"{GENERATE}.include_stop_str_in_output": "a stop string stays in the reply",
    f"{INFER}.data_args.*": _TEMPLATE,
    f"{INFER}.infer_batch_size": "engine_rows says how many replies are generated at once",
    f"{INFER}.*": _ROLES,
    "reference.*": "the reference is computed with the learner's own settings",
    f"{ENVS}.max_env_num_per_worker": "env_stepping says in how many threads or processes environments step",
    f"{ENVS}.num_groups_partition": "one environment is trained on: every group is of it",
    f"{ENVS}.max_traj_per_env": "an episode begins when its ticket starts",
    f"{ENVS}.*": _ROLES,
    f"{VAL}.*": "held-out games of the environment that is trained on are evaluated; env_stepping is the same",
}
"""Accepted, said to have no effect when the run begins, and why. `.*` is everything below."""

SINGLE = {path for path in (*PATHS, *WITHOUT_EFFECT) if "." not in path}
"""Names at the top of their file."""

OUR_WORDS: dict[str, tuple[str, ...]] = {
    "engine": (learned.ENGINE,),
    "device": (),
    gpus.RUNTIME: (),
    "env": (),
    "group_size": (played.GROUP_SIZE,),
    played.EPOCHS: (),
    learned.WHITEN: (),
}
"""Settings that decide what some of their names mean, and their names for these."""


def is_file(values: Mapping[str, object]) -> bool:
    """Is this the file of a pipeline of theirs?"""
    return any(str(name).partition(".")[0] in (TRAIN, INFER, ENVS) for name in values)


def is_recipe_for(fields: Collection[str]) -> bool:
    """Are names at the top of a file theirs in a recipe with these settings?"""
    return "max_turn_tokens" in fields
