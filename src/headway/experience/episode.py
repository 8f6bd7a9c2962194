"""Episodes of a language model in an environment that answers it, token by token.

    prompt      p0 p1 p2                                       what all episodes of the record begin with
    tokens      a0 a1 | x0 x1 x2 | b0 b1 b2 || c0 | y0 | d0    two episodes: reply, observation, reply
    trained      1  1    0  0  0    1  1  1     1    0    1    the policy drew it
    turn         0  0    0  0  0    1  1  1     0    0    1
    rewards      0 .............    1 ......    0 ....    0.5  one a turn

The record is append-only: tokens stand in the order and in the form in which the policy drew and read them, and are
never rendered again. A turn is a reply and what the environment says to it; a prefix, with which a reply is made to
begin, belongs to the turn of that reply. Only what the policy drew is trained on, counted and measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headway.core.types import Span
from headway.experience.group import Group

ENDS = {"done": "stop", "turns": "length", "tokens": "length", "deadline": "deadline"}
"""Why an episode ended, and what that is called of a single reply."""
Tokens = Sequence[int] | np.ndarray
_ENDS_OF_REPLIES = {"stop": "done", "length": "tokens", "deadline": "deadline"}


@dataclass(frozen=True, slots=True)
class Episodes:
    """E episodes from one prompt of P tokens: T tokens and N turns in all. Every turn has a trained token."""

    prompt: np.ndarray  # [P] int32: the first message, shared by the episodes
    tokens: np.ndarray  # [T] int32: the episodes end to end
    trained: np.ndarray  # [T] bool: the policy drew it
    log_probs: np.ndarray  # [T] float32: with which it was drawn; 0 where it was not
    versions: np.ndarray  # [T] int32: whose weights drew it, or read it first
    turn: np.ndarray  # [T] int16: counted from 0 in each episode
    rewards: np.ndarray  # [N] float32: of each turn, the episodes end to end
    lengths: np.ndarray  # [E] int64: tokens of each episode
    turns: np.ndarray  # [E] int64: turns of each episode
    end: tuple[str, ...]  # [E]: done, turns, tokens or deadline
    uid: str = ""

    def __post_init__(self) -> None:
        count, size, turns = len(self.tokens), len(self.lengths), int(self.turns.sum())
        for name in ("trained", "log_probs", "versions", "turn"):
            if len(getattr(self, name)) != count:
                raise ValueError(f"{self} have {count} tokens and {len(getattr(self, name))} numbers in {name!r}")
        if not size or (self.lengths < 1).any() or int(self.lengths.sum()) != count:
            raise ValueError(f"{self} have {count} tokens, which lengths {self.lengths.tolist()} do not share out")
        if len(self.turns) != size or len(self.end) != size:
            raise ValueError(f"{self}: {size} lengths, {len(self.turns)} turns and {len(self.end)} ends")
        if len(self.rewards) != turns:
            raise ValueError(f"{self} have {turns} turns and {len(self.rewards)} rewards")
        for word in self.end:
            if word not in ENDS:
                raise ValueError(f"{self}: an episode ends by {', '.join(ENDS)}, received {word!r}")
        if self.log_probs[~self.trained].any():
            raise ValueError(f"{self} have log-probabilities of tokens that the policy did not draw")
        number = np.repeat(np.cumsum(self.turns) - self.turns, self.lengths) + self.turn  # [T]: of the turn among all N
        bounds = np.repeat(np.cumsum(self.turns), self.lengths)
        if (number >= bounds).any() or (np.diff(number) < 0).any():
            raise ValueError(f"{self}: the turns of tokens do not count up to {self.turns.tolist()}")
        if (np.bincount(number[self.trained], minlength=turns) == 0).any():
            raise ValueError(f"{self} have a turn in which the policy drew no token")

    def __str__(self) -> str:
        return f"the episodes of {self.uid or 'a prompt'}"

    @property
    def num_trained(self) -> np.ndarray:
        """Tokens that the policy drew, [E]."""
        return np.add.reduceat(self.trained.astype(np.int64), np.cumsum(self.lengths) - self.lengths)

    @property
    def returns(self) -> np.ndarray:
        """The sum of each episode's rewards, [E] float32."""
        return np.add.reduceat(self.rewards, np.cumsum(self.turns) - self.turns)

    @property
    def span(self) -> Span:
        """The versions that drew tokens."""
        drawn = self.versions[self.trained]
        return Span(int(drawn.min()), int(drawn.max()))

    @property
    def length(self) -> float:
        """The most tokens that the policy drew in an episode: they decide how long the record takes."""
        return float(self.num_trained.max())

    @classmethod
    def join(cls, parts: Sequence[Episodes]) -> Episodes:
        """Episodes of the same prompt in one record."""
        first = parts[0]
        for part in parts:
            if not np.array_equal(part.prompt, first.prompt):
                raise ValueError(f"{part} and {first} begin with different prompts")

        def all_of(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        ends = tuple(word for part in parts for word in part.end)
        return cls(first.prompt, **{name: all_of(name) for name in _ARRAYS}, end=ends, uid=first.uid)

    @classmethod
    def of_group(cls, group: Group) -> Episodes:
        """Replies as episodes of one turn. What else a reward's function has measured is left behind."""
        if not group.finish:
            raise ValueError(f"{group} does not know how its replies finished")
        count, size = len(group.tokens), len(group.lengths)
        return cls(
            group.prompt,
            group.tokens,
            np.ones(count, bool),
            group.log_probs,
            group.versions,
            np.zeros(count, np.int16),
            group.rewards,
            group.lengths,
            np.ones(size, np.int64),
            tuple(_ENDS_OF_REPLIES[word] for word in group.finish),
            group.uid,
        )

    def as_group(self) -> Group:
        """The other way, for episodes of one turn in which the policy drew every token."""
        if (self.turns > 1).any() or not self.trained.all():
            raise ValueError(f"{self} are no single replies: {int(self.turns.max())} turns, and what was said to them")
        finish = tuple(ENDS[word] for word in self.end)
        arrays = self.prompt, self.tokens, self.lengths, self.log_probs, self.versions, self.rewards
        return Group(*arrays, finish=finish, uid=self.uid)


_ARRAYS = ("tokens", "trained", "log_probs", "versions", "turn", "rewards", "lengths", "turns")


class _Part(NamedTuple):
    """Some tokens in a row of one turn, all of them drawn or none."""

    turn: int
    trained: bool
    tokens: np.ndarray
    log_probs: np.ndarray
    versions: np.ndarray


class EpisodeBuilder:
    """One episode under way: what is drawn and what is said are appended, turn by turn."""

    def __init__(self, prompt: Tokens, uid: str = "") -> None:
        self._prompt = np.asarray(prompt, np.int32)
        self._uid = uid
        self._parts: list[_Part] = []
        self._rewards: list[float] = []

    def __str__(self) -> str:
        return self._uid or "an episode"

    @property
    def num_turns(self) -> int:
        return len(self._rewards)

    @property
    def tokens(self) -> np.ndarray:
        """All that was drawn and said so far behind the prompt, [T] int32."""
        return np.concatenate([np.zeros(0, np.int32), *(part.tokens for part in self._parts)])

    def add_prefix(self, tokens: Tokens, version: int) -> None:
        """What the next reply is made to begin with."""
        self._add(self.num_turns, tokens, None, version)

    def add_reply(self, tokens: Tokens, log_probs: np.ndarray, versions: np.ndarray | int, reward: float = 0.0) -> None:
        """What the policy drew, and what it earned: a new turn."""
        if not len(tokens):
            raise ValueError(f"turn {self.num_turns} of {self}: a reply needs at least one token")
        self._add(self.num_turns, tokens, log_probs, versions)
        self._rewards.append(reward)

    def add_observation(self, tokens: Tokens, version: int) -> None:
        """What the environment said to the last reply."""
        if not self._rewards:
            raise ValueError(f"{self}: the first observation is the prompt; a reply comes first")
        self._add(self.num_turns - 1, tokens, None, version)

    def finish(self, end: str) -> Episodes:
        """The record of this one episode; a prefix without its reply is left out."""
        parts = [part for part in self._parts if part.turn < self.num_turns]
        if not parts:
            raise ValueError(f"{self} ended ({end}) before its first reply: nothing can be learned")
        sizes = [len(part.tokens) for part in parts]
        return Episodes(
            prompt=self._prompt,
            tokens=np.concatenate([part.tokens for part in parts]),
            trained=np.repeat([part.trained for part in parts], sizes),
            log_probs=np.concatenate([part.log_probs for part in parts]),
            versions=np.concatenate([part.versions for part in parts]),
            turn=np.repeat(np.array([part.turn for part in parts], np.int16), sizes),
            rewards=np.array(self._rewards, np.float32),
            lengths=np.array([sum(sizes)], np.int64),
            turns=np.array([self.num_turns], np.int64),
            end=(end,),
            uid=self._uid,
        )

    def _add(self, turn: int, tokens: Tokens, log_probs: np.ndarray | None, versions: np.ndarray | int) -> None:
        size = len(tokens)
        logs = np.zeros(size, np.float32) if log_probs is None else np.asarray(log_probs, np.float32)
        made = np.full(size, versions, np.int32)
        self._parts.append(_Part(turn, log_probs is not None, np.asarray(tokens, np.int32), logs, made))
