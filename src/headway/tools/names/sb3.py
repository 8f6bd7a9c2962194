"""Names of Stable-Baselines3 and its zoo, as rows."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import Meaning
from headway.tools.names.rows_peer_rows import (
    Beside,
    absent,
    decaying,
    device,
    evaluations,
    must_be,
    nothing,
    said,
    segment_batch,
    table,
    updates_for,
)

STEPS = segment_batch()
ATARI_WRAPPER = "stable_baselines3.common.atari_wrappers.AtariWrapper"
IN_POLICY = ("net_arch", "ortho_init", "activation_fn", "lstm_hidden_size")
ONE_MEMORY = {"n_lstm_layers": 1, "shared_lstm": True, "enable_critic_lstm": False}
OF_REPLAYS = "PPO learns from each segment once; DQN, SAC and TD3 are not here"


def _policy(value: SettingValue, beside: Beside) -> Meaning:
    if value in ("MlpPolicy", "CnnPolicy"):
        return "the network is chosen by the observation"
    if value in ("MlpLstmPolicy", "CnnLstmPolicy"):
        return {"memory": "lstm"}
    raise ValueError(
        f"policy={value!r}: MlpPolicy and CnnPolicy are what there is, and with Lstm in between (memory); hidden says "
        f"how wide"
    )


def _wrappers(value: SettingValue, beside: Beside) -> Meaning:
    """By their dotted paths, as the zoo names them; what Atari's games are usually treated with is a switch here."""
    names = value if isinstance(value, list | tuple) else [value]
    found: dict[str, object] = {"atari": True} if ATARI_WRAPPER in names else {}
    own = [_wrapper(name) for name in names if name != ATARI_WRAPPER]
    return {**found, **({"wrappers": own} if own or not found else {})}


def _wrapper(name: SettingValue) -> str:
    if not isinstance(name, str):
        raise ValueError(f"env_wrapper names classes, received {name!r}; options of one need a function of your own")
    module, _, last = name.rpartition(".")
    return last if module in ("gym.wrappers", "gymnasium.wrappers") or ":" in name else f"{module}:{last}"


def _networks(value: SettingValue, beside: Beside) -> Meaning:
    said = _mapping("policy_kwargs", value)
    others = [name for name in said if name not in (*IN_POLICY, *ONE_MEMORY)]
    if others:
        raise ValueError(
            f"policy_kwargs has {others[0]!r}: net_arch (hidden) and lstm_hidden_size (memory_size) are understood"
        )
    for name, allowed in ONE_MEMORY.items():
        if said.get(name, allowed) != allowed:
            raise ValueError(
                f"policy_kwargs {name}={said[name]!r}: only {allowed!r} is possible here: policy and value share one "
                f"memory of one layer"
            )
    activation = str(said.get("activation_fn", "Tanh")).rpartition(".")[2]
    if activation.lower() != "tanh":
        raise ValueError(f"policy_kwargs activation_fn={activation!r}: only 'Tanh' is possible here")
    if said.get("ortho_init", True) is not True:
        raise ValueError(f"policy_kwargs ortho_init={said['ortho_init']!r}: only True is possible here")
    widths = said.get("net_arch")
    if isinstance(widths, list) and len(widths) == 1 and isinstance(widths[0], dict):
        widths = widths[0]  # as it was written before SB3 2
    if isinstance(widths, dict):
        if widths.get("pi") != widths.get("vf"):
            raise ValueError(f"policy_kwargs net_arch={widths!r}: both towers are alike here (hidden)")
        widths = widths["pi"]
    found: dict[str, object] = {} if widths is None else {"hidden": widths}
    return {**found, **({"memory_size": said["lstm_hidden_size"]} if "lstm_hidden_size" in said else {})}


def _normalised(value: SettingValue, beside: Beside) -> Meaning:
    """As VecNormalize does it: observations and rewards, unless one is said not to be."""
    if isinstance(value, bool):
        return {"normalise": value, "normalise_rewards": value}
    said = _mapping("normalize", value)
    others = [name for name in said if name not in ("norm_obs", "norm_reward", "gamma")]
    if others:
        raise ValueError(f"normalize has {others[0]!r}: norm_obs and norm_reward are understood")
    if said.get("gamma", beside.value("gamma")) != beside.value("gamma"):
        raise ValueError(f"normalize gamma={said['gamma']!r}: rewards are scaled with the gamma of the run")
    return {"normalise": said.get("norm_obs", True), "normalise_rewards": said.get("norm_reward", True)}


def _mapping(name: str, value: SettingValue) -> dict[str, SettingValue]:
    """A mapping, also as the zoo's files write it: a text in Python, {'a': 1} or dict(a=1)."""
    if isinstance(value, str):
        try:
            return {key: _constant(part) for key, part in _parts(ast.parse(value.strip(), mode="eval").body)}
        except (SyntaxError, ValueError):
            pass
    elif isinstance(value, dict):
        return value
    raise ValueError(f"{name} must be a mapping, received {value!r}")


