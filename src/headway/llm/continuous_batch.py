"""Continuous batching over a decoder: which samples are under way, and what a step does to them.

    line --> [ row 0 | row 1 | ... | row R - 1 ] --> samples
      ^ prefill once a request,   ^ one token each a step; a row that ends is filled at once
        shared by its samples       by the last one, so that the rows in use are always the first

Nothing in here waits or is guarded: whoever has a batch makes one call at a time (transformers_engine.py).

Invariants: a sample's tokens depend on the weights, the prompt and its seed alone (on a CPU bit for bit); a token's
version is that of the weights its logits were computed with; a request ends exactly once, with all its samples or
with an error.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from headway.core.types import derive_seed
from headway.llm.decoder import Decoder, Prompts
from headway.llm.engine import Aborted, EngineError, Request, Sample, Sampling, overdue
from headway.llm.model_types import Detokenizer
from headway.llm.sampling import draw, uniform


class GenerationJob:
    """Holds a request under way, and the samples it has so far."""

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


class SampleRows:
    """Holds the samples under way, one a row, as arrays over all rows: a burst is written at once."""

    def __init__(self, rows: int, context: int) -> None:
        self.jobs: list[GenerationJob] = []
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

    def add(self, job: GenerationJob, number: int) -> int:
        row, sampling = len(self.jobs), job.request.sampling
        self.jobs.append(job)
        self.numbers.append(number)
        self.counts[row] = 0
        self.prompts[row] = len(job.request.prompt)
        self.seeds[row] = derive_seed(job.request.seed, "sample", number)
        self.limits[row] = max(1, sampling.min_tokens), sampling.max_tokens
        return row

    def places(self) -> np.ndarray:
        """Returns where each row's newest token stands: it has been drawn and not yet been read."""
        places: np.ndarray = (self.prompts + self.counts - 1)[: len(self.jobs)]
        return places

    def write(self, rows: np.ndarray, tokens: np.ndarray, log_probs: np.ndarray, version: int) -> None:
        """Writes a burst [rows, steps] behind what there is; the counts stay until it is known which tokens count."""
        at = rows[:, None], self.counts[rows][:, None] + np.arange(tokens.shape[1])
        self.tokens[at] = tokens
        self.log_probs[at] = log_probs
        self.versions[at] = version

    def remove(self, row: int) -> int:
        """Puts the last row in the place of this one; returns the number that the last row had."""
        last = len(self.jobs) - 1
        for array in (self.tokens, self.log_probs, self.versions, self.counts, self.prompts, self.seeds, self.limits):
            array[row] = array[last]
        self.jobs[row], self.numbers[row] = self.jobs[last], self.numbers[last]
        self.jobs.pop()
        self.numbers.pop()
        return last


