"""Configuration: known names, conflicts, one line for everything that cannot be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field, ValidationError

from headway.core.rules_order import READY
from headway.runs.config import ConfigError, RunConfig, read_values, without
from headway.runs.files_run_files import with_absolute_paths
from headway.runs.folder import RunFolder, read_config
from headway.runs.recipes_package import RECIPES, load_recipe
from headway.runtimes.build import RUNTIMES, build_runtime
from headway.tools.names.flat import KNOWN_NAMES, SYSTEMS, translate

CONFIGS = [RunConfig, *(load_recipe(name).config for name in RECIPES)]


def config(**values: Any) -> RunConfig:
    return read_values(RunConfig, {"updates": 10, **values})


# -- known names ------------------------------------------------------------------------------------

SAYS_THE_DESIGN = [
    ("off_policy_degree", 0, {"max_lead": 0}),
    ("off_policy_degree", 60, {"max_lead": 60}),
    ("off_policy_degree", -1, {"max_lead": "auto"}),
    ("enable_async_eval", True, {"evaluate_in_background": True}),
    ("data_queue_size", 10, {"max_lead": 10, "order": "oldest"}),
    ("enable_async_training", False, {"max_lead": 0}),
    ("enable_async_training", True, {}),
    ("enable_async_debug_log", True, {"log_level": "debug"}),
    ("enable_async_debug_log", False, {"log_level": "info"}),
    ("num_workers", 4, {"collectors": 4}),
    ("weight_sync_interval", 10, {"publish_every": 10}),
    ("warmup_seconds", 5, {"warmup_s": 5}),
    ("num_iterations", 1000, {"updates": 1000}),
    ("val_before_train", True, {"evaluate_first": True}),
    ("staleness_threshold", 3, {"max_lead": 3}),
    ("max_staleness_allowed", 5, {"max_staleness": 5}),
    ("max_queue_size", 1000, {"queue_capacity": 1000}),
    ("min_batch_count", 1, {"tickets_per_batch": 1}),
    ("batch_timeout", 30.0, {"data_deadline_s": 30.0}),
    ("generation_timeout", 30.0, {"collect_deadline_s": 30.0}),  # with an engine: see below
    ("batch_generation_interval", 0.1, {"pacing_s": 0.1}),
    ("max_sync_retries", 3, {"publish_attempts": 4}),
    ("sync_timeout", 30.0, {"publish_deadline_s": 30.0}),
    ("sync_retry_delay", 1.0, {"publish_delay_s": 1.0}),
    ("async_generation_ratio", 0.5, {"max_lead": 0.5}),
    ("rollout_batch_size", 64, {"tickets_per_batch": 64}),
    ("max_steps", 100, {"updates": 100}),
    ("eval_steps", 10, {"evaluate_every": 10}),
    ("save_steps", 10, {"save_every": 10}),
]


@pytest.mark.parametrize(("name", "value", "ours"), SAYS_THE_DESIGN)
def test_a_known_name_means_what_the_design_says(name: str, value: Any, ours: dict[str, Any]) -> None:
    assert translate(name, value, RunConfig.model_fields) == ours
    read = read_values(RunConfig, {"updates": 1000, **ours})
    ends = {} if "updates" in ours else {"updates": 1000}
    assert read_values(RunConfig, {**ends, name: value}) == read


OF_A_REPLAY = [
    ("buffer_capacity", 50_000, {"replay_capacity": 50_000}),
    ("min_buffer_size", 2000, {"replay_min_size": 2000}),
    ("per_alpha", 0.7, {"replay_alpha": 0.7}),
    ("per_beta_start", 0.5, {"replay_beta_start": 0.5}),
]


@pytest.mark.parametrize(("name", "value", "ours"), OF_A_REPLAY)
def test_a_known_name_of_a_replay_is_for_recipes_that_have_one(name: str, value: Any, ours: dict[str, Any]) -> None:
    kind = load_recipe("colorlines").config
    assert translate(name, value, kind.model_fields) == ours
    mode = {"replay_mode": "shared"}
    assert read_values(kind, mode, {name: value}) == read_values(kind, mode, ours)
    with pytest.raises(ConfigError, match=f"setting '{name}' means '{next(iter(ours))}', which this recipe does not"):
        config(**{name: value})


OF_A_SEARCH = [
    ("collector_env_num", 4, {"num_envs": 4}),
    ("game_segment_length", 40, {"segment_steps": 40}),
    ("n_evaluator_episode", 8, {"eval_episodes": 8}),
    ("eval_freq", 150, {"evaluate_every": 150}),
    ("max_env_step", 20_000, {"steps": 20_000}),
    ("discount_factor", 0.99, {"gamma": 0.99}),
    ("replay_buffer_size", 50_000, {"replay_capacity": 50_000}),
    ("priority_prob_alpha", 0.7, {"replay_alpha": 0.7}),
    ("priority_prob_beta", 0.5, {"replay_beta_start": 0.5}),
    ("fixed_temperature_value", 0.25, {"temperature": 0.25, "final_temperature": 0.25}),
    ("gumbel_algo", True, {"root": "gumbel"}),
    ("max_num_considered_actions", 6, {"max_considered_actions": 6}),
    ("target_update_freq", 50, {"target_every": 50}),
    ("ssl_loss_weight", 1, {"consistency_weight": 1}),
    ("grad_clip_value", 10, {"max_grad_norm": 10}),
    ("reanalyze_batch_size", 128, {"reanalyze_roots": 128}),
    ("infer_context_length", 4, {"context_steps": 4}),
]


@pytest.mark.parametrize(("name", "value", "ours"), OF_A_SEARCH)
def test_a_known_name_of_a_search_is_for_recipes_that_search(name: str, value: Any, ours: dict[str, Any]) -> None:
    kind = load_recipe("unizero" if "context_steps" in ours else "muzero").config
    assert translate(name, value, kind.model_fields) == ours
    more = {"wall_s": 9} | ({"root": "gumbel"} if "max_considered_actions" in ours else {})
    assert read_values(kind, {**more, name: value}) == read_values(kind, {**more, **ours})


OF_A_LANGUAGE_MODEL = [
    ("adv_estimator", "ppo", {"estimator": "ppo"}),
    ("critic_warmup", 3, {"critic_warmup_updates": 3}),
    ("cliprange_value", 0.2, {"value_clip": 0.2}),
    ("clip_ratio_low", 0.1, {"clip_low": 0.1}),
    ("clip_ratio_high", 0.3, {"clip_high": 0.3}),
    ("loss_agg_mode", "seq-mean-token-sum", {"loss_aggregation": "seq-mean-token-sum"}),
    ("kl_loss_coef", 0.01, {"kl_weight": 0.01}),
    ("use_kl_in_reward", True, {"kl_in_reward": True}),
    ("entropy_coeff", 0.02, {"entropy_weight": 0.02}),
    ("ppo_epochs", 2, {"num_epochs": 2}),
]


@pytest.mark.parametrize(("name", "value", "ours"), OF_A_LANGUAGE_MODEL)
def test_a_known_name_of_an_update_is_for_recipes_with_a_language_model(
    name: str, value: Any, ours: dict[str, Any]
) -> None:
    kind = load_recipe("grpo").config
    assert translate(name, value, kind.model_fields) == ours
    values = {"estimator": "gae", "kl_weight": 0.1}
    assert read_values(kind, values, {name: value}) == read_values(kind, values, ours)


OF_A_PRIOR: list[tuple[str, Any, dict[str, Any]]] = [("wm_weight", 0.25, {"prior_weight": 0.75})]


@pytest.mark.parametrize(("name", "value", "ours"), OF_A_PRIOR)
def test_a_known_name_of_a_prior_is_for_the_recipe_that_has_one(name: str, value: Any, ours: dict[str, Any]) -> None:
    kind = load_recipe("priorzero").config
    assert translate(name, value, kind.model_fields) == ours
    assert read_values(kind, {"wall_s": 9, name: value}) == read_values(kind, {"wall_s": 9, **ours})


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ({"weight_sync_interval": 10, "eval_interval": 100, "save_interval": 500}, (10, 10, 50)),
        ({"publish_every": 10, "eval_interval": 100, "save_interval": 500}, (10, 10, 50)),
        ({"eval_interval": 100, "save_interval": 500}, (1, 100, 500)),
        ({"weight_sync_interval": 10, "eval_interval": 3, "save_interval": 0}, (10, 1, 0)),
    ],
)
def test_intervals_of_the_parallel_ppo_count_training_steps(values: dict[str, int], counts: tuple[int, ...]) -> None:
    for kind in (RunConfig, load_recipe("colorlines").config):
        found = read_values(kind, {"updates": 1000, **values})
        assert (found.publish_every, found.evaluate_every, found.save_every) == counts


def test_a_queue_without_a_limit_is_not_the_synchronous_loop() -> None:
    limit = "data_queue_size=0 is a queue without a limit, and collection has one here: say how many batches it may be "
    with pytest.raises(ConfigError, match=limit):
        config(data_queue_size=0)
    with pytest.raises(ConfigError, match=f"^policy.data_queue_size=0: {limit}"):
        read_values(load_recipe("unizero").config, {"wall_s": 1, "policy": {"data_queue_size": 0}})
    assert config(data_queue_size=0, enable_async_training=False).max_lead == 0  # there is no queue then


def test_with_an_engine_a_generation_ends_there_and_a_collect_call_has_room() -> None:
    kind = load_recipe("grpo").config
    assert translate("generation_timeout", 1, kind.model_fields) == {
        "generation_deadline_s": 1,
        "collect_deadline_s": 32,
    }
    with pytest.raises(
        ConfigError, match=r"generation_timeout=soon \(generation_deadline_s='soon'\): Input should be a valid number"
    ):
        read_values(kind, {"generation_timeout": "soon"})


def test_every_known_name_is_in_the_lists_above() -> None:
    lists = SAYS_THE_DESIGN + OF_A_REPLAY + OF_A_LANGUAGE_MODEL + OF_A_SEARCH + OF_A_PRIOR
    assert {name for name, _, _ in lists} == set(KNOWN_NAMES)


@pytest.mark.parametrize("known", KNOWN_NAMES.values(), ids=KNOWN_NAMES)
def test_every_known_name_sets_fields_that_exist_and_explains_itself(known: Any) -> None:
    ours = known.translate(known.example)
    kind = next(kind for kind in CONFIGS if set(ours) <= set(kind.model_fields))
    assert known.meaning
    more: dict[str, Any] = {"replay_mode": "shared"} if "replay_mode" in kind.model_fields else {}
    if "estimator" in kind.model_fields:
        more |= {"estimator": "gae", "kl_weight": 0.1}
    if "max_considered_actions" in ours:
        more["root"] = "gumbel"
    if "context_steps" in ours and "body" in kind.model_fields:
        more["body"] = "unizero"
    if "updates" not in ours:
        more["updates"] = 1000
    read_values(kind, {name: value for name, value in more.items() if name not in ours}, {known.name: known.example})


def test_no_known_name_hides_a_setting_of_ours() -> None:
    for kind in CONFIGS:
        assert not set(KNOWN_NAMES) & set(kind.model_fields)


def test_a_name_nobody_knows_is_not_translated() -> None:
    assert translate("flux", 1, RunConfig.model_fields) is None


# -- names that mean different things ---------------------------------------------------------------

GRPO, PPO = load_recipe("grpo").config, load_recipe("ppo").config


@pytest.mark.parametrize(
    ("kind", "values", "both"),
    [
        (
            GRPO,
            {"num_iterations": 2},
            "num_iterations=2 can mean: updates in all (updates), as in color_gomoku; or passes over a batch "
            "(num_epochs), as in trl. Choose with --names color_gomoku or trl (names: in a file), or say updates or "
            "num_epochs",
        ),
        (
            GRPO,
            {"rollout_batch_size": 64},
            "rollout_batch_size=64 can mean: prompts per update (tickets_per_batch), as in roll; or episodes per "
            "update, in groups of group_size (tickets_per_batch), as in roll_agentic. Choose with --names roll or "
            "roll_agentic (names: in a file), or say tickets_per_batch",
        ),
        (
            PPO,
            {"max_steps": 100_000},
            "max_steps=100000 can mean: updates in all (updates), as in roll and trl; or environment steps in all "
            "(steps), as in most systems that play games. Choose with --names roll or trl (names: in a file), or "
            "say updates or steps",
        ),
        (
            PPO,
            {"eval_freq": 10_000},
            "eval_freq=10000 can mean: versions between evaluations (evaluate_every), as in lightzero; or environment "
            "steps between evaluations (evaluate_every), as in sb3. Choose with --names lightzero or sb3 (names: in a "
            "file), or say evaluate_every",
        ),
    ],
)
def test_a_name_that_means_two_things_is_refused_with_both(kind: Any, values: dict[str, Any], both: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(kind, values)
    assert str(refused.value) == both


@pytest.mark.parametrize(
    ("kind", "system", "values", "ours"),
    [
        (GRPO, "trl", {"num_iterations": 2}, {"num_epochs": 2}),
        (GRPO, "TRL", {"num_iterations": 2}, {"num_epochs": 2}),
        (GRPO, "color_gomoku", {"num_iterations": 50}, {"updates": 50}),
        (GRPO, "trl", {"max_steps": 50, "eval_steps": 4, "save_steps": 6}, {"updates": 50, "evaluate_every": 4}),
        (GRPO, "roll", {"max_steps": 50, "rollout_batch_size": 16}, {"updates": 50, "tickets_per_batch": 16}),
        (GRPO, "roll_agentic", {"rollout_batch_size": 64, "group_size": 8}, {"tickets_per_batch": 8}),
        (GRPO, "roll_agentic", {"rollout_batch_size": 64}, {"tickets_per_batch": 64 // GRPO().group_size}),
        (PPO, "roll", {"max_steps": 100}, {"updates": 100}),
        (PPO, "lightzero", {"eval_freq": 100}, {"evaluate_every": 100}),
        (PPO, "sb3", {"eval_freq": 20_480}, {"evaluate_every": 10}),
    ],
)
def test_the_system_that_is_named_decides_what_its_names_mean(
    kind: Any, system: str, values: dict[str, Any], ours: dict[str, Any]
) -> None:
    in_one_layer = read_values(kind, {"names": system, **values})
    assert {name: getattr(in_one_layer, name) for name in ours} == ours
    file_and_command_line = read_values(kind, values, {"names": system})
    command_line_over_file = read_values(kind, {"names": system}, values)
    assert file_and_command_line == command_line_over_file == in_one_layer


def test_optimizer_steps_of_trl_are_counted_in_batches() -> None:
    values = {"names": "trl", "num_iterations": 2, "max_steps": 100, "eval_steps": 10, "save_steps": 50}
    config = read_values(GRPO, values)
    assert (config.num_epochs, config.updates, config.evaluate_every, config.save_every) == (2, 50, 5, 25)
    assert read_values(GRPO, values, {"num_iterations": 5}).updates == 20
    with pytest.raises(ConfigError, match=r"^max_steps=101 must be a multiple of 2 \(optimizer steps of an update\)$"):
        read_values(GRPO, {**values, "max_steps": 101})


def test_a_name_with_one_possible_meaning_needs_no_system() -> None:
    assert read_values(load_recipe("colorlines").config, {"num_iterations": 7}).updates == 7
    assert read_values(load_recipe("muzero").config, {"eval_freq": 7, "wall_s": 1}).evaluate_every == 7
    assert read_values(GRPO, {"max_steps": 7, "save_steps": 3}).updates == 7


def test_a_later_layer_may_speak_the_names_of_another_system() -> None:
    config = read_values(GRPO, {"names": "trl", "num_iterations": 2}, {"names": "roll", "rollout_batch_size": 4})
    assert (config.num_epochs, config.tickets_per_batch) == (2, 4)


@pytest.mark.parametrize("name", ["Foo-v0", "Bar"])
def test_no_name_is_guessed_where_none_is_near(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown environment '{name}'; allowed: what gymnasium") as refused:
        read_values(PPO, {"env": name})
    assert len(str(refused.value)) < 220


def test_a_system_nobody_knows_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"^unknown system of names 'tlr'; did you mean 'trl'\? allowed: cleanrl"):
        read_values(GRPO, {"names": "tlr"})


def test_every_other_meaning_is_of_a_system_that_can_be_named_or_says_what_to_say() -> None:
    for known in KNOWN_NAMES.values():
        assert bool(known.others) == bool(known.systems)
        assert set(known.systems) <= set(SYSTEMS)
        for other in known.others:
            assert (other.translate is not None) == (set(other.systems) <= set(SYSTEMS))
            assert any(other.ours in kind.model_fields for kind in CONFIGS)


# -- conflicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"off_policy_degree": 4, "max_lead": 2}, "off_policy_degree=4 means max_lead=4, but max_lead=2 is set too"),
        ({"max_lead": 2, "off_policy_degree": 4}, "off_policy_degree=4 means max_lead=4, but max_lead=2 is set too"),
        (
            {"off_policy_degree": 4, "staleness_threshold": 3},
            "staleness_threshold=3 means max_lead=3, but max_lead=4 is set too",
        ),
        (
            {"data_queue_size": 4, "order": "ready"},
            "data_queue_size=4 means order='oldest', but order='ready' is set too",
        ),
    ],
)
def test_two_names_for_one_setting_must_agree(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**values)
    assert str(refused.value) == message


def test_two_names_for_one_setting_may_agree() -> None:
    assert config(off_policy_degree=4, max_lead=4, staleness_threshold=4).max_lead == 4


def test_a_later_layer_overrides_an_earlier_one_under_either_name() -> None:
    file = {"updates": 10, "max_lead": 1}
    assert read_values(RunConfig, file, {"off_policy_degree": 4}).max_lead == 4
    assert read_values(RunConfig, {"updates": 10, "off_policy_degree": 4}, {"max_lead": 1}).max_lead == 1


def test_a_known_name_for_something_the_recipe_lacks_is_refused() -> None:
    @without("pacing_s")
    class Lacking(RunConfig):
        """A recipe without pauses."""

    with pytest.raises(ConfigError, match="setting 'batch_generation_interval' means 'pacing_s', which this recipe"):
        read_values(Lacking, {"batch_generation_interval": 1})


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("max_led", "max_lead"), ("colectors", "collectors"), ("save_evry", "save_every"), ("ordr", "order")],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**{name: 1})
    assert str(refused.value) == f"unknown setting {name!r}; did you mean {nearest!r}?"


@pytest.mark.parametrize("name", ["xyzzy", 7])
def test_a_name_like_no_other_is_told_where_all_are(name: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(RunConfig, {name: 1})
    wanted = f"unknown setting {str(name)!r}; headway run RECIPE --help all lists all that a recipe has"
    assert str(refused.value) == wanted


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"updates": None}, "a run needs an end: set at least one of updates, steps, wall_s, target_score"),
        ({"updates": 0}, "updates=0: Input should be greater than or equal to 1"),
        ({"updates": "many"}, "updates='many': Input should be a valid integer"),
        ({"collectors": 1.5}, "collectors=1.5: Input should be a valid integer"),
        ({"collectors": "two\nlines"}, "collectors='two\\nlines': Input should be a valid integer"),
        ({"max_lead": -1}, "max_lead must be a finite number >= 0 or 'auto', received -1"),
        ({"max_lead": "much"}, "max_lead='much': "),
        ({"off_policy_degree": -2}, "max_lead must be a finite number >= 0 or 'auto', received -2"),
        ({"max_sync_retries": "x"}, "max_sync_retries=x (publish_attempts='x'): Input should be a valid integer"),
        ({"max_sync_retries": None}, "max_sync_retries=None (publish_attempts=None): Input should be a valid integer"),
        (
            {"max_sync_retries": -1},
            "max_sync_retries=-1 (publish_attempts=0): Input should be greater than or equal to 1",
        ),
        ({"order": "newest"}, "unknown order 'newest'; allowed: oldest, window(N), ready"),
        ({"order": "window(0)"}, "an order's window must be a whole number >= 1, received 0"),
        ({"on_stale": "burn"}, "on_stale='burn': Input should be 'wait', 'drop', 'requeue' or 'keep'"),
        ({"dispatch": "both"}, "dispatch='both': Input should be 'pinned' or 'free'"),
        ({"runtime": "thread"}, "runtime='thread': unknown runtime 'thread'; did you mean 'threads'? allowed: "),
        ({"max_lead": 4, "max_staleness": 1}, "max_staleness=1 with on_stale=wait cannot hold under max_lead=4"),
        ({"target_score": 1.0}, "target_score=1.0 needs evaluations: set evaluate_every"),
        ({"queue_capacity": 1, "tickets_per_batch": 2}, "a buffer of 1 deadlocks"),
        ({"updates": True}, "updates needs a value, received True"),
        ({"num_workers": True}, "collectors needs a value, received True"),
        ({"seed": -1}, "seed=-1: Input should be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**values)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("recipe", "name", "text"),
    [
        ("grpo", "compile_trainer", "on"),
        ("grpo", "compile_trainer", "off"),
        ("grpo", "memory_check", "off"),
        ("ppo", "sparse_planes", "off"),
    ],
)
def test_words_that_yaml_reads_as_true_or_false_are_words_where_a_setting_has_them(
    recipe: str, name: str, text: str
) -> None:
    read = yaml.safe_load(f"{name}: {text}")
    assert isinstance(read[name], bool)  # as in a file, and as on the command line
    config = read_values(load_recipe(recipe).config, {"env": "CartPole-v1"} if recipe == "ppo" else {}, read)
    assert getattr(config, name) == text


def test_all_that_cannot_be_is_said_at_once_in_a_line_each() -> None:
    values = {
        "max_led": 1,
        "colectors": 2,
        "xyzzy": 0,
        "publish_every": 0,
        "seed": -1,
        "warmup_s": "x",
        "updates": True,
    }
    with pytest.raises(ConfigError) as refused:
        config(**values)
    assert str(refused.value).splitlines() == [
        "7 settings cannot be:",
        "  unknown setting 'max_led'; did you mean 'max_lead'?",
        "  unknown setting 'colectors'; did you mean 'collectors'?",
        "  unknown setting 'xyzzy'",
        "  updates needs a value, received True",
        "  publish_every=0: Input should be greater than or equal to 1",
        "  warmup_s='x': Input should be a valid number, unable to parse string as a number",
        "  seed=-1: Input should be greater than or equal to 0",
    ]


def test_what_may_follow_from_another_problem_is_not_said() -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(RunConfig, {"updatez": 10})  # not: a run needs an end
    assert str(refused.value) == "unknown setting 'updatez'; did you mean 'updates'?"


def test_every_conflict_of_two_names_is_said() -> None:
    with pytest.raises(ConfigError) as refused:
        config(off_policy_degree=4, max_lead=2, save_interval=3, save_every=5)
    assert str(refused.value).splitlines()[1:] == [
        "  off_policy_degree=4 means max_lead=4, but max_lead=2 is set too",
        "  save_interval=3 means save_every=3, but save_every=5 is set too",
    ]


NUMBERS = [
    name
    for name, field in RunConfig.model_fields.items()
    if "float" in str(field.annotation) and "dict" not in str(field.annotation)
]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_setting_may_be_nan_or_infinite(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value!r}.*finite") as refused:
        config(**{name: value})
    assert "\n" not in str(refused.value)


def test_there_are_settings_the_check_for_nan_can_look_at() -> None:
    assert {"max_lead", "wall_s", "target_score", "pacing_s", "data_deadline_s"} <= set(NUMBERS)


def test_every_runtime_there_is_can_be_chosen() -> None:
    assert [config(runtime=name).runtime for name in RUNTIMES] == list(RUNTIMES)


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head-0.cluster:6379", "[fe80::1]:6379", None])
def test_a_ray_address_is_a_host_and_a_port_or_auto(address: str | None) -> None:
    assert config(runtime="ray", ray_address=address).ray_address == address


@pytest.mark.parametrize("address", ["cluster", "ray://10.0.0.1:10001", "10.0.0.1:", ":6379", "a b:1", ""])
def test_what_cannot_be_a_ray_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^ray_address=.*: an address is HOST:PORT .*, or auto$"):
        config(runtime="ray", ray_address=address)


@pytest.mark.parametrize("setting", [{"ray_address": "auto"}, {"ray_connect_s": 5.0}, {"ray_keep_copies": False}])
@pytest.mark.parametrize("runtime", ["threads", "processes", "inline"])
def test_settings_of_ray_are_refused_with_another_runtime(setting: dict[str, Any], runtime: str) -> None:
    (name, value), *_ = setting.items()
    with pytest.raises(ConfigError, match=f"^{name}={value!r} needs runtime='ray', received runtime='{runtime}'$"):
        config(runtime=runtime, **setting)
    with pytest.raises(ValueError, match=f"^address: for the runtime 'ray' only, received '{runtime}'$"):
        build_runtime(runtime, address="auto")


@pytest.mark.parametrize(("runtime", "share"), [("processes", 1.0), ("ray", 5 / 6)])
def test_no_runtime_gives_a_role_up_much_before_its_start_deadline(runtime: str, share: float) -> None:
    """A large model may take longer to load than runtimes wait where nobody says anything."""
    if runtime == "ray":
        pytest.importorskip("ray")
    place: Any = config(runtime=runtime, start_deadline_s=1200.0).build_runtime()
    assert place._start_s == pytest.approx(share * 1200)


def test_a_config_that_was_written_whole_is_read_again_with_any_runtime() -> None:
    whole = config(runtime="threads").model_dump(mode="json")
    assert config(**whole).build_runtime().name == "threads"


# -- the model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_setting_says_what_it_does(kind: type[RunConfig]) -> None:
    assert [name for name, field in kind.model_fields.items() if not field.description] == []


def test_a_config_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().max_lead = 5  # type: ignore[misc]


def test_unknown_fields_are_refused_without_read_values_too() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        RunConfig(updates=1, flux=2)  # type: ignore[call-arg]


def test_every_setting_reaches_the_coordinator() -> None:
    values: dict[str, Any] = {
        "max_lead": 7,
        "order": "ready",
        "max_staleness": 9,
        "on_stale": "drop",
        "max_age_s": 12.5,
        "dispatch": "free",
        "collectors": 3,
        "lanes": 2,
        "on_publish": "partial",
        "tickets_per_batch": 2,
        "publish_every": 5,
        "queue_capacity": 100,
        "queue_bytes_limit": 12345,
        "pacing_s": 0.25,
        "tickets_per_call": 1,  # more cannot go with lanes: tests/contracts/test_several_tickets_a_call.py
        "lead_limit": 17,
        "lead_buffer_size": 50,
        "target_effective_sample_size": 0.4,
        "evaluate_in_background": True,
        "evaluation_waits_for": "parked",
        "seed": 11,
    }
    plan: dict[str, Any] = {
        "updates": 21,
        "steps": 22,
        "wall_s": 23.0,
        "target_score": 24.0,
        "evaluate_every": 25,
        "evaluate_first": True,
        "save_every": 26,
        "save_every_s": 27.0,
        "warmup_s": 27.0,
    }
    deadlines = {"collect": 31.0, "learn": 32.0, "evaluate": 33.0, "publish": 34.0, "start": 35.0, "data": 36.0}
    deadlines |= {"save": 37.0}
    retries: dict[str, Any] = {
        "attempts_on_error": 41,
        "attempts_on_loss": 42,
        "on_failure": "drop",
        "max_failures_in_a_row": 46,
        "max_restarts": 43,
        "publish_attempts": 44,
        "publish_delay_s": 45.0,
    }
    elsewhere: dict[str, Any] = {"runtime": "inline", "keep_checkpoints": 3, "log_level": "debug", "keep_best": False}
    elsewhere |= {"log_limit_mb": 64}
    elsewhere |= {"name": "warm-start"}
    elsewhere |= {"metrics_interval_s": 2.0, "metric_aliases": True, "tensorboard": True}
    elsewhere |= {"statistics_every_s": 5.0, "monitor": "builtins:print", "monitor_every_s": 6.0}
    elsewhere |= {"alarms": {"idle_learner": 0.5}, "report": False, "log_limit_mb": 64.0}
    elsewhere |= {"use_wandb": True, "wandb_project": "mine", "wandb_mode": "offline"}
    elsewhere |= {"wandb_group": "clip", "wandb_job_type": "sweep"}
    elsewhere |= {"prometheus_port": 9100, "prometheus_host": "0.0.0.0"}
    elsewhere |= {"ray_address": None, "ray_connect_s": 10.0, "ray_keep_copies": True}  # of another runtime
    limits = {f"{name}_deadline_s": value for name, value in deadlines.items()}
    everything = {**values, **plan, **limits, **retries, **elsewhere}
    assert set(everything) == set(RunConfig.model_fields), "a setting is missing from this test"
    settings = read_values(RunConfig, everything).settings()
    for name, value in values.items():
        if name == "order":
            assert settings.order == READY
        elif name == "on_stale":
            assert settings.on_stale.value == value
        else:
            assert getattr(settings, name) == value
    assert {name: getattr(settings.plan, name) for name in plan} == plan
    assert {name: getattr(settings.deadlines, f"{name}_s") for name in deadlines} == deadlines
    assert {name: getattr(settings.retries, name) for name in retries} == retries


# -- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_lead": "auto", "lead_buffer_size": 100, "wall_s": 1.5},
        {"order": "window(3)", "max_staleness": 4, "on_stale": "requeue", "learning_rate": 1e-3},
        {"off_policy_degree": 0, "seed": 2**40, "enable_async_eval": True, "target_score": -0.0},
    ],
)
def test_a_config_comes_back_from_its_file_as_it_was(tmp_path: Path, values: dict[str, Any]) -> None:
    kind = load_recipe("functions").config
    written = read_values(kind, values)
    folder = RunFolder(tmp_path)
    folder.write_config("functions", written.model_dump(mode="json"))
    name, read = folder.read_config()
    assert (name, read_values(kind, read)) == ("functions", written)
    assert set(read) == set(kind.model_fields)  # complete: it does not depend on later defaults


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "is not YAML: "),
        (b"\xff\xfe\x00", "is not YAML: "),
        (b"- 1\n- 2\n", "must hold a mapping of names to values, received list"),
        (b"", "must hold a mapping of names to values, received NoneType"),
    ],
)
def test_a_file_that_holds_no_config_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        read_config(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_config_that_lost_its_end_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config("functions", {"updates": 400, "name": "ends\n...\nnot", "order": None})
    whole, content = folder.read_config(), folder.config.read_bytes()
    for end in range(len(content) - 1):
        folder.config.write_bytes(content[:end])
        with pytest.raises(ValueError, match=r"config\.yaml"):
            folder.read_config()
    folder.config.write_bytes(content[: content.index(b"order")])
    with pytest.raises(ValueError, match=r"is cut off: its last line is not '...'; restore it, or check that every"):
        folder.read_config()
    folder.config.write_bytes(content[: content.index(b"order")] + b"order: null\n...\n# mended by hand\n")
    assert folder.read_config() == whole


def test_a_config_written_by_hand_needs_no_last_line_and_may_use_aliases(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("recipe: functions\nsize: &n 3\nupdates: *n\n")
    assert read_config(tmp_path / "own.yaml") == ("functions", {"size": 3, "updates": 3})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
            "more than",
        ),
        ("a: " + "[" * 100_000, "nested too deeply"),
        ("a: &a [*a]", "contains itself"),
    ],
)
def test_a_config_that_unfolds_without_end_is_refused_at_once(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path / "config.yaml")


def test_a_file_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^cannot read .*absent.yaml: No such file or directory$"):
        read_config(tmp_path / "absent.yaml")


def test_a_file_without_a_recipe_names_none(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"updates": 3}))
    assert read_config(path) == ("", {"updates": 3})


def test_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="unknown recipe 'function'; did you mean 'functions'"):
        load_recipe("function")


def test_a_recipes_own_settings_stand_beside_the_shared_ones() -> None:
    class Toy(RunConfig):
        """One more."""

        width: int = Field(3, ge=1)
        """How wide."""

    assert read_values(Toy, {"updates": 1, "width": 5, "num_workers": 2}).model_dump()["width"] == 5


@pytest.mark.parametrize(("text", "read"), [("[32,32]", (32, 32)), ("[]", ()), ("null", None), ((7,), (7,))])
def test_layers_are_said_on_the_command_line_as_a_list(text: Any, read: Any) -> None:
    pytest.importorskip("gymnasium")
    from headway.ppo.recipe_ppo import PPOConfig

    config = read_values(PPOConfig, {"hidden": text})
    assert isinstance(config, PPOConfig)
    assert config.hidden == read


@pytest.mark.parametrize("text", ["{g: 9.5}", "{g:9.5}", '{"g":9.5}', "{ g:9.5 }"])
def test_a_mapping_may_be_written_without_a_space(text: str) -> None:
    config = read_values(PPO, {"env": "Pendulum-v1", "env_kwargs": text})
    assert config.model_dump()["env_kwargs"] == {"g": 9.5}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("env_kwargs", "g=9.5", "env_kwargs='g=9.5': a mapping is wanted, as in '{length: 3, is_slippery: false}'"),
        ("hidden", "64,64", "hidden='64,64': a list is wanted, as in '[64, 64]'"),
    ],
)
def test_what_is_no_mapping_and_no_list_is_told_how_one_is_written(name: str, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(PPO, {"env": "Pendulum-v1", name: text})
    assert str(refused.value) == line


# -- paths ------------------------------------------------------------------------------------------


def test_files_and_folders_of_settings_are_found_from_any_other_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("model", "smollm2", "lights", "data"):
        (tmp_path / folder).mkdir()
    for file in ("rows.jsonl", "more.parquet", "own.py", "data/test.jsonl", "zork1.z5"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    here = {
        "model": "model",
        "task": "jsonl:rows.jsonl",
        "task_options": {"reward": ["own.py:score", "math"], "held_out": "data", "more_files": ["more.parquet"]},
        "env": "zork1.z5",
        "monitor": "./own.py:look",
        "data": "data/test.jsonl",
        "reward": "made:own.py:Guess",
    }
    assert with_absolute_paths(here) == {
        "model": f"{tmp_path}/model",
        "task": f"jsonl:{tmp_path}/rows.jsonl",
        "task_options": {
            "reward": [f"{tmp_path}/own.py:score", "math"],
            "held_out": f"{tmp_path}/data",
            "more_files": [f"{tmp_path}/more.parquet"],
        },
        "env": f"{tmp_path}/zork1.z5",
        "monitor": f"{tmp_path}/own.py:look",
        "data": f"{tmp_path}/data/test.jsonl",
        "reward": f"made:{tmp_path}/own.py:Guess",
    }
    words = {"model": "smollm2", "env": "lights", "task": "larger_than", "agent": "package:play", "updates": 3}
    words |= {
        "name": "model",
        "task_options": {"scoring": "strict"},
        "system_prompt": "a\n" * 5000,
        "made": "made:lights",
    }
    assert with_absolute_paths(words) == words
