"""An engine in this process: continuous batching (continuous_batch.py) over a model that transformers loaded.

Whoever waits for samples makes steps: one caller at a time makes them for everybody, the others wait to be told; who
is done wakes another. So the engine has no thread of its own, an error reaches whoever makes the steps, and in one
thread it is an ordinary function. All state is guarded by `_state_lock`, which is held for one step at a time.
New requests need no lock: they are laid down in `_arrivals`, and the next step takes all of them in; sessions that are
closed are laid down in `_closing` likewise, so that hundreds of callers do not stand in line for the lock.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from headway.core.text_one_line import said
from headway.llm.engine.continuous_batch import ContinuousBatch
from headway.llm.engine.continuous_batch_sample_rows import GenerationJob
from headway.llm.engine.continuous_batch_scoring import ScoreJob, ScoreLine
from headway.llm.engine.continuous_batch_session_rows import CachedSession, SharedPrompt
from headway.llm.engine.decoder import Decoder
from headway.llm.engine.general_decoders_padded_decoder import PaddedDecoder, remembers_by_attention
from headway.llm.engine.general_decoders_rereading_decoder import RereadingDecoder
from headway.llm.engine.gpu_share import generating
from headway.llm.engine.llama_decoder import LlamaDecoder
from headway.llm.engine.llama_weights import why_not
from headway.llm.engine.protocol_engine import (
    Aborted,
    ContinuationScores,
    EngineError,
    EngineHealth,
    Request,
    Sample,
    ScoreRequest,
    Session,
    TakesHandles,
    WeightIntake,
    check_fits,
    check_scorable,
)
from headway.llm.engine.protocol_sessions import OpenSession, check_opening
from headway.llm.model.loading_models import context_length
from headway.llm.model.types import CausalModel, Detokenizer
from headway.llm.train.kernels_layouts import first_line, name_of


class _FairLock:
    """A lock which nobody can keep by letting go and taking it again: whoever waits is let in first."""

    def __init__(self) -> None:
        self._inside, self._next = threading.Lock(), threading.Lock()

    def acquire(self) -> None:
        with self._next:
            self._inside.acquire()

    def release(self) -> None:
        self._inside.release()

    def let_others_in(self) -> None:
        self.release()
        self.acquire()


class TransformersEngine:
    """Generates with a decoder for callers in many threads.

    `recompute` says what happens to samples and sessions under way when weights are applied: keep the cache that older
    weights made, or read everything again with the new ones (slower, and the rest is exactly the new policy's).
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Detokenizer,
        stop_tokens: Sequence[int],
        *,
        version: int = 0,
        recompute: bool = False,
        clock: Callable[[], float] = time.monotonic,
        intake: WeightIntake | None = None,
    ) -> None:
        self._decoder = decoder
        self._recompute = recompute
        self._batch = ContinuousBatch(decoder, tokenizer, stop_tokens, version, clock)
        self._scores = ScoreLine(decoder)
        self._arrivals: deque[GenerationJob | ScoreJob] = deque()
        self._closing: deque[CachedSession] = deque()
        self._state_lock, self._step_lock = _FairLock(), threading.Lock()
        self._is_paused = self._is_closed = False
        self._clock = clock
        self._intake = intake or TakesHandles()
        self._stream: torch.cuda.Stream | None = None
        if decoder.device.type == "cuda":  # one of its own: a trainer on the same GPU computes beside it
            self._stream = torch.cuda.Stream(decoder.device, priority=-1)
            self._stream.wait_stream(torch.cuda.current_stream(decoder.device))

    # -- the engine's face --------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._batch.version

    def generate(self, request: Request) -> list[Sample]:
        return self.generate_all([request])[0]

    def generate_all(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """Generates the samples of several requests of one caller."""
        for request in requests:
            check_fits(request, self._decoder.context)
        now, news = self._clock(), threading.Event()
        jobs = [GenerationJob(request, now, news) for request in requests]
        self._arrivals.extend(jobs)
        for job in jobs:
            self._wait_for(job)
        for job in jobs:
            if job.error is not None:
                raise job.error
        return [[sample for sample in job.samples if sample is not None] for job in jobs]

    def score(self, requests: Sequence[ScoreRequest]) -> list[ContinuationScores]:
        for request in requests:
            check_scorable(request, self._decoder.context)
        news = threading.Event()
        jobs = [ScoreJob(request, news) for request in requests]
        self._arrivals.extend(jobs)
        for job in jobs:
            self._wait_for(job)
        for job in jobs:
            if job.error is not None:
                raise job.error
        return [job.scores for job in jobs if job.scores is not None]

    def open(self, uid: str, prompt: Sequence[int], count: int = 1) -> list[Session]:
        check_opening(uid, prompt, count)
        shared = SharedPrompt(len(prompt))
        caches = [CachedSession(shared) for _ in range(count)]
        return [
            OpenSession(uid, prompt, self._decoder.context, partial(self._draw, cache), partial(self._leave, cache))
            for cache in caches
        ]

    def apply(self, version: int, weights: Any) -> None:
        weights = self._intake.plain(weights)  # beside the steps: while they are on their way, generation goes on
        with self._between_steps():
            if self._stream is not None:  # the weights may still be being made, on the stream everybody uses
                self._stream.wait_stream(torch.cuda.default_stream(self._decoder.device))
            self._decoder.load(weights)
            self._batch.change_version(version, self._recompute)
            if self._stream is not None:  # from here on nobody reads them
                self._stream.synchronize()

    def pause(self) -> None:
        with self._between_steps():
            self._is_paused = True

    def resume(self) -> None:
        with self._between_steps():
            self._is_paused = False
            for job in self._unfinished():
                job.news.set()

    def abort(self, uids: Sequence[str] | None = None) -> int:
        with self._between_steps():
            return self._abort("aborted", uids)

    def health(self) -> EngineHealth:
        with self._between_steps():
            batch = self._batch
            return EngineHealth(
                batch.version,
                len(batch.rows),
                batch.num_waiting + self._scores.num_waiting,
                self._is_paused,
                batch.num_tokens,
                batch.num_steps,
                self._clock() - batch.stepped_at,
                {**batch.sessions.statistics(), "tokens_scored": self._scores.num_tokens},
            )

    def close(self) -> None:
        with self._between_steps():
            self._is_closed = True
            self._is_paused = False  # who comes now is to be told, not to wait
            self._abort("the engine was closed", None)
        self._intake.close()

    # -- sessions ---------------------------------------------------------------------------------

    def _draw(self, session: CachedSession, request: Request) -> Sample:
        """Makes a session's next reply; `request` holds everything so far."""
        job = GenerationJob(request, self._clock(), threading.Event(), session)
        self._arrivals.append(job)
        if not session.is_open:  # closed in this moment: who did it may not have seen the request
            with self._between_steps():
                pass
        self._wait_for(job)
        if job.error is not None:
            raise job.error
        (sample,) = job.samples
        assert sample is not None
        return sample

    def _leave(self, session: CachedSession, is_replying: bool) -> None:
        """Closes a session: whoever looks at the engine next finds its row free."""
        session.is_open = False
        self._closing.append(session)
        if is_replying:
            with self._between_steps():
                pass

    # -- making steps -----------------------------------------------------------------------------

    def _wait_for(self, job: GenerationJob | ScoreJob) -> None:
        """Returns when the job is over, whoever made the steps."""
        with generating(self._decoder.device):
            while not job.is_over:
                if not self._is_paused and self._step_lock.acquire(blocking=False):
                    try:
                        self._make_steps(job)
                    finally:
                        self._step_lock.release()
                        self._wake_another()
                elif job.news.wait(_seconds_until(job.expires_at, self._clock())):
                    job.news.clear()
                else:
                    with self._between_steps():
                        self._batch.expire()
        if not self._step_lock.locked():  # it may have been woken to make steps, and been given up before it could
            self._wake_another()

    def _make_steps(self, job: GenerationJob | ScoreJob) -> None:
        """Makes steps for everybody until the own job is over. Others get at the state between two of them."""
        with self._between_steps():
            try:
                while not job.is_over and not self._is_paused:
                    self._step()
                    self._state_lock.let_others_in()
            except Exception as error:
                self._abort(f"the engine failed: {type(error).__name__}: {said(error)}", None)
                raise

    def _wake_another(self) -> None:
        """Lets somebody else make the next steps. Who arrives later tries by itself."""
        with self._between_steps():
            job = next(self._unfinished(), None)
            if job is not None:
                job.news.set()

    def _unfinished(self) -> Iterator[GenerationJob | ScoreJob]:
        jobs = (*self._arrivals, *self._batch.unfinished(), *self._scores.unfinished())
        return (job for job in jobs if not job.is_over)

    def _abort(self, why: str, uids: Sequence[str] | None) -> int:
        return self._batch.abort(why, uids) + self._scores.abort(why, uids)

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Holds the engine between two steps, so that its state may be looked at and changed."""
        self._state_lock.acquire()
        try:
            with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
                self._take_in()
                yield
        finally:
            self._state_lock.release()

    def _take_in(self) -> None:
        """Puts the requests that have arrived into the batch's line, and closes the sessions that have left."""
        while self._arrivals:
            job = self._arrivals.popleft()
            if self._is_closed:
                job.error = Aborted("the engine is closed")
                job.news.set()
            elif isinstance(job, ScoreJob):
                self._scores.add(job)
            else:
                self._batch.add(job)
        while self._closing:
            self._batch.close_session(self._closing.popleft())

    def _step(self) -> None:
        self._take_in()
        self._batch.step()
        self._scores.step(self._batch.version)


def _seconds_until(moment: float, now: float) -> float | None:
    return None if moment == math.inf else max(0.0, moment - now)


def build_decoder(model: CausalModel, *, rows: int, context: int, burst: int = 16) -> Decoder:
    """Builds the fastest decoder there is for this model, on the device where the model is."""
    if context > context_length(model.config):
        raise EngineError(
            f"prompts and replies of {context} tokens do not fit the model's {context_length(model.config)}; "
            "lower max_prompt_tokens or max_tokens"
        )
    if not why_not(model.config):
        if not next(model.parameters()).is_cuda:
            return LlamaDecoder(model, rows, context)
        try:
            from triton.errors import TritonError

            from headway.llm.engine.triton_llama_decoder import TritonLlamaDecoder
        except ImportError as error:
            why = first_line(error)
        else:
            try:
                return TritonLlamaDecoder(model, rows, context, burst=burst)
            except TritonError as error:  # the kernels do not fit this device, or this model
                why = first_line(error)
        print(f"headway: {name_of(model)} is decoded by transformers, more slowly: {why}", file=sys.stderr, flush=True)
    general = PaddedDecoder if remembers_by_attention(model) else RereadingDecoder
    return general(model, rows, context)
