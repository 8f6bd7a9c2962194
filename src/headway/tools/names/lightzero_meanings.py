"""How names of LightZero are translated, where that takes more than another name.

Each function is given a value, all of their names that are set, and the settings of the recipe; it returns settings
here, or the reason why there is no effect. `lightzero.py` says which name is translated by which.
"""

from __future__ import annotations

from collections.abc import Collection

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.tools.names.flat import KNOWN_NAMES
from headway.tools.names.rows import Meaning, Theirs, Translate

RECIPES = {"muzero": "muzero", "gumbel_muzero": "muzero", "unizero": "unizero", "priorzero": "priorzero"}
"""By `create_config.policy.type`."""
ENVIRONMENTS = {
    "cartpole_lightzero": "CartPole-v0",
    "connect4": "connect_four",
    "lunarlander": None,
    "mountain_car_lightzero": "MountainCar-v0",
    "tictactoe": "tictactoe",
}
"""By `create_config.env.type`; None: env_id says it."""
BOARDS = ("tictactoe", "connect4")

MODEL = "policy.model"
WORLD = f"{MODEL}.world_model_cfg"
ENV_TYPE, ENV_ID, ENV_NAME, GAME_PATH = "env.type", "env.env_id", "env.env_name", "env.game_path"
POLICY_TYPE, GUMBEL = "policy.type", "policy.gumbel_algo"


def is_priorzero(fields: Collection[str]) -> bool:
    return "slots" in fields


def is_unizero(fields: Collection[str]) -> bool:
    return "context_steps" in fields and not is_priorzero(fields)


def _is_gumbel(theirs: Theirs) -> bool:
    return bool(theirs.get(GUMBEL)) or theirs.get(POLICY_TYPE) == "gumbel_muzero"


def _is_board(theirs: Theirs) -> bool:
    return theirs.get(ENV_TYPE) in BOARDS


