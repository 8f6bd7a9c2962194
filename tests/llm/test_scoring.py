"""Scores of the in-process engine: every family and decoder, in trees of every shape, several requests in a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from headway.llm.engine import llama_decoder  # noqa: E402
from headway.llm.engine.continuous_batch_scoring import score_in_trees  # noqa: E402
from headway.llm.engine.general_decoders_padded_decoder import PaddedDecoder  # noqa: E402
from headway.llm.engine.protocol_engine import Aborted, ScoreRequest  # noqa: E402
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.llm.engine.vllm_host import VLLMStepper  # noqa: E402
from headway.llm.train.kernels_layouts import fits_trees  # noqa: E402
from headway.testing.tiny_models import KINDS, PLAIN_KINDS, ROWS_KINDS, tiny_model, tiny_tokenizer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

NEAR = 2e-5


def asked(number: int, prompt: int, lengths: tuple[int, ...]) -> ScoreRequest:
    random = np.random.default_rng(number)
    first, *others = (tuple(random.integers(3, 200, size).tolist()) for size in (prompt, *lengths))
    return ScoreRequest(first, tuple(others), f"s{number}")


REQUESTS = [asked(0, 20, (1, 2, 5)), asked(1, 7, (3,)), asked(2, 40, (1, 1)), asked(3, 1, (18, 2, 2))]


def one_by_one(model: Any, request: ScoreRequest) -> list[np.ndarray]:
    """A forward pass of the model itself for each continuation."""
    found = []
    for tokens in request.continuations:
        with torch.no_grad():
            logits = model(torch.tensor([[*request.prompt, *tokens]])).logits[0].float()
        logs = torch.log_softmax(logits, -1)[len(request.prompt) - 1 : -1]
        found.append(logs.gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy())
    return found


def assert_same(model: Any, requests: list[ScoreRequest], answers: Any) -> None:
    for request, log_probs in zip(requests, answers, strict=True):
        for found, expected in zip(log_probs, one_by_one(model, request), strict=True):
            np.testing.assert_allclose(found, expected, atol=NEAR)


class Counting:
    """A decoder that notes how many trees each pass has."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.passes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def score(self, trees: Any) -> Any:
        self.passes.append(len(trees))
        return self._decoder.score(trees)


@pytest.mark.parametrize(
    ("kind", "decoder"), [*((kind, None) for kind in KINDS), *((kind, PaddedDecoder) for kind in PLAIN_KINDS)]
)
def test_every_family_is_scored_as_it_would_score_itself(kind: str, decoder: Any) -> None:
    model = tiny_model(kind)
    made = build_decoder(model, rows=2, context=64) if decoder is None else decoder(model, 2, 64)
    assert_same(model, REQUESTS, score_in_trees(made, REQUESTS))


def test_models_that_cannot_be_read_in_trees_are_known() -> None:
    assert [kind for kind in KINDS if not fits_trees(tiny_model(kind))] == list(ROWS_KINDS)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(1, 9), min_size=1, max_size=9)), min_size=1, max_size=6)
)
def test_whatever_is_packed_together_gets_the_scores_that_it_gets_alone(shapes: list[tuple[int, list[int]]]) -> None:
    model = tiny_model()
    requests = [asked(number, prompt, tuple(lengths)) for number, (prompt, lengths) in enumerate(shapes)]
    decoder = build_decoder(model, rows=1, context=64)
    assert_same(model, requests, score_in_trees(decoder, requests))


def test_several_requests_share_a_pass_up_to_a_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    decoder = Counting(build_decoder(model, rows=1, context=64))
    engine = TransformersEngine(decoder, tiny_tokenizer(), (0,))
    requests = [asked(number, 20, (2, 3)) for number in range(8)]
    whole = engine.score(requests)
    assert decoder.passes == [8]
    monkeypatch.setattr(llama_decoder, "SCORE_TOKENS", 70)
    parts = engine.score(requests)
    assert decoder.passes[1:] == [3, 3, 2]
    for one, other in zip(whole, parts, strict=True):
        for a, b in zip(one.log_probs, other.log_probs, strict=True):
            np.testing.assert_allclose(a, b, atol=NEAR)


def test_a_request_that_is_larger_than_a_pass_is_answered_by_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_decoder, "SCORE_TOKENS", 16)
    model = tiny_model()
    decoder = Counting(build_decoder(model, rows=1, context=64))
    engine = TransformersEngine(decoder, tiny_tokenizer(), (0,), version=3)
    request = asked(5, 40, (20,) * 6)
    (scores,) = engine.score([request])
    assert len(decoder.passes) > 1
    assert scores.version == 3
    assert_same(model, [request], [scores.log_probs])


