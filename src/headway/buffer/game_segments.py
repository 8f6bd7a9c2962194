"""A prioritized replay of what search has seen: one ring of steps per environment, drawn by position.

    stream 0   | segment 4 | segment 5 | segment 6 ------> |     a stream: what one environment did, in order
    stream 1   | segment 4 | segment 5 | segment 6 ------> |     a segment: T steps of it, all from one ticket
                                   ^ position               ~~~~ the last steps: targets incomplete, never drawn

    row        one step: observation, action, reward, how it ended, who moved, the search's policy and root value
    window     a position and the H steps after it: what a model is unrolled along
    target     z = sum_{j<n} gamma^j r + gamma^n v, for each step of a window; v is the bootstrap

Life of a position: written --> complete (all rows its window and its n-step returns need are there) --> drawn, any
number of times --> evicted, with its whole segment, when the ring comes round. A position is complete when the row
H + n steps later is there, or the end of its episode (and after a truncation the observation it was cut at).

Ids are stable: segment id = order in its stream * streams + stream, position id = segment id * T + step. The order says
which generation of a slot is meant, so a priority or a target that comes after the eviction is told apart and ignored.

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
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import DTypeLike

from headway.buffer import sumtree
from headway.buffer.prioritized import checked_priorities, leaf_powers, leaf_weights
from headway.core.types import Batch, Rollout, Span
from headway.experience.feedback import Priorities
from headway.experience.game_segment import DrawnWindows, GameSegment, OldTargets, SearchedTargets
from headway.experience.recent_returns import RecentReturns
from headway.experience.records import as_record, record_of

TERMINATED, TRUNCATED, VALID = 1, 2, 4  # bits of `flags`
EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """What is drawn at a position."""

    num_unroll_steps: int = 5
    """H: steps a model is unrolled along. More: it learns to be right further ahead, and each draw costs more."""
    td_steps: int = 5
    """n: rewards that are summed before the bootstrap. More: less trust in the value, more variance, older policies."""
    discount: float = 0.997

    def __post_init__(self) -> None:
        for name in ("num_unroll_steps", "td_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], received {self.discount!r}")

    @property
    def reach(self) -> int:
        """How many steps after a position its targets look."""
        return self.num_unroll_steps + self.td_steps


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


def segments_per_stream(capacity: int, num_streams: int, segment_steps: int, windows: Windows) -> int:
    """How many segments of each stream a replay holds; refuses one in which nothing would ever be complete."""
    held = capacity // (num_streams * segment_steps)
    least = 1 + -(-windows.reach // segment_steps)
    if held < least:
        raise ValueError(
            f"a replay of {capacity} steps holds {held} segments of {segment_steps} steps of each of "
            f"{num_streams} environments; it needs at least {least * num_streams * segment_steps} steps: a "
            f"position looks {windows.reach} steps ahead (num_unroll_steps + td_steps)"
        )
    return held


class Rows(NamedTuple):
    """All steps, [R] = streams * ring rows; a stream's ring is contiguous."""

    obs: np.ndarray  # [R, ...]
    actions: np.ndarray  # [R] int32
    rewards: np.ndarray  # [R] float32, seen by who acted
    flags: np.ndarray  # [R] uint8
    to_play: np.ndarray  # [R] int8
    policies: np.ndarray  # [R, A] float32
    values: np.ndarray  # [R] float32, of the search's root, seen by who is to move
    legal: np.ndarray  # [R, A] bool, or [0, A]: everything is


