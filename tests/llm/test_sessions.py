"""Sessions of the in-process engine, where it promises more than every engine does: rows, bits, and what is counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from waiting import wait_until  # noqa: E402

from headway.llm.engine import llama_decoder  # noqa: E402
from headway.llm.engine.continuous_batch import ContinuousBatch  # noqa: E402
from headway.llm.engine.continuous_batch_sample_rows import GenerationJob  # noqa: E402
from headway.llm.engine.continuous_batch_session_rows import CachedSession, SharedPrompt  # noqa: E402
from headway.llm.engine.engine_host import EngineHost  # noqa: E402
from headway.llm.engine.llama_decoder import LlamaDecoder  # noqa: E402
from headway.llm.engine.protocol_engine import Aborted, Request, Sample, Sampling  # noqa: E402
from headway.llm.engine.protocol_sessions import RereadSession  # noqa: E402
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.testing.tiny_models import KINDS, tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

Place = tuple[int, int]


def tokens_of(number: int, length: int) -> Any:
    return torch.from_numpy(np.random.default_rng(number).integers(3, 200, length))


# -- decoders -------------------------------------------------------------------------------------


def read_in_pieces(decoder: Any, texts: list[Any], piece: int) -> Any:
    """Logits behind each text, read side by side and piece by piece, [texts, V]."""
    last: dict[int, Any] = {}
    for start in range(0, max(map(len, texts)), piece):
        reads = [(text[start : start + piece], row, start) for row, text in enumerate(texts) if len(text) > start]
        for (_, row, _), line in zip(reads, decoder.extend(reads), strict=True):
            last[row] = line
    return torch.stack([last[row] for row in range(len(texts))])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_text_has_the_same_bits_however_it_is_cut(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = tiny_model(kind), [tokens_of(n, length) for n, length in enumerate((5, 17, 60, 33, 1, 40))]
    whole = LlamaDecoder(model, 8, 64)
    expected = read_in_pieces(whole, texts, 64)
    for piece, at_once in ((1, 512), (7, 512), (64, 13), (10, 5)):
        monkeypatch.setattr(llama_decoder, "EXTEND_TOKENS", at_once)
        cut = LlamaDecoder(model, 8, 64)
        assert torch.equal(read_in_pieces(cut, texts, piece), expected)
        assert torch.equal(cut.keys, whole.keys) and torch.equal(cut.values, whole.values)
    for row, text in enumerate(texts[:2]):  # and the bits of the steps that samples take
        alone = LlamaDecoder(model, 1, 64)
        for place, token in enumerate(text):
            logits = alone.decode(token[None], torch.tensor([place]))
        assert torch.equal(logits[0], expected[row])


def test_rows_that_step_beside_others_that_read_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = tiny_model("llama"), [tokens_of(n, length) for n, length in enumerate((5, 17, 30, 9))]
    reads = [(texts[2], 2, 0), (texts[3], 3, 0)]
    steps = torch.tensor([7, 9]), torch.tensor([5, 17])
    for at_once in (512, 11):
        monkeypatch.setattr(llama_decoder, "EXTEND_TOKENS", at_once)
        apart, beside = LlamaDecoder(model, 4, 64), LlamaDecoder(model, 4, 64)
        for decoder in (apart, beside):
            decoder.extend([(texts[row], row, 0) for row in (0, 1)])
        expected = torch.cat([apart.extend(reads), apart.decode(*steps)])
        assert torch.equal(beside.extend(reads, steps), expected)
        assert torch.equal(beside.keys, apart.keys) and torch.equal(beside.values, apart.values)


def test_sessions_that_read_beside_steps_draw_the_same_tokens_in_fewer_passes() -> None:
    def play(is_beside: bool) -> tuple[list[list[int]], int]:
        decoder, passes = LlamaDecoder(tiny_model("llama"), 4, 128), 0
        batch = ContinuousBatch(decoder, Words(), [], 0, lambda: 0.0)
        batch._steps_beside_reading = is_beside
        hidden = decoder._hidden

        def counted(*given: Any) -> Any:
            nonlocal passes
            passes += 1
            return hidden(*given)

        decoder._hidden = counted  # type: ignore[method-assign]
        shared = SharedPrompt(4)
        sessions = [CachedSession(shared) for _ in range(4)]
        texts = [[5, 6, 7, 8] for _ in sessions]
        turns, jobs = [0] * 4, dict[int, GenerationJob]()
        while min(turns) < 3 or jobs:
            for number, session in enumerate(sessions):
                if number not in jobs and turns[number] < 3:
                    sampling = Sampling(max_tokens=3 + number)  # so that turns end at different steps
                    request = Request(f"s{number}", tuple(texts[number]), 1, 10 * number + turns[number], sampling)
                    jobs[number] = GenerationJob(request, 0.0, threading.Event(), session)
                    batch.add(jobs[number])
            batch.step()
            for number, job in list(jobs.items()):
                if job.is_over:
                    (sample,) = job.samples
                    assert sample is not None
                    texts[number] += [*sample.tokens.tolist(), 3, 4, 5]
                    turns[number] += 1
                    del jobs[number]
        return texts, passes

    (apart, many), (beside, fewer) = play(False), play(True)
    assert beside == apart
    assert fewer < many


class Words:
    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_every_decoder_reads_on_behind_what_it_has_cached(kind: str) -> None:
    model, texts = tiny_model(kind), [tokens_of(n, length) for n, length in enumerate((5, 33, 1, 20))]
    decoder = build_decoder(model, rows=5, context=64)
    with torch.no_grad():
        expected = torch.stack([model(text[None]).logits[0, -1] for text in texts])
    for piece in (64, 9):
        torch.testing.assert_close(read_in_pieces(decoder, texts, piece), expected, atol=1e-5, rtol=0)
    decoder.move(1, 4, 30)  # rows that are copied and that change places take their caches along
    decoder.swap(1, 3, 33)
    reads = [(texts[1][30:], 4, 30), (texts[1][31:], 3, 31), (texts[3][19:], 1, 19)]
    torch.testing.assert_close(decoder.extend(reads), expected[[1, 1, 3]], atol=1e-5, rtol=0)


# -- rows -----------------------------------------------------------------------------------------


class PlacesDecoder:
    """A decoder whose cache can be looked into: each place holds the token, and which weights have read it.

    What comes next is a hash of the row's tokens, so a wrong cache is a wrong reply.
    """

    burst = 1
    device = torch.device("cpu")

    def __init__(self, rows: int, context: int, *, is_read_by_one: bool = False) -> None:
        self.rows, self.context = rows, context
        self.weights, self.is_read_by_one = 0, is_read_by_one
        self.cache: list[list[Place]] = [[] for _ in range(rows)]

    def load(self, weights: Any) -> None:
        self.weights += 1

    def prefill(self, prompts: Any) -> Any:
        for tokens, rows in prompts:
            for row in rows:
                self.cache[row] = [(token, self.weights) for token in tokens.tolist()]
        return torch.stack([self._logits(rows[0]) for _, rows in prompts])

    def extend(self, reads: Any) -> Any:
        for tokens, row, start in reads:
            assert len(tokens) and len(self.cache[row]) >= start
            self.cache[row][start:] = [(token, self.weights) for token in tokens.tolist()]
        return torch.stack([self._logits(row) for _, row, _ in reads])

    def advance(self, tokens: Any, places: Any, seeds: Any, counts: Any, sampling: Any) -> Any:
        for row, (token, place) in enumerate(zip(tokens.tolist(), places.tolist(), strict=True)):
            assert len(self.cache[row]) >= place
            self.cache[row][place:] = [(token, self.weights)]
        drawn = torch.stack([self._logits(row) for row in range(len(tokens))]).argmax(-1)
        return drawn[None], torch.zeros(1, len(tokens))

    def move(self, source: int, target: int, length: int) -> None:
        self.cache[target] = self.cache[source][:length]

    def swap(self, one: int, other: int, length: int) -> None:
        self.cache[one], self.cache[other] = self.cache[other][:length], self.cache[one][:length]

    def _logits(self, row: int) -> Any:
        if self.is_read_by_one:
            assert {weights for _, weights in self.cache[row]} == {self.weights}
        logits = torch.zeros(50)
        logits[next_token([token for token, _ in self.cache[row]])] = 9.0
        return logits


def next_token(tokens: Sequence[int]) -> int:
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % 50


def expected_reply(tokens: list[int], count: int) -> list[int]:
    whole = list(tokens)
    for _ in range(count):
        whole.append(next_token(whole))
        if whole[-1] == 0:
            break
    return whole[len(tokens) :]


class Numbers:
    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"{token} " for token in tokens)


ACTIONS = st.tuples(
    st.sampled_from(("reply", "reply", "reply", "say", "close", "apply", "generate", "together", "abort")),
    st.integers(0, 7),
    st.integers(1, 6),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, min_size=5, max_size=40), st.integers(1, 5), st.booleans())
def test_whatever_happens_to_rows_a_session_finds_its_own_tokens(
    actions: list[tuple[str, int, int]], rows: int, recompute: bool
) -> None:
    decoder = PlacesDecoder(rows, 400, is_read_by_one=recompute)
    subject = TransformersEngine(decoder, Numbers(), (0,), recompute=recompute)
    prompts = [[5, 6, 7 + group] for group in range(2)]
    sessions = [session for group in range(2) for session in subject.open(f"g{group}", prompts[group], 4)]
    said = [list(prompts[number // 4]) for number in range(8)]

    def reply(number: int, count: int) -> None:
        made = sessions[number].reply(Sampling(max_tokens=count, temperature=0), seed=1)
        assert made.tokens.tolist() == expected_reply(said[number], count)
        assert made.read_by == subject.version == set(made.versions.tolist()).pop()
        said[number] += made.tokens.tolist()

    for what, number, count in actions:
        if what == "reply":
            reply(number, count)
        elif what == "say":
            sessions[number].say(range(10, 10 + count))
            said[number] += range(10, 10 + count)
        elif what == "close":
            sessions[number].close()
            (sessions[number],), said[number] = subject.open("new", prompts[0]), list(prompts[0])
        elif what == "apply":
            subject.apply(subject.version + 1, None)
        elif what == "generate":
            sampling = Sampling(max_tokens=4, temperature=0)
            for sample in subject.generate(Request("r", (1, 2, count), number + 1, 0, sampling)):
                assert sample.tokens.tolist() == expected_reply([1, 2, count], 4)
        elif what == "abort":
            subject.abort()
        else:  # several at once, of different lengths
            threads = [
                threading.Thread(target=reply, args=(n % 8, 1 + (count + n) % 5)) for n in range(number, number + count)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        details = subject.health().details
        assert details["parked"] <= rows and details["tokens_reread"] <= details["tokens_read"]
    for number in range(8):
        assert sessions[number].reply(Sampling(max_tokens=3, temperature=0), seed=0).tokens.tolist() == (
            expected_reply(said[number], 3)
        )


def test_the_least_recently_used_session_is_evicted_and_others_keep_their_rows() -> None:
    subject = TransformersEngine(PlacesDecoder(3, 100), Numbers(), (0,))
    sampling = Sampling(max_tokens=2, temperature=0)
    first, second, third, fourth = (subject.open(f"s{n}", [5, n])[0] for n in range(4))
    for session in (first, second, third, second, first, fourth):  # the fourth takes the place of the third
        session.reply(sampling, seed=0)
    assert subject.health().details["evictions"] == 1
    before = subject.health().details["tokens_reread"]
    second.reply(sampling, seed=0)
    first.reply(sampling, seed=0)
    assert subject.health().details["tokens_reread"] == before
    third.reply(sampling, seed=0)
    assert subject.health().details["tokens_reread"] > before


def test_a_sibling_never_copies_what_older_weights_have_read() -> None:
    decoder = PlacesDecoder(4, 100)
    subject = TransformersEngine(decoder, Numbers(), (0,))
    first, second, third = subject.open("s", range(10, 30), 3)
    sampling = Sampling(max_tokens=1, temperature=0)
    first.reply(sampling, seed=0)
    subject.apply(1, None)
    first.reply(sampling, seed=0)  # goes on with what it has
    before = subject.health().details["tokens_read"]
    second.reply(sampling, seed=0)
    assert subject.health().details["tokens_read"] - before == 20
    third.reply(sampling, seed=0)
    assert subject.health().details["tokens_read"] - before == 21
    rows = sorted((row for row in decoder.cache if row), key=len, reverse=True)
    assert [{weights for _, weights in row} for row in rows] == [{0, 1}, {1}, {1}]


def test_an_engine_that_fails_while_it_reads_claims_nothing_as_read() -> None:
    decoder = PlacesDecoder(2, 100)
    subject = TransformersEngine(decoder, Numbers(), (0,))
    (session,) = subject.open("s", [5, 6, 7])
    extend = decoder.extend

    def break_down(reads: Any) -> Any:
        raise RuntimeError("out of memory")

    decoder.extend = break_down  # type: ignore[method-assign]
    sampling = Sampling(max_tokens=2, temperature=0)
    with pytest.raises((RuntimeError, Aborted), match="out of memory"):
        session.reply(sampling, seed=0)
    decoder.extend = extend  # type: ignore[method-assign]
    assert session.reply(sampling, seed=0).tokens.tolist() == expected_reply([5, 6, 7], 2)
    assert subject.health().details["tokens_read"] == 3


def test_hundreds_of_callers_are_served_together() -> None:
    subject = TransformersEngine(PlacesDecoder(16, 100), Numbers(), (0,))
    sessions = subject.open("s", range(5, 15), 200)
    wrong: list[int] = []

    def play(number: int) -> None:
        whole = list(range(5, 15))
        for turn in range(3):
            reply = sessions[number].reply(Sampling(max_tokens=1 + number % 4, temperature=0), seed=0).tokens.tolist()
            if reply != expected_reply(whole, 1 + number % 4):
                wrong.append(number)
            sessions[number].say([number % 50, turn])
            whole += [*reply, number % 50, turn]
        sessions[number].close()

    threads = [threading.Thread(target=play, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    health = subject.health()
    assert (health.running, health.waiting, health.details["parked"]) == (0, 0, 0)


def test_sessions_that_are_closed_while_they_reply_leave_nobody_waiting() -> None:
    subject = TransformersEngine(PlacesDecoder(4, 400), Numbers(), ())
    for attempt in range(10):
        sessions = subject.open("s", [5, attempt], 24)
        ended: list[int] = []

        def play(number: int, sessions: Any = sessions, ended: list[int] = ended) -> None:
            try:
                for seed in range(6):
                    sessions[number].reply(Sampling(max_tokens=1 + number % 7, temperature=0), seed=seed)
            except Aborted:
                pass
            ended.append(number)

        threads = [threading.Thread(target=play, args=(number,), daemon=True) for number in range(24)]
        for thread in threads:
            thread.start()
        for number in range(0, 24, 2):
            sessions[number].close()
        wait_until(lambda: len(ended) == 24, what="every session is replied to or told")  # noqa: B023
        for session in sessions:
            session.close()
    assert subject.health().details["parked"] == 0


# -- an engine that is asked with everything so far -------------------------------------------------


class Recorder:
    """An engine of which only the requests matter; `generate` may wait to be given up."""

    def __init__(self, waits: bool = False) -> None:
        self.requests: list[Request] = []
        self.given_up = threading.Event()
        self._waits = waits

    def generate(self, request: Request) -> list[Sample]:
        self.requests.append(request)
        if self._waits and not self.given_up.wait(60):
            raise AssertionError("nobody gave it up")
        if self._waits:
            raise Aborted(f"{request.uid}: given up")
        one = np.ones(1, np.int32)
        return [Sample(9 * one, -one.astype(np.float32), 4 * one, "length", "x")]

    def give_up(self, request: Request, why: str) -> None:
        assert request is self.requests[-1]
        self.given_up.set()


def test_a_session_that_is_read_again_sends_everything_under_the_salt_of_its_first_reply() -> None:
    engine, salts = Recorder(), iter(("first", "second"))
    session = RereadSession(engine, "s", [1, 2], 64, lambda: next(salts))
    session.say([3])
    reply = session.reply(Sampling(max_tokens=1), seed=7)
    session.say([4, 5])
    session.reply(Sampling(max_tokens=1), seed=8)
    assert [(asked.prompt, asked.seed, asked.salt) for asked in engine.requests] == [
        ((1, 2, 3), 7, "first"),
        ((1, 2, 3, 9, 4, 5), 8, "first"),
    ]
    assert reply.read_by == 4


def test_closing_gives_up_a_request_that_the_engine_hears_of_later() -> None:
    engine = Recorder(waits=True)
    session = RereadSession(engine, "s", [1, 2], 64)
    told: list[str] = []

    def ask() -> None:
        try:
            session.reply(Sampling(max_tokens=1), seed=7)
        except Aborted as error:
            told.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: engine.requests)
    session.close()
    thread.join(60)
    assert told == ["s: given up"]


class RecordingStepper:
    """Notes what the host asks of a model."""

    def __init__(self) -> None:
        self.salts: list[str] = []
        self.forgotten = 0

    def add(self, key: str, prompt: Any, seed: int, sampling: Any, salt: str) -> None:
        self.salts.append(salt)

    def drop(self, keys: list[str]) -> None: ...

    def check(self, layout: Any) -> None: ...

    def load(self, path: str, layout: Any) -> None: ...

    def forget(self, running_too: bool) -> None:
        self.forgotten += 1


class Silent:
    def send(self, body: bytes, fds: Any = ()) -> None: ...


@pytest.mark.parametrize("recompute", [False, True])
def test_the_prefix_of_a_session_stays_cached_over_new_weights_unless_it_is_to_be_read_anew(recompute: bool) -> None:
    stepper = RecordingStepper()
    spec = {"stop_tokens": (), "recompute": recompute, "beat_s": 1.0, "version": 3}
    host = EngineHost(Silent(), stepper, spec)  # type: ignore[arg-type]
    salt = "" if recompute else "session 3/0"  # as the engine's face says it
    for key in ("a", "b"):
        host.handle(("ask", key, (1, 2), 0, {}, salt), [])
        host.handle(("drop", [key]), [])
        host.handle(("apply", 0, 4, []), [open_nothing()])
    assert stepper.salts == (["3/0", "4/1"] if recompute else ["session 3/0", "session 3/0"])
    assert stepper.forgotten == (2 if recompute else 0)


def open_nothing() -> int:
    return os.open(os.devnull, os.O_RDONLY)
