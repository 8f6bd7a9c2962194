"""A prioritized replay of segments: rollouts of many environments go in, draws of single ones come out.

    rollout [T, N] --> N items [T], each with one priority --> draw [T, B] with ids, weights and versions
                           ^------------ update(ids, priorities) -------------+

An item is what one environment did in one ticket, so that advantages can be computed for it again, under the policy
that is trained. Its fields are those of a rollout (`experience.segment.Segment`), with the observation after the last
step. A draw has them side by side, as a rollout has its environments.

The exponent of the weights rises over the run, by draws or by steps, whichever is further.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from headway.core.types import Batch, Rollout, Span, State
from headway.ppo.segments_segment import DrawnSegments, Segment
from headway.replay.prioritized import PrioritizedReplay
from headway.replay.prioritized_beta_schedule import BetaSchedule
from headway.replay.records import arrays_of, as_record, record_of
from headway.replay.records_feedback import Priorities
from headway.replay.records_recent_returns import RecentReturns


class SegmentReplay:
    """The last `capacity` steps, in segments of `segment_steps`; draws of `batch_size` steps.

    `total_draws` and `total_steps` say how long the run is. `store_as` gives fields a smaller type, if they fit.
    """

    def __init__(
        self,
        capacity: int,
        *,
        segment_steps: int,
        batch_size: int,
        total_draws: int | None = None,
        total_steps: int | None = None,
        alpha: float = 0.6,
        beta_start: float = 0.4,
        version_decay: float | None = None,
        store_as: Mapping[str, DTypeLike] | None = None,
        seed: int = 0,
    ) -> None:
        if batch_size < segment_steps or batch_size % segment_steps:
            raise ValueError(f"batch_size={batch_size} must be a multiple of segment_steps={segment_steps}")
        if capacity < batch_size:
            raise ValueError(f"a replay of {capacity} steps cannot hold a batch of {batch_size}")
        self._replay = PrioritizedReplay(
            capacity // segment_steps, alpha=alpha, beta_start=beta_start, version_decay=version_decay, seed=seed
        )
        self._segments_per_draw = batch_size // segment_steps
        self._schedule = BetaSchedule(start=beta_start, total_draws=total_draws, total_steps=total_steps)
        self._store_as = dict(store_as or {})
        self._num_draws = 0
        self._num_steps = 0
        self._returns = RecentReturns()

    def insert(self, batch: Batch) -> None:
        for rollout in batch.rollouts:
            segment = record_of(rollout, Segment)
            has_steps = segment.valid.any(axis=0)  # [N]
            items = {
                name: self._smaller(name, np.swapaxes(values, 0, 1)[has_steps])
                for name, values in arrays_of(segment).items()
            }
            self._replay.insert(items, batch.version if rollout.span is None else rollout.span.oldest)
            self._num_steps += rollout.steps
            self._returns.see(rollout)

    def _smaller(self, name: str, values: np.ndarray) -> np.ndarray:
        if name not in self._store_as:
            return values
        small = values.astype(self._store_as[name])
        if not np.array_equal(small, values):
            raise ValueError(f"field {name!r} does not fit into {np.dtype(self._store_as[name])}: it would be changed")
        return small

    def sample(self, version: int) -> Rollout:
        drawn = self._replay.sample(self._segments_per_draw, progress=self.progress, version=version)
        self._num_draws += 1
        columns = {name: np.ascontiguousarray(np.swapaxes(values, 0, 1)) for name, values in drawn.items.items()}
        segments = DrawnSegments(**columns, ids=drawn.ids, weights=drawn.weights, versions=drawn.versions)
        span = Span(int(drawn.versions.min()), int(drawn.versions.max()))
        return Rollout(segments, steps=segments.num_steps, span=span)

    @property
    def progress(self) -> float:
        """The share of the run that is done, as far as anybody said how long it is."""
        return self._schedule.progress(self._num_draws, self._num_steps)

    def update(self, feedback: object) -> None:
        measured = as_record(feedback, Priorities)
        self._replay.update(measured.ids, measured.priorities)

    def statistics(self) -> dict[str, float]:
        numbers = self._replay.statistics()
        shown: dict[str, float] = {
            "replay_segments": numbers.size,
            "replay_beta": self._replay.beta_at(self.progress),
            "replay_max_priority": numbers.max_priority,
            "replay_late_updates": numbers.late_updates,
        }
        return shown | self._returns.as_metric()

    def state_dict(self) -> State:
        return {
            "replay": self._replay.state_dict(),
            "num_draws": self._num_draws,
            "num_steps": self._num_steps,
            "returns": self._returns.state(),
        }

    def load_state_dict(self, state: State) -> None:
        self._replay.load_state_dict(state["replay"])
        self._num_draws, self._num_steps = state["num_draws"], state["num_steps"]
        self._returns.restore(state["returns"])
