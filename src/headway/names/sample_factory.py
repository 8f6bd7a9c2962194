"""Names of Sample Factory's APPO, as rows."""

from __future__ import annotations

from headway.core.opaque import SettingValue
from headway.names.peer_rows import Beside, must_be, nothing, said, segment_batch, table, updates_for
from headway.names.rows import Meaning, whole

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
    must_be("use_rnn", False, "a network with a memory is `--memory gru` here"),
    must_be("normalize_returns", False, "returns are used as they are"),
    must_be("exploration_loss", "entropy", "staying undecided is what is rewarded"),
    nothing("algo", "the recipe says it", "APPO"),
    nothing("worker_num_splits", "collectors act and step at the same time as others", 2),
    nothing("num_policies", "a run trains one policy", 1),
    nothing("num_batches_to_accumulate", "max_lead says how far collection runs ahead", 2),
    nothing("num_batches_per_epoch", "minibatch_size says how large they are", 1),
    nothing("serial_mode", "runtime=inline does that", False),
    nothing("batched_sampling", "all copies of a collector act together", True),
    nothing("train_dir", "--out says where a run is kept", "train_dir"),
)
