"""LightZero's configurations: what each name is here, that none is ignored in silence, and that they run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from headway import cli
from headway.cli.lightzero import merged, read_file, recipe_of, train
from headway.cli.lightzero_entries import train_muzero
from headway.runs.config import ConfigError, read_values, understand
from headway.runs.recipes_package import load_recipe
from headway.tools.names.flat import KNOWN_NAMES
from headway.tools.names.lightzero import ALONE, PATHS, WITHOUT_EFFECT
from headway.tools.names.translate_nested_paths import mean

DOCS = Path(__file__).parents[2] / "docs"
KINDS = {name: load_recipe(name).config for name in ("muzero", "unizero")}


class Attributes(dict[str, Any]):
    """As EasyDict: a dictionary whose items are attributes too, in the groups below as well."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({n: Attributes(v) if isinstance(v, dict) else v for n, v in values.items()})

    __getattr__ = dict.__getitem__


def cartpole(policy: str) -> list[dict[str, Any]]:
    """What users of CartPole have, with every kind of name in it."""
    model = {
        "observation_shape": 4,
        "action_space_size": 2,
        "model_type": "mlp",
        "self_supervised_learning_loss": True,
        "discrete_action_encoding_type": "one_hot",
        "norm_type": "BN",
    }
    both = {
        "model": model,
        "model_path": None,
        "cuda": True,
        "env_type": "not_board_games",
        "game_segment_length": 40,
        "batch_size": 64,
        "piecewise_decay_lr_scheduler": False,
        "num_simulations": 12,
        "reanalyze_ratio": 0.0,
        "n_episode": 4,
        "eval_freq": 500,
        "replay_buffer_size": 20_000,
        "collector_env_num": 4,
        "evaluator_env_num": 3,
    }
    if policy == "muzero":
        model |= {"latent_state_dim": 48, "lstm_hidden_size": 48}
        own = {"optim_type": "Adam", "learning_rate": 0.003, "ssl_loss_weight": 2, "update_per_collect": 20}
    else:
        world = {
            "max_blocks": 10,
            "max_tokens": 20,
            "context_length": 8,
            "context_length_for_recurrent": 8,
            "device": "cuda",
            "action_space_size": 2,
            "num_layers": 3,
            "num_heads": 2,
            "embed_dim": 32,
            "env_num": 4,
            "collector_env_num": 4,
            "evaluator_env_num": 3,
            "obs_type": "vector",
            "norm_type": "BN",
            "rotary_emb": True,
        }
        model["world_model_cfg"] = world
        own = {"optim_type": "AdamW", "learning_rate": 1e-4, "target_update_freq": 100, "grad_clip_value": 5}
        own |= {"update_per_collect": None, "replay_ratio": 0.25, "num_unroll_steps": 5, "use_augmentation": False}
    env = {
        "env_id": "CartPole-v1",
        "stop_value": 400,
        "continuous": False,
        "manually_discretization": False,
        "collector_env_num": 4,
        "evaluator_env_num": 3,
        "n_evaluator_episode": 3,
        "manager": {"shared_memory": False},
    }
    create = {
        "env": {"type": "cartpole_lightzero", "import_names": ["zoo.cartpole"]},
        "env_manager": {"type": "subprocess"},
        "policy": {"type": policy, "import_names": [f"lzero.policy.{policy}"]},
    }
    return [{"exp_name": "data/cartpole", "env": env, "policy": {**both, **own}}, create]


def tictactoe() -> list[dict[str, Any]]:
    model = {
        "observation_shape": (3, 3, 3),
        "action_space_size": 9,
        "image_channel": 3,
        "num_res_blocks": 1,
        "num_channels": 12,
        "reward_head_hidden_channels": [8],
        "value_head_hidden_channels": [8],
        "policy_head_hidden_channels": [8],
        "support_scale": 10,
        "reward_support_size": 21,
        "value_support_size": 21,
    }
    policy = {
        "model": model,
        "env_type": "board_games",
        "action_type": "varied_action_space",
        "game_segment_length": 9,
        "update_per_collect": 10,
        "optim_type": "Adam",
        "learning_rate": 0.003,
        "grad_clip_value": 0.5,
        "num_simulations": 8,
        "td_steps": 9,
        "num_unroll_steps": 3,
        "discount_factor": 1,
        "replay_buffer_size": 10_000,
        "collector_env_num": 8,
    }
    env = {"battle_mode": "self_play_mode", "collector_env_num": 8, "n_evaluator_episode": 4}
    return [{"env": env, "policy": policy}, {"env": {"type": "tictactoe"}, "policy": {"type": "muzero"}}]


