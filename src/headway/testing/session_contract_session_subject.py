"""Conversations as the contract suite of sessions holds them: beside each session stands all that was said so far."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.llm.engine.protocol_engine import Engine, Reply, Request, Sample, Sampling, Session
from headway.testing.engine_contract_engine_subject import EngineSubject


@dataclass
class Talk:
    """Holds one conversation beside its session: what was said and replied, and a script that goes on with it."""

    number: int
    session: Session
    everything: list[int]
    vocabulary: int
    replies: list[Reply] = field(default_factory=list)
    last_said: int = 0
    """How many tokens were said last."""

    @property
    def next_request(self) -> Request:
        """Asks `generate` for the reply that comes next."""
        sampling = Sampling(max_tokens=4 + (self.number + len(self.replies)) % 5, temperature=0.9)
        seed = 1000 * self.number + len(self.replies)
        return Request(f"t{self.number}", tuple(self.everything), 1, seed, sampling)

    def say(self) -> None:
        rng = np.random.default_rng([self.number, len(self.replies)])
        said = rng.integers(3, self.vocabulary, 1 + len(self.replies) % 4).tolist()
        self.session.say(said)
        self.last_said = len(said)
        self.everything += said

    def reply(self) -> Reply:
        asked = self.next_request
        reply = self.session.reply(asked.sampling, seed=asked.seed)
        self.replies.append(reply)
        self.everything += reply.tokens.tolist()
        return reply

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.reply()
            self.say()


class SessionSubject(EngineSubject):
    """Says what the suite must know about an engine's sessions, and opens them."""

    exact = False
    """Are the bits of a reply the same whether a session was kept, evicted or read again?"""
    keeps_rows = True
    """Does the engine keep what was read between turns, and count it in `health().details`?"""

    # -- what the tests use -------------------------------------------------------------------------

    @contextlib.contextmanager
    def talks(self, subject: Engine, count: int, length: int = 6, first: int = 0) -> Iterator[list[Talk]]:
        """Conversations of their own, each with another prompt."""
        talks: list[Talk] = []
        for number in range(first, first + count):
            prompt = self.request(number, length + number % 3).prompt
            (session,) = subject.open(f"t{number}", prompt)
            talks.append(Talk(number, session, list(prompt), self.vocabulary))
        try:
            yield talks
        finally:
            for talk in talks:
                talk.session.close()

    @contextlib.contextmanager
    def session(self, subject: Engine, asked: Request) -> Iterator[Session]:
        (session,) = subject.open(asked.uid, asked.prompt)
        try:
            yield session
        finally:
            session.close()

    def assert_same(self, reply: Reply, sample: Sample) -> None:
        assert reply.tokens.tolist() == sample.tokens.tolist()
        np.testing.assert_allclose(reply.log_probs, sample.log_probs, atol=self.tolerance)
        assert (reply.finish, reply.text) == (sample.finish, sample.text)

    def assert_equal_talks(self, some: Sequence[Talk], others: Sequence[Talk]) -> None:
        for one, other in zip(some, others, strict=True):
            assert one.everything == other.everything
            for a, b in zip(one.replies, other.replies, strict=True):
                np.testing.assert_allclose(a.log_probs, b.log_probs, atol=self.tolerance)
                if self.exact:
                    assert a.log_probs.tobytes() == b.log_probs.tobytes()

    def counts(self, subject: Engine) -> dict[str, float]:
        return dict(subject.health().details)
