"""How names of ROLL's pipeline for agents are translated, where that takes more than another name.

Each function is given a value, all of their names that are set, and the settings of the recipe; it returns settings
here, or the reason why there is no effect. `roll.py` says which name is translated by which. What a file does not say
has our default, not theirs, except where two of their names mean something only together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

from headway.core.naming import unknown
from headway.core.opaque import JsonObject
from headway.names.rows import Meaning, Theirs, Translate, whole

TRAIN, INFER, VAL = "actor_train", "actor_infer", "val_env_manager"
ENVS, GENERATE = "train_env_manager", f"{INFER}.generating_args"
TRAIN_CONFIG = f"{TRAIN}.strategy_args.strategy_config"

# -- batches ----------------------------------------------------------------------------------------

BATCH, THEIR_BATCH, THEIR_GROUP = "rollout_batch_size", 128, 8
PER_DEVICE, ACCUMULATION = (
    f"{TRAIN}.training_args.{name}" for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
)
DEVICES = f"{TRAIN}.device_mapping"
SPREAD = tuple(f"{TRAIN_CONFIG}.{size}_parallel_size" for size in ("tensor_model", "pipeline_model", "context"))
ALL_BATCH_PATHS = (BATCH, PER_DEVICE, ACCUMULATION, DEVICES, *SPREAD)
RANGE = re.compile(r"list\(range\(\s*(\d+)\s*,\s*(\d+)\s*\)\)")


def num_devices(mapping: object) -> int:
    """How many GPUs a device_mapping names: a list, or `list(range(0,4))`."""
    if isinstance(mapping, list):
        return len(mapping)
    ranges = RANGE.findall(str(mapping))
    if not ranges or RANGE.sub("", str(mapping)).strip(" +"):
        raise ValueError("a device_mapping is a list of numbers, or list(range(FIRST, END))")
    return sum(max(0, int(end) - int(first)) for first, end in ranges)


def _minibatches(theirs: Theirs) -> int:
    """Gradient steps per pass: a step there takes so many episodes on each of its processes."""
    copies = max(1, num_devices(theirs[DEVICES])) if DEVICES in theirs else 1
    for path in SPREAD:
        copies = max(1, copies // whole(path, theirs.get(path, 1)))
    per_step = whole(PER_DEVICE, theirs.get(PER_DEVICE, 1)) * whole(ACCUMULATION, theirs.get(ACCUMULATION, 1)) * copies
    episodes = whole(BATCH, theirs.get(BATCH, THEIR_BATCH))
    if episodes <= per_step:
        return 1
    if episodes % per_step:
        raise ValueError(
            f"a batch of {episodes} episodes cannot be cut into gradient steps of {per_step} "
            f"(per_device_train_batch_size * gradient_accumulation_steps * {copies} processes)"
        )
    return episodes // per_step


GROUP_SIZE = f"{ENVS}.group_size"


def episodes(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """They count episodes, we count groups of them."""
    standard = fields.get("group_size") if isinstance(fields, Mapping) else None
    size = theirs.get("group_size", theirs.get(GROUP_SIZE, standard if isinstance(standard, int) else THEIR_GROUP))
    wanted, size = whole(BATCH, value), whole("group_size", size)
    if wanted % size:
        raise ValueError(f"it counts episodes: it must be a multiple of group_size={size}")
    return {"tickets_per_batch": wanted // size}


def minibatches(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"num_minibatches": _minibatches(theirs)}


def per_device(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"num_minibatches": _minibatches(theirs), **_microbatch(theirs)}


def devices(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    num_devices(value)
    return "learner_ranks says over how many processes the learner is spread; here it only decides how a batch is cut"


WARMUP, EPOCHS = f"{TRAIN}.training_args.warmup_steps", "ppo_epochs"


def warmup(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """They count gradient steps, of which an update has several."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"it must be a whole number >= 0, received {value!r}")
    return {"warmup_updates": math.ceil(value / (_minibatches(theirs) * whole(EPOCHS, theirs.get(EPOCHS, 1))))}


# -- lengths ----------------------------------------------------------------------------------------

SEQUENCE, PROMPT, RESPONSE, THEIR_PROMPT = "sequence_length", "prompt_length", "response_length", 1024
NEW_TOKENS, STEP_TOKENS, ACTIONS = f"{GENERATE}.max_new_tokens", "max_tokens_per_step", "max_actions_per_traj"
TAGS, CUSTOM = f"{ENVS}.tags", "custom_envs"
ALL_LENGTHS = (SEQUENCE, PROMPT, RESPONSE)


