"""An engine in another process: killed, frozen, torn, refused and closed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import patient, slowness, wait_until

torch = pytest.importorskip("torch")

from bigram_engine import WEIGHT, bigram_engine, log_softmax, table  # noqa: E402
from running_processes import all_children, assert_no_more_shared_memory, wait_until_gone  # noqa: E402

from headway.llm.engine.engine_process_host_process import HostSettings  # noqa: E402
from headway.llm.engine.engine_process_hosted_engine import HostedEngine  # noqa: E402
from headway.llm.engine.protocol_engine import EngineError, Overdue, Request, Sample, Sampling, ScoreRequest  # noqa: E402

LONG = Sampling(max_tokens=80, min_tokens=80)
STEP_S = 2e-3 * slowness()  # 80 tokens in about 200 ms of a quiet machine


@contextmanager
def engine(**options: Any) -> Iterator[HostedEngine]:
    subject = bigram_engine(**{"step_s": STEP_S, **options})
    try:
        yield subject
    finally:
        subject.close()


def requests(count: int = 3) -> list[Request]:
    return [Request(f"r{n}", (3, 4, 5 + n), 2, n, LONG) for n in range(count)]


def tokens(answers: list[list[Sample]]) -> list[list[int]]:
    return [sample.tokens.tolist() for samples in answers for sample in samples]


def weights(seed: int) -> dict[str, Any]:
    return {WEIGHT: table(seed)}


def in_the_middle(subject: HostedEngine, what: Callable[[], Any]) -> Any:
    """Do something while everything asked for runs; returns what was generated."""
    answers: list[Any] = []
    before = subject.health().waiting
    thread = threading.Thread(target=lambda: answers.append(subject.generate_all(requests())))
    thread.start()
    wait_until(lambda: subject.health().waiting + subject.health().running > before)
    threading.Event().wait(10 * STEP_S)
    what()
    thread.join(patient(60))
    assert answers, "the requests were not answered"
    return answers[0]


def signalled(subject: HostedEngine, number: signal.Signals) -> Callable[[], int]:
    pid = subject.pid

    def send() -> int:
        os.kill(pid, number)
        return pid

    return send


# -- it dies, or says nothing ---------------------------------------------------------------------


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_killed_or_frozen_in_the_middle_is_replaced_and_nobody_notices(what: signal.Signals) -> None:
    with engine(deadline_s=patient(0.25)) as subject:
        subject.apply(4, weights(1))
        undisturbed = subject.generate_all(requests())
        first = subject.pid
        answers = in_the_middle(subject, signalled(subject, what))
        assert tokens(answers) == tokens(undisturbed)  # the same seeds, and the newest weights applied again
        assert all(set(sample.versions.tolist()) == {4} for samples in answers for sample in samples)
        assert subject.health().details["restarts"] == 1 and subject.pid != first
        wait_until_gone([first])


def test_an_idle_engine_that_was_killed_is_replaced_when_it_is_needed() -> None:
    with engine() as subject:
        expected = subject.generate_all(requests())
        os.kill(subject.pid, signal.SIGKILL)
        assert tokens(subject.generate_all(requests())) == tokens(expected)


def test_silence_without_work_is_no_fault() -> None:
    limit_s = patient(0.1)
    with engine(deadline_s=limit_s) as subject:
        threading.Event().wait(3 * limit_s)
        assert subject.generate_all(requests(1)) and subject.health().details["restarts"] == 0


def test_a_paused_engine_that_dies_comes_back_paused() -> None:
    with engine() as subject:
        subject.pause()
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(subject.generate_all(requests())))
        thread.start()
        os.kill(subject.pid, signal.SIGKILL)
        while subject.health().details["restarts"] == 0:
            threading.Event().wait(0.01)
        threading.Event().wait(0.3)
        assert subject.health().is_paused and not answers
        subject.resume()
        thread.join(patient(30))
        assert len(answers[0]) == 3


def test_when_the_restarts_are_used_up_everybody_is_told_in_one_line() -> None:
    with engine(trouble="raises at step 5", restarts=2) as subject:
        line = "the engine failed: RuntimeError: out of memory; it was replaced 2 times already, engine_restarts=2"
        for call in (lambda: subject.generate_all(requests()), lambda: subject.apply(1, weights(1)), subject.pause):
            with pytest.raises(EngineError) as refused:
                call()
            assert str(refused.value) == line


def test_an_engine_that_cannot_be_started_says_why_in_one_line() -> None:
    with pytest.raises(EngineError) as refused:
        bigram_engine(trouble="does not start")
    assert str(refused.value) == "the engine could not be started: failed: RuntimeError: no such device"
    with pytest.raises(EngineError, match=r"could not be started: did not answer within 0\.01 s"):
        bigram_engine(start_s=0.01)


def test_one_that_cannot_be_replaced_at_once_is_tried_again_within_its_restarts(tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    with engine(trouble="does not start", fuse=fuse, restarts=2) as subject:
        expected = subject.generate_all(requests())
        fuse.touch()  # the next one does not start, the one after it does
        os.kill(subject.pid, signal.SIGKILL)
        assert tokens(subject.generate_all(requests())) == tokens(expected)
        assert subject.health().details["restarts"] == 2


def test_a_request_that_cannot_be_fails_alone() -> None:
    with engine() as subject:
        with pytest.raises(EngineError, match="r: token 99 is not in the vocabulary"):
            subject.generate(Request("r", (1, 99), 2, 0, LONG))
        assert subject.generate_all(requests(1)) and subject.health().details["restarts"] == 0


def test_a_deadline_passes_while_the_engine_is_being_replaced() -> None:
    with engine(start_s=60, step_s=0.05) as subject:
        os.kill(subject.pid, signal.SIGKILL)
        with pytest.raises(Overdue, match=r"not whole within 0\.2 s"):
            subject.generate(Request("r", (1, 2), 2, 0, LONG, deadline_s=0.2))
        assert subject.health().waiting == 0


# -- weights --------------------------------------------------------------------------------------


def test_weights_that_tear_the_model_cost_the_process_and_no_token_carries_their_version(tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    with engine(trouble="tears load 2", fuse=fuse) as subject:
        subject.apply(1, weights(1))
        expected = subject.generate_all(requests())
        fuse.touch()

        def tear() -> None:
            with pytest.raises(EngineError, match="RuntimeError: torn in the middle while it took new weights"):
                subject.apply(2, weights(2))

        answers = in_the_middle(subject, tear)
        assert subject.version == 1
        assert tokens(answers) == tokens(expected)
        assert all(set(sample.versions.tolist()) == {1} for samples in answers for sample in samples)
        subject.apply(2, weights(2))  # what whoever publishes does next
        assert set(subject.generate(requests()[0])[0].versions.tolist()) == {2}


def test_weights_that_freeze_the_engine_are_noticed_within_the_deadline(tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()
    limit_s = patient(0.25)
    with engine(trouble="freezes at load 1", fuse=fuse, deadline_s=limit_s) as subject:
        with pytest.raises(EngineError, match=re.escape(f"said nothing for {limit_s:g} s while it took new weights")):
            subject.apply(1, weights(1))
        assert subject.version == 0
        subject.apply(1, weights(1))
        assert subject.version == 1


def test_refused_weights_change_nothing() -> None:
    with engine(trouble="refuses weights") as subject:
        with pytest.raises(EngineError, match="refused the weights: ValueError: not today"):
            subject.apply(1, weights(1))
        assert subject.version == 0 and subject.health().details["restarts"] == 0


def test_kills_at_random_moments_while_weights_change_lose_nothing_and_invent_no_version() -> None:
    """Versions are applied beside generation, and every process but the last is killed, some while they start."""
    random = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    asked = [Request(f"r{n}", (1, 2), 2, n, LONG) for n in range(12)]
    with engine(step_s=1e-3, restarts=4) as subject:
        applied = {0}
        seen: list[list[Sample]] = []

        def ask(mine: list[Request]) -> None:
            seen.extend(subject.generate(request) for request in mine)

        def kill() -> None:
            killed = {-1}
            for _ in range(4):
                while (pid := subject.pid) in killed:
                    threading.Event().wait(0.01)
                killed.add(pid)
                threading.Event().wait(float(random.uniform(0, 0.5)))
                os.kill(pid, signal.SIGKILL)

        threads = [threading.Thread(target=ask, args=(asked[n::3],)) for n in range(3)]
        threads.append(threading.Thread(target=kill))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            version = max(applied) + 1
            try:
                subject.apply(version, weights(version))
            except EngineError:
                continue
            applied.add(version)
            threading.Event().wait(0.01)
        subject.generate(asked[0])  # the last kill may have come after everything was answered
        assert len(seen) == 12 and subject.health().details["restarts"] == 4
        for sample in (sample for samples in seen for sample in samples):
            versions = sample.versions.tolist()
            assert versions == sorted(versions) and set(versions) <= applied
            for last, token, version, log_prob in zip(
                [2, *sample.tokens], sample.tokens, versions, sample.log_probs, strict=False
            ):
                assert abs(log_prob - log_softmax(table(version)[last])[token]) < 1e-5


# -- nothing is left behind -----------------------------------------------------------------------


def test_a_closed_engine_leaves_no_process_no_descriptor_and_no_shared_memory() -> None:
    descriptors, shared = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    with engine() as subject:
        pids = [subject.pid]
        subject.apply(1, weights(1))
        os.kill(subject.pid, signal.SIGKILL)
        subject.generate_all(requests(1))
        pids.append(subject.pid)
    wait_until_gone(pids)
    del subject
    assert_no_more_shared_memory(shared)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_an_engine_that_nobody_holds_any_more_ends() -> None:
    subject = bigram_engine()
    pid = subject.pid
    del subject
    wait_until_gone([pid])


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGINT])
def test_the_process_goes_with_whoever_started_it(what: signal.Signals) -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from bigram_engine import bigram_engine\n"
        "from headway.llm.engine.protocol_engine import Request, Sampling\n"
        "engine = bigram_engine(step_s=0.05)\n"
        "print(engine.pid, flush=True)\n"
        "engine.generate(Request('r', (1, 2), 4, 0, Sampling(max_tokens=100, min_tokens=100)))\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None
    with driver.stdout as out:
        pid = int(out.readline())
    assert pid in all_children(driver.pid)
    driver.send_signal(what)
    driver.wait(patient(30))
    wait_until_gone([pid])


@pytest.mark.parametrize("wrong", [{"deadline_s": 0}, {"start_s": -1}, {"restarts": -1}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        HostSettings((), {}, {}, **wrong)


# -- scores ---------------------------------------------------------------------------------------

SCORED = ScoreRequest((3, 4), tuple((5 + n, 9, 7, n) for n in range(12)), "s")


def assert_scored_by(seed: int, log_probs: tuple[np.ndarray, ...]) -> None:
    rows = table(seed)
    for tokens, found in zip(SCORED.continuations, log_probs, strict=True):
        before = (SCORED.prompt[-1], *tokens)
        expected = [log_softmax(rows[b])[c] for b, c in zip(before, tokens, strict=False)]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def in_a_thread(subject: HostedEngine, answers: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.extend(subject.score([SCORED])))
    thread.start()
    wait_until(lambda: subject.health().waiting + subject.health().running > 0)
    return thread


def test_scores_that_were_asked_of_a_killed_process_come_from_the_next_one() -> None:
    with engine() as subject:
        answers: list[Any] = []
        subject.pause()
        thread = in_a_thread(subject, answers)
        pid = signalled(subject, signal.SIGKILL)()
        wait_until(lambda: subject.pid not in (pid, -1))
        subject.resume()
        thread.join(patient(60))
        assert_scored_by(0, answers[0].log_probs)
        assert subject.health().tokens == 0


def test_scores_that_come_of_two_versions_are_asked_for_again() -> None:
    with engine(rows=1, step_s=5 * STEP_S) as subject:  # a continuation a step
        answers: list[Any] = []
        thread = in_a_thread(subject, answers)
        wait_until(lambda: subject.health().steps >= 2)
        subject.apply(1, weights(1))
        thread.join(patient(60))
        assert answers[0].version == 1
        assert_scored_by(1, answers[0].log_probs)


def test_one_continuation_that_cannot_be_scored_is_named_and_the_process_goes_on() -> None:
    with engine() as subject:
        with pytest.raises(EngineError, match="odd: token 400 is not in the vocabulary"):
            subject.score([ScoreRequest((3,), ((4, 5), (6, 400)), "odd"), SCORED])
        assert_scored_by(0, subject.score([SCORED])[0].log_probs)
