"""Names of CleanRL's PPO files, as rows."""

from __future__ import annotations

from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import Meaning, whole
from headway.tools.names.rows_peer_rows import (
    Beside,
    absent,
    divided,
    must_be,
    nothing,
    said,
    segment_batch,
    table,
    updates_for,
)

STEPS = segment_batch()
OF_REPLAYS = "PPO learns from each segment once; DQN, SAC and TD3 are not here"


def _minibatches(value: SettingValue, beside: Beside) -> Meaning:
    count, size = whole("num_minibatches", value), STEPS(beside)
    return {"minibatch_size": divided("the batch", size, count, "num_minibatches")}


def _anneal(value: SettingValue, beside: Beside) -> Meaning:
    return {"final_learning_rate": 0.0} if value else {}


def _clips_values(value: SettingValue, beside: Beside) -> Meaning:
    return {"value_clip": beside.value("clip", "clip_coef")} if value else {}


NAMES = table(
    said("env_id", "env", "CartPole-v1"),
    said("exp_name", "name", "ppo"),
    said("num_steps", "segment_steps", 128),
    said("total_timesteps", "updates", 500_000, updates_for("total_timesteps", STEPS)),
    said("anneal_lr", "final_learning_rate=0", True, _anneal),
    said("gae_lambda", "lam", 0.95),
    said("num_minibatches", "minibatch_size", 4, _minibatches),
    said("update_epochs", "num_epochs", 4),
    said("clip_coef", "clip", 0.2),
    said("clip_vloss", "value_clip", True, _clips_values),
    said("ent_coef", "entropy_weight", 0.01),
    said("vf_coef", "value_weight", 0.5),
    said("track", "use_wandb", False),
    said("wandb_project_name", "wandb_project", "cleanRL"),
    must_be("norm_adv", True, "advantages are scaled to deviation 1"),
    nothing("torch_deterministic", "a run can be repeated bit for bit", True),
    nothing("cuda", "learner_gpus says where the learner computes", True),
    nothing("wandb_entity", "W&B's own settings say whose project it is", "me"),
    nothing("capture_video", "headway watch RUN shows what was learned", False),
    nothing("batch_size", "it is num_envs * num_steps", 512),
    nothing("minibatch_size", "it is batch_size / num_minibatches", 128),
    nothing("num_iterations", "it is total_timesteps / batch_size", 1000),
    nothing("num_updates", "it is total_timesteps / batch_size", 1000),
    said("gym_id", "env", "CartPole-v1"),
    said("local_num_envs", "num_envs", 8),
    said("num_actor_threads", "collectors", 2),
    said("concurrency", "max_lead (false: 0)", True, lambda value, beside: {"max_lead": 1 if value else 0}),
    must_be("upload_model", False, "nothing is sent anywhere; headway export writes a file"),
    nothing("save_model", "weights are kept in the folder of the run", True),
    nothing("hf_entity", "nothing is sent anywhere; headway export writes a file", "me"),
    nothing("actor_device_ids", "collectors act on the CPU; learner_gpus says where the learner computes", [0]),
    nothing("learner_device_ids", "collectors act on the CPU; learner_gpus says where the learner computes", [0]),
    nothing("async_batch_size", "with --stepping first_ready min_ready says how many copies are waited for", 16),
    nothing("profile", "the report says where the time went", False),
    *(
        absent(name, OF_REPLAYS)
        for name in (
            "buffer_size",
            "learning_starts",
            "train_frequency",
            "tau",
            "start_e",
            "end_e",
            "exploration_fraction",
        )
    ),
)
