"""What the contract suites of engines share: how an engine is made, its weights, and a slow reference.

An engine may take long to start, so a class shares one of each kind among its tests: each test gets it with the model's
own weights, under the next version. The model is tiny and random; `reference` computes its log-probabilities slowly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.llm.engine.protocol_engine import Engine, Request, Sample, Sampling

CONTEXT = 128
SOON_S = 60.0
MakeEngine = Callable[..., Engine]


class EngineSubject:
    """Says what a contract must know about an engine, and makes it. Prompts are made of tokens 3 to `vocabulary`."""

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
            thread = started(partial(answer, subject, asked, answers))
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


def tokens(samples: list[Sample]) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in samples]


def answer(subject: Engine, asked: Request, answers: list[list[Sample]]) -> None:
    answers.append(subject.generate(asked))


def started(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_until(is_so: Callable[[], bool]) -> None:
    """Poll what only another thread can bring about."""
    for _ in range(int(SOON_S / 0.002)):
        if is_so():
            return
        threading.Event().wait(0.002)
    raise AssertionError("it did not happen in time")
