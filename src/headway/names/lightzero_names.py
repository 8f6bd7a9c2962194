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

from collections.abc import Collection
from typing import Any

from headway.core.naming import unknown
from headway.names.known_names import KNOWN_NAMES
from headway.names.known_paths import KnownPath, Meaning, Theirs, Translate, only, same

RECIPES = {"muzero": "muzero", "gumbel_muzero": "muzero", "unizero": "unizero"}
"""By `create_config.policy.type`."""
ENVIRONMENTS = {
    "cartpole_lightzero": "CartPole-v0",
    "connect4": "connect_four",
    "lunarlander": None,
    "mountain_car_lightzero": "MountainCar-v0",
    "tictactoe": "tictactoe",
}
"""By `create_config.env.type`; None: env_id says it."""
BOARDS = ("tictactoe", "connect4")

MODEL = "policy.model"
WORLD = f"{MODEL}.world_model_cfg"
ENV_TYPE, ENV_ID, ENV_NAME = "env.type", "env.env_id", "env.env_name"
POLICY_TYPE, GUMBEL = "policy.type", "policy.gumbel_algo"


def is_unizero(fields: Collection[str]) -> bool:
    return "context_steps" in fields


def _is_gumbel(theirs: Theirs) -> bool:
    return bool(theirs.get(GUMBEL)) or theirs.get(POLICY_TYPE) == "gumbel_muzero"


def _is_board(theirs: Theirs) -> bool:
    return theirs.get(ENV_TYPE) in BOARDS


# -- ways to translate ------------------------------------------------------------------------------


