"""An engine in this process: continuous batching over a model that transformers loaded.

    generate() --> line --> [ row 0 | row 1 | ... | row R - 1 ] --> samples
                     ^ prefill once a request,   ^ one token each a step; a row that ends is filled at once
                       shared by its samples       by the last one, so that the rows in use are always the first

Whoever waits for samples drives: one caller at a time has the wheel and makes the steps for everybody, the others wait
to be told; who is done passes the wheel on. So the engine has no thread of its own, an error reaches whoever drives,
and in one thread it is an ordinary function. All state is guarded by `_gate`, which is held for one step at a time.
New requests need no gate: they are laid down in `_arrivals`, and the next step takes all of them in.

Invariants: a sample's tokens depend on the weights, the prompt and its seed alone (on a CPU bit for bit); a token's
version is that of the weights its logits were computed with; a request ends exactly once, with all its samples or
with an error.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headway.core.types import derive_seed
from headway.llm.engine import (
    Aborted,
    EngineError,
    EngineHealth,
    Request,
    Sample,
    Sampling,
    TakesHandles,
    WeightIntake,
    check_fits,
    overdue,
)
from headway.llm.llama_decoder import LlamaDecoder, why_not
from headway.llm.models import context_length
from headway.llm.padded_decoder import PaddedDecoder, remembers_by_attention
from headway.llm.rereading_decoder import RereadingDecoder
from headway.llm.sampling import draw, uniform


class Decoder(Protocol):
    """A model with a cache of `rows` samples. Rows in use are always the first ones."""

    rows: int
    context: int
    burst: int
    """Steps per `advance`: more than one where looking at a token costs more than making one."""
    device: torch.device

    def load(self, weights: Mapping[str, Any]) -> None: ...

    def prefill(self, prompts: list[tuple[Tensor, list[int]]]) -> Tensor:
        """Read each prompt [T] into its rows, from their beginning; logits of what comes next, [P, V]."""
        ...

    def advance(self, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor, sampling: Sampling) -> Drawn:
        """`burst` steps of the first R rows. tokens [R] are fed at places [R]; counts [R] tokens exist already."""
        ...

    def move(self, source: int, target: int, length: int) -> None: ...


Drawn = tuple[Tensor, Tensor]
"""Tokens and their log-probabilities, [steps, R] each, in this machine's memory."""


class _Job:
    """A request under way."""

    def __init__(self, request: Request, now: float, news: threading.Event) -> None:
        self.request = request
        self.news = news  # shared by all requests of one call: something happened, look again
        self.expires_at = math.inf if request.deadline_s is None else now + request.deadline_s
        self.samples: list[Sample | None] = [None] * request.num_samples
        self.next_sample = 0
        self.error: EngineError | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or all(sample is not None for sample in self.samples)


class _Gate:
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


class _Rows:
    """The samples under way, one a row, as arrays over all rows: a burst is written and judged at once."""

    def __init__(self, rows: int, context: int) -> None:
        self.jobs: list[_Job] = []
        self.numbers: list[int] = []  # which of its job's samples a row is
        self.tokens = np.zeros((rows, context), np.int32)
        self.log_probs = np.zeros((rows, context), np.float32)
        self.versions = np.zeros((rows, context), np.int32)
        self.counts = np.zeros(rows, np.int64)  # tokens drawn so far
        self.prompts = np.zeros(rows, np.int64)  # tokens before them
        self.seeds = np.zeros(rows, np.int64)
        self.limits = np.zeros((rows, 2), np.int64)  # least and most tokens

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: _Job, number: int) -> int:
        row, sampling = len(self.jobs), job.request.sampling
        self.jobs.append(job)
        self.numbers.append(number)
        self.counts[row] = 0
        self.prompts[row] = len(job.request.prompt)
        self.seeds[row] = derive_seed(job.request.seed, "sample", number)
        self.limits[row] = max(1, sampling.min_tokens), sampling.max_tokens
        return row

    def places(self) -> np.ndarray:
        """Where each row's newest token stands: it has been drawn and not yet been read."""
        places: np.ndarray = (self.prompts + self.counts - 1)[: len(self.jobs)]
        return places

    def write(self, rows: np.ndarray, tokens: np.ndarray, log_probs: np.ndarray, version: int) -> None:
        """A burst [rows, steps] behind what there is; the counts stay until it has been judged."""
        at = rows[:, None], self.counts[rows][:, None] + np.arange(tokens.shape[1])
        self.tokens[at] = tokens
        self.log_probs[at] = log_probs
        self.versions[at] = version

    def remove(self, row: int) -> int:
        """The last row takes its place; returns the number that row had."""
        last = len(self.jobs) - 1
        for array in (self.tokens, self.log_probs, self.versions, self.counts, self.prompts, self.seeds, self.limits):
            array[row] = array[last]
        self.jobs[row], self.numbers[row] = self.jobs[last], self.numbers[last]
        self.jobs.pop()
        self.numbers.pop()
        return last


