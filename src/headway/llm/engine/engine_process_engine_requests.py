"""The requests that the process of an engine has been asked and has not answered, sample by sample.

add(request) --> one question a sample --> told, one after another --> the job is over
                                       --> given up, because of an error or its own deadline

A continuation that is to be scored is a sample whose tokens are known.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headway.core.types import derive_seed
from headway.llm.engine.protocol_engine import EngineError, Request, ScoreRequest


@dataclass(frozen=True, slots=True)
class Told:
    """A sample as the host sends it."""

    tokens: bytes
    log_probs: bytes
    versions: bytes
    finish: str


class Job:
    """A request under way."""

    def __init__(self, request: Request | ScoreRequest, keys: list[str]) -> None:
        self.request = request
        self.keys = keys
        self.told: list[Told | None] = [None] * len(keys)
        self.error: EngineError | None = None
        self.over = threading.Event()  # of its own: an end wakes the one who waits for it, not hundreds of others
        self.expires_at = math.inf
        if isinstance(request, Request) and request.deadline_s is not None:
            self.expires_at = time.monotonic() + request.deadline_s

    @property
    def is_over(self) -> bool:
        return self.error is not None or None not in self.told


class Requests:
    """Jobs by the keys of the samples they miss. For one thread at a time."""

    def __init__(self) -> None:
        self._keys = itertools.count()
        self._missing: dict[str, tuple[Job, int]] = {}
        self._timed: list[Job] = []  # those with a deadline

    def __len__(self) -> int:
        """How many samples are missing."""
        return len(self._missing)

    def add(self, request: Request | ScoreRequest) -> Job:
        count = request.num_samples if isinstance(request, Request) else len(request.continuations)
        job = Job(request, [str(next(self._keys)) for _ in range(count)])
        self._missing.update((key, (job, number)) for number, key in enumerate(job.keys))
        if job.expires_at < math.inf:
            self._timed.append(job)
        return job

    def jobs(self, uids: Sequence[str] | None = None) -> list[Job]:
        """All, or those of these requests."""
        jobs = {id(job): job for job, _ in self._missing.values() if uids is None or job.request.uid in uids}
        return list(jobs.values())

    def questions(self, job: Job | None = None) -> Iterator[tuple[Any, ...]]:
        """What the host is asked: for every missing sample, or for those of one job."""
        for key in self._missing if job is None else self.missing_of(job):
            asked, number = self._missing[key]
            request = asked.request
            if isinstance(request, ScoreRequest):
                yield "score", key, tuple(request.prompt), tuple(request.continuations[number])
                continue
            seed = derive_seed(request.seed, "sample", number)
            yield "ask", key, tuple(request.prompt), seed, asdict(request.sampling), request.salt

    def missing_of(self, job: Job) -> list[str]:
        return [key for key in job.keys if key in self._missing]

    def job_of(self, key: str) -> Job | None:
        return self._missing[key][0] if key in self._missing else None

    def tell(self, key: str, told: Told) -> None:
        """Takes a sample that has come; whoever waits for its job is woken if it is over."""
        if key not in self._missing:
            return
        job, number = self._missing.pop(key)
        job.told[number] = told
        if job.is_over:
            job.over.set()

    def give_up(self, job: Job, error: EngineError) -> list[str]:
        """End a job with an error; returns the keys of the samples that were missing."""
        keys = self.missing_of(job)
        for key in keys:
            del self._missing[key]
        job.error = error
        job.over.set()
        return keys

    def take_expired(self) -> list[Job]:
        """Those whose time is over, once."""
        if not self._timed:
            return []
        now = time.monotonic()
        expired = [job for job in self._timed if now >= job.expires_at and not job.is_over]
        self._timed = [job for job in self._timed if now < job.expires_at and not job.is_over]
        return expired

    @property
    def seconds_to_deadline(self) -> float:
        """Until the first of them must be looked at; inf if none has a deadline."""
        return min((job.expires_at - time.monotonic() for job in self._timed), default=math.inf)