class ContinuousBatch:
    """Generates the samples of many requests together, with the weights of one version at a time."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Detokenizer,
        stop_tokens: Sequence[int],
        version: int,
        clock: Callable[[], float],
    ) -> None:
        self.version = version
        self.rows = SampleRows(decoder.rows, decoder.context + decoder.burst)
        self.num_tokens = self.num_steps = 0
        self.stepped_at = clock()
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._stop_tokens = np.array(sorted(stop_tokens), np.int32)
        self._clock = clock
        self._line: deque[GenerationJob] = deque()
        self._timed: list[GenerationJob] = []  # those with a deadline

    @property
    def num_waiting(self) -> int:
        """Counts the samples that have no row yet."""
        return sum(job.request.num_samples - job.next_sample for job in self._line)

    def unfinished(self) -> Iterator[GenerationJob]:
        return (job for job in (*self._line, *self.rows.jobs) if not job.is_over)

    def add(self, job: GenerationJob) -> None:
        self._line.append(job)
        if job.expires_at < math.inf:
            self._timed.append(job)

    def step(self) -> None:
        if self._timed:
            self.expire()
        self._admit()
        if len(self.rows):
            for sampling in {job.request.sampling.choice: job.request.sampling for job in self.rows.jobs}.values():
                self._advance(sampling)
            self.num_steps += self._decoder.burst
            self.stepped_at = self._clock()

    def expire(self) -> None:
        """Ends the requests whose time is over, in the way each has chosen."""
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
            for row in reversed(range(len(self.rows))):
                if self.rows.jobs[row] is job:
                    job.samples[self.rows.numbers[row]] = self._sample(row, "deadline")
                    self._drop_row(row)
            job.news.set()
        self._timed = [job for job in self._timed if not job.is_over]

    def _admit(self) -> None:
        """Fills free rows from the line: each prompt is read once for all of its samples that fit."""
        prompts: Prompts = []
        while self._line and len(self.rows) < self._decoder.rows:
            job = self._line[0]
            count = min(self._decoder.rows - len(self.rows), job.request.num_samples - job.next_sample)
            rows = [self.rows.add(job, job.next_sample + more) for more in range(count)]
            job.next_sample += count
            prompts.append((torch.tensor(job.request.prompt), rows))
            if job.next_sample == job.request.num_samples:
                self._line.popleft()
        if not prompts:
            return
        logits = self._decoder.prefill(prompts)
        owners = np.repeat(np.arange(len(prompts)), [len(rows) for _, rows in prompts])  # [new rows]
        new = np.arange(prompts[0][1][0], len(self.rows))
        samplings = [self.rows.jobs[row].request.sampling for row in new]
        for sampling in {sampling.choice: sampling for sampling in samplings}.values():
            chosen = np.array([other.choice == sampling.choice for other in samplings])
            seeds = torch.from_numpy(self.rows.seeds[new[chosen]]).to(logits.device)
            mine = logits[torch.from_numpy(owners[chosen]).to(logits.device)]
            tokens, log_probs = draw(mine, uniform(seeds, torch.zeros_like(seeds)), sampling)
            self.rows.write(new[chosen], tokens.cpu().numpy()[:, None], log_probs.cpu().numpy()[:, None], self.version)
        self._hand_out(new, 1)

    def _advance(self, sampling: Sampling) -> None:
        """Makes one burst for the rows with this way of sampling; others stand still meanwhile."""
        rows = self.rows
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
        rows.write(chosen, tokens.numpy().T[chosen], log_probs.numpy().T[chosen], self.version)
        self._hand_out(chosen, len(tokens))

    def _hand_out(self, chosen: np.ndarray, steps: int) -> None:
        """Counts what was drawn up to each row's end, and hands out the samples that are whole."""
        rows = self.rows
        before = rows.counts[chosen]
        drawn = rows.tokens[chosen[:, None], before[:, None] + np.arange(steps)]  # [chosen, steps]
        after = before[:, None] + np.arange(1, steps + 1)  # tokens there are, step by step
        least, most = rows.limits[chosen].T[:, :, None]
        ends = (np.isin(drawn, self._stop_tokens) & (after >= least)) | (after >= most)
        over = ends.any(1)
        taken = np.where(over, ends.argmax(1) + 1, steps)
        rows.counts[chosen] = before + taken
        self.num_tokens += int(taken.sum())
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
        """Says whether a token since `start` completed a stop string; what was drawn after it is forgotten."""
        rows = self.rows
        sampling = rows.jobs[row].request.sampling
        reach = max(map(len, sampling.stop)) + 4
        for count in range(max(start + 1, sampling.min_tokens), int(rows.counts[row]) + 1):
            tail = self._tokenizer.decode(rows.tokens[row, max(0, count - reach) : count].tolist())
            if any(text in tail for text in sampling.stop):
                rows.counts[row] = count
                return True
        return False

    def _drop_row(self, row: int) -> None:
        last = self.rows.remove(row)
        if last != row:
            self._decoder.move(last, row, int(self.rows.prompts[row] + self.rows.counts[row] - 1))

    def _sample(self, row: int, ended_by: str = "length") -> Sample:
        rows, count = self.rows, int(self.rows.counts[row])
        tokens = rows.tokens[row, :count].copy()
        sampling = rows.jobs[row].request.sampling
        text = self._tokenizer.decode(tokens[~np.isin(tokens, self._stop_tokens)].tolist())
        stopped = bool(np.isin(tokens[-1], self._stop_tokens)) or any(stop in text for stop in sampling.stop)
        finish = "stop" if stopped else ended_by
        return Sample(tokens, rows.log_probs[row, :count].copy(), rows.versions[row, :count].copy(), finish, text)

    def read_again(self) -> None:
        """Makes the cache of everything under way anew, by the weights that are used from now on."""
        rows = self.rows
        whole = [
            (torch.tensor([*rows.jobs[row].request.prompt, *rows.tokens[row, : rows.counts[row] - 1].tolist()]), [row])
            for row in range(len(rows))
        ]
        if whole:
            self._decoder.prefill(whole)

    def abort(self, why: str, uids: Sequence[str] | None) -> int:
        """Gives up these requests, or all; returns how many samples were missing."""
        jobs = {id(job): job for job in [*self._line, *self.rows.jobs]}
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
        for row in reversed(range(len(self.rows))):
            if self.rows.jobs[row].error is not None:
                self._drop_row(row)
