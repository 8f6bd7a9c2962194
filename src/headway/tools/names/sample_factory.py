"""Names of Sample Factory's APPO, as rows."""

from __future__ import annotations

from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import Meaning, whole
from headway.tools.names.rows_peer_rows import (
    Beside,
    device,
    memory_size,
    must_be,
    nothing,
    said,
    segment_batch,
    table,
    updates_for,
)

COPIES, ROLLOUT = ("num_envs_per_worker",), ("rollout",)
STEPS = segment_batch(COPIES, ROLLOUT)


def _is_async(value: SettingValue, beside: Beside) -> Meaning:
    return {} if value else {"max_lead": 0}


def _minibatch(value: SettingValue, beside: Beside) -> Meaning:
    return {"minibatch_size": whole("batch_size", value)}


def _vtrace(value: SettingValue, beside: Beside) -> Meaning:
    return {"correction": "vtrace"} if value else {}


def _decays(value: SettingValue, beside: Beside) -> Meaning:
    if value == "constant":
        return {}
    if value == "linear_decay":
        return {"final_learning_rate": 0.0}
    raise ValueError(f"lr_schedule={value!r}: constant and linear_decay are possible here; target_kl ends passes early")


def _memory(value: SettingValue, beside: Beside) -> Meaning:
    if not beside.is_said("use_rnn"):
        return "use_rnn says whether there is a memory"
    return _remembers(beside.value("memory", "use_rnn") is True, beside)


def _remembers(value: SettingValue, beside: Beside) -> Meaning:
    return {
        "memory": (beside.value("memory", "rnn_type") if beside.is_said("rnn_type") else "gru") if value else "none"
    }


def _encoder(value: SettingValue, beside: Beside) -> Meaning:
    kinds = {"convnet_atari": "nature", "resnet_impala": "impala"}
    if str(value) not in kinds:
        raise ValueError(f"encoder_conv_architecture={value!r}: allowed are {', '.join(kinds)} (network)")
    return {"network": kinds[str(value)]}


