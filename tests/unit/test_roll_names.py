"""The files of ROLL's pipeline for agents: what each name is here, and that no name is ignored in silence."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

pytest.importorskip("torch")

from headway import cli
from headway.runs.config import ConfigError, defaults_of, read_values, understand
from headway.runs.recipes_package import load_recipe
from headway.tools.names import roll, verl_agent
from headway.tools.names.translate_layers import Said
from headway.tools.names.translate_nested_paths import OUR_WORDS, TABLES, mean

DOCS = Path(__file__).parents[2] / "docs"
AGENT = load_recipe("agent").config

WEBSHOP = """
# 开启异步训练
async_generation_ratio: 1

# 其他相关配置
rollout_batch_size: 64
val_batch_size: 64
sequence_length: 8192

# 训练参数
max_steps: 1024
save_steps: 10000
logging_steps: 1
eval_steps: 10

# PPO 参数
ppo_epochs: 1
adv_estimator: "grpo"
whiten_advantages: true

# 模型配置
pretrain: Qwen/Qwen2.5-7B-Instruct
reward_pretrain: Qwen/Qwen2.5-7B-Instruct

# 角色配置
actor_train:
  model_args:
    attn_implementation: fa2
    disable_gradient_checkpointing: false
    dtype: bf16
  training_args:
    learning_rate: 1.0e-6
    weight_decay: 0
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 16
    warmup_steps: 10
  strategy_args:
    strategy_name: megatron_train
    strategy_config:
      tensor_model_parallel_size: 1
      context_parallel_size: 1
      pipeline_model_parallel_size: 1
      expert_model_parallel_size: 1
      use_distributed_optimizer: true
      recompute_granularity: full
  device_mapping: list(range(0,4))
  infer_batch_size: 1

actor_infer:
  model_args:
    disable_gradient_checkpointing: true
    dtype: bf16
  generating_args:
    max_new_tokens: 1024
    top_p: 0.99
    top_k: 100
    num_beams: 1
    temperature: 0.99
    num_return_sequences: 1
  strategy_args:
    strategy_name: vllm
    strategy_config:
      gpu_memory_utilization: 0.8
      block_size: 16
      load_format: auto
  device_mapping: list(range(4,8))
  infer_batch_size: 1
"""

SOKOBAN = """
defaults: [../config/envs@_here_]
hydra: {run: {dir: .}, output_subdir: null}
exp_name: sokoban
seed: 42
logging_dir: ./output/logs
output_dir: ./output
model_name: "${exp_name}-${now:%Y%m%d_%H%M%S}"
checkpoint_config: {type: file_system, output_dir: /data}
track_with: wandb
tracker_kwargs: {project: agents, log_dir: ./output}
num_gpus_per_node: 8
rollout_batch_size: 96
val_batch_size: 12
sequence_length: 4096
max_tokens_per_step: 64
max_actions_per_traj: 20
adv_estimator: gigpo
step_reward_weight: 0.5
pg_clip: 0.1
dual_clip_loss: true
init_kl_coef: 0.0
use_kl_loss: true
kl_loss_coef: 0.01
entropy_loss_coef: 0.002
max_grad_norm: 1.0
gamma: 1.0
agent_system_template: You play.
agent_template: "{observation}"
pretrain: some/model
actor_train:
  training_args: {gradient_accumulation_steps: 4, per_device_train_batch_size: 2, warmup_steps: 9}
  strategy_args: {strategy_config: {tensor_model_parallel_size: 2}}
  device_mapping: [0, 1, 2, 3]
actor_infer:
  generating_args: {max_new_tokens: 128, stop_strings: ["</answer>"]}
  strategy_args: {strategy_name: hf_infer}
reward_normalization: {grouping: traj_group_id, method: mean_std}
train_env_manager: {num_env_groups: 8, group_size: 12, max_env_num_per_worker: 16, tags: [Small]}
val_env_manager: {num_env_groups: 12, group_size: 1, tags: [Small, Large], num_groups_partition: [6, 6]}
custom_envs:
  Small:
    env_type: sokoban
    max_steps: "${max_actions_per_traj}"
    max_tokens_per_step: "${max_tokens_per_step}"
    env_manager_cls: some.Class
    use_thread_lock: true
    agent_system_template: "${agent_system_template}"
    env_config: {action_pattern: "<answer>(.*?)</answer>", max_steps: "${max_actions_per_traj}"}
  Large: {env_type: sokoban, max_steps: 40, env_config: {dim_room: [10, 10]}}
