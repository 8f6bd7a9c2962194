"""Samples under way: the requests they belong to, and what has been drawn of each, one a row."""

from __future__ import annotations

import math
import threading
from typing import TypeVar

import numpy as np

from headway.core.types import derive_seed
from headway.llm.engine.continuous_batch_session_rows import CachedSession
from headway.llm.engine.protocol_engine import EngineError, Request, Sample

Item = TypeVar("Item")


class GenerationJob:
    """Holds a request under way, and the samples it has so far. A session's request has one sample."""

    def __init__(
        self, request: Request, now: float, news: threading.Event, session: CachedSession | None = None
    ) -> None:
        self.request = request
        self.news = news  # shared by all requests of one call: something happened, look again
        self.session = session
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
        self.choices: list[tuple[float, int, float]] = []  # how its tokens are drawn
        self.num_with_stops = 0  # rows that end with a stop string
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
        self.choices.append(sampling.choice)
        self.num_with_stops += bool(sampling.stop)
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
        self.num_with_stops -= bool(self.jobs[row].request.sampling.stop)
        for array in (self.tokens, self.log_probs, self.versions, self.counts, self.prompts, self.seeds, self.limits):
            array[row] = array[last]
        _put_last_at(self.jobs, row)
        _put_last_at(self.numbers, row)
        _put_last_at(self.choices, row)
        return last


def _put_last_at(line: list[Item], place: int) -> None:
    line[place] = line[-1]
    line.pop()
