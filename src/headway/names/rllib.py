"""Names of RLlib's PPO and IMPALA, old and new ones, as rows."""

from __future__ import annotations

from headway.core.opaque import SettingValue
from headway.names.peer_rows import Beside, divided, must_be, nothing, said, table
from headway.names.rows import Meaning, by_path, row, whole

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
    said("num_learners", "learner_ranks", 1, lambda value, beside: {"learner_ranks": 1 if value == 0 else value}),
    said("num_gpus_per_learner", "learner_gpus", 1),
    said("evaluation_interval", "evaluate_every", 10),
    said("evaluation_duration", "eval_episodes", 20),
    said("evaluation_parallel_to_training", "evaluate_in_background", True),
    said(
        "restart_failed_env_runners", "max_restarts", True, lambda value, beside: {} if value else {"max_restarts": 0}
    ),
    must_be("use_gae", True, "advantages are GAE's"),
    must_be("use_critic", True, "PPO has a critic here"),
    must_be("kl_coeff", 0.0, "the ratio is clipped, and target_kl ends the passes early"),
    must_be("use_kl_loss", False, "the ratio is clipped, and target_kl ends the passes early"),
    nothing("framework", "PyTorch computes", "torch"),
    nothing("shuffle_batch_per_epoch", "every pass is shuffled", True),
    nothing("batch_mode", "segments are cut by steps, and bootstrapped", "truncate_episodes"),
    nothing("num_cpus_per_env_runner", "torch_threads says how many", 1),
)

PATHS = by_path(
    row("model.fcnet_hiddens", "hidden", [64, 64]),
)
WITHOUT_EFFECT: dict[str, str] = {
    "model.fcnet_activation": "layers end in tanh",
    "model.vf_share_layers": "policy and value have a tower each",
}
"""Accepted, said to have no effect when the run begins, and why."""
