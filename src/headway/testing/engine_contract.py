"""What every engine must do. A new one is accepted when it passes: subclass and say how to make it.

class TestMine(EngineContract, SessionContract):
    def make(self, folder, **options): return Mine(folder, **options)

What a subclass may say besides stands in engine_subject.py; sessions have a suite of their own, session_contract.py.
The tests of `score` are in score_contract.py, and part of this suite.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from headway.llm.engine.protocol_engine import Aborted, EngineError, Overdue, Request, Sample, Sampling
from headway.testing.engine_contract_engine_subject import SOON_S, MakeEngine, answer, started, tokens, wait_until
from headway.testing.engine_contract_score_contract import ScoreContract


class EngineContract(ScoreContract):
    """Tests of the `Engine` protocol but for its sessions."""

    # -- what is sampled ----------------------------------------------------------------------------

    def test_log_probabilities_are_those_of_a_forward_pass(self, engine: MakeEngine) -> None:
        requests = [self.request(n, 3 + 2 * n, 3, max_tokens=8 + n, temperature=0.7) for n in range(4)]
        for asked, samples in zip(requests, engine().generate_all(requests), strict=True):
            assert len(samples) == 3
            for sample in samples:
                self.assert_made_by(self.weights(0), asked, sample, slice(None))

    @pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.4}, {"top_k": 20, "top_p": 0.7, "temperature": 0.9}])
    def test_a_cut_tail_is_never_drawn_and_log_probabilities_are_those_of_what_is_left(
        self, engine: MakeEngine, cut: dict[str, Any]
    ) -> None:
        asked = self.request(2, samples=6, max_tokens=10, **{"temperature": 0.7, **cut})
        for sample in engine().generate(asked):
            logits = self.reference(self.weights(0), asked.prompt, sample.tokens) / asked.sampling.temperature
            for row, token, said in zip(logits, sample.tokens, sample.log_probs, strict=True):
                left = _left_of(np.exp(row - row.max()), asked.sampling)
                assert token in left
                assert said == pytest.approx(np.log(left[token] / sum(left.values())), abs=self.tolerance)

    def test_without_temperature_the_most_likely_token_is_taken(self, engine: MakeEngine) -> None:
        asked = self.request(1, temperature=0.0)
        (sample,) = engine().generate(asked)
        likely = self.reference(self.weights(0), asked.prompt, sample.tokens).argmax(-1)
        assert sample.tokens.tolist() == likely.tolist()
        assert (sample.log_probs == 0).all()

    def test_a_request_asked_again_gets_the_same_samples_whoever_else_is_there(self, engine: MakeEngine) -> None:
        subject = engine()
        requests = [self.request(n, 4 + n, 3, max_tokens=10 + n) for n in range(5)]
        alone = [subject.generate(asked) for asked in requests]
        for first, second in zip(alone, subject.generate_all(requests[::-1])[::-1], strict=True):
            assert tokens(first) == tokens(second)
            for a, b in zip(first, second, strict=True):
                np.testing.assert_allclose(a.log_probs, b.log_probs, atol=self.tolerance)

    def test_callers_in_many_threads_get_what_each_would_get_alone(self, engine: MakeEngine) -> None:
        subject = engine()
        requests = [self.request(n, 4 + n, 3, max_tokens=6 + 3 * n) for n in range(6)]
        alone = [subject.generate(asked) for asked in requests]
        before = subject.health().tokens
        answers: list[list[list[Sample]]] = [[] for _ in requests]
        threads = [started(partial(answer, subject, asked, answers[n])) for n, asked in enumerate(requests)]
        for thread in threads:
            thread.join(SOON_S)
        for n, samples in enumerate(alone):
            assert tokens(answers[n][0]) == tokens(samples)
        health = subject.health()
        assert (health.running, health.waiting) == (0, 0)
        assert health.tokens - before == sum(len(sample.tokens) for samples in alone for sample in samples)

    def test_other_seeds_give_other_samples_and_samples_of_one_request_differ(self, engine: MakeEngine) -> None:
        subject = engine()
        prompt = self.request(0).prompt
        asked = [Request(f"s{seed}", prompt, 4, seed, Sampling(max_tokens=16, min_tokens=16)) for seed in (1, 2)]
        lines = [tuple(sample.tokens.tolist()) for samples in subject.generate_all(asked) for sample in samples]
        assert len(set(lines)) == len(lines) == 8

    def test_more_samples_than_places_are_all_made(self, engine: MakeEngine) -> None:
        samples = engine().generate(self.request(4, samples=30))
        assert len(samples) == 30
        assert all(len(sample.tokens) for sample in samples)

    # -- where a reply ends -------------------------------------------------------------------------

    def test_a_reply_ends_with_its_stop_token_or_at_its_limit(self, engine: MakeEngine) -> None:
        samples = engine().generate(self.request(3, samples=24, max_tokens=40))
        assert {sample.finish for sample in samples} == {"stop", "length"}
        for sample in samples:
            assert not np.isin(sample.tokens[:-1], self.stops).any()
            assert bool(np.isin(sample.tokens[-1], self.stops)) is (sample.finish == "stop")
            assert sample.finish == "stop" or len(sample.tokens) == 40

    def test_no_reply_ends_before_its_least_length_and_its_tokens_stay_the_policys(self, engine: MakeEngine) -> None:
        asked = self.request(3, samples=16, max_tokens=40, min_tokens=30)
        samples = engine().generate(asked)
        assert all(len(sample.tokens) >= 30 for sample in samples)
        assert any(np.isin(sample.tokens[:-1], self.stops).any() for sample in samples)  # nothing was forbidden
        for sample in samples[:4]:
            self.assert_made_by(self.weights(0), asked, sample, slice(None))

    def test_a_stop_string_ends_a_reply_and_stays_in_it(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(3, samples=4, max_tokens=40)
        free = subject.generate(asked)
        longest = max(range(4), key=lambda n: len(free[n].tokens))
        text = free[longest].text[2:4]
        stopped = subject.generate(Request("r3", asked.prompt, 4, 3, Sampling(max_tokens=40, stop=(text,))))[longest]
        assert stopped.text.endswith(text)
        assert stopped.finish == "stop"
        assert stopped.tokens.tolist() == free[longest].tokens.tolist()[: len(stopped.tokens)]
        assert len(stopped.tokens) < len(free[longest].tokens)

    # -- weights ------------------------------------------------------------------------------------

    def test_every_token_carries_the_version_that_made_it(self, engine: MakeEngine) -> None:
        asked = self.request(1, samples=2, max_tokens=100, min_tokens=100)
        _, new, samples = self.mixed(engine(), asked, self.weights(1))
        for sample in samples:
            changed = int((sample.versions < new).sum())
            self.assert_made_by(self.weights(0), asked, sample, slice(changed))
            if self.has_cache and 0 < changed < len(sample.tokens):
                # With the cache of the old weights kept, the rest is neither policy's: hence corrections.
                rest = slice(changed, None)
                old = self.log_probs(self.weights(0), asked, sample.tokens)[rest]
                assert not np.allclose(sample.log_probs[rest], old, atol=1e-3)

    def test_with_recompute_the_rest_of_a_reply_is_exactly_the_new_policys(self, engine: MakeEngine) -> None:
        asked = self.request(1, samples=2, max_tokens=100, min_tokens=100)
        _, new, samples = self.mixed(engine(recompute=True), asked, self.weights(1))
        for sample in samples:
            changed = int((sample.versions < new).sum())
            self.assert_made_by(self.weights(0), asked, sample, slice(changed))
            self.assert_made_by(self.weights(1), asked, sample, slice(changed, None))

    def test_applied_weights_are_used_and_part_of_them_is_enough(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(2, samples=2)
        old, new = self.weights(0), self.weights(1)
        given = {name: part for name, part in new.items() if name.startswith(self.part)}
        assert given
        for weights in (given, new):
            subject.apply(subject.version + 1, weights)
            for sample in subject.generate(asked):
                self.assert_made_by({**old, **weights}, asked, sample, slice(None))
                assert set(sample.versions.tolist()) == {subject.version}

    def test_nothing_of_older_weights_is_left_in_what_is_read_anew(self, engine: MakeEngine) -> None:
        """A long prompt asked before and after a change, and again after going back to a version it has had."""
        subject, asked = engine(), self.request(2, 100, 2)
        first = subject.version
        for version, seed in ((first, 0), (first + 1, 1), (first, 0), (first + 1, 1)):
            subject.apply(version, self.weights(seed))
            for sample in subject.generate(asked):
                self.assert_made_by(self.weights(seed), asked, sample, slice(None))

    def test_weights_that_do_not_fit_are_refused_and_nothing_is_changed(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(2)
        version = subject.version
        (before,) = subject.generate(asked)
        name = next(iter(self.weights(1)))
        with pytest.raises(ValueError, match="shape"):
            subject.apply(version + 1, {**self.weights(1), name: np.zeros((3, 3), np.float32)})
        with pytest.raises(ValueError, match="unknown weight"):
            subject.apply(version + 1, {**self.weights(1), name + "s": np.zeros((3, 3), np.float32)})
        assert subject.version == version
        (after,) = subject.generate(asked)
        assert before.tokens.tolist() == after.tokens.tolist()

    # -- pause, abort, deadlines --------------------------------------------------------------------

    def test_a_paused_engine_makes_no_token_and_goes_on_where_it_was(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1, samples=3, max_tokens=60, min_tokens=60)
        undisturbed = subject.generate(asked)
        answers: list[list[Sample]] = []
        thread = started(partial(answer, subject, asked, answers))
        subject.pause()
        health = subject.health()
        assert health.is_paused
        threading.Event().wait(0.05)
        assert subject.health().tokens == health.tokens
        subject.resume()
        thread.join(SOON_S)
        assert not subject.health().is_paused
        assert tokens(answers[0]) == tokens(undisturbed)

    def test_an_aborted_request_raises_and_the_others_go_on(self, engine: MakeEngine) -> None:
        subject = engine()
        kept, given_up = self.request(1, samples=2, max_tokens=20), self.request(2, samples=3, max_tokens=20)
        expected = subject.generate(kept)
        subject.pause()
        outcomes: dict[str, Any] = {}

        def ask(one: Request) -> None:
            try:
                outcomes[one.uid] = subject.generate(one)
            except Aborted as error:
                outcomes[one.uid] = error

        threads = [started(partial(ask, one)) for one in (given_up, kept)]
        wait_until(lambda: subject.health().waiting + subject.health().running == 5)
        assert subject.abort([given_up.uid]) == 3
        subject.resume()
        for thread in threads:
            thread.join(SOON_S)
        assert isinstance(outcomes[given_up.uid], Aborted)
        assert tokens(outcomes[kept.uid]) == tokens(expected)
        assert subject.abort() == 0

    def test_a_request_that_is_not_whole_in_time_fails_even_if_the_engine_is_paused(self, engine: MakeEngine) -> None:
        subject = engine()
        subject.pause()
        try:
            with pytest.raises(Overdue, match=r"r1: not whole within 0\.1 s$"):
                subject.generate(self.request(1, samples=3, deadline_s=0.1))
        finally:
            subject.resume()
        assert (subject.health().running, subject.health().waiting) == (0, 0)
        assert subject.generate(self.request(1, deadline_s=SOON_S))

    def test_a_request_may_be_cut_at_its_deadline_and_keeps_what_there_is(self, engine: MakeEngine) -> None:
        subject = engine()
        asked = self.request(1, samples=2, max_tokens=110, min_tokens=110)
        whole = subject.generate(asked)
        samples: list[Sample] = []
        deadline_s = 1e-3
        while not samples:  # nobody can say how fast it is: longer and longer, until it was in the middle
            with contextlib.suppress(Overdue):
                samples = subject.generate(replace(asked, deadline_s=deadline_s, on_deadline="cut"))
            deadline_s *= 1.3
        assert {sample.finish for sample in samples} == {"deadline"}
        for cut, sample in zip(samples, whole, strict=True):
            assert 0 < len(cut.tokens) <= len(sample.tokens)
            assert cut.tokens.tolist() == sample.tokens.tolist()[: len(cut.tokens)]
            assert len(cut.tokens) == len(cut.log_probs) == len(cut.versions)
        assert (subject.health().running, subject.health().waiting) == (0, 0)

    def test_a_prompt_that_leaves_no_room_is_refused_in_one_line(self, engine: MakeEngine) -> None:
        with pytest.raises(EngineError, match="has 120 tokens and may get 12 more; the context is 128"):
            engine().generate(self.request(1, 120))
        with pytest.raises(EngineError, match="is empty"):
            engine().generate(Request("r", (), 1, 0))

    def test_a_closed_engine_refuses_and_whoever_waits_is_told(self, made: dict[Any, Any], engine: MakeEngine) -> None:
        subject = engine()
        made.pop((8, False))
        subject.pause()
        told: list[Exception] = []

        def ask() -> None:
            try:
                subject.generate(self.request(1, samples=3))
            except Aborted as error:
                told.append(error)

        thread = started(ask)
        wait_until(lambda: subject.health().waiting + subject.health().running == 3)
        subject.close()
        thread.join(SOON_S)
        assert ["closed" in str(error) for error in told] == [True]
        with pytest.raises(Aborted, match="closed"):
            subject.generate(self.request(1))


def _left_of(weights: np.ndarray, sampling: Sampling) -> dict[int, float]:
    """The tokens that a cut leaves, with their weights [V], one after the other by the book."""
    likely = sorted(enumerate(weights.tolist()), key=lambda pair: -pair[1])
    likely = likely[: sampling.top_k or len(likely)]
    total, mass, left = sum(weight for _, weight in likely), 0.0, {}
    for token, weight in likely:
        if mass >= sampling.top_p * total:
            break
        left[token], mass = weight, mass + weight
    return left
