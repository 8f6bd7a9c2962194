"""Names of RLlib's PPO and IMPALA, old and new ones, as rows."""

from __future__ import annotations

from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import Meaning, by_path, row, whole
from headway.tools.names.rows_peer_rows import (
    Beside,
    absent,
    divided,
    memory_size,
    must_be,
    nothing,
    remembers,
    said,
    table,
)

RUNNERS = ("num_env_runners", "num_workers", "num_rollout_workers")
COPIES = ("num_envs_per_env_runner", "num_envs_per_worker")
MINIBATCH = ("sgd_minibatch_size",)
TRAIN_BATCH = ("train_batch_size", "train_batch_size_per_learner")


def _runners(value: SettingValue, beside: Beside) -> Meaning:
    return {"collectors": 1 if value == 0 else value}  # 0: in the process of the algorithm, which is one too


def _fragment(value: SettingValue, beside: Beside) -> Meaning:
    if value != "auto":
        return {"segment_steps": value}
    if not beside.is_said(*TRAIN_BATCH):
        return {}
    batch = next(beside.number(name) for name in TRAIN_BATCH if beside.is_said(name))
    runners = max(1, int(str(beside.value("collectors", *RUNNERS))))
    copies = beside.number("num_envs", *COPIES)
    return {"segment_steps": divided("train_batch_size", batch, runners * copies, "copies in all env runners")}


def _train_batch(value: SettingValue, beside: Beside) -> Meaning:
    """Steps per update: so many segments of one runner's copies."""
    if beside.value("rollout_fragment_length") == "auto":
        return {"tickets_per_batch": max(1, int(str(beside.value("collectors", *RUNNERS))))}
    size = beside.number("num_envs", *COPIES) * beside.number("segment_steps", "rollout_fragment_length")
    steps = whole("train_batch_size", value)
    return {"tickets_per_batch": divided("train_batch_size", steps, size, "steps of one segment of all copies")}


def _restarts(value: SettingValue, beside: Beside) -> Meaning:
    return {} if value else {"max_restarts": 0}


def _vtrace(value: SettingValue, beside: Beside) -> Meaning:
    return {"correction": "vtrace"} if value else {}


def _filter(value: SettingValue, beside: Beside) -> Meaning:
    kinds = {"NoFilter": False, "MeanStdFilter": True}
    if str(value) not in kinds:
        raise ValueError(f"observation_filter={value!r}: allowed are {', '.join(kinds)} (normalise)")
    return {"normalise": kinds[str(value)]}


def _steps(value: SettingValue, beside: Beside) -> Meaning:
    """All steps of a run, which then is as many updates as they take."""
    return {"steps": value, **({} if beside.is_said("updates", "training_iteration") else {"updates": None})}


def _failing(value: SettingValue, beside: Beside) -> Meaning:
    return {"on_failure": "drop"} if value else {}


LEARNERS = ("num_learners", "num_learner_workers")
RESTARTS = ("restart_failed_env_runners", "recreate_failed_env_runners", "recreate_failed_workers")
PLACED = (
    *(
        "num_cpus_per_env_runner",
        "num_cpus_per_worker",
        "num_cpus_per_learner",
        "num_cpus_per_learner_worker",
        "num_cpus",
    ),
)
SEVERAL_AGENTS = "environments with several agents are not possible"

