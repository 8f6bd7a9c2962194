"""Names of SB3, CleanRL, RLlib, Sample Factory, TRL and prime-rl: each sets something, says why not, or is refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.cli import main
from headway.runs.config import ConfigError, defaults_of, read_values, understand
from headway.runs.recipes_package import load_recipe
from headway.tools.names.translate_nested_paths import ALL_PATHS, mean
from headway.tools.names.translate_peers import TABLES, meaning_in

PPO, GRPO = load_recipe("ppo").config, load_recipe("grpo").config
MUZERO = load_recipe("muzero").config
OF_TEXT = ("trl", "prime_rl")

ZOO = {"n_envs": 16, "n_timesteps": 1e6, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999}
ZOO |= {"n_epochs": 4, "ent_coef": 0.01, "policy": "MlpPolicy", "learning_rate": 3e-4}


def settings(kind: Any, system: str, values: dict[str, Any], *ours: str) -> list[Any]:
    config = read_values(kind, {"names": system, **values})
    return [getattr(config, name) for name in ours]


# -- each library's own file --------------------------------------------------------------------------


def test_settings_of_the_zoo_are_understood_as_they_are() -> None:
    found = settings(PPO, "sb3", ZOO, "num_envs", "segment_steps", "minibatch_size", "lam", "num_epochs", "updates")
    assert found == [16, 1024, 64, 0.98, 4, 62]  # 1e6 / (16 * 1024) = 61.04
    schedules = {"clip_range": "lin_0.1", "lr": "lin_2.5e-4"}
    of_rates = ("learning_rate", "final_learning_rate")
    assert settings(PPO, "sb3", {"learning_rate": "lin_2.5e-4"}, *of_rates) == [2.5e-4, 0.0]
    assert settings(PPO, "sb3", {"learning_rate": 1e-3}, *of_rates) == [1e-3, None]
    found = settings(PPO, "sb3", schedules, "clip", "final_clip", "learning_rate", "final_learning_rate")
    assert found == [0.1, 0.0, 2.5e-4, 0.0]
    assert settings(PPO, "sb3", {"policy_kwargs": {"net_arch": [32, 32]}}, "hidden") == [(32, 32)]
    scaled = ("normalise", "normalise_rewards")
    assert settings(PPO, "sb3", {"normalize": True}, *scaled) == [True, True]
    assert settings(PPO, "sb3", {"normalize": {"norm_obs": True, "norm_reward": False}}, *scaled) == [True, False]
    assert settings(PPO, "sb3", {"normalize": "{'norm_obs': False, 'norm_reward': True}"}, *scaled) == [False, True]
    text = "dict(activation_fn=nn.Tanh, net_arch=[dict(pi=[256, 256], vf=[256, 256])])"
    assert settings(PPO, "sb3", {"policy_kwargs": text}, "hidden") == [(256, 256)]


def test_a_file_of_the_zoo_has_a_group_for_each_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text(
        "atari:\n  policy: CnnPolicy\n  n_envs: 8\n  frame_stack: 4\n"
        "CartPole-v1:\n  n_envs: 2\n  n_timesteps: !!float 64\n  policy: MlpPolicy\n  n_steps: 16\n"
        "  batch_size: 32\n  learning_rate: lin_0.001\n"
    )
    theirs = ["ppo", "--config", str(file)]
    assert (
        main(["run", *theirs, "--env", "CartPole-v1", "--runs", str(tmp_path), "--eval_episodes", "1", "--quiet"]) == 0
    )
    assert "Stopped: reached 2 updates" in capsys.readouterr().out
    assert main(["explain", *theirs, "--env", "ALE/Pong-v5"]) == 0
    assert "n_envs=8  ->  num_envs=8" in capsys.readouterr().out
    assert main(["explain", *theirs, "--env", "CartPole-v7"]) == 2
    line = "the file has settings for 2 environments: --env says for which"
    assert f"{line}; unknown environment 'CartPole-v7'; did you mean 'CartPole-v1'?" in capsys.readouterr().err
    assert main(["run", *theirs]) == 2
    assert f"{line}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("policy_kwargs", "dict(activation_fn=nn.ReLU)", "activation_fn='ReLU': only 'Tanh' is possible here"),
        ("policy_kwargs", {"ortho_init": False}, "ortho_init=False: only True is possible here"),
        ("policy_kwargs", "dict(log_std_init=-2)", "policy_kwargs has 'log_std_init'"),
        ("policy_kwargs", "print(1)", "policy_kwargs must be a mapping, received 'print"),
        ("normalize", {"clip_obs": 5}, "normalize has 'clip_obs'"),
        ("normalize", {"gamma": 0.5}, "rewards are scaled with the gamma of the run"),
    ],
)
def test_what_the_zoo_asks_for_and_is_not_here_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_values(PPO, {"names": "sb3", name: value})


def test_numbers_with_an_exponent_are_numbers_under_any_name() -> None:
    values = {"lr": "1e-3", "total_timesteps": "1e5", "n_envs": 8, "n_steps": 32}
    assert [getattr(read_values(PPO, values), name) for name in ("learning_rate", "updates")] == [1e-3, 391]
    assert read_values(PPO, {"updates": "1e2", "name": "1e3"}).updates == 100
    assert read_values(PPO, {"name": "1e3"}).name == "1e3"


def test_the_nearest_name_may_be_one_of_another_library() -> None:
    with pytest.raises(ConfigError, match=r"^unknown setting 'n_step'; did you mean 'n_steps'\?$"):
        read_values(PPO, {"n_step": 3})


def test_arguments_of_a_cleanrl_file_are_understood() -> None:
    values = {"env_id": "Acrobot-v1", "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4}
    values |= {"anneal_lr": True, "clip_coef": 0.1, "clip_vloss": True, "total_timesteps": 51_200, "norm_adv": True}
    ours = ("env", "minibatch_size", "updates", "final_learning_rate", "clip", "value_clip", "num_epochs")
    assert settings(PPO, "cleanrl", values, *ours) == ["Acrobot-v1", 128, 100, 0.0, 0.1, 0.1, 4]


TREATED = ("env", "atari", "frame_skip", "frame_stack", "grey", "resize", "normalise", "normalise_rewards")


def test_what_the_files_of_cleanrl_put_around_an_environment_is_put_there() -> None:
    scaled = settings(PPO, "cleanrl", {"env_id": "Pendulum-v1"}, *TREATED)  # ppo_continuous_action.py
    assert scaled == ["Pendulum-v1", False, 1, 1, False, None, True, True]
    plain = settings(PPO, "cleanrl", {"env_id": "Acrobot-v1"}, *TREATED)  # ppo.py
    assert plain == ["Acrobot-v1", False, 1, 1, False, None, False, False]
    said = {"env_id": "Pendulum-v1", "normalise": False}
    assert settings(PPO, "cleanrl", said, "normalise", "normalise_rewards") == [False, True]
    assert settings(PPO, "sb3", {"env_id": "Pendulum-v1"}, "normalise") == [False]  # make_vec_env puts nothing


@pytest.mark.parametrize("game", ["BreakoutNoFrameskip-v4", "Breakout-v5"])
def test_games_of_atari_are_learned_as_cleanrl_wraps_them(game: str) -> None:
    """NoopReset, MaxAndSkip(4), EpisodicLife, FireReset, ClipReward, 84 x 84 in grey, FrameStack(4); nothing sticks."""
    pytest.importorskip("ale_py")
    if game == "Breakout-v5":
        pytest.importorskip("envpool")
    config: Any = read_values(PPO, {"names": "cleanrl", "env_id": game})
    assert (config.atari, config.frame_skip, config.frame_stack, config.resize) == (True, 4, 4, (84, 84))
    assert (config.source.atari, config.measured_source.atari) == ("learned", "measured")
    vector = config.source.vector(2, "gymnasium")
    try:
        assert vector.single_observation_space.shape == (4, 84, 84)
    finally:
        vector.close()
    assert config.source._atari_options().stickiness == 0.0
    assert read_values(PPO, {"names": "cleanrl", "env_id": "ALE/Breakout-v5", "atari": False}).atari is False


def test_what_is_switched_off_by_no_is_switched_off() -> None:
    ours = ("final_learning_rate", "value_clip", "normalise")
    assert settings(PPO, "cleanrl", {"no_anneal_lr": True, "no_clip_vloss": True, "no_cuda": True}, *ours) == [
        None,
        None,
        False,
    ]
    assert settings(PPO, "cleanrl", {"minibatch_size": 64}, "minibatch_size") == [64]  # our name, and a number
    assert read_values(PPO, {"no_evaluate_first": True, "no_report": True}).report is False
    with pytest.raises(ConfigError, match="unknown setting 'no_such_thing'"):
        read_values(PPO, {"no_such_thing": True})


def test_settings_of_rllib_are_understood() -> None:
    values = {"num_env_runners": 2, "num_envs_per_env_runner": 4, "rollout_fragment_length": 64, "lambda": 0.9}
    values |= {"train_batch_size": 1024, "sgd_minibatch_size": 128, "num_sgd_iter": 6, "vf_clip_param": 10.0}
    values |= {"model": {"fcnet_hiddens": [32]}}
    ours = ("collectors", "num_envs", "segment_steps", "tickets_per_batch", "minibatch_size", "num_epochs", "hidden")
    assert settings(PPO, "rllib", values, *ours) == [2, 4, 64, 4, 128, 6, (32,)]
    auto = {**values, "rollout_fragment_length": "auto"}
    assert settings(PPO, "rllib", auto, "segment_steps", "tickets_per_batch") == [128, 2]


def test_what_a_policy_remembers_is_said_in_the_words_of_each_library() -> None:
    ours = ("memory", "memory_size")
    of_sb3 = {"policy": "MlpLstmPolicy", "policy_kwargs": "dict(lstm_hidden_size=64, enable_critic_lstm=False)"}
    assert settings(PPO, "sb3", of_sb3, *ours) == ["lstm", 64]
    assert settings(PPO, "rllib", {"use_lstm": True, "lstm_cell_size": 32}, *ours) == ["lstm", 32]
    assert settings(PPO, "rllib", {"model": {"use_lstm": True, "lstm_cell_size": 32}}, *ours) == ["lstm", 32]
    assert settings(PPO, "rllib", {"use_lstm": False, "lstm_cell_size": 32}, *ours) == ["none", 128]
    assert settings(PPO, "sample_factory", {"use_rnn": True, "rnn_size": 48}, *ours) == ["gru", 48]
    assert settings(PPO, "sample_factory", {"use_rnn": True, "rnn_type": "lstm"}, *ours) == ["lstm", 128]
    assert settings(PPO, "sample_factory", {"use_rnn": False, "rnn_type": "lstm", "rnn_size": 48}, *ours) == [
        "none",
        128,
    ]


def test_wrappers_and_devices_of_the_zoo_are_understood() -> None:
    atari = {"env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"], "frame_stack": 4}
    assert settings(PPO, "sb3", {**atari, "env": "ALE/Pong-v5"}, "atari", "wrappers", "frame_stack") == [True, (), 4]
    own = {"env_wrapper": ["gymnasium.wrappers.FlattenObservation", "mine.wrappers.Scaled"]}
    values, _ = understand(PPO, {"names": "sb3", **own})
    assert values == {"wrappers": ["FlattenObservation", "mine.wrappers:Scaled"]}
    assert settings(PPO, "sb3", {"device": "cpu"}, "learner_gpus") == [0]
    assert settings(PPO, "sb3", {"save_freq": 4096, "n_envs": 4, "n_steps": 128}, "save_every") == [8]


def test_settings_of_rllib_around_an_environment_are_understood() -> None:
    values = {"env_config": {"g": 9.0}, "env": "Pendulum-v1", "observation_filter": "MeanStdFilter"}
    values |= {"horizon": 200, "timesteps_total": 5000, "ignore_env_runner_failures": True, "checkpoint_freq": 5}
    ours = ("env_kwargs", "normalise", "time_limit", "steps", "updates", "on_failure", "save_every")
    assert settings(PPO, "rllib", values, *ours) == [{"g": 9.0}, True, 200, 5000, None, "drop", 5]


def test_adapters_dtypes_and_strategies_of_trl_are_understood() -> None:
    values = {"use_peft": True, "torch_dtype": "bfloat16", "optim": "adamw_bnb_8bit", "save_strategy": "no"}
    ours = ("lora_rank", "parameter_dtype", "optimizer_state", "save_every")
    assert settings(GRPO, "trl", values, *ours) == [16, "bfloat16", "8bit", 0]
    assert settings(GRPO, "trl", {"use_peft": True, "lora_r": 4}, "lora_rank") == [4]
    bare = yaml.safe_load("{eval_strategy: no, save_strategy: no}")
    assert settings(GRPO, "trl", bare, "evaluate_every", "save_every") == [0, 0]


@pytest.mark.parametrize(
    ("kind", "system", "values", "line"),
    [
        (
            PPO,
            "sb3",
            {"algo": "sac"},
            "algo='sac': only 'ppo' is possible here: PPO is what there is of its algorithms",
        ),
        (
            PPO,
            "sample_factory",
            {"num_policies": 4},
            "num_policies=4: only 1 is possible here: a run trains one policy",
        ),
        (
            PPO,
            "sb3",
            {"policy_kwargs": "dict(enable_critic_lstm=True)"},
            "policy_kwargs enable_critic_lstm=True: only False is possible here: policy and value share one memory",
        ),
        (
            PPO,
            "sb3",
            {"env_wrapper": [{"mine.Wrapper": {"a": 1}}]},
            "env_wrapper names classes, received {'mine.Wrapper': {'a': 1}}; options of one need a function",
        ),
        (GRPO, "trl", {"deepspeed": "z3.json"}, "deepspeed is not here: learner_ranks and sharding spread a model"),
        (GRPO, "trl", {"optim": "sgd"}, "optim='sgd': allowed are adamw_torch, adamw_torch_fused, adamw_8bit"),
    ],
)
def test_what_a_library_has_and_is_not_here_is_refused_with_the_reason(
    kind: Any, system: str, values: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(kind, {"names": system, **values})
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize("name", ["gpu_count", "num_things", "trainer.loss.geo_mask_high", "stopping_rule", "clever"])
def test_a_name_that_is_far_from_all_others_is_no_reason_to_guess(name: str) -> None:
    for kind in (PPO, GRPO):
        with pytest.raises(ConfigError) as refused:
            read_values(kind, {name: 1})
        assert "did you mean" not in str(refused.value)
        assert len(str(refused.value)) < 130


def test_settings_of_sample_factory_are_understood() -> None:
    values = {"num_workers": 3, "num_envs_per_worker": 8, "rollout": 32, "batch_size": 256, "async_rl": False}
    values |= {"train_for_env_steps": 25_600, "max_policy_lag": 20, "exploration_loss_coeff": 0.003}
    ours = ("collectors", "num_envs", "segment_steps", "minibatch_size", "max_lead", "updates", "entropy_weight")
    assert settings(PPO, "sample_factory", values, *ours) == [3, 8, 32, 256, 0, 100, 0.003]
    assert settings(PPO, "sample_factory", {"with_vtrace": True}, "correction") == ["vtrace"]


def test_settings_of_trl_are_understood() -> None:
    values: dict[str, Any] = {"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    values |= {"beta": 0.04, "epsilon": 0.1, "loss_type": "grpo", "scale_rewards": False, "max_completion_length": 32}
    ours = ("group_size", "tickets_per_batch", "num_minibatches", "kl_weight", "clip_low", "clip_high", "estimator")
    assert settings(GRPO, "trl", values, *ours) == [4, 8, 1, 0.04, 0.1, 0.1, "dr_grpo"]
    reused = {**values, "steps_per_generation": 8, "epsilon_high": 0.3}
    assert settings(GRPO, "trl", reused, "tickets_per_batch", "num_minibatches", "clip_high") == [16, 2, 0.3]
    more = {"importance_sampling_level": "sequence", "num_train_epochs": 2, "lr_scheduler_type": "cosine"}
    assert settings(GRPO, "trl", more, "correction", "data_epochs", "updates", "lr_schedule") == [
        "gspo",
        2.0,
        None,
        "cosine",
    ]
    engine = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.3, "vllm_tensor_parallel_size": 1}
    options = {"gpu_memory_utilization": 0.3, "tensor_parallel_size": 1}
    assert settings(GRPO, "trl", engine, "engine", "vllm_options") == ["vllm", options]


@pytest.mark.parametrize(
    ("sizes", "steps", "counts"),
    [
        # one generation: 8 * 8 completions in groups of 8; optimizer steps of 8 * 4, so 2 of them; 100 / 2 updates
        ((8, 4, 8, None, 1, 1), (100, 10, 50, 20), (8, 2, 50, 5, 25, 10)),
        # 8 completions, learned at once: an update is an optimizer step
        ((8, 1, None, None, 1, 1), (100, 10, 50, 20), (1, 1, 100, 10, 50, 20)),
        # the same 4 times over: 20 of 100 steps are a fifth of the run, and so are 5 of 25 updates
        ((8, 1, None, None, 4, 1), (100, 20, 50, 20), (1, 1, 25, 5, 12, 5)),
        # 4 * 2 completions a step, 64 a generation: 8 steps, each generation twice: 16
        ((4, 2, None, 64, 2, 1), (160, 16, 48, 40), (8, 8, 10, 1, 3, 3)),
        # 2 processes: 4 * 4 * 2 completions, 4 * 2 * 2 of them a step
        ((4, 2, 4, None, 1, 2), (10, 4, 4, 1), (4, 2, 5, 2, 2, 1)),
        # shares of the run: a tenth, a quarter and a fifth of 40 updates
        ((8, 4, 8, None, 1, 1), (80, 0.1, 0.25, 0.2), (8, 2, 40, 4, 10, 8)),
    ],
)
def test_trl_counts_optimizer_steps_and_several_of_them_are_one_update(
    sizes: tuple[Any, ...], steps: tuple[Any, ...], counts: tuple[int, ...]
) -> None:
    theirs = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    theirs = (*theirs, "generation_batch_size", "num_iterations", "learner_ranks")
    values = {name: size for name, size in zip(theirs, sizes, strict=True) if size is not None}
    values |= dict(zip(("max_steps", "eval_steps", "save_steps", "warmup_steps"), steps, strict=True))
    ours = ("tickets_per_batch", "num_minibatches", "updates", "evaluate_every", "save_every", "warmup_updates")
    assert settings(GRPO, "trl", {**values, "num_generations": 8}, *ours) == list(counts)


def test_the_length_of_a_run_of_trl_is_said_once() -> None:
    both = {"num_train_epochs": 3, "max_steps": 20}  # there max_steps counts
    assert settings(GRPO, "trl", both, "updates", "data_epochs") == [20, None]
    unset = {"num_train_epochs": 3, "max_steps": -1}  # its default
    assert settings(GRPO, "trl", unset, "updates", "data_epochs") == [None, 3.0]
    assert settings(GRPO, "trl", {"max_steps": 50, "warmup_ratio": 0.1, "num_iterations": 5}, "warmup_updates") == [1]
    with pytest.raises(ConfigError, match=r"^warmup_ratio needs max_steps: num_train_epochs alone does not say how"):
        read_values(GRPO, {"names": "trl", "num_train_epochs": 3, "warmup_ratio": 0.1})


def test_steps_of_trl_beside_generations_of_several_are_never_taken_for_updates() -> None:
    values = {"steps_per_generation": 8, "gradient_accumulation_steps": 4, "num_generations": 8, "max_steps": 100}
    with pytest.raises(ConfigError, match=r"max_steps=100 can mean: updates in all .* optimizer steps, several of"):
        read_values(GRPO, values)


def test_rewards_and_data_of_trl_are_understood() -> None:
    values: dict[str, Any] = {
        "dataset_name": "a/b",
        "dataset_config": "main",
        "dataset_test_split": "test",
        "reward_weights": [1, 0.5],
    }
    values |= {
        "reward_funcs": ["my.rewards.score", "accuracy_reward"],
        "multi_objective_aggregation": "sum_then_normalize",
    }
    found = settings(GRPO, "trl", values, "task", "task_options", "reward", "reward_weights")
    options = {"config": "main", "held_out_split": "test"}
    assert found == ["datasets:a/b", options, ("my.rewards:score", "math"), (1.0, 0.5)]
    judged = settings(GRPO, "trl", {"reward_model_name_or_path": "judge"}, "reward_model")
    assert judged == ["judge"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reward_funcs", "think_format_reward", "'think_format_reward' of TRL is not here; reward=file.py:function"),
        ("reward_funcs", ["get_soft_overlong_punishment"], "overlong_tokens does that"),
        ("reward_funcs", "acuracy_reward", "did you mean 'accuracy_reward'"),
        ("reward_funcs", [3], "reward_funcs names functions, received 3"),
        ("multi_objective_aggregation", "normalize_then_sum", "only 'sum_then_normalize' is possible here"),
    ],
)
def test_rewards_of_trl_that_are_not_here_are_refused_with_a_reason(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_values(GRPO, {name: value})


def test_a_toml_file_of_prime_rl_is_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rl.toml").write_text(
        'max_steps = 30\nmax_async_level = 2\nseq_len = 512\n[model]\nname = "smollm2"\n'
        "[orchestrator]\nbatch_size = 64\nrollouts_per_example = 16\n[orchestrator.sampling]\nmax_tokens = 24\n"
        "[trainer.optim]\nlr = 2e-6\n[inference.parallel]\ntp = 1\n"
    )
    assert main(["explain", "grpo", "--config", str(tmp_path / "rl.toml")]) == 0
    said = capsys.readouterr().out
    for line in (
        "max_steps=30  ->  updates=30",
        "max_async_level=2  ->  max_lead=2",
        "orchestrator.batch_size=64  ->  tickets_per_batch=4, group_size=16",
        "trainer.optim.lr=2e-06  ->  learning_rate=2e-06",
        "inference.parallel.tp=1  ->  no effect: vllm_options go to vLLM as they are",
    ):
        assert line in said
    (tmp_path / "rl.toml").write_text("max_steps = ")
    assert main(["explain", "grpo", "--config", str(tmp_path / "rl.toml")]) != 0
    assert "rl.toml is not TOML: Invalid value (at end of document)" in capsys.readouterr().err


# -- all of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("system", "name"), [(system, name) for system, names in TABLES.items() for name in names])
def test_every_name_sets_what_exists_or_says_why_not(system: str, name: str) -> None:
    known, kind = TABLES[system][name], GRPO if system in OF_TEXT else PPO
    if known.example is None:
        with pytest.raises(ConfigError, match=f"^{name}(='anything': only None is possible| is not) here: "):
            read_values(kind, {"names": system, name: "anything"})
        return
    more: dict[str, Any] = {"vllm_options": {"use_vllm": True}}.get(known.ours, {})
    if name == "warmup_ratio":
        more = {"max_steps": 40}
    values, said = understand(kind, {"names": system, **more, name: known.example})
    read_values(kind, {"names": system, **more, name: known.example})
    if name in kind.model_fields:
        return
    (mine,) = [one for one in said if one.name == name]
    if known.ours.startswith("("):
        assert isinstance(mine.meaning, str)
    else:
        assert isinstance(mine.meaning, dict)
        assert set(mine.meaning) <= set(values)


@pytest.mark.parametrize("value", [{"type": "x"}, ["x"], "x", -3, True])
def test_a_value_of_the_wrong_kind_is_refused_under_every_name(value: Any) -> None:
    for system, names in TABLES.items():
        for name in names:
            with suppress(ValueError):
                meaning_in(system, name, value, {name: value}, defaults_of(GRPO if system in OF_TEXT else PPO))
    for path in (path.replace(".*", ".some") for path in ALL_PATHS):
        for fields in (GRPO.model_fields, MUZERO.model_fields):
            with suppress(ValueError):
                mean(path, {path: value}, fields)


def test_a_name_that_one_library_has_or_all_mean_alike_needs_no_system() -> None:
    assert read_values(PPO, {"ent_coef": 0.02, "vf_coef": 0.4, "gae_lambda": 0.9, "n_steps": 32}).segment_steps == 32
    assert read_values(PPO, {"lr": 1e-3}).learning_rate == 1e-3
    assert read_values(GRPO, {"lr": 1e-3}).learning_rate == 1e-3
    assert read_values(GRPO, {"num_generations": 4, "beta": 0.1}).group_size == 4


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"batch_size": 64},
            "batch_size=64 can mean: nothing (it is num_envs * num_steps), as in CleanRL; or minibatch_size=64, as in "
            "Sample Factory; or minibatch_size=64, as in Stable-Baselines3. Choose with --names cleanrl or "
            "sample_factory or sb3 (names: in a file)",
        ),
        (
            {"names": "cleanrl", "num_minibatches": 3, "num_steps": 128, "num_envs": 4},
            "the batch=512 must be a multiple of 3 (num_minibatches)",
        ),
        (
            {"names": "rllib", "train_batch_size": 1000, "rollout_fragment_length": 64, "num_envs": 4},
            "train_batch_size=1000 must be a multiple of 256 (steps of one segment of all copies)",
        ),
        (
            {"names": "sb3", "policy": "MultiInputPolicy"},
            "policy='MultiInputPolicy': MlpPolicy and CnnPolicy are what there is, and with Lstm in between (memory); ",
        ),
        (
            {"names": "rllib", "kl_coeff": 0.2},
            "kl_coeff=0.2: only 0.0 is possible here: the ratio is clipped, and target_kl ends the passes early",
        ),
        ({"num_generations": 8}, "setting 'num_generations' means 'group_size', which this recipe does not have"),
        ({"n_step": 8}, "unknown setting 'n_step'"),
    ],
)
def test_what_cannot_be_meant_is_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(PPO, values)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_explain_shows_the_names_of_one_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--from", "sb3"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in TABLES["sb3"])
    assert main(["explain", "n_envs=8", "batch_size=32", "--names", "sb3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "n_envs=8  ->  num_envs=8   (Stable-Baselines3)",
        "batch_size=32  ->  minibatch_size=32   (Stable-Baselines3)",
    ]
    assert main(["explain", "callback", "--names", "sb3"]) == 0
    assert capsys.readouterr().out.startswith("callback is not here: headway.start gives back a Run")
    assert main(["explain", "--from", "sb4"]) != 0
    assert "unknown system of names 'sb4'; did you mean 'sb3'?" in capsys.readouterr().err
