"""Groups of replies to one prompt.

    ticket --> prompt (its index says which) --> engine: G replies --> rewards --> rollout

Rewards of functions and models are computed beside generation (`llm/tasks/reward_pool.py`): a lane waits for those of
its own
group, and the engine goes on with the others.

A collector holds its engine, so weights are pushed to it (`apply`) and a rollout's span is what the engine stamped
on the tokens. The prompt depends on the ticket's index, the replies on its seed and the weights: a ticket that flies
again asks the same question. Many tickets may be collected at once: they share the engine's batch.

A rollout holds a `Group` (llm/rollouts_group.py). A group whose rewards are all equal has nothing to say to an
estimator that compares within groups; with `filter_silent` it is marked as filtered and dropped, counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from headway.core.types import HEALTH, MEASURES, SAMPLES, Rollout, Snapshot, Span, Ticket
from headway.llm.engine.protocol_engine import Engine, Request, Sample, Sampling
from headway.llm.rollouts_group import Group
from headway.llm.tasks.reward_pool import GroupScores, PoolSettings, scorer_of
from headway.llm.tasks.rewards import Scored, parts_of, parts_of_all
from headway.llm.tasks.task_sample_text import sample_text
from headway.llm.tasks.tasks import LongPrompt, Prompt, Task

Encode = Callable[[Prompt], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Says how groups are made."""

    size: int = 8
    """Replies per prompt."""
    sampling: Sampling = field(default_factory=Sampling)
    filter_silent: bool = False
    """Drop groups whose rewards are all equal."""
    length_penalty: Callable[[int], float] | None = None
    """Added to the reward of a reply of so many tokens."""
    deadline_s: float | None = None
    """A group that is not whole in this time is ended in the engine; None: no limit."""
    on_deadline: Literal["fail", "cut"] = "fail"
    """Then it fails, or each reply is what there is of it."""
    drop_long: bool = False
    """A prompt that `encode` finds too long is filtered, instead of an error."""
    shown: Fraction = Fraction(0)
    """Replies of a group whose text goes along for people to read, on average: 1/2 is one of every second group."""
    system_prompt: str = ""
    """What `encode` puts before every prompt, for those texts."""
    left_out: int = 0
    """Prompts that the task was given without, because they are too long. Only told."""
    pool: PoolSettings = field(default_factory=PoolSettings)
    """How rewards are computed, where the task has functions for them."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a group needs at least one reply, received {self.size!r}")
        if self.shown < 0:
            raise ValueError(f"shown must be >= 0, received {self.shown!r}")

    def num_shown(self, index: int) -> int:
        """Returns how many replies of this ticket's group go along as text."""
        return min(self.size, int(self.shown * (index + 1)) - int(self.shown * index))


