"""What every engine must do. A new one is accepted when it passes: subclass and say how to make it.

class TestMine(EngineContract):
    def make(self, folder, **options): return Mine(folder, **options)

An engine may take long to start, so a class shares one of each kind among its tests: each test gets it with the model's
own weights, under the next version. The model is tiny and random; `reference` computes its log-probabilities slowly.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.llm.engine import Aborted, Engine, EngineError, Overdue, Request, Sample, Sampling

CONTEXT = 128
SOON_S = 60.0
MakeEngine = Callable[..., Engine]


class EngineContract:
    """Tests of the `Engine` protocol. Prompts are made of tokens 3 to `vocabulary`."""

    stops: tuple[int, ...] = (0, 7, 90, 91, 92)
    """The tokens that end a reply."""
    vocabulary = 200
    tolerance = 1e-4
    """How far log-probabilities may differ from the reference."""
    has_cache = True
    """Does the rest of a reply depend on what older weights read? With `recompute` it must not."""
    head_dim = 16
    """Of the model's attention: not every engine has every size."""
    part = "model.layers.1."
    """How the names of the weights begin that are enough to be given, when others stay as they are."""

    # -- what a subclass says -----------------------------------------------------------------------

    @classmethod
    def save(cls, folder: Path) -> None:
        """Put the model of seed 0 where `make` finds it."""
        from headway.testing.tiny_models import save_tiny_model

        save_tiny_model(folder, head_dim=cls.head_dim)

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        raise NotImplementedError

    def weights(self, seed: int) -> Mapping[str, Any]:
        """All weights of the model of this seed."""
        from headway.testing.tiny_models import tiny_model

        model = tiny_model(seed=seed, head_dim=self.head_dim)
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    def reference(self, weights: Mapping[str, Any], prompt: tuple[int, ...], tokens: np.ndarray) -> np.ndarray:
        """Logits of each place where one of `tokens` was drawn, [T, V]."""
        import torch

        from headway.testing.tiny_models import tiny_model

        model = tiny_model(head_dim=self.head_dim)
        model.load_state_dict({**model.state_dict(), **weights})
        model.tie_weights()
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens.tolist()]])).logits[0]
        values: np.ndarray = logits[len(prompt) - 1 : -1].float().numpy()
        return values

    # -- what the tests use -------------------------------------------------------------------------

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Any, Any]]:
        folder = tmp_path_factory.mktemp("model")
        cls.save(folder)
        engines: dict[Any, Any] = {"folder": folder}
        yield engines
        for key, engine in engines.items():
            if key != "folder":
                engine.close()

    @pytest.fixture
    def engine(self, made: dict[Any, Any]) -> MakeEngine:
        def build(*, rows: int = 8, recompute: bool = False) -> Engine:
            key = rows, recompute
            if key not in made:
                made[key] = self.make(made["folder"], rows=rows, context=CONTEXT, recompute=recompute)
            subject: Engine = made[key]
            subject.apply(subject.version + 1, self.weights(0))
            return subject

        return build

    def request(self, number: int, length: int = 5, samples: int = 1, **more: Any) -> Request:
        prompt = tuple(np.random.default_rng(number).integers(3, self.vocabulary, length).tolist())
        timing = {name: more.pop(name) for name in ("deadline_s", "on_deadline") if name in more}
        return Request(f"r{number}", prompt, samples, number, Sampling(**{"max_tokens": 12, **more}), **timing)

    def log_probs(self, weights: Mapping[str, Any], asked: Request, tokens: np.ndarray) -> np.ndarray:
        logits = self.reference(weights, asked.prompt, tokens) / asked.sampling.temperature
        logits = logits - logits.max(-1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen: np.ndarray = logs[np.arange(len(tokens)), tokens]
        return chosen

    def assert_made_by(self, weights: Mapping[str, Any], asked: Request, sample: Sample, part: slice) -> None:
        expected = self.log_probs(weights, asked, sample.tokens)[part]
        np.testing.assert_allclose(sample.log_probs[part], expected, atol=self.tolerance)

    def mixed(self, subject: Engine, asked: Request, weights: Mapping[str, Any]) -> tuple[int, int, list[Sample]]:
        """Replies in the middle of which weights were applied: the versions before and after, and the replies.

        Nobody can say when another thread's step happens, so this is tried with growing delays until it was the middle.
        """
        for attempt in range(40):
            subject.apply(subject.version + 1, self.weights(0))
            old, new = subject.version, subject.version + 3
            answers: list[list[Sample]] = []
            thread = _started(partial(_answer, subject, asked, answers))
            threading.Event().wait(0.002 * attempt)
            subject.apply(new, weights)
            thread.join(SOON_S)
            (samples,) = answers
            for sample in samples:
                assert set(sample.versions.tolist()) <= {old, new}
                assert (np.diff(sample.versions) >= 0).all()
            if any(len(set(sample.versions.tolist())) == 2 for sample in samples):
                return old, new, samples
        raise AssertionError("no weights could be applied in the middle of a reply")

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
            assert _tokens(first) == _tokens(second)
            for a, b in zip(first, second, strict=True):
                np.testing.assert_allclose(a.log_probs, b.log_probs, atol=self.tolerance)

    def test_callers_in_many_threads_get_what_each_would_get_alone(self, engine: MakeEngine) -> None:
        subject = engine()
        requests = [self.request(n, 4 + n, 3, max_tokens=6 + 3 * n) for n in range(6)]
        alone = [subject.generate(asked) for asked in requests]
        before = subject.health().tokens
        answers: list[list[list[Sample]]] = [[] for _ in requests]
        threads = [_started(partial(_answer, subject, asked, answers[n])) for n, asked in enumerate(requests)]
        for thread in threads:
            thread.join(SOON_S)
        for n, samples in enumerate(alone):
            assert _tokens(answers[n][0]) == _tokens(samples)
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
        thread = _started(partial(_answer, subject, asked, answers))
        subject.pause()
        health = subject.health()
        assert health.is_paused
        threading.Event().wait(0.05)
        assert subject.health().tokens == health.tokens
        subject.resume()
        thread.join(SOON_S)
        assert not subject.health().is_paused
        assert _tokens(answers[0]) == _tokens(undisturbed)

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

        threads = [_started(partial(ask, one)) for one in (given_up, kept)]
        _wait_until(lambda: subject.health().waiting + subject.health().running == 5)
        assert subject.abort([given_up.uid]) == 3
        subject.resume()
        for thread in threads:
            thread.join(SOON_S)
        assert isinstance(outcomes[given_up.uid], Aborted)
        assert _tokens(outcomes[kept.uid]) == _tokens(expected)
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

        thread = _started(ask)
        _wait_until(lambda: subject.health().waiting + subject.health().running == 3)
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


def _tokens(samples: list[Sample]) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in samples]


def _answer(subject: Engine, asked: Request, answers: list[list[Sample]]) -> None:
    answers.append(subject.generate(asked))


def _started(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def _wait_until(is_so: Callable[[], bool]) -> None:
    """Poll what only another thread can bring about."""
    for _ in range(int(SOON_S / 0.002)):
        if is_so():
            return
        threading.Event().wait(0.002)
    raise AssertionError("it did not happen in time")