"""


def read(text: str, *more: dict[str, Any]) -> Any:
    return read_values(AGENT, yaml.safe_load(text) or {}, *more)


# -- whole files ------------------------------------------------------------------------------------


def test_the_file_of_the_asynchronous_pipeline_is_understood_as_it_is() -> None:
    config = read(WEBSHOP)
    assert (config.max_lead, config.tickets_per_batch, config.eval_games) == (1, 8, 64)
    assert (config.max_context_tokens, config.max_episode_tokens, config.max_turn_tokens) == (8192, 8192, 1024)
    assert (config.updates, config.save_every, config.evaluate_every, config.num_epochs) == (1024, 10000, 10, 1)
    assert (config.estimator, config.credit, config.whiten_advantages) == ("grpo", "episode", True)
    assert (config.model, config.learning_rate, config.weight_decay) == ("Qwen/Qwen2.5-7B-Instruct", 1e-6, 0)
    assert (config.num_minibatches, config.warmup_updates, config.microbatch_tokens) == (1, 10, 8192)
    assert config.gradient_checkpointing
    assert (config.temperature, config.top_p, config.top_k) == (0.99, 0.99, 100)
    assert (config.engine, config.vllm_options) == ("vllm", {"gpu_memory_utilization": 0.8, "block_size": 16})


def test_on_a_laptop_its_file_takes_another_model_environment_and_engine() -> None:
    config = read(WEBSHOP, {"model": "made:lights", "env": "lights", "device": "cpu"})
    assert (config.model, config.env, config.engine, config.vllm_options) == (
        "made:lights",
        "lights",
        "transformers",
        {},
    )
    assert read(WEBSHOP, {"device": "cpu", "engine": "vllm"}).engine == "vllm"  # said by name, it is not second-guessed


def test_a_file_with_environments_is_understood() -> None:
    config = read(SOKOBAN)
    assert (config.seed, config.use_wandb, config.wandb_project) == (42, True, "agents")
    assert (config.env, config.env_options, config.max_turns) == ("sokoban", {}, 20)
    assert config.system_prompt == "You play."
    assert config.max_turn_tokens == 64  # the smaller one of 128 and 64
    assert (config.group_size, config.tickets_per_batch, config.lanes) == (12, 8, 8)
    assert (config.eval_games, config.eval_samples) == (12, 1)
    assert (config.estimator, config.credit, config.step_reward_weight) == ("grpo", "gigpo", 0.5)
    assert (config.clip_low, config.clip_high, config.dual_clip) == (0.1, 0.1, 1.2)
    assert (config.kl_weight, config.kl_in_reward, config.entropy_weight) == (0.01, False, 0.002)
    assert config.num_minibatches == 6  # 96 episodes in steps of 2 * 4 on 4 / 2 processes
    assert config.warmup_updates == 2  # 9 of such steps
    assert config.microbatch_tokens == 2 * 4096
    assert config.stop == ("</answer>",)


def test_an_environment_that_is_said_in_our_words_takes_the_place_of_theirs() -> None:
    config = read(SOKOBAN.replace("env_type: sokoban", "env_type: webshop"), {"env": "lights"})
    assert (config.env, config.env_options, config.max_turns) == ("lights", {}, 20)


def test_an_environment_of_ones_own_gets_its_configuration_whole() -> None:
    text = "custom_envs: {Mine: {env_type: 'my.py:Game', env_config: {size: 4, walls: {at: [1]}}}}"
    config = read(text)
    assert (config.env, config.env_options) == ("my.py:Game", {"size": 4, "walls": {"at": [1]}})


def test_what_depends_on_an_override_follows_it() -> None:
    config = read(SOKOBAN, {"group_size": 8})
    assert (config.group_size, config.tickets_per_batch) == (8, 12)
    config = read(SOKOBAN, {"train_env_manager.group_size": 4, "rollout_batch_size": 16})
    assert (config.group_size, config.tickets_per_batch, config.num_minibatches) == (4, 4, 1)


def test_a_fraction_is_a_lead() -> None:
    assert read("async_generation_ratio: 0.5").max_lead == 0.5


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("adv_estimator: gae\ngamma: 0.9\nlambd: 0.8", {"estimator": "gae", "gae_gamma": 0.9, "gae_lambda": 0.8}),
        ("adv_estimator: reinforce\nwhiten_advantages: true", {"estimator": "reinforce_plus_plus"}),
        ("adv_estimator: rloo", {"estimator": "rloo"}),
        ("reward_normalization: {method: mean}", {"estimator": "dr_grpo"}),
        ("use_pg_clip_range: true\npg_clip_low: 0.1\npg_clip_high: 0.3", {"clip_low": 0.1, "clip_high": 0.3}),
        ("dual_clip_loss: false", {"dual_clip": None}),
        ("use_kl_loss: false\nkl_loss_coef: 0.2", {"kl_weight": 0}),
        ("kl_loss_coef: 0.2", {"kl_weight": 0.2}),
        ("add_token_level_kl: true\ninit_kl_coef: 0.1", {"kl_weight": 0.1, "kl_in_reward": True}),
        ("prompt_length: 100\nresponse_length: 900", {"max_context_tokens": 1000, "max_episode_tokens": 1000}),
        ("val_batch_size: -1", {"eval_games": 32}),
        ("env: {rollout: {n: 4}, max_steps: 9, env_name: guess}", {"group_size": 4, "max_turns": 9, "env": "guess"}),
        ("algorithm: {adv_estimator: gigpo, gigpo: {mode: mean_norm, step_advantage_w: 0.3}}", {"credit": "gigpo"}),
        ("generator: {max_turns: 3, n_samples_per_prompt: 4}", {"max_turns": 3, "group_size": 4}),
        ("max_turns: 5", {"max_turns": 5}),
    ],
)
def test_names_mean_what_they_say(text: str, ours: dict[str, Any]) -> None:
    config = read(text)
    assert {name: getattr(config, name) for name in ours} == ours


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "actor_infer: {generating_args: {num_beams: 4}}",
            r"num_beams=4: only 1 is possible here: replies are sampled",
        ),
        ("actor_infer: {generating_args: {num_return_sequences: 2}}", "a turn has one reply"),
        ("actor_infer: {strategy_args: {strategy_name: sglang}}", "unknown engine 'sglang'"),
        ("adv_estimator: step_reinforce", "credit=turn compares them within a group"),
        ("adv_estimator: reinforce", "with whiten_advantages: true it is reinforce_plus_plus"),
        ("adv_estimator: grop", "unknown estimator 'grop'; did you mean 'grpo'"),
        ("reward_normalization: {method: identity}", "must be mean_std or mean, received 'identity'"),
        ("reward_normalization: {grouping: batch}", "only traj_group_id is possible here"),
        ("adv_estimator: gae\npretrain: a\nreward_pretrain: b", "a critic starts from the policy's own model"),
        ("gamma: 0.9", "only 1 is possible without adv_estimator=gae"),
        ("advantage_clip: 0.2", "advantage_clip=0.2: advantages are not clipped here"),
        ("use_kl_loss: true\nadd_token_level_kl: true", "in the loss .use_kl_loss. or taken from the rewards"),
        ("train_env_manager: {tags: [A, B]}", "one environment is trained on here, received 2"),
        ("train_env_manager: {group_filter_cls: a.B}", "a filter is a function here"),
        ("rollout_batch_size: 30", "must be a multiple of group_size=8"),
        ("actor_train: {device_mapping: all}", "a device_mapping is a list of numbers"),
        (
            "rollout_batch_size: 64\nactor_train: {training_args: {gradient_accumulation_steps: 24}}",
            "a batch of 64 episodes cannot be cut into gradient steps of 24",
        ),
        ("custom_envs: {A: {env_type: sokoban, env_config: {dim_room: [6, 6]}}}", "has no such option"),
        (
            "actor_train: {training_args: {learning_rate: 1e-6}}\nsequence_lenght: 4",
            "unknown setting 'sequence_lenght'",
        ),
        ("actor_trian: {training_args: {learning_rate: 1e-6}}", "did you mean 'actor_train"),
        ("resume_from_checkpoint: /data", "headway resume RUN"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_their_names_at_the_top_of_a_file_mean_nothing_in_other_recipes() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'sequence_length'"):
        read_values(load_recipe("functions").config, {"sequence_length": 8192})


def test_what_has_no_effect_is_said_with_the_reason() -> None:
    said = {one.name: one.meaning for one in understand(AGENT, yaml.safe_load(WEBSHOP))[1]}
    assert said["reward_pretrain"] == "rewards come from the environment"
    assert "learner_ranks" in str(said["actor_train.device_mapping"])
    assert "roles of their own" in str(said["actor_infer.device_mapping"])
    assert isinstance(said["actor_infer.strategy_args.strategy_config.load_format"], str)


# -- the tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [*roll.PATHS.values(), *verl_agent.PATHS.values()], ids=lambda known: known.path)
def test_every_path_means_settings_that_exist_or_says_why_not(known: Any) -> None:
    path = known.path.replace("custom_envs.*", "custom_envs.Mine.env_type").replace("*", "block_size")
    whole = {"sequence_length": 64} if known.path in ("prompt_length", "response_length") else {}
    if known.ours == "(off)":
        with pytest.raises(ValueError, match=re.escape(path)):
            mean(path, {path: "something"}, defaults_of(AGENT))
        return
    meaning = mean(path, {**whole, path: known.example}, defaults_of(AGENT))
    if isinstance(meaning, dict):
        assert set(meaning) <= set(re.findall(r"\w+", known.ours))
    else:
        assert meaning and "\n" not in meaning
    from headway.tools.names.verl import PATHS as OF_VERL

    assert set(known.reads) <= {*roll.PATHS, *OF_VERL, *roll.WITHOUT_EFFECT, *OUR_WORDS, *ALL_SIZES}


ALL_SIZES = {path for known in roll.PATHS.values() for path in known.reads if path.endswith("_parallel_size")}


def test_a_path_is_in_one_table_only() -> None:
    for table in (roll, verl_agent):
        assert not set(table.PATHS) & set(table.WITHOUT_EFFECT)
        assert all(why and "\n" not in why for why in table.WITHOUT_EFFECT.values())


def test_no_table_hides_a_path_of_another() -> None:
    twice = [path for path, count in Counter(path for table in TABLES for path in table.PATHS).items() if count > 1]
    assert twice == ["env.env_name"]  # the environment in both
    assert {table.PATHS["env.env_name"].ours.split()[0] for table in TABLES if "env.env_name" in table.PATHS} == {"env"}


def test_the_guide_lists_every_path_with_its_meaning() -> None:
    rows = dict(re.findall(r"^\| `([\w.*]+)` \| (.+) \|$", (DOCS / "guides/roll.md").read_text(), re.MULTILINE))
    assert rows == {path: known.ours for path, known in (roll.PATHS | verl_agent.PATHS).items()}


# -- the command line -------------------------------------------------------------------------------


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.options_output.OUT", Console(highlight=False, soft_wrap=True, width=200))


@pytest.mark.usefixtures("wide")
def test_a_file_of_theirs_is_explained_without_saying_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "roll.yaml"
    file.write_text(WEBSHOP)
    assert cli.main(["explain", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "async_generation_ratio=1  ->  max_lead=1" in lines
    assert "rollout_batch_size=64  ->  tickets_per_batch=8" in lines
    assert "val_batch_size=64  ->  eval_games=64" in lines
    assert "actor_infer.strategy_args.strategy_name=vllm  ->  engine=vllm" in lines
    assert any(line.startswith("logging_steps=1  ->  no effect: ") for line in lines)
    flat = len(re.findall(r"^\s*\w+: \S", WEBSHOP, re.MULTILINE))
    assert lines[0].startswith("explained for the recipe agent, as its names are those of ROLL's pipeline for agents; ")
    assert len(lines) == 1 + flat - 1  # but for whiten_advantages, which is ours


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("pretrain=a/b", "pretrain=a/b  ->  model=a/b"),
        ("train_env_manager.group_size=4", "train_env_manager.group_size=4  ->  group_size=4"),
        ("env.rollout.n=4", "env.rollout.n=4  ->  group_size=4"),
        ("actor_infer.device_mapping=[0]", "actor_infer.device_mapping=[0]  ->  no effect: engine, learner and"),
    ],
)
def test_one_name_is_explained(word: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", word]) == 0
    assert capsys.readouterr().out.startswith(line)


@pytest.mark.usefixtures("wide")
@pytest.mark.timeout(120)
def test_the_file_runs_and_says_what_has_no_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "roll.yaml"
    file.write_text(WEBSHOP)
    words = ["run", "agent", "--config", str(file), "--model", "made:lights", "--env", "lights", "--device", "cpu"]
    small = ["--updates", "1", "--evaluate_every", "0", "--engine_rows", "8", "--rollout_batch_size", "8"]
    short = ["actor_infer.generating_args.max_new_tokens=4", "--report", "false", "--tensorboard", "false"]
    assert cli.main([*words, *small, *short, "--runs", str(tmp_path / "runs"), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "actor_infer.strategy_args.strategy_name=vllm has no effect: vLLM needs a GPU" in said
    (run,) = (tmp_path / "runs").iterdir()
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert (kept["tickets_per_batch"], kept["max_turn_tokens"], kept["max_context_tokens"]) == (1, 4, 8192)


def test_what_may_be_a_secret_is_not_shown() -> None:
    assert (
        Said("tracker_kwargs.api_key", "abc", "logs are in the run's folder").shown
        == "tracker_kwargs.api_key=(not shown)"
    )
    assert Said("generating_args.max_new_tokens", 8, {}).shown == "generating_args.max_new_tokens=8"
