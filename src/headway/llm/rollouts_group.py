"""The replies to one prompt, and what was known when they were drawn.

    tokens     a0 a1 a2 | b0 b1 | c0 c1 c2 c3     [T]    the replies end to end
    lengths    3          2       4               [G]
    rewards    1          0       0.5             [G]

Rollouts of checkpoints that older versions wrote hold a dictionary in place of the record; `group_of` reads both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from headway.core.types import Rollout, Span
from headway.core.types_opaque import Payload

PART = "reward_"
"""What the names of a reward's other numbers began with in those dictionaries, and what they begin with in metrics."""


def _no_parts() -> np.ndarray:
    return np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class Group:
    """G replies of T tokens in all to a prompt of P tokens. Every reply has at least one token, its end included."""

    prompt: np.ndarray  # [P] int32
    tokens: np.ndarray  # [T] int32: the replies end to end
    lengths: np.ndarray  # [G] int64
    log_probs: np.ndarray  # [T] float32: with which each token was drawn, stamped where it was made
    versions: np.ndarray  # [T] int32: whose weights made each token
    rewards: np.ndarray  # [G] float32
    finish: tuple[str, ...] = ()  # [G]: stop, length or deadline; none where that is not known
    part_names: tuple[str, ...] = ()  # [K]: other numbers that the reward's function has measured
    parts: np.ndarray = field(default_factory=_no_parts)  # [K, G] float32; nan where the function did not say
    uid: str = ""

    def __post_init__(self) -> None:
        count, size, names = len(self.tokens), len(self.lengths), len(self.part_names)
        for name in ("log_probs", "versions"):
            if len(getattr(self, name)) != count:
                raise ValueError(f"{self} has {count} tokens and {len(getattr(self, name))} {name}")
        if not size or int(self.lengths.sum()) != count:
            raise ValueError(f"{self} has {count} tokens, but its {size} lengths add up to {int(self.lengths.sum())}")
        if not self.lengths.all():
            place = int(np.flatnonzero(self.lengths == 0)[0])
            to = f"to {self.uid}" if self.uid else "of the group"
            raise ValueError(f"reply {place} {to} has no tokens: a reply needs at least one, its end included")
        if len(self.rewards) != size or (self.finish and len(self.finish) != size):
            told = f"{len(self.rewards)} rewards and {len(self.finish)} words on how they finished"
            raise ValueError(f"{self} has {size} replies, {told}")
        if names and self.parts.shape != (names, size):
            raise ValueError(f"{self} has {names} parts of {size} rewards, received {self.parts.shape} numbers")

    def __str__(self) -> str:
        return f"the group of {self.uid or 'a prompt'}"

    def __getitem__(self, name: str) -> np.ndarray:
        """An array by its name: trainers that users have written read groups so, which were dictionaries."""
        if name.removeprefix(PART) in self.part_names:
            return np.asarray(self.parts[self.part_names.index(name.removeprefix(PART))])
        return np.asarray(getattr(self, name))

    @property
    def replies(self) -> list[np.ndarray]:
        """The tokens of each reply."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1])

    def take(self, places: np.ndarray) -> Group:
        """Some of the replies, by their places and in that order, in a record of their own."""
        starts = np.cumsum(self.lengths) - self.lengths
        tokens = np.concatenate([np.arange(starts[p], starts[p] + self.lengths[p]) for p in places])
        return replace(
            self,
            **{name: getattr(self, name)[tokens] for name in ("tokens", "log_probs", "versions")},
            lengths=self.lengths[places],
            rewards=self.rewards[places],
            finish=tuple(self.finish[place] for place in places) if self.finish else (),
            parts=self.parts[:, places] if self.part_names else self.parts,
        )

    @property
    def span(self) -> Span:
        return Span(int(self.versions.min()), int(self.versions.max()))

    @property
    def length(self) -> float:
        """Tokens of the longest reply: it decides how long the group takes."""
        return float(self.lengths.max())


def group_of(rollout: Rollout) -> Group:
    """What a rollout brought, also where that is a dictionary of an older version."""
    payload: Payload = rollout.payload
    if isinstance(payload, Group):
        return payload
    names = sorted(name for name in payload if name.startswith(PART))
    return Group(
        **{name: array for name, array in payload.items() if name not in names},
        part_names=tuple(name.removeprefix(PART) for name in names),
        parts=np.array([payload[name] for name in names], np.float32) if names else _no_parts(),
        uid=str(rollout.info.get("uid", "")),
    )