def _sequence(theirs: Theirs) -> int | None:
    if SEQUENCE in theirs:
        return whole(SEQUENCE, theirs[SEQUENCE])
    if RESPONSE in theirs:
        return whole(PROMPT, theirs.get(PROMPT, THEIR_PROMPT)) + whole(RESPONSE, theirs[RESPONSE])
    return None


def _microbatch(theirs: Theirs) -> JsonObject:
    tokens = _sequence(theirs)
    return {} if tokens is None else {"microbatch_tokens": tokens * whole(PER_DEVICE, theirs.get(PER_DEVICE, 1))}


def lengths(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """The whole of an episode: its first message, all that is drawn and all that is said."""
    tokens = _sequence(theirs)
    if tokens is None:
        return "sequence_length, or prompt_length with response_length, says how long an episode may become"
    return {"max_context_tokens": tokens, "max_episode_tokens": tokens, **_microbatch(theirs)}


def prompt_length(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "sequence_length bounds the first message too" if SEQUENCE in theirs else lengths(value, theirs, fields)


def turn_tokens(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """The smaller one of what generation and what the environment allow."""
    if "max_turn_tokens" not in fields:
        return {"max_tokens": value}
    said = [theirs[path] for path in (NEW_TOKENS, STEP_TOKENS, _of_env(theirs, STEP_TOKENS)) if path in theirs]
    return {"max_turn_tokens": min(whole("max_new_tokens", one) for one in said)}


def turns(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    of_env = _of_env(theirs, "max_steps")
    return f"{of_env} says it" if of_env in theirs else {"max_turns": value}


# -- environments -----------------------------------------------------------------------------------

GAMES = {"sokoban": "sokoban", "frozen_lake": "frozen_lake", "frozenlake": "frozen_lake"}
"""Their environments that are games of our own: the same rules, with rewards and texts of their own."""


def _tags(theirs: Theirs) -> list[str]:
    """The environments that are trained on: as the manager says, or all there are."""
    value = theirs.get(TAGS)
    if value is not None:
        return [str(tag) for tag in value] if isinstance(value, list) else [str(value)]
    return list(dict.fromkeys(path.split(".")[1] for path in theirs if path.startswith(f"{CUSTOM}.")))


def _of_env(theirs: Theirs, name: str) -> str:
    """Where the environment that is trained on says something; nowhere, where there is none."""
    tags = _tags(theirs)
    return f"{CUSTOM}.{tags[0]}.{name}" if len(tags) == 1 else ""


def tags(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if len(_tags(theirs)) != 1:
        raise ValueError(f"one environment is trained on here, received {len(_tags(theirs))}")
    if "env" in theirs:
        return f"env={theirs['env']} is said instead"
    if _of_env(theirs, "env_type") not in theirs:
        return "custom_envs has no such environment; env says what is played"
    return f"{_of_env(theirs, 'env_type')} says what is played"


def custom_env(path: str, value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """A name below `custom_envs`: that of the environment that is trained on, or of another one."""
    _, tag, name = (*path.split(".", 2), "")[:3]
    if [tag] != _tags(theirs):
        return "another environment is trained on"
    if name == "max_steps":
        return {"max_turns": value}
    if name == STEP_TOKENS:
        return turn_tokens(value, theirs, fields)
    if name == "max_env_step_concurrent":
        return {"max_steps_under_way": value or None}
    if name == "agent_system_template":
        return {"system_prompt": value}
    if name == "agent_template":
        return "what the environment says is said as it is"
    is_of_env = name == "env_type" or name.startswith("env_config.")
    if is_of_env and "env" in theirs:
        return f"env={theirs['env']} is said instead"
    if name == "env_type":
        return {"env": GAMES.get(str(value), str(value))}
    if is_of_env:
        return _env_option(name.removeprefix("env_config."), value, theirs, tag)
    return "environments are stepped as env_stepping says"


def _env_option(name: str, value: object, theirs: Theirs, tag: str) -> Meaning:
    begin, kind = f"{CUSTOM}.{tag}.env_config.", GAMES.get(str(theirs.get(f"{CUSTOM}.{tag}.env_type")))
    if kind is None:  # an environment of the user's own, or of a library
        options = {path.removeprefix(begin): told for path, told in theirs.items() if path.startswith(begin)}
        return {"env_options": _nested(options)}
    if name == "max_steps":
        return f"{CUSTOM}.{tag}.max_steps says it"
    if name in ("format_penalty", "is_slippery") and not value:
        return "it is off"
    if name in ("action_pattern", "observation_mode", "grid_lookup", "grid_vocab"):
        return f"the game {kind} has texts of its own (headway play {kind})"
    raise ValueError(f"the game {kind} has no such option; its own are said with env_options")


def _nested(options: JsonObject) -> JsonObject:
    """Dotted names as the groups they were."""
    whole_: JsonObject = {}
    for path, value in options.items():
        *groups, last = path.split(".")
        inner = whole_
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return whole_


VAL_BATCH, VAL_GROUP = "val_batch_size", f"{VAL}.group_size"


def evaluation(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """They count episodes; a game may be played several times."""
    size = whole(VAL_GROUP, theirs.get(VAL_GROUP, 1))
    meaning: JsonObject = {"eval_samples": size} if VAL_GROUP in theirs else {}
    if VAL_BATCH not in theirs:
        return meaning
    if theirs[VAL_BATCH] == -1:
        return meaning or "games have no end: eval_games says how many there are"
    episodes = whole(VAL_BATCH, theirs[VAL_BATCH])
    if episodes % size:
        raise ValueError(f"{episodes} episodes cannot be {size} of each game")
    return {"eval_games": episodes // size, **meaning}


# -- what is learned --------------------------------------------------------------------------------

ESTIMATOR, WHITEN = "adv_estimator", "whiten_advantages"
METHOD, GROUPING = "reward_normalization.method", "reward_normalization.grouping"
OURS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "gae", "ppo")
BY_GROUP = {"mean_std": "grpo", "mean": "dr_grpo"}
REINFORCE = ("reinforce", "agentic_reinforce")


def estimator(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    name = str(theirs.get(ESTIMATOR, "grpo"))
    if name == "step_reinforce":
        raise ValueError("it compares steps over the whole batch; credit=turn compares them within a group")
    if name in REINFORCE:
        if not theirs.get(WHITEN):
            raise ValueError(
                "rewards that are compared with nothing are not learned from here; with whiten_advantages: true it is "
                "reinforce_plus_plus"
            )
        return {"estimator": "reinforce_plus_plus"}
    if name not in (*OURS, "gigpo"):
        raise ValueError(unknown("estimator", name, (*OURS, "gigpo", *REINFORCE)))
    if name in ("grpo", "gigpo") and METHOD in theirs:
        if theirs[METHOD] not in BY_GROUP:
            raise ValueError(
                f"with {name} rewards are compared within their group: reward_normalization.method must be mean_std or "
                f"mean, received {theirs[METHOD]!r}; adv_estimator: reinforce compares the whole batch"
            )
        compared = BY_GROUP[str(theirs[METHOD])]
        return {"estimator": compared, "credit": "gigpo"} if name == "gigpo" else {"estimator": compared}
    return {"estimator": "grpo", "credit": "gigpo"} if name == "gigpo" else {"estimator": name}


def normalization(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(ESTIMATOR) not in (None, "grpo", "gigpo"):
        return f"{ESTIMATOR}={theirs[ESTIMATOR]} says what is compared"
    return estimator(value, theirs, fields)


def grouping(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(ESTIMATOR) not in (None, "grpo", "gigpo"):
        return f"{ESTIMATOR}={theirs[ESTIMATOR]} says what is compared"
    if value != "traj_group_id":
        raise ValueError("only traj_group_id is possible here: episodes of one game are compared")
    return "episodes of one game are compared"


def with_gae(ours: str, off: tuple[object, ...] = ()) -> Translate:
    """Something of the critic, which is there with gae. Otherwise only values that change nothing may be said."""

    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if theirs.get(ESTIMATOR) in ("gae", "ppo"):
            return {ours: value}
        if off and value not in off:
            raise ValueError(f"only {off[0]} is possible without adv_estimator=gae: a return is the sum of the rewards")
        return "without adv_estimator=gae there is no critic"

    return translate


def reward_model(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(ESTIMATOR) in ("gae", "ppo") and value != theirs.get("pretrain", value):
        raise ValueError("a critic starts from the policy's own model here (critic=shared or own)")
    return "rewards come from the environment"


USE_KL, KL, TOKEN_KL, INIT_KL = "use_kl_loss", "kl_loss_coef", "add_token_level_kl", "init_kl_coef"
ALL_KL_PATHS, THEIR_INIT_KL = (USE_KL, KL, TOKEN_KL, INIT_KL), 0.2


def kl(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    in_loss, in_reward = theirs.get(USE_KL, KL in theirs), theirs.get(TOKEN_KL, False)
    if in_loss and in_reward:
        raise ValueError("the penalty is in the loss (use_kl_loss) or taken from the rewards (add_token_level_kl)")
    if in_reward:
        weight = theirs.get(INIT_KL, THEIR_INIT_KL)
        return {"kl_weight": weight, "kl_in_reward": bool(weight)}
    return {"kl_weight": theirs.get(KL, 0.0) if in_loss else 0.0}


CLIP, USE_RANGE, LOW, HIGH, DUAL = "pg_clip", "use_pg_clip_range", "pg_clip_low", "pg_clip_high", "dual_clip_loss"
ALL_CLIPS, THEIR_CLIP = (CLIP, USE_RANGE, LOW, HIGH), 0.2


def clip(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    low, high = (LOW, HIGH) if theirs.get(USE_RANGE) else (CLIP, CLIP)
    if CLIP in theirs or USE_RANGE in theirs:
        return {"clip_low": theirs.get(low, THEIR_CLIP), "clip_high": theirs.get(high, THEIR_CLIP)}
    return "use_pg_clip_range is off"


def dual_clip(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    reach = theirs.get(CLIP, THEIR_CLIP)
    if not isinstance(reach, int | float):
        raise ValueError(f"pg_clip must be a number, received {reach!r}")
    return {"dual_clip": 1 + 2 * reach if value else None}


# -- engines ----------------------------------------------------------------------------------------

ENGINE, ENGINE_CONFIG = f"{INFER}.strategy_args.strategy_name", f"{INFER}.strategy_args.strategy_config"
ENGINES = {"vllm": "vllm", "hf_infer": "transformers", "transformers": "transformers"}
ON_CPU = "vLLM needs a GPU: on device=cpu the engine in this process generates"
DECIDED = {
    "load_format": "an engine starts from the model's own weights",
    "sleep_level": "an engine does not sleep: it generates while the learner learns",
}


def _is_vllm(theirs: Theirs) -> bool:
    said = theirs.get("engine")
    return said == "vllm" if said is not None else theirs.get(ENGINE) == "vllm" and theirs.get("device") != "cpu"


def engine(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value not in ENGINES:
        raise ValueError(unknown("engine", str(value), ENGINES))
    if "engine" in theirs:
        return f"engine={theirs['engine']} is said instead"
    return ON_CPU if value == "vllm" and theirs.get("device") == "cpu" else {"engine": ENGINES[str(value)]}


def engine_option(path: str, value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """An argument of vLLM."""
    name, begin = path.removeprefix(f"{ENGINE_CONFIG}."), f"{ENGINE_CONFIG}."
    if name in DECIDED:
        return DECIDED[name]
    if not _is_vllm(theirs):
        return "it is an argument of vLLM, and the engine in this process generates"
    options = {one.removeprefix(begin): told for one, told in theirs.items() if one.startswith(begin)}
    return {"vllm_options": _nested({one: told for one, told in options.items() if one not in DECIDED})}


def stop(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"stop": [value] if isinstance(value, str) else value}


def top_k(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"top_k": 0 if value == -1 else value}


def replies(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if "max_turn_tokens" not in fields:
        return {"group_size": value}
    if value != 1:
        raise ValueError("only 1 is possible here: a turn has one reply; group_size says how many episodes a game has")
    return "a turn has one reply; group_size says how many episodes a game has"


TRACKERS: dict[str, dict[str, object]] = {
    "tensorboard": {"tensorboard": True},
    "wandb": {"use_wandb": True},
    "stdout": {},
}


def tracker(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value not in TRACKERS:
        raise ValueError(unknown("tracker", str(value), TRACKERS))
    return TRACKERS[str(value)] or "the console and metrics.jsonl are always written"


def gradient_checkpointing(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"gradient_checkpointing": not value}


def never(why: str, *off: object) -> Translate:
    """What is not here: only that it is off may be said."""

    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if value not in off:
            raise ValueError(why)
        return "it is off"

    return translate
