"""What ROLL's names say of learning: what is compared and clipped, the penalty, the engine, the tracker.

Each function is given a value, all of their names that are set, and the settings of the recipe; it returns settings
here, or the reason why there is no effect. `roll.py` says which name is translated by which. What a file does not say
has our default, not theirs, except where two of their names mean something only together.
"""

from __future__ import annotations

from collections.abc import Collection

from headway.core.text_naming import unknown
from headway.tools.names.roll_episodes import INFER
from headway.tools.names.rows import Meaning, Theirs, Translate, nested

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
    if str(value) not in ENGINES:
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
    return {"vllm_options": nested({one: told for one, told in options.items() if one not in DECIDED})}


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
    if str(value) not in TRACKERS:
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
