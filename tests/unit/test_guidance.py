"""What a prior thinks of the actions of story games, on its way into the slots, the search and the segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.core.types import MEASURES, Snapshot, Ticket
from headway.testing.oracle_prior import OraclePrior
from headway.testing.story_priors import UniformPrior
from headway.text_games.action_prior import Opinion, Situation
from headway.text_games.collector import TextSegmentCollector
from headway.text_games.guidance import LINE, NOBODY, Guide, drawn_by_prior
from headway.text_games.guidance_repeatable_prior import RepeatablePrior
from headway.text_games.mini_world import MiniWorld
from headway.text_games.story_interface import Scene
from headway.text_games.textzero_inference import searchable
from headway.text_games.textzero_network import TextZeroArchitecture, TextZeroNetwork
from headway.text_games.vector_rows import RowShape
from headway.text_games.vector_story_games import StoryGames
from headway.zero.planner_planning import Planner
from headway.zero.planner_prior_weight import AdaptiveWeight, FixedWeight
from headway.zero.search_interface import SearchSettings

SHAPE = RowShape(text_words=24, slots=8)
SMALL = {"embedding": 8, "latent": 8, "hidden": 8, "table": 16, "text_words": 24, "slots": 8}


def prompt_of(scene: Scene, objective: str, history: Sequence[tuple[str, str]]) -> str:
    return scene.text


def planner(simulations: int = 8) -> Planner:
    network = TextZeroNetwork(TextZeroArchitecture(**SMALL), seed=0)
    return Planner(searchable(network), SearchSettings(num_simulations=simulations, root_noise_weight=0.0))


def weights() -> Any:
    from headway.zero.world_model_packed import pack_weights

    return {"network": pack_weights(TextZeroNetwork(TextZeroArchitecture(**SMALL), seed=0))}


def games(num: int = 3, *, slots: int = 8, max_steps: int = 12) -> StoryGames:
    return StoryGames(MiniWorld, num, shape=replace(SHAPE, slots=slots), max_steps=max_steps)


def collected(make_prior: Any, *, steps: int = 6, weight: Any = None, mode: Any = "both", **more: Any) -> Any:
    collector = TextSegmentCollector(
        games,
        planner,
        lambda: Guide(make_prior, prompt_of, weight=weight or FixedWeight(0.5), mode=mode),
        steps=steps,
        **more,
    )
    return collector.collect(Ticket(0, 7, 0), Snapshot(0, weights()))


class LastOfAll(UniformPrior):
    """Likes the last action in the alphabet; does not answer in time where it is told so."""

    def __init__(self, *, is_late: bool = False) -> None:
        super().__init__()
        self._is_late = is_late

    def _opinion(self, situation: Situation) -> Opinion:
        found = super()._opinion(situation)
        if self._is_late:
            nothing = np.zeros(len(situation.actions), np.float32)
            return Opinion(nothing, tuple(np.zeros(0, np.float32) for _ in nothing), self.version, is_late=True)
        liked = np.array([float(one == max(situation.actions)) for one in situation.actions], np.float32)
        return replace(found, probabilities=0.9 * liked + 0.1 / len(liked))


def test_what_the_prior_likes_gets_a_slot_and_what_is_cut_is_counted() -> None:
    guide = Guide(LastOfAll, prompt_of, weight=FixedWeight(0.5))
    guide.load(Snapshot(0, None))
    some = games(slots=2)
    advice = guide.advise(some)
    for scene, shown, row in zip(some.scenes, some.shown, advice.priors, strict=True):
        assert max(scene.candidates) in shown
        assert len(shown) == 2
        assert row[shown.index(max(scene.candidates))] > 0.9
    assert some.cut == sum(len(scene.candidates) - 2 for scene in some.scenes)


def test_an_answer_that_is_late_leaves_a_row_of_zeros_and_the_first_candidates() -> None:
    guide = Guide(lambda: LastOfAll(is_late=True), prompt_of, weight=FixedWeight(0.5))
    guide.load(Snapshot(0, None))
    some = games(slots=2)
    advice = guide.advise(some)
    assert not advice.priors.any()
    assert (advice.versions == NOBODY).all()
    assert [shown == scene.candidates[:2] for shown, scene in zip(some.shown, some.scenes, strict=True)] == [True] * 3


@pytest.mark.parametrize(("mode", "weight"), [("world_model", FixedWeight(0.9)), ("both", FixedWeight(0.0))])
def test_nobody_is_asked_whose_opinion_counts_for_nothing(mode: Any, weight: Any) -> None:
    prior = UniformPrior()
    rollout = collected(lambda: prior, mode=mode, weight=weight)
    alone = collected(None)
    assert prior.statistics()["asked"] == 0
    for name in ("obs", "actions", "policies", "values", "rewards"):
        assert getattr(rollout.payload, name).tobytes() == getattr(alone.payload, name).tobytes(), name


def test_a_uniform_prior_takes_a_model_that_knows_nothing_nowhere_else() -> None:
    guided, alone = collected(UniformPrior).payload, collected(None).payload
    assert guided.actions.tobytes() == alone.actions.tobytes(), "untrained heads are uniform too"
    assert np.abs(guided.policies - alone.policies).max() < 1e-6


def test_an_oracle_wins_by_itself_and_the_segment_says_what_it_thought() -> None:
    def oracle() -> OraclePrior:
        return OraclePrior(MiniWorld, prompt_of)

    rollout = collected(oracle, mode="prior", steps=9)
    segment = rollout.payload
    assert segment.terminated[7].all(), "eight steps are the shortest way"
    assert segment.rewards[7].tolist() == [1.0] * 3
    assert segment.priors[:8].max(-1).tolist() == [[1.0] * 3] * 8
    assert (segment.prior_versions[:8] == 0).all()
    assert rollout.info["episodes"] == [(1.0, 8)] * 3
    assert rollout.info[MEASURES]["prior_asked"] == 24


def test_an_adaptive_weight_is_asked_about_every_root() -> None:
    assert collected(LastOfAll, weight=AdaptiveWeight()).payload.policies.shape == (6, 3, 8)


def test_tokens_go_along_where_somebody_learns_from_them() -> None:
    segment = collected(UniformPrior, keeps_tokens=True).payload
    valid = segment.valid.reshape(-1)
    assert ((segment.prompt_tokens.lengths > 0) == valid).all()
    assert ((segment.action_log_probs.lengths > 0) == valid).all()
    assert segment.action_tokens.lengths.reshape(-1, 8).astype(bool).tolist() == segment.legal.reshape(-1, 8).tolist()
    assert not collected(UniformPrior).payload.prompt_tokens.lengths.any()


def test_weights_of_the_prior_come_from_its_own_line() -> None:
    prior = UniformPrior()
    guide = Guide(lambda: prior, prompt_of, weight=FixedWeight(0.5))
    for version in (0, 0, 2, 2, 3):
        guide.load(Snapshot(9, None, {LINE: Snapshot(version, None)}))
    assert prior.applied == [2, 3]


def test_a_collector_that_is_restarted_goes_on_bit_for_bit() -> None:
    def made() -> TextSegmentCollector:
        guide = Guide(LastOfAll, prompt_of, weight=FixedWeight(0.5))
        return TextSegmentCollector(games, planner, lambda: guide, steps=5)

    snapshot, first = Snapshot(0, weights()), made()
    first.collect(Ticket(0, 1, 0), snapshot)
    state = first.state_dict()
    wanted = first.collect(Ticket(1, 2, 0), snapshot).payload
    second = made()
    second.load_state_dict(state)
    found = second.collect(Ticket(1, 2, 0), snapshot).payload
    for name in ("obs", "actions", "policies", "values", "priors", "spreads"):
        assert getattr(found, name).tobytes() == getattr(wanted, name).tobytes(), name


def test_the_same_question_is_asked_once_whatever_the_order_of_its_actions() -> None:
    inner = LastOfAll()
    prior = RepeatablePrior(inner, size=2)
    one, other = Situation("here", ("a", "b", "c")), Situation("here", ("c", "a", "b"))
    found = prior.opinions([one, other])
    assert inner.statistics()["asked"] == 1
    assert found[0].probabilities.tolist() == found[1].probabilities[[1, 2, 0]].tolist()
    prior.opinions([Situation("there", ("a",)), Situation("elsewhere", ("a",)), one])
    assert inner.statistics()["asked"] == 4, "there was room for two"
    prior.apply(1, None)
    assert prior.opinions([one])[0].version == 1
    assert prior.statistics()["asked"] == 6


def test_whoever_plays_by_the_prior_alone_draws_from_it() -> None:
    rng, legal = np.random.default_rng(0), np.array([[True, True, False]] * 4000)
    priors = np.tile(np.array([0.2, 0.8, 0.0], np.float32), (4000, 1))
    assert drawn_by_prior(priors, legal, 1.0, rng).mean() == pytest.approx(0.8, abs=0.03)
    assert (drawn_by_prior(priors, legal, 0.0, rng) == 1).all()
    nothing = drawn_by_prior(np.zeros_like(priors), legal, 1.0, rng)
    assert set(nothing.tolist()) == {0, 1}
    assert (drawn_by_prior(priors, np.zeros_like(legal), 1.0, rng) == 0).all()


def test_a_way_to_play_without_a_prior_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'prior' needs a prior"):
        Guide(None, prompt_of, weight=FixedWeight(0.5), mode="prior")
