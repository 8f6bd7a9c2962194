"""A language model's opinion of actions: what it is made of, what is kept, and what comes late."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from headway.llm.engine.protocol_engine import ContinuationScores, EngineError, ScoreRequest  # noqa: E402
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.llm.model.tiny_llama import word_tokenizer  # noqa: E402
from headway.llm.model.types import ModelError  # noqa: E402
from headway.testing.story_priors import UniformPrior  # noqa: E402
from headway.testing.tiny_models import tiny_model, tiny_tokenizer  # noqa: E402
from headway.text_games.action_prior import ActionPrior, Opinion, Situation, softened  # noqa: E402
from headway.text_games.action_prior_opinion_cache import OpinionCache, prompt_digest  # noqa: E402
from headway.text_games.prompts_action_chat import ActionChat  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

KITCHEN = Situation("You are in the kitchen. What do you do next?\n", ("take key", "open the door", "go north"))
HALL = Situation("You are in the hall. What do you do next?\n", ("take key", "go south"))


class TableEngine:
    """Scores by a hash of version and tokens; weights may come while it scores, and it may have to wait."""

    def __init__(self) -> None:
        self.version = 0
        self.asked: list[ScoreRequest] = []
        self.next_versions: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_closed = False

    def score(self, requests: Sequence[ScoreRequest]) -> list[ContinuationScores]:
        self.asked.extend(requests)
        assert self.may_answer.wait(20)
        if self.next_versions:
            self.version = self.next_versions.pop(0)
        return [
            ContinuationScores(tuple(self.log_probs(one.prompt, tokens) for tokens in one.continuations), self.version)
            for one in requests
        ]

    def log_probs(self, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> np.ndarray:
        seeds = [np.random.default_rng([self.version, len(prompt), token]).random() for token in tokens]
        return -4 * np.array(seeds, np.float32)

    def apply(self, version: int, weights: Any) -> None:
        self.version = version

    def close(self) -> None:
        self.is_closed = True
        self.may_answer.set()

    def num_actions(self) -> int:
        return sum(len(one.continuations) for one in self.asked)


def with_table(**options: Any) -> tuple[ActionPrior, TableEngine]:
    engine: Any = TableEngine()
    return ActionPrior(engine, ActionChat(tiny_tokenizer()), **options), engine


# -- what an opinion is made of -------------------------------------------------------------------


def test_probabilities_are_a_softmax_of_mean_log_probabilities_of_the_actions_tokens() -> None:
    model = tiny_model(context=256)
    chat = ActionChat(tiny_tokenizer())
    engine = TransformersEngine(build_decoder(model, rows=1, context=256), tiny_tokenizer(), (0,), version=4)
    prior = ActionPrior(engine, chat, temperature=2.0)
    for situation, opinion in zip((KITCHEN, HALL), prior.opinions([KITCHEN, HALL]), strict=True):
        prompt, actions = chat(situation)
        means = []
        for tokens, found in zip(actions, opinion.log_probs, strict=True):
            with torch.no_grad():
                logs = torch.log_softmax(model(torch.tensor([[*prompt, *tokens]])).logits[0], -1)
            expected = logs[len(prompt) - 1 : -1].gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()
            np.testing.assert_allclose(found, expected, atol=1e-4)
            means.append(expected.mean())
        weights = np.exp(np.array(means) / 2)
        np.testing.assert_allclose(opinion.probabilities, weights / weights.sum(), atol=1e-5)
        assert (opinion.version, opinion.is_late, opinion.probabilities.dtype) == (4, False, np.float32)
    prior.close()


@given(st.lists(st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=5), min_size=1, max_size=20), st.data())
def test_probabilities_sum_up_to_one_above_the_floor(rows: list[list[float]], data: st.DataObject) -> None:
    floor = data.draw(st.floats(0, 0.2))
    temperature = data.draw(st.floats(0.1, 10))
    found = softened([np.array(row, np.float32) for row in rows], temperature, floor)
    plain = softened([np.array(row, np.float32) for row in rows], temperature)
    assert found.sum() == pytest.approx(1, abs=1e-5)
    assert found.min() >= min(floor, 1 / len(rows)) - 1e-6
    if floor * len(rows) <= 1:
        np.testing.assert_allclose(found, (1 - floor * len(rows)) * plain + floor, atol=1e-6)


def test_long_actions_are_not_unlikely_by_their_length_and_a_higher_temperature_is_closer_to_uniform() -> None:
    short, long = np.full(1, -2.0, np.float32), np.full(9, -2.0, np.float32)
    np.testing.assert_allclose(softened([short, long], 1.0), [0.5, 0.5])
    unlike = [np.array([-1.0], np.float32), np.array([-3.0], np.float32)]
    np.testing.assert_allclose(softened(unlike, 1.0)[0], 1 / (1 + np.exp(-2)), rtol=1e-6)
    np.testing.assert_allclose(softened(unlike, 2.0)[0], 1 / (1 + np.exp(-1)), rtol=1e-6)


def test_an_action_that_cannot_be_gets_nothing_and_no_possible_action_is_refused() -> None:
    never = np.array([-np.inf], np.float32)
    np.testing.assert_allclose(softened([never, -np.ones(2, np.float32)], 2.0), [0, 1])
    with pytest.raises(EngineError, match="none of 2 actions has a log-probability that is a number"):
        softened([never, never], 2.0)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ([-1.2, -0.3], r"received a sum of -1.5 and a least of -1.2 \(are these log-probabilities\?\)"),
        ([0.4, 0.1], "received a sum of 0.5 and a least of 0.1$"),
        ([-0.5, 1.5], r"received a sum of 1 and a least of -0.5 \(are these log-probabilities\?\)"),
        ([np.nan, 1.0], "received a sum of nan"),
        ([0.5, 0.25, 0.25], "2 actions need as many probabilities"),
    ],
)
def test_an_opinion_that_is_no_distribution_is_refused_in_one_line(row: list[float], line: str) -> None:
    logs = (np.zeros(1, np.float32),) * 2
    with pytest.raises(ValueError, match=line) as refused:
        Opinion(np.array(row, np.float32), logs, 0)
    assert "\n" not in str(refused.value)
    Opinion(np.zeros(2, np.float32), logs, 0)  # which is none


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"temperature": 0.0}, "temperature must be positive, received 0.0"),
        ({"floor": 1.0}, r"floor must be in \[0, 1\), received 1.0"),
        ({"deadline_s": 0.0}, "deadline_s must be positive"),
        ({"cache_size": -1}, "cache_size must be >= 0 actions, received -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        with_table(**options)


# -- what is asked and what is kept ---------------------------------------------------------------


def test_nothing_is_asked_twice_of_one_version_and_a_new_version_is_asked_anew() -> None:
    prior, engine = with_table()
    first = prior.opinions([KITCHEN, HALL, KITCHEN])
    assert [len(one.continuations) for one in engine.asked] == [3, 2]  # games in the same place ask together
    again = prior.opinions([HALL, KITCHEN])
    assert len(engine.asked) == 2
    assert np.array_equal(first[0].probabilities, again[1].probabilities)
    prior.apply(1, {})
    (changed,) = prior.opinions([KITCHEN])
    assert (changed.version, prior.version, len(engine.asked)) == (1, 1, 3)
    assert not np.array_equal(changed.probabilities, first[0].probabilities)
    prior.apply(0, {})
    (back,) = prior.opinions([KITCHEN])  # a version that comes back finds what it said
    assert (back.version, len(engine.asked)) == (0, 3)
    assert np.array_equal(back.probabilities, first[0].probabilities)
    counts = prior.statistics()
    assert {name: counts[name] for name in ("asked", "late", "cached", "scored_actions")} == {
        "asked": 7,
        "late": 0,
        "cached": 8,
        "scored_actions": 8,
    }


def test_the_order_of_actions_changes_the_order_of_opinions_and_nothing_else() -> None:
    for actions in itertools.permutations(KITCHEN.actions):
        kept, engine = with_table()
        (expected,), (found,) = kept.opinions([KITCHEN]), kept.opinions([Situation(KITCHEN.prompt, actions)])
        assert len(engine.asked) == 1
        fresh, _ = with_table()
        (alone,) = fresh.opinions([Situation(KITCHEN.prompt, actions)])
        for place, action in enumerate(actions):
            other = KITCHEN.actions.index(action)
            assert found.probabilities[place] == alone.probabilities[place]
            np.testing.assert_allclose(found.probabilities[place], expected.probabilities[other], rtol=1e-6)
            assert np.array_equal(found.log_probs[place], expected.log_probs[other])


def test_only_actions_that_are_new_in_a_place_are_scored() -> None:
    prior, engine = with_table()
    prior.opinions([KITCHEN])
    (opinion,) = prior.opinions([Situation(KITCHEN.prompt, ("wait", *KITCHEN.actions))])
    assert engine.num_actions() == 4
    assert len(opinion.probabilities) == 4


def test_an_opinion_is_of_one_version_even_if_weights_come_in_between() -> None:
    prior, engine = with_table()
    prior.opinions([KITCHEN])
    engine.next_versions = [5]
    more = Situation(KITCHEN.prompt, (*KITCHEN.actions, "wait"))
    (mixed, other) = prior.opinions([more, HALL])
    assert (mixed.version, other.version) == (5, 5)
    assert [len(one.continuations) for one in engine.asked] == [3, 1, 2, 4]  # the torn one once more, all of it
    prompt, actions = prior.tokens(more)
    for tokens, found in zip(actions, mixed.log_probs, strict=True):
        assert np.array_equal(found, engine.log_probs(prompt, tokens))


def test_no_actions_are_no_question() -> None:
    prior, engine = with_table()
    (opinion,) = prior.opinions([Situation("The end.", ())])
    assert (opinion.probabilities.shape, opinion.log_probs, engine.asked) == ((0,), (), [])


@pytest.mark.parametrize("size", [0, 2, 4])
def test_a_small_cache_costs_scoring_and_changes_no_opinion(size: int) -> None:
    prior, _ = with_table(cache_size=size)
    large, _ = with_table()
    for situation in (KITCHEN, HALL, KITCHEN, HALL):
        (one,), (other,) = prior.opinions([situation]), large.opinions([situation])
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-6)
    assert prior.statistics()["scored_actions"] > large.statistics()["scored_actions"]


def test_a_full_cache_gives_up_the_oldest_version_first_then_what_was_asked_longest_ago() -> None:
    cache, here = OpinionCache(3), prompt_digest("here")
    for version, action in ((1, "a"), (1, "b"), (2, "c")):
        cache.keep(version, here, action, np.zeros(1, np.float32))
    cache.keep(2, here, "d", np.zeros(1, np.float32))
    assert cache.find(1, here, "a") is None and cache.find(1, here, "b") is not None
    cache.keep(2, here, "e", np.zeros(1, np.float32))
    assert cache.find(1, here, "b") is None and cache.find(2, here, "c") is not None
    cache.keep(2, here, "f", np.zeros(1, np.float32))
    assert [action for action in "cdef" if cache.find(2, here, action) is not None] == ["c", "e", "f"]
    cache.keep(2, here, "f", np.ones(1, np.float32))
    assert len(cache) == 3


def test_who_shares_a_cache_is_not_asked_twice_and_a_pickle_of_it_is_empty() -> None:
    cache = OpinionCache(100)
    (first, _), (second, _) = with_table(cache=cache), with_table(cache=cache)
    (one,) = first.opinions([KITCHEN])
    (other,) = second.opinions([KITCHEN])
    np.testing.assert_array_equal(one.probabilities, other.probabilities)
    assert second.statistics()["scored_actions"] == 0 < first.statistics()["scored_actions"] == len(cache)
    travelled = pickle.loads(pickle.dumps(cache))
    assert len(travelled) == 0
    travelled.keep(0, prompt_digest("here"), "a", np.zeros(1, np.float32))
    assert len(travelled) == 1


# -- what comes late ------------------------------------------------------------------------------


def test_what_is_not_scored_in_time_is_no_opinion_is_counted_and_is_there_the_next_time() -> None:
    prior, engine = with_table(deadline_s=30.0)
    (known,) = prior.opinions([KITCHEN])
    assert not known.is_late
    prior._deadline_s = 0.01
    engine.may_answer.clear()
    late, still_known = prior.opinions([HALL, KITCHEN])
    assert late.is_late and not late.probabilities.any() and len(late.probabilities) == len(late.log_probs) == 2
    assert np.array_equal(still_known.probabilities, known.probabilities)
    (again,) = prior.opinions([HALL])  # one question is open: no other is put
    assert again.is_late and len(engine.asked) == 2
    assert prior.statistics()["late"] == 2
    prior._deadline_s = 30.0
    engine.may_answer.set()
    (there,) = prior.opinions([HALL])
    assert not there.is_late
    assert there.probabilities.sum() == pytest.approx(1)
    prior.close()
    assert engine.is_closed


def test_an_engine_that_fails_says_so_with_a_deadline_too() -> None:
    prior, engine = with_table(deadline_s=30.0)
    engine.score = lambda requests: (_ for _ in ()).throw(EngineError("the engine is gone"))  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="the engine is gone"):
        prior.opinions([KITCHEN])
    prior.close()


# -- tokens ---------------------------------------------------------------------------------------


def test_the_prompt_is_the_users_message_and_the_reply_has_begun() -> None:
    tokenizer = tiny_tokenizer()
    prompt, actions = ActionChat(tokenizer, system_prompt="Play.")(KITCHEN)
    assert tokenizer.decode(prompt) == "<|system|>Play.<|user|>" + KITCHEN.prompt.strip() + "<|assistant|>Action:"
    assert [tokenizer.decode(tokens) for tokens in actions] == [" " + action for action in KITCHEN.actions]


def test_without_a_chat_template_the_texts_are_lines() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    prompt, _ = ActionChat(tokenizer)(KITCHEN)
    assert tokenizer.decode(prompt) == KITCHEN.prompt + "Action:"


def test_a_made_model_has_one_token_a_word() -> None:
    tokenizer = word_tokenizer(["Action", ":", "take", "key", "open", "the", "door", "go", "north"])
    _, actions = ActionChat(tokenizer)(KITCHEN)
    assert [tokenizer.convert_ids_to_tokens(tokens) for tokens in actions] == [
        ["take", "key"],
        ["open", "the", "door"],
        ["go", "north"],
    ]


def test_tokens_are_those_that_the_engine_is_asked_about_and_an_action_without_any_is_refused() -> None:
    prior, engine = with_table()
    prior.opinions([KITCHEN])
    prompt, actions = prior.tokens(KITCHEN)
    (asked,) = engine.asked
    assert asked.prompt == prompt
    assert sorted(asked.continuations) == sorted(actions)
    with pytest.raises(ModelError, match="the action ' ' has no tokens"):
        prior.opinions([Situation("Here.", (" ",))])


def test_a_uniform_prior_finds_every_action_equally_likely() -> None:
    prior = UniformPrior()
    prior.apply(3, None)
    (opinion, nothing) = prior.opinions([KITCHEN, Situation("The end.", ())])
    np.testing.assert_allclose(opinion.probabilities, [1 / 3] * 3)
    assert [len(row) for row in opinion.log_probs] == [len(tokens) for tokens in prior.tokens(KITCHEN)[1]] == [2, 3, 2]
    assert (opinion.version, len(nothing.probabilities), prior.statistics()["asked"]) == (3, 0, 2)
