"""Episodes of a language model in an environment that answers it, token by token.

    prompt      p0 p1 p2                                       what all episodes of the record begin with
    tokens      a0 a1 | x0 x1 x2 | b0 b1 b2 || c0 | y0 | d0    two episodes: reply, observation, reply
    trained      1  1    0  0  0    1  1  1     1    0    1    the policy drew it
    turn         0  0    0  0  0    1  1  1     0    0    1
    rewards      0 .............    1 ......    0 ....    0.5  one a turn
    states       7 .............    9 ......    7 ....    -4   where a turn began: equal numbers are equal states

The record is append-only: tokens stand in the order and in the form in which the policy drew and read them, and are
never rendered again. A turn is a reply and what the environment says to it; a prefix, with which a reply is made to
begin, belongs to the turn of that reply. Only what the policy drew is trained on, counted and measured.

A state has a number of at least 0 (`state_number` makes it of a key). Where a state is not known, a negative number
stands that no other turn of the record has, so it equals nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from headway.core.types import Span
from headway.llm.rollouts_group import Group

ENDS = {"done": "stop", "turns": "length", "tokens": "length", "deadline": "deadline"}
"""Why an episode ended, and what that is called of a single reply."""
Tokens = Sequence[int] | np.ndarray
_ENDS_OF_REPLIES = {"stop": "done", "length": "tokens", "deadline": "deadline"}
SUCCESS_RETURN = 1.0
"""An episode of a game that does not say whether it was a success is one from this return on."""


def state_number(key: str) -> int:
    """Makes of a state's key the number by which records know it: the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def _nothing() -> np.ndarray:
    return np.zeros(0)


def _no_parts() -> np.ndarray:
    return np.zeros((0, 0), np.float32)


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
    states: np.ndarray = field(default_factory=_nothing)  # [N] int64: where each turn began; left out: not known
    success: np.ndarray = field(default_factory=_nothing)  # [E] float32: 1, 0, or nan where the game did not say
    part_names: tuple[str, ...] = ()  # [K]: other numbers that the environment has measured
    parts: np.ndarray = field(default_factory=_no_parts)  # [K, E] float32; nan where it did not say
    forks: np.ndarray = field(default_factory=_nothing)  # [E] bool: of the same run as the episode before it

    def __post_init__(self) -> None:
        count, size, turns = len(self.tokens), len(self.lengths), int(self.turns.sum())
        self._fill_in(size, turns)
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
        if len(self.states) != turns or len(self.success) != size:
            told = f"{len(self.states)} states and {len(self.success)} successes"
            raise ValueError(f"{self} have {turns} turns in {size} episodes, but {told}")
        if len(self.forks) != size or self.forks[0]:
            raise ValueError(f"{self} have {size} episodes, and forks {self.forks.tolist()}: the first one is none")
        if self.part_names and self.parts.shape != (len(self.part_names), size):
            told = f"received {self.parts.shape} numbers"
            raise ValueError(f"{self} have {len(self.part_names)} parts of {size} episodes, {told}")

    def _fill_in(self, size: int, turns: int) -> None:
        """Gives what is not known its place: states that equal nothing, also after records were joined."""
        states = np.asarray(self.states, np.int64) if len(self.states) else np.full(turns, -1, np.int64)
        states = np.where(states < 0, -1 - np.arange(len(states)), states)
        success = np.asarray(self.success, np.float32) if len(self.success) else np.full(size, np.nan, np.float32)
        forks = np.asarray(self.forks, bool) if len(self.forks) else np.zeros(size, bool)
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "success", success)
        object.__setattr__(self, "forks", forks)

    def __str__(self) -> str:
        return f"the episodes of {self.uid or 'a prompt'}"

    @property
    def size(self) -> int:
        """How many episodes there are."""
        return len(self.lengths)

    @property
    def num_trained(self) -> np.ndarray:
        """Tokens that the policy drew, [E]."""
        return np.add.reduceat(self.trained.astype(np.int64), np.cumsum(self.lengths) - self.lengths)

    @property
    def returns(self) -> np.ndarray:
        """The sum of each episode's rewards, [E] float32. All episodes of a run have that of its first."""
        whole = np.add.reduceat(self.rewards.astype(np.float64), np.cumsum(self.turns) - self.turns)
        # so that equal sums are equal, in whichever order and in whichever fork they were earned
        return whole.astype(np.float32)[~self.forks][self.run]

    @property
    def run(self) -> np.ndarray:
        """The number of each episode's run, [E]: an agent that forks its conversation makes several episodes in one."""
        return np.cumsum(~self.forks) - 1

    def sums_of_runs(self, values: np.ndarray) -> np.ndarray:
        """Adds up over the episodes of each run, [E] -> [runs]."""
        return np.add.reduceat(values, np.flatnonzero(~self.forks))

    @property
    def succeeded(self) -> np.ndarray:
        """Which episodes are successes, [E] bool: as the game said, or by their return where it did not."""
        return np.where(np.isnan(self.success), self.returns >= SUCCESS_RETURN, self.success > 0)

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
        """Episodes of the same prompt in one record. A part that only some of them have is nan in the others."""
        first = parts[0]
        for part in parts:
            if not np.array_equal(part.prompt, first.prompt):
                raise ValueError(f"{part} and {first} begin with different prompts")

        def all_of(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        ends = tuple(word for part in parts for word in part.end)
        names = tuple(dict.fromkeys(name for part in parts for name in part.part_names))
        return cls(
            first.prompt,
            **{name: all_of(name) for name in _ARRAYS},
            end=ends,
            uid=first.uid,
            part_names=names,
            parts=np.concatenate([part._parts_as(names) for part in parts], 1) if names else _no_parts(),
            forks=all_of("forks"),
        )

    def as_one_run(self) -> Episodes:
        """The same episodes, as those of one run."""
        return replace(self, forks=np.arange(self.size) > 0)

    def take(self, places: Sequence[int] | np.ndarray) -> Episodes:
        """Some of the episodes, by their places and in that order, in a record of their own."""
        chosen = np.asarray(places, np.int64)
        run = self.run[chosen]
        tokens, turns = _ranges(self.lengths, chosen), _ranges(self.turns, chosen)
        return Episodes(
            self.prompt,
            **{name: getattr(self, name)[tokens] for name in _OF_TOKENS},
            **{name: getattr(self, name)[turns] for name in _OF_TURNS},
            **{name: getattr(self, name)[chosen] for name in _OF_EPISODES},
            end=tuple(self.end[place] for place in chosen),
            uid=self.uid,
            part_names=self.part_names,
            parts=self.parts[:, chosen] if self.part_names else self.parts,
            forks=np.diff(run, prepend=-1) == 0,
        )

    def _parts_as(self, names: Sequence[str]) -> np.ndarray:
        """The parts of these names, [names, E]."""
        unknown = np.full(self.size, np.nan, np.float32)
        known = dict(zip(self.part_names, self.parts, strict=False))
        return np.stack([known.get(name, unknown) for name in names])

    @classmethod
    def of_group(cls, group: Group) -> Episodes:
        """Replies as episodes of one turn."""
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
            part_names=group.part_names,
            parts=group.parts,
        )

    def as_group(self) -> Group:
        """The other way, for episodes of one turn in which the policy drew every token."""
        if (self.turns > 1).any() or not self.trained.all():
            raise ValueError(f"{self} are no single replies: {int(self.turns.max())} turns, and what was said to them")
        finish = tuple(ENDS[word] for word in self.end)
        arrays = self.prompt, self.tokens, self.lengths, self.log_probs, self.versions, self.rewards
        return Group(*arrays, finish=finish, part_names=self.part_names, parts=self.parts, uid=self.uid)