class GameSegments:
    """The last `capacity` steps of `num_streams` environments, in segments of `segment_steps`; draws of `batch_size`.

    `total_draws` and `total_steps` say how long the run is: over it the exponent of the importance weights goes from
    `beta_start` to `beta_end`. `bootstrap_obs`: a draw brings the observations that values are to be computed for;
    without, the stored root values are all there is. `symmetries`: ways to see observations [..., cells] and actions
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
        self._ring = segments_per_stream(capacity, num_streams, segment_steps, windows)
        self.windows = windows
        self.reanalysis = reanalysis or Reanalysis()
        self._streams, self._steps, self._batch = num_streams, segment_steps, batch_size
        self._alpha, self._beta_start, self._beta_end = alpha, beta_start, beta_end
        self._total_draws, self._total_steps = total_draws, total_steps
        self._bootstrap_obs = bootstrap_obs
        self._symmetries = None if symmetries is None else _checked(symmetries, observation, num_actions)
        rows = num_streams * self.ring_rows
        self._rows = Rows(
            obs=np.zeros((rows, *observation), store_as),
            actions=np.zeros(rows, np.int32),
            rewards=np.zeros(rows, np.float32),
            flags=np.zeros(rows, np.uint8),
            to_play=np.zeros(rows, np.int8),
            policies=np.zeros((rows, num_actions), np.float32),
            values=np.zeros(rows, np.float32),
            legal=np.zeros((rows if has_masks else 0, num_actions), bool),
        )
        self._made_by = np.zeros(num_streams * self._ring, np.int64)  # [segments], by slot
        self._target_versions = np.zeros_like(self._made_by)
        self._arrivals = np.full_like(self._made_by, -1)  # when it came, counted in segments; -1: empty
        self._ends = np.zeros(num_streams, np.int64)  # segments each stream has had
        self._serials = np.full(num_streams, -1, np.int64)  # of its last segment, as its collector counts
        self._pending = np.zeros(num_streams, np.int64)  # the first row of each stream not found complete yet
        self._trees = sumtree.plant(rows)
        self._max_priority = 1.0
        self._random = np.random.default_rng(seed)
        self._returns = RecentReturns()
        self._counts = dict.fromkeys(("arrived", "steps", "complete", "drawn", "draws", "broken"), 0)
        self._counts |= dict.fromkeys(("late_priorities", "given_out", "refreshed", "late_targets", "rounds"), 0)
        self._version = 0  # being trained, as far as anybody said
        self._ages = dict.fromkeys(("data_age", "target_age", "target_age_before", "target_age_after"), 0.0)

    # -- sizes --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Positions that can be drawn."""
        return self._counts["complete"]

    @property
    def ring_rows(self) -> int:
        return self._ring * self._steps

    @property
    def nbytes(self) -> int:
        """All of it is taken at the beginning; it never grows."""
        of_segments = 3 * self._made_by.nbytes
        return sum(part.nbytes for part in self._rows) + of_segments + self._trees.sums.nbytes + self._trees.mins.nbytes

    def statistics(self) -> dict[str, float]:
        counts = self._counts
        shown: dict[str, float] = {
            "replay_segments": int((self._arrivals >= 0).sum()),
            "replay_positions": counts["complete"],
            "replay_mb": self.nbytes / 2**20,
            "replay_beta": self._beta,
            "replay_max_priority": self._max_priority,
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
        return shown | self._returns.as_metric()

    def _mean_target_age(self) -> float:
        """Of all segments there are, now."""
        kept = self._target_versions[self._arrivals >= 0]
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

    def _insert(self, segment: GameSegment, version: int) -> None:
        first, serial, num = segment.stream, segment.serial, segment.actions.shape[1]
        self._check(segment, first, num)
        flags = segment.terminated * TERMINATED + segment.truncated * TRUNCATED + segment.valid * VALID
        for column in range(num):
            stream = first + column
            slot = stream * self._ring + int(self._ends[stream]) % self._ring
            rows = slice(slot * self._steps, (slot + 1) * self._steps)
            self._evict(slot, rows)
            for name, kept in self._rows._asdict().items():
                if len(kept):
                    kept[rows] = (flags if name == "flags" else getattr(segment, name))[:, column]
            self._made_by[slot] = self._target_versions[slot] = version
            self._arrivals[slot] = self._counts["arrived"]
            self._counts["arrived"] += 1
            if self._ends[stream] and serial != self._serials[stream] + 1:
                self._counts["broken"] += 1
                self._pending[stream] = self._ends[stream] * self._steps  # what was not complete will never be
            self._serials[stream] = serial
            self._ends[stream] += 1
            self._complete(stream)

    def _check(self, segment: GameSegment, first: int, num: int) -> None:
        if not 0 <= first <= self._streams - num:
            raise ValueError(f"streams {first}..{first + num - 1} do not fit: the replay has {self._streams}")
        for name, kept in self._rows._asdict().items():
            if name == "flags" or not len(kept):
                continue
            shape = (self._steps, num, *kept.shape[1:])
            received = getattr(segment, name)
            if received.shape != shape:
                raise ValueError(f"{name} of a segment must be {list(shape)}, received {list(received.shape)}")
            if (
                name == "obs"
                and kept.dtype != received.dtype
                and not np.array_equal(received.astype(kept.dtype), received)
            ):
                raise ValueError(f"observations do not fit into {kept.dtype}: they would be changed")

    def _evict(self, slot: int, rows: slice) -> None:
        if self._arrivals[slot] < 0:
            return
        self._counts["complete"] -= int(np.count_nonzero(self._trees.sums[rows]))
        sumtree.set_range(*self._trees, rows.start, np.zeros(self._steps))

    def _complete(self, stream: int) -> None:
        """Let the positions be drawn whose targets are complete now."""
        end = self._ends[stream] * self._steps
        first = max(self._pending[stream], end - self.ring_rows)
        base = stream * self.ring_rows
        last = _complete_until(self._rows.flags, base, self.ring_rows, first, end, self.windows.reach)
        self._pending[stream] = last
        rows = base + np.arange(first, last) % self.ring_rows
        rows = rows[self._rows.flags[rows] & VALID > 0]
        self._counts["complete"] += len(rows)
        leaves, _ = leaf_powers(np.full(len(rows), self._max_priority), EPS, self._alpha, self._max_priority)
        sumtree.set_leaves(*self._trees, rows, leaves)

    # -- out ----------------------------------------------------------------------------------------

    def sample(self, version: int) -> Rollout:
        """Windows at `batch_size` positions, time first, with their ids, importance weights and versions."""
        if not len(self):
            raise ValueError(
                f"nothing to draw: of {self._counts['steps']} steps none has all of the {self.windows.reach} steps its "
                "targets look ahead; learning begins too early (raise the replay's minimal size)"
            )
        self._version = max(self._version, version)
        trees, size = self._trees, self._batch
        rows = sumtree.draw(trees.sums, trees.starts, self._random.random(size))
        weights = leaf_weights(trees.sums, rows, trees.least, self._beta)
        weights /= weights.max()  # of this draw: one forgotten leaf near 0 must not silence all the others
        fill = self._random.integers(self._rows.policies.shape[1], size=(self.windows.num_unroll_steps, size))
        draw = self._gather(rows, fill)
        if self._symmetries is not None:
            _see(draw, self._random.integers(len(self._symmetries[0]), size=size), *self._symmetries)
        slots = rows // self._steps
        made_by, targets = self._made_by[slots], self._target_versions[slots]
        self._ages["data_age"] = float(version - made_by.mean())
        self._ages["target_age"] = float(version - targets.mean())
        self._counts["draws"] += 1
        self._counts["drawn"] += size
        windows = DrawnWindows(
            **draw, ids=self._position_ids(rows), weights=weights, versions=made_by, target_versions=targets
        )
        return Rollout(windows, steps=size, span=Span(int(made_by.min()), int(made_by.max())))

    def _gather(self, rows: np.ndarray, fill: np.ndarray) -> dict[str, np.ndarray]:
        """A window at each row [B]: arrays [H + 1, B, ...] but for `actions` and `rewards`, [H, B]."""
        kept, steps, size = self._rows, self.windows.num_unroll_steps, len(rows)
        shape, num_actions = kept.obs.shape[1:], kept.policies.shape[1]
        draw = {
            "obs": np.zeros((steps + 1, size, *shape), kept.obs.dtype),
            "actions": fill,
            "rewards": np.zeros((steps, size), np.float32),
            "policies": np.zeros((steps + 1, size, num_actions), np.float32),
            "returns": np.zeros((steps + 1, size), np.float32),
            "factors": np.zeros((steps + 1, size), np.float32),
            "root_values": np.zeros((steps + 1, size), np.float32),
            "mask": np.zeros((steps + 1, size), np.float32),
            "ended": np.zeros((steps + 1, size), np.float32),
        }
        bootstraps = np.full((steps + 1, size), -1, np.int64)
        _gather(
            *(kept.obs.reshape(len(kept.obs), -1), kept.actions, kept.rewards, kept.flags, kept.to_play),
            *(kept.policies, kept.values, rows, self.ring_rows, self.windows.td_steps, self.windows.discount),
            *(draw["obs"].reshape(steps + 1, size, -1), fill, draw["rewards"], draw["policies"], draw["returns"]),
            *(draw["factors"], draw["root_values"], draw["mask"], draw["ended"], bootstraps),
        )
        if self._bootstrap_obs:
            draw["bootstrap_obs"] = kept.obs[bootstraps]  # where there is none: any, its factor is 0
        return draw

    @property
    def progress(self) -> float:
        """The share of the run that is done, as far as anybody said how long it is."""
        by_draws = self._counts["draws"] / self._total_draws if self._total_draws else 0.0
        by_steps = self._counts["steps"] / self._total_steps if self._total_steps else 0.0
        return min(1.0, max(by_draws, by_steps))

    @property
    def _beta(self) -> float:
        return self._beta_start + (self._beta_end - self._beta_start) * self.progress

    # -- back ---------------------------------------------------------------------------------------

    def update(self, feedback: object) -> None:
        """New `Priorities` by position id. Those of evicted positions are counted."""
        measured = as_record(feedback, Priorities)
        rows = self._rows_of(np.asarray(measured.ids, np.int64))
        raw = checked_priorities(measured.priorities, len(rows))
        live = rows >= 0
        self._counts["late_priorities"] += int((~live).sum())
        leaves, self._max_priority = leaf_powers(raw[live], EPS, self._alpha, self._max_priority)
        sumtree.set_leaves(*self._trees, rows[live], leaves)

    def oldest(self, version: int) -> Rollout | None:
        """The segments whose targets are oldest, to be searched again; None if nothing is due.

        Whole segments, so that a model which needs what came before a position finds it there.
        """
        self._version = max(self._version, version)
        settings = self.reanalysis
        if self._counts["given_out"] >= settings.ratio * self._counts["drawn"]:
            return None
        slots = np.flatnonzero(self._arrivals >= 0)
        slots = slots[np.argsort(self._arrivals[slots])][: int(np.ceil(settings.partition * len(slots)))]
        slots = slots[version - self._target_versions[slots] >= settings.min_age]
        if not len(slots):
            return None
        by_age = np.argsort(self._target_versions[slots], kind="stable")
        slots = slots[by_age][: max(1, settings.roots // self._steps)]
        rows = slots[:, None] * self._steps + np.arange(self._steps)  # [G, T]
        kept = self._rows
        targets = OldTargets(
            ids=self._segment_ids(slots),
            obs=kept.obs[rows],
            actions=kept.actions[rows],
            begins=_begins(kept.flags[rows]),
            to_play=kept.to_play[rows],
            legal=kept.legal[rows] if len(kept.legal) else None,
            round=self._counts["rounds"],
        )
        self._counts["rounds"] += 1
        self._counts["given_out"] += rows.size
        return Rollout(targets, steps=rows.size)

    def refresh(self, targets: Rollout) -> None:
        """Write newer targets (SearchedTargets) over the old.

        Segments that were evicted meanwhile are counted, no more. The ages before and after are those of the segments
        written to, against the version being trained by now: learning went on while they were searched.
        """
        found = record_of(targets, SearchedTargets)
        slots = self._slots_of(np.asarray(found.ids, np.int64))
        live = slots >= 0
        self._counts["late_targets"] += int((~live).sum()) * self._steps
        slots, version = slots[live], found.version
        rows = slots[:, None] * self._steps + np.arange(self._steps)
        self._rows.policies[rows] = found.policies[live]
        self._rows.values[rows] = found.values[live]
        if len(slots):
            self._version = max(self._version, version)
            self._ages["target_age_before"] = float((self._version - self._target_versions[slots]).mean())
            self._ages["target_age_after"] = float(self._version - version)
        self._target_versions[slots] = version
        self._counts["refreshed"] += rows.size

    # -- ids ----------------------------------------------------------------------------------------

    def _segment_ids(self, slots: np.ndarray) -> np.ndarray:
        streams, place = np.divmod(slots, self._ring)
        last = self._ends[streams] - 1  # the newest segment of the stream
        order = last - (last - place) % self._ring
        return order * self._streams + streams

    def _position_ids(self, rows: np.ndarray) -> np.ndarray:
        slots, step = np.divmod(rows, self._steps)
        return self._segment_ids(slots) * self._steps + step

    def _slots_of(self, ids: np.ndarray) -> np.ndarray:
        """Slots [N] of segment ids [N]; -1 where the segment is gone."""
        order, streams = np.divmod(ids, self._streams)
        unknown = np.flatnonzero((ids < 0) | (order >= self._ends[streams]))
        if unknown.size:
            raise ValueError(f"id {ids[unknown[0]]} was never given out")
        slots = streams * self._ring + order % self._ring
        return np.where(order >= self._ends[streams] - self._ring, slots, -1)

    def _rows_of(self, ids: np.ndarray) -> np.ndarray:
        segments, step = np.divmod(ids, self._steps)
        slots = self._slots_of(segments)
        return np.where(slots >= 0, slots * self._steps + step, -1)

    # -- state --------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """What the saved arrays depend on."""
        return {
            "num_streams": self._streams,
            "segment_steps": self._steps,
            "segments_per_stream": self._ring,
            "windows": (self.windows.num_unroll_steps, self.windows.td_steps),
            "alpha": self._alpha,
        }

    def state_dict(self) -> dict[str, Any]:
        used = int(min(self._ends.max(), self._ring)) * self._steps
        return {
            "settings": self._settings(),
            "rows": {name: self._in_use(part, used).copy() for name, part in self._rows._asdict().items() if len(part)},
            "leaves": self._in_use(self._trees.sums[: len(self._rows.flags)], used).copy(),
            "segments": [part.copy() for part in self._of_segments()],
            "streams": [part.copy() for part in self._of_streams()],
            "max_priority": self._max_priority,
            "random": self._random.bit_generator.state,
            "returns": self._returns.state(),
            "counts": dict(self._counts),
            "version": self._version,
            "ages": dict(self._ages),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["settings"] != self._settings():
            raise ValueError(f"saved with {state['settings']}, cannot continue with {self._settings()}")
        used = state["leaves"].shape[1]
        for name, values in state["rows"].items():
            self._in_use(getattr(self._rows, name), used)[:] = values
        leaves = np.zeros((self._streams, self.ring_rows))
        leaves[:, :used] = state["leaves"]
        self._trees = sumtree.plant(leaves.size)
        sumtree.set_range(*self._trees, 0, leaves.reshape(-1))
        for kept, values in zip(self._of_segments(), state["segments"], strict=True):
            kept[:] = values
        for kept, values in zip(self._of_streams(), state["streams"], strict=True):
            kept[:] = values
        self._max_priority = state["max_priority"]
        self._random.bit_generator.state = state["random"]
        self._returns.restore(state["returns"])
        self._counts, self._ages = dict(state["counts"]), dict(state["ages"])
        self._version = state["version"]

    def _in_use(self, part: np.ndarray, used: int) -> np.ndarray:
        """[streams, used, ...] of rows: rings fill up from their beginnings."""
        return part.reshape(self._streams, self.ring_rows, *part.shape[1:])[:, :used]

    def _of_segments(self) -> tuple[np.ndarray, ...]:
        return self._made_by, self._target_versions, self._arrivals

    def _of_streams(self) -> tuple[np.ndarray, ...]:
        return self._ends, self._serials, self._pending


def _checked(
    symmetries: tuple[np.ndarray, np.ndarray], observation: tuple[int, ...], num_actions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both exchange places, as many as there are; and where each of the old actions is."""
    named = ("cells", int(np.prod(observation[1:]))), ("actions", num_actions)
    for of, (name, size) in zip(symmetries, named, strict=True):
        if of.shape[1:] != (size,) or not np.array_equal(np.sort(of, 1), np.broadcast_to(np.arange(size), of.shape)):
            raise ValueError(f"a symmetry exchanges all {size} {name}: [S, {size}], received {of.tolist()}")
    cells, actions = symmetries
    if len(cells) != len(actions):
        raise ValueError(f"{len(cells)} symmetries of cells and {len(actions)} of actions: each needs both")
    return cells, actions, np.argsort(actions, 1)


def _see(
    draw: dict[str, np.ndarray], ways: np.ndarray, cells: np.ndarray, actions: np.ndarray, places: np.ndarray
) -> None:
    """Each window of a draw in its own way [B]."""
    for name in ("obs", "bootstrap_obs"):
        if name in draw:
            flat = draw[name].reshape(*draw[name].shape[:3], -1)  # [H + 1, B, planes, cells]
            draw[name] = np.take_along_axis(flat, cells[ways][None, :, None], -1).reshape(draw[name].shape)
    draw["policies"] = np.take_along_axis(draw["policies"], actions[ways][None], -1)
    draw["actions"] = np.take_along_axis(places[ways], draw["actions"].T, 1).T.copy()


def _begins(flags: np.ndarray) -> np.ndarray:
    """Whether a row of segments [G, T] begins an episode, or is the first there is."""
    valid, over = flags & VALID > 0, flags & (TERMINATED | TRUNCATED) > 0
    begins = np.ones(flags.shape, bool)
    begins[:, 1:] = ~valid[:, :-1] | (over[:, :-1] & valid[:, 1:])
    return begins


@njit(cache=True, nogil=True)
def _complete_until(flags, base, ring, first, end, reach):
    """The first of the stream's rows in [first, end) that is not complete, or `end`."""
    for row in range(first, end):
        is_complete = row + reach < end
        for ahead in range(row, min(row + reach, end)):
            flag = flags[base + ahead % ring]
            if flag & TERMINATED:
                is_complete = True
                break
            if flag & TRUNCATED:  # the observation it was cut at is in the next row
                is_complete = ahead + 1 < end
                break
        if not is_complete:
            return row
    return end


@njit(cache=True, nogil=True)
def _gather(
    obs,
    actions,
    rewards,
    flags,
    to_play,
    policies,
    values,
    rows,
    ring,
    td_steps,
    discount,
    out_obs,
    out_actions,
    out_rewards,
    out_policies,
    out_returns,
    out_factors,
    out_root_values,
    out_mask,
    out_ended,
    out_bootstraps,
):
    """One window a row. Everything was zero; what lies past the end of an episode stays so, but for `out_ended`."""
    steps = out_rewards.shape[0]
    for b in range(rows.size):
        base = rows[b] // ring * ring
        begin = rows[b] - base
        for k in range(steps + 1):
            row = base + (begin + k) % ring
            out_mask[k, b] = 1.0
            for f in range(obs.shape[1]):
                out_obs[k, b, f] = obs[row, f]
            for a in range(policies.shape[1]):
                out_policies[k, b, a] = policies[row, a]
            if k < steps:
                out_actions[k, b] = actions[row]
                out_rewards[k, b] = rewards[row]
            # the n-step target of this step
            mover, total, weight = to_play[row], 0.0, 1.0
            last = row
            is_over = False
            for _ in range(td_steps):
                sign = 1.0 if to_play[last] == mover else -1.0
                total += weight * sign * rewards[last]
                weight *= discount
                flag = flags[last]
                last = base + (last - base + 1) % ring
                if flag & TERMINATED:
                    is_over = True
                    break
                if flag & TRUNCATED:
                    break
            out_returns[k, b] = total
            if not is_over:
                out_factors[k, b] = weight if to_play[last] == mover else -weight
                out_root_values[k, b] = values[last]
                out_bootstraps[k, b] = last
            if flags[row] & (TERMINATED | TRUNCATED):
                if flags[row] & TERMINATED:
                    for ahead in range(k + 1, steps + 1):
                        out_ended[ahead, b] = 1.0
                break
