"""Games of text played by search: the tokens that a language model reads of each step, beside the segment itself.

    steps T * N     (0, 0)   (0, 1)   (1, 0) ...                 t-major: row t * N + n
    prompt_tokens   p p p  | p p    |        | ...               empty where a step is no experience
    action_tokens   a a|b|   c|d d| |  | | | ...                 K rows a step, one a slot; empty where no candidate is
    log_probs       l l    | l      |        | ...               of the executed action; empty where nobody was asked

A learner of the language model trains on exactly what was scored, and never makes tokens of a text again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from headway.zero.segments import Floats, GameSegment


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """R rows of different lengths, end to end. The arrays are never written to."""

    values: np.ndarray  # [S]
    lengths: npt.NDArray[np.int32]  # [R]
    kind: ClassVar[type[np.generic]] = np.float64

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.lengths.ndim != 1:
            shapes = f"{list(self.values.shape)} values and {list(self.lengths.shape)} lengths"
            raise ValueError(f"{type(self).__name__} needs one line of each, received {shapes}")
        if (self.lengths < 0).any() or int(self.lengths.sum()) != len(self.values):
            total = int(self.lengths.sum())
            raise ValueError(f"{type(self).__name__} has {len(self.values)} values, its lengths add up to {total}")

    @classmethod
    def of(cls, rows: Iterable[npt.ArrayLike]) -> Self:
        """Lays rows end to end."""
        arrays = [np.asarray(row, cls.kind).reshape(-1) for row in rows]
        lengths = np.array([len(array) for array in arrays], np.int32)
        return cls(np.concatenate([np.zeros(0, cls.kind), *arrays]), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.lengths.nbytes

    def row(self, number: int) -> np.ndarray:
        """One row; to walk over many, take `rows`."""
        if not 0 <= number < len(self.lengths):
            raise IndexError(f"row {number} of {len(self.lengths)}")
        end = int(self.lengths[: number + 1].sum())
        return self.values[end - int(self.lengths[number]) : end]

    def rows(self) -> list[np.ndarray]:
        """All rows, as views."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


@dataclass(frozen=True, slots=True)
class RaggedTokens(RaggedRows):
    """Rows of tokens."""

    kind: ClassVar[type[np.generic]] = np.int32


@dataclass(frozen=True, slots=True)
class RaggedFloats(RaggedRows):
    """Rows of numbers, one a token."""

    kind: ClassVar[type[np.generic]] = np.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSegment(GameSegment):
    """T steps of N games of text, with K slots for actions. It is accepted wherever a GameSegment is."""

    prompt_tokens: RaggedTokens  # [T * N]; empty for steps that are no experience
    action_tokens: RaggedTokens  # [T * N * K]; empty where a slot has no candidate
    action_log_probs: RaggedFloats  # [T * N]: of the executed action's tokens; empty: the prior was not asked
    spreads: Floats  # [T, N]: largest less smallest value of the actions that the search visited

    def __post_init__(self) -> None:
        steps, slots = self.actions.size, self.policies.shape[-1]
        for name, rows in (("prompt_tokens", steps), ("action_tokens", steps * slots), ("action_log_probs", steps)):
            if len(getattr(self, name)) != rows:
                raise ValueError(
                    f"{name} of {steps} steps with {slots} slots must have {rows} rows, "
                    f"received {len(getattr(self, name))}"
                )
        if self.spreads.shape != self.actions.shape:
            shapes = f"{list(self.actions.shape)}, received {list(self.spreads.shape)}"
            raise ValueError(f"spreads must be shaped like the actions, {shapes}")
        executed = self.executed_lengths
        asked = self.action_log_probs.lengths
        wrong = np.flatnonzero((asked > 0) & (asked != executed))
        if len(wrong):
            step = int(wrong[0])
            raise ValueError(f"step {step}: {asked[step]} log-probabilities of an action of {executed[step]} tokens")
        silent = np.flatnonzero((self.prompt_tokens.lengths > 0) & (executed == 0))
        if len(silent):
            step = int(silent[0])
            slot = int(self.actions.reshape(-1)[step])
            raise ValueError(f"step {step} took slot {slot}, which has no tokens: no candidate stood there")

    @property
    def num_slots(self) -> int:
        return int(self.policies.shape[-1])

    @property
    def executed_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of the action that each step took, [T * N]."""
        slots, taken = self.num_slots, self.actions.reshape(-1).astype(np.int64)
        if len(taken) and not (taken.min() >= 0 and taken.max() < slots):
            raise ValueError(f"actions must be in 0..{slots - 1}, received {int(taken.min())}..{int(taken.max())}")
        return self.action_tokens.lengths[np.arange(len(taken)) * slots + taken]