def read(configs: list[dict[str, Any]], *more: dict[str, Any]) -> Any:
    values = merged(*configs)
    return read_values(KINDS[recipe_of(values)], values, {"steps": 1000}, *more)


def theirs(**policy: Any) -> dict[str, Any]:
    return {f"policy.{name}": value for name, value in policy.items()}


# -- whole files ------------------------------------------------------------------------------------


def test_a_cartpole_file_for_muzero_is_understood() -> None:
    config = read(cartpole("muzero"))
    assert (config.env, config.num_envs, config.eval_episodes, config.target_score) == ("CartPole-v1", 4, 3, 400)
    assert (config.network, config.latent, config.consistency_weight) == ("vector", 48, 2)
    assert (config.segment_steps, config.update_per_collect, config.batch_size) == (40, 20, 64)
    assert (config.learning_rate, config.num_simulations, config.evaluate_every) == (0.003, 12, 500)
    assert (config.replay_capacity, config.root) == (20_000, "puct")


def test_a_cartpole_file_for_unizero_is_understood() -> None:
    config = read(cartpole("unizero"))
    assert (config.dim, config.layers, config.heads, config.context_steps) == (32, 3, 2, 4)
    assert (config.replay_ratio, config.update_per_collect, config.num_unroll_steps) == (0.25, None, 5)
    assert (config.learning_rate, config.max_grad_norm, config.target_every) == (1e-4, 5, 1)


def test_a_file_for_the_asynchronous_entry_is_understood() -> None:
    main, create = cartpole("unizero")
    world = main["policy"]["model"]["world_model_cfg"]
    world |= {
        "final_norm_option_in_obs_head": "LayerNorm",
        "final_norm_option_in_encoder": "LayerNorm",
        "device": "cpu",
    }
    main["policy"] |= {"cuda": False, "device": "cpu", "num_segments": 3, "evaluator_check_interval": 2.0}
    main["policy"] |= {"thread_timeout": 2.0, "enable_async_training": True, "data_queue_size": 10}
    main["policy"] |= {"enable_async_debug_log": True, "learn": {"learner": {"hook": {"save_ckpt_after_iter": 100}}}}
    main["policy"] |= {"collect_num_simulations": 12, "eval_num_simulations": 20, "label_smoothing_eps": 0.1}
    main["policy"] |= {"use_adaptive_entropy_weight": True, "use_encoder_clip_annealing": True}
    config = read([main, create])
    assert (config.learner_gpus, config.search_gpus, config.max_lead, config.order) == (0, 0, 10, "oldest")
    assert (config.log_level, config.save_every, config.num_simulations) == ("debug", 100, 12)
    assert (config.eval_simulations, config.value_smoothing) == (20, 0.1)
    silent = {one.name: one.meaning for one in understand(KINDS["unizero"], merged(main, create))[1]}
    assert silent["policy.thread_timeout"].startswith("every wait has a deadline of its own")
    assert silent["policy.evaluator_check_interval"].startswith("an evaluation begins when its version is published")


def test_every_unknown_name_of_a_file_is_listed_at_once() -> None:
    main, create = cartpole("muzero")
    main["policy"] |= {"nm_simulations": 2, "optim_type": "SGD"}
    main["policy"]["model"] |= {"latent_state_dims": 3}
    main["env"]["stop_values"] = 9
    with pytest.raises(ConfigError) as refused:
        read([main, create])
    lines = str(refused.value).splitlines()
    assert lines[0] == "4 settings cannot be:"
    assert {line.split("?")[0] for line in lines if "unknown" in line} == {
        "  unknown setting 'env.stop_values'; did you mean 'env.stop_value'",
        "  unknown setting 'policy.nm_simulations'; did you mean 'policy.num_simulations'",
        "  unknown setting 'policy.model.latent_state_dims'; did you mean 'policy.model.latent_state_dim'",
    }


def test_a_board_game_file_is_understood() -> None:
    config = read(tictactoe())
    assert (config.env, config.gamma, config.td_steps, config.num_unroll_steps) == ("tictactoe", 1, 9, 3)
    assert config.network == "board"
    assert (config.latent, config.value_range, config.value_bins, config.max_grad_norm) == (12, 10, 21, 0.5)