_OF_TOKENS = ("tokens", "trained", "log_probs", "versions", "turn")
_OF_TURNS = ("rewards", "states")
_OF_EPISODES = ("lengths", "turns", "success")
_ARRAYS = (*_OF_TOKENS, *_OF_TURNS, *_OF_EPISODES)


def _ranges(lengths: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The numbers of all values in some of the rows that lie end to end."""
    starts = np.cumsum(lengths) - lengths
    return np.concatenate([np.arange(starts[place], starts[place] + lengths[place]) for place in places])


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
        self._states: list[int] = []

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

    def add_reply(
        self,
        tokens: Tokens,
        log_probs: np.ndarray | Sequence[float],
        versions: np.ndarray | Sequence[int] | int,
        reward: float = 0.0,
        state: str | int | None = None,
    ) -> None:
        """What the policy drew, what it earned, and the state (its key or number) that it was drawn in: a new turn."""
        if not len(tokens):
            raise ValueError(f"turn {self.num_turns} of {self}: a reply needs at least one token")
        self._add(self.num_turns, tokens, log_probs, versions)
        self._rewards.append(reward)
        self._states.append(state_number(state) if isinstance(state, str) else -1 if state is None else state)

    def set_reward(self, reward: float) -> None:
        """What the last reply earned, where the environment says so only after it was added."""
        if not self._rewards:
            raise ValueError(f"{self}: a reward of {reward:g} before the first reply")
        self._rewards[-1] = reward

    def add_observation(self, tokens: Tokens, version: int) -> None:
        """What the environment said to the last reply."""
        if not self._rewards:
            raise ValueError(f"{self}: the first observation is the prompt; a reply comes first")
        self._add(self.num_turns - 1, tokens, None, version)

    def finish(self, end: str, success: bool | None = None, parts: Mapping[str, float] | None = None) -> Episodes:
        """The record of this one episode; a prefix without its reply is left out. `parts`: other numbers by name."""
        drawn = [part for part in self._parts if part.turn < self.num_turns]
        if not drawn:
            raise ValueError(f"{self} ended ({end}) before its first reply: nothing can be learned")
        sizes, measured = [len(part.tokens) for part in drawn], dict(parts or {})
        return Episodes(
            prompt=self._prompt,
            tokens=np.concatenate([part.tokens for part in drawn]),
            trained=np.repeat([part.trained for part in drawn], sizes),
            log_probs=np.concatenate([part.log_probs for part in drawn]),
            versions=np.concatenate([part.versions for part in drawn]),
            turn=np.repeat(np.array([part.turn for part in drawn], np.int16), sizes),
            rewards=np.array(self._rewards, np.float32),
            lengths=np.array([sum(sizes)], np.int64),
            turns=np.array([self.num_turns], np.int64),
            end=(end,),
            uid=self._uid,
            states=np.array(self._states, np.int64),
            success=np.array([np.nan if success is None else success], np.float32),
            part_names=tuple(measured),
            parts=np.array([[value] for value in measured.values()], np.float32) if measured else _no_parts(),
        )

    def _add(
        self,
        turn: int,
        tokens: Tokens,
        log_probs: np.ndarray | Sequence[float] | None,
        versions: np.ndarray | Sequence[int] | int,
    ) -> None:
        size = len(tokens)
        logs = np.zeros(size, np.float32) if log_probs is None else np.asarray(log_probs, np.float32)
        made = np.full(size, versions, np.int32)
        self._parts.append(_Part(turn, log_probs is not None, np.asarray(tokens, np.int32), logs, made))