def env(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    kind, named = theirs.get(ENV_TYPE), theirs.get(ENV_ID, theirs.get(ENV_NAME))
    if is_priorzero(fields):
        if kind not in (None, "jericho"):
            raise ValueError("only jericho is possible here: text games are named by env_id, or by the file's path")
        story = theirs.get(GAME_PATH, named)
        return "env_id says which" if story is None else {"env": story}
    if kind is not None and kind not in ENVIRONMENTS:
        raise ValueError(
            f"{unknown('environment', str(kind), ENVIRONMENTS)}; for another leave env.type out and set env.env_id to "
            "one that is registered with Gymnasium, its wrappers included"
        )
    known = ENVIRONMENTS.get(str(kind))
    chosen = known if kind in BOARDS else named or known
    if chosen is None:
        raise ValueError("it needs env.env_id too")
    return {"env": chosen}


def policy_type(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    recipe = RECIPES.get(str(value))
    if recipe is None:
        raise ValueError(unknown("policy", str(value), RECIPES))
    if recipe != ("priorzero" if is_priorzero(fields) else "unizero" if is_unizero(fields) else "muzero"):
        raise ValueError(f"that is the recipe {recipe}: headway run {recipe}")
    return gumbel(value, theirs, fields) if recipe == "muzero" else "the recipe says it"


def gumbel(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"root": "gumbel" if _is_gumbel(theirs) else "puct"}


def with_puct(translate: Translate) -> Translate:
    def meaning(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if _is_gumbel(theirs):
            return "a Gumbel root explores by itself, without temperature and Dirichlet noise"
        return translate(value, theirs, fields)

    return meaning


def considered(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"max_considered_actions": value} if _is_gumbel(theirs) else "only a Gumbel root has it"


def of(recipe: str, ours: str, why: str) -> Translate:
    """In one of the two recipes, with the reason in the other."""

    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        return {ours: value} if is_unizero(fields) == (recipe == "unizero") else why

    return translate


def stop_value(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if _is_board(theirs):
        return "a board game's score is the share of games won, and half of those drawn: set target_score"
    return {"target_score": value}


UPDATES = "policy.update_per_collect"


def replay_ratio(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "update_per_collect says it" if UPDATES in theirs else {"replay_ratio": value}


def start_after(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"replay_min_size": value} if value else "learning begins with replay_min_size steps: targets need them"


SSL, SSL_WEIGHT = f"{MODEL}.self_supervised_learning_loss", "policy.ssl_loss_weight"


def consistency(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if is_unizero(fields):
        return "the next latent is always learned (latent_weight)"
    ours = "agreement_weight" if is_priorzero(fields) else "consistency_weight"
    if theirs.get(SSL) is False:
        return {ours: 0}
    weight = theirs.get(SSL_WEIGHT)
    return f"{ours} says how much" if weight is None else {ours: weight}


DECAY, FIXED = "policy.manual_temperature_decay", "policy.fixed_temperature_value"
DECAY_OVER = "policy.threshold_training_steps_for_final_temperature"
TEMPERATURE_PATHS = (DECAY, FIXED, DECAY_OVER, GUMBEL, POLICY_TYPE)
THEIR_TEMPERATURE = 0.25  # fixed, and where a decay ends


def temperature(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if not theirs.get(DECAY):
        fixed = theirs.get(FIXED, THEIR_TEMPERATURE)
        return {"temperature": fixed, "final_temperature": fixed}
    over = {"temperature_versions": theirs[DECAY_OVER]} if DECAY_OVER in theirs else {}
    return {"temperature": 1.0, "final_temperature": THEIR_TEMPERATURE, **over}


def decay_over(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if not theirs.get(DECAY):
        return "without manual_temperature_decay nothing decays"
    return temperature(value, theirs, fields)


PRIORITY, ALPHA = "policy.use_priority", "policy.priority_prob_alpha"


def priority(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if not theirs.get(PRIORITY, True):
        return {"replay_alpha": 0.0}
    return {"replay_alpha": theirs[ALPHA]} if ALPHA in theirs else "positions are drawn by priority (replay_alpha)"


def beta(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"replay_beta_start": value, "replay_beta_end": value}


def reach(value: SettingValue, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"value_range": value, "value_bins": 2 * value + 1}


def span(value: SettingValue, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """(low, high, step), where high is not part of it."""
    low, high, step = value
    if not (low < 0 < step and abs(low + high - step) < 1e-6):
        raise ValueError("only (-reach, reach + step, step) is possible here: supports are symmetric")
    return {"value_range": -low, "value_bins": round((high - low) / step)}


MODEL_TYPE = f"{MODEL}.model_type"


def model_type(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value not in ("mlp", "conv"):
        raise ValueError("only mlp or conv is possible here: a model begins with one observation")
    return {"network": "vector"} if value == "mlp" and "network" in fields else "what is seen decides"


def width(kind: str) -> Translate:
    """Two names of one thing: which one counts depends on the model's type."""

    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if is_unizero(fields):
            return "a latent has embed_dim features"
        if theirs.get(MODEL_TYPE, kind) != kind:
            return f"model_type={theirs[MODEL_TYPE]} has none"
        return {"latent": value, **({"network": "board"} if kind == "conv" and _is_board(theirs) else {})}

    return translate


def embedding(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Of a transformer's tokens: in PriorZero it is one of two bodies."""
    return {"body": "unizero", "latent": value} if is_priorzero(fields) else {"dim": value}


def context(value: SettingValue, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Tokens, of which a step has two."""
    if _is_board(theirs):
        return "a board shows everything"
    return {"context_steps": value // 2, **({"body": "unizero"} if is_priorzero(fields) else {})}


def cuda(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value and value != "cpu":
        return "learner_gpus and search_gpus say who gets a GPU; small networks are faster on a CPU"
    return {"learner_gpus": 0.0, "search_gpus": 0.0}


ASYNC = "policy.enable_async_training"


def queue(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(ASYNC) is False:
        return "with enable_async_training off there is no queue"
    return KNOWN_NAMES["data_queue_size"].translate(value)


def nothing_to_load(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    raise ValueError("weights of another program cannot be loaded: leave it out")


def flat(name: str) -> Translate:
    """As the flat name is translated."""
    return lambda value, theirs, fields: KNOWN_NAMES[name].translate(value)
