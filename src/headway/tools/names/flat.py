"""Names that users of other systems know, and what they are here. The one place where they are translated.

`headway explain` prints this table; `headway explain off_policy_degree=-1` one line of it.

Some names mean different things in different systems. Where a recipe could mean either, the name is refused with both
meanings, unless `--names SYSTEM` (in a file `names: SYSTEM`) says whose it is:

    headway run grpo --num_iterations 2                refused: updates in all, or passes over a batch?
    headway run grpo --num_iterations 2 --names trl    num_epochs=2
    headway run colorlines --num_iterations 1000       updates=1000: no other system that trains games has it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headway.core.types_opaque import SettingValue
from headway.tools.names import sb3, trl
from headway.tools.names.rows import whole
from headway.tools.names.rows_peer_rows import Beside

SYSTEMS = {
    "cleanrl": "CleanRL",
    "color_gomoku": "parallel PPO with a prioritized replay on Ray",
    "lightzero": "LightZero",
    "prime_rl": "prime-rl",
    "priorzero": "PriorZero",
    "rllib": "RLlib",
    "roll": "ROLL, its pipeline for verifiable rewards",
    "roll_agentic": "ROLL, its pipeline for agents",
    "sample_factory": "Sample Factory",
    "sb3": "Stable-Baselines3",
    "trl": "TRL",
    "verl": "verl",
}
"""What `--names` may be."""

Together = Mapping[str, object]
"""All flat names that are set, with their values."""


@dataclass(frozen=True, slots=True)
class OtherMeaning:
    """What a known name means elsewhere, for recipes in which that is possible too."""

    systems: tuple[str, ...]
    """Those whose meaning it is. Where none is in SYSTEMS it cannot be chosen by `--names`, only said in our words."""
    meaning: str
    ours: str
    """The setting to say instead."""
    is_possible: Callable[[Collection[str], Together], bool]
    """In a recipe with these settings, beside these other names."""
    translate: Callable[[object, Together, Mapping[str, object]], dict[str, object]] | None = None
    """From the value, the other names, and the recipe's defaults; None: it has no equal here."""
    is_meant: Callable[[Collection[str]], bool] = lambda fields: False
    """In recipes with these settings nothing else can be meant."""


class Implied(NamedTuple):
    """A setting that goes along with a known name in recipes where it would be something else, unless it is set."""

    setting: str
    value: object
    instead_of: object


@dataclass(frozen=True, slots=True)
class KnownName:
    """A known name, where it is known from, and what a value of it sets here."""

    name: str
    meaning: str
    translate: Callable[[object], dict[str, object]]
    example: object
    plainer: Callable[[object], dict[str, object]] | None = None
    """What it sets in recipes that lack one of those settings."""
    systems: tuple[str, ...] = ()
    """Whose meaning this is; said only where others have another."""
    others: tuple[OtherMeaning, ...] = ()
    implies: Implied | None = None

    def in_recipe(self, value: object, fields: Collection[str]) -> dict[str, object]:
        """What a value sets in a recipe with these settings, in the first of its meanings."""
        ours = self.translate(value)
        return ours if self.plainer is None or ours.keys() <= set(fields) else self.plainer(value)

    def chosen(
        self,
        value: object,
        fields: Collection[str],
        names: str | None,
        together: Together,
        defaults: Mapping[str, object],
    ) -> dict[str, object]:
        """What a value sets where names are those of the system `names`; refuses a name that could mean two things."""
        others = [other for other in self.others if other.is_possible(fields, together)]
        for other in others:
            if other.is_meant(fields) and names is None:
                names = other.systems[0]
            if names in other.systems and other.translate is not None:
                return other.translate(value, together, defaults)
        if others and names not in self.systems:
            raise ValueError(self._both(value, fields, others))
        return self.in_recipe(value, fields)

    def _both(self, value: object, fields: Collection[str], others: list[OtherMeaning]) -> str:
        ours, elsewhere = ", ".join(self.in_recipe(value, fields)), {name for one in others for name in one.systems}
        here = tuple(name for name in self.systems if name not in elsewhere)
        meanings = [(self.meaning, ours, here), *((one.meaning, one.ours, one.systems) for one in others)]
        said = "; or ".join(f"{what} ({setting}), as in {' and '.join(whose)}" for what, setting, whose in meanings)
        chosen = [name for _, _, whose in meanings for name in whose if name in SYSTEMS]
        return (
            f"{self.name}={value!r} can mean: {said}. Choose with --names {' or '.join(chosen)} (names: in a file), "
            f"or say {' or '.join(dict.fromkeys(setting for _, setting, _ in meanings))}"
        )


