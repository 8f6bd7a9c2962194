"""The names of verl and its relatives, as rows: their name, ours, an example, how it is translated, what else decides.

    async_training: {staleness_threshold: 3}      -->   max_lead: 3
    actor_rollout_ref: {rollout: {n: 8}}          -->   group_size: 8
    trainer: {nccl_timeout: 600}                  -->   nothing, with the reason, said when the run begins

`PATHS` are translated, `WITHOUT_EFFECT` are accepted and said to have none. A path in neither is refused with the
nearest one. A name that ends in `.*` is all that is below it. Some mean something only together
(`data.train_batch_size` and `actor.ppo_mini_batch_size` make a number of minibatches): those name what else they read.

`headway explain --config FILE` prints the translation of a file, `docs/guides/llm.md` the table.
"""

from __future__ import annotations

from headway.tools.names import rows_gpu_places as gpus
from headway.tools.names import verl_meanings as by
from headway.tools.names import verl_meanings_verl_data as data_and_rewards
from headway.tools.names.flat import KNOWN_NAMES
from headway.tools.names.rows import KnownPath, by_path, only, row
from headway.tools.names.verl_meanings import ROLLOUT
from headway.tools.names.verl_meanings_verl_corrections import CLIP, CORRECTION_PATHS, NEW

ACTOR, MODEL, VAL = "actor_rollout_ref.actor", "actor_rollout_ref.model", f"{ROLLOUT}.val_kwargs"
EXPERTS = f"{ACTOR}.megatron.override_transformer_config"
CLIPS = (CLIP, f"{CLIP}_low", f"{CLIP}_high")
ALL_BATCH_PATHS = (by.BATCH, by.FETCHES, by.REQUIRED, by.MINI)
CORRECTION_EXAMPLES = (
    *("token", 2.0, "geometric", 1.01, 0.99, True, True, 2.0, 0.5, "token", "truncate", 2.0, "cispo"),
    False,
)
_BY_ROWS = "the engine in this process sizes itself by engine_rows, max_prompt_tokens and max_tokens"
VLLM_ROWS: tuple[tuple[str, str, tuple[object, ...], object, str], ...] = (
    (f"{ROLLOUT}.gpu_memory_utilization", _BY_ROWS, (), 0.4, ""),
    (f"{ROLLOUT}.max_num_batched_tokens", _BY_ROWS, (), 8192, ""),
    (f"{ROLLOUT}.enforce_eager", "its decoders choose CUDA graphs themselves", (), False, ""),
    (f"{ROLLOUT}.enable_chunked_prefill", "a prompt is read in one piece", (), True, ""),
    (f"{ROLLOUT}.enable_prefix_caching", "a prompt is read once for all of its replies", (), True, ""),
    (f"{ROLLOUT}.dtype", "bfloat16 on a GPU, float32 on a CPU", (), "bfloat16", ""),
    (by.PARTS, "its model is not spread over GPUs", (1,), 1, ", engine_gpus; else only 1"),
    (f"{by.VLLM_KWARGS}.*", "they are for vLLM alone", (), 0, ""),
)
ASYNC = (
    *("staleness_threshold", "max_staleness_allowed", "max_queue_size", "batch_timeout", "generation_timeout"),
    *("batch_generation_interval", "max_sync_retries", "sync_timeout", "sync_retry_delay"),
)

