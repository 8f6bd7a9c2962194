"""The steps that a replay of games keeps: for each stream a ring of segments, the oldest overwritten first.

    stream 0   | segment 4 | segment 5 | segment 6 |     a stream: what one environment did, in order
    stream 1   | segment 4 | segment 5 | segment 6 |     a segment: T steps of it, all from one ticket
    slot           0           1           2             where a segment lies; a row is where a step lies

Ids are stable: segment id = order in its stream * streams + stream, position id = segment id * T + step. The order says
which generation of a slot is meant, so what comes for a segment after its eviction is told apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from headway.zero.segments import GameSegment

TERMINATED, TRUNCATED, VALID = 1, 2, 4  # bits of `flags`
NOBODY = -1  # as the version of an opinion
UNSAID = {"priors": 0.0, "prior_versions": NOBODY}
"""What stands in the rows of a segment that does not say these."""


class GameSteps(NamedTuple):
    """All steps, [R] = streams * ring rows; a stream's ring is contiguous."""

    obs: np.ndarray  # [R, ...]
    actions: np.ndarray  # [R] int32
    rewards: np.ndarray  # [R] float32, seen by who acted
    flags: np.ndarray  # [R] uint8
    to_play: np.ndarray  # [R] int8
    policies: np.ndarray  # [R, A] float32
    values: np.ndarray  # [R] float32, of the search's root, seen by who is to move
    legal: np.ndarray  # [R, A] bool, or [0, A]: everything is
    priors: np.ndarray  # [R, A] float32, or [0, A]: nobody is asked; a row of zeros is no opinion
    prior_versions: np.ndarray  # [R] int32, or [0]: whose opinion it was, -1 nobody's


class StreamRings:
    """Rings of `segments_per_stream` segments of `segment_steps` steps, for `num_streams` streams."""

    def __init__(
        self,
        segments_per_stream: int,
        *,
        num_streams: int,
        segment_steps: int,
        observation: tuple[int, ...],
        num_actions: int,
        store_as: DTypeLike,
        has_masks: bool,
        has_priors: bool = False,
    ) -> None:
        self.segments_per_stream, self.num_streams, self.segment_steps = segments_per_stream, num_streams, segment_steps
        rows = num_streams * self.rows_per_stream
        self.steps = GameSteps(
            obs=np.zeros((rows, *observation), store_as),
            actions=np.zeros(rows, np.int32),
            rewards=np.zeros(rows, np.float32),
            flags=np.zeros(rows, np.uint8),
            to_play=np.zeros(rows, np.int8),
            policies=np.zeros((rows, num_actions), np.float32),
            values=np.zeros(rows, np.float32),
            legal=np.zeros((rows if has_masks else 0, num_actions), bool),
            priors=np.zeros((rows if has_priors else 0, num_actions), np.float32),
            prior_versions=np.full(rows if has_priors else 0, NOBODY, np.int32),
        )
        self.ends = np.zeros(num_streams, np.int64)  # segments each stream has had
        self.serials = np.full(num_streams, -1, np.int64)  # of its last segment, as its collector counts

    @property
    def rows_per_stream(self) -> int:
        return self.segments_per_stream * self.segment_steps

    @property
    def num_rows(self) -> int:
        return self.num_streams * self.rows_per_stream

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.steps)

    # -- in -----------------------------------------------------------------------------------------

    def check(self, segment: GameSegment) -> None:
        """Nothing, or one line that says why the segment cannot be kept."""
        first, num = segment.stream, segment.actions.shape[1]
        if not 0 <= first <= self.num_streams - num:
            raise ValueError(f"streams {first}..{first + num - 1} do not fit: the replay has {self.num_streams}")
        for name, kept in self.steps._asdict().items():
            if name == "flags" or not len(kept):
                continue
            shape, received = (self.segment_steps, num, *kept.shape[1:]), getattr(segment, name)
            if received is None and name in UNSAID:
                continue
            if received is None:
                raise ValueError(f"{name} of a segment must be {list(shape)}, received nothing")
            if received.shape != shape:
                raise ValueError(f"{name} of a segment must be {list(shape)}, received {list(received.shape)}")
        obs, kept = segment.obs, self.steps.obs
        if kept.dtype != obs.dtype and not np.array_equal(obs.astype(kept.dtype), obs):
            raise ValueError(f"observations do not fit into {kept.dtype}: they would be changed")

    def write(self, segment: GameSegment) -> list[int]:
        """Each environment's steps into the next slot of its stream; those slots, stream by stream."""
        flags = segment.terminated * TERMINATED + segment.truncated * TRUNCATED + segment.valid * VALID
        slots = []
        for column in range(segment.actions.shape[1]):
            stream = segment.stream + column
            slots.append(stream * self.segments_per_stream + int(self.ends[stream]) % self.segments_per_stream)
            rows = self.rows_in(slots[-1])
            for name, kept in self.steps._asdict().items():
                if len(kept):
                    said = flags if name == "flags" else getattr(segment, name)
                    kept[rows] = UNSAID[name] if said is None else said[:, column]
            self.ends[stream] += 1
        return slots

    # -- places and ids -----------------------------------------------------------------------------

    def rows_in(self, slot: int) -> slice:
        return slice(slot * self.segment_steps, (slot + 1) * self.segment_steps)

    def rows_of_slots(self, slots: np.ndarray) -> np.ndarray:
        """[G, T] of slots [G]."""
        return slots[:, None] * self.segment_steps + np.arange(self.segment_steps)

    def segment_ids(self, slots: np.ndarray) -> np.ndarray:
        streams, place = np.divmod(slots, self.segments_per_stream)
        last = self.ends[streams] - 1  # the newest segment of the stream
        order = last - (last - place) % self.segments_per_stream
        return order * self.num_streams + streams

    def position_ids(self, rows: np.ndarray) -> np.ndarray:
        slots, step = np.divmod(rows, self.segment_steps)
        return self.segment_ids(slots) * self.segment_steps + step

    def slots_of(self, ids: np.ndarray) -> np.ndarray:
        """Slots [N] of segment ids [N]; -1 where the segment is gone."""
        order, streams = np.divmod(ids, self.num_streams)
        unknown = np.flatnonzero((ids < 0) | (order >= self.ends[streams]))
        if unknown.size:
            raise ValueError(f"id {ids[unknown[0]]} was never given out")
        slots = streams * self.segments_per_stream + order % self.segments_per_stream
        return np.where(order >= self.ends[streams] - self.segments_per_stream, slots, -1)

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        segments, step = np.divmod(ids, self.segment_steps)
        slots = self.slots_of(segments)
        return np.where(slots >= 0, slots * self.segment_steps + step, -1)

    def in_use(self, part: np.ndarray, used: int) -> np.ndarray:
        """[streams, used, ...] of rows: rings fill up from their beginnings."""
        return part.reshape(self.num_streams, self.rows_per_stream, *part.shape[1:])[:, :used]


def begins_of(flags: np.ndarray) -> np.ndarray:
    """Whether a row of segments [G, T] begins an episode, or is the first there is."""
    valid, over = flags & VALID > 0, flags & (TERMINATED | TRUNCATED) > 0
    begins = np.ones(flags.shape, bool)
    begins[:, 1:] = ~valid[:, :-1] | (over[:, :-1] & valid[:, 1:])
    return begins