def _env(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    kind, named = theirs.get(ENV_TYPE), theirs.get(ENV_ID, theirs.get(ENV_NAME))
    if kind is not None and kind not in ENVIRONMENTS:
        raise ValueError(
            f"{unknown('environment', str(kind), ENVIRONMENTS)}; for another leave env.type out and set env.env_id to "
            "one that is registered with Gymnasium, its wrappers included"
        )
    known = ENVIRONMENTS.get(str(kind))
    chosen = known if kind in BOARDS else named or known
    if chosen is None:
        raise ValueError("it needs env.env_id too")
    return {"env": chosen}


def _policy_type(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    recipe = RECIPES.get(str(value))
    if recipe is None:
        raise ValueError(unknown("policy", str(value), RECIPES))
    if recipe != ("unizero" if is_unizero(fields) else "muzero"):
        raise ValueError(f"that is the recipe {recipe}: headway run {recipe}")
    return _gumbel(value, theirs, fields) if recipe == "muzero" else "the recipe says it"


def _gumbel(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"root": "gumbel" if _is_gumbel(theirs) else "puct"}


def _with_puct(translate: Translate) -> Translate:
    def meaning(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if _is_gumbel(theirs):
            return "a Gumbel root explores by itself, without temperature and Dirichlet noise"
        return translate(value, theirs, fields)

    return meaning


def _considered(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"max_considered_actions": value} if _is_gumbel(theirs) else "only a Gumbel root has it"


def _of(recipe: str, ours: str, why: str) -> Translate:
    """In one of the two recipes, with the reason in the other."""

    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        return {ours: value} if is_unizero(fields) == (recipe == "unizero") else why

    return translate


def _stop_value(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if _is_board(theirs):
        return "a board game's score is the share of games won, and half of those drawn: set target_score"
    return {"target_score": value}


UPDATES = "policy.update_per_collect"


def _replay_ratio(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "update_per_collect says it" if UPDATES in theirs else {"replay_ratio": value}


def _start_after(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"replay_min_size": value} if value else "learning begins with replay_min_size steps: targets need them"


SSL, SSL_WEIGHT = f"{MODEL}.self_supervised_learning_loss", "policy.ssl_loss_weight"


def _consistency(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if is_unizero(fields):
        return "the next latent is always learned (latent_weight)"
    if theirs.get(SSL) is False:
        return {"consistency_weight": 0}
    weight = theirs.get(SSL_WEIGHT)
    return "consistency_weight says how much" if weight is None else {"consistency_weight": weight}


DECAY, FIXED = "policy.manual_temperature_decay", "policy.fixed_temperature_value"
DECAY_OVER = "policy.threshold_training_steps_for_final_temperature"
TEMPERATURE_PATHS = (DECAY, FIXED, DECAY_OVER, GUMBEL, POLICY_TYPE)
THEIR_TEMPERATURE = 0.25  # fixed, and where a decay ends


def _temperature(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if not theirs.get(DECAY):
        fixed = theirs.get(FIXED, THEIR_TEMPERATURE)
        return {"temperature": fixed, "final_temperature": fixed}
    over = {"temperature_versions": theirs[DECAY_OVER]} if DECAY_OVER in theirs else {}
    return {"temperature": 1.0, "final_temperature": THEIR_TEMPERATURE, **over}


def _decay_over(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if not theirs.get(DECAY):
        return "without manual_temperature_decay nothing decays"
    return _temperature(value, theirs, fields)


PRIORITY, ALPHA = "policy.use_priority", "policy.priority_prob_alpha"


def _priority(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if not theirs.get(PRIORITY, True):
        return {"replay_alpha": 0.0}
    return {"replay_alpha": theirs[ALPHA]} if ALPHA in theirs else "positions are drawn by priority (replay_alpha)"


def _beta(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"replay_beta_start": value, "replay_beta_end": value}


def _reach(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"value_range": value, "value_bins": 2 * value + 1}


def _span(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """(low, high, step), where high is not part of it."""
    low, high, step = value
    if not (low < 0 < step and abs(low + high - step) < 1e-6):
        raise ValueError("only (-reach, reach + step, step) is possible here: supports are symmetric")
    return {"value_range": -low, "value_bins": round((high - low) / step)}


MODEL_TYPE = f"{MODEL}.model_type"


def _model_type(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value not in ("mlp", "conv"):
        raise ValueError("only mlp or conv is possible here: a model begins with one observation")
    return {"network": "vector"} if value == "mlp" and not is_unizero(fields) else "what is seen decides"


def _width(kind: str) -> Translate:
    """Two names of one thing: which one counts depends on the model's type."""

    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if is_unizero(fields):
            return "a latent has embed_dim features"
        if theirs.get(MODEL_TYPE, kind) != kind:
            return f"model_type={theirs[MODEL_TYPE]} has none"
        return {"latent": value, **({"network": "board"} if kind == "conv" and _is_board(theirs) else {})}

    return translate


def _context(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Tokens, of which a step has two."""
    return "a board shows everything" if _is_board(theirs) else {"context_steps": value // 2}


def _cuda(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value and value != "cpu":
        return "learner_gpus and search_gpus say who gets a GPU; small networks are faster on a CPU"
    return {"learner_gpus": 0.0, "search_gpus": 0.0}


ASYNC = "policy.enable_async_training"


def _queue(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(ASYNC) is False:
        return "with enable_async_training off there is no queue"
    return KNOWN_NAMES["data_queue_size"].translate(value)


def _nothing_to_load(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    raise ValueError("weights of another program cannot be loaded: leave it out")


# -- the tables -------------------------------------------------------------------------------------


def _paths() -> list[KnownPath]:
    def known(path: str, ours: str, example: Any, translate: Translate | None = None, *reads: str) -> KnownPath:
        return KnownPath(path, ours, translate or same(ours), example, reads)

    def flat(name: str) -> Translate:
        return lambda value, theirs, fields: KNOWN_NAMES[name].translate(value)

    soft = "the target follows softly: target_update_theta"
    hard = "the target is moved at once, every target_update_freq updates"
    weights = "UniZero weighs its losses otherwise: value_weight"
    envs, gumbel = (ENV_TYPE, ENV_ID, ENV_NAME), (GUMBEL, POLICY_TYPE)
    return [
        known(ENV_ID, "env", "CartPole-v1", _env, *envs),
        known(ENV_NAME, "env", "CartPole-v1", _env, *envs),
        known(ENV_TYPE, "env (unless env_id says it)", "cartpole_lightzero", _env, *envs),
        known("env.stop_value", "target_score (not for boards)", 200, _stop_value, ENV_TYPE),
        known("env.collector_env_num", "num_envs", 8),
        known("env.n_evaluator_episode", "eval_episodes", 3),
        known(POLICY_TYPE, "root (gumbel_muzero: gumbel)", "muzero", _policy_type, GUMBEL),
        known(GUMBEL, "root (gumbel or puct)", True, _gumbel, POLICY_TYPE),
        known("policy.max_num_considered_actions", "max_considered_actions (gumbel)", 6, _considered, *gumbel),
        known("policy.collector_env_num", "num_envs", 8),
        known("policy.game_segment_length", "segment_steps", 50),
        known("policy.num_simulations", "num_simulations", 25),
        known("policy.collect_num_simulations", "num_simulations", 25),
        known("policy.eval_num_simulations", "eval_simulations", 50),
        known("policy.discount_factor", "gamma", 0.997),
        known("policy.td_steps", "td_steps", 5),
        known("policy.num_unroll_steps", "num_unroll_steps", 5),
        known("policy.batch_size", "batch_size", 256),
        known(
            UPDATES, "update_per_collect (of a ticket: num_envs * segment_steps steps)", 100, same("update_per_collect")
        ),
        known("policy.replay_ratio", "replay_ratio (unless update_per_collect)", 0.25, _replay_ratio, UPDATES),
        known("policy.train_start_after_envsteps", "replay_min_size (unless 0)", 2000, _start_after),
        known("policy.replay_buffer_size", "replay_capacity", 100_000),
        known(PRIORITY, "replay_alpha (0 when off)", False, _priority, ALPHA),
        known(ALPHA, "replay_alpha", 0.6, _priority, PRIORITY),
        known("policy.priority_prob_beta", "replay_beta_start, replay_beta_end", 0.4, _beta),
        known("policy.learning_rate", "learning_rate", 0.003),
        known("policy.weight_decay", "weight_decay", 1e-4),
        known("policy.grad_clip_value", "max_grad_norm", 5),
        known("policy.target_update_freq", "target_every (muzero)", 100, _of("muzero", "target_every", soft)),
        known("policy.target_update_theta", "target_tau (unizero)", 0.05, _of("unizero", "target_tau", hard)),
        known("policy.value_loss_weight", "value_weight (muzero)", 0.25, _of("muzero", "value_weight", weights)),
        known("policy.policy_entropy_weight", "entropy_weight", 0.005, same("entropy_weight")),
        known(SSL_WEIGHT, "consistency_weight (muzero)", 2, _consistency, SSL),
        known("policy.root_dirichlet_alpha", "root_dirichlet_alpha", 0.3),
        known(
            "policy.root_noise_weight", "root_noise_weight (puct)", 0.25, _with_puct(same("root_noise_weight")), *gumbel
        ),
        known("policy.pb_c_base", "pb_c_base", 19652),
        known("policy.pb_c_init", "pb_c_init", 1.25),
        known(DECAY, "temperature, final_temperature", True, _with_puct(_temperature), *TEMPERATURE_PATHS),
        known(FIXED, "temperature, final_temperature (puct)", 0.25, _with_puct(_temperature), *TEMPERATURE_PATHS),
        known(DECAY_OVER, "temperature_versions (if they decay)", 50_000, _with_puct(_decay_over), *TEMPERATURE_PATHS),
        known("policy.reanalyze_ratio", "reanalyze_ratio", 0.25),
        known("policy.reanalyze_partition", "reanalyze_partition", 0.75),
        known("policy.reanalyze_batch_size", "reanalyze_roots", 160),
        known("policy.eval_freq", "evaluate_every", 1000),
        known("policy.learn.learner.hook.save_ckpt_after_iter", "save_every", 10_000),
        known("policy.use_wandb", "use_wandb", False),
        known("policy.cuda", "learner_gpus, search_gpus (0 when off)", False, _cuda),
        known("policy.device", "learner_gpus, search_gpus (0 for cpu)", "cpu", _cuda),
        known("policy.label_smoothing_eps", "value_smoothing", 0.1),
        known("policy.off_policy_degree", "max_lead (-1: auto)", 4, flat("off_policy_degree")),
        known("policy.enable_async_eval", "evaluate_in_background", True),
        known(ASYNC, "max_lead (0 when off)", False, flat("enable_async_training")),
        known("policy.data_queue_size", "max_lead, order", 10, _queue, ASYNC),
        known("policy.enable_async_debug_log", "log_level (debug or info)", True, flat("enable_async_debug_log")),
        known(MODEL_TYPE, "network (mlp: vector; muzero)", "mlp", _model_type),
        known(SSL, "consistency_weight (0 when off; muzero)", False, _consistency, SSL_WEIGHT),
        known(f"{MODEL}.latent_state_dim", "latent (muzero, mlp)", 128, _width("mlp"), MODEL_TYPE),
        known(
            f"{MODEL}.num_channels",
            "latent, on boards network too (muzero, conv)",
            64,
            _width("conv"),
            MODEL_TYPE,
            ENV_TYPE,
        ),
        known(f"{MODEL}.num_res_blocks", "blocks (muzero)", 1, _of("muzero", "blocks", "a transformer has num_layers")),
        known(f"{MODEL}.support_scale", "value_range, value_bins (2 * scale + 1)", 300, _reach),
        known(f"{MODEL}.value_support_size", "value_bins", 601),
        known(f"{MODEL}.reward_support_size", "value_bins", 601),
        known(f"{MODEL}.value_support_range", "value_range, value_bins", (-300.0, 301.0, 1.0), _span),
        known(f"{MODEL}.reward_support_range", "value_range, value_bins", (-300.0, 301.0, 1.0), _span),
        known(f"{WORLD}.embed_dim", "dim", 64),
        known(f"{WORLD}.num_layers", "layers", 2),
        known(f"{WORLD}.num_heads", "heads", 4),
        known(f"{WORLD}.context_length", "context_steps (half as many; not for boards)", 8, _context, ENV_TYPE),
        known(f"{WORLD}.policy_entropy_weight", "entropy_weight", 0.005),
        known(f"{WORLD}.support_size", "value_bins", 601),
        known(f"{WORLD}.num_simulations", "num_simulations", 25),
        known(f"{WORLD}.collector_env_num", "num_envs", 8),
        known(f"{WORLD}.device", "learner_gpus, search_gpus (0 for cpu)", "cpu", _cuda),
        known("policy.model_path", "(refused)", "weights.pth.tar", _nothing_to_load),
        known("policy.load_path", "(refused)", "weights.pth.tar", _nothing_to_load),
        *(
            known(path, f"(only {' or '.join(map(str, allowed))})", allowed[0], only(*allowed, why=why))
            for path, allowed, why in _ONLY
        ),
    ]


_ACTIONS = "search needs actions that can be counted; wrap the environment"
_ONE_OBSERVATION = "an observation is taken as it comes; wrap the environment"
_LOSSES = "policy and reward have a weight of 1"
_RND = "there is no curiosity besides the search's"
_ONLY: tuple[tuple[str, tuple[Any, ...], str], ...] = (
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

PATHS: dict[str, KnownPath] = {known.path: known for known in _paths()}

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
    order = sorted((*PATHS, *WITHOUT_EFFECT), key=lambda path: path.startswith("env"))
    said: dict[str, str] = {}
    for path in order:
        name = path.rpartition(".")[2]
        if name != "*" and name not in _MEANS_NOTHING_ALONE:
            said.setdefault(name, path)
    return said


ALONE = _alone()
"""Names that are understood without the groups they are in, and the paths they stand for."""


def path_of(name: str, fields: Collection[str]) -> str | None:
    """The path that a flat name stands for in a recipe that searches."""
    return ALONE.get(name) if "num_simulations" in fields else None


def recipe_for(path: str, value: Any) -> str | None:
    """A recipe that a path can be explained in; None: it is none of these."""
    if path.partition(".")[0] not in GROUPS:
        return None
    if path == POLICY_TYPE:
        return RECIPES.get(str(value), "muzero")
    return "unizero" if path.startswith(WORLD) or path == "policy.target_update_theta" else "muzero"