# -- ways to translate ------------------------------------------------------------------------------


def _same(ours: str) -> Callable[[object], dict[str, object]]:
    return lambda value: {ours: value}


def _degree(value: object) -> dict[str, object]:
    return {"max_lead": "auto" if value == -1 else value}


def _queue_size(value: SettingValue) -> dict[str, object]:
    if isinstance(value, int) and value <= 0:  # of Python's queue.Queue
        raise ValueError(
            f"data_queue_size={value} is a queue without a limit, and collection has one here: say how many batches it "
            "may be ahead (for the synchronous loop, max_lead=0)"
        )
    return {"max_lead": value, "order": "oldest"}


def _async_training(value: object) -> dict[str, object]:
    return {} if value else {"max_lead": 0}


def _fixed_temperature(value: object) -> dict[str, object]:
    return {"temperature": value, "final_temperature": value}


def _estimator(value: object) -> dict[str, object]:
    """GiGPO is a way to give credit: episodes of a group are compared as in GRPO."""
    return {"credit": "gigpo", "estimator": "grpo"} if value == "gigpo" else {"estimator": value}


def _world_model_share(value: SettingValue) -> dict[str, object]:
    """Two shares that make up one: the rest is the prior's."""
    is_share = isinstance(value, int | float) and not isinstance(value, bool)
    return {"prior_weight": round(1 - value, 12) if is_share else value}


def _retries(value: object) -> dict[str, object]:
    return {"publish_attempts": value + 1 if isinstance(value, int) else value}


def _generation(value: SettingValue) -> dict[str, object]:
    """The engine ends a late group; a collect call scores it as well, so it has more time."""
    is_time = isinstance(value, int | float) and not isinstance(value, bool)
    return {"generation_deadline_s": value, "collect_deadline_s": 2 * value + 30 if is_time else value}


def _trains_text(fields: Collection[str], together: Together) -> bool:
    return "group_size" in fields


def _takes_several_steps(fields: Collection[str], together: Together) -> bool:
    return _trains_text(fields, together) and (
        together.get("num_iterations") not in (None, 1)
        or any(together.get(name) is not None for name in ("steps_per_generation", "generation_batch_size"))
    )


def _plays(fields: Collection[str], together: Together) -> bool:
    return "num_envs" in fields


def _plays_without_search(fields: Collection[str], together: Together) -> bool:
    return "num_envs" in fields and "num_simulations" not in fields


def _optimizer_steps(name: str, ours: str) -> OtherMeaning:
    """TRL counts optimizer steps, of which an update here may have several."""

    def translate(value: SettingValue, together: Together, defaults: Mapping[str, object]) -> dict[str, object]:
        meaning = trl.NAMES[name].translate(value, Beside(together, defaults))
        return meaning if isinstance(meaning, dict) else {}

    what = "optimizer steps, several of them per generation"
    return OtherMeaning(("trl",), what, ours, _takes_several_steps, translate)


def _sb3_evaluations(value: SettingValue, together: Together, defaults: Mapping[str, object]) -> dict[str, object]:
    meaning = sb3.NAMES["eval_freq"].translate(value, Beside(together, defaults))
    assert isinstance(meaning, dict)
    return meaning