class GroupCollector:
    """Collects groups with an engine of its own. `make_engine` is called where the collector runs."""

    is_concurrent = True

    def __init__(self, make_engine: Callable[[], Engine], task: Task, encode: Encode, settings: GroupSettings) -> None:
        self._task = task
        self._encode = encode
        self._settings = settings
        self._scorer = scorer_of(task, settings.pool)
        self._engine = make_engine()

    @property
    def engine(self) -> Engine:
        """What generates; whoever borrows it leaves it with the weights it likes."""
        return self._engine

    def apply(self, snapshot: Snapshot) -> None:
        if snapshot.version != self._engine.version:
            self._engine.apply(snapshot.version, snapshot.payload)

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        prompt = self._task.prompt(ticket.index)
        try:
            encoded = self._encode(prompt)
        except LongPrompt:
            if not self._settings.drop_long:
                raise
            return _nothing(prompt, snapshot.version)
        samples = self.generate(self._engine, prompt, encoded, ticket)
        scores = self.rewards(prompt, samples)
        rewards = scores.rewards
        rollout = self._rollout(prompt, encoded, samples, scores)
        number = self._settings.num_shown(ticket.index)
        if not number:
            return rollout
        some = zip(samples[:number], rewards, strict=False)
        before = self._settings.system_prompt
        texts = [sample_text(prompt, one, reward, self._penalty(one), system_prompt=before) for one, reward in some]
        return replace(rollout, info={**rollout.info, SAMPLES: texts})

    def generate(self, engine: Engine, prompt: Prompt, encoded: tuple[int, ...], ticket: Ticket) -> Sequence[Sample]:
        """Generates the replies to one prompt. Override it to generate in a way of your own."""
        uid = f"{prompt.uid}#{ticket.index}.{ticket.attempt}"
        settings = self._settings
        timing = settings.deadline_s, settings.on_deadline
        return engine.generate(Request(uid, encoded, settings.size, ticket.seed, settings.sampling, *timing))

    def reward(self, prompt: Prompt, sample: Sample) -> float:
        """Says what one reply is worth. Override it to score in a way of your own, one reply after another."""
        return self._penalized(self._scorer.score(prompt, [sample]).rewards[0], sample)

    def rewards(self, prompt: Prompt, samples: Sequence[Sample]) -> GroupScores:
        """Says what the replies to a prompt are worth, all at once."""
        if type(self).reward is not GroupCollector.reward:
            return GroupScores([self.reward(prompt, sample) for sample in samples])
        scores = self._scorer.score(prompt, samples)
        rewards = [self._penalized(reward, one) for reward, one in zip(scores.rewards, samples, strict=True)]
        return GroupScores(rewards, scores.measures)

    def _penalized(self, reward: float, sample: Sample) -> float:
        penalty = self._settings.length_penalty
        return reward if penalty is None else Scored(reward + penalty(len(sample.tokens)), parts_of(reward))

    def _penalty(self, sample: Sample) -> dict[str, float]:
        penalty = self._settings.length_penalty
        return {} if penalty is None else {"length": penalty(len(sample.tokens))}

    def doing(self) -> list[str]:
        """Says which reward calls are under way or hang, since when."""
        return self._scorer.doing()

    def close(self) -> None:
        self._scorer.close()
        self._engine.close()

    def health(self) -> dict[str, float]:
        health = self._engine.health()
        return {
            "running": health.running,
            "waiting": health.waiting,
            "tokens": health.tokens,
            "seconds_since_step": round(health.seconds_since_step, 3),
            **({"prompts_left_out": self._settings.left_out} if self._settings.left_out else {}),
            **self._scorer.health(),
        }

    def _rollout(
        self, prompt: Prompt, encoded: tuple[int, ...], samples: Sequence[Sample], scores: GroupScores
    ) -> Rollout:
        rewards = scores.rewards
        part_names, parts = parts_of_all(rewards)
        group = Group(
            prompt=np.array(encoded, np.int32),
            tokens=np.concatenate([sample.tokens for sample in samples]),
            lengths=np.array([len(sample.tokens) for sample in samples], np.int64),
            log_probs=np.concatenate([sample.log_probs for sample in samples]),
            versions=np.concatenate([sample.versions for sample in samples]),
            rewards=np.array(rewards, np.float32),
            finish=tuple(sample.finish for sample in samples),
            part_names=part_names,
            parts=parts,
            uid=prompt.uid,
        )
        info = {
            "uid": prompt.uid,
            "index": prompt.index,
            "data_source": prompt.data_source,
            "truth": prompt.truth,
            HEALTH: self.health(),
            **({MEASURES: scores.measures} if scores.measures else {}),
        }
        return Rollout(
            group,
            steps=len(group.tokens),
            length=group.length,
            span=group.span,
            info=info,
            filtered=self._settings.filter_silent and len(set(rewards)) == 1,
        )


def _nothing(prompt: Prompt, version: int) -> Rollout:
    """Returns a rollout in place of a group whose prompt is too long: it is filtered."""
    info = {"uid": prompt.uid, "index": prompt.index, "data_source": prompt.data_source}
    return Rollout(None, steps=0, span=Span(version, version), info=info, filtered=True)
