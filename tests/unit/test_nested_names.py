"""The nested files of verl and its relatives: what each name is here, and that no name is ignored in silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

pytest.importorskip("torch")

from headway import cli
from headway.llm.train.grpo_loss_loss import LossSettings
from headway.runs.config import ConfigError, RunConfig, read_values, understand
from headway.runs.recipes_package import load_recipe
from headway.tools.names.translate_nested_paths import GROUPS, flatten, mean, resolve
from headway.tools.names.verl import OUR_WORDS, PATHS, WITHOUT_EFFECT
from headway.tools.names.verl_meanings import ESTIMATORS

DOCS = Path(__file__).parents[2] / "docs"
GRPO, GSM8K = load_recipe("grpo").config, load_recipe("gsm8k").config

ASYNC_TRAINING = """
async_training:
  staleness_threshold: 3
  max_staleness_allowed: 5
  max_queue_size: 1000
  min_batch_count: 1
  batch_timeout: 30.0
  generation_timeout: 30.0
  batch_generation_interval: 0.1
  max_sync_retries: 3
  sync_timeout: 30.0
  sync_retry_delay: 1.0
trainer:
  n_gpus_per_node: 4
  nnodes: 2
  device: cpu
rollout:
  n_gpus_per_node: 2
  nnodes: 1
"""

WHOLE = """
actor_rollout_ref:
  model: {path: some/model, lora_rank: 8, use_remove_padding: true}
  actor:
    strategy: fsdp
    ppo_mini_batch_size: 16
    ppo_epochs: 2
    clip_ratio: 0.2
    clip_ratio_high: 0.3
    use_kl_loss: true
    kl_loss_coef: 0.01
    entropy_coeff: 0.001
    loss_agg_mode: seq-mean-token-mean
    optim: {lr: 1e-6, lr_warmup_steps: -1, weight_decay: 0.1, betas: [0.9, 0.99]}
    fsdp_config: {param_offload: false, wrap_policy: {min_num_params: 0}}
  rollout: {name: hf, n: 5, temperature: 0.9, top_p: 0.95, top_k: -1, response_length: "${data.max_response_length}"}
  ref: {log_prob_micro_batch_size_per_gpu: 8}
algorithm: {adv_estimator: grpo, norm_adv_by_std_in_grpo: false, use_kl_in_reward: false, gamma: 1.0, lam: 0.95}
data:
  train_files: maths/train.jsonl
  val_files: maths/test.jsonl
  train_batch_size: 64
  max_prompt_length: 300
  max_response_length: 700
trainer:
  total_training_steps: 50
  total_epochs: 3
  save_freq: 20
  test_freq: -1
  logger: [console, tensorboard]
  project_name: sums
  experiment_name: first
  nccl_timeout: 600
  default_local_dir: null
"""


FULLY_ASYNC = """
hydra: {searchpath: [here]}
defaults: [ppo_trainer, _self_]
async_training:
  staleness_threshold: 0.5
  trigger_parameter_sync_step: 4
  require_batches: 2
  partial_rollout: false
  use_rollout_log_probs: true
  compute_prox_log_prob: false
  use_trainer_do_validate: false
  parallel_validate_and_rollout: true
  checkpoint_engine: {enable: false, device_buffer_size_M: 4096}
rollout: {nnodes: 1, n_gpus_per_node: 2, n: 4, total_rollout_steps: 640, total_epochs: 10, test_freq: 1}
data: {gen_batch_size: 1, train_batch_size: 0, trust_remote_code: false, val_max_samples: 50, return_raw_chat: true}
actor_rollout_ref:
  hybrid_engine: false
  nccl_timeout: 1800
  checkpoint_engine: "${oc.select:async_training.checkpoint_engine,null}"
  model: {use_remove_padding: true, use_fused_kernels: true, fused_kernel_options: {impl_backend: torch}}
  actor:
    use_rollout_log_probs: "${oc.select:async_training.use_rollout_log_probs,true}"
    ppo_mini_batch_size: 16
    use_fused_kernels: "${oc.select:actor_rollout_ref.model.use_fused_kernels,false}"
    optim: {_target_: a.Config, optimizer: AdamW, lr: 1e-6, clip_grad: 0.5}
    checkpoint: {save_contents: [model], load_contents: "${.save_contents}"}
  rollout: {name: hf, free_cache_engine: false, calculate_log_probs: true, multi_stage_wake_up: true}
reward:
  num_workers: 8
  reward_manager: {name: dapo}
  custom_reward_function: {path: null, name: compute_score}
  reward_model: {enable: false, rollout: {prompt_length: 2048}}
  reward_kwargs:
    overlong_buffer_cfg: {enable: true, len: 32, penalty_factor: 1.0, log: false}
    max_resp_len: 256
trainer:
  use_legacy_worker_impl: disable
  project_name: sums
  experiment_name: first
  default_local_dir: "kept/${trainer.project_name}/${trainer.experiment_name}"
