"""What ROLL's names say of episodes: how many a batch has, how long they may be, in which environment they are played.

Each function is given a value, all of their names that are set, and the settings of the recipe; it returns settings
here, or the reason why there is no effect. `roll.py` says which name is translated by which. What a file does not say
has our default, not theirs, except where two of their names mean something only together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from headway.core.types_opaque import JsonObject
from headway.tools.names import rows_gpu_places as gpu_places
from headway.tools.names.rows import Meaning, Theirs, nested, whole
from headway.tools.names.rows_gpu_places import devices_of

TRAIN, INFER, VAL = "actor_train", "actor_infer", "val_env_manager"
ENVS, GENERATE = "train_env_manager", f"{INFER}.generating_args"
TRAIN_CONFIG = f"{TRAIN}.strategy_args.strategy_config"

# -- batches ----------------------------------------------------------------------------------------

BATCH, THEIR_BATCH, THEIR_GROUP = "rollout_batch_size", 128, 8
PER_DEVICE, ACCUMULATION = (
    f"{TRAIN}.training_args.{name}" for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
)
DEVICES, SPREAD = gpu_places.TRAIN_DEVICES, gpu_places.CUTS
ALL_BATCH_PATHS = (BATCH, PER_DEVICE, ACCUMULATION, DEVICES, *SPREAD)


def _minibatches(theirs: Theirs) -> int:
    """Gradient steps per pass: a step there takes so many episodes on each of its processes."""
    copies = max(1, len(devices_of(theirs[DEVICES]))) if DEVICES in theirs else 1
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
        return {"env_options": nested(options)}
    if name == "max_steps":
        return f"{CUSTOM}.{tag}.max_steps says it"
    if name in ("format_penalty", "is_slippery") and not value:
        return "it is off"
    if name in ("action_pattern", "observation_mode", "grid_lookup", "grid_vocab"):
        return f"the game {kind} has texts of its own (headway play {kind})"
    raise ValueError(f"the game {kind} has no such option; its own are said with env_options")


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
