"""PriorZero: two learners, one search, and what must not depend on how they are run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from story_runs import bits, plain_loop, run, tiny, tiny_model

from headway.coordinator.checkpoint import CheckpointStore
from headway.core.types import MEASURES, Batch, Snapshot, Ticket
from headway.runs.config import ConfigError, read_values
from headway.text_games import recipe_priorzero as priorzero
from headway.text_games.guidance import LINE
from headway.text_games.loading_story_defaults import STORY_DEFAULTS
from headway.text_games.recipe_priorzero import PriorZeroConfig
from headway.zero.planner_prior_weight import AdaptiveWeight, AnnealedWeight, FixedWeight

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("words"))


@pytest.mark.parametrize("every", [1, 2])
def test_leads_of_zero_are_the_plain_loop_with_two_learners(model: str, every: int) -> None:
    told = {"model": model, "max_lead": 0, "prior_every": every}
    shared = tiny(**told, replay_mode="shared")
    wanted = plain_loop(priorzero.stations(shared), shared.settings())
    for mode, runtime in (("shared", "inline"), ("learner", "inline"), ("shared", "threads")):
        assert bits(run(tiny(**told, replay_mode=mode, runtime=runtime))) == wanted, (mode, runtime)


def test_a_pinned_run_is_the_same_inline_and_in_threads_and_resumes_to_the_same_bits(
    model: str, tmp_path: Path
) -> None:
    told = {"model": model, "max_lead": 2, "prior_max_lead": 1, "updates": 10, "prior_every": 1}
    whole = run(tiny(**told, runtime="inline"))
    assert whole.lines[LINE].version > 1
    assert bits(run(tiny(**told, runtime="threads"))) == bits(whole)
    store = CheckpointStore(tmp_path / "checkpoints", keep=9)
    run(tiny(**told, save_every=4, runtime="inline"), checkpoints=store)
    middle = store.load(store.all()[0])
    assert 0 < middle.updates < 10
    for _ in range(2):  # a checkpoint is not used up
        assert bits(run(tiny(**told, runtime="inline"), resume=middle)) == bits(whole)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "ray"])
def test_the_same_bits_come_out_elsewhere(model: str, runtime: str) -> None:
    if runtime == "ray":
        pytest.importorskip("ray")
    told = {"model": model, "max_lead": 2, "prior_max_lead": 1, "prior_every": 1}
    assert bits(run(tiny(**told, runtime=runtime))) == bits(run(tiny(**told, runtime="inline")))


def test_a_weight_of_zero_changes_no_bit_and_asks_nobody(model: str) -> None:
    without = run(tiny(prior="none", runtime="inline"))
    silent = run(tiny(model=model, prior_weight=0.0, runtime="inline"))
    assert bits(silent)[0] == bits(without)[0]
    assert silent.metrics["prior_asked"] == 0
    heard = run(tiny(model=model, prior_weight=0.5, runtime="inline"))
    assert heard.metrics["prior_asked"] > 0
    assert bits(heard)[0] != bits(without)[0]


def test_a_frozen_prior_has_no_line_and_is_asked(model: str) -> None:
    config = tiny(model=model, prior="frozen", runtime="inline")
    assert not config.settings().lines
    result = run(config)
    assert not result.lines
    assert min(result.metrics[f"prior_{name}"] for name in ("asked", "cached", "scored_actions")) > 0


def test_reanalysis_searches_with_the_rows_that_were_stored(model: str) -> None:
    told = {"model": model, "prior": "frozen", "replay_mode": "shared"}
    stations = priorzero.stations(tiny(**told, reanalyze_ratio=2.0, reanalyze_min_age=1, root_noise_weight=0.0))
    assert stations.replay is not None
    assert stations.reanalyzer is not None
    snapshot, replay = Snapshot(0, stations.learner().snapshot()), stations.replay()
    collector, stored = stations.collector(0), []
    for index in range(4):
        rollout = collector.collect(Ticket(index, 5, 0), snapshot)
        stored.append(rollout.payload.priors)
        replay.insert(Batch(0, (rollout,)))
    replay.sample(9)
    work = replay.oldest(9)
    assert work is not None
    kept = {tuple(row) for rows in stored for row in rows.reshape(-1, rows.shape[-1])}
    assert {tuple(row) for row in work.payload.priors.reshape(-1, work.payload.priors.shape[-1])} <= kept
    assert work.payload.priors.any()

    def searched(priors: np.ndarray) -> bytes:
        found = stations.reanalyzer().reanalyze(snapshot, replace(work, payload=replace(work.payload, priors=priors)))
        policies: np.ndarray = found.payload.policies
        return policies.tobytes()

    assert searched(work.payload.priors) != searched(np.zeros_like(work.payload.priors))


def test_reanalysis_asks_nobody(model: str) -> None:
    told = {"model": model, "runtime": "inline", "reanalyze_ratio": 2.0, "reanalyze_min_age": 1, "reanalyze_roots": 12}
    told |= {"prior": "frozen"}
    result = run(tiny(**told))
    assert result.metrics["targets_refreshed"] > 0
    asked = result.metrics["prior_asked"]
    assert asked == run(tiny(**{**told, "reanalyze_ratio": 0.0})).metrics["prior_asked"], "reanalysis asks nobody"


def test_the_prior_decides_what_stands_in_the_slots_and_what_is_cut_is_counted(model: str) -> None:
    config = tiny(model=model, slots=2, prior="frozen")
    stations = priorzero.stations(config)
    rollout = stations.collector(0).collect(Ticket(0, 5, 0), Snapshot(0, stations.learner().snapshot()))
    assert rollout.info[MEASURES]["candidates_cut"] > 0
    segment = rollout.payload
    assert (segment.legal[segment.valid].sum(-1) == 2).all()
    assert (segment.priors[segment.valid].sum(-1) > 2 / 7).all(), "the likeliest of about seven"


def test_a_language_model_that_is_late_is_not_waited_for_and_counted(model: str) -> None:
    told = {"model": model, "prior": "frozen", "runtime": "inline", "dispatch": "free"}
    result = run(tiny(**told, prior_deadline_s=1e-6))
    assert result.updates == 8
    assert result.metrics["prior_late"] > 0
    assert run(tiny(**told)).metrics["prior_late"] == 0


@pytest.mark.parametrize("mode", ["both", "world_model", "prior"])
def test_every_way_to_play_collects_something_to_learn_from(model: str, mode: str) -> None:
    result = run(tiny(model=model, collect_mode=mode, runtime="inline"))
    assert result.updates == 8
    assert (result.metrics["prior_asked"] > 0) == (mode != "world_model")


def test_an_evaluation_has_all_ways_to_play(model: str) -> None:
    told = {"model": model, "evaluate_every": 4, "eval_episodes": 2, "runtime": "inline"}
    result = run(tiny(**told))
    score = result.scores[-1]
    for mode in ("both", "world_model", "prior"):
        for name in ("score", "normalised", "success", "steps", "loops"):
            assert f"{mode}_{name}" in score.metrics
    assert score.value == score.metrics["both_score"]
    assert score.metrics["prior_version"] > 0
    alone = run(tiny(**{**told, "eval_mode": "prior", "eval_all_modes": False})).scores[-1]
    assert alone.value == alone.metrics["prior_score"]
    assert "both_score" not in alone.metrics
    none = run(tiny(prior="none", evaluate_every=4, eval_episodes=2, runtime="inline")).scores[-1]
    assert none.value == none.metrics["world_model_score"]


def test_more_games_fill_a_larger_replay_before_the_first_update() -> None:
    assert priorzero.CONFIG(prior="none").replay_min_size == 200
    assert priorzero.CONFIG(prior="none", collectors=2).replay_min_size == 400
    assert priorzero.CONFIG(prior="none", num_envs="16", td_steps=10).replay_min_size == 320
    assert priorzero.CONFIG(prior="none", num_envs=16, replay_min_size=500).replay_min_size == 500
    assert priorzero.CONFIG(quick_test=True).replay_min_size == 40


def test_a_game_has_defaults_of_its_own_which_a_user_and_a_quick_test_overrule() -> None:
    pytest.importorskip("adventure", reason="a library of games is not installed: adventure")
    cave = read_values(PriorZeroConfig, {"env": "adventure", "text_words": 80})
    assert isinstance(cave, PriorZeroConfig)
    wanted = STORY_DEFAULTS["colossal_cave"]
    assert {name: getattr(cave, name) for name in wanted} == {**wanted, "text_words": 80}
    assert cave.replay_min_size > cave.num_envs * (cave.num_unroll_steps + cave.td_steps)
    assert (read_values(PriorZeroConfig, {}).slots, cave.slots) == (16, 24)
    quick = read_values(PriorZeroConfig, {"env": "colossal_cave", "quick_test": True})
    assert (quick.max_episode_steps, quick.value_range) == (10, wanted["value_range"])


def test_a_game_does_not_speak_of_a_prior_that_is_not_there_or_has_another_share() -> None:
    pytest.importorskip("adventure", reason="a library of games is not installed: adventure")

    def cave(**told: object) -> PriorZeroConfig:
        config = read_values(PriorZeroConfig, {"env": "colossal_cave", **told})
        assert isinstance(config, PriorZeroConfig)
        return config

    assert not cave(prior="none").has_prior
    assert not cave(prior="none", quick_test=True).has_prior
    assert cave().weight_of_prior() == AnnealedWeight(0.5, 0.0, 2000)
    assert cave(prior_weight=0.3).weight_of_prior() == FixedWeight(0.3)
    assert cave(wm_weight=0.75).weight_of_prior() == FixedWeight(0.25)
    assert cave(prior_weighting="adaptive").weight_of_prior() == AdaptiveWeight(0.3, 1.0)
    assert cave(prior_weight_low=0.1).weight_of_prior() == AdaptiveWeight(0.1, 1.0)
    assert cave(prior_weighting="annealed", prior_weight=0.9).weight_of_prior() == AnnealedWeight(0.9, 0.0, 2000)
    assert cave(final_prior_weight=0.1).weight_of_prior() == AnnealedWeight(0.5, 0.1, 2000)


def test_a_quick_test_is_small_unless_told_otherwise() -> None:
    config = priorzero.CONFIG(quick_test=True, prior="none")
    assert (config.updates, config.num_simulations) == (8, 4)
    assert priorzero.CONFIG(quick_test=True, updates=3).updates == 3
    assert priorzero.CONFIG().updates > 8


def test_both_leads_follow_one_knob_unless_the_second_is_set() -> None:
    for told, leads in (
        ({"off_policy_degree": 0}, (0, 0)),
        ({"off_policy_degree": 5}, (5, 5)),
        ({"off_policy_degree": 5, "prior_max_lead": 1}, (5, 1)),
        ({"off_policy_degree": -1}, ("auto", "auto")),
    ):
        settings = tiny(**told).settings()
        assert (settings.max_lead, settings.lines[LINE].max_lead) == leads


def test_the_prior_counts_most_where_the_world_model_knows_nothing_unless_a_share_is_set() -> None:
    assert tiny().weight_of_prior() == AdaptiveWeight(0.3, 1.0)
    assert tiny(prior_weight=0.7).weight_of_prior() == FixedWeight(0.7)
    assert tiny(wm_weight=0.5).weight_of_prior() == FixedWeight(0.5)
    assert tiny(prior_weight=0.9, prior_weighting="annealed").weight_of_prior() == AnnealedWeight(0.9, 0.0, 1000)


def test_a_model_learns_at_the_pace_of_its_kind_unless_told_otherwise() -> None:
    def pace(**told: Any) -> tuple[float, int | None]:
        config = read_values(priorzero.CONFIG, told)
        return config.prior_learning_rate, config.prior_max_states

    assert pace() == pace(model="made") == (3e-3, 64)
    assert pace(model="smollm2") == (5e-5, 16)
    assert pace(model="smollm2", lora_rank=8) == (5e-4, 16)
    assert pace(model="smollm2", prior_learning_rate=1e-4, quick_test=True) == (1e-4, 4)
    for told, tickets in (({}, (1, 4)), ({"prior_every": 2}, (2, 1)), ({"model": "made"}, (4, 1))):
        line = read_values(priorzero.CONFIG, {"model": "smollm2", **told}).settings().lines[LINE]
        assert (line.every, line.tickets_per_batch) == tickets
    assert not read_values(priorzero.CONFIG, {"model": "smollm2", "prior": "frozen"}).settings().lines


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"env": "mini_wrold"}, "unknown story game 'mini_wrold'; did you mean 'mini_world'"),
        ({"env": "nowhere.z5"}, "there is no story file nowhere.z5"),
        ({"prior": "none", "prior_floor": 0.1}, "prior_floor=0.1 needs prior='frozen' or 'learned'"),
        ({"prior": "frozen", "prior_max_lead": 2}, "prior_max_lead=2.0 needs prior='learned'"),
        ({"prior": "none", "eval_mode": "prior"}, "eval_mode='prior' needs a prior, received prior='none'"),
        ({"prior_weight": 0.5, "prior_weight_low": 0.1}, "prior_weight_low=0.1 needs prior_weighting='adaptive'"),
        ({"prior_weight": 1.5}, "prior_weight=1.5: Input should be less than or equal to 1"),
        ({"prior_deadline_s": 0.5}, "lets the clock decide what the search is told"),
        ({"context_steps": 2}, "context_steps=2 needs body='unizero'"),
        ({"body": "unizero", "latent": 10}, "latent must be a multiple of 2 \\* heads = 8, received 10"),
        ({"prior": "lerned"}, "prior='lerned': Input should be 'none', 'frozen' or 'learned'"),
        ({"replay_min_size": 5}, "replay_min_size=5 may be all incomplete targets"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(told: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        tiny(**told)
    assert "\n" not in str(refused.value)