def _episodes(value: object, together: Together, defaults: Mapping[str, object]) -> dict[str, object]:
    episodes, size = whole("rollout_batch_size", value), together.get("group_size", defaults.get("group_size"))
    size = whole("group_size", size)
    if episodes % size:
        raise ValueError(f"rollout_batch_size={episodes} must be a multiple of group_size={size}")
    return {"tickets_per_batch": episodes // size}


_PASSES = OtherMeaning(
    ("trl",), "passes over a batch", "num_epochs", _trains_text, lambda value, *_: {"num_epochs": value}
)
_EPISODES = OtherMeaning(
    ("roll_agentic",),
    "episodes per update, in groups of group_size",
    "tickets_per_batch",
    _trains_text,
    _episodes,
    is_meant=lambda fields: "redundancy" in fields,
)
_STEPS = OtherMeaning(("most systems that play games",), "environment steps in all", "steps", _plays)
_EVERY_STEPS = OtherMeaning(
    ("sb3",), "environment steps between evaluations", "evaluate_every", _plays_without_search, _sb3_evaluations
)
_REPLAY = Implied("replay_mode", "shared", instead_of="none")


KNOWN_NAMES = {
    known.name: known
    for known in (
        KnownName("off_policy_degree", "batches training may be behind; 0 synchronous, -1 auto", _degree, 4),
        KnownName("wm_weight", "share of the world model at the root", _world_model_share, 0.5),
        KnownName("enable_async_eval", "evaluate in the background", _same("evaluate_in_background"), True),
        KnownName("data_queue_size", "batches between collector and learner", _queue_size, 10),
        KnownName("enable_async_training", "off: the synchronous loop", _async_training, False),
        KnownName(
            "enable_async_debug_log",
            "print every event",
            lambda value: {"log_level": "debug" if value else "info"},
            True,
        ),
        KnownName("num_workers", "collectors at once", _same("collectors"), 4),
        KnownName("weight_sync_interval", "updates per published version", _same("publish_every"), 10),
        KnownName("buffer_capacity", "steps the replay keeps", _same("replay_capacity"), 100_000, implies=_REPLAY),
        KnownName(
            "min_buffer_size",
            "steps in the replay before learning begins",
            _same("replay_min_size"),
            1000,
            implies=_REPLAY,
        ),
        KnownName("per_alpha", "how much priorities decide what is drawn", _same("replay_alpha"), 0.6, implies=_REPLAY),
        KnownName(
            "per_beta_start", "how much of that is undone at first", _same("replay_beta_start"), 0.4, implies=_REPLAY
        ),
        KnownName("warmup_seconds", "the learner starts later", _same("warmup_s"), 5),
        KnownName(
            "num_iterations", "updates in all", _same("updates"), 1000, systems=("color_gomoku",), others=(_PASSES,)
        ),
        KnownName("val_before_train", "evaluate before training", _same("evaluate_first"), True),
        KnownName("staleness_threshold", "versions collection may run ahead", _same("max_lead"), 3),
        KnownName("max_staleness_allowed", "age limit of one sample", _same("max_staleness"), 5),
        KnownName("max_queue_size", "samples the queue holds", _same("queue_capacity"), 1000),
        KnownName("min_batch_count", "samples per batch", _same("tickets_per_batch"), 1),
        KnownName("batch_timeout", "longest wait for a batch, seconds", _same("data_deadline_s"), 30.0),
        KnownName(
            "generation_timeout",
            "longest generation, seconds; without an engine the longest collect call: collect_deadline_s",
            _generation,
            30.0,
            _same("collect_deadline_s"),
        ),
        KnownName("batch_generation_interval", "pause between generations, seconds", _same("pacing_s"), 0.1),
        KnownName("max_sync_retries", "retries of a publish", _retries, 3),
        KnownName("sync_timeout", "longest publish, seconds", _same("publish_deadline_s"), 30.0),
        KnownName("sync_retry_delay", "pause between publish attempts, seconds", _same("publish_delay_s"), 1.0),
        KnownName("async_generation_ratio", "batches generation may be ahead; fractions too", _same("max_lead"), 0.5),
        KnownName(
            "rollout_batch_size",
            "prompts per update",
            _same("tickets_per_batch"),
            64,
            systems=("roll",),
            others=(_EPISODES,),
        ),
        KnownName(
            "max_steps",
            "updates in all",
            _same("updates"),
            100,
            systems=("roll", "trl"),
            others=(_STEPS, _optimizer_steps("max_steps", "updates")),
        ),
        KnownName(
            "eval_steps",
            "versions between evaluations",
            _same("evaluate_every"),
            10,
            systems=("roll", "trl"),
            others=(_optimizer_steps("eval_steps", "evaluate_every"),),
        ),
        KnownName(
            "save_steps",
            "versions between checkpoints",
            _same("save_every"),
            10,
            systems=("roll", "trl"),
            others=(_optimizer_steps("save_steps", "save_every"),),
        ),
        KnownName("adv_estimator", "how advantages are made: grpo, gigpo, gae or ppo, ...", _estimator, "gae"),
        KnownName("critic_warmup", "updates the policy waits for its critic", _same("critic_warmup_updates"), 5),
        KnownName("cliprange_value", "how far a value may move in one update", _same("value_clip"), 0.2),
        KnownName("clip_ratio_low", "how far a token may become less likely", _same("clip_low"), 0.2),
        KnownName("clip_ratio_high", "how far a token may become more likely", _same("clip_high"), 0.28),
        KnownName("loss_agg_mode", "who shares a batch evenly", _same("loss_aggregation"), "token-mean"),
        KnownName("kl_loss_coef", "holds the policy near the reference", _same("kl_weight"), 0.001),
        KnownName("use_kl_in_reward", "take that from the rewards", _same("kl_in_reward"), True),
        KnownName("entropy_coeff", "bonus for staying undecided", _same("entropy_weight"), 0.01),
        KnownName("ppo_epochs", "passes over a batch", _same("num_epochs"), 2),
        KnownName("collector_env_num", "games per collector", _same("num_envs"), 8),
        KnownName("game_segment_length", "steps of each game per segment", _same("segment_steps"), 50),
        KnownName("n_evaluator_episode", "episodes per evaluation", _same("eval_episodes"), 8),
        KnownName(
            "eval_freq",
            "versions between evaluations",
            _same("evaluate_every"),
            200,
            systems=("lightzero",),
            others=(_EVERY_STEPS,),
        ),
        KnownName("max_env_step", "environment steps in all", _same("steps"), 200_000),
        KnownName("discount_factor", "discount", _same("gamma"), 0.997),
        KnownName("replay_buffer_size", "steps the replay keeps", _same("replay_capacity"), 100_000),
        KnownName("priority_prob_alpha", "how much priorities decide what is drawn", _same("replay_alpha"), 0.6),
        KnownName("priority_prob_beta", "how much of that is undone at first", _same("replay_beta_start"), 0.4),
        KnownName("fixed_temperature_value", "chance in choosing by visits", _fixed_temperature, 0.25),
        KnownName("gumbel_algo", "a Gumbel root", lambda value: {"root": "gumbel" if value else "puct"}, True),
        KnownName("max_num_considered_actions", "actions it tries", _same("max_considered_actions"), 6),
        KnownName("target_update_freq", "updates per move of the target network", _same("target_every"), 100),
        KnownName("ssl_loss_weight", "weight of the consistency loss", _same("consistency_weight"), 2),
        KnownName("grad_clip_value", "largest gradient norm", _same("max_grad_norm"), 5),
        KnownName("infer_context_length", "steps before an observation", _same("context_steps"), 4),
        KnownName("reanalyze_batch_size", "positions reanalyzed together", _same("reanalyze_roots"), 160),
    )
}


def translate(
    name: str,
    value: object,
    fields: Collection[str],
    *,
    names: str | None = None,
    together: Together | None = None,
    defaults: Mapping[str, object] | None = None,
) -> dict[str, object] | None:
    """What `name=value` sets in a recipe with these settings, or None if the name is not known.

    `names` is the system whose names these are, `together` all that are set, `defaults` those of the recipe.
    """
    known = KNOWN_NAMES.get(name)
    return None if known is None else known.chosen(value, fields, names, together or {}, defaults or {})
