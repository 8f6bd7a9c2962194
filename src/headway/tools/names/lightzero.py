"""The configuration that users of LightZero have, and what each name in it is here, in the recipes muzero and unizero.

    env: {env_id: CartPole-v1, collector_env_num: 8}           -->   env: CartPole-v1, num_envs: 8
    policy: {game_segment_length: 50, discount_factor: 1}      -->   segment_steps: 50, gamma: 1
    policy: {model: {world_model_cfg: {embed_dim: 64}}}        -->   dim: 64 (unizero)
    policy: {mcts_ctree: true}                                 -->   nothing, with the reason, said when the run begins
    policy: {optim_type: SGD, learning_rate: 0.2}              -->   refused: 0.2 is a step size for SGD alone

`main_config` and `create_config` are read as one. What would change the problem or the method is refused where it
cannot be had here; what only tunes is accepted and said to have no effect. The last part of a path can be said alone
(`embed_dim`), where it is no name of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headway.tools.names import lightzero_meanings as by
from headway.tools.names import lightzero_meanings_priorzero as priorzero
from headway.tools.names.lightzero_meanings import MODEL, RECIPES, WORLD
from headway.tools.names.rows import by_path, only, row, same

SOFT = "the target follows softly: target_update_theta"
HARD = "the target is moved at once, every target_update_freq updates"
WEIGHTS = "UniZero weighs its losses otherwise: value_weight"
ENVS, GUMBELS = (by.ENV_TYPE, by.ENV_ID, by.ENV_NAME), (by.GUMBEL, by.POLICY_TYPE)

_ACTIONS = "search needs actions that can be counted; wrap the environment"
_ONE_OBSERVATION = "an observation is taken as it comes; wrap the environment"
_LOSSES = "policy and reward have a weight of 1"
_RND = "there is no curiosity besides the search's"
_ONLY: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("env.battle_mode", ("self_play_mode",), "a board game is learned by playing against oneself"),
    ("env.continuous", (False,), _ACTIONS),
    ("env.manually_discretization", (False,), _ACTIONS),
    ("env.frame_stack_num", (1,), _ONE_OBSERVATION),
    ("env.gray_scale", (False,), _ONE_OBSERVATION),
    ("policy.gray_scale", (False,), _ONE_OBSERVATION),
    ("policy.optim_type", ("AdamW", "Adam"), "AdamW is used, and a step size for SGD would be far too large for it"),
    ("policy.multi_gpu", (False,), "the learner is one process"),
    ("policy.sampled_algo", (False,), _ACTIONS),
    ("policy.use_rnd_model", (False,), _RND),
    ("policy.collect_with_pure_policy", (False,), "games are played by search"),
    ("policy.reward_loss_weight", (1,), _LOSSES),
    ("policy.policy_loss_weight", (1,), _LOSSES),
    ("policy.accumulation_steps", (1,), "a batch is one update: raise batch_size"),
    ("policy.use_ture_chance_label_in_chance_encoder", (False,), "there are no chance nodes"),
    (f"{MODEL}.continuous_action_space", (False,), _ACTIONS),
    (f"{MODEL}.categorical_distribution", (True,), "values and rewards are always distributions over a support"),
    (f"{MODEL}.frame_stack_num", (1,), _ONE_OBSERVATION),
    (f"{MODEL}.gray_scale", (False,), _ONE_OBSERVATION),
    (f"{MODEL}.harmony_balance", (False,), "the losses keep the weights they are given"),
    (f"{WORLD}.continuous_action_space", (False,), _ACTIONS),
    (f"{WORLD}.tokens_per_block", (2,), "a step is an observation and an action"),
    (f"{WORLD}.attention", ("causal",), "a token sees what was before it"),
    (f"{WORLD}.decode_loss_mode", ("None",), "observations are not reconstructed"),
    (f"{WORLD}.latent_recon_loss_weight", (0,), "observations are not reconstructed"),
    (f"{WORLD}.perceptual_loss_weight", (0,), "observations are not reconstructed"),
)

PATHS = by_path(
    row(by.ENV_ID, "env", "CartPole-v1", by.env, *ENVS),
    row(by.ENV_NAME, "env", "CartPole-v1", by.env, *ENVS),
    row(by.ENV_TYPE, "env (unless env_id says it)", "cartpole_lightzero", by.env, *ENVS),
    row("env.stop_value", "target_score (not for boards)", 200, by.stop_value, by.ENV_TYPE),
    row("env.collector_env_num", "num_envs", 8),
    row("env.n_evaluator_episode", "eval_episodes", 3),
    row(by.POLICY_TYPE, "root (gumbel_muzero: gumbel)", "muzero", by.policy_type, by.GUMBEL),
    row(by.GUMBEL, "root (gumbel or puct)", True, by.gumbel, by.POLICY_TYPE),
    row("policy.max_num_considered_actions", "max_considered_actions (gumbel)", 6, by.considered, *GUMBELS),
    row("policy.collector_env_num", "num_envs", 8),
    row("policy.game_segment_length", "segment_steps", 50),
    row("policy.num_simulations", "num_simulations", 25),
    row("policy.collect_num_simulations", "num_simulations", 25),
    row("policy.eval_num_simulations", "eval_simulations", 50),
    row("policy.discount_factor", "gamma", 0.997),
    row("policy.td_steps", "td_steps", 5),
    row("policy.num_unroll_steps", "num_unroll_steps", 5),
    row("policy.batch_size", "batch_size", 256),
    row(
        by.UPDATES, "update_per_collect (of a ticket: num_envs * segment_steps steps)", 100, same("update_per_collect")
    ),
    row("policy.replay_ratio", "replay_ratio (unless update_per_collect)", 0.25, by.replay_ratio, by.UPDATES),
    row("policy.train_start_after_envsteps", "replay_min_size (unless 0)", 2000, by.start_after),
    row("policy.replay_buffer_size", "replay_capacity", 100_000),
    row(by.PRIORITY, "replay_alpha (0 when off)", False, by.priority, by.ALPHA),
    row(by.ALPHA, "replay_alpha", 0.6, by.priority, by.PRIORITY),
    row("policy.priority_prob_beta", "replay_beta_start, replay_beta_end", 0.4, by.beta),
    row("policy.learning_rate", "learning_rate", 0.003),
    row("policy.weight_decay", "weight_decay", 1e-4),
    row("policy.grad_clip_value", "max_grad_norm", 5),
    row("policy.target_update_freq", "target_every (muzero)", 100, by.of("muzero", "target_every", SOFT)),
    row("policy.target_update_theta", "target_tau (unizero)", 0.05, by.of("unizero", "target_tau", HARD)),
    row("policy.value_loss_weight", "value_weight (muzero)", 0.25, by.of("muzero", "value_weight", WEIGHTS)),
    row("policy.policy_entropy_weight", "entropy_weight", 0.005, same("entropy_weight")),
    row(by.SSL_WEIGHT, "consistency_weight (muzero)", 2, by.consistency, by.SSL),
    row("policy.root_dirichlet_alpha", "root_dirichlet_alpha", 0.3),
    row(
        "policy.root_noise_weight", "root_noise_weight (puct)", 0.25, by.with_puct(same("root_noise_weight")), *GUMBELS
    ),
    row("policy.pb_c_base", "pb_c_base", 19652),
    row("policy.pb_c_init", "pb_c_init", 1.25),
    row(by.DECAY, "temperature, final_temperature", True, by.with_puct(by.temperature), *by.TEMPERATURE_PATHS),
    row(by.FIXED, "temperature, final_temperature (puct)", 0.25, by.with_puct(by.temperature), *by.TEMPERATURE_PATHS),
    row(
        by.DECAY_OVER,
        "temperature_versions (if they decay)",
        50_000,
        by.with_puct(by.decay_over),
        *by.TEMPERATURE_PATHS,
    ),
    row("policy.reanalyze_ratio", "reanalyze_ratio", 0.25),
    row("policy.reanalyze_partition", "reanalyze_partition", 0.75),
    row("policy.reanalyze_batch_size", "reanalyze_roots", 160),
    row("policy.eval_freq", "evaluate_every", 1000),
    row("policy.learn.learner.hook.save_ckpt_after_iter", "save_every", 10_000),
    row("policy.use_wandb", "use_wandb", False),
    row("policy.cuda", "learner_gpus, search_gpus (0 when off)", False, by.cuda),
    row("policy.device", "learner_gpus, search_gpus (0 for cpu)", "cpu", by.cuda),
    row("policy.label_smoothing_eps", "value_smoothing", 0.1),
    row("policy.off_policy_degree", "max_lead (-1: auto)", 4, by.flat("off_policy_degree")),
    row("policy.enable_async_eval", "evaluate_in_background", True),
    row(by.ASYNC, "max_lead (0 when off)", False, by.flat("enable_async_training")),
    row("policy.data_queue_size", "max_lead, order", 10, by.queue, by.ASYNC),
    row("policy.enable_async_debug_log", "log_level (debug or info)", True, by.flat("enable_async_debug_log")),
    row(by.MODEL_TYPE, "network (mlp: vector; muzero)", "mlp", by.model_type),
    row(by.SSL, "consistency_weight (0 when off; muzero)", False, by.consistency, by.SSL_WEIGHT),
    row(f"{MODEL}.latent_state_dim", "latent (muzero, mlp)", 128, by.width("mlp"), by.MODEL_TYPE),
    row(
        f"{MODEL}.num_channels",
        "latent, on boards network too (muzero, conv)",
        64,
        by.width("conv"),
        by.MODEL_TYPE,
        by.ENV_TYPE,
    ),
    row(f"{MODEL}.num_res_blocks", "blocks (muzero)", 1, by.of("muzero", "blocks", "a transformer has num_layers")),
    row(f"{MODEL}.support_scale", "value_range, value_bins (2 * scale + 1)", 300, by.reach),
    row(f"{MODEL}.value_support_size", "value_bins", 601),
    row(f"{MODEL}.reward_support_size", "value_bins", 601),
    row(f"{MODEL}.value_support_range", "value_range, value_bins", (-300.0, 301.0, 1.0), by.span),
    row(f"{MODEL}.reward_support_range", "value_range, value_bins", (-300.0, 301.0, 1.0), by.span),
    row(f"{WORLD}.embed_dim", "dim", 64, by.embedding),
    row(f"{WORLD}.num_layers", "layers", 2),
    row(f"{WORLD}.num_heads", "heads", 4),
    row(f"{WORLD}.context_length", "context_steps (half as many; not for boards)", 8, by.context, by.ENV_TYPE),
    row(f"{WORLD}.policy_entropy_weight", "entropy_weight", 0.005),
    row(f"{WORLD}.support_size", "value_bins", 601),
    row(f"{WORLD}.num_simulations", "num_simulations", 25),
    row(f"{WORLD}.collector_env_num", "num_envs", 8),
    row(f"{WORLD}.device", "learner_gpus, search_gpus (0 for cpu)", "cpu", by.cuda),
    row("policy.model_path", "(refused)", "weights.pth.tar", by.nothing_to_load),
    row("policy.load_path", "(refused)", "weights.pth.tar", by.nothing_to_load),
    *(
        row(path, f"(only {' or '.join(map(str, allowed))})", allowed[0], only(*allowed, why=why))
        for path, allowed, why in _ONLY
    ),
)

_FOLDER = "a run has a folder of its own, named after the recipe and the time (--runs says where, --name adds a name)"
_IMPORTS = "nothing is imported by name"
_STEPPED = "games of a collector are stepped together, where it runs"
_SPEC = "the environment says it"
_EPISODES = "an episode ends where its registered environment ends it"
_OPPONENTS = "opponents says whom a board game is evaluated against"
_TICKETS = "a ticket is a segment of each game (num_envs, segment_steps)"
_SCHEDULE = "the step size is constant, or falls to final_learning_rate over the run"
_EXPLORES = "a search explores by noise at its root and by temperature"
_LOGS = "every event and every metric is in the run's folder"
_PICTURES = "pictures are learned from as they are; boards are turned and mirrored (symmetries)"
_SHAPE = "latent, hidden and blocks say how large the network is, dim, layers and heads how large the transformer"
_NORMS = "latents and layers have norms of their own"
_LENGTH = "a sequence is as long as num_unroll_steps, a path as long as the search makes it"
_ROTATIONS = "positions are always rotations: only distances matter"
_DROPOUT = "there is no dropout"
_ENTROPY = "the bonus for staying undecided keeps its weight (entropy_weight)"
_SMOOTHED = "visits are learned as they are; value_smoothing is for values and rewards"
_LOGITS = "logits are not clipped: max_grad_norm bounds each update"
_DENSE = "the transformer is dense, and all of it is trained"
_BY_NODE = "keys and values are kept by node: none is looked up"
_LATENTS = "the next latent is compared by squares with that of the target encoder"

WITHOUT_EFFECT: dict[str, str] = {
    "exp_name": _FOLDER,
    "env.import_names": _IMPORTS,
    "env.manager.*": _STEPPED,
    "env.evaluator_env_num": "an evaluation plays its episodes side by side",
    "env.observation_shape": _SPEC,
    "env.obs_shape": _SPEC,
    "env.channel_last": _SPEC,
    "env.board_size": _SPEC,
    "env.collect_max_episode_steps": _EPISODES,
    "env.eval_max_episode_steps": _EPISODES,
    "env.max_episode_steps": _EPISODES,
    "env.bot_action_type": _OPPONENTS,
    "env.prob_random_agent": _OPPONENTS,
    "env.prob_random_action_in_bot": _OPPONENTS,
    "env.prob_expert_agent": _OPPONENTS,
    "env.agent_vs_human": _OPPONENTS,
    "env.replay_path": _LOGS,
    "env.save_replay_gif": _LOGS,
    "env.replay_path_gif": _LOGS,
    "env_manager.*": _STEPPED,
    "collector.*": _TICKETS,
    "policy.import_names": _IMPORTS,
    "policy.evaluator_env_num": "an evaluation plays its episodes side by side",
    "policy.n_episode": _TICKETS,
    "policy.num_segments": _TICKETS,
    "policy.sample_type": "positions are drawn one by one",
    "policy.env_type": _SPEC,
    "policy.action_type": _SPEC,
    "policy.battle_mode": "a board game is learned by playing against oneself",
    "policy.piecewise_decay_lr_scheduler": _SCHEDULE,
    "policy.lr_piecewise_constant_decay": _SCHEDULE,
    "policy.cos_lr_scheduler": _SCHEDULE,
    "policy.threshold_training_steps_for_final_lr": _SCHEDULE,
    "policy.momentum": "AdamW is used",
    "policy.target_update_freq_for_intrinsic_reward": _RND,
    "policy.ignore_done": "a termination ends what can be gained, a truncation does not",
    "policy.random_collect_episode_num": "at first every action is as likely: the first games are random by themselves",
    "policy.eps.*": _EXPLORES,
    "policy.value_delta_max": "values are normalised by the extremes of each tree (value_norm_floor)",
    "policy.mcts_ctree": "the search is compiled",
    "policy.reuse_search": "every search begins anew",
    "policy.reanalyze_noise": "a search for targets has the noise of one that collects",
    "policy.buffer_reanalyze_freq": "reanalyze_ratio says how many targets are made again",
    "policy.monitor_extra_statistics": _LOGS,
    "policy.eval_offline": "evaluations are beside the training (evaluate_in_background)",
    "policy.cal_dormant_ratio": _LOGS,
    "policy.analysis_sim_norm": _LOGS,
    "policy.analysis_dormant_ratio": _LOGS,
    "policy.dormant_threshold": _LOGS,
    "policy.transform2string": "pictures are kept as bytes",
    "policy.use_augmentation": _PICTURES,
    "policy.augmentation": _PICTURES,
    "policy.evaluator_check_interval": "an evaluation begins when its version is published: nobody looks at intervals",
    "policy.thread_timeout": "every wait has a deadline of its own (collect_deadline_s and its neighbours)",
    "policy.use_adaptive_entropy_weight": _ENTROPY,
    "policy.adaptive_entropy_alpha_lr": _ENTROPY,
    "policy.target_entropy_start_ratio": _ENTROPY,
    "policy.target_entropy_end_ratio": _ENTROPY,
    "policy.target_entropy_decay_steps": _ENTROPY,
    "policy.use_encoder_clip_annealing": _NORMS,
    "policy.encoder_clip_anneal_type": _NORMS,
    "policy.encoder_clip_start_value": _NORMS,
    "policy.encoder_clip_end_value": _NORMS,
    "policy.encoder_clip_anneal_steps": _NORMS,
    "policy.latent_norm_clip_threshold": _NORMS,
    "policy.use_head_clip": _LOGITS,
    "policy.head_clip_config.*": _LOGITS,
    "policy.policy_ls_eps_start": _SMOOTHED,
    "policy.policy_ls_eps_end": _SMOOTHED,
    "policy.policy_ls_eps_decay_steps": _SMOOTHED,
    "policy.use_continuous_label_smoothing": _SMOOTHED,
    "policy.continuous_ls_eps": _SMOOTHED,
    "policy.monitor_norm_freq": _LOGS,
    "policy.kv_cache_clear_interval": _BY_NODE,
    "policy.use_new_cache_manager": _BY_NODE,
    "policy.learn.*": "the learner's settings are those of the recipe",
    f"{MODEL}.observation_shape": _SPEC,
    f"{MODEL}.action_space_size": _SPEC,
    f"{MODEL}.image_channel": _SPEC,
    f"{MODEL}.downsample": "pictures are halved until they are small",
    f"{MODEL}.lstm_hidden_size": "there is no LSTM",
    f"{MODEL}.norm_type": _NORMS,
    f"{MODEL}.use_sim_norm": _NORMS,
    f"{MODEL}.use_sim_norm_kl_loss": _LATENTS,
    f"{MODEL}.bias": _SHAPE,
    f"{MODEL}.res_connection_in_dynamics": _SHAPE,
    f"{MODEL}.encoder_type": _SHAPE,
    f"{MODEL}.representation_network_type": _SHAPE,
    f"{MODEL}.discrete_action_encoding_type": _SHAPE,
    f"{MODEL}.reward_head_hidden_channels": _SHAPE,
    f"{MODEL}.value_head_hidden_channels": _SHAPE,
    f"{MODEL}.policy_head_hidden_channels": _SHAPE,
    f"{MODEL}.reward_head_channels": _SHAPE,
    f"{MODEL}.value_head_channels": _SHAPE,
    f"{MODEL}.policy_head_channels": _SHAPE,
    f"{MODEL}.analysis_sim_norm": _LOGS,
    f"{MODEL}.analysis_dormant_ratio": _LOGS,
    f"{MODEL}.learn.*": "policy.learn says it",
    f"{MODEL}.collector_env_num": "policy.collector_env_num says it",
    f"{MODEL}.evaluator_env_num": "an evaluation plays its episodes side by side",
    f"{WORLD}.action_space_size": _SPEC,
    f"{WORLD}.obs_type": _SPEC,
    f"{WORLD}.env_num": "policy.collector_env_num says it",
    f"{WORLD}.evaluator_env_num": "an evaluation plays its episodes side by side",
    f"{WORLD}.game_segment_length": "policy.game_segment_length says it",
    f"{WORLD}.max_blocks": _LENGTH,
    f"{WORLD}.max_tokens": _LENGTH,
    f"{WORLD}.context_length_for_recurrent": "a search attends along its own path, attention_steps back",
    f"{WORLD}.max_cache_size": _BY_NODE,
    f"{WORLD}.use_new_cache_manager": _BY_NODE,
    f"{WORLD}.rotary_emb": _ROTATIONS,
    f"{WORLD}.rope_theta": _ROTATIONS,
    f"{WORLD}.max_seq_len": _ROTATIONS,
    f"{WORLD}.embed_pdrop": _DROPOUT,
    f"{WORLD}.resid_pdrop": _DROPOUT,
    f"{WORLD}.attn_pdrop": _DROPOUT,
    f"{WORLD}.gru_gating": _SHAPE,
    f"{WORLD}.norm_type": _NORMS,
    f"{WORLD}.final_norm_option_in_obs_head": _NORMS,
    f"{WORLD}.final_norm_option_in_head": _NORMS,
    f"{WORLD}.final_norm_option_in_encoder": _NORMS,
    f"{WORLD}.encoder_type": _SHAPE,
    f"{WORLD}.lora_r": _DENSE,
    f"{WORLD}.lora_alpha": _DENSE,
    f"{WORLD}.lora_dropout": _DENSE,
    f"{WORLD}.moe_in_transformer": _DENSE,
    f"{WORLD}.multiplication_moe_in_transformer": _DENSE,
    f"{WORLD}.num_experts_of_moe_in_transformer": _DENSE,
    f"{WORLD}.use_priority": "policy.use_priority says it",
    f"{WORLD}.optim_type": "policy.optim_type says it",
    f"{WORLD}.use_policy_logits_clip": _LOGITS,
    f"{WORLD}.policy_logits_clip_min": _LOGITS,
    f"{WORLD}.policy_logits_clip_max": _LOGITS,
    f"{WORLD}.group_size": _NORMS,
    f"{WORLD}.predict_latent_loss_type": _LATENTS,
    f"{WORLD}.gamma": "policy.discount_factor says it",
    f"{WORLD}.dormant_threshold": _LOGS,
    f"{WORLD}.analysis_sim_norm": _LOGS,
    f"{WORLD}.analysis_dormant_ratio": _LOGS,
}
"""Accepted, said to have no effect when the run begins, and why. `.*` is everything below."""

GROUPS = {path.partition(".")[0] for path in (*PATHS, *WITHOUT_EFFECT)}


# -- said alone -------------------------------------------------------------------------------------

_MEANS_NOTHING_ALONE = {"type", "import_names", "device", "gamma", "attention", "bias", "continuous"}


def _alone() -> dict[str, str]:
    """By the last part of a path, the first path that ends so: those of `policy` before those of `env`."""
    return _last_parts((*PATHS, *WITHOUT_EFFECT))


def _last_parts(paths: Iterable[str]) -> dict[str, str]:
    said: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: path.startswith("env")):
        name = path.rpartition(".")[2]
        if name != "*" and name not in _MEANS_NOTHING_ALONE:
            said.setdefault(name, path)
    return said


ALONE = _alone()
"""Names that are understood without the groups they are in, and the paths they stand for."""
PRIOR_ALONE = _last_parts((*priorzero.PATHS, *priorzero.WITHOUT_EFFECT))
"""The same of what only PriorZero has."""


def path_of(name: str, fields: Collection[str]) -> str | None:
    """The path that a flat name stands for in a recipe that searches."""
    if "num_simulations" not in fields:
        return None
    return ALONE.get(name) or (PRIOR_ALONE.get(name) if by.is_priorzero(fields) else None)


def recipe_for(path: str, value: object) -> str | None:
    """A recipe that a path can be explained in; None: it is none of these."""
    if path.partition(".")[0] not in GROUPS:
        return None
    if path in priorzero.PATHS or path in priorzero.WITHOUT_EFFECT:
        return "priorzero"
    if path == by.POLICY_TYPE:
        return RECIPES.get(str(value), "muzero")
    return "unizero" if path.startswith(WORLD) or path == "policy.target_update_theta" else "muzero"