def test_every_name_of_a_file_is_said() -> None:
    values = merged(*cartpole("unizero"))
    said = {one.name: one.meaning for one in understand(KINDS["unizero"], values)[1]}
    assert {"exp_name", "env.manager.shared_memory", "env_manager.type", "policy.model.norm_type"} <= set(said)
    assert said["policy.n_episode"] == "a ticket is a segment of each game (num_envs, segment_steps)"
    assert said["policy.target_update_freq"] == "the target follows softly: target_update_theta"
    assert said["policy.model.world_model_cfg.embed_dim"] == {"dim": 32}


@pytest.mark.parametrize(
    ("recipe", "named", "meaning"),
    [
        ("unizero", {"embed_dim": 32, "num_layers": 4, "num_heads": 2}, {"dim": 32, "layers": 4, "heads": 2}),
        ("unizero", {"context_length": 8}, {"context_steps": 4}),
        ("unizero", {"infer_context_length": 3}, {"context_steps": 3}),
        ("unizero", {"target_update_theta": 0.1}, {"target_tau": 0.1}),
        ("muzero", {"evaluator_env_num": 3, "n_episode": 8, "optim_type": "Adam"}, {}),
        (
            "muzero",
            {"n_evaluator_episode": 3, "policy_entropy_weight": 0.1},
            {"eval_episodes": 3, "entropy_weight": 0.1},
        ),
        ("muzero", {"support_scale": 30}, {"value_range": 30, "value_bins": 61}),
        ("muzero", {"value_support_range": (-10.0, 11.0, 1.0)}, {"value_range": 10, "value_bins": 21}),
        ("muzero", {"gumbel_algo": True}, {"root": "gumbel"}),
        ("muzero", {"train_start_after_envsteps": 2000}, {"replay_min_size": 2000}),
        ("muzero", {"train_start_after_envsteps": 0, "lr_piecewise_constant_decay": True}, {}),
        (
            "muzero",
            {"manual_temperature_decay": True, "threshold_training_steps_for_final_temperature": 900},
            {"temperature": 1.0, "final_temperature": 0.25, "temperature_versions": 900},
        ),
        ("muzero", {"manual_temperature_decay": False}, {"temperature": 0.25, "final_temperature": 0.25}),
        ("muzero", {"use_priority": False}, {"replay_alpha": 0.0}),
    ],
)
def test_names_are_understood_alone(recipe: str, named: dict[str, Any], meaning: dict[str, Any]) -> None:
    assert understand(KINDS[recipe], named)[0] == meaning
    config = read_values(KINDS[recipe], {"steps": 1000}, named)
    assert {name: getattr(config, name) for name in meaning} == meaning


