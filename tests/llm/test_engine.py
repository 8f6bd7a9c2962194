"""The in-process engine, where it promises more than every engine does: bits, steps, decoders, deadlines."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from waiting import wait_until  # noqa: E402

from headway.llm.engine.decoder_sampling import draw, log_kept_mass, uniform  # noqa: E402
from headway.llm.engine.general_decoders_padded_decoder import PaddedDecoder  # noqa: E402
from headway.llm.engine.general_decoders_rereading_decoder import RereadingDecoder  # noqa: E402
from headway.llm.engine.gpu_share import is_generating  # noqa: E402
from headway.llm.engine.llama_decoder import LlamaDecoder  # noqa: E402
from headway.llm.engine.protocol_engine import EngineError, Overdue, Request, Sampling, ScoreRequest  # noqa: E402
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.testing.tiny_models import KINDS, PLAIN_KINDS, RECURRENT_KINDS, tiny_model, tiny_tokenizer  # noqa: E402

STOPS = (0, 7, 90, 91, 92)  # of some 260 tokens

pytestmark = pytest.mark.usefixtures("one_thread")


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


@pytest.mark.parametrize(
    ("kind", "decoder"), [*((kind, None) for kind in KINDS), *((kind, PaddedDecoder) for kind in PLAIN_KINDS)]
)
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
    for kind in KINDS:
        if kind not in PLAIN_KINDS or kind == "gpt2":
            general = RereadingDecoder if kind in RECURRENT_KINDS else PaddedDecoder
            assert isinstance(build_decoder(tiny_model(kind), rows=2, context=32), general)


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
def test_a_cut_tail_is_never_drawn_and_log_probabilities_are_those_of_what_is_left(
    cut: dict[str, Any], allowed: set[int]
) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]]).expand(3000, -1)
    tokens, log_probs = draw(logits, uniform(torch.arange(3000), torch.zeros(3000, dtype=torch.int64)), Sampling(**cut))
    assert set(tokens.tolist()) == allowed
    left = torch.full((5,), -torch.inf)
    left[list(allowed)] = logits[0, list(allowed)]
    np.testing.assert_allclose(log_probs.numpy(), torch.log_softmax(left, -1)[tokens].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 0.5, {2}),  # 1/2 alone has it
        (0, 0.75, {2, 0}),  # 1/2 + 1/4, and not an eighth more
        (0, 0.76, {2, 0, 1}),
        (0, 0.875, {2, 0, 1}),
        (0, 0.9, {2, 0, 1, 3}),
        (0, 1e-6, {2}),
        (2, 1.0, {2, 0}),
        (3, 0.5, {2}),  # of 7/8: 4/7 is enough
        (3, 0.6, {2, 0}),
    ],
)
def test_the_fewest_tokens_that_have_the_mass_asked_for_are_kept(top_k: int, top_p: float, kept: set[int]) -> None:
    """By hand, on probabilities that floats have exactly: 1/4, 1/8, 1/2, 1/16, 1/16."""
    probs = torch.tensor([[1 / 4, 1 / 8, 1 / 2, 1 / 16, 1 / 16]])
    numbers = (torch.arange(64) + 0.5) / 64
    tokens, log_probs = draw(probs.log().expand(64, -1), numbers, Sampling(top_k=top_k, top_p=top_p))
    if kept == {2, 0, 1, 3}:  # of two equals either may be the one
        assert len(set(tokens.tolist())) == 4 and {2, 0, 1} < set(tokens.tolist())
        kept = set(tokens.tolist())
    assert set(tokens.tolist()) == kept
    mass = sum(float(probs[0, token]) for token in kept)
    for token, said in zip(tokens.tolist(), log_probs.tolist(), strict=True):
        assert said == pytest.approx(np.log(float(probs[0, token]) / mass), abs=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(0.99, 3, 0.99), Sampling(0.5, top_k=2)])
def test_the_ratio_of_what_is_drawn_is_on_average_the_mass_that_a_cut_leaves(sampling: Sampling) -> None:
    """Every number in turn: E[pi / mu] = sum of pi over the kept, and E[pi / mu f] = sum of pi f over the kept."""
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5, -2.0]])
    count = 200_000
    tokens, log_probs = draw(logits.expand(count, -1), (torch.arange(count) + 0.5) / count, sampling)
    policy = torch.log_softmax(logits[0] / sampling.temperature, -1)
    kept = sorted(set(tokens.tolist()))
    assert len(kept) < 6
    ratios = (policy[tokens] - log_probs).exp().double()
    mass = float(policy[kept].exp().sum())
    assert float(ratios.mean()) == pytest.approx(mass, abs=1e-4)
    assert float(log_kept_mass(policy[None], sampling)) == pytest.approx(np.log(mass), abs=1e-6)
    worth = torch.tensor([3.0, -1.0, 2.0, 7.0, 0.0, 5.0]).double()
    expected = float((policy[kept].exp() * worth[kept]).sum())
    assert float((ratios * worth[tokens]).mean()) == pytest.approx(expected, abs=1e-3)


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


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_weights_that_do_not_fit_are_refused_by_every_decoder_before_anything_is_changed(kind: str) -> None:
    model = tiny_model(kind)
    subject, asked = engine(model), request(2)
    (before,) = subject.generate(asked)
    *given, last = [name for name, _ in model.named_parameters()]
    for wrong, message in (({last: torch.zeros(3, 3)}, "shape"), ({last + "s": torch.zeros(3)}, "did you mean")):
        with pytest.raises(ValueError, match=message):
            subject.apply(1, {**{name: torch.zeros_like(model.get_parameter(name)) for name in given}, **wrong})
    assert subject.version == 0
    (after,) = subject.generate(asked)
    assert before.log_probs.tobytes() == after.log_probs.tobytes()


# -- deadlines and errors -------------------------------------------------------------------------


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def timed(number: int, deadline_s: float, on_deadline: Any, **more: Any) -> Request:
    return replace(
        request(number, max_tokens=30, min_tokens=30, **more), deadline_s=deadline_s, on_deadline=on_deadline
    )


def ticking(rows: int) -> TransformersEngine:
    """An engine whose steps take a second each."""
    clock = Clock()
    subject = engine(rows=rows, clock=clock)
    _Steps(subject).every(lambda: setattr(clock, "now", clock.now + 1))
    return subject


def test_a_request_that_is_cut_at_its_deadline_is_the_beginning_of_the_whole_one() -> None:
    (whole,) = engine().generate(request(1, max_tokens=30, min_tokens=30))
    late, other = ticking(4).generate_all([timed(1, 10, "cut"), request(2, max_tokens=20, min_tokens=20)])
    assert late[0].finish == "deadline" and other[0].finish == "length"
    assert 5 < len(late[0].tokens) < 15 and len(other[0].tokens) == 20
    assert late[0].tokens.tolist() == whole.tokens.tolist()[: len(late[0].tokens)]


def test_a_request_that_fails_at_its_deadline_gives_its_rows_to_others() -> None:
    subject = ticking(2)
    with pytest.raises(Overdue, match=r"r1: not whole within 10 s$"):
        subject.generate_all([timed(1, 10, "fail", samples=2), request(2, max_tokens=20, min_tokens=20)])
    assert (subject.health().running, subject.health().waiting) == (0, 0)


def test_a_request_with_samples_that_have_not_begun_cannot_be_cut() -> None:
    with pytest.raises(Overdue, match="not whole within 5 s, and 2 of 4 samples had no token by then"):
        ticking(2).generate(timed(1, 5, "cut", samples=4))


@pytest.mark.parametrize("wrong", [0, -1.0])
def test_a_deadline_that_cannot_be_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="deadline_s must be positive"):
        Request("r", (1,), deadline_s=wrong)


def test_an_error_of_the_model_reaches_every_caller() -> None:
    subject = engine()

    def fail() -> None:
        raise RuntimeError("out of memory")

    _Steps(subject).before(2, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        subject.generate(request(1, min_tokens=10))
    assert subject.health().running == 0


def test_a_device_is_generating_from_the_first_step_to_the_last_and_not_after_a_failure() -> None:
    subject = engine()
    device, seen = torch.device("cpu"), []
    steps = _Steps(subject)
    steps.every(lambda: seen.append(is_generating(device)))
    subject.generate(request(0))
    subject.open("s", (5, 6))[0].reply(Sampling(max_tokens=2), seed=0)
    subject.score([ScoreRequest((5, 6), ((7,), (8, 9)))])
    assert seen and all(seen)
    assert not is_generating(device)

    def fail() -> None:
        raise ValueError("no more")

    steps.every(fail)
    with pytest.raises(ValueError, match="no more"):
        subject.generate(request(1))
    assert not is_generating(device)


def test_a_short_request_gets_in_beside_a_long_one_and_is_answered_before_it() -> None:
    """Whoever drives lets go between two steps and takes hold again at once: others must get in all the same."""
    subject = TransformersEngine(build_decoder(tiny_model(), rows=8, context=128), tiny_tokenizer(), ())
    over: list[str] = []

    def ask(asked: Request) -> None:
        subject.generate(asked)
        over.append(asked.uid)

    steps = _Steps(subject)
    steps.before(2, lambda: wait_until(lambda: len(subject._arrivals) == 7, what="seven more requests"))
    steps.before(100, lambda: wait_until(lambda: len(over) == 7, what="all but the long one"))
    threads = [threading.Thread(target=ask, args=[request(0, max_tokens=120)])]
    threads[0].start()
    while not subject.health().running:  # which needs to get in, too
        pass
    threads += [threading.Thread(target=ask, args=[request(number, max_tokens=3)]) for number in range(1, 8)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert over[-1] == "r0"
    assert subject.health().steps < 120 + 10, "they shared its steps"


def test_requests_that_wait_while_the_engine_is_paused_all_share_the_first_step() -> None:
    subject = TransformersEngine(build_decoder(tiny_model(), rows=8, context=64), tiny_tokenizer(), ())
    subject.pause()
    threads = [threading.Thread(target=subject.generate, args=[request(number)]) for number in range(8)]
    for thread in threads:
        thread.start()
    while subject.health().waiting < 8:
        pass
    subject.resume()
    for thread in threads:
        thread.join()
    assert subject.health().steps == 11, "one token from the prompt, eleven steps"


def test_a_prompt_that_leaves_no_room_is_refused_in_one_line() -> None:
    with pytest.raises(EngineError, match="has 60 tokens and may get 12 more; the context is 64"):
        engine().generate(request(1, 60))
    with pytest.raises(EngineError, match="is empty"):
        engine().generate(Request("r", (), 1, 0))
    with pytest.raises(EngineError, match="do not fit the model's 128"):
        build_decoder(tiny_model(), rows=1, context=129)
    with pytest.raises(EngineError, match="do not fit the model's 128"):
        build_decoder(tiny_model("mpt"), rows=1, context=129)


def test_a_model_without_a_table_of_positions_has_no_limit() -> None:
    assert build_decoder(tiny_model("mamba"), rows=1, context=4096).context == 4096


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
    steps.every(lambda: seen.append(len(subject._batch.rows)))
    subject.generate_all([request(n, samples=4) for n in range(3)])
    assert max(seen) == 3 and len(seen) > 12  # twelve samples of several tokens each in three rows


class _Steps:
    """Does something between two steps of an engine, as another thread would that was let in there."""

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
            self._subject._state_lock.release()
            try:
                self._at.pop(self._count)()
            finally:
                self._subject._state_lock.acquire()
        self._original()


def test_rows_of_long_replies_that_no_memory_has_are_one_line_that_names_vllm() -> None:
    line = r"^there is no memory for the cache of 50,000,000 rows of 8,192 tokens \(\d+\.\d GB on cpu\): "
    with pytest.raises(EngineError, match=line + "set fewer .*--engine vllm, which has pages for the tokens in use$"):
        LlamaDecoder(tiny_model("llama"), 50_000_000, 8192)
