"""The in-process engine: what it samples, for whom, with which weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from headway.llm.engine import Aborted, EngineError, Request, Sampling  # noqa: E402
from headway.llm.llama_decoder import LlamaDecoder  # noqa: E402
from headway.llm.padded_decoder import PaddedDecoder  # noqa: E402
from headway.llm.sampling import draw, uniform  # noqa: E402
from headway.llm.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.testing.tiny_models import KINDS, tiny_model, tiny_tokenizer  # noqa: E402

STOPS = (0, 7, 90, 91, 92)  # of some 260 tokens


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine(model: Any = None, rows: int = 8, context: int = 64, **options: Any) -> TransformersEngine:
    model = tiny_model() if model is None else model
    return TransformersEngine(build_decoder(model, rows=rows, context=context), tiny_tokenizer(), STOPS, **options)


def request(number: int, length: int = 5, samples: int = 1, **sampling: Any) -> Request:
    prompt = tuple(np.random.default_rng(number).integers(3, 200, length).tolist())
    return Request(f"r{number}", prompt, samples, number, Sampling(**{"max_tokens": 12, **sampling}))


def log_probs_of(model: Any, asked: Request, tokens: np.ndarray) -> np.ndarray:
    whole = torch.tensor([[*asked.prompt, *tokens.tolist()]])
    with torch.no_grad():
        logits = model(whole).logits[0].float() / asked.sampling.temperature
    logs = torch.log_softmax(logits, -1)[len(asked.prompt) - 1 : -1]
    return logs.gather(1, torch.tensor(tokens)[:, None].long())[:, 0].numpy()


# -- what is sampled ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decoder", [None, PaddedDecoder])
def test_log_probabilities_are_those_of_a_forward_pass(kind: str, decoder: Any) -> None:
    model = tiny_model(kind)
    made = build_decoder(model, rows=5, context=64) if decoder is None else decoder(model, 5, 64)
    requests = [request(n, 3 + 2 * n, 3, max_tokens=8 + n, temperature=0.7) for n in range(4)]
    answers = TransformersEngine(made, tiny_tokenizer(), STOPS).generate_all(requests)
    for asked, samples in zip(requests, answers, strict=True):
        assert len(samples) == 3
        for sample in samples:
            np.testing.assert_allclose(sample.log_probs, log_probs_of(model, asked, sample.tokens), atol=2e-5)


def test_a_family_has_its_own_decoder_and_any_other_model_the_general_one() -> None:
    assert isinstance(build_decoder(tiny_model("qwen3"), rows=2, context=32), LlamaDecoder)
    assert isinstance(build_decoder(tiny_model("gpt2"), rows=2, context=32), PaddedDecoder)


def test_without_temperature_the_most_likely_token_is_taken() -> None:
    model = tiny_model()
    asked = request(1, temperature=0.0)
    (sample,) = engine(model).generate(asked)
    whole = list(asked.prompt)
    for token in sample.tokens.tolist():
        with torch.no_grad():
            assert token == int(model(torch.tensor([whole])).logits[0, -1].argmax())
        whole.append(token)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 4)), min_size=1, max_size=6), st.integers(1, 9))
def test_a_sample_does_not_depend_on_its_neighbours_bit_for_bit(asked: list[tuple[int, int]], rows: int) -> None:
    torch.set_num_threads(1)
    model = tiny_model()
    requests = [request(n, length, samples) for n, (length, samples) in enumerate(asked)]
    alone = [engine(model, rows=16).generate(one) for one in requests]
    together = engine(model, rows=rows).generate_all(requests)
    for first, second in zip(alone, together, strict=True):
        for a, b in zip(first, second, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist()
            assert a.log_probs.tobytes() == b.log_probs.tobytes()


def test_callers_in_many_threads_get_what_each_would_get_alone() -> None:
    model = tiny_model()
    requests = [request(n, 4 + n, 3, max_tokens=6 + 3 * n) for n in range(6)]
    alone = [engine(model).generate(one) for one in requests]
    shared = engine(model, rows=5)
    answers: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n, one=one: answers.update({n: shared.generate(one)}))
        for n, one in enumerate(requests)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for n, samples in enumerate(alone):
        assert [s.tokens.tolist() for s in answers[n]] == [s.tokens.tolist() for s in samples]
    health = shared.health()
    assert (health.running, health.waiting) == (0, 0)
    assert health.tokens == sum(len(sample.tokens) for samples in alone for sample in samples)


def test_other_seeds_give_other_samples_and_samples_of_one_request_differ() -> None:
    first, second = (engine().generate(Request("r", (5, 6, 7), 4, seed, Sampling(max_tokens=16))) for seed in (1, 2))
    lines = [tuple(sample.tokens.tolist()) for sample in [*first, *second]]
    assert len(set(lines)) == len(lines)


def test_numbers_of_tokens_are_uniform_and_do_not_repeat() -> None:
    seeds = torch.arange(200).repeat_interleave(100)
    numbers = uniform(seeds, torch.arange(100).repeat(200)).numpy()
    assert numbers.min() >= 0 and numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-square, 19 degrees of freedom
    assert len(np.unique(numbers)) > 19_900


def test_tokens_are_drawn_with_their_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]]).expand(20_000, -1)
    numbers = uniform(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64))
    tokens, log_probs = draw(logits, numbers, Sampling())
    expected = torch.softmax(logits[0], -1).numpy() * 20_000
    counts = np.bincount(tokens.numpy(), minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 25  # 4 degrees of freedom
    np.testing.assert_allclose(log_probs.numpy(), torch.log_softmax(logits[0], -1)[tokens].numpy(), atol=1e-6)


@pytest.mark.parametrize(("cut", "allowed"), [({"top_k": 2}, {1, 2}), ({"top_p": 0.5}, {2}), ({"top_p": 0.7}, {1, 2})])
def test_a_cut_tail_is_never_drawn_and_log_probabilities_stay_those_of_the_policy(
    cut: dict[str, Any], allowed: set[int]
) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]]).expand(3000, -1)
    tokens, log_probs = draw(logits, uniform(torch.arange(3000), torch.zeros(3000, dtype=torch.int64)), Sampling(**cut))
    assert set(tokens.tolist()) == allowed
    np.testing.assert_allclose(log_probs.numpy(), torch.log_softmax(logits[0], -1)[tokens].numpy(), atol=1e-6)


# -- where a reply ends ---------------------------------------------------------------------------


def test_a_reply_ends_with_its_stop_token_or_at_its_limit() -> None:
    samples = engine(rows=16).generate(request(3, samples=16, max_tokens=40))
    assert {sample.finish for sample in samples} == {"stop", "length"}
    for sample in samples:
        assert not np.isin(sample.tokens[:-1], STOPS).any()
        assert bool(np.isin(sample.tokens[-1], STOPS)) is (sample.finish == "stop")
        assert sample.finish == "stop" or len(sample.tokens) == 40


def test_no_reply_ends_before_its_least_length() -> None:
    samples = engine(rows=16).generate(request(3, samples=16, max_tokens=40, min_tokens=30))
    assert all(len(sample.tokens) >= 30 for sample in samples)


def test_a_stop_string_ends_a_reply_and_stays_in_it() -> None:
    asked = request(3, samples=4, max_tokens=40)
    free = engine(rows=4).generate(asked)
    text = free[0].text[2:4]
    stopped = engine(rows=4).generate(Request("r3", asked.prompt, 4, 3, Sampling(max_tokens=40, stop=(text,))))
    assert stopped[0].text.endswith(text) and stopped[0].finish == "stop"
    assert stopped[0].tokens.tolist() == free[0].tokens.tolist()[: len(stopped[0].tokens)]
    assert len(stopped[0].tokens) < len(free[0].tokens)


# -- weights --------------------------------------------------------------------------------------


def test_every_token_carries_the_version_that_made_it() -> None:
    old, new = tiny_model(seed=0), tiny_model(seed=1)
    subject = engine(old)
    steps = _Steps(subject)
    asked = request(1, samples=2, max_tokens=20, min_tokens=20)
    steps.before(7, lambda: subject.apply(3, new.state_dict()))
    for sample in subject.generate(asked):
        versions = sample.versions.tolist()
        assert sorted(set(versions)) == [0, 3] and versions == sorted(versions)
        changed = versions.index(3)
        np.testing.assert_allclose(
            sample.log_probs[:changed], log_probs_of(old, asked, sample.tokens)[:changed], atol=2e-5
        )
        # With the cache of the old weights kept, the rest is neither policy's: that is what a correction is for.
        assert not np.allclose(sample.log_probs[changed:], log_probs_of(old, asked, sample.tokens)[changed:], atol=1e-3)


def test_with_recompute_the_rest_of_a_reply_is_exactly_the_new_policys() -> None:
    old, new = tiny_model(seed=0), tiny_model(seed=1)
    subject = engine(old, recompute=True)
    asked = request(1, samples=2, max_tokens=20, min_tokens=20)
    _Steps(subject).before(7, lambda: subject.apply(1, new.state_dict()))
    for sample in subject.generate(asked):
        changed = sample.versions.tolist().index(1)
        np.testing.assert_allclose(
            sample.log_probs[changed:], log_probs_of(new, asked, sample.tokens)[changed:], atol=2e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_applied_weights_are_used_and_part_of_them_is_enough(kind: str) -> None:
    old, new = tiny_model(kind, seed=0), tiny_model(kind, seed=1)
    changed = [name for name, _ in old.named_parameters() if "1" in name]
    mixed = tiny_model(kind, seed=0)
    mixed.load_state_dict({**old.state_dict(), **{name: new.state_dict()[name] for name in changed}})
    subject = engine(old)
    subject.apply(1, {name: new.state_dict()[name] for name in changed})
    asked = request(2, samples=2)
    for sample in subject.generate(asked):
        np.testing.assert_allclose(sample.log_probs, log_probs_of(mixed, asked, sample.tokens), atol=2e-5)


def test_weights_that_do_not_fit_are_refused_and_nothing_is_changed() -> None:
    model = tiny_model()
    subject, asked = engine(model), request(2)
    (before,) = subject.generate(asked)
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match="shape"):
        subject.apply(1, {"model.norm.weight": torch.zeros(32), name: torch.zeros(3, 3)})
    with pytest.raises(ValueError, match="did you mean"):
        subject.apply(1, {"model.norm.weight": torch.zeros(32), name + "s": torch.zeros(3, 3)})
    assert subject.version == 0
    (after,) = subject.generate(asked)
    assert before.log_probs.tobytes() == after.log_probs.tobytes()


# -- pause, abort, close --------------------------------------------------------------------------


def test_a_paused_engine_goes_on_where_it_was() -> None:
    subject, asked = engine(), request(1, samples=3, max_tokens=20, min_tokens=20)
    undisturbed = engine().generate(asked)
    paused = threading.Event()
    _Steps(subject).before(5, lambda: (subject.pause(), paused.set()))
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(subject.generate(asked)))
    thread.start()
    assert paused.wait(30)
    assert subject.health().is_paused and not answers
    subject.resume()
    thread.join(30)
    assert [s.tokens.tolist() for s in answers[0]] == [s.tokens.tolist() for s in undisturbed]


def test_an_aborted_request_raises_and_the_others_go_on() -> None:
    subject = engine(rows=8)
    kept, given_up = request(1, samples=2, max_tokens=20, min_tokens=20), request(2, samples=3, max_tokens=20)
    expected = engine().generate(kept)
    counts: list[int] = []
    _Steps(subject).before(3, lambda: counts.append(subject.abort([given_up.uid])))
    outcomes: dict[str, Any] = {}

    def ask(one: Request) -> None:
        try:
            outcomes[one.uid] = subject.generate(one)
        except Aborted as error:
            outcomes[one.uid] = error

    threads = [threading.Thread(target=ask, args=(one,)) for one in (given_up, kept)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if counts != [0]:  # it may have been whole by then
        assert isinstance(outcomes[given_up.uid], Aborted)
    assert [s.tokens.tolist() for s in outcomes[kept.uid]] == [s.tokens.tolist() for s in expected]


def test_a_closed_engine_refuses_and_whoever_waits_is_told() -> None:
    subject, asked = engine(), request(1, samples=3, max_tokens=40, min_tokens=40)
    _Steps(subject).before(4, subject.close)
    with pytest.raises(Aborted, match="closed"):
        subject.generate(asked)
    with pytest.raises(Aborted, match="closed"):
        subject.generate(asked)


def test_an_error_of_the_model_reaches_every_caller() -> None:
    subject = engine()

    def fail() -> None:
        raise RuntimeError("out of memory")

    _Steps(subject).before(2, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        subject.generate(request(1, min_tokens=10))
    assert subject.health().running == 0


def test_a_prompt_that_leaves_no_room_is_refused_in_one_line() -> None:
    with pytest.raises(EngineError, match="has 60 tokens and may get 12 more; the context is 64"):
        engine().generate(request(1, 60))
    with pytest.raises(EngineError, match="is empty"):
        engine().generate(Request("r", (), 1, 0))
    with pytest.raises(EngineError, match="do not fit the model's 128"):
        build_decoder(tiny_model(), rows=1, context=129)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"max_tokens": 0}, {"min_tokens": 300}, {"stop": ("",)}],
)
def test_sampling_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Sampling(**wrong)


def test_rows_are_never_more_than_there_are() -> None:
    subject = engine(rows=3)
    seen: list[int] = []
    steps = _Steps(subject)
    steps.every(lambda: seen.append(len(subject._rows)))
    subject.generate_all([request(n, samples=4) for n in range(3)])
    assert max(seen) == 3 and len(seen) > 12  # twelve samples of several tokens each in three rows


class _Steps:
    """Does something between two steps of an engine, as another thread would that got the lock there."""

    def __init__(self, subject: TransformersEngine) -> None:
        self._subject = subject
        self._original = subject._step
        self._count = 0
        self._at: dict[int, Any] = {}
        self._always: list[Any] = []
        subject._step = self._step  # type: ignore[method-assign]

    def before(self, step: int, action: Any) -> None:
        self._at[step] = action

    def every(self, action: Any) -> None:
        self._always.append(action)

    def _step(self) -> None:
        self._count += 1
        for action in self._always:
            action()
        if self._count in self._at:
            self._subject._lock.release()
            try:
                self._at.pop(self._count)()
            finally:
                self._subject._lock.acquire()
        self._original()
