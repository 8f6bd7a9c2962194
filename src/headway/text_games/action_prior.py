"""A language model's opinion of what could be done: an action is as likely as the model would be to say it.

    situation --chat--> prompt, actions as tokens --engine.score--> log-probabilities of each action's tokens
                                                       |  kept by (version, prompt, action)
    score(a) = mean log-probability of a's tokens      p = softmax(score / T), no p below a floor

The mean, not the sum: a long name of an action would be unlikely by its length alone. The temperature is above 1: a
small model is far too sure of itself, and at 1 it walks to and fro between two rooms.

With a deadline the engine is asked in a thread of its own. Who is not answered in time gets a row of zeros, which means
no opinion, and is counted; the answer is kept when it comes, for whoever asks next. While one question is open no other
is put, so an engine that hangs costs the deadline and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.llm.engine.protocol_engine import Engine, EngineError, ScoreRequest
from headway.text_games.action_prior_opinion_cache import OpinionCache, prompt_digest

CACHE_SIZE = 1 << 16
"""Actions; about 25 MB."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Says what is asked: a prompt in words, and the actions to choose from."""

    prompt: str
    actions: tuple[str, ...]


SituationTokens = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
"""The tokens of the prompt, up to where an action begins, and those of each action."""
EncodeSituation = Callable[[Situation], SituationTokens]
"""How a situation becomes tokens; `ActionChat` (action_chat.py) is the one that models with a chat template need."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """Says how likely each of A actions is; no opinion is a row of zeros."""

    probabilities: np.ndarray  # [A] float32
    log_probs: tuple[np.ndarray, ...]  # of each action [T] float32: of its tokens, at temperature 1; late: empty
    version: int
    is_late: bool = False

    def __post_init__(self) -> None:
        row = self.probabilities
        if row.ndim != 1 or len(row) != len(self.log_probs):
            raise ValueError(
                f"{len(self.log_probs)} actions need as many probabilities, received the shape {row.shape}"
            )
        total = float(row.sum())
        if not (row >= 0).all() or (row.any() and not abs(total - 1) < 1e-3):
            least = float(row.min())
            raise ValueError(
                f"probabilities are >= 0 and sum up to 1, or all 0: received a sum of {total:.4g} and a least of "
                f"{least:.4g}" + (" (are these log-probabilities?)" if least < 0 else "")
            )


class ActionPrior:
    """Asks an engine about situations. The engine is its own: weights come through `apply`, and `close` closes it."""

    def __init__(
        self,
        engine: Engine,
        chat: EncodeSituation,
        *,
        temperature: float = 2.0,
        floor: float = 0.0,
        cache_size: int = CACHE_SIZE,
        cache: OpinionCache | None = None,
        deadline_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        temperature: of the softmax over mean log-probabilities; higher is closer to uniform.
        floor: the least probability of an action; with A actions at most 1 / A.
        cache_size: actions whose scores are kept; 0 keeps nothing.
        cache: where they are kept, shared with others who ask the same model alike; None: one of its own.
        deadline_s: the longest that `opinions` waits for the engine; None: as long as it takes.
        """
        check_softening(temperature, floor)
        if deadline_s is not None and not deadline_s > 0:
            raise ValueError(f"deadline_s must be positive, or None for no limit; received {deadline_s!r}")
        self.version = engine.version
        self._engine = engine
        self._chat = chat
        self._temperature, self._floor = temperature, floor
        self._cache = OpinionCache(cache_size) if cache is None else cache
        self._guard = threading.Lock()  # of the counts
        self._counts = _Counts()
        self._clock = clock
        self._deadline_s = deadline_s
        self._asker = None if deadline_s is None else ThreadPoolExecutor(1, "headway prior")
        self._open_question: Future[_Answers] | None = None

    def apply(self, version: int, weights: Any) -> None:
        """Uses these weights from now on. What other versions have said is kept while there is room."""
        self._engine.apply(version, weights)
        self.version = version

    def tokens(self, situation: Situation) -> SituationTokens:
        """Returns the tokens that the engine is asked about: what a learner trains on."""
        return self._chat(situation)

    def opinions(self, situations: Sequence[Situation]) -> list[Opinion]:
        """Returns an opinion of each situation. All numbers of one are by the same version of the weights."""
        question = self._question(situations)
        answers: _Answers | None = question.known
        if question.missing:
            began = self._clock()
            answers = self._answered(question)
            with self._guard:
                self._counts.seconds += self._clock() - began
        return [self._opinion(situation, answers, question) for situation in situations]

    def statistics(self) -> Mapping[str, float]:
        """Counts so far: situations that were asked about and those that were late; actions that were found in the
        cache, actions that were scored; seconds in which somebody waited for scores."""
        with self._guard:
            counts = self._counts
            return {
                "asked": counts.asked,
                "late": counts.late,
                "cached": counts.cached,
                "scored_actions": counts.scored_actions,
                "seconds": counts.seconds,
            }

    def close(self) -> None:
        self._engine.close()  # whoever waits for it is told
        if self._asker is not None:
            self._asker.shutdown(wait=False, cancel_futures=True)

    # -- what is known and what is missing ------------------------------------------------------------

    def _question(self, situations: Sequence[Situation]) -> _Question:
        """Finds what is known of these situations; games that are in the same place ask together."""
        question = _Question(self.version)
        for situation in situations:
            wanted = question.wanted.setdefault(situation.prompt, {})
            wanted.update(dict.fromkeys(situation.actions))
        with self._guard:
            self._counts.asked += len(situations)
            for prompt, actions in question.wanted.items():
                digest = prompt_digest(prompt)
                found = {action: self._cache.find(question.version, digest, action) for action in actions}
                known = {action: log_probs for action, log_probs in found.items() if log_probs is not None}
                question.known[prompt] = question.version, known
                self._counts.cached += len(known)
                if len(known) < len(actions):
                    question.missing[prompt] = sorted(actions.keys() - known.keys())
        return question

    def _answered(self, question: _Question) -> _Answers | None:
        """Returns everything that was asked; None if that is not there in time."""
        if self._asker is None:
            return self._complete(question)
        until = self._clock() + (self._deadline_s or 0.0)
        if self._open_question is not None and not self._is_over(self._open_question, until):
            return None
        self._open_question = self._asker.submit(self._complete, question)
        if not self._is_over(self._open_question, until):
            return None
        answers = self._open_question.result()
        self._open_question = None
        return answers

    def _is_over(self, question: Future[_Answers], until: float) -> bool:
        """Waits for a question until then; one that failed raises."""
        try:
            question.result(max(0.0, until - self._clock()))
        except TimeoutError:
            if question.done():  # it is the engine's own
                raise
            return False
        return True

    def _complete(self, question: _Question) -> _Answers:
        """Scores what is missing. Where weights came in between, a situation is asked about again, all of it."""
        answers = dict(question.known)
        torn: dict[str, list[str]] = {}
        for prompt, (version, scores) in self._score(question.missing).items():
            before, known = answers[prompt]
            if version == before or not known:
                answers[prompt] = version, {**known, **scores}
            else:
                torn[prompt] = sorted(question.wanted[prompt])
        return {**answers, **self._score(torn)} if torn else answers

    def _score(self, wanted: Mapping[str, Sequence[str]]) -> _Answers:
        """Asks the engine; the order of actions is always the same, so that equal questions get equal bits."""
        requests = []
        for number, (prompt, actions) in enumerate(wanted.items()):
            tokens, continuations = self._chat(Situation(prompt, tuple(actions)))
            requests.append(ScoreRequest(tokens, continuations, f"situation {number}"))
        answers: _Answers = {}
        for (prompt, actions), scores in zip(wanted.items(), self._engine.score(requests), strict=True):
            answers[prompt] = scores.version, dict(zip(actions, scores.log_probs, strict=True))
        with self._guard:
            for prompt, (version, found) in answers.items():
                digest = prompt_digest(prompt)
                for action, log_probs in found.items():
                    self._cache.keep(version, digest, action, log_probs)
                self._counts.scored_actions += len(found)
        return answers

    def _opinion(self, situation: Situation, answers: _Answers | None, question: _Question) -> Opinion:
        if answers is None:
            if situation.prompt in question.missing:
                return self._late(situation)
            answers = question.known
        version, scores = answers[situation.prompt]
        log_probs = tuple(scores[action] for action in situation.actions)
        return Opinion(softened(log_probs, self._temperature, self._floor), log_probs, version)

    def _late(self, situation: Situation) -> Opinion:
        with self._guard:
            self._counts.late += 1
        num = len(situation.actions)
        nothing = tuple(np.zeros(0, np.float32) for _ in range(num))
        return Opinion(np.zeros(num, np.float32), nothing, self.version, is_late=True)


