"""An engine in a process of its own, behind the engine protocol.

    generate, apply, pause ... --> engine_keeper.py --> host_process.py --> socket --> engine_host.py, in the process

Weights travel through anonymous memory: written once, mapped by whoever loads them, and gone with the last process that
holds them, whatever ends it. What is made here, in the caller's thread, is the text of a sample.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headway.core.text_naming import unknown
from headway.llm.engine.engine_process_engine_keeper import Keeper
from headway.llm.engine.engine_process_engine_requests import Job, Told
from headway.llm.engine.engine_process_host_process import HostSettings, SharedWeights
from headway.llm.engine.protocol_engine import (
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
    check_scores,
)
from headway.llm.engine.protocol_sessions import AskedTokens, RereadSession, check_opening

SCORE_ATTEMPTS = 5
"""How often a request for scores is asked again because new weights came in the middle of it."""


class HostedEngine:
    """The engine's face in the process that uses it. `shapes` are those of the model's weights, by name."""

    def __init__(
        self,
        settings: HostSettings,
        tokenizer: Any,
        stop_tokens: Sequence[int],
        *,
        context: int,
        shapes: Mapping[str, tuple[int, ...]],
        own_weights: Callable[[], Mapping[str, Any]],
        version: int = 0,
        recompute: bool = False,
        intake: WeightIntake | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_tokens = np.array(sorted(stop_tokens), np.int32)
        self._context = context
        self._shapes = dict(shapes)
        self._own_weights = own_weights
        self._recompute = recompute
        self._asked = AskedTokens()
        self._applied = 0  # how often; what a session's cache is salted with
        self._applying = threading.Lock()
        self._intake = intake or TakesHandles()  # the process gets them through shared memory, from here
        spec = {
            **settings.spec,
            "stop_tokens": tuple(int(token) for token in stop_tokens),
            "version": version,
            "recompute": recompute,
            "beat_s": min(1.0, settings.deadline_s / 4),
        }
        self._keeper = Keeper(replace(settings, spec=spec), version)
        self._finish = weakref.finalize(self, self._keeper.close)
        self._keeper.start()

    # -- the engine's face --------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._keeper.version

    @property
    def pid(self) -> int:
        """Of the process that generates now."""
        return self._keeper.pid

    def generate(self, request: Request) -> list[Sample]:
        return self.generate_all([request])[0]

    def generate_all(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """Several requests of one caller."""
        for request in requests:
            check_fits(request, self._context)
        jobs = self._keeper.ask(requests)
        return [[self._sample(told) for told in job.told if told is not None] for job in self._keeper.wait_for(jobs)]

    def score(self, requests: Sequence[ScoreRequest]) -> list[ContinuationScores]:
        """Each continuation is read by itself; what comes of two versions is asked for once more, as a whole."""
        for request in requests:
            check_scorable(request, self._context)
        answers: dict[int, ContinuationScores] = {}
        for _ in range(SCORE_ATTEMPTS):
            missing = [number for number in range(len(requests)) if number not in answers]
            jobs = self._keeper.wait_for(self._keeper.ask([requests[number] for number in missing]))
            for number, scores in zip(missing, map(_scores, jobs), strict=True):
                if scores is not None:
                    answers[number] = check_scores(requests[number], scores)
            if len(answers) == len(requests):
                return [answers[number] for number in range(len(requests))]
        raise EngineError(f"new weights came in the middle of scoring, {SCORE_ATTEMPTS} times in a row")

    def open(self, uid: str, prompt: Sequence[int], count: int = 1) -> list[Session]:
        check_opening(uid, prompt, count)
        return [RereadSession(self, uid, prompt, self._context, self._session_salt, self._asked) for _ in range(count)]

    def give_up(self, request: Request, why: str) -> None:
        """Ends this one request, if it is under way."""
        self._keeper.give_up(request, why)

    def apply(self, version: int, weights: Any) -> None:
        weights = self._intake.plain(weights)
        for name, part in weights.items():
            if name not in self._shapes:
                raise ValueError(unknown("weight", name, self._shapes))
            if tuple(part.shape) != self._shapes[name]:
                raise ValueError(f"{name} has the shape {tuple(part.shape)}, not {self._shapes[name]}")
        with self._applying:
            self._keeper.apply(version, SharedWeights(self._complete(weights)))
            self._applied += 1

    def pause(self) -> None:
        self._keeper.hold(True)

    def resume(self) -> None:
        self._keeper.hold(False)

    def abort(self, uids: Sequence[str] | None = None) -> int:
        return self._keeper.abort(uids)

    def health(self) -> EngineHealth:
        health = self._keeper.health()
        return replace(health, details={**health.details, **self._asked.statistics()})

    def close(self) -> None:
        self._finish()
        self._intake.close()

    def _session_salt(self) -> str:
        """Returns the name under which sessions that begin now share prefixes, over new weights too unless everything
        is to be read again then. A version may come back, but not its cache."""
        return "" if self._recompute else f"session {self.version}/{self._applied}"

    # -- in the caller's thread ---------------------------------------------------------------------

    def _complete(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """All of the model's weights: what is not given stays as it was. A layer that joins several can only be
        replaced as a whole, and a process that is replaced needs everything."""
        if given.keys() == self._shapes.keys():
            return given
        known = self._keeper.weights
        before = self._own_weights() if known is None else known.tensors()
        return {name: given.get(name, before[name]) for name in self._shapes}

    def _sample(self, told: Told) -> Sample:
        tokens = np.frombuffer(told.tokens, np.int32)
        text = self._tokenizer.decode(tokens[~np.isin(tokens, self._stop_tokens)].tolist())
        log_probs, versions = np.frombuffer(told.log_probs, np.float32), np.frombuffer(told.versions, np.int32)
        return Sample(tokens.copy(), log_probs.copy(), versions.copy(), told.finish, text)


def _scores(job: Job) -> ContinuationScores | None:
    """Returns what a request for scores was told; nothing if that came of two versions."""
    told = [one for one in job.told if one is not None]
    versions = {version for one in told for version in np.frombuffer(one.versions, np.int32).tolist()}
    if len(versions) != 1:
        return None
    return ContinuationScores(tuple(np.frombuffer(one.log_probs, np.float32).copy() for one in told), versions.pop())
