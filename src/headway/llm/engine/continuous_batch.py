"""Continuous batching over a decoder: which samples are under way, and what a step does to them.

    line --> [ row 0 | row 1 | ... | row A - 1 ] --> samples
      ^ prefill once a request,   ^ one token each a step; a row that ends is filled at once by the last one, so that
        shared by its samples       the rows that take steps are always the first; behind them sessions are parked

A session's reply is a sample like any other, but its row was cached up to the reply before, and only what was said
since is read (session_rows.py). When the reply ends the row is parked.

Nothing in here waits or is guarded: whoever has a batch makes one call at a time (transformers_engine.py).

Invariants: a sample's tokens depend on the weights, the prompt and its seed alone (on a CPU bit for bit); a token's
version is that of the weights its logits were computed with; a request ends exactly once, with all its samples or
with an error.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headway.llm.engine.continuous_batch_sample_rows import GenerationJob, SampleRows
from headway.llm.engine.continuous_batch_session_rows import CachedSession, SessionRows
from headway.llm.engine.decoder import Decoder, Prompts, StepsBesideReading
from headway.llm.engine.decoder_sampling import draw, uniform
from headway.llm.engine.protocol_engine import Aborted, Sample, Sampling, overdue
from headway.llm.model.types import Detokenizer


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
        self.sessions = SessionRows(decoder)
        self.num_tokens = self.num_steps = 0
        self.stepped_at = clock()
        self._decoder = decoder
        self._steps_beside_reading = isinstance(decoder, StepsBesideReading)
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
        if job.session is not None:
            if not job.session.is_open:
                self._fail(job, "the session was closed")
                return
            job.session.is_waited_for = True
        self._line.append(job)
        if job.expires_at < math.inf:
            self._timed.append(job)

    def step(self) -> None:
        if self._timed:
            self.expire()
        has_stepped = self._admit()
        if has_stepped or len(self.rows):
            for choice in () if has_stepped else dict.fromkeys(self.rows.choices):
                self._advance(choice)
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
                    self._drop_row(row, is_kept=True)
            job.news.set()
        self._timed = [job for job in self._timed if not job.is_over]

    def _admit(self) -> bool:
        """Fills free rows from the line: each prompt is read once for all of its samples that fit.

        Says whether the rows that were under way have taken a step in the same pass.
        """
        first = len(self.rows)
        prompts: Prompts = []
        turns: list[tuple[CachedSession, Sequence[int]]] = []
        owners: list[
            tuple[bool, int]
        ] = []  # of each new row: whether it is a turn, and which of these lines it has read
        while self._line and len(self.rows) < self._decoder.rows:
            job = self._line[0]
            count = min(self._decoder.rows - len(self.rows), job.request.num_samples - job.next_sample)
            rows = [self._add_row(job, job.next_sample + more) for more in range(count)]
            if job.session is None:
                prompts.append((torch.tensor(job.request.prompt), rows))
                owners += [(False, len(prompts) - 1)] * count
                self.sessions.count_read(len(job.request.prompt), len(job.request.prompt) if job.next_sample else 0)
            else:
                turns.append((job.session, job.request.prompt))
                owners.append((True, len(turns) - 1))
            job.next_sample += count
            if job.next_sample == job.request.num_samples:
                self._line.popleft()
        if not owners:
            return False
        is_beside = bool(turns and first and self._steps_beside_reading)
        steps = self._newest(first) if is_beside else None
        logits = self._read(prompts, turns, steps)
        lines = torch.tensor([number + is_turn * len(prompts) for is_turn, number in owners])  # [new rows]
        drawing = np.arange(first, len(self.rows))
        if is_beside:
            lines = torch.cat([len(prompts) + len(turns) + torch.arange(first), lines])
            drawing = np.arange(len(self.rows))
        choices = self.rows.choices[drawing[0] :]
        for choice in dict.fromkeys(choices):
            chosen = np.array([other == choice for other in choices])
            mine, rows = logits[lines[torch.from_numpy(chosen)].to(logits.device)], drawing[chosen]
            seeds, counts = torch.from_numpy(self.rows.seeds[rows]), torch.from_numpy(self.rows.counts[rows])
            tokens, log_probs = draw(mine, uniform(seeds, counts).to(logits.device), Sampling(*choice))
            self.rows.write(rows, tokens.cpu().numpy()[:, None], log_probs.cpu().numpy()[:, None], self.version)
        self._hand_out(drawing, 1)
        return is_beside

    def _add_row(self, job: GenerationJob, number: int) -> int:
        """Lets a sample take steps from now on, in the row behind those that do."""
        if job.session is None:
            self.sessions.clear(len(self.rows))
        else:
            self.sessions.place(job.session, len(self.rows))
        return self.rows.add(job, number)

    def _read(
        self,
        prompts: Prompts,
        turns: Sequence[tuple[CachedSession, Sequence[int]]],
        steps: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Reads prompts into their rows, and behind them the turns of sessions; returns the logits that follow."""
        parts = [self._decoder.prefill(prompts)] if prompts else []
        if turns:
            parts.append(self.sessions.read(turns, steps))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _newest(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns the newest tokens of the first rows, which have been drawn and not been read, and their places."""
        rows = self.rows
        last = rows.tokens[np.arange(count), rows.counts[:count] - 1]
        return torch.from_numpy(last.astype(np.int64)), torch.from_numpy(rows.places()[:count])

    def _advance(self, choice: tuple[float, int, float]) -> None:
        """Makes one burst for the rows with this way of sampling; others stand still meanwhile."""
        rows = self.rows
        count = len(rows)
        chosen = np.array([row for row, other in enumerate(rows.choices) if other == choice])
        tokens, log_probs = self._decoder.advance(
            *self._newest(count),
            torch.from_numpy(rows.seeds[:count].copy()),
            torch.from_numpy(rows.counts[:count].copy()),
            Sampling(*choice),
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
        ends = (self._is_stop(drawn) & (after >= least)) | (after >= most)
        over = ends.any(1)
        taken = np.where(over, ends.argmax(1) + 1, steps)
        rows.counts[chosen] = before + taken
        self.num_tokens += int(taken.sum())
        ended = {int(row) for row in chosen[over]}
        if rows.num_with_stops:
            for row, start in zip(chosen.tolist(), before.tolist(), strict=True):
                if rows.jobs[row].request.sampling.stop and self._cut_at_stop_string(row, start):
                    ended.add(row)
        for row in sorted(ended, reverse=True):  # from the end, so that no row moves before its turn
            job = rows.jobs[row]
            job.samples[rows.numbers[row]] = self._sample(row)
            self._drop_row(row, is_kept=True)
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

    def _drop_row(self, row: int, is_kept: bool = False) -> None:
        """Lets a row take no more steps; a session is parked there, with what was drawn if that is kept."""
        session = self.rows.jobs[row].session
        cached = 0
        if session is not None:
            cached = int(self.rows.places()[row]) if is_kept else session.cached
            if not session.is_open or not cached:
                self.sessions.leave(session)
                session = None
        last = self.rows.remove(row)
        if last != row:
            length = int(self.rows.places()[row])
            moved = self.rows.jobs[row].session
            if moved is not None:
                moved.row = row
            if session is not None:
                self._decoder.swap(row, last, max(cached, length))
            else:
                self._decoder.move(last, row, length)
        if session is not None:
            self.sessions.park(session, last, cached)

    def _sample(self, row: int, ended_by: str = "length") -> Sample:
        rows, count = self.rows, int(self.rows.counts[row])
        tokens = rows.tokens[row, :count].copy()
        sampling = rows.jobs[row].request.sampling
        is_stop = self._is_stop(tokens)
        text = self._tokenizer.decode(tokens[~is_stop].tolist())
        stopped = bool(is_stop[-1]) or any(stop in text for stop in sampling.stop)
        finish = "stop" if stopped else ended_by
        return Sample(tokens, rows.log_probs[row, :count].copy(), rows.versions[row, :count].copy(), finish, text)

    def _is_stop(self, tokens: np.ndarray) -> np.ndarray:
        """Says which tokens end a reply. There are few such tokens: this is quicker than np.isin."""
        found: np.ndarray = (tokens[..., None] == self._stop_tokens).any(-1)
        return found

    def change_version(self, version: int, recompute: bool) -> None:
        """Stamps what is drawn from now on. To recompute is to make the cache of everything under way anew, by the
        weights that are used from now on, and to forget what is parked: it is read again when it is asked for."""
        self.version = version
        self.sessions.change_weights(forget=recompute)
        if not recompute or not len(self.rows):
            return
        rows = self.rows
        prompts: Prompts = []
        turns: list[tuple[CachedSession, Sequence[int]]] = []
        for row, job in enumerate(rows.jobs):
            whole = [*job.request.prompt, *rows.tokens[row, : rows.counts[row] - 1].tolist()]
            if job.session is None:
                prompts.append((torch.tensor(whole), [row]))
                self.sessions.count_read(len(whole), len(whole))
            else:
                job.session.cached = 0
                turns.append((job.session, whole))
        self._read(prompts, turns)

    def abort(self, why: str, uids: Sequence[str] | None) -> int:
        """Gives up these requests, or all; returns how many samples were missing."""
        jobs = {id(job): job for job in [*self._line, *self.rows.jobs]}
        count = 0
        for job in jobs.values():
            if uids is None or job.request.uid in uids:
                count += sum(sample is None for sample in job.samples)
                self._fail(job, why)
        self._forget_failed()
        return count

    def close_session(self, session: CachedSession) -> None:
        """Frees a session's row, and gives up its reply if one is under way."""
        job = next((job for job in (*self._line, *self.rows.jobs) if job.session is session), None)
        if job is not None:
            self._fail(job, "the session was closed")
            self._forget_failed()
        self.sessions.close(session)

    def _fail(self, job: GenerationJob, why: str) -> None:
        job.error = Aborted(f"{job.request.uid}: {why}")
        job.news.set()

    def _forget_failed(self) -> None:
        for job in self._line:
            if job.session is not None and job.error is not None:
                job.session.is_waited_for = False
        self._line = deque(job for job in self._line if job.error is None)
        for row in reversed(range(len(self.rows))):
            if self.rows.jobs[row].error is not None:
                self._drop_row(row)
