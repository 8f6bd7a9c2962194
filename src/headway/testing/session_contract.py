"""What the sessions of every engine must do: a suite that an engine joins beside EngineContract.

class TestMine(EngineContract, SessionContract):
    def make(self, folder, **options): return Mine(folder, **options)

Whatever happens between two turns, a session replies what `generate` replies to everything so far. That is the
reference of most tests here; engines that say `exact` are held to the bits of a session that is opened anew.
"""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from headway.llm.engine.protocol_engine import Aborted, EngineError, Overdue, Reply, Sampling, Session
from headway.testing.engine_contract_engine_subject import SOON_S, MakeEngine, started, wait_until
from headway.testing.session_contract_session_subject import SessionSubject, Talk

LONG = Sampling(max_tokens=100, min_tokens=100)


class SessionContract(SessionSubject):
    """Tests of `Engine.open` and of what it returns."""

    # -- what is replied ----------------------------------------------------------------------------

    def test_a_session_replies_what_generate_replies_to_everything_so_far(self, engine: MakeEngine) -> None:
        subject = engine()
        with self.talks(subject, 3) as talks:
            for turn in range(4):
                for talk in talks:
                    (expected,) = subject.generate(talk.next_request)
                    reply = talk.reply()
                    self.assert_same(reply, expected)
                    assert reply.read_by == subject.version == set(reply.versions.tolist()).pop()
                    if turn != 1:  # one reply may follow another
                        talk.say()

    def test_log_probabilities_of_every_turn_are_those_of_a_forward_pass(self, engine: MakeEngine) -> None:
        with self.talks(engine(), 2) as talks:
            for talk in talks:
                for _ in range(3):
                    asked = talk.next_request
                    self.assert_made_by(self.weights(0), asked, talk.reply(), slice(None))
                    talk.say()

    def test_what_is_said_is_read_and_not_drawn(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1, max_tokens=6)
        before = subject.health().tokens
        replies: list[Reply] = []
        observations: list[tuple[int, ...]] = [(5,), (6, 9, 11), ()]
        for said in observations:
            with self.session(subject, asked) as session:
                replies.append(session.reply(asked.sampling, seed=1))
                session.say(said)
                replies.append(session.reply(asked.sampling, seed=2))
        drawn = sum(len(reply.tokens) for reply in replies)
        assert subject.health().tokens - before == drawn
        first = replies[0].tokens.tolist()
        assert all(reply.tokens.tolist() == first for reply in replies[::2])
        for said, reply in zip(observations, replies[1::2], strict=True):
            whole = replace(asked, prompt=(*asked.prompt, *first, *said), seed=2)
            self.assert_same(reply, subject.generate(whole)[0])

    def test_a_reply_ends_as_a_sample_does(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(3)
        free = subject.generate(replace(asked, sampling=Sampling(max_tokens=40, min_tokens=40)))[0]
        stop = free.text[2:4]
        for sampling in (
            Sampling(max_tokens=40, min_tokens=40),
            Sampling(max_tokens=40, stop=(stop,)),
            Sampling(max_tokens=30, min_tokens=5, temperature=0.0),
            Sampling(max_tokens=40, top_k=5, top_p=0.9),
        ):
            with self.session(subject, asked) as session:
                reply = session.reply(sampling, seed=asked.seed)
                self.assert_same(reply, subject.generate(replace(asked, sampling=sampling))[0])

    # -- kept, evicted, read again ------------------------------------------------------------------

    def test_sessions_that_were_evicted_and_read_again_reply_the_same(self, engine: MakeEngine) -> None:
        said: list[list[Talk]] = []
        for rows in (8, 2):
            subject = engine(rows=rows)
            before = self.counts(subject)
            with self.talks(subject, 5) as talks:
                for _ in range(3):
                    for talk in talks:
                        talk.turns(1)
            said.append(talks)
            if self.keeps_rows:
                after = self.counts(subject)
                assert (after["evictions"] > before["evictions"]) is (rows == 2)
                assert (after["tokens_reread"] > before["tokens_reread"]) is (rows == 2)
        self.assert_equal_talks(*said)

    def test_a_kept_session_reads_every_token_once(self, engine: MakeEngine) -> None:
        """And one that is not kept is asked with everything so far, at every turn."""
        subject = engine()
        with self.talks(subject, 4) as talks:
            before = self.counts(subject)
            for _ in range(3):
                for talk in talks:
                    talk.reply()
                    talk.say()
            after = self.counts(subject)
            drawn = sum(len(reply.tokens) for talk in talks for reply in talk.replies)
            stepped = drawn - 3 * len(talks)  # a token that another one follows in its reply is read by the step itself
            unread = sum(1 + talk.last_said for talk in talks)  # the last token drawn, and what was said after it
            whole = sum(len(talk.everything) for talk in talks)
            read, once = after["tokens_read"] - before["tokens_read"], whole - stepped - unread
            if not self.keeps_rows:
                assert read > once
                return
            assert read == once
            assert after["tokens_reread"] == before["tokens_reread"]
            assert after["parked"] == before["parked"] + 4

    def test_sessions_opened_together_read_their_prompt_once(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(7, 40, max_tokens=6)
        expected = [subject.generate(replace(asked, seed=seed))[0] for seed in range(4)]
        for together in (False, True):
            sessions = subject.open(asked.uid, asked.prompt, 4)
            before = self.counts(subject)
            replies: list[Any] = [None] * 4

            def ask(number: int, sessions: list[Session] = sessions, replies: list[Any] = replies) -> None:
                replies[number] = sessions[number].reply(asked.sampling, seed=number)

            if together:
                for thread in [started(partial(ask, number)) for number in range(4)]:
                    thread.join(SOON_S)
            else:
                for number in range(4):
                    ask(number)
            after = self.counts(subject)
            for session in sessions:
                session.close()
            for reply, sample in zip(replies, expected, strict=True):
                self.assert_same(reply, sample)
            if self.keeps_rows:  # and its last token by each, because of what comes after it
                assert after["tokens_read"] - before["tokens_read"] == 40 + 3

    def test_any_interleaving_of_sessions_and_requests_gives_what_each_would_get_alone(
        self, engine: MakeEngine
    ) -> None:
        for seed, rows in enumerate((2, 3, 8)):
            subject, rng = engine(rows=rows), random.Random(seed)
            with self.talks(subject, 6, first=10 * seed) as talks:
                for _ in range(25):
                    talk = rng.choice(talks)
                    what = rng.random()
                    if what < 0.5 and len(talk.everything) < 100:
                        asked = talk.next_request
                        (expected,) = subject.generate(asked) if rng.random() < 0.5 else (None,)
                        if self.exact:
                            with self.session(subject, asked) as anew:
                                fresh = anew.reply(asked.sampling, seed=asked.seed)
                        reply = talk.reply()
                        if expected is not None:
                            self.assert_same(reply, expected)
                        if self.exact:
                            assert reply.log_probs.tobytes() == fresh.log_probs.tobytes()
                    elif what < 0.8 and len(talk.everything) < 100:
                        talk.say()
                    elif what < 0.9:
                        subject.generate(self.request(rng.randrange(100), samples=rng.randint(1, 4), max_tokens=4))
                    else:  # it ends, and another one begins
                        talk.session.close()
                        prompt = self.request(talk.number).prompt
                        (session,) = subject.open(f"t{talk.number}", prompt)
                        talks[talks.index(talk)] = Talk(talk.number, session, list(prompt), self.vocabulary)

    # -- many callers -------------------------------------------------------------------------------

    def test_sessions_in_many_threads_reply_what_each_would_reply_alone(self, engine: MakeEngine) -> None:
        subject = engine(rows=2)
        with self.talks(subject, 10) as alone:
            for talk in alone:
                talk.turns(2)
        with self.talks(subject, 10) as talks:
            for thread in [started(partial(talk.turns, 2)) for talk in talks]:
                thread.join(SOON_S)
            self.assert_equal_talks(alone, talks)
        assert (subject.health().running, subject.health().waiting) == (0, 0)

    def test_no_session_is_starved_by_others_that_never_rest(self, engine: MakeEngine) -> None:
        subject, is_over = engine(rows=2), threading.Event()
        asked = self.request(3, max_tokens=4)

        def insist() -> None:
            while not is_over.is_set():
                with self.session(subject, asked) as session:
                    for seed in range(8):
                        session.reply(asked.sampling, seed=seed)

        threads = [started(insist) for _ in range(4)]
        try:
            with self.talks(subject, 2) as talks:
                for talk in talks:
                    talk.turns(3)
                    assert len(talk.replies) == 3
        finally:
            is_over.set()
            for thread in threads:
                thread.join(SOON_S)

    # -- weights ------------------------------------------------------------------------------------

    def test_weights_that_change_between_turns_make_the_next_reply(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1, 60, max_tokens=16, min_tokens=16)
        with self.session(subject, asked) as session:
            old = subject.version
            first = session.reply(asked.sampling, seed=1)
            subject.apply(old + 3, self.weights(1))
            session.say((5, 6))
            second = session.reply(asked.sampling, seed=2)
        assert (set(first.versions.tolist()), first.read_by) == ({old}, old)
        assert (set(second.versions.tolist()), second.read_by) == ({old + 3}, old + 3)
        whole = replace(asked, prompt=(*asked.prompt, *first.tokens.tolist(), 5, 6), seed=2)
        new = self.log_probs(self.weights(1), whole, second.tokens)
        if self.has_cache:  # kept from the old weights, so this is neither policy's: hence corrections
            assert not np.allclose(second.log_probs, new, atol=1e-3)
            assert not np.allclose(second.log_probs, self.log_probs(self.weights(0), whole, second.tokens), atol=1e-3)

    def test_with_recompute_the_next_reply_is_exactly_the_new_policys(self, engine: MakeEngine) -> None:
        subject, asked = engine(recompute=True), self.request(1, 60, max_tokens=16, min_tokens=16)
        before = self.counts(subject)
        sessions = subject.open(asked.uid, asked.prompt, 3)
        firsts = [session.reply(asked.sampling, seed=n) for n, session in enumerate(sessions)]
        subject.apply(subject.version + 3, self.weights(1))
        for n, session in enumerate(sessions):
            session.say((5, 6))
            second = session.reply(asked.sampling, seed=10 + n)
            whole = replace(asked, prompt=(*asked.prompt, *firsts[n].tokens.tolist(), 5, 6))
            self.assert_made_by(self.weights(1), whole, second, slice(None))
            assert second.read_by == subject.version == set(second.versions.tolist()).pop()
        for session in sessions:
            session.close()
        if self.keeps_rows:
            after = self.counts(subject)
            assert after["tokens_reread"] - before["tokens_reread"] == 60 + 3 * 15  # what was drawn, but its last token
            assert after["evictions"] == before["evictions"]

    def test_weights_that_change_within_a_reply_are_stamped_token_by_token(self, engine: MakeEngine) -> None:
        subject, asked = engine(recompute=True), self.request(1, 8)
        for attempt in range(60):
            subject.apply(subject.version + 1, self.weights(0))
            old, new = subject.version, subject.version + 2
            (session,) = subject.open(asked.uid, asked.prompt)
            replies: list[Reply] = []
            thread = started(lambda: replies.append(session.reply(LONG, seed=1)))  # noqa: B023
            threading.Event().wait(0.002 * attempt)
            subject.apply(new, self.weights(1))
            thread.join(SOON_S)
            session.close()
            (reply,) = replies
            changed = int((reply.versions == old).sum())
            assert reply.versions.tolist() == [old] * changed + [new] * (100 - changed)
            assert reply.read_by == reply.versions[0]
            self.assert_made_by(self.weights(0), asked, reply, slice(changed))
            self.assert_made_by(self.weights(1), asked, reply, slice(changed, None))
            if 0 < changed < 100:
                return
        raise AssertionError("no weights could be applied in the middle of a reply")

    # -- close, abort, deadlines, pause -------------------------------------------------------------

    def test_a_closed_session_frees_its_row_and_refuses(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1)
        parked = self.counts(subject)["parked"]
        (session,) = subject.open("r1", asked.prompt)
        session.reply(asked.sampling, seed=1)
        if self.keeps_rows:
            assert self.counts(subject)["parked"] == parked + 1
        session.close()
        session.close()
        assert self.counts(subject)["parked"] == parked
        for call in (lambda: session.reply(asked.sampling, seed=1), lambda: session.say((5,))):
            with pytest.raises(Aborted, match="r1: the session was closed"):
                call()

    @pytest.mark.parametrize("is_paused", [False, True])
    def test_closing_a_session_gives_up_its_reply_and_no_other(self, engine: MakeEngine, is_paused: bool) -> None:
        subject, asked = engine(), self.request(1)
        sessions = subject.open(asked.uid, asked.prompt, 2)
        (expected,) = subject.generate(replace(asked, sampling=LONG, seed=1))
        if is_paused:
            subject.pause()
        outcomes: dict[int, Any] = {}

        def ask(number: int) -> None:
            try:
                outcomes[number] = sessions[number].reply(LONG, seed=number)
            except Aborted as error:
                outcomes[number] = error

        threads = [started(partial(ask, number)) for number in range(2)]
        if is_paused:
            wait_until(lambda: subject.health().waiting + subject.health().running == 2)
        sessions[0].close()
        threads[0].join(SOON_S)
        if is_paused:
            assert isinstance(outcomes[0], Aborted)
            subject.resume()
        else:  # unless it was whole by then
            assert isinstance(outcomes[0], Aborted) or len(outcomes[0].tokens) == 100
        threads[1].join(SOON_S)
        self.assert_same(outcomes[1], expected)
        sessions[1].close()
        assert (subject.health().running, subject.health().waiting) == (0, 0)

    def test_an_aborted_reply_raises_and_the_session_goes_on_as_if_it_had_not_been(self, engine: MakeEngine) -> None:
        subject = engine()
        with self.talks(subject, 2) as talks:
            for talk in talks:
                talk.turns(1)
            subject.pause()
            told: list[Exception] = []

            def ask() -> None:
                try:
                    talks[0].session.reply(LONG, seed=5)
                except Aborted as error:
                    told.append(error)

            thread = started(ask)
            wait_until(lambda: subject.health().waiting + subject.health().running == 1)
            assert subject.abort(["t0"]) == 1
            thread.join(SOON_S)
            subject.resume()
            assert [str(error) for error in told] == ["t0: aborted"]
            for talk in talks:
                (expected,) = subject.generate(talk.next_request)
                self.assert_same(talk.reply(), expected)

    def test_a_reply_that_is_not_whole_in_time_fails_and_can_be_asked_for_again(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1)
        with self.session(subject, asked) as session:
            subject.pause()
            try:
                with pytest.raises(Overdue, match=r"r1: not whole within 0\.05 s$"):
                    session.reply(asked.sampling, seed=1, deadline_s=0.05)
            finally:
                subject.resume()
            self.assert_same(session.reply(asked.sampling, seed=1, deadline_s=SOON_S), subject.generate(asked)[0])

    def test_a_reply_that_is_cut_at_its_deadline_belongs_to_the_conversation(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1, 4)
        (whole,) = subject.generate(replace(asked, sampling=LONG))
        deadline_s, reply = 1e-3, None
        with self.session(subject, asked) as session:
            while reply is None:  # nobody can say how fast it is: longer and longer, until it was in the middle
                with contextlib.suppress(Overdue):
                    reply = session.reply(LONG, seed=1, deadline_s=deadline_s, on_deadline="cut")
                deadline_s *= 1.3
            assert reply.finish == "deadline"
            assert reply.tokens.tolist() == whole.tokens.tolist()[: len(reply.tokens)]
            sampling = Sampling(max_tokens=10)
            longer = replace(asked, prompt=(*asked.prompt, *reply.tokens.tolist()), sampling=sampling, seed=2)
            self.assert_same(session.reply(sampling, seed=2), subject.generate(longer)[0])

    def test_what_does_not_fit_is_refused_in_one_line_and_the_session_goes_on(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1, 100)
        with self.session(subject, asked) as session:
            session.say((5,) * 10)
            with pytest.raises(EngineError, match="session r1 has 110 tokens and may get 30 more; the context is 128"):
                session.reply(Sampling(max_tokens=30), seed=1)
            assert len(session.reply(Sampling(max_tokens=18, min_tokens=18), seed=1).tokens) == 18
        for prompt, count, line in (((), 1, "the prompt of r is empty"), ((5,), 0, r"count must be >= 1, received 0")):
            with pytest.raises(EngineError, match=line):
                subject.open("r", prompt, count)

    def test_a_session_has_one_caller_at_a_time(self, engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1)
        with self.session(subject, asked) as session:
            subject.pause()
            thread = started(partial(session.reply, asked.sampling, seed=1))
            wait_until(lambda: subject.health().waiting + subject.health().running == 1)
            with pytest.raises(EngineError, match="r1: cannot reply while a reply of the session is under way"):
                session.reply(asked.sampling, seed=1)
            with pytest.raises(EngineError, match="r1: cannot say while a reply of the session is under way"):
                session.say(())
            subject.resume()
            thread.join(SOON_S)

    def test_sessions_of_a_closed_engine_are_told(self, made: dict[Any, Any], engine: MakeEngine) -> None:
        subject, asked = engine(), self.request(1)
        made.pop((8, False))
        (session,) = subject.open(asked.uid, asked.prompt)
        session.reply(asked.sampling, seed=1)
        subject.close()
        with pytest.raises(Aborted, match="closed"):
            session.reply(asked.sampling, seed=1)
        session.close()