NAMES = table(
    said("experiment", "name", "default_experiment"),
    said("num_workers", "collectors", 8),
    said("num_envs_per_worker", "num_envs", 2),
    said("rollout", "segment_steps", 32),
    said("batch_size", "minibatch_size", 1024, _minibatch),
    said("train_for_env_steps", "updates", 10_000_000, updates_for("train_for_env_steps", STEPS)),
    said("train_for_seconds", "wall_s", 600),
    said("gae_lambda", "lam", 0.95),
    said("ppo_clip_ratio", "clip", 0.1),
    said("ppo_clip_value", "value_clip", 1.0),
    said("exploration_loss_coeff", "entropy_weight", 0.003),
    said("value_loss_coeff", "value_weight", 0.5),
    said("max_policy_lag", "max_staleness", 1000),
    said("with_vtrace", "correction=vtrace", True, _vtrace),
    said("async_rl", "max_lead (false: 0)", True, _is_async),
    said("lr_schedule", "final_learning_rate", "constant", _decays),
    said("normalize_input", "normalise", True),
    said("encoder_mlp_layers", "hidden", [64, 64]),
    said("save_every_sec", "save_every_s", 120),
    said("with_wandb", "use_wandb", False),
    said("keep_checkpoints", "keep_checkpoints", 2),
    said("use_rnn", "memory", True, _remembers),
    said("rnn_type", "(with use_rnn: memory)", "gru", _memory),
    said("rnn_size", "(with use_rnn: memory_size)", 512, memory_size("use_rnn")),
    must_be("rnn_num_layers", 1, "a memory has one layer"),
    nothing("value_bootstrap", "an episode that is cut counts with the value of what comes next", True),
    nothing("recurrence", "a memory learns from whole segments", 32),
    said("encoder_conv_architecture", "network", "convnet_atari", _encoder),
    said("encoder_conv_mlp_layers", "hidden", [512]),
    must_be("decoder_mlp_layers", [], "hidden has all layers"),
    must_be("nonlinearity", "tanh", "layers of vectors end in tanh"),
    must_be("policy_initialization", "orthogonal", "weights begin orthogonal"),
    nothing("actor_critic_share_weights", "policy and value have a tower each, and one trunk for pictures", True),
    must_be("adaptive_stddev", False, "the deviation of actions does not depend on the observation"),
    must_be("initial_stddev", 1.0, "actions begin with a deviation of 1"),
    must_be("continuous_tanh_scale", 0.0, "actions are clipped to the bounds of the space"),
    said("env_frameskip", "frame_skip", 4),
    said("env_framestack", "frame_stack", 4),
    said("device", "learner_gpus", "cpu", device),
    said("experiment_summaries_interval", "metrics_interval_s", 10),
    must_be("optimizer", "adam", "Adam is what there is"),
    must_be("adam_eps", 1e-5, "Adam's are fixed"),
    must_be("adam_beta1", 0.9, "Adam's are fixed"),
    must_be("adam_beta2", 0.999, "Adam's are fixed"),
    must_be("kl_loss_coeff", 0.0, "the ratio is clipped, and target_kl ends the passes early"),
    must_be("vtrace_rho", 1.0, "V-trace cuts ratios at 1"),
    must_be("vtrace_c", 1.0, "V-trace cuts ratios at 1"),
    must_be("reward_scale", 1.0, "normalise_rewards scales them"),
    must_be("reward_clip", 1000.0, "clip_rewards takes their sign"),
    must_be("obs_subtract_mean", 0.0, "normalise does that by the mean that is seen"),
    must_be("obs_scale", 1.0, "bytes are divided by 255, and normalise scales the rest", 255.0),
    must_be("actor_worker_gpus", [], "collectors act on the CPU"),
    must_be("env_gpu_actions", False, "collectors act on the CPU"),
    must_be("env_gpu_observations", False, "collectors act on the CPU"),
    must_be("with_pbt", False, "a run trains one policy"),
    must_be("save_milestones_sec", -1, "keep_checkpoints says how many stay"),
    nothing("shuffle_minibatches", "every pass is shuffled", True),
    nothing("policy_workers_per_policy", "a collector acts for its own copies", 1),
    nothing("restart_behavior", "headway resume RUN goes on with a run", "resume"),
    nothing("load_checkpoint_kind", "headway resume RUN goes on with a run", "latest"),
    *(nothing(name, "keep_best keeps the best weights", 1) for name in ("save_best_every_sec", "save_best_after")),
    nothing("save_best_metric", "keep_best keeps the best weights", "reward"),
    must_be("normalize_input_keys", None, "normalise scales all that is observed"),
    nothing("decorrelate_experience_max_seconds", "copies begin with seeds of their own", 0),
    nothing("decorrelate_envs_on_one_worker", "copies begin with seeds of their own", True),
    *(
        nothing(name, "target_kl ends passes early", example)
        for name, example in (("lr_schedule_kl_threshold", 0.008), ("lr_adaptive_min", 1e-6), ("lr_adaptive_max", 1e-2))
    ),
    nothing("wandb_tags", "wandb_group and wandb_job_type say where a run belongs", []),
    nothing("stats_avg", "every update is recorded", 100),
    nothing("flush_summaries_interval", "every update is recorded", 30),
    nothing("log_to_file", "run.log is always written", True),
    *(
        nothing(name, "every wait has a deadline", 60)
        for name in ("heartbeat_interval", "heartbeat_reporting_interval")
    ),
    nothing("set_workers_cpu_affinity", "the operating system places processes", True),
    nothing("force_envs_single_thread", "the operating system places processes", False),
    nothing("default_niceness", "the operating system places processes", 0),
    nothing("pixel_format", "pictures are read in any layout", "CHW"),
    nothing("use_record_episode_statistics", "returns and lengths of episodes are always recorded", False),
    nothing("use_env_info_cache", "spaces are asked for once", False),
    nothing("wandb_user", "W&B's own settings say whose project it is", "me"),
    must_be("normalize_returns", False, "returns are used as they are"),
    must_be("exploration_loss", "entropy", "staying undecided is what is rewarded"),
    must_be("algo", "APPO", "PPO is what there is of its algorithms"),
    nothing("worker_num_splits", "collectors act and step at the same time as others", 2),
    must_be("num_policies", 1, "a run trains one policy"),
    nothing("num_batches_to_accumulate", "max_lead says how far collection runs ahead", 2),
    nothing("num_batches_per_epoch", "minibatch_size says how large they are", 1),
    nothing("serial_mode", "runtime=inline does that", False),
    nothing("batched_sampling", "all copies of a collector act together", True),
    nothing("train_dir", "--runs says where a run is kept", "train_dir"),
)
