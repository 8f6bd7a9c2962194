"""What generates text: the seam between rollouts and an inference engine.

    generate(request) ----> waiting ----> running (one token a step, many requests at once) ----> samples
                                             ^
    apply(version, weights) -----------------+   between two steps: every token carries the version that made it

A request asks for several samples of one prompt. What is sampled depends on the weights, the prompt and the
request's seed: each token has a random number of its own, made from seed, sample and place. So the neighbours in
the batch, the moment of admission and the number of the attempt do not matter.

    open(prompt, n) ----> n sessions: say(tokens), reply(sampling, seed), say, reply, ... close

A session is a conversation, and only what is new in it is read where the engine can keep the rest. What it replies is
what `generate` would reply to everything said and replied so far.

    score(prompt, continuations) ----> the log-probability of every token of every continuation

Nothing is drawn then: the engine says how likely it would be to draw what somebody else has written. A prompt is read
once for all of its continuations where the model can be read in trees (trees.py).

`generate` may be called from many threads at once and returns when its samples are whole. `pause` holds all
generation between two steps; nothing is lost. Weights may be applied while requests run (a partial rollout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from headway.core.protocols import CannotGoOn
from headway.core.types_lent import taken


class EngineError(RuntimeError):
    """The engine cannot do what was asked. One line."""


class EngineOver(CannotGoOn, EngineError):
    """The engine is gone for good."""


class Aborted(EngineError):
    """The request was given up, by `abort` or because the engine stops."""


class Overdue(Aborted):
    """The request was given up because it was not whole within its own deadline."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Says how tokens are chosen.

    A token's log-probability is the one it was drawn with: that of the policy at this temperature, divided among the
    tokens that `top_k` and `top_p` have left. A trainer computes that of the whole policy, and its correction sees the
    difference.
    """

    temperature: float = 1.0
    """0 takes the most likely token."""
    top_k: int = 0
    """Only the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Only the most likely tokens that together have this probability."""
    max_tokens: int = 256
    """Longest reply."""
    min_tokens: int = 0
    """No end before this many tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply; the reply keeps them."""

    @property
    def is_cut(self) -> bool:
        """Says whether only some of the tokens can be drawn."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def choice(self) -> tuple[float, int, float]:
        """Returns what decides how one token is drawn: requests that agree on it can share a step."""
        return self.temperature, self.top_k, self.top_p

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be >= 0, received {self.temperature!r}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0: all), received {self.top_k!r}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], received {self.top_p!r}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, received {self.max_tokens!r}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"min_tokens must be in [0, {self.max_tokens}], received {self.min_tokens!r}")
        if any(not text for text in self.stop):
            raise ValueError("a stop string must not be empty")


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for several samples of one prompt."""

    uid: str
    prompt: tuple[int, ...]
    num_samples: int = 1
    seed: int = 0
    sampling: Sampling = Sampling()
    deadline_s: float | None = None
    """All samples must be whole within this time from the call on, waiting included. None: no limit."""
    on_deadline: Literal["fail", "cut"] = "fail"
    """What happens then: the request raises Overdue, or what there is of each sample is the sample, with the finish
    `deadline`. A request of which a sample has no token yet cannot be cut: it fails."""
    salt: str = ""
    """Requests with the same salt may use what any of them has left in an engine's cache of prefixes, even if other
    weights have read it. Nothing: only what was read by the weights in use."""

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ValueError(f"deadline_s must be positive, or None for no limit; received {self.deadline_s!r}")


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds one reply, token by token."""

    tokens: np.ndarray  # [T] int32, the stop token included
    log_probs: np.ndarray  # [T] float32: with which each token was drawn, temperature and cut included
    versions: np.ndarray  # [T] int32: the version whose weights made each token
    finish: str
    """stop (a stop token or string), length, or deadline (cut short by the request's own)."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Reply(Sample):
    """Holds one reply of a session."""

    read_by: int = 0
    """The version that read what was said since the reply before. What was said earlier was read by it too, if the
    engine recomputes; else by the version of its own time, unless it had to be read again."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Asks how likely each of several continuations of one prompt is."""

    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    uid: str = ""


@dataclass(frozen=True, slots=True)
class ContinuationScores:
    """Holds the log-probabilities of given continuations, all by the weights of one version."""

    log_probs: tuple[np.ndarray, ...]  # of each continuation [T] float32, at temperature 1
    version: int