class TransformersEngine:
    """Continuous batching over a decoder.

    `recompute` says what happens to samples under way when weights are applied: keep the cache that older weights
    made, or read everything again with the new ones (slower, and the rest of the sample is exactly the new policy's).
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Any,
        stop_tokens: Sequence[int],
        *,
        version: int = 0,
        recompute: bool = False,
        clock: Callable[[], float] = time.monotonic,
        intake: WeightIntake | None = None,
    ) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._stop_tokens = np.array(sorted(stop_tokens), np.int32)
        self._recompute = recompute
        self._version = version
        self._rows = _Rows(decoder.rows, decoder.context + decoder.burst)
        self._arrivals: deque[_Job] = deque()
        self._line: deque[_Job] = deque()
        self._gate, self._wheel = _Gate(), threading.Lock()
        self._is_paused = self._is_closed = False
        self._tokens = self._steps = 0
        self._clock = clock
        self._stepped_at = clock()
        self._timed: list[_Job] = []  # those with a deadline
        self._intake = intake or TakesHandles()
        self._stream: torch.cuda.Stream | None = None
        if decoder.device.type == "cuda":  # one of its own: a trainer on the same GPU computes beside it
            self._stream = torch.cuda.Stream(decoder.device, priority=-1)
            self._stream.wait_stream(torch.cuda.current_stream(decoder.device))

    # -- the engine's face --------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._version

    def generate(self, request: Request) -> list[Sample]:
        return self.generate_all([request])[0]

    def generate_all(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """Several requests of one caller."""
        for request in requests:
            check_fits(request, self._decoder.context)
        now, news = self._clock(), threading.Event()
        jobs = [_Job(request, now, news) for request in requests]
        self._arrivals.extend(jobs)
        for job in jobs:
            self._see_to(job)
        for job in jobs:
            if job.error is not None:
                raise job.error
        return [[sample for sample in job.samples if sample is not None] for job in jobs]

    def apply(self, version: int, weights: Any) -> None:
        weights = self._intake.plain(weights)  # beside the steps: while they are on their way, generation goes on
        with self._between_steps():
            if self._stream is not None:  # the weights may still be being made, on the stream everybody uses
                self._stream.wait_stream(torch.cuda.default_stream(self._decoder.device))
            self._decoder.load(weights)
            self._version = version
            if self._recompute:
                self._read_again()
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
            waiting = sum(job.request.num_samples - job.next_sample for job in self._line)
            since = self._clock() - self._stepped_at
            return EngineHealth(
                self._version, len(self._rows), waiting, self._is_paused, self._tokens, self._steps, since
            )

    def close(self) -> None:
        with self._between_steps():
            self._is_closed = True
            self._is_paused = False  # who comes now is to be told, not to wait
            self._abort("the engine was closed", None)
        self._intake.close()

    # -- driving ------------------------------------------------------------------------------------

    def _see_to(self, job: _Job) -> None:
        """Returns when the job is over, whoever made the steps."""
        while not job.is_over:
            if not self._is_paused and self._wheel.acquire(blocking=False):
                try:
                    self._drive(job)
                finally:
                    self._wheel.release()
                    self._pass_the_wheel_on()
            elif job.news.wait(_seconds_until(job.expires_at, self._clock())):
                job.news.clear()
            else:
                with self._between_steps():
                    self._expire()

    def _drive(self, job: _Job) -> None:
        """Make steps for everybody until the own job is over. Whoever wants in gets in between two of them."""
        with self._between_steps():
            try:
                while not job.is_over and not self._is_paused:
                    self._step()
                    self._gate.let_others_in()
            except Exception as error:
                self._abort(f"the engine failed: {type(error).__name__}: {error}", None)
                raise

    def _pass_the_wheel_on(self) -> None:
        """Somebody else's turn. Who arrives later tries the wheel by itself."""
        with self._between_steps():
            job = next(self._unfinished(), None)
            if job is not None:
                job.news.set()

    def _unfinished(self) -> Iterator[_Job]:
        return (job for job in (*self._arrivals, *self._line, *self._rows.jobs) if not job.is_over)

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Where the engine's state may be looked at and changed."""
        self._gate.acquire()
        try:
            with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
                self._take_in()
                yield
        finally:
            self._gate.release()

    def _take_in(self) -> None:
        """Those who arrived stand in the line now."""
        while self._arrivals:
            job = self._arrivals.popleft()
            if self._is_closed:
                job.error = Aborted("the engine is closed")
                job.news.set()
                continue
            self._line.append(job)
            if job.expires_at < math.inf:
                self._timed.append(job)

    def _step(self) -> None:
        self._take_in()
        if self._timed:
            self._expire()
        self._admit()
        if len(self._rows):
            for sampling in {job.request.sampling.choice: job.request.sampling for job in self._rows.jobs}.values():
                self._advance(sampling)
            self._steps += self._decoder.burst
            self._stepped_at = self._clock()

    def _expire(self) -> None:
        """End the requests whose time is over, in the way each has chosen; called between two steps."""
        now = self._clock()
        for job in self._timed:
            if now < job.expires_at or job.is_over:
                continue
            missing = job.request.num_samples - job.next_sample
            if missing or job.request.on_deadline == "fail":
                job.error = overdue(job.request, missing)
                job.news.set()
                self._forget_failed()
                continue
            for row in reversed(range(len(self._rows))):
                if self._rows.jobs[row] is job:
                    job.samples[self._rows.numbers[row]] = self._sample(row, "deadline")
                    self._drop_row(row)
            job.news.set()
        self._timed = [job for job in self._timed if not job.is_over]

    def _admit(self) -> None:
        """Fill free rows from the line: each prompt is read once for all of its samples that fit."""
        prompts: list[tuple[Tensor, list[int]]] = []
        while self._line and len(self._rows) < self._decoder.rows:
            job = self._line[0]
            count = min(self._decoder.rows - len(self._rows), job.request.num_samples - job.next_sample)
            rows = [self._rows.add(job, job.next_sample + more) for more in range(count)]
            job.next_sample += count
            prompts.append((torch.tensor(job.request.prompt), rows))
            if job.next_sample == job.request.num_samples:
                self._line.popleft()
        if not prompts:
            return
        logits = self._decoder.prefill(prompts)
        owners = np.repeat(np.arange(len(prompts)), [len(rows) for _, rows in prompts])  # [new rows]
        new = np.arange(prompts[0][1][0], len(self._rows))
        samplings = [self._rows.jobs[row].request.sampling for row in new]
        for sampling in {sampling.choice: sampling for sampling in samplings}.values():
            chosen = np.array([other.choice == sampling.choice for other in samplings])
            seeds = torch.from_numpy(self._rows.seeds[new[chosen]]).to(logits.device)
            mine = logits[torch.from_numpy(owners[chosen]).to(logits.device)]
            tokens, log_probs = draw(mine, uniform(seeds, torch.zeros_like(seeds)), sampling)
            self._rows.write(
                new[chosen], tokens.cpu().numpy()[:, None], log_probs.cpu().numpy()[:, None], self._version
            )
        self._judge(new, 1)

    def _advance(self, sampling: Sampling) -> None:
        """One burst for the rows with this way of sampling; others stand still meanwhile."""
        rows = self._rows
        count = len(rows)
        chosen = np.array([row for row in range(count) if rows.jobs[row].request.sampling.choice == sampling.choice])
        last = rows.tokens[np.arange(count), rows.counts[:count] - 1]
        tokens, log_probs = self._decoder.advance(
            torch.from_numpy(last.astype(np.int64)),
            torch.from_numpy(rows.places()),
            torch.from_numpy(rows.seeds[:count].copy()),
            torch.from_numpy(rows.counts[:count].copy()),
            sampling,
        )
        rows.write(chosen, tokens.numpy().T[chosen], log_probs.numpy().T[chosen], self._version)
        self._judge(chosen, len(tokens))

    def _judge(self, chosen: np.ndarray, steps: int) -> None:
        """Count what was drawn up to each row's end, and hand out the samples that are whole."""
        rows = self._rows
        before = rows.counts[chosen]
        drawn = rows.tokens[chosen[:, None], before[:, None] + np.arange(steps)]  # [chosen, steps]
        after = before[:, None] + np.arange(1, steps + 1)  # tokens there are, step by step
        least, most = rows.limits[chosen].T[:, :, None]
        ends = (np.isin(drawn, self._stop_tokens) & (after >= least)) | (after >= most)
        over = ends.any(1)
        taken = np.where(over, ends.argmax(1) + 1, steps)
        rows.counts[chosen] = before + taken
        self._tokens += int(taken.sum())
        ended = {int(row) for row in chosen[over]}
        for row, start in zip(chosen.tolist(), before.tolist(), strict=True):
            if rows.jobs[row].request.sampling.stop and self._cut_at_stop_string(row, start):
                ended.add(row)
        for row in sorted(ended, reverse=True):  # from the end, so that no row moves before its turn
            job = rows.jobs[row]
            job.samples[rows.numbers[row]] = self._sample(row)
            self._drop_row(row)
            if job.is_over:
                job.news.set()

    def _cut_at_stop_string(self, row: int, start: int) -> bool:
        """Whether one of the tokens since `start` completed a stop string; what was drawn after it is forgotten."""
        rows = self._rows
        sampling = rows.jobs[row].request.sampling
        reach = max(map(len, sampling.stop)) + 4
        for count in range(max(start + 1, sampling.min_tokens), int(rows.counts[row]) + 1):
            tail = self._tokenizer.decode(rows.tokens[row, max(0, count - reach) : count].tolist())
            if any(text in tail for text in sampling.stop):
                rows.counts[row] = count
                return True
        return False

    def _drop_row(self, row: int) -> None:
        last = self._rows.remove(row)
        if last != row:
            self._decoder.move(last, row, int(self._rows.prompts[row] + self._rows.counts[row] - 1))

    def _sample(self, row: int, ended_by: str = "length") -> Sample:
        rows, count = self._rows, int(self._rows.counts[row])
        tokens = rows.tokens[row, :count].copy()
        sampling = rows.jobs[row].request.sampling
        text = self._tokenizer.decode(tokens[~np.isin(tokens, self._stop_tokens)].tolist())
        stopped = bool(np.isin(tokens[-1], self._stop_tokens)) or any(stop in text for stop in sampling.stop)
        finish = "stop" if stopped else ended_by
        return Sample(tokens, rows.log_probs[row, :count].copy(), rows.versions[row, :count].copy(), finish, text)

    def _read_again(self) -> None:
        """The cache of everything under way, made anew by the weights that are used from now on."""
        rows = self._rows
        whole = [
            (torch.tensor([*rows.jobs[row].request.prompt, *rows.tokens[row, : rows.counts[row] - 1].tolist()]), [row])
            for row in range(len(rows))
        ]
        if whole:
            self._decoder.prefill(whole)

    def _abort(self, why: str, uids: Sequence[str] | None) -> int:
        """Give up requests; called between two steps."""
        jobs = {id(job): job for job in [*self._line, *self._rows.jobs]}
        count = 0
        for job in jobs.values():
            if uids is None or job.request.uid in uids:
                count += sum(sample is None for sample in job.samples)
                job.error = Aborted(f"{job.request.uid}: {why}")
                job.news.set()
        self._forget_failed()
        return count

    def _forget_failed(self) -> None:
        self._line = deque(job for job in self._line if job.error is None)
        for row in reversed(range(len(self._rows))):
            if self._rows.jobs[row].error is not None:
                self._drop_row(row)


def _seconds_until(moment: float, now: float) -> float | None:
    return None if moment == math.inf else max(0.0, moment - now)


def build_decoder(model: Any, *, rows: int, context: int, burst: int = 16) -> Decoder:
    """The fastest decoder there is for this model, where it is."""
    if context > context_length(model.config):
        raise EngineError(
            f"prompts and replies of {context} tokens do not fit the model's {context_length(model.config)}"
        )
    if why_not(model.config):
        general = PaddedDecoder if remembers_by_attention(model) else RereadingDecoder
        return general(model, rows, context)
    if next(model.parameters()).is_cuda:
        from headway.llm.triton_llama_decoder import TritonLlamaDecoder

        return TritonLlamaDecoder(model, rows, context, burst=burst)
    return LlamaDecoder(model, rows, context)