ray_kwargs: {ray_init: {num_cpus: "${oc.decode:${oc.env:CPUS,null}}"}}
"""


def read(text: str, *more: dict[str, Any], kind: type[Any] = GSM8K) -> Any:
    return read_values(kind, yaml.safe_load(text) or {}, *more)


# -- whole files ------------------------------------------------------------------------------------


def test_the_file_of_the_asynchronous_trainer_is_understood() -> None:
    config = read(ASYNC_TRAINING)
    assert (config.max_lead, config.max_staleness, config.queue_capacity) == (3, 5, 1000)
    assert (config.data_deadline_s, config.pacing_s) == (30, 0.1)
    assert (config.generation_deadline_s, config.collect_deadline_s) == (30, 90)
    assert (config.publish_attempts, config.publish_deadline_s, config.publish_delay_s) == (4, 30, 1)
    assert (config.device, config.learner_ranks, config.collectors) == ("cpu", 8, 2)
    assert config.tickets_per_batch == 1


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_the_defaults_of_the_asynchronous_trainer_are_accepted_with_every_engine(engine: str) -> None:
    nested = yaml.safe_load(ASYNC_TRAINING)
    for values in (nested, nested["async_training"]):
        config = read_values(GSM8K, values, {"engine": engine})
        assert config.silence_s == 15  # half of sync_timeout
        assert config.engine_deadline_s is None
        again = read_values(GSM8K, config.model_dump(mode="json"))
        assert again == config
    with pytest.raises(ConfigError, match=r"^engine_deadline_s=30 must be below publish_deadline_s and collect_"):
        read_values(GSM8K, nested, {"engine": "vllm", "engine_deadline_s": 30})


def test_a_whole_file_is_understood() -> None:
    config = read(WHOLE)
    assert (config.model, config.lora_rank, config.data) == ("some/model", 8, "maths")
    assert (config.tickets_per_batch, config.num_minibatches, config.num_epochs) == (64, 4, 2)
    assert (config.clip_low, config.clip_high, config.kl_weight, config.entropy_weight) == (0.2, 0.3, 0.01, 0.001)
    assert (config.learning_rate, config.warmup_updates, config.weight_decay) == (1e-6, 0, 0.1)
    assert (config.adam_beta1, config.adam_beta2) == (0.9, 0.99)
    assert (config.engine, config.group_size, config.temperature) == ("transformers", 5, 0.9)
    assert (config.top_p, config.top_k) == (0.95, 0)
    assert (config.max_prompt_tokens, config.max_tokens) == (300, 700)
    assert (config.estimator, config.loss_aggregation) == ("dr_grpo", "seq-mean-token-mean")
    assert (config.updates, config.data_epochs, config.save_every, config.evaluate_every) == (50, None, 20, 0)
    assert (config.tensorboard, config.use_wandb, config.wandb_project) == (True, False, "sums")


def test_the_file_of_the_released_asynchronous_trainer_is_understood() -> None:
    config = read(FULLY_ASYNC)
    assert (config.max_lead, config.publish_every, config.on_publish) == (0.5, 4, "drain")
    assert (config.tickets_per_batch, config.num_minibatches, config.updates) == (32, 2, 20)
    assert (config.group_size, config.collectors, config.evaluate_in_background) == (4, 2, True)
    assert (config.correction, config.overlong_tokens, config.eval_prompts) == ("clip", 32, 50)
    assert (config.max_grad_norm, config.learning_rate) == (0.5, 1e-6)
    _, said = understand(GSM8K, yaml.safe_load(FULLY_ASYNC))
    assert {one.name for one in said} == set(flatten(yaml.safe_load(FULLY_ASYNC)))
    meanings = {one.name: one.value for one in said}
    assert meanings["trainer.default_local_dir"] == "kept/sums/first"
    assert meanings["actor_rollout_ref.actor.use_fused_kernels"] is True


def test_an_update_of_the_asynchronous_trainer_takes_as_many_minibatches_as_it_requires() -> None:
    text = "async_training: {require_batches: 4}\nactor_rollout_ref: {actor: {ppo_mini_batch_size: 8}}\n"
    for batch in ("", "data: {train_batch_size: 0}"):
        config = read(text + batch)
        assert (config.tickets_per_batch, config.num_minibatches) == (32, 4)
    with pytest.raises(
        ConfigError, match=r"^data.train_batch_size=0: with data.train_batch_size=0 an update takes requ"
    ):
        read("data: {train_batch_size: 0}")


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("async_training: {compute_prox_log_prob: false}", {"correction": "clip"}),
        (
            "async_training: {compute_prox_log_prob: true}\nalgorithm: {rollout_correction: {rollout_is: token}}",
            {"correction": "token_is"},
        ),
        ("rollout: {n: 4}\nactor_rollout_ref: {rollout: {n: 6}}", {"group_size": 6}),
        ("actor_rollout_ref: {model: {lora: {rank: 8, alpha: 24}}}", {"lora_rank": 8, "lora_alpha": 24}),
        ("actor_rollout_ref: {model: {lora: {rank: 0, alpha: 24}, lora_rank: 4}}", {"lora_rank": 4}),
        ("rollout: {max_concurrent_samples_per_replica: 3}", {"lanes": 3}),
        ("reward_model: {reward_kwargs: {overlong_buffer_cfg: {enable: true, len: 9}}}", {"overlong_tokens": 9}),
    ],
)
def test_newer_names_mean_what_they_say(text: str, ours: dict[str, Any]) -> None:
    config = read(text)
    assert {name: getattr(config, name) for name in ours} == ours


def test_a_reward_of_their_newer_files_makes_a_task() -> None:
    text = "data: {train_files: a.jsonl}\nreward: {custom_reward_function: {path: mine.py, name: score}}"
    assert read(text, kind=GRPO).reward == ("mine.py:score",)


def test_every_unknown_name_of_a_file_is_listed_at_once() -> None:
    text = (
        "trainer: {save_frequ: 5, total_epoch: 2, nccl_timeout: 9}\n"
        "actor_rollout_ref: {rollout: {m: 8, name: sglang}, actor: {clip_ratio_lo: 0.1}}\n"
        "daat: {train_batch_size: 4}\nmax_laed: 2\ngroup_size: 0\n"
    )
    with pytest.raises(ConfigError) as refused:
        read(text)
    lines = str(refused.value).splitlines()
    assert lines[0] == "8 settings cannot be:"
    for name, nearest in (
        ("max_laed", "max_lead"),
        ("daat", "data"),
        ("trainer.save_frequ", "trainer.save_freq"),
        ("trainer.total_epoch", "trainer.total_epochs"),
        ("actor_rollout_ref.rollout.m", "actor_rollout_ref.rollout.n"),
        ("actor_rollout_ref.actor.clip_ratio_lo", "actor_rollout_ref.actor.clip_ratio_low"),
    ):
        assert sum(line.startswith(f"  unknown setting {name!r}; did you mean {nearest!r}?") for line in lines) == 1
    assert any(line.startswith("  actor_rollout_ref.rollout.name='sglang': unknown engine 'sglang'") for line in lines)
    assert "  group_size=0: Input should be greater than or equal to 1" in lines


def test_what_has_no_effect_is_said_with_the_reason() -> None:
    _, said = understand(GSM8K, yaml.safe_load(WHOLE))
    silent = {one.name: one.meaning for one in said if isinstance(one.meaning, str)}
    assert silent["trainer.nccl_timeout"] == WITHOUT_EFFECT["trainer.nccl_timeout"]
    assert silent["actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params"].startswith("each layer is a part")
    assert silent["trainer.total_epochs"] == "total_training_steps (or total_rollout_steps) says when the run ends"
    assert silent["algorithm.lam"].startswith("without adv_estimator=gae")
    assert "trainer.default_local_dir" not in silent  # null is not set
    everything = flatten(yaml.safe_load(WHOLE))
    assert {one.name for one in said} == set(everything)


def test_a_group_of_theirs_and_a_setting_of_ours_may_have_one_name() -> None:
    assert read("data: folder").data == "folder"
    assert read("data: {max_response_length: 99}").max_tokens == 99
    assert read("{critic: own, estimator: gae}").critic == "own"
    assert read("{critic: {optim: {lr: 0.1}}, algorithm: {adv_estimator: gae}}").critic_learning_rate == 0.1


def test_files_and_a_reward_make_a_task_of_the_general_recipe() -> None:
    text = "data: {train_files: [a.jsonl], val_files: b.jsonl, prompt_key: question}\n"
    text += "custom_reward_function: {path: mine.py, name: score}"
    config = read(text, kind=GRPO)
    assert config.task == "jsonl:a.jsonl"
    assert config.task_options == {"held_out": "b.jsonl", "prompt_field": "question"}
    assert config.reward == ("mine.py:score",)


def test_parquet_and_several_files_make_a_task() -> None:
    config = read("data: {train_files: [a.parquet, b.parquet], val_files: c.parquet}", kind=GRPO)
    assert config.task == "parquet:a.parquet"
    assert config.task_options == {"more_files": ["b.parquet"], "held_out": "c.parquet"}
    written = read("", {"data.train_files": "['x/a.jsonl','x/b.jsonl']"}, kind=GRPO)
    assert (written.task, written.task_options) == ("jsonl:x/a.jsonl", {"more_files": ["x/b.jsonl"]})
    assert read("data: {train_files: maths/train.parquet, val_files: maths/test.parquet}").data == "maths"
    with pytest.raises(ConfigError, match=r"data.val_files: one file is read, received \['a', 'b'\]"):
        read("data: {train_files: c.parquet, val_files: [a, b]}", kind=GRPO)


def test_a_reward_function_of_theirs_goes_with_every_task() -> None:
    text = "custom_reward_function: {path: mine.py, reward_kwargs: {threshold: 0.5, names: [a]}}"
    config = read(text)
    assert config.reward == ("mine.py:compute_score",)
    assert config.reward_options == {"threshold": 0.5, "names": ["a"]}
    with pytest.raises(ConfigError, match=r"custom_reward_function.path is needed too"):
        read("custom_reward_function: {name: score}")


def test_a_reward_model_of_theirs_is_one_of_ours() -> None:
    old = read("reward_model: {enable: true, model: {path: judge}, micro_batch_size_per_gpu: 4, strategy: fsdp}")
    new = read("reward: {reward_model: {enable: true, model_path: judge}, num_workers: 8}")
    assert (old.reward_model, old.reward_model_rows, new.reward_model) == ("judge", 4, "judge")
    assert read("reward_model: {enable: false, model: {path: judge}}").reward_model == ""
    with pytest.raises(ConfigError, match=r"reward_model.model.path is needed too"):
        read("reward_model: {enable: true}")


def test_columns_of_pictures_are_known_to_the_task_so_that_it_can_refuse_them() -> None:
    text = "data: {train_files: a.jsonl, image_key: pics, video_key: videos}\ncustom_reward_function: {path: mine.py}"
    assert read(text, kind=GRPO).task_options["media_fields"] == ["pics", "videos"]
    assert read("data: {image_key: pics}").task_options == {}  # gsm8k has no pictures


def test_epochs_end_the_run_where_no_steps_are_given(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 50)
    text = f"data: {{train_files: {tmp_path}, train_batch_size: 8}}\ntrainer: {{total_epochs: 3}}"
    config = read(text)
    assert (config.data_epochs, config.updates) == (3, None)
    assert config.settings().plan.updates == 150 // 8
    assert read(text, {"updates": 5}).settings().plan.updates == 5
    again = read_values(GSM8K, config.model_dump(mode="json"))  # as a run's own file is read again
    assert again.settings().plan == config.settings().plan


# -- layers and conflicts ---------------------------------------------------------------------------


def test_a_nested_name_on_the_command_line_overrides_the_file() -> None:
    assert read(WHOLE, {"actor_rollout_ref.rollout.n": 12}).group_size == 12
    assert read(WHOLE, {"group_size": 12}).group_size == 12
    assert read("group_size: 3", {"actor_rollout_ref.rollout.n": 12}).group_size == 12


def test_what_depends_on_an_override_follows_it() -> None:
    assert read(WHOLE, {"data.train_batch_size": 32}).num_minibatches == 2
    assert read(WHOLE, {"actor_rollout_ref.actor.clip_ratio_low": 0.1}).clip_low == 0.1
    assert read(WHOLE, {"data.max_response_length": 99}).max_tokens == 99
    assert read(WHOLE, {"actor_rollout_ref.actor.use_kl_loss": False}).kl_weight == 0
    from_rewards = {"algorithm.use_kl_in_reward": True, "actor_rollout_ref.actor.use_kl_loss": False}
    changed = read(WHOLE, {**from_rewards, "algorithm.kl_ctrl.kl_coef": 0.02})
    assert (changed.kl_in_reward, changed.kl_weight) == (True, 0.02)
    assert read(WHOLE, from_rewards).kl_weight == 0.001


VLLM_FILE = """
actor_rollout_ref:
  rollout:
    name: vllm
    gpu_memory_utilization: 0.4
    enforce_eager: true
    max_num_seqs: 32
    tensor_model_parallel_size: 2
    max_model_len: 4096
    engine_kwargs: {vllm: {swap_space: 8}, sglang: {attention_backend: fa3}}