def _parts(tree: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(tree, ast.Call) and ast.unparse(tree.func) == "dict" and not tree.args:
        return [(str(one.arg), one.value) for one in tree.keywords]
    if isinstance(tree, ast.Dict):
        return [(ast.literal_eval(key or tree), part) for key, part in zip(tree.keys, tree.values, strict=True)]
    raise ValueError("neither a display nor a call of dict")


def _constant(tree: ast.expr) -> SettingValue:
    """A value; the name of a class, as text."""
    if isinstance(tree, ast.Name | ast.Attribute):
        return ast.unparse(tree)
    if isinstance(tree, ast.List):
        return [_constant(one) for one in tree.elts]
    if isinstance(tree, ast.Call | ast.Dict):
        return {key: _constant(part) for key, part in _parts(tree)}
    return ast.literal_eval(tree)


def of_one_environment(values: Mapping[str, SettingValue], env: SettingValue) -> dict[str, SettingValue]:
    """What a file of the zoo says of one environment, where it has a group for each; other files as they are."""
    groups = {name: group for name, group in values.items() if isinstance(group, Mapping) and ZOO & group.keys()}
    if not groups or groups.keys() != values.keys():
        return dict(values)
    is_atari = str(env).startswith("ALE/") or "NoFrameskip-v" in str(env)
    group = groups.get(str(env), groups.get("atari") if is_atari else None)
    if group is None:
        asked = "" if env is None else f"; {unknown('environment', str(env), groups)}"
        raise ValueError(f"the file has settings for {len(groups)} environments: --env says for which{asked}")
    return {"names": "sb3", "env": env, **group}


ZOO = {"n_timesteps", "policy"}
"""Names that each group of a zoo's file has."""

NAMES = table(
    said("n_envs", "num_envs", 8),
    said("n_steps", "segment_steps", 128),
    said("batch_size", "minibatch_size", 64),
    said("n_epochs", "num_epochs", 10),
    said("total_timesteps", "updates", 100_000, updates_for("total_timesteps", STEPS)),
    said("n_timesteps", "updates", 100_000, updates_for("n_timesteps", STEPS)),
    said("gae_lambda", "lam", 0.95),
    said("clip_range", "clip (lin_0.2: falls to final_clip=0)", 0.2, decaying("clip", "final_clip")),
    said("clip_range_vf", "value_clip", 0.2),
    said("ent_coef", "entropy_weight", 0.0),
    said("vf_coef", "value_weight", 0.5),
    *(
        said(name, "learning_rate (lin_3e-4: falls to 0)", 3e-4, decaying("learning_rate", "final_learning_rate"))
        for name in ("lr", "learning_rate")
    ),
    said("policy_kwargs", "hidden", {"net_arch": [64, 64]}, _networks),
    said("net_arch", "hidden", [64, 64]),
    said("normalize", "normalise, normalise_rewards", True, _normalised),
    said("env_id", "env", "CartPole-v1"),
    said("tensorboard_log", "tensorboard", "runs/tensorboard", lambda value, beside: {"tensorboard": bool(value)}),
    said("eval_freq", "evaluate_every", 10_000, evaluations("eval_freq", STEPS)),
    said("n_eval_episodes", "eval_episodes", 5),
    said("tb_log_name", "name", "ppo"),
    said("policy", "(the network is chosen by the observation)", "MlpPolicy", _policy),
    must_be("normalize_advantage", True, "advantages are scaled to deviation 1"),
    must_be("use_sde", False, "noise is drawn at every step"),
    nothing("sde_sample_freq", "noise is drawn at every step", -1),
    nothing("stats_window_size", "the report shows every episode", 100),
    nothing("verbose", "--quiet and log_level say how much is printed", 1),
    nothing("progress_bar", "the console shows it", True),
    nothing("log_interval", "every update is recorded", 1),
    nothing("rollout_buffer_class", "segments are what is collected", "RolloutBuffer"),
    said("device", "learner_gpus", "auto", device),
    said("save_freq", "save_every", 10_000, evaluations("save_freq", STEPS, "save_every")),
    said("norm_obs", "normalise", True),
    said("norm_reward", "normalise_rewards", True),
    *(
        said(name, "wrappers, atari", "gymnasium.wrappers.FlattenObservation", _wrappers)
        for name in ("env_wrapper", "wrapper_class")
    ),
    must_be("clip_obs", 10.0, "what normalise makes of an observation is between -10 and 10"),
    must_be("clip_reward", 10.0, "what normalise_rewards makes of a reward is between -10 and 10"),
    must_be("algo", "ppo", "PPO is what there is of its algorithms"),
    must_be("deterministic", True, "evaluations take the most likely action"),
    nothing("vec_env", "stepping and env_workers say where copies step", "dummy"),
    nothing("vec_env_cls", "stepping and env_workers say where copies step", "SubprocVecEnv"),
    nothing("reset_num_timesteps", "headway resume RUN goes on with a run", False),
    nothing("best_model_save_path", "keep_best keeps the best weights in the folder of the run", "models"),
    nothing("log_path", "scores are in the folder of the run", "logs"),
    nothing("save_path", "checkpoints are in the folder of the run", "models"),
    nothing("name_prefix", "checkpoints are in the folder of the run", "ppo"),
    nothing("monitor_dir", "returns and lengths of episodes are always recorded", "logs"),
    nothing("monitor_kwargs", "returns and lengths of episodes are always recorded", {}),
    nothing("vec_env_kwargs", "stepping and env_workers say where copies step", {}),
    absent("trained_agent", "headway resume RUN goes on with a run"),
    absent("n_trials", "headway sweep tries settings, as many seeds of each as --seeds says"),
    absent("wrapper_kwargs", "a function of your own, file.py:function, gives a wrapper its options"),
    absent(
        "callback", "headway.start gives back a Run that can be looked at and stopped, and monitor calls a function"
    ),
    absent("eval_env", "evaluations play a copy of env"),
    *(
        absent(name, OF_REPLAYS)
        for name in (
            "buffer_size",
            "learning_starts",
            "train_freq",
            "gradient_steps",
            "tau",
            "exploration_fraction",
            "target_update_interval",
        )
    ),
)