NAMES = table(
    *(said(name, "collectors", 4, _runners) for name in RUNNERS),
    *(said(name, "num_envs", 8) for name in COPIES),
    said("rollout_fragment_length", "segment_steps", 128, _fragment),
    *(said(name, "tickets_per_batch", 4096, _train_batch) for name in TRAIN_BATCH),
    said("sgd_minibatch_size", "minibatch_size", 256),
    said("num_sgd_iter", "num_epochs", 10),
    said("lr", "learning_rate", 5e-5),
    said("lambda_", "lam", 0.95),
    said("lambda", "lam", 0.95),
    said("clip_param", "clip", 0.3),
    said("vf_clip_param", "value_clip", 10.0),
    said("vf_loss_coeff", "value_weight", 1.0),
    said("entropy_coeff", "entropy_weight", 0.01),
    said("grad_clip", "max_grad_norm", 0.5),
    said("kl_target", "target_kl", 0.01),
    said("vtrace", "correction=vtrace", True, _vtrace),
    said("fcnet_hiddens", "hidden", [64, 64]),
    *(
        said(name, "learner_ranks", 1, lambda value, beside: {"learner_ranks": 1 if value == 0 else value})
        for name in LEARNERS
    ),
    *(said(name, "learner_gpus", 1) for name in ("num_gpus_per_learner", "num_gpus")),
    said("evaluation_interval", "evaluate_every", 10),
    said("evaluation_duration", "eval_episodes", 20),
    said("evaluation_parallel_to_training", "evaluate_in_background", True),
    *(said(name, "max_restarts", True, _restarts) for name in RESTARTS),
    *(said(name, "max_restarts", 10) for name in ("max_num_env_runner_restarts", "max_num_worker_restarts")),
    *(said(name, "on_failure", True, _failing) for name in ("ignore_env_runner_failures", "ignore_worker_failures")),
    said("sample_timeout_s", "collect_deadline_s", 60.0),
    said("env_config", "env_kwargs", {"render_mode": None}),
    said("horizon", "time_limit", 200),
    said("observation_filter", "normalise", "MeanStdFilter", _filter),
    said("use_lstm", "memory", True, remembers("lstm")),
    said("lstm_cell_size", "(with use_lstm: memory_size)", 256, memory_size("use_lstm")),
    said("broadcast_interval", "publish_every", 1),
    said("training_iteration", "updates", 100),
    said("timesteps_total", "steps", 100_000, _steps),
    said("num_env_steps_sampled_lifetime", "steps", 100_000, _steps),
    said("checkpoint_freq", "save_every", 10),
    must_be("use_gae", True, "advantages are GAE's"),
    must_be("use_critic", True, "PPO has a critic here"),
    must_be("kl_coeff", 0.0, "the ratio is clipped, and target_kl ends the passes early"),
    must_be("use_kl_loss", False, "the ratio is clipped, and target_kl ends the passes early"),
    nothing("framework", "PyTorch computes", "torch"),
    nothing("shuffle_batch_per_epoch", "every pass is shuffled", True),
    nothing("batch_mode", "segments are cut by steps, and bootstrapped", "truncate_episodes"),
    *(nothing(name, "torch_threads says how many", 1) for name in PLACED),
    must_be("grad_clip_by", "global_norm", "max_grad_norm is of all gradients together"),
    must_be("explore", True, "actions are drawn while collecting"),
    must_be("fcnet_activation", "tanh", "layers end in tanh"),
    must_be("evaluation_duration_unit", "episodes", "eval_episodes counts episodes"),
    must_be("num_gpus_per_env_runner", 0, "collectors act on the CPU"),
    must_be("num_gpus_per_worker", 0, "collectors act on the CPU"),
    must_be("replay_proportion", 0.0, "segments are learned from once"),
    must_be("vtrace_clip_rho_threshold", 1.0, "V-trace cuts ratios at 1"),
    must_be("vtrace_clip_pg_rho_threshold", 1.0, "V-trace cuts ratios at 1"),
    must_be("opt_type", "adam", "Adam is what there is"),
    must_be("num_samples", 1, "headway sweep RECIPE --seeds N runs several"),
    must_be("normalize_actions", True, "a policy's actions are those of the environment", False),
    must_be("clip_actions", True, "actions are clipped to the bounds of the space"),
    nothing("max_seq_len", "a memory learns from whole segments", 20),
    nothing("vf_share_layers", "policy and value have a tower each, and one trunk for pictures", False),
    nothing("evaluation_num_env_runners", "one evaluator plays eval_episodes at once", 1),
    nothing("evaluation_num_workers", "one evaluator plays eval_episodes at once", 1),
    nothing("max_requests_in_flight_per_env_runner", "max_lead says how far collection runs ahead", 2),
    nothing("learner_queue_size", "max_lead says how far collection runs ahead", 16),
    nothing("num_aggregation_workers", "segments go straight to the learner", 0),
    nothing("num_aggregator_actors_per_learner", "segments go straight to the learner", 0),
    nothing("compress_observations", "segments travel in shared memory", False),
    nothing("remote_worker_envs", "stepping and env_workers say where copies step", False),
    nothing("gym_env_vectorize_mode", "stepping and env_workers say where copies step", "SYNC"),
    nothing("create_env_on_driver", "the driver needs no environment", False),
    nothing("create_local_env_runner", "the driver needs no environment", False),
    nothing("render_env", "headway watch RUN shows what was learned", False),
    nothing("checkpoint_at_end", "the end of a run is always kept", True),
    nothing("local_dir", "--runs says where a run is kept", "runs"),
    nothing("storage_path", "--runs says where a run is kept", "runs"),
    nothing("min_time_s_per_iteration", "every update is recorded", 0),
    nothing("min_sample_timesteps_per_iteration", "every update is recorded", 0),
    nothing("metrics_num_episodes_for_smoothing", "every update is recorded", 100),
    nothing("keep_per_episode_custom_metrics", "every update is recorded", False),
    nothing("enable_rl_module_and_learner", "there is one API", True),
    nothing("enable_env_runner_and_connector_v2", "there is one API", True),
    absent("lr_schedule", "final_learning_rate says where the learning rate ends"),
    absent("entropy_coeff_schedule", "the weight of entropy stays as entropy_weight says"),
    absent(
        "callbacks", "headway.start gives back a Run that can be looked at and stopped, and monitor calls a function"
    ),
    absent("evaluation_config", "evaluations play a copy of env, with the most likely actions"),
    absent("conv_filters", "network says which convolutions: small, nature, impala or conv"),
    absent("preprocessor_pref", "atari, grey, resize and frame_stack say what is done to pictures"),
    *(absent(name, SEVERAL_AGENTS) for name in ("multiagent", "policies", "policy_mapping_fn", "policies_to_train")),
)

PATHS = by_path(
    row("model.fcnet_hiddens", "hidden", [64, 64]),
    row("model.use_lstm", "memory", True, lambda value, theirs, fields: {"memory": "lstm" if value else "none"}),
    row("model.lstm_cell_size", "memory_size", 256),
)
WITHOUT_EFFECT: dict[str, str] = {
    "model.fcnet_activation": "layers end in tanh",
    "model.vf_share_layers": "policy and value have a tower each, and one trunk for pictures",
    "model.max_seq_len": "a memory learns from whole segments",
}
"""Accepted, said to have no effect when the run begins, and why."""
