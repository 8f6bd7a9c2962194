"""Names that users of PriorZero know: each sets something here, says why it does not, or is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.cli.lightzero import read_file
from headway.runs.config import ConfigError, read_values, understand
from headway.text_games.config import PriorZeroConfig
from headway.tools.names.lightzero_meanings_priorzero import PATHS, WITHOUT_EFFECT

FILE: dict[str, Any] = {
    "env": {
        "env_id": "zork1.z5",
        "game_path": "mini_world",
        "max_steps": 50,
        "max_action_num": 12,
        "max_seq_len": 512,
        "collector_env_num": 4,
        "n_evaluator_episode": 2,
        "manager": {"shared_memory": False},
        "stop_value": 1,
    },
    "policy": {
        "type": "priorzero",
        "model": {"model_type": "mlp", "encoder_url": "some/encoder", "world_model_cfg": {"num_layers": 2}},
        "off_policy_degree": 0,
        "enable_async_eval": False,
        "num_unroll_steps": 10,
        "td_steps": 5,
        "batch_size": 32,
        "replay_ratio": 0.25,
        "replay_buffer_size": 10_000,
        "game_segment_length": 20,
        "collect_num_simulations": 25,
        "eval_num_simulations": 25,
        "value_loss_weight": 0.25,
        "use_priority": True,
        "cuda": False,
        "llm_policy_cfg": {
            "enable_llm": True,
            "enable_sft": True,
            "enable_rft": True,
            "pretrain_llm_path": "smollm2",
            "history_length": 5,
            "use_cot": False,
            "prompt_max_len": 2048,
            "learning_rate": 1e-5,
            "rft_clip_epsilon": 0.1,
            "rft_kl_coef": 0.02,
            "gpu_memory_utilization": 0.2,
        },
    },
}


def test_a_file_of_theirs_is_understood() -> None:
    config = read_values(PriorZeroConfig, FILE)
    assert isinstance(config, PriorZeroConfig)
    assert (config.env, config.max_episode_steps, config.slots, config.num_envs) == ("mini_world", 50, 12, 4)
    assert (config.max_lead, config.evaluate_in_background, config.eval_episodes) == (0, False, 2)
    assert (config.prior, config.prior_loss, config.model) == ("learned", "imitation_then_ppo", "smollm2")
    assert (config.history_steps, config.prior_clip, config.prior_kl) == (5, 0.1, 0.02)
    assert config.value_weight == 0.25


def test_a_file_with_a_policy_config_alone_is_understood_by_the_recipe_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "priorzero_config.py"
    path.write_text("policy_config = dict(off_policy_degree=10, enable_async_eval=False)")
    named, values = read_file(path)
    config = read_values(PriorZeroConfig, values)
    assert isinstance(config, PriorZeroConfig)
    assert (named, config.max_lead, config.evaluate_in_background) == ("", 10, False)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ({"wm_weight": 0.7}, {"prior_weight": 0.3}),
        ({"env_id": "mini_world"}, {"env": "mini_world"}),
        ({"off_policy_degree": -1}, {"max_lead": "auto"}),
        ({"enable_async_eval": True}, {"evaluate_in_background": True}),
        ({"collector_env_num": 4}, {"num_envs": 4}),
        ({"pretrain_llm_path": "smollm2"}, {"model": "smollm2"}),
        ({"history_length": 3}, {"history_steps": 3}),
        ({"enable_llm": False}, {"prior": "none"}),
        ({"policy.llm_policy_cfg.enable_sft": True}, {"prior": "learned", "prior_loss": "imitation"}),
        ({"policy.llm_policy_cfg.use_lora": False}, {"lora_rank": 0}),
        ({"policy.model.world_model_cfg.embed_dim": 64}, {"body": "unizero", "latent": 64}),
    ],
)
def test_names_are_understood_alone(said: dict[str, Any], meaning: dict[str, Any]) -> None:
    found, _ = understand(PriorZeroConfig, said)
    assert found == meaning


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"policy.llm_policy_cfg.use_cot": True}, "only False is possible here: actions are scored as they are"),
        ({"policy.llm_policy_cfg.rft_loss_type": "reinforce"}, "only ppo-simple-adv is possible here"),
        ({"policy.type": "unizero"}, "that is the recipe unizero: headway run unizero"),
        ({"env.type": "cartpole_lightzero", "env.env_id": "x"}, "only jericho is possible here"),
        ({"policy.llm_policy_cfg.history_lenght": 3}, "did you mean 'policy.llm_policy_cfg.history_length'"),
        ({"wm_weight": 0.7, "prior_weight": 0.7}, "wm_weight=0.7 means prior_weight=0.3, but prior_weight=0.7 is set"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        understand(PriorZeroConfig, said)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("known", PATHS.values(), ids=PATHS)
def test_every_path_means_settings_of_the_recipe_or_says_why_not(known: Any) -> None:
    found, (said,) = understand(PriorZeroConfig, {known.path: known.example})
    assert found or said.meaning


def test_a_path_is_in_one_table_only() -> None:
    assert not set(PATHS) & set(WITHOUT_EFFECT)
