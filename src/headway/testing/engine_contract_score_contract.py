"""What every engine must do when it scores what somebody else has written. EngineContract includes it."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from headway.llm.engine.protocol_engine import Aborted, ContinuationScores, Engine, EngineError, ScoreRequest
from headway.testing.engine_contract_engine_subject import SOON_S, EngineSubject, MakeEngine, started, wait_until


class ScoreContract(EngineSubject):
    """Tests of `score`."""

    def scored(self, number: int, prompt: int = 9, lengths: tuple[int, ...] = (1, 3, 2, 5)) -> ScoreRequest:
        random = np.random.default_rng(number)
        first, *others = (tuple(random.integers(3, self.vocabulary, size).tolist()) for size in (prompt, *lengths))
        return ScoreRequest(first, tuple(others), f"s{number}")

    def assert_scored_by(self, weights: Any, asked: ScoreRequest, scores: ContinuationScores) -> None:
        assert len(scores.log_probs) == len(asked.continuations)
        for tokens, found in zip(asked.continuations, scores.log_probs, strict=True):
            logits = self.reference(weights, asked.prompt, np.array(tokens)).astype(np.float64)
            logs = logits - logits.max(-1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, logs[np.arange(len(tokens)), list(tokens)], atol=self.tolerance)

    def test_scores_are_the_log_probabilities_of_a_forward_pass_at_temperature_1(self, engine: MakeEngine) -> None:
        subject = engine()
        requests = [self.scored(n, 1 + 17 * n, (1, 3, 2, 5)[: n + 1]) for n in range(4)]
        for asked, scores in zip(requests, subject.score(requests), strict=True):
            self.assert_scored_by(self.weights(0), asked, scores)
            assert scores.version == subject.version
        assert subject.score([]) == []

    def test_continuations_get_together_what_each_gets_alone(self, engine: MakeEngine) -> None:
        subject = engine()
        asked = self.scored(1, 40, (2, 1, 4, 4, 3, 2, 1, 6))
        (together,) = subject.score([asked])
        for tokens, expected in zip(asked.continuations, together.log_probs, strict=True):
            (alone,) = subject.score([ScoreRequest(asked.prompt, (tokens,), "alone")])
            np.testing.assert_allclose(alone.log_probs[0], expected, atol=self.tolerance)

    def test_scores_asked_for_again_or_in_another_order_are_the_same(self, engine: MakeEngine) -> None:
        """A long continuation too, which may lie in an engine's cache the second time."""
        subject, asked = engine(), self.scored(2, 36, (70, 3, 2))
        (first,), (second,) = subject.score([asked]), subject.score([asked])
        (turned,) = subject.score([ScoreRequest(asked.prompt, asked.continuations[::-1], "turned")])
        for a, b, c in zip(first.log_probs, second.log_probs, turned.log_probs[::-1], strict=True):
            np.testing.assert_allclose(a, b, atol=self.tolerance)
            np.testing.assert_allclose(a, c, atol=self.tolerance)

    def test_scores_are_those_of_the_applied_weights_and_carry_their_version(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.scored(3, 100)
        first = subject.version
        for version, seed in ((first, 0), (first + 1, 1), (first, 0), (first + 1, 1)):
            subject.apply(version, self.weights(seed))
            (scores,) = subject.score([asked])
            assert scores.version == version
            self.assert_scored_by(self.weights(seed), asked, scores)

    def test_callers_in_many_threads_are_each_answered_by_one_version_while_weights_change(
        self, engine: MakeEngine
    ) -> None:
        subject = engine()
        seeds = {subject.version + n: n % 2 for n in range(5)}
        requests = [self.scored(n, 20 + n) for n in range(4)]
        answers: list[tuple[ScoreRequest, ContinuationScores]] = []

        def ask(asked: ScoreRequest) -> None:
            answers.extend((asked, scores) for _ in range(6) for scores in subject.score([asked]))

        talking = started(partial(subject.generate, self.request(1, samples=2, max_tokens=40, min_tokens=40)))
        threads = [started(partial(ask, asked)) for asked in requests]
        for version, seed in list(seeds.items())[1:]:
            subject.apply(version, self.weights(seed))
        for thread in (talking, *threads):
            thread.join(SOON_S)
        assert len(answers) == 24
        for asked, scores in answers:
            self.assert_scored_by(self.weights(seeds[scores.version]), asked, scores)
        assert (subject.health().running, subject.health().waiting) == (0, 0)

    def test_scoring_does_not_disturb_samples_under_way(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1, samples=3, max_tokens=40, min_tokens=40)
        undisturbed = [sample.tokens.tolist() for sample in subject.generate(asked)]
        answers: list[Any] = []
        thread = started(lambda: answers.append(subject.generate(asked)))
        while thread.is_alive():
            subject.score([self.scored(1), self.scored(2, 30)])
        thread.join(SOON_S)
        assert [sample.tokens.tolist() for sample in answers[0]] == undisturbed

    def test_a_paused_engine_scores_nothing_until_it_goes_on_and_scores_can_be_aborted(
        self, engine: MakeEngine
    ) -> None:
        subject = engine()
        subject.pause()
        answers: dict[str, Any] = {}
        threads = [started(partial(_ask, subject, self.scored(n), answers)) for n in (1, 2)]
        try:
            wait_until(lambda: subject.health().waiting + subject.health().running == 8)
            threading.Event().wait(0.02)
            assert not answers
            assert subject.abort(["s1"]) == 4
        finally:
            subject.resume()
        for thread in threads:
            thread.join(SOON_S)
        assert isinstance(answers["s1"], Aborted)
        self.assert_scored_by(self.weights(0), self.scored(2), answers["s2"])

    @pytest.mark.parametrize(
        ("prompt", "lengths", "line"),
        [
            (120, (2, 12), "the prompt of 's1' has 120 tokens and continuation 1 has 12; the context is 12"),
            (5, (2, 0), "continuation 1 of 's1' is empty: it has no log-probability"),
            (5, (), "'s1' asks for the scores of no continuation"),
            (0, (1,), "the prompt of 's1' is empty"),
        ],
    )
    def test_what_cannot_be_scored_is_refused_in_one_line(
        self, engine: MakeEngine, prompt: int, lengths: tuple[int, ...], line: str
    ) -> None:
        with pytest.raises(EngineError, match=line) as refused:
            engine().score([self.scored(2), self.scored(1, prompt, lengths)])
        assert "\n" not in str(refused.value)

    def test_broken_weights_are_named_instead_of_scores_that_are_no_numbers(self, engine: MakeEngine) -> None:
        subject = engine()
        broken = {name: np.full(tuple(part.shape), np.nan, np.float32) for name, part in self.weights(0).items()}
        subject.apply(subject.version + 1, broken)
        with pytest.raises(EngineError, match=rf"'s1' are not numbers \(NaN\): .* of version {subject.version}$"):
            subject.score([self.scored(1)])
        subject.apply(subject.version + 1, self.weights(0))
        (scores,) = subject.score([self.scored(1)])
        self.assert_scored_by(self.weights(0), self.scored(1), scores)


def _ask(subject: Engine, asked: ScoreRequest, answers: dict[str, Any]) -> None:
    try:
        (answers[asked.uid],) = subject.score([asked])
    except Aborted as error:
        answers[asked.uid] = error