PATHS = by_path(
    *(
        KnownPath(f"async_training.{name}", ", ".join(known.translate(known.example)), by.flat(name), known.example)
        for name, known in KNOWN_NAMES.items()
        if name in ASYNC
    ),
    KnownPath(by.FETCHES, "tickets_per_batch (times train_batch_size)", by.batch, 1, ALL_BATCH_PATHS),
    KnownPath(by.REQUIRED, "tickets_per_batch (times train_batch_size)", by.batch, 1, ALL_BATCH_PATHS),
    row("async_training.trigger_parameter_sync_step", "publish_every", 1),
    KnownPath(
        "async_training.partial_rollout",
        "on_publish (partial or drain)",
        lambda value, theirs, fields: {"on_publish": "partial" if value else "drain"},
        True,
    ),
    row("async_training.parallel_validate_and_rollout", "evaluate_in_background", False),
    row(f"{MODEL}.path", "model", "smollm2"),
    KnownPath(f"{by.LORA}.rank", "lora_rank (unless 0)", by.lora("lora_rank"), 16),
    KnownPath(f"{by.LORA}.alpha", "lora_alpha (with lora.rank)", by.lora("lora_alpha"), 32, (f"{by.LORA}.rank",)),
    row(f"{MODEL}.lora_rank", "lora_rank", 16),
    row(f"{MODEL}.lora_alpha", "lora_alpha", 32),
    row(f"{MODEL}.enable_gradient_checkpointing", "gradient_checkpointing", True),
    KnownPath(by.MINI, "num_minibatches", by.minibatches, 8, ALL_BATCH_PATHS),
    row(f"{ACTOR}.ppo_epochs", "num_epochs", 1),
    row(f"{ACTOR}.ppo_max_token_len_per_gpu", "microbatch_tokens", 16384),
    KnownPath(by.CLIP, "clip_low, clip_high", by.clip, 0.2, (f"{by.CLIP}_low", f"{by.CLIP}_high")),
    row(f"{by.CLIP}_low", "clip_low", 0.2),
    row(f"{by.CLIP}_high", "clip_high", 0.28),
    row(f"{by.CLIP}_c", "dual_clip", 3.0),
    row(f"{ACTOR}.grad_clip", "max_grad_norm", 1.0),
    row(f"{by.OPTIM}.clip_grad", "max_grad_norm", 1.0),
    row(f"{ACTOR}.entropy_coeff", "entropy_weight", 0.0),
    KnownPath(by.USE_KL, "kl_weight (0 when off)", by.kl, True, by.ALL_KL_PATHS),
    KnownPath(by.KL, "kl_weight (if use_kl_loss)", by.kl, 0.001, by.ALL_KL_PATHS),
    KnownPath(by.IN_REWARD, "kl_in_reward, kl_weight", by.kl, False, by.ALL_KL_PATHS),
    KnownPath(by.IN_REWARD_KL, "kl_weight (if use_kl_in_reward)", by.kl, 0.001, by.ALL_KL_PATHS),
    row(f"{ACTOR}.loss_agg_mode", "loss_aggregation", "token-mean"),
    row(f"{ACTOR}.optim.lr", "learning_rate", 1e-6),
    *(
        KnownPath(
            path,
            ours,
            by.warmup,
            example,
            (by.WARMUP, by.WARMUP_RATIO, by.STEPS, by.SAMPLES, "updates", *ALL_BATCH_PATHS),
        )
        for path, ours, example in (
            (by.WARMUP, "warmup_updates", 10),
            (by.WARMUP_RATIO, "warmup_updates (of total_training_steps)", 0.0),
        )
    ),
    KnownPath(f"{by.OPTIM}.min_lr_ratio", "lr_floor (unless constant)", by.floor, 0.1, (*by.SCHEDULES, "lr_schedule")),
    row(f"{ACTOR}.optim.weight_decay", "weight_decay", 0.01),
    row(f"{ACTOR}.optim.warmup_style", "lr_schedule", "constant"),
    row(f"{ACTOR}.optim.lr_scheduler_type", "lr_schedule", "cosine"),
    KnownPath(f"{ACTOR}.optim.betas", "adam_beta1, adam_beta2", by.betas, [0.9, 0.999]),
    *(
        KnownPath(path, "correction, correction_options", by.correction, example, (*CORRECTION_PATHS, *CLIPS))
        for path, example in zip(CORRECTION_PATHS, CORRECTION_EXAMPLES, strict=True)
    ),
    *(
        KnownPath(
            path,
            f"vllm_options (vllm){note}",
            by.vllm(why, *only, is_parts=path == by.PARTS),
            example,
            (by.ENGINE_NAME, "engine", *more),
        )
        for path, why, only, example, note in VLLM_ROWS
        for more in [(*by.VLLM_OPTIONS, f"{by.VLLM_KWARGS}.*")]
    ),
    KnownPath(f"{ROLLOUT}.stop", "stop", by.stop, ["###"]),
    KnownPath(f"{ROLLOUT}.name", "engine (hf: transformers)", by.engine, "hf"),
    row(f"{ROLLOUT}.n", "group_size", 8),
    row(f"{ROLLOUT}.temperature", "temperature", 1.0),
    row(f"{ROLLOUT}.top_p", "top_p", 1.0),
    KnownPath(f"{ROLLOUT}.top_k", "top_k (-1: 0, all)", by.or_off("top_k"), -1),
    row(f"{ROLLOUT}.response_length", "max_tokens", 256),
    row(f"{ROLLOUT}.prompt_length", "max_prompt_tokens", 384),
    row(f"{ROLLOUT}.max_num_seqs", "engine_rows", 64),
    KnownPath(f"{ROLLOUT}.checkpoint_engine.backend", "weight_transport (auto)", by.weight_transport, "nccl"),
    row(f"{VAL}.n", "eval_samples", 1),
    KnownPath(by.VAL_TEMPERATURE, "eval_temperature (if do_sample)", by.eval_temperature, 0.0, (by.VAL_SAMPLE,)),
    KnownPath(f"{VAL}.top_p", "eval_top_p (if do_sample)", by.eval_top_p, 0.7, (by.VAL_SAMPLE, by.VAL_TEMPERATURE)),
    KnownPath(by.VAL_SAMPLE, "eval_temperature (0 when off)", by.do_sample, False),
    KnownPath(by.ESTIMATOR, "estimator, credit (gigpo)", by.estimator, "grpo", (by.BY_STD,)),
    KnownPath(by.BY_STD, "estimator (dr_grpo when off)", by.estimator, True, (by.ESTIMATOR,)),
    KnownPath("algorithm.gamma", "gae_gamma (with gae)", by.with_gae("gae_gamma"), 1.0, (by.ESTIMATOR,)),
    KnownPath("algorithm.lam", "gae_lambda (with gae)", by.with_gae("gae_lambda"), 0.95, (by.ESTIMATOR,)),
    row(by.FILTERS, "filter_silent", False),
    KnownPath(by.METRIC, "(score or seq_reward)", by.metric, "seq_reward", (by.FILTERS, by.IN_REWARD)),
    KnownPath(
        "critic.optim.lr", "critic_learning_rate (with gae)", by.with_gae("critic_learning_rate"), 1e-5, (by.ESTIMATOR,)
    ),
    KnownPath("critic.cliprange_value", "value_clip (with gae)", by.with_gae("value_clip"), 0.5, (by.ESTIMATOR,)),
    KnownPath(
        "trainer.critic_warmup",
        "critic_warmup_updates (with gae)",
        by.with_gae("critic_warmup_updates"),
        0,
        (by.ESTIMATOR,),
    ),
    *data_and_rewards.ROWS,
    KnownPath("data.val_max_samples", "eval_prompts (unless -1)", by.eval_prompts, 100),
    KnownPath(by.BATCH, "tickets_per_batch", by.batch, 64, ALL_BATCH_PATHS),
    row("data.max_prompt_length", "max_prompt_tokens", 384),
    row("data.max_response_length", "max_tokens", 256),
    KnownPath("data.filter_overlong_prompts", "on_long_prompt (drop or error)", by.long_prompts, True),
    KnownPath(f"{by.TEMPLATE}.*", "chat_template_options", by.template_options, False, (f"{by.TEMPLATE}.*",)),
    row("data.seed", "seed", 0),
    *(
        KnownPath(f"{group}.{name}", "overlong_tokens", by.overlong(group), example, (f"{group}.{other}",))
        for group in by.OVERLONGS
        for name, example, other in (("enable", True, "len"), ("len", 64, "enable"))
    ),
    row(by.STEPS, "updates", 100),
    *(
        KnownPath(path, "data_epochs (unless total_training_steps)", by.epochs, 1, (by.STEPS, by.SAMPLES))
        for path in (by.EPOCHS, "rollout.total_epochs")
    ),
    KnownPath("trainer.save_freq", "save_every (-1: 0)", by.or_off("save_every"), 20),
    KnownPath("trainer.test_freq", "evaluate_every (-1: 0)", by.or_off("evaluate_every"), 10),
    row("trainer.val_before_train", "evaluate_first", False),
    row("trainer.max_actor_ckpt_to_keep", "keep_checkpoints", 2),
    row("trainer.log_val_generations", "log_eval_samples", 8),
    row("trainer.device", "device", "cuda"),
    *(
        KnownPath(f"trainer.{name}", "learner_ranks (in all)", gpus.places("trainer", "learner_ranks"), 1, other)
        for name, other in (("n_gpus_per_node", ("trainer.nnodes",)), ("nnodes", ("trainer.n_gpus_per_node",)))
    ),
    *(
        KnownPath(
            path,
            "sharding (full, over several ranks)",
            gpus.strategy,
            "fsdp2",
            (gpus.TRAINER_GPUS, gpus.TRAINER_NODES, gpus.FSDP_SIZE),
        )
        for path in (f"{ACTOR}.strategy", f"{gpus.FSDP}.strategy")
    ),
    KnownPath(
        gpus.FSDP_SIZE,
        "sharding, shard_ranks (hybrid, where fewer than all)",
        gpus.fsdp_size,
        -1,
        (gpus.TRAINER_GPUS, gpus.TRAINER_NODES),
    ),
    *(
        KnownPath(path, "optimizer_state (host when on)", gpus.on_host, True, (other,))
        for path, other in (gpus.OFFLOADS, gpus.OFFLOADS[::-1])
    ),
    KnownPath(f"{gpus.FSDP}.model_dtype", "parameter_dtype", gpus.parameter_dtype, "bf16"),
    *(
        KnownPath(path, "compile_trainer (auto or off)", gpus.compiling, True)
        for path in (f"{ACTOR}.use_torch_compile", f"{gpus.FSDP}.use_torch_compile")
    ),
    KnownPath("trainer.logger", "use_wandb, tensorboard", by.loggers, ["console", "tensorboard"]),
    row("trainer.project_name", "wandb_project", "headway"),
    *(
        KnownPath(
            path,
            "collectors (in all, over tensor_model_parallel_size)",
            gpus.places("rollout", "collectors", by.PARTS, by.ENGINE_NAME),
            1,
            (gpus.ROLLOUT_GPUS, gpus.ROLLOUT_NODES, by.PARTS, by.ENGINE_NAME, "engine"),
        )
        for path in (gpus.ROLLOUT_GPUS, gpus.ROLLOUT_NODES)
    ),
    KnownPath(by.SAMPLES, "updates (over tickets_per_batch)", by.rollout_steps, 1000, (by.STEPS, *ALL_BATCH_PATHS)),
    KnownPath("rollout.n", f"group_size (unless {by.GROUP})", by.group, 8, (by.GROUP,)),
    row("rollout.max_concurrent_samples_per_replica", "lanes", 4),
    KnownPath("rollout.test_freq", "evaluate_every (-1: 0)", by.or_off("evaluate_every"), 10),
    # one value exists here; others are refused
    *(
        KnownPath(path, f"(only {allowed[0]})", only(*allowed, why=why), allowed[0])
        for path, allowed, why in (
            ("algorithm.kl_ctrl.type", ("fixed",), "the weight of the penalty stays as it is"),
            (f"{ACTOR}.kl_loss_type", ("low_var_kl", "k3"), "the k3 estimate is used"),
            (f"{ACTOR}.ulysses_sequence_parallel_size", (1,), "a sequence is not spread over GPUs"),
            (f"{gpus.FSDP}.ulysses_sequence_parallel_size", (1,), "a sequence is not spread over GPUs"),
            (f"{gpus.FSDP}.mixed_precision.param_dtype", ("bf16", "bfloat16"), "on a GPU products are in bfloat16"),
            (f"{gpus.FSDP}.mixed_precision.reduce_dtype", ("fp32", "float32"), "gradients are summed in float32"),
            (f"{MODEL}.trust_remote_code", (False,), "a model's own code is not run"),
            (f"{MODEL}.target_modules", ("all-linear",), "adapters go to every linear layer"),
            (f"{ROLLOUT}.do_sample", (True,), "replies to train on are sampled"),
            (f"{ROLLOUT}.ignore_eos", (False,), "a reply ends where it ends"),
            (f"{ROLLOUT}.multi_turn.enable", (False,), "a ticket is one prompt and its replies"),
            (f"{by.OPTIM}.num_cycles", (0.5,), "a schedule falls once"),
            (f"{NEW}.rollout_is_batch_normalize", (False,), "weights are not divided by their mean"),
            (f"{NEW}.use_policy_gradient", (False,), "what is kept is clipped"),
            (f"{NEW}.loss_type", ("ppo_clip",), "what is kept is clipped"),
            (f"{NEW}.rollout_token_veto_threshold", ("off",), "one token does not veto its reply"),
            ("algorithm.rollout_is_veto_threshold", ("off",), "one token does not veto its reply"),
            (f"{EXPERTS}.moe_aux_loss_coeff", (0, 0.0), "nothing is added to the loss for how experts are used"),
            (
                f"{EXPERTS}.moe_router_load_balancing_type",
                ("none",),
                "nothing is added to the loss for how experts are used",
            ),
            (f"{VAL}.top_k", (-1, 0), "evaluation samples from all tokens"),
            ("data.shuffle", (True,), "every epoch is shuffled"),
            ("data.truncation", ("error",), "a prompt that is too long is named, never cut"),
            *((f"{group}.penalty_factor", (1.0, 1), "the reward falls by up to 1") for group in by.OVERLONGS),
            ("data.trust_remote_code", (False,), "a model's own code is not run"),
            ("data.train_max_samples", (-1,), "all prompts of a file are used"),
            ("algorithm.use_pf_ppo", (False,), "every reply of a batch is learned from alike"),
            ("distillation.enabled", (False,), "there is no teacher"),
            (f"{by.OPTIM}.optimizer", ("AdamW",), "AdamW is used"),
            (f"{by.OPTIM}.optimizer_impl", ("torch.optim",), "AdamW is used"),
            (f"{ROLLOUT}.over_sample_rate", (0,), "every reply that is begun is finished"),
            (f"{ROLLOUT}.data_parallel_size", (1,), "collectors says how many engines there are"),
            (f"{ROLLOUT}.expert_parallel_size", (1,), "an engine's experts are not spread over GPUs"),
            (f"{ROLLOUT}.pipeline_model_parallel_size", (1,), "an engine's layers are not spread over GPUs"),
            (f"{ROLLOUT}.enable_rollout_routing_replay", (False,), "experts are chosen anew when it is learned"),
        )
    ),
)