def test_what_is_scored_is_counted_and_is_not_what_is_generated() -> None:
    engine = TransformersEngine(build_decoder(tiny_model(), rows=1, context=64), tiny_tokenizer(), (0,))
    engine.score(REQUESTS)
    health = engine.health()
    assert health.details["tokens_scored"] == 35
    assert (health.tokens, health.waiting, health.running) == (0, 0, 0)


def test_a_decoder_that_fails_is_told_to_whoever_waits_and_a_closed_engine_scores_nothing() -> None:
    decoder = Counting(build_decoder(tiny_model(), rows=1, context=64))
    engine = TransformersEngine(decoder, tiny_tokenizer(), (0,))
    with pytest.raises(IndexError):
        engine.score([ScoreRequest((5, 100_000), ((3,),), "beyond")])
    assert engine.health().waiting == 0
    engine.score(REQUESTS)
    engine.close()
    with pytest.raises(Aborted, match="closed"):
        engine.score(REQUESTS)


class CachingVLLM:
    """Stands for vLLM's engine: of tokens that lie in its cache it gives log-probabilities that are stale."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, list[int], Any]] = []
        self._read: list[int] = []
        self.reads = 0

    def add_request(self, key: str, text: dict[str, Any], params: Any) -> None:
        self._asked.append((key, text["prompt_token_ids"], params))

    def step(self) -> list[Any]:
        outputs = []
        for key, tokens, params in self._asked:
            same = [a == b for a, b in zip(tokens, self._read, strict=False)]
            cached = 0 if params.skip_reading_prefix_cache else (same.index(False) if False in same else len(same))
            cached = min(cached, len(tokens) - 1) // 4 * 4  # whole blocks, and never all of it
            rows = [{token: SimpleNamespace(logprob=-float(token))} for token in tokens]
            stale = [{token: SimpleNamespace(logprob=9.0)} for token in tokens[: cached + 1]]
            outputs.append(
                SimpleNamespace(
                    request_id=key, num_cached_tokens=cached, prompt_logprobs=stale + rows[len(stale) :], finished=True
                )
            )
            self._read = tokens
            self.reads += 1
        self._asked = []
        return outputs


def test_vllm_is_believed_only_about_tokens_that_it_has_read() -> None:
    """The prompt may come from its cache; a continuation that lies there too is read again without it."""
    stepper: Any = object.__new__(VLLMStepper)
    stepper._engine, stepper._params, stepper._known, stepper._final = CachingVLLM(), SimpleNamespace, {}, None
    prompt, long = [5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15]
    for continuation, reads in ((long, 1), ([21, 22], 2), (long, 3), (long, 5)):
        stepper.add_known("k", prompt, continuation, "salt")
        news = [*stepper.step(), *stepper.step()]
        assert news == [("k", continuation, [-float(token) for token in continuation], True)]
        assert stepper._engine.reads == reads
    assert not stepper._known


def test_what_prompts_begin_with_alike_is_read_once_and_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_decoder, "EXTEND_TOKENS", 16)  # so that prompts and branches are cut anywhere
    model = tiny_model("llama")
    random = np.random.default_rng(0)
    beginning = tuple(random.integers(3, 200, 30).tolist())
    requests = [
        ScoreRequest((*beginning, *random.integers(3, 200, own).tolist()), ((5, 6, 7), (8,), (5, 9)), f"s{own}")
        for own in (12, 4, 0, 9, 9)
    ]
    together = build_decoder(model, rows=2, context=64)
    read: list[int] = []
    hidden = together._hidden
    monkeypatch.setattr(together, "_hidden", lambda tokens, *rest: read.append(len(tokens)) or hidden(tokens, *rest))
    answers = [score_in_trees(together, [request])[0] for request in requests]
    assert sum(read) == 42 + 4 + 1 + 9 + 9 + 5 * 3
    assert_same(model, requests, answers)
    for request, answer in zip(requests, answers, strict=True):
        (alone,) = score_in_trees(build_decoder(model, rows=1, context=64), [request])
        assert all(np.array_equal(one, other) for one, other in zip(alone, answer, strict=True))


def test_new_weights_forget_what_prompts_began_with() -> None:
    model, other = tiny_model("llama"), tiny_model("llama", seed=1)
    decoder = build_decoder(model, rows=1, context=64)
    score_in_trees(decoder, REQUESTS[:1])
    decoder.load(other.state_dict())
    assert_same(other, REQUESTS[:1], score_in_trees(decoder, REQUESTS[:1]))