@pytest.mark.parametrize(
    ("policy", "meaning"),
    [
        ({"use_priority": False, "priority_prob_alpha": 0.6}, {"replay_alpha": 0.0}),
        ({"use_priority": True, "priority_prob_alpha": 0.7}, {"replay_alpha": 0.7}),
        ({"priority_prob_beta": 0.5}, {"replay_beta_start": 0.5, "replay_beta_end": 0.5}),
        ({"update_per_collect": 9, "replay_ratio": 0.25}, {"update_per_collect": 9}),
        ({"model.self_supervised_learning_loss": False, "ssl_loss_weight": 2}, {"consistency_weight": 0}),
        ({"type": "gumbel_muzero", "max_num_considered_actions": 4, "fixed_temperature_value": 0.3},
         {"root": "gumbel", "max_considered_actions": 4}),
        ({"fixed_temperature_value": 0.3, "root_noise_weight": 0.1},
         {"temperature": 0.3, "final_temperature": 0.3, "root_noise_weight": 0.1}),
        ({"model.model_type": "mlp", "model.num_channels": 9, "model.latent_state_dim": 16},
         {"network": "vector", "latent": 16}),
        ({"enable_async_training": False, "data_queue_size": 4}, {"max_lead": 0}),
    ],
)  # fmt: skip
def test_names_that_mean_something_together(policy: dict[str, Any], meaning: dict[str, Any]) -> None:
    assert understand(KINDS["muzero"], theirs(**policy))[0] == meaning


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (theirs(optim_type="SGD", learning_rate=0.2), "policy.optim_type='SGD': only AdamW or Adam is possible here"),
        (theirs(model_path="a.pth"), "policy.model_path='a.pth': weights of another program cannot be loaded"),
        (theirs(reward_loss_weight=2), "policy.reward_loss_weight=2: only 1 is possible here"),
        (theirs(nm_simulations=2), "unknown setting 'policy.nm_simulations'; did you mean 'policy.num_simulations'?"),
        (theirs(type="unizero"), "policy.type='unizero': that is the recipe unizero: headway run unizero"),
        (theirs(type="efficientzero"), "policy.type='efficientzero': unknown policy 'efficientzero'"),
        ({"env": {"battle_mode": "play_with_bot_mode"}}, "env.battle_mode='play_with_bot_mode': only self_play_mode"),
        ({"env": {"type": "atari_lightzero", "env_id": "Pong"}}, "env.type='atari_lightzero': unknown environment"),
        ({"env": {"type": "lunarlander"}}, "env.type='lunarlander': it needs env.env_id too"),
        ({"env": {"continuous": True}}, "env.continuous=True: only False is possible here: search needs actions"),
        (
            {"env.collector_env_num": 4, "policy.collector_env_num": 8},
            "policy.collector_env_num=8 means num_envs=8, but",
        ),
        ({"embed_dim": 64}, "setting 'policy.model.world_model_cfg.embed_dim' means 'dim', which this recipe does not"),
        ({"value_support_range": (-10, 20, 1)}, "policy.model.value_support_range=(-10, 20, 1): only (-reach, reach"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(KINDS["muzero"], {"steps": 1000, **values})
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_these_names_mean_nothing_in_recipes_without_search() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'optim_type'"):
        read_values(load_recipe("ppo").config, {"steps": 1000, "optim_type": "Adam"})


# -- the tables -------------------------------------------------------------------------------------

TOGETHER: dict[str, dict[str, Any]] = {
    "env.type": {"env.env_id": "CartPole-v1"},
    "policy.max_num_considered_actions": {"policy.gumbel_algo": True},
    "policy.threshold_training_steps_for_final_temperature": {"policy.manual_temperature_decay": True},
}


def in_recipe(kind: type[Any], path: str, given: dict[str, Any]) -> dict[str, Any] | str | None:
    """None: that recipe refuses it."""
    try:
        return mean(path, given, kind.model_fields)
    except ValueError:
        return None


@pytest.mark.parametrize("known", PATHS.values(), ids=PATHS)
def test_every_path_means_settings_of_one_of_the_recipes_or_says_why_not(known: Any) -> None:
    given = {**TOGETHER.get(known.path, {}), known.path: known.example}
    if known.ours == "(refused)":
        with pytest.raises(ValueError, match="cannot be loaded"):
            mean(known.path, given, KINDS["muzero"].model_fields)
        return
    meanings = [meaning for kind in KINDS.values() if (meaning := in_recipe(kind, known.path, given)) is not None]
    for meaning in meanings:
        if isinstance(meaning, dict):
            assert set(meaning) <= set(re.findall(r"\w+", known.ours)) | {"temperature", "final_temperature"}
        else:
            assert meaning and "\n" not in meaning
    assert (meanings and known.ours.startswith("(only")) or any(isinstance(meaning, dict) for meaning in meanings)
    assert set(known.reads) <= set(PATHS)


def test_a_path_is_in_one_table_only_and_a_group_is_no_known_name() -> None:
    assert not set(PATHS) & set(WITHOUT_EFFECT)
    assert not {path.partition(".")[0] for path in (*PATHS, *WITHOUT_EFFECT)} & set(KNOWN_NAMES)
    assert all(why and "\n" not in why for why in WITHOUT_EFFECT.values())
    assert set(ALONE.values()) <= set(PATHS) | set(WITHOUT_EFFECT)


def test_the_guide_lists_every_path_with_its_meaning() -> None:
    page = (DOCS / "guides/muzero.md").read_text().split("## Coming from LightZero")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", page, re.MULTILINE))
    assert rows == {path: known.ours for path, known in PATHS.items()}


# -- running ----------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "num_simulations": 3,
    "batch_size": 8,
    "game_segment_length": 10,
    "replay_min_size": 150,
    "evaluate_every": 0,
    "target_score": None,
    "report": False,
    "tensorboard": False,
}


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.options_output.OUT", Console(highlight=False, soft_wrap=True, width=200))


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("policy", ["muzero", "unizero"])
def test_their_configurations_run_and_say_what_has_no_effect(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = [Attributes(config) for config in cartpole(policy)]
    more = {"td_steps": 3, "update_per_collect": 3} if policy == "muzero" else {"td_steps": 3, "replay_ratio": 0.05}
    result = train(configs, seed=5, max_env_step=240, runs=tmp_path, quiet=True, **SMALL, **more)
    assert result.ledger.steps >= 240
    said = capsys.readouterr().out
    assert "exp_name=data/cartpole has no effect: a run has a folder of its own" in said
    assert "policy.piecewise_decay_lr_scheduler=False has no effect: the step size is constant" in said
    (folder,) = tmp_path.iterdir()
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert (kept["recipe"], kept["seed"], kept["steps"], kept["num_simulations"]) == (policy, 5, 240, 3)


def test_a_board_game_runs_too_with_its_configurations_side_by_side(tmp_path: Path) -> None:
    main, create = tictactoe()
    more = {**SMALL, "update_per_collect": 2}
    result = train(main, create, max_train_iter=3, runs=tmp_path, quiet=True, **more)
    assert result.updates == 3


def test_an_entry_returns_its_own_policy_where_other_scripts_make_folders_too(tmp_path: Path) -> None:
    (tmp_path / "others.py").write_text(
        "from pathlib import Path\n\n\ndef look(statistics):\n"
        f"    Path({str(tmp_path / 'runs' / 'of-another-script')!r}).mkdir(exist_ok=True)\n"
    )
    more = {**SMALL, "td_steps": 3, "update_per_collect": 3, "monitor": f"{tmp_path / 'others.py'}:look"}
    configs = [Attributes(config) for config in cartpole("muzero")]
    policy = train_muzero(configs, seed=5, max_env_step=240, runs=tmp_path / "runs", quiet=True, **more)
    assert policy.act(policy.make_env().reset(seed=0)[0]) in (0, 1)
    assert (tmp_path / "runs" / "of-another-script").is_dir()


FILE = """
from collections import OrderedDict as EasyDict
max_env_step = int(500)
main_config = EasyDict(env=dict(env_id='CartPole-v1'), policy=dict(num_simulations=7))
create_config = EasyDict(env=dict(type='cartpole_lightzero'), policy=dict(type='unizero'))
if __name__ == '__main__':
    raise SystemExit('must not train')
"""


def test_a_file_of_theirs_needs_no_package_for_its_groups(tmp_path: Path) -> None:
    was_there = "easydict" in sys.modules
    file = tmp_path / "cartpole_unizero_config.py"
    lines = FILE.replace("from collections import OrderedDict as EasyDict", "from easydict import EasyDict")
    lines += "main_config.policy.model = dict(world_model_cfg=dict(num_layers=2))\n"
    lines += "main_config.policy.model.world_model_cfg.num_layers += 1\n"
    lines += "assert main_config.policy.num_simulations == 7 and not hasattr(main_config, 'polici')\n"
    file.write_text(lines)
    recipe, values = read_file(file)
    assert (recipe, read_values(KINDS[recipe], values).steps) == ("unizero", 500)
    assert values["policy"] == {  # type: ignore[comparison-overlap]
        "type": "unizero",
        "num_simulations": 7,
        "model": {"world_model_cfg": {"num_layers": 3}},
    }
    assert was_there or "easydict" not in sys.modules


@pytest.mark.usefixtures("wide")
def test_a_file_of_theirs_is_read_without_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cartpole_unizero_config.py"
    file.write_text(FILE)
    recipe, values = read_file(file)
    assert (recipe, read_values(KINDS[recipe], values).steps) == ("unizero", 500)
    assert cli.main(["explain", "--config", str(file), "--embed_dim", "32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "policy.num_simulations=7  ->  num_simulations=7" in lines
    assert "max_env_step=500  ->  steps=500" in lines
    assert "embed_dim=32  ->  dim=32" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("main_config = {}", "defines no create_config outside of its functions"),
        ("main_config = create_config = {}", "create_config.policy.type is missing"),
        ("import nothing_of_this_name", "cannot be loaded: "),
        ("main_config, create_config = {}, {'policy': {'type': 'alphazero'}}", "unknown policy 'alphazero'"),
    ],
)
def test_a_file_that_cannot_be_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.py"
    file.write_text(text)
    assert cli.main(["run", "--config", str(file)]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="two configurations are needed"):
        train([{}])


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("policy.discount_factor=1", "policy.discount_factor=1  ->  gamma=1"),
        ("policy.mcts_ctree=true", "policy.mcts_ctree=True  ->  no effect: the search is compiled"),
        ("embed_dim=64", "policy.model.world_model_cfg.embed_dim=64  ->  dim=64"),
        ("optim_type=Adam", "policy.optim_type=Adam  ->  no effect: AdamW is used, and a step size for SGD would be"),
        ("policy.type=unizero", "policy.type=unizero  ->  no effect: the recipe says it"),
    ],
)
def test_one_name_is_explained(word: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", word]) == 0
    assert capsys.readouterr().out.strip().startswith(line)
