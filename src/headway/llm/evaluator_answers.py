"""Measures one version on questions it is never trained on: pass@1 and pass@k."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from headway.core.types import Score, Snapshot, derive_seed
from headway.llm.engine.protocol_engine import Engine, Request, Sampling
from headway.llm.evaluator_pass_at_k import pass_at_k
from headway.llm.tasks.reward_pool import PoolSettings, scorer_of
from headway.llm.tasks.rewards import part_means, parts_of_all
from headway.llm.tasks.task_sample_text import sample_text
from headway.llm.tasks.tasks import LongPrompt, Prompt, Task


class AnswerEvaluator:
    """Answers held-out questions with an engine of its own, pinned to the version that is measured.

    `samples` answers per question; pass@k is reported for each `k`. A reward of at least `passes_at` is a pass. The
    score is the mean reward over all answers. With `drop_long` a prompt that `encode` finds too long is left out, and
    the next one taken.
    The text of `num_shown` answers goes along for people to read: the first ones to the first questions, the same at
    every evaluation; then the second ones. Where the task has reward functions they are asked as `pool` says, those
    of all answers at once. Texts begin with `system_prompt`, which `encode` puts before every prompt.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        task: Task,
        encode: Callable[[Prompt], tuple[int, ...]],
        *,
        sampling: Sampling,
        prompts: int,
        samples: int = 1,
        ks: Sequence[int] = (1,),
        passes_at: float = 1.0,
        drop_long: bool = False,
        num_shown: int = 0,
        system_prompt: str = "",
        pool: PoolSettings | None = None,
    ) -> None:
        if not len(task.held_out):
            raise ValueError(f"task {task.name} holds out no prompts to evaluate on")
        for k in ks:
            if not 1 <= k <= samples:
                raise ValueError(f"pass@{k} needs at least {k} answers a question, received samples={samples}")
        if samples > 1 and sampling.temperature == 0:
            raise ValueError(f"temperature 0 gives the same answer {samples} times: use one sample, or a temperature")
        self._scorer = scorer_of(task, pool or PoolSettings())
        self._engine = make_engine()
        self._task = task
        self._prompts, self._encoded = _first(task, encode, prompts, drop_long)
        self._sampling = sampling
        self._samples = samples
        self._ks = tuple(ks)
        self._passes_at = passes_at
        self._num_shown = num_shown
        self._system_prompt = system_prompt

    @property
    def num_prompts(self) -> int:
        """Counts the different questions that an evaluation asks."""
        return len({(prompt.text, repr(prompt.truth)) for prompt in self._prompts})

    def close(self) -> None:
        self._scorer.close()
        self._engine.close()

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        if self._engine.version != snapshot.version:
            self._engine.apply(snapshot.version, snapshot.payload)
        requests = [
            Request(f"eval/{prompt.uid}", encoded, self._samples, derive_seed(seed, prompt.uid), self._sampling)
            for prompt, encoded in zip(self._prompts, self._encoded, strict=True)
        ]
        answers = self._engine.generate_all(requests)
        asked = list(zip(self._prompts, answers, strict=True))
        scored = [scores.rewards for scores in self._scorer.score_all(asked)]
        rewards = np.array(scored, float)  # [questions, samples]
        correct = (rewards >= self._passes_at).sum(axis=1)
        metrics = {
            f"pass@{k}": float(np.mean([pass_at_k(self._samples, int(c), k) for c in correct])) for k in self._ks
        }
        metrics |= part_means([parts_of_all(reward for line in scored for reward in line)])
        metrics["prompts"] = float(self.num_prompts)
        metrics["reply_tokens"] = float(np.mean([len(s.tokens) for group in answers for s in group]))
        places = [(question, answer) for answer in range(self._samples) for question in range(len(self._prompts))]
        texts = (
            sample_text(self._prompts[q], answers[q][a], scored[q][a], system_prompt=self._system_prompt)
            for q, a in places[: self._num_shown]
        )
        return Score(snapshot.version, float(rewards.mean()), metrics, samples=tuple(texts))


def _first(
    task: Task, encode: Callable[[Prompt], tuple[int, ...]], count: int, drop_long: bool
) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    """Returns the first so many held-out prompts, and their tokens."""
    prompts, tokens = [], []
    for prompt in itertools.islice(task.held_out, None if drop_long else count):
        try:
            tokens.append(encode(prompt))
            prompts.append(prompt)
        except LongPrompt:
            if not drop_long:
                raise
        if len(prompts) == count:
            break
    if not prompts:
        raise ValueError(f"task {task.name}: every held-out prompt is too long")
    return prompts, tokens
