"""A prioritized replay of what search has seen: one ring of steps per environment, drawn by position.

    stream 0   | segment 4 | segment 5 | segment 6 ------> |     a stream: what one environment did, in order
    stream 1   | segment 4 | segment 5 | segment 6 ------> |     a segment: T steps of it, all from one ticket
                                   ^ position               ~~~~ the last steps: targets incomplete, never drawn

Where steps lie and how they are found again is in stream_rings.py, what is drawn at a position in game_windows.py.

Life of a position: written --> complete (all rows its window and its n-step returns need are there) --> drawn, any
number of times --> evicted, with its whole segment, when the ring comes round. A priority or a target that comes after
the eviction is counted and ignored.

How old are data, how old are targets: `made_by` is the version whose policy acted, `target_versions` the version
whose search wrote policy and root value. They are equal until `refresh` writes newer targets over the old.

Rows that are not valid (the step that only resets an environment) hold the last observation of an episode and are never
drawn. A row that ended an episode is followed by such a row, if it was truncated; otherwise the next episode may follow
at once.

Invariants: what is drawn is complete; leaves of evicted and incomplete positions are 0; a segment that does not follow
the one before it in its stream (a collector lost its state) begins a new chain, and no window reaches across.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from headway.core.types import MEASURES, Batch, Rollout, Span, State
from headway.replay.prioritized_beta_schedule import BetaSchedule
from headway.replay.priority_tree import PriorityTree, checked_priorities
from headway.replay.records import as_record, record_of
from headway.replay.records_feedback import Priorities
from headway.replay.records_recent_returns import RecentReturns
from headway.zero.replay_board_views import BoardViews
from headway.zero.replay_game_windows import Windows, complete_until, gather, segments_per_stream
from headway.zero.replay_stream_rings import UNSAID, VALID, StreamRings, begins_of
from headway.zero.segments import DrawnWindows, GameSegment, OldTargets, SearchedTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Reanalysis:
    """Which targets are to be made again, and how many."""

    ratio: float = 0.0
    """Targets made again per position drawn. 0: none. More keeps targets younger and costs searches."""
    partition: float = 1.0
    """Share of the segments, those longest in the replay, that qualify. Less leaves the recent ones alone."""
    min_age: int = 1
    """Targets younger than this many versions are left alone."""
    roots: int = 256
    """Positions handed out at once, in whole segments."""

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < np.inf:
            raise ValueError(f"ratio must be >= 0, received {self.ratio!r}")
        if not 0 < self.partition <= 1:
            raise ValueError(f"partition must be in (0, 1], received {self.partition!r}")
        for name in ("min_age", "roots"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")


class _Versions(NamedTuple):
    """Of the segment in each slot."""

    made_by: np.ndarray  # [slots] int64: whose policy acted
    targets: np.ndarray  # [slots] int64: whose search wrote policy and root value
    arrivals: np.ndarray  # [slots] int64: when it came, counted in segments; -1: empty


class GameSegments:
    """The last `capacity` steps of `num_streams` environments, in segments of `segment_steps`; draws of `batch_size`.

    `total_draws` and `total_steps` say how long the run is: over it the exponent of the importance weights goes from
    `beta_start` to `beta_end`. `bootstrap_obs`: a draw brings the observations that values are to be computed for;
    without, the stored root values are all there is. `has_priors`: opinions that came with the segments are kept, and
    searched with again. `symmetries`: ways to see observations [..., cells] and actions
    ([S, cells] and [S, A], which of the old is at each new place); each window that is drawn is seen in one, by lot.
    """

    def __init__(
        self,
        capacity: int,
        *,
        num_streams: int,
        segment_steps: int,
        observation: tuple[int, ...],
        num_actions: int,
        batch_size: int,
        windows: Windows,
        reanalysis: Reanalysis | None = None,
        store_as: DTypeLike = np.float32,
        has_masks: bool = False,
        has_priors: bool = False,
        bootstrap_obs: bool = True,
        alpha: float = 0.6,
        beta_start: float = 0.4,
        beta_end: float = 1.0,
        total_draws: int | None = None,
        total_steps: int | None = None,
        symmetries: tuple[np.ndarray, np.ndarray] | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in (("num_streams", num_streams), ("segment_steps", segment_steps), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, received {value!r}")
        for name, share in (("alpha", alpha), ("beta_start", beta_start), ("beta_end", beta_end)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must be in [0, 1], received {share!r}")
        self._rings = rings = StreamRings(
            segments_per_stream(capacity, num_streams, segment_steps, windows),
            num_streams=num_streams,
            segment_steps=segment_steps,
            observation=observation,
            num_actions=num_actions,
            store_as=store_as,
            has_masks=has_masks,
            has_priors=has_priors,
        )
        self.windows = windows
        self.reanalysis = reanalysis or Reanalysis()
        self._batch, self._bootstrap_obs = batch_size, bootstrap_obs
        self._schedule = BetaSchedule(start=beta_start, end=beta_end, total_draws=total_draws, total_steps=total_steps)
        self._symmetries = None if symmetries is None else BoardViews(*symmetries, observation, num_actions)
        slots = num_streams * rings.segments_per_stream
        self._versions = _Versions(np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.full(slots, -1, np.int64))
        self._pending = np.zeros(num_streams, np.int64)  # the first row of each stream not found complete yet
        self._priorities = PriorityTree(rings.num_rows, alpha=alpha)
        self._random = np.random.default_rng(seed)
        self._returns = RecentReturns()
        self._measured: dict[str, float] = {}  # what collectors counted, added up
        self._counts = dict.fromkeys(("arrived", "steps", "complete", "drawn", "draws", "broken"), 0)
        self._counts |= dict.fromkeys(("late_priorities", "given_out", "refreshed", "late_targets", "rounds"), 0)
        self._version = 0  # being trained, as far as anybody said
        self._ages = dict.fromkeys(("data_age", "target_age", "target_age_before", "target_age_after"), 0.0)

    # -- sizes --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Positions that can be drawn."""
        return self._counts["complete"]

    @property
    def nbytes(self) -> int:
        """All of it is taken at the beginning; it never grows."""
        return self._rings.nbytes + sum(part.nbytes for part in self._versions) + self._priorities.nbytes

    def statistics(self) -> dict[str, float]:
        counts = self._counts
        shown: dict[str, float] = {
            "replay_segments": int((self._versions.arrivals >= 0).sum()),
            "replay_positions": counts["complete"],
            "replay_mb": self.nbytes / 2**20,
            "replay_beta": self._beta,
            "replay_max_priority": self._priorities.max_priority,
            "replay_late_updates": counts["late_priorities"],
            "replay_broken_chains": counts["broken"],
            "data_age": self._ages["data_age"],
            "target_age": self._ages["target_age"],
        }
        if self.reanalysis.ratio:
            shown |= {
                "targets_refreshed": counts["refreshed"],
                "targets_late": counts["late_targets"],
                "target_age_before": self._ages["target_age_before"],
                "target_age_after": self._ages["target_age_after"],
                "target_age_mean": self._mean_target_age(),
            }
        return shown | self._measured | self._returns.as_metric()

    def _mean_target_age(self) -> float:
        """Of all segments there are, now."""
        kept = self._versions.targets[self._versions.arrivals >= 0]
        return float(self._version - kept.mean()) if kept.size else 0.0

    # -- in -----------------------------------------------------------------------------------------

    def insert(self, batch: Batch) -> None:
        """Keep the segments of these rollouts; what they overwrite is evicted, what they complete can be drawn."""
        self._version = max(self._version, batch.version)
        arrived = [(record_of(rollout, GameSegment), rollout) for rollout in batch.rollouts]
        for segment, rollout in sorted(arrived, key=lambda one: (one[0].stream, one[0].serial)):
            version = batch.version if rollout.span is None else rollout.span.oldest
            self._insert(segment, version)
            self._counts["steps"] += rollout.steps
            self._returns.see(rollout)
            for name, count in rollout.info.get(MEASURES, {}).items():
                self._measured[name] = self._measured.get(name, 0.0) + count

    def _insert(self, segment: GameSegment, version: int) -> None:
        rings, versions = self._rings, self._versions
        rings.check(segment)
        for stream, slot in enumerate(rings.write(segment), segment.stream):
            if versions.arrivals[slot] >= 0:
                self._evict(rings.rows_in(slot))
            versions.made_by[slot] = versions.targets[slot] = version
            versions.arrivals[slot] = self._counts["arrived"]
            self._counts["arrived"] += 1
            before = rings.ends[stream] - 1
            if before and segment.serial != rings.serials[stream] + 1:
                self._counts["broken"] += 1
                self._pending[stream] = before * rings.segment_steps  # what was not complete will never be
            rings.serials[stream] = segment.serial
            self._complete(stream)

    def _evict(self, rows: slice) -> None:
        self._counts["complete"] -= int(np.count_nonzero(self._priorities.leaves[rows]))
        self._priorities.set_range(rows.start, np.zeros(self._rings.segment_steps))

    def _complete(self, stream: int) -> None:
        """Let the positions be drawn whose targets are complete now."""
        rings = self._rings
        first = max(self._pending[stream], rings.ends[stream] * rings.segment_steps - rings.rows_per_stream)
        last = complete_until(rings, stream, first, self.windows)
        self._pending[stream] = last
        rows = stream * rings.rows_per_stream + np.arange(first, last) % rings.rows_per_stream
        rows = rows[rings.steps.flags[rows] & VALID > 0]
        self._counts["complete"] += len(rows)
        self._priorities.set(rows, self._priorities.powers_of_new(len(rows)))

    # -- out ----------------------------------------------------------------------------------------

    def sample(self, version: int) -> Rollout:
        """Windows at `batch_size` positions, time first, with their ids, importance weights and versions."""
        if not len(self):
            raise ValueError(
                f"nothing to draw: of {self._counts['steps']} steps none has all of the {self.windows.reach} steps its "
                "targets look ahead; learning begins too early (raise the replay's minimal size)"
            )
        self._version = max(self._version, version)
        rings, size = self._rings, self._batch
        rows = self._priorities.draw(self._random.random(size))
        weights = self._priorities.weights(rows, self._beta)
        weights /= weights.max()  # of this draw: one forgotten leaf near 0 must not silence all the others
        fill = self._random.integers(rings.steps.policies.shape[1], size=(self.windows.num_unroll_steps, size))
        draw, bootstraps = gather(rings, rows, fill, self.windows)
        if self._bootstrap_obs:
            draw["bootstrap_obs"] = rings.steps.obs[bootstraps]  # where there is none: any, its factor is 0
        if self._symmetries is not None:
            self._symmetries.see(draw, self._random.integers(len(self._symmetries), size=size))
        slots = rows // rings.segment_steps
        made_by, targets = self._versions.made_by[slots], self._versions.targets[slots]
        self._ages["data_age"] = float(version - made_by.mean())
        self._ages["target_age"] = float(version - targets.mean())
        self._counts["draws"] += 1
        self._counts["drawn"] += size
        windows = DrawnWindows(
            **draw, ids=rings.position_ids(rows), weights=weights, versions=made_by, target_versions=targets
        )
        return Rollout(windows, steps=size, span=Span(int(made_by.min()), int(made_by.max())))

    @property
    def _beta(self) -> float:
        return self._schedule.beta(self._counts["draws"], self._counts["steps"])

    # -- back ---------------------------------------------------------------------------------------

    def update(self, feedback: object) -> None:
        """New `Priorities` by position id. Those of evicted positions are counted."""
        measured = as_record(feedback, Priorities)
        rows = self._rings.rows_of(np.asarray(measured.ids, np.int64))
        raw = checked_priorities(measured.priorities, len(rows))
        live = rows >= 0
        self._counts["late_priorities"] += int((~live).sum())
        self._priorities.set(rows[live], self._priorities.powers(raw[live]))

    def oldest(self, version: int) -> Rollout | None:
        """The segments whose targets are oldest, to be searched again; None if nothing is due.

        Whole segments, so that a model which needs what came before a position finds it there.
        """
        self._version = max(self._version, version)
        settings, rings, versions = self.reanalysis, self._rings, self._versions
        if self._counts["given_out"] >= settings.ratio * self._counts["drawn"]:
            return None
        slots = np.flatnonzero(versions.arrivals >= 0)
        slots = slots[np.argsort(versions.arrivals[slots])][: int(np.ceil(settings.partition * len(slots)))]
        slots = slots[version - versions.targets[slots] >= settings.min_age]
        if not len(slots):
            return None
        by_age = np.argsort(versions.targets[slots], kind="stable")
        slots = slots[by_age][: max(1, settings.roots // rings.segment_steps)]
        rows, kept = rings.rows_of_slots(slots), rings.steps  # [G, T]
        targets = OldTargets(
            ids=rings.segment_ids(slots),
            obs=kept.obs[rows],
            actions=kept.actions[rows],
            begins=begins_of(kept.flags[rows]),
            to_play=kept.to_play[rows],
            legal=kept.legal[rows] if len(kept.legal) else None,
            round=self._counts["rounds"],
            priors=kept.priors[rows] if len(kept.priors) else None,
        )
        self._counts["rounds"] += 1
        self._counts["given_out"] += rows.size
        return Rollout(targets, steps=rows.size)

    def refresh(self, targets: Rollout) -> None:
        """Write newer targets (SearchedTargets) over the old.

        Segments that were evicted meanwhile are counted, no more. The ages before and after are those of the segments
        written to, against the version being trained by now: learning went on while they were searched.
        """
        found, rings, versions = record_of(targets, SearchedTargets), self._rings, self._versions
        slots = rings.slots_of(np.asarray(found.ids, np.int64))
        live = slots >= 0
        self._counts["late_targets"] += int((~live).sum()) * rings.segment_steps
        slots, version = slots[live], found.version
        rows = rings.rows_of_slots(slots)
        rings.steps.policies[rows] = found.policies[live]
        rings.steps.values[rows] = found.values[live]
        if len(slots):
            self._version = max(self._version, version)
            self._ages["target_age_before"] = float((self._version - versions.targets[slots]).mean())
            self._ages["target_age_after"] = float(self._version - version)
        versions.targets[slots] = version
        self._counts["refreshed"] += rows.size

    # -- state --------------------------------------------------------------------------------------

    def _settings(self) -> State:
        """What the saved arrays depend on."""
        return {
            "num_streams": self._rings.num_streams,
            "segment_steps": self._rings.segment_steps,
            "segments_per_stream": self._rings.segments_per_stream,
            "windows": (self.windows.num_unroll_steps, self.windows.td_steps),
            "alpha": self._priorities.alpha,
        }

    def state_dict(self) -> State:
        rings, steps = self._rings, self._rings.steps._asdict()
        used = int(min(rings.ends.max(), rings.segments_per_stream)) * rings.segment_steps
        return {
            "settings": self._settings(),
            "rows": {name: rings.in_use(part, used).copy() for name, part in steps.items() if len(part)},
            "leaves": rings.in_use(self._priorities.leaves, used).copy(),
            "segments": [part.copy() for part in self._versions],
            "streams": [part.copy() for part in self._of_streams()],
            "max_priority": self._priorities.max_priority,
            "random": self._random.bit_generator.state,
            "returns": self._returns.state(),
            "measured": dict(self._measured),
            "counts": dict(self._counts),
            "version": self._version,
            "ages": dict(self._ages),
        }

    def load_state_dict(self, state: State) -> None:
        if state["settings"] != self._settings():
            raise ValueError(f"saved with {state['settings']}, cannot continue with {self._settings()}")
        rings, used = self._rings, state["leaves"].shape[1]
        for name, kept in rings.steps._asdict().items():
            if len(kept):  # what was saved before there were priors has none
                rings.in_use(kept, used)[:] = state["rows"][name] if name in state["rows"] else UNSAID[name]
        leaves = np.zeros((rings.num_streams, rings.rows_per_stream))
        leaves[:, :used] = state["leaves"]
        self._priorities.restore(leaves.reshape(-1), state["max_priority"])
        for kept, values in zip(self._versions, state["segments"], strict=True):
            kept[:] = values
        for kept, values in zip(self._of_streams(), state["streams"], strict=True):
            kept[:] = values
        self._random.bit_generator.state = state["random"]
        self._returns.restore(state["returns"])
        self._measured = dict(state.get("measured", {}))
        self._counts, self._ages = dict(state["counts"]), dict(state["ages"])
        self._version = state["version"]

    def _of_streams(self) -> tuple[np.ndarray, ...]:
        return self._rings.ends, self._rings.serials, self._pending
