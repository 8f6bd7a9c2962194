"""Scores that were asked for and are not there yet, and what a step does for them.

    jobs --> as many from the front as fit in one pass --> trees (trees.py) --> decoder --> log-probabilities

Requests of several callers share a pass. A request is answered within one step, so all of it by the weights of one
version. Nothing in here waits or is guarded: whoever has the line makes one call at a time (transformers_engine.py).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from headway.llm.engine.decoder import Decoder
from headway.llm.engine.protocol_engine import Aborted, ContinuationScores, EngineError, ScoreRequest, check_scores
from headway.llm.train.trees import pack_trees


class ScoreJob:
    """Holds a request for scores that is under way."""

    expires_at = math.inf

    def __init__(self, request: ScoreRequest, news: threading.Event) -> None:
        self.request = request
        self.news = news  # shared by all requests of one call: something happened, look again
        self.scores: ContinuationScores | None = None
        self.error: EngineError | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.scores is not None

    @property
    def num_tokens(self) -> int:
        """Counts the tokens of its tree."""
        return len(self.request.prompt) + sum(len(continuation) - 1 for continuation in self.request.continuations)


class ScoreLine:
    """Scores what is asked for, in the order in which it came."""

    def __init__(self, decoder: Decoder) -> None:
        self.num_tokens = 0  # scored so far
        self._decoder = decoder
        self._jobs: deque[ScoreJob] = deque()

    @property
    def num_waiting(self) -> int:
        """Counts the continuations that have no score yet."""
        return sum(len(job.request.continuations) for job in self._jobs)

    def unfinished(self) -> Iterator[ScoreJob]:
        return iter(self._jobs)

    def add(self, job: ScoreJob) -> None:
        self._jobs.append(job)

    def step(self, version: int) -> None:
        """Scores the first jobs of the line, as many as fit in one pass, with the weights that the decoder has."""
        if not self._jobs:
            return
        limit = max(self._decoder.tree_limits().tokens, self._decoder.context)
        jobs: list[ScoreJob] = []
        size = 0
        while self._jobs and (not jobs or size + self._jobs[0].num_tokens <= limit):
            jobs.append(self._jobs.popleft())
            size += jobs[-1].num_tokens
        try:
            answers = score_in_trees(self._decoder, [job.request for job in jobs])
        except BaseException:
            self._jobs.extendleft(reversed(jobs))  # whoever made this step gives all of them up
            raise
        for job, log_probs in zip(jobs, answers, strict=True):
            self.num_tokens += sum(map(len, log_probs))
            try:
                job.scores = check_scores(job.request, ContinuationScores(log_probs, version))
            except EngineError as error:
                job.error = error
            job.news.set()

    def abort(self, why: str, uids: Sequence[str] | None) -> int:
        """Gives up these requests, or all; returns how many continuations were not scored."""
        given_up = [job for job in self._jobs if uids is None or job.request.uid in uids]
        self._jobs = deque(job for job in self._jobs if job not in given_up)
        for job in given_up:
            job.error = Aborted(f"{job.request.uid}: {why}")
            job.news.set()
        return sum(len(job.request.continuations) for job in given_up)


def score_in_trees(decoder: Decoder, requests: Sequence[ScoreRequest]) -> list[tuple[np.ndarray, ...]]:
    """Computes the log-probabilities of each request's continuations, [T] float32 each; each prompt is read once."""
    limits = decoder.tree_limits()
    replies = [[np.array(tokens, np.int64) for tokens in request.continuations] for request in requests]
    found: dict[int, np.ndarray] = {}
    for trees in pack_trees(
        [np.array(request.prompt, np.int64) for request in requests],
        replies,
        max(limits.tokens, decoder.context),
        limits.price,
        apart=limits.apart,
    ):
        log_probs = decoder.score(trees).cpu().numpy()
        at = 0
        for tree in trees:
            for number, reply in enumerate(tree.replies, tree.first):
                found[number] = log_probs[at : at + len(reply)].copy()
                at += len(reply)
    ordered = iter(found[number] for number in range(len(found)))
    return [tuple(next(ordered) for _ in group) for group in replies]