class Session(Protocol):
    """One conversation with an engine: tokens are only ever added to it.

    One caller at a time; `close` may come from any thread. A reply that fails leaves the session as it was before.
    """

    def say(self, tokens: Sequence[int]) -> None:
        """Add tokens that the policy has not drawn. They are read when the next reply is asked for."""
        ...

    def reply(
        self,
        sampling: Sampling,
        *,
        seed: int,
        deadline_s: float | None = None,
        on_deadline: Literal["fail", "cut"] = "fail",
    ) -> Reply:
        """Draw what comes next, which then belongs to the conversation; waits until it is whole."""
        ...

    def close(self) -> None:
        """End it, and free what the engine keeps for it. A reply under way raises Aborted."""
        ...


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Says what an engine is doing at one moment."""

    version: int
    running: int
    """Samples being generated."""
    waiting: int
    """Samples that wait for a place."""
    is_paused: bool
    tokens: int
    """Generated so far."""
    steps: int
    seconds_since_step: float
    """Since the last step ended, or since the engine was built; grows while there is nothing to do too."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Among others: tokens_read (prompts and what was said), tokens_reread (those of them that had been read before),
    evictions (sessions that lost their row) and parked (those that keep one between two turns)."""


class WeightIntake(Protocol):
    """Makes plain weights of whatever was published. An engine has one of its own, for one thread at a time."""

    def plain(self, weights: Any) -> Any:
        """Weights by name. Raises LentLost in one line where they cannot be had."""
        ...

    def close(self) -> None: ...


class TakesHandles:
    """The intake of an engine that is given no other: a handle is taken into the memory of this machine."""

    def plain(self, weights: Any) -> Any:
        return taken(weights)

    def close(self) -> None:
        pass


class Engine(Protocol):
    """Generates with weights that can be replaced while it runs."""

    @property
    def version(self) -> int: ...

    def generate(self, request: Request) -> list[Sample]: ...

    def generate_all(self, requests: Sequence[Request]) -> list[list[Sample]]: ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[ContinuationScores]:
        """Compute the log-probabilities of what is given, at temperature 1, as those of drawing it token by token.

        From many threads at once, as `generate`; `pause`, `abort` and `close` mean the same here.
        """
        ...

    def open(self, uid: str, prompt: Sequence[int], count: int = 1) -> list[Session]:
        """Begin `count` conversations with one prompt, which is read once for all of them, by the first reply.

        `abort` knows all of them by this uid.
        """
        ...

    def apply(self, version: int, weights: Any) -> None:
        """Use these weights from the next step on. Returns when every later token will be made by them.

        Weights by name, all or those that changed; or a handle of them (core/types_lent.py), which its intake follows.
        What cannot be had, or does not fit, raises and changes nothing.
        """
        ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self, uids: Sequence[str] | None = None) -> int:
        """Give up these requests, or all: their `generate` raises Aborted. Returns how many samples that were."""
        ...

    def health(self) -> EngineHealth: ...

    def close(self) -> None: ...


def check_fits(request: Request, context: int) -> None:
    """Refuses a request whose prompt does not leave room for its reply."""
    if not request.prompt:
        raise EngineError(f"the prompt of {request.uid} is empty")
    if len(request.prompt) + request.sampling.max_tokens > context:
        raise EngineError(
            f"the prompt of {request.uid} has {len(request.prompt)} tokens and may get "
            f"{request.sampling.max_tokens} more; the context is {context}"
        )


def check_session_fits(request: Request, context: int) -> None:
    """Refuses a session's request that does not leave room for its reply."""
    if len(request.prompt) + request.sampling.max_tokens > context:
        raise EngineError(
            f"the session {request.uid} has {len(request.prompt)} tokens and may get "
            f"{request.sampling.max_tokens} more; the context is {context}"
        )


def check_scorable(request: ScoreRequest, context: int) -> None:
    """Refuses a request for scores that cannot be answered, in one line."""
    if not request.prompt:
        raise EngineError(f"the prompt of {request.uid!r} is empty")
    if not request.continuations:
        raise EngineError(f"{request.uid!r} asks for the scores of no continuation")
    for number, continuation in enumerate(request.continuations):
        if not continuation:
            raise EngineError(f"continuation {number} of {request.uid!r} is empty: it has no log-probability")
        if len(request.prompt) + len(continuation) > context:
            raise EngineError(
                f"the prompt of {request.uid!r} has {len(request.prompt)} tokens and continuation {number} has "
                f"{len(continuation)}; the context is {context}"
            )


def check_scores(request: ScoreRequest, scores: ContinuationScores) -> ContinuationScores:
    """Returns scores that are numbers; refuses others in one line."""
    for number, log_probs in enumerate(scores.log_probs):
        if np.isnan(log_probs).any():
            raise EngineError(
                f"the log-probabilities of continuation {number} of {request.uid!r} are not numbers (NaN): "
                f"look at the weights of version {scores.version}"
            )
    return scores


def overdue(request: Request, missing: int) -> Overdue:
    """Makes the error of a request that was not whole in time; of `missing` samples there is nothing to keep."""
    line = f"{request.uid}: not whole within {request.deadline_s:g} s"
    if request.on_deadline == "cut":
        line += f", and {missing} of {request.num_samples} samples had no token by then"
    return Overdue(line)