_Answers = dict[str, tuple[int, dict[str, np.ndarray]]]
"""By the prompt: the version, and by the action the log-probabilities of its tokens."""


@dataclass(slots=True)
class _Question:
    """Holds what is asked at once, by the prompt."""

    version: int
    wanted: dict[str, dict[str, None]] = field(default_factory=dict)
    known: _Answers = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Counts:
    asked: int = 0
    late: int = 0
    cached: int = 0
    scored_actions: int = 0
    seconds: float = 0.0


def check_softening(temperature: float, floor: float) -> None:
    """Refuses numbers that make no probabilities of scores."""
    if not 0 < temperature < np.inf:
        raise ValueError(f"the prior's temperature must be positive, received {temperature!r}")
    if not 0 <= floor < 1:
        raise ValueError(f"the prior's floor must be in [0, 1), received {floor!r}")


def softened(log_probs: Iterable[np.ndarray], temperature: float, floor: float = 0.0) -> np.ndarray:
    """Makes probabilities [A] float32 of the log-probabilities of each action's tokens, none below the floor."""
    scores = np.array([row.mean(dtype=np.float64) for row in log_probs]) / temperature
    if not len(scores):
        return np.zeros(0, np.float32)
    if not np.isfinite(scores.max()):
        raise EngineError(f"none of {len(scores)} actions has a log-probability that is a number")
    weights = np.exp(scores - scores.max())
    share = min(1.0, floor * len(scores))
    row: np.ndarray = ((1 - share) * weights / weights.sum() + share / len(scores)).astype(np.float32)
    return row