_MEMORY = "weights and gradients stay where the learner is; microbatch_tokens and lora_rank bound the memory"
_PARTS = (
    "each layer is a part, gathered while it is read; weights stay where the learner is (sharding, parameter_dtype and "
    "optimizer_state bound the memory)"
)
_TOKENS = "forward passes are cut by tokens (microbatch_tokens), not by samples"
_FOLDER = "a run has a folder of its own, named after the recipe and the time (--runs says where, --name adds a name)"
_LOGS = "every event and every metric is in the run's folder"
_SAMPLES = "some replies are in samples.jsonl in the run's folder"
_STREAMED = "prompts are generated one by one, whenever there is a slot (max_lead says how many there are)"
_FUSED = "the loss is computed in pieces (logit_chunk_tokens), without kernels of its own"
_TEXT = "prompts are text"
_DENSE = "a model's experts are trained as its own code routes them"
_RAY = "runtime, ray_address and its neighbours say where work runs"

WITHOUT_EFFECT: dict[str, str] = {
    "defaults": "files are not composed: what is in this one counts",
    "hydra.*": "files are not composed: what is in this one counts",
    "async_training.use_rollout_log_probs": "the engine's log-probabilities are always used, token by token",
    "async_training.checkpoint_engine.*": "weights are handed on by the runtime",
    "async_training.use_trainer_do_validate": "evaluations have a role of their own",
    "actor_rollout_ref.nccl_timeout": "publish_deadline_s bounds how long weights may take",
    "actor_rollout_ref.checkpoint_engine.*": "weights are handed on by the runtime",
    "actor_rollout_ref.hybrid_engine": "engine and learner are roles of their own",
    "actor_rollout_ref.model.use_remove_padding": "padding is never computed",
    "actor_rollout_ref.model.use_shm": "a model is read from where it is",
    "actor_rollout_ref.model.external_lib": "nothing is imported by name",
    "actor_rollout_ref.model.enable_activation_offload": _MEMORY,
    "actor_rollout_ref.model.use_fused_kernels": _FUSED,
    "actor_rollout_ref.model.fused_kernel_options.*": _FUSED,
    "actor_rollout_ref.model.use_liger": _FUSED,
    "actor_rollout_ref.model.tiled_mlp.*": _MEMORY,
    "actor_rollout_ref.model.lora.*": "adapters go to every linear layer; lora_rank and lora_alpha say how large",
    "actor_rollout_ref.model.mtp.*": "one token is predicted at a time",
    "actor_rollout_ref.model.tokenizer_path": "a model has its own",
    "actor_rollout_ref.model.hf_config_path": "a model has its own",
    "actor_rollout_ref.model.override_config.*": "a model is loaded as its own config says",
    "actor_rollout_ref.actor.use_dynamic_bsz": _TOKENS,
    "actor_rollout_ref.actor.ppo_micro_batch_size": _TOKENS,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": _TOKENS,
    "actor_rollout_ref.actor.shuffle": "minibatches are drawn anew in every update",
    "actor_rollout_ref.actor.data_loader_seed": "`seed` decides everything",
    "actor_rollout_ref.actor.fsdp_config.*": _PARTS,
    "actor_rollout_ref.actor.megatron.*": _MEMORY,
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking": _FUSED,
    "actor_rollout_ref.actor.entropy_from_logits_chunk_size": _FUSED,
    "actor_rollout_ref.actor.entropy_checkpointing": _FUSED,
    "actor_rollout_ref.actor.use_fused_kernels": _FUSED,
    "actor_rollout_ref.actor.use_prefix_grouper": _FUSED,
    "actor_rollout_ref.actor.use_rollout_log_probs": "the engine's log-probabilities are always used, token by token",
    "actor_rollout_ref.actor.use_remove_padding": "padding is never computed",
    "actor_rollout_ref.actor.pad_to_length": "padding is never computed",
    "actor_rollout_ref.actor.rollout_n": "actor_rollout_ref.rollout.n says it",
    "actor_rollout_ref.actor.calculate_entropy": _LOGS,
    "actor_rollout_ref.actor.calculate_sum_pi_squared": _LOGS,
    "actor_rollout_ref.actor.tau_pos": "the losses vanilla and cispo do not read it",
    "actor_rollout_ref.actor.tau_neg": "the losses vanilla and cispo do not read it",
    "actor_rollout_ref.actor.freeze_vision_tower": _TEXT,
    "actor_rollout_ref.actor.router_replay.*": _DENSE,
    "actor_rollout_ref.actor.qat.*": "weights are trained as they are",
    "actor_rollout_ref.actor.optim.zero_indexed_step": "a schedule counts updates",
    "actor_rollout_ref.actor.optim.override_optimizer_config.*": "AdamW is used",
    "actor_rollout_ref.actor.checkpoint.*": "a checkpoint always holds everything",
    "actor_rollout_ref.actor.profiler.*": _LOGS,
    "actor_rollout_ref.actor.optim.total_training_steps": "trainer.total_training_steps says it",
    "actor_rollout_ref.actor.policy_loss.*": "the losses vanilla and cispo do not read it",
    "actor_rollout_ref.ref.*": "the reference is computed with the learner's own settings",
    "actor_rollout_ref.rollout.mode": "replies are always generated asynchronously, request by request",
    "actor_rollout_ref.rollout.max_model_len": "an engine's context is max_prompt_tokens + max_tokens",
    "actor_rollout_ref.rollout.free_cache_engine": "an engine keeps its cache: it generates while the learner learns",
    "actor_rollout_ref.rollout.load_format": "an engine starts from the model's own weights",
    "actor_rollout_ref.rollout.layered_summon": "weights are handed on as they are",
    "actor_rollout_ref.rollout.disable_log_stats": _LOGS,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": _TOKENS,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": _TOKENS,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": _TOKENS,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": _TOKENS,
    "actor_rollout_ref.rollout.calculate_log_probs": "they always are",
    "actor_rollout_ref.rollout.engine_kwargs.*": "they are for another engine",
    "actor_rollout_ref.rollout.nnodes": "rollout.nnodes says it",
    "actor_rollout_ref.rollout.n_gpus_per_node": "rollout.n_gpus_per_node says it",
    "actor_rollout_ref.rollout.seed": "`seed` decides everything",
    "actor_rollout_ref.rollout.full_determinism": "`seed` decides everything",
    "actor_rollout_ref.rollout.cudagraph_capture_sizes": "decoders choose CUDA graphs themselves",
    "actor_rollout_ref.rollout.scheduling_policy": "tickets are generated in the order in which they were opened",
    "actor_rollout_ref.rollout.logprobs_mode": "a token is recorded with the probability that it was drawn with",
    "actor_rollout_ref.rollout.multi_stage_wake_up": "an engine does not sleep: it generates while the learner learns",
    "actor_rollout_ref.rollout.skip_tokenizer_init": "an engine takes and gives token ids",
    "actor_rollout_ref.rollout.moe_load_balance_metrics_interval": _DENSE,
    "actor_rollout_ref.rollout.qat.*": "weights are trained as they are",
    "actor_rollout_ref.rollout.disaggregation.*": "one engine reads prompts and writes replies",
    "actor_rollout_ref.rollout.prometheus.*": "prometheus_port says where metrics are served",
    "actor_rollout_ref.rollout.profiler.*": _LOGS,
    "actor_rollout_ref.rollout.trace.*": _LOGS,
    "actor_rollout_ref.rollout.agent.*": "a ticket is one prompt and its replies",
    "actor_rollout_ref.rollout.multi_turn.*": "a ticket is one prompt and its replies",
    "actor_rollout_ref.rollout.checkpoint_engine.*": "weights travel in messages of 64 MB",
    "actor_rollout_ref.rollout.update_weights_bucket_megabytes": "weights travel in messages of 64 MB, or in one piece",
    "algorithm.kl_penalty": "one estimate of the divergence is used",
    "algorithm.kl_ctrl.*": "the weight of the penalty stays as it is",
    "algorithm.pf_ppo.*": "every reply of a batch is learned from alike",
    "algorithm.filter_groups.max_inflight_gen_batches": _STREAMED,
    "algorithm.filter_groups.max_num_gen_batches": "what is filtered is collected anew, under the same lead",
    "critic.*": "the critic shares the learner's settings (critic=shared), or is a second model (critic=own)",
    "data.gen_batch_size": _STREAMED,
    "data.audio_key": _TEXT,
    "data.image_patch_size": _TEXT,
    "data.return_multi_modal_inputs": _TEXT,
    "data.mm_processor_kwargs.*": _TEXT,
    "data.val_batch_size": "an evaluation generates engine_rows samples at once; eval_prompts says how many there are",
    "data.filter_overlong_prompts_workers": "one process looks at the prompts",
    "data.reward_fn_key": "the task has one reward",
    "data.tokenizer": "a model has its own",
    "data.use_shm": "a file is read once",
    "data.return_raw_input_ids": "every rollout holds the token ids",
    "data.return_raw_chat": "every rollout holds the token ids",
    "data.return_full_prompt": "every rollout holds the token ids",
    "data.dataloader_num_workers": "a prompt is made when its ticket starts",
    "data.validation_shuffle": "an evaluation takes the first eval_prompts, always the same",
    **data_and_rewards.WITHOUT_EFFECT,
    "distillation.*": "there is no teacher",
    "transfer_queue.*": "rollouts are handed on by the runtime",
    "skip.*": "nothing is skipped; `headway run --replay RUN` does recorded work again",
    "trainer.experiment_name": _FOLDER,
    "trainer.default_local_dir": _FOLDER,
    "trainer.default_hdfs_dir": _FOLDER,
    "trainer.resume_mode": "`headway resume RUN` goes on from the last checkpoint",
    "trainer.resume_from_path": "`headway resume RUN` goes on from the last checkpoint",
    "trainer.del_local_ckpt_after_load": "keep_checkpoints says how many are kept",
    "trainer.max_critic_ckpt_to_keep": "a checkpoint holds the critic too",
    "trainer.use_legacy_worker_impl": "there is one implementation",
    "trainer.esi_redundant_time": "save_every says how often; SIGTERM saves and ends",
    "trainer.nccl_timeout": "nothing waits for NCCL alone: publish_deadline_s and learn_deadline_s bound those waits",
    "trainer.ray_wait_register_center_timeout": "start_deadline_s bounds the start of every role",
    "trainer.balance_batch": _TOKENS,
    "trainer.rollout_data_dir": f"{_SAMPLES} (log_samples replies of every update)",
    "trainer.validation_data_dir": f"{_SAMPLES} (log_eval_samples answers of every evaluation)",
    "trainer.val_only": "a run trains; `headway evaluate RUN` scores a checkpoint without training",
    "ray_init.*": _RAY,
    "ray_kwargs.*": _RAY,
    "global_profiler.*": _LOGS,
}
"""Accepted, said to have no effect when the run begins, and why. `.*` is everything below."""

OUR_WORDS = {"engine": (by.ENGINE_NAME,), "updates": (by.STEPS, by.SAMPLES, by.EPOCHS), "lr_schedule": by.SCHEDULES}
"""Settings that decide what some of their names mean, and their names for these."""