"""


def test_arguments_of_vllm_reach_it() -> None:
    options = {"gpu_memory_utilization": 0.4, "enforce_eager": True, "tensor_parallel_size": 2, "swap_space": 8}
    config = read(VLLM_FILE)
    assert (config.engine, config.engine_rows, config.vllm_options) == ("vllm", 32, options)
    _, said = understand(GSM8K, yaml.safe_load(VLLM_FILE))
    silent = {one.name.rpartition(".")[2] for one in said if isinstance(one.meaning, str)}
    assert silent == {"max_model_len", "attention_backend"}
    changed = read(VLLM_FILE, {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.7})
    assert changed.vllm_options == {**options, "gpu_memory_utilization": 0.7}


def test_arguments_of_vllm_follow_the_engine_under_either_name() -> None:
    text = VLLM_FILE.replace("vllm\n", "hf\n").replace("parallel_size: 2", "parallel_size: 1")
    assert read(text).vllm_options == {}
    assert read(text, {"engine": "vllm"}).vllm_options["swap_space"] == 8
    assert read(text, {"actor_rollout_ref.rollout.name": "vllm"}).vllm_options["swap_space"] == 8
    back = read(VLLM_FILE.replace("parallel_size: 2", "parallel_size: 1"), {"engine": "transformers"})
    assert (back.engine, back.vllm_options) == ("transformers", {})
    (said,) = [one for one in understand(GSM8K, yaml.safe_load(text))[1] if one.name.endswith("enforce_eager")]
    assert said.meaning == "its decoders choose CUDA graphs themselves; it is an argument of vLLM (" + (
        "actor_rollout_ref.rollout.name=vllm)"
    )


def test_what_a_chat_template_is_told_is_kept_whole() -> None:
    text = "data: {apply_chat_template_kwargs: {enable_thinking: false, effort: low}}"
    assert read(text).chat_template_options == {"enable_thinking": False, "effort": "low"}
    changed = read(text, {"data.apply_chat_template_kwargs.effort": "high"})
    assert changed.chat_template_options == {"enable_thinking": False, "effort": "high"}


def test_a_warmup_may_be_a_share_of_the_run() -> None:
    optim = "actor_rollout_ref: {actor: {optim: {lr_warmup_steps: -1, lr_warmup_steps_ratio: 0.1}}}\n"
    assert read(optim + "trainer: {total_training_steps: 50}").warmup_updates == 5
    assert read(optim + "trainer: {total_training_steps: 50}", {"updates": 200}).warmup_updates == 20
    assert read(optim + "updates: 70").warmup_updates == 7
    rollouts = optim + "rollout: {total_rollout_steps: 6400}\ndata: {train_batch_size: 64}"
    assert read(rollouts).warmup_updates == 10
    assert read(optim.replace("-1", "3")).warmup_updates == 3
    assert read(optim.replace("0.1", "0.0")).warmup_updates == 0


def test_a_schedule_ends_at_its_floor_where_it_falls() -> None:
    optim = "actor_rollout_ref: {actor: {optim: {min_lr_ratio: 0.1, lr_scheduler_type: cosine}}}"
    assert read(optim).lr_floor == 0.1
    constant = optim.replace("cosine", "constant")
    assert read(constant).lr_floor == 0
    assert read(constant, {"lr_schedule": "linear"}).lr_floor == 0.1
    with pytest.raises(ConfigError, match=r"^lr_floor=0.1 goes with a learning rate that falls"):
        read("lr_floor: 0.1")


CORRECTED = "algorithm: {{rollout_correction: {{{}}}}}"


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (CORRECTED.format("rollout_is: token, rollout_is_threshold: 3"), "token_is", {"cap": 3}),
        (CORRECTED.format("rollout_is: sequence"), "sequence_is", {"cap": 2}),
        (CORRECTED.format("rollout_is: token, rollout_rs: token"), "icepop", {"low": 0.5, "high": 2}),
        (
            CORRECTED.format("rollout_rs: geometric, rollout_rs_threshold: 1.01, rollout_rs_threshold_lower: 0.98"),
            "sequence_mask",
            {"statistic": "geometric_mean", "low": 0.98, "high": 1.01},
        ),
        (
            CORRECTED.format("rollout_rs: sequence, rollout_rs_threshold: 4"),
            "sequence_mask",
            {"statistic": "product", "low": 0.25, "high": 4},
        ),
        (CORRECTED.format("bypass_mode: true"), "clip", {}),
        (
            "actor_rollout_ref: {actor: {policy_loss: {loss_mode: gspo}, clip_ratio_low: 0.01, clip_ratio_high: 0.02}}",
            "gspo",
            {"clip_low": 0.01, "clip_high": 0.02, "proximal": "recomputed"},
        ),
        (CORRECTED.format("rollout_is: null, rollout_is_threshold: 5"), "token_is", {}),  # off: ours stays
        ("algorithm: {rollout_is: true, rollout_is_threshold: 4}", "token_is", {"cap": 4}),
        ("algorithm: {rollout_is: true, rollout_is_level: sequence}", "sequence_is", {"cap": 2}),
        ("algorithm: {rollout_is: true, rollout_is_mode: mask}", "icepop", {"low": 0.5, "high": 2}),
        ("algorithm: {rollout_is: false, rollout_is_threshold: 4}", "token_is", {}),
        ("actor_rollout_ref: {actor: {tis_imp_ratio_cap: 2.5}}", "token_is", {"cap": 2.5}),
        ("actor_rollout_ref: {actor: {tis_imp_ratio_cap: -1}}", "token_is", {}),
        ("actor_rollout_ref: {actor: {policy_loss: {loss_mode: vanilla}}}", "token_is", {}),
        ("actor_rollout_ref: {actor: {policy_loss: {loss_mode: cispo}}}", "cispo", {}),
    ],
)
def test_a_correction_of_theirs_is_one_of_ours(text: str, name: str, options: dict[str, Any]) -> None:
    config = read(text)
    assert (config.correction, config.correction_options) == (name, options)


def test_evaluations_sample_as_they_say() -> None:
    val = "actor_rollout_ref: {rollout: {val_kwargs: {n: 4, temperature: 0.8, top_p: 0.7, do_sample: true}}}"
    config = read(val)
    assert (config.eval_samples, config.eval_temperature, config.eval_top_p) == (4, 0.8, 0.7)
    greedy = read(val.replace("true", "false").replace("n: 4", "n: 1"))
    assert (greedy.eval_samples, greedy.eval_temperature, greedy.eval_top_p) == (1, 0, 1)


def test_stop_strings_and_every_aggregation_are_taken_as_they_are() -> None:
    assert read("actor_rollout_ref: {rollout: {stop: END}}").stop == ("END",)
    assert read("actor_rollout_ref: {rollout: {stop: [A, B]}}").stop == ("A", "B")
    for name in ("seq-mean-token-sum", "seq-mean-token-sum-norm"):
        config = read(f"actor_rollout_ref: {{actor: {{loss_agg_mode: {name}}}}}", kind=GRPO)
        loss = config.part(LossSettings)
        assert (config.loss_aggregation, loss.loss_aggregation, loss.max_tokens) == (name, name, 16)


def test_a_penalty_in_the_rewards_can_be_switched_off_again() -> None:
    there = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.02}
    assert (read("", there).kl_in_reward, read("", there).kl_weight) == (True, 0.02)
    back = read_values(GSM8K, there, {"algorithm.use_kl_in_reward": False})
    assert (back.kl_in_reward, back.kl_weight) == (False, 0)


def test_the_estimators_are_those_that_exist() -> None:
    from headway.llm.train.advantages import ALL_ESTIMATORS

    assert set(ESTIMATORS) == {*ALL_ESTIMATORS, "ppo"}
    config = read("algorithm: {adv_estimator: gigpo, norm_adv_by_std_in_grpo: false}")
    assert (config.estimator, config.credit) == ("dr_grpo", "gigpo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data: {max_response_length: 64}\nactor_rollout_ref: {rollout: {response_length: 32}}",
            "actor_rollout_ref.rollout.response_length=32 means max_tokens=32, but max_tokens=64 is set too",
        ),
        (
            "trainer: {save_freq: 5}\nsave_every: 7",
            "trainer.save_freq=5 means save_every=5, but save_every=7 is set too",
        ),
        (
            "staleness_threshold: 1\nasync_training: {staleness_threshold: 2}",
            "async_training.staleness_threshold=2 means max_lead=2, but max_lead=1 is set too",
        ),
        (
            "trainer: {save_frequ: 5}",
            "unknown setting 'trainer.save_frequ'; did you mean 'trainer.save_freq'? (headway explain lists all that "
            "are known)",
        ),
        ("traner: {save_freq: 5}", "unknown setting 'traner'; did you mean 'trainer'? (headway explain lists all"),
        (
            "actor_rollout_ref: {rollout: {name: sglang}}",
            "actor_rollout_ref.rollout.name='sglang': unknown engine 'sglang'; allowed: hf, transformers, vllm",
        ),
        (
            "algorithm: {use_kl_in_reward: true}\nactor_rollout_ref: {actor: {use_kl_loss: true}}",
            "algorithm.use_kl_in_reward=True: the penalty is in the loss or taken from the rewards, not both",
        ),
        (
            "data: {train_batch_size: 10}\nactor_rollout_ref: {actor: {ppo_mini_batch_size: 4}}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4: a batch of 10 prompts cannot be cut into minibatches of 4",
        ),
        (
            "data: {train_files: gsm8k/questions.parquet}",
            "data.train_files='gsm8k/questions.parquet': the recipe reads train and test of one folder",
        ),
        (
            "data: {train_batch_size: many}",
            "data.train_batch_size='many': data.train_batch_size must be a whole number >= 1, received 'many'",
        ),
        ("trainer: {logger: [swanlab]}", "trainer.logger=['swanlab']: unknown logger 'swanlab'; "),
        ("trainer: {save_freq: '${oc.env:HOME}'}", "trainer.save_freq='${oc.env:HOME}': only ${another.path} is"),
        ("trainer: {save_freq: '${trainer.often}'}", "trainer.save_freq='${trainer.often}': trainer.often is not set"),
        (
            "algorithm: {adv_estimator: remax}",
            "algorithm.adv_estimator='remax': unknown estimator 'remax'; allowed: dr_grpo, gae, gigpo, grpo, ppo",
        ),
        (
            "actor_rollout_ref: {actor: {optim: {lr_warmup_steps_ratio: 0.1}}}\ntrainer: {total_epochs: 2}",
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1: a share of all updates needs trainer.total_tr",
        ),
        (
            "actor_rollout_ref: {rollout: {tensor_model_parallel_size: 2}}",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=2: only 1 is possible with the engine in this",
        ),
        (
            "actor_rollout_ref: {rollout: {name: vllm, dtype: half, engine_kwargs: {vllm: {dtype: bfloat16}}}}",
            "actor_rollout_ref.rollout.dtype='half': actor_rollout_ref.rollout.dtype='half' and actor_rollout_",
        ),
        (
            "actor_rollout_ref: {rollout: {name: vllm, engine_kwargs: {vllm: {max_model_len: 9}}}}",
            "vllm_options: max_model_len is decided by the engine itself; leave it out",
        ),
        (
            "actor_rollout_ref: {actor: {loss_agg_mode: seq-sum}}",
            "actor_rollout_ref.actor.loss_agg_mode=seq-sum (loss_aggregation='seq-sum'): Input should be 'token",
        ),
        (
            "actor_rollout_ref: {actor: {policy_loss: {loss_mode: gpg}}}",
            "actor_rollout_ref.actor.policy_loss.loss_mode='gpg': the loss 'gpg' is not here; allowed: van",
        ),
        (
            "algorithm: {rollout_correction: {rollout_is: token, rollout_rs: geometric}}",
            "algorithm.rollout_correction.rollout_is='token': rollout_is=token with rollout_rs=geometric is not h",
        ),
        (
            "algorithm: {rollout_correction: {rollout_token_veto_threshold: 1e-4}}",
            "algorithm.rollout_correction.rollout_token_veto_threshold='1e-4': only off is possible here: one",
        ),
        ("trainer: {device: npu}", "trainer.device=npu (device='npu'): Input should be 'auto', 'cpu' or 'cuda'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_values_may_refer_to_each_other_but_not_in_a_circle() -> None:
    assert resolve({"a.b": "${a.c}", "a.c": "${a.d}", "a.d": 7}) == {"a.b": 7, "a.c": 7, "a.d": 7}
    assert resolve({"a.b": "in/${a.c}/${.d}", "a.c": 1, "a.d": "x"})["a.b"] == "in/1/x"
    assert resolve({"a.b": "${oc.select:a.c,7}", "a.d": "${oc.select:a.b,8}"}) == {"a.b": 7, "a.d": 7}
    with pytest.raises(ValueError, match=re.escape("a.b='${a.c}': a.b is not set")):
        resolve({"a.b": "${a.c}", "a.c": "${a.b}"})


def test_values_may_refer_to_any_name_at_the_top_of_the_file() -> None:
    text = "reply: 96\nmax_staleness_allowed: 5\ngroup: {size: 4}\nactor_rollout_ref:\n  rollout:\n"
    text += "    {response_length: '${reply}', temperature: '${max_staleness_allowed}', n: '${group.size}'}\n"
    config = read_values(GRPO, yaml.safe_load(text))
    assert (config.max_tokens, config.temperature, config.group_size, config.max_staleness) == (96, 5.0, 4, 5)
    assert read_values(GRPO, yaml.safe_load(text), {"reply": 64}).max_tokens == 64
    assert read_values(GRPO, {"reply": 32, "max_tokens": "${reply}", "system_prompt": "${x}"}).max_tokens == 32
    with pytest.raises(ConfigError, match=r"^unknown setting 'reply'"):
        read_values(GRPO, {"reply": 96})
    with pytest.raises(ConfigError, match="replay is not set in the file"):
        read_values(GRPO, {"reply": 96, "actor_rollout_ref.rollout.response_length": "${replay}"})


def test_groups_may_be_what_a_value_refers_to() -> None:
    assert resolve({"a.b": "${c.d}", "c.d.e": 1, "c.d.f.g": 2})["a.b"] == {"e": 1, "f": {"g": 2}}


def test_what_changes_a_loss_or_a_filter_is_never_called_without_effect() -> None:
    filters = {"algorithm.filter_groups.enable": True}
    read_values(GRPO, {**filters, "algorithm.filter_groups.metric": "seq_reward"})
    read_values(GRPO, {"algorithm.filter_groups.metric": "acc"})  # nothing is filtered
    with pytest.raises(ConfigError, match="metric='acc': only score or seq_reward or seq_final_reward is possible"):
        read_values(GRPO, {**filters, "algorithm.filter_groups.metric": "acc"})
    shaped = {**filters, "algorithm.use_kl_in_reward": True, "algorithm.filter_groups.metric": "seq_final_reward"}
    with pytest.raises(ConfigError, match="metric='seq_final_reward': only score or seq_reward is possible"):
        read_values(GRPO, shaped)
    experts = "actor_rollout_ref.actor.megatron.override_transformer_config.moe"
    read_values(GRPO, {f"{experts}_aux_loss_coeff": 0, f"{experts}_router_load_balancing_type": "none"})
    for name, value in (("aux_loss_coeff", 0.01), ("router_load_balancing_type", "aux_loss")):
        with pytest.raises(ConfigError, match="is possible here: nothing is added to the loss for how experts are"):
            read_values(GRPO, {f"{experts}_{name}": value})


def test_a_refusal_shows_names_and_values_as_they_were_written() -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(GRPO, {"actor_rollout_ref.rollout.n": 0})
    assert str(refused.value).startswith("actor_rollout_ref.rollout.n=0 (group_size=0): ")
    with pytest.raises(ConfigError) as refused:  # what only several settings together cause
        read_values(GRPO, {"actor_rollout_ref.rollout.n": 1})
    line = "group_size must be >= 2 (estimator is adv_estimator=grpo; group_size is actor_rollout_ref.rollout.n=1)"
    assert str(refused.value).endswith("group_size must be >= 2 (group_size is actor_rollout_ref.rollout.n=1)")
    with pytest.raises(ConfigError) as refused:
        read_values(GRPO, {"actor_rollout_ref.rollout.n": 1, "adv_estimator": "grpo"})
    assert str(refused.value).endswith(line)
    with pytest.raises(ConfigError, match=r"^group_size=0: "):
        read_values(GRPO, {"group_size": 0})


def test_a_recipe_without_such_a_setting_says_so() -> None:
    with pytest.raises(ConfigError, match=r"setting 'actor_rollout_ref.rollout.n' means 'group_size', which this rec"):
        read_values(RunConfig, {"updates": 1, "actor_rollout_ref.rollout.n": 8})


# -- the tables -------------------------------------------------------------------------------------

TOGETHER = {
    "actor_rollout_ref.actor.ppo_mini_batch_size": {"data.train_batch_size": 64},
    "actor_rollout_ref.rollout.val_kwargs.n": {"actor_rollout_ref.rollout.val_kwargs.do_sample": True},
    "data.val_files": {"data.train_files": "gsm8k/train.jsonl"},
    "custom_reward_function.name": {"custom_reward_function.path": "r.py"},
    "reward.custom_reward_function.name": {"reward.custom_reward_function.path": "r.py"},
    "data.prompt_key": {"data.train_files": "a.jsonl"},
}


@pytest.mark.parametrize("known", PATHS.values(), ids=PATHS)
def test_every_path_means_settings_that_exist_or_says_why_not(known: Any) -> None:
    theirs = {**TOGETHER.get(known.path, {}), known.path: known.example}
    meaning = mean(known.path, theirs, GRPO.model_fields)
    if isinstance(meaning, dict):
        assert set(meaning) <= set(re.findall(r"\w+", known.ours)) | {"task", "task_options", "updates"}
    else:
        assert meaning and "\n" not in meaning
    assert set(known.reads) <= {*PATHS, *OUR_WORDS}


def test_a_path_is_in_one_table_only_and_no_group_hides_a_known_name() -> None:
    from headway.tools.names.flat import KNOWN_NAMES

    assert not set(PATHS) & set(WITHOUT_EFFECT)
    assert not GROUPS & set(KNOWN_NAMES)
    assert all(why and "\n" not in why for why in WITHOUT_EFFECT.values())


def test_the_guide_lists_every_path_with_its_meaning() -> None:
    page = (DOCS / "guides/llm.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.*]+)` \| (.+) \|$", page.split("## Coming from verl")[1], re.MULTILINE))
    assert rows == {path: known.ours for path, known in PATHS.items()}


# -- the command line -------------------------------------------------------------------------------


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.options_output.OUT", Console(highlight=False, soft_wrap=True, width=200))


@pytest.mark.usefixtures("wide")
def test_a_file_is_explained_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "their.yaml"
    file.write_text(WHOLE)
    assert cli.main(["explain", "gsm8k", "--config", str(file), "actor_rollout_ref.rollout.n=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "actor_rollout_ref.rollout.n=9  ->  group_size=9" in lines
    assert "data.train_batch_size=64  ->  tickets_per_batch=64" in lines
    assert any(line.startswith("trainer.nccl_timeout=600  ->  no effect: nothing waits for NCCL") for line in lines)
    assert len(lines) == len(flatten(yaml.safe_load(WHOLE)))
    file.write_text("recipe: grpo\nmax_lead: 2\n")
    assert cli.main(["explain", "--config", str(file)]) == 0
    assert capsys.readouterr().out == "every name in it is ours\n"


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rollout.n=8  ->  group_size=8"),
        ("trainer.logger=[console,wandb]", "trainer.logger=['console', 'wandb']  ->  use_wandb=True"),
        ("trainer.save_freq", "trainer.save_freq=20  ->  save_every=20"),
        (
            "async_training.generation_timeout=5",
            "async_training.generation_timeout=5  ->  generation_deadline_s=5, collect_deadline_s=40",
        ),
        (
            "generation_timeout=5",
            "generation_timeout=5  ->  generation_deadline_s=5, collect_deadline_s=40   (longest generation, seconds; "
            "without an engine the longest collect call: collect_deadline_s)",
        ),
        ("staleness_threshold=3", "staleness_threshold=3  ->  max_lead=3   (versions collection may run ahead)"),
    ],
)
def test_one_name_is_explained(word: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", word]) == 0
    assert capsys.readouterr().out.strip() == line


def test_an_unknown_path_on_the_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "gsm8k", "actor_rollout_ref.rollout.m=8"]) == 2
    error = capsys.readouterr().err
    assert "unknown setting 'actor_rollout_ref.rollout.m'; did you mean 'actor_rollout_ref.rollout.n'?" in error
    assert cli.main(["run", "functions", "n=8"]) == 2
    assert "unknown setting 'n'" in capsys.readouterr().err
    assert cli.main(["run", "grpo", "model_engine=megatron", "trainer.epoks=3", "+max_leed=1"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("'model_engine'", "'trainer.epoks'", "did you mean 'max_lead'"))


@pytest.mark.usefixtures("wide")
def test_a_run_says_at_its_start_what_has_no_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "functions", "--updates", "2", "--runs", str(tmp_path), "--quiet", "+trainer.nccl_timeout=600"]
    assert cli.main([*words, "trainer.save_freq=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("trainer.nccl_timeout=600 has no effect: nothing waits for NCCL")
    (folder,) = tmp_path.iterdir()
    assert yaml.safe_load((folder / "config.yaml").read_text())["save_every"] == 1


def test_a_mapping_can_be_written_on_the_command_line() -> None:
    config = read_values(GRPO, {"task": "arithmetic", "task_options": "{level: 2}", "stop": "[END]"})
    assert config.task_options == {"level": 2}
    assert config.stop == ("END",)
