"""The replay, by priorities and uniform: what it keeps, what it refuses, how often it draws, and how it continues."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.rules import ReplayRatio
from headway.core.types import Batch, LearnReport
from headway.replay.prioritized import PrioritizedReplay
from headway.replay.prioritized_item_ring import DrawnItems, ItemRing
from headway.runtimes.inline import Inline
from headway.testing.toy_stations import ToyCollector, ToyLearner

stable = settings(max_examples=60, deadline=None, derandomize=True)
uniform = partial(PrioritizedReplay, alpha=0.0)
both = pytest.mark.parametrize("make", [uniform, PrioritizedReplay])
Make = Callable[..., Any]


def numbered(first: int, num: int) -> dict[str, np.ndarray]:
    """Items that carry their own id, in fields of every width."""
    ids = np.arange(first, first + num)
    return {
        "id": ids,
        "flag": (ids % 3 == 0),
        "pair": np.stack([ids, -ids], axis=1).astype(np.float32),
        "bytes": (ids[:, None] + np.arange(5)).astype(np.uint8),
        "image": np.broadcast_to(ids.astype(np.float32)[:, None, None], (num, 3, 7)),
        "empty": np.zeros((num, 0)),
    }


def filled(make: Make, capacity: int, num: int, **options: Any) -> Any:
    replay = make(capacity, **options)
    for first in range(0, num, 7):
        replay.insert(numbered(first, min(7, num - first)), version=first // 7)
    return replay


def prioritized(priorities: np.ndarray, **options: Any) -> PrioritizedReplay:
    replay = PrioritizedReplay(len(priorities), **options)
    replay.insert({"id": np.arange(len(priorities))}, 0, priorities)
    return replay


def counts(replay: Any, batches: int = 400, batch_size: int = 50) -> np.ndarray:
    drawn = [replay.sample(batch_size).ids for _ in range(batches)]
    return np.bincount(np.concatenate(drawn) % replay.capacity, minlength=replay.capacity)


def assert_same_sample(ours: DrawnItems, theirs: DrawnItems) -> None:
    for a, b in ((ours.ids, theirs.ids), (ours.weights, theirs.weights), (ours.versions, theirs.versions)):
        np.testing.assert_array_equal(a, b)
    assert ours.items.keys() == theirs.items.keys()
    for name, values in ours.items.items():
        np.testing.assert_array_equal(values, theirs.items[name])


# -- the ring ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("num", [5, 20, 23, 61, 200])
def test_a_sample_brings_the_items_of_its_ids(make: Make, num: int) -> None:
    replay = filled(make, 20, num)
    sample = replay.sample(20, version=1000)
    assert (sample.ids >= max(0, num - 20)).all() and (sample.ids < num).all()
    expected = numbered(0, num)
    assert sample.items.keys() == expected.keys()
    for name, values in sample.items.items():
        assert values.dtype == expected[name].dtype and values.flags.c_contiguous and values.flags.aligned
        np.testing.assert_array_equal(values, expected[name][sample.ids])
    np.testing.assert_array_equal(sample.versions, sample.ids // 7)
    np.testing.assert_array_equal(sample.staleness, 1000 - sample.ids // 7)
    assert sample.weights.dtype == np.float32 and sample.weights.shape == (20,)
    assert replay.sample(2).staleness is None


@both
def test_insert_returns_ids_that_never_repeat(make: Make) -> None:
    replay = make(4)
    ids = [replay.insert({"x": np.zeros(3)}, 0) for _ in range(5)]
    np.testing.assert_array_equal(np.concatenate(ids), np.arange(15))
    assert replay.insert({"x": np.zeros(0)}, 0).shape == (0,)


@both
def test_a_sample_is_the_callers_own(make: Make) -> None:
    replay = filled(make, 8, 8)
    replay.sample(8).items["image"][:] = -1.0
    assert (replay.sample(8).items["image"] >= 0).all()


@both
def test_versions_may_differ_within_an_insert(make: Make) -> None:
    replay = make(3)
    replay.insert({"x": np.arange(2)}, version=5)
    replay.insert({"x": np.arange(2)}, version=np.array([6, 7]))
    sample = replay.sample(3)
    np.testing.assert_array_equal(sample.versions, np.array([5, 5, 6, 7])[sample.ids])


@both
def test_fields_can_be_declared_ahead(make: Make) -> None:
    replay = make(4, {"x": ((2,), np.float16)})
    replay.insert({"x": np.ones((3, 2))}, 0)
    assert replay.sample(2).items["x"].dtype == np.float16
    assert replay.statistics().bytes >= 4 * 12


@both
@pytest.mark.parametrize(
    ("items", "version", "message"),
    [
        ({"x": np.zeros((2, 3))}, 0, "fields must be"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2), "z": np.zeros(2)}, 0, "fields must be"),
        ({"x": np.zeros((2, 4)), "y": np.zeros(2)}, 0, r"'x' must be float64 \[2, 3\], received float64 \[2, 4\]"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(1)}, 0, "'y' must be"),
        ({"x": np.zeros((2, 3), complex), "y": np.zeros(2)}, 0, "received complex128"),
        ({"x": np.zeros((9, 3)), "y": np.zeros(9)}, 0, "capacity 8 cannot take 9"),
        ({"x": np.zeros((2, 3)), "y": 1.0}, 0, "'y' must be"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, -1, "version must be an integer >= 0"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, 0.5, "version must be an integer >= 0"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, [1, 2, 3], "or 2 of them"),
        ({}, 0, "no fields"),
        ({"__version__": np.zeros(2)}, 0, "is taken"),
    ],
)
def test_an_insert_that_does_not_fit_changes_nothing(make: Make, items: Any, version: Any, message: str) -> None:
    replay = make(8)
    replay.insert({"x": np.ones((3, 3)), "y": np.ones(3)}, 0)
    before = pickle.dumps(replay.state_dict())
    with pytest.raises(ValueError, match=message):
        replay.insert(items, version)
    assert pickle.dumps(replay.state_dict()) == before


def test_python_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="'x' holds Python objects"):
        PrioritizedReplay(4).insert({"x": np.array([None])}, 0)


@pytest.mark.parametrize(("num_bytes", "stride"), [(4, 16), (8, 16), (20, 32), (50, 64), (56, 64), (57, 72)])
def test_small_records_do_not_straddle_cache_lines(num_bytes: int, stride: int) -> None:
    ring = ItemRing(10, {"x": ((num_bytes,), np.uint8)})
    assert ring.nbytes == 10 * stride


# -- refusals ---------------------------------------------------------------------------------------


@both
def test_a_batch_larger_than_the_capacity_is_refused(make: Make) -> None:
    replay = filled(make, 20, 20)
    with pytest.raises(ValueError, match="at most the capacity, 20, received 21"):
        replay.sample(21)
    with pytest.raises(ValueError, match="received 0"):
        replay.sample(0)
    with pytest.raises(ValueError, match="capacity must be >= 1, received 0"):
        make(0)


@both
def test_drawing_from_an_empty_replay_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="empty"):
        make(20).sample(4)


@pytest.mark.parametrize(
    "setting",
    [
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"beta_start": 1.5},
        {"beta_end": -1},
        {"eps": 0.0},
        {"version_decay": 0.0},
        {"version_decay": 1.1},
    ],
)
def test_settings_that_cannot_work_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        PrioritizedReplay(10, **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -1e-9])
def test_bad_priorities_are_refused_whole(bad: float) -> None:
    replay = filled(PrioritizedReplay, 20, 33)
    before = pickle.dumps(replay.state_dict())
    with pytest.raises(ValueError, match=f"received {bad} at position 2"):
        replay.update([30, 31, 20, 32], [9.0, 9.0, bad, bad])
    with pytest.raises(ValueError, match=f"received {bad} at position 1"):
        replay.insert(numbered(33, 2), 9, [1.0, bad])
    with pytest.raises(ValueError, match="was never given out"):
        replay.update([30, 33], [9.0, 9.0])
    with pytest.raises(ValueError, match="was never given out"):
        replay.update([-1], [9.0])
    with pytest.raises(ValueError, match="one per item"):
        replay.update([30, 31], [9.0])
    assert pickle.dumps(replay.state_dict()) == before


def test_a_refused_first_insert_does_not_fix_the_fields() -> None:
    replay = PrioritizedReplay(4)
    with pytest.raises(ValueError, match="received nan at position 0"):
        replay.insert({"x": np.zeros(1)}, 0, [np.nan])
    replay.insert({"y": np.zeros((1, 2))}, 0)
    assert len(replay) == 1


# -- how often --------------------------------------------------------------------------------------


def test_the_uniform_replay_draws_evenly_with_weight_one() -> None:
    replay = filled(uniform, 100, 150)
    assert chisquare(counts(replay)).pvalue > 1e-3
    assert (replay.sample(10, progress=0.5).weights == 1.0).all()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0])
def test_frequencies_follow_the_priorities(alpha: float) -> None:
    rng = np.random.default_rng(7)
    priorities = rng.exponential(size=97)
    replay = prioritized(priorities, alpha=alpha)
    for _ in range(30):
        ids = rng.integers(97, size=20)
        fresh = rng.exponential(size=20)
        replay.update(ids, fresh)
        for place, value in zip(ids, fresh, strict=True):
            priorities[place] = value
    expected = (priorities + 1e-6) ** alpha
    drawn = counts(replay)
    assert chisquare(drawn, expected / expected.sum() * drawn.sum()).pvalue > 1e-3


@stable
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60), st.floats(0, 1), st.floats(0, 1))
def test_weights_equal_the_formula_over_the_whole_replay(values: list[float], alpha: float, beta: float) -> None:
    priorities = np.array(values)
    replay = PrioritizedReplay(64, alpha=alpha)  # partly empty: empty leaves must not set the maximum
    replay.insert({"x": priorities}, 0, priorities)
    sample = replay.sample(16, beta=beta)
    p = (priorities + 1e-6) ** alpha
    weights = (len(p) * p / p.sum()) ** -beta
    np.testing.assert_allclose(sample.weights, (weights / weights.max())[sample.ids], rtol=1e-5)


def test_writing_back_changes_what_is_drawn() -> None:
    replay = prioritized(np.ones(50), alpha=1.0)
    replay.update(np.arange(50), np.where(np.arange(50) == 31, 1.0, 0.0))
    assert counts(replay, batches=10)[31] >= 490


def test_of_equal_ids_the_last_priority_wins() -> None:
    replay = prioritized(np.ones(4), alpha=1.0, eps=1e-12)
    replay.update([2, 2, 1, 2], [5.0, 7.0, 1.0, 3.0])
    assert replay.statistics().total_priority == pytest.approx(6.0)


def test_new_items_enter_with_the_largest_priority_seen() -> None:
    replay = PrioritizedReplay(10, alpha=1.0, eps=1e-12)
    replay.insert({"x": np.zeros(1)}, 0)
    assert replay.statistics().total_priority == pytest.approx(1.0)
    replay.update([0], [6.0])
    replay.update([0], [2.0])
    replay.insert({"x": np.zeros(1)}, 0)
    assert replay.statistics().total_priority == pytest.approx(2.0 + 6.0)
    assert replay.statistics().max_priority == 6.0


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_each_stratum_is_drawn_from_once(batch_size: int) -> None:
    replay = prioritized(np.ones(192))
    for _ in range(20):
        np.testing.assert_array_equal(replay.sample(batch_size).ids * batch_size // 192, np.arange(batch_size))


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[str, list[float]]]]:
    capacity = draw(st.integers(1, 70))
    step = st.one_of(
        st.tuples(st.just("insert"), st.lists(st.floats(0, 100), max_size=capacity)),
        st.tuples(st.just("enter"), st.lists(st.just(0.0), max_size=capacity)),
        st.tuples(st.just("update"), st.lists(st.floats(0, 100), max_size=30)),
        st.tuples(st.just("sample"), st.just([0.0])),
    )
    return capacity, draw(st.lists(step, max_size=20))


@stable
@given(histories(), st.integers(0, 2**32))
def test_any_history_agrees_with_a_list_of_priorities(
    case: tuple[int, list[tuple[str, list[float]]]], seed: int
) -> None:
    capacity, steps = case
    rng = np.random.default_rng(seed)
    replay = PrioritizedReplay(capacity)
    kept: dict[int, float] = {}  # id -> priority, of live items
    end, late, largest = 0, 0, 1.0
    for kind, values in steps:
        if kind in ("insert", "enter"):
            given_ = values if kind == "insert" else None
            ids = replay.insert({"id": np.arange(end, end + len(values))}, 0, given_)
            if given_:
                largest = max(largest, *given_)
            kept |= {int(k): largest if given_ is None else v for k, v in zip(ids, values, strict=True)}
            end += len(values)
            kept = {k: v for k, v in kept.items() if k >= end - capacity}
        elif kind == "update" and end:
            ids = rng.integers(max(0, end - 2 * capacity), end, size=len(values))
            replay.update(ids, values)
            late += int((ids < end - capacity).sum())
            for k, v in zip(ids.tolist(), values, strict=True):
                if k in kept:
                    kept[k] = v
                    largest = max(largest, v)
        elif kind == "sample" and end:
            sample = replay.sample(min(8, capacity), beta=1.0)
            np.testing.assert_array_equal(sample.items["id"], sample.ids)
            p = {k: (v + 1e-6) ** 0.6 for k, v in kept.items()}
            expected = [min(p.values()) / p[k] for k in sample.ids.tolist()]
            np.testing.assert_allclose(sample.weights, expected, rtol=1e-6)
        statistics = replay.statistics()
        assert (statistics.size, statistics.late_updates) == (len(kept), late)
        assert statistics.max_priority == largest
        assert statistics.total_priority == pytest.approx(sum((v + 1e-6) ** 0.6 for v in kept.values()), rel=1e-12)


# -- late updates -----------------------------------------------------------------------------------


@both
def test_a_late_update_is_ignored_and_counted(make: Make) -> None:
    replay = filled(make, 10, 10)
    old = replay.sample(10).ids
    replay.insert(numbered(10, 10), 1)
    before = replay.statistics()
    replay.update(old, np.full(10, 1e6))
    after = replay.statistics()
    assert after.late_updates == 10
    assert after.total_priority == before.total_priority
    assert after.max_priority == before.max_priority


def test_the_live_part_of_a_late_update_counts() -> None:
    replay = PrioritizedReplay(4, alpha=1.0, eps=1e-12)
    replay.insert({"x": np.zeros(4)}, 0)
    replay.insert({"x": np.zeros(1)}, 0)
    replay.update([0, 4, 1], [50.0, 3.0, 2.0])
    statistics = replay.statistics()
    assert statistics.late_updates == 1
    assert statistics.total_priority == pytest.approx(3 + 2 + 1 + 1)


# -- schedules, ages --------------------------------------------------------------------------------


def test_beta_rises_linearly_over_the_run() -> None:
    replay = PrioritizedReplay(10, beta_start=0.4, beta_end=1.0)
    assert [replay.beta_at(p) for p in (-1, 0, 0.5, 1, 3)] == pytest.approx([0.4, 0.4, 0.7, 1.0, 1.0])
    with pytest.raises(ValueError, match="progress is nan"):
        replay.beta_at(float("nan"))


def test_progress_sets_the_exponent_of_the_weights() -> None:
    replay = prioritized(np.arange(20.0) + 1)
    state = replay.state_dict()
    by_progress = replay.sample(10, progress=0.5)
    replay.load_state_dict(state)
    by_beta = replay.sample(10, beta=0.7)
    np.testing.assert_allclose(by_progress.weights, by_beta.weights, rtol=1e-6)
    with pytest.raises(ValueError, match="exclude each other"):
        replay.sample(10, beta=0.7, progress=0.5)
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\]"):
        replay.sample(10, beta=float("nan"))


def test_older_versions_are_drawn_less_by_the_decay() -> None:
    replay = PrioritizedReplay(40, alpha=0.5, version_decay=0.9)
    priorities = np.random.default_rng(3).random(40) + 0.5
    replay.insert({"x": np.zeros(40)}, np.arange(40) // 4, priorities)
    ids = np.arange(0, 40, 3)
    priorities[ids] += 1.0
    replay.update(ids, priorities[ids])
    expected = (priorities + 1e-6) ** 0.5 * 0.9 ** (9 - np.arange(40) // 4)
    drawn = counts(replay, batch_size=20)
    assert chisquare(drawn, expected / expected.sum() * drawn.sum()).pvalue > 1e-3
    sample = replay.sample(20, beta=1.0)
    np.testing.assert_allclose(sample.weights, (expected.min() / expected)[sample.ids], rtol=1e-5)


def test_ages_do_not_overflow_in_a_long_run() -> None:
    replay = PrioritizedReplay(8, alpha=1.0, version_decay=0.5)
    for version in range(0, 30_000, 250):
        replay.insert({"x": np.zeros(2)}, version + np.arange(2))
    replay.update(replay.sample(8).ids, np.ones(8))
    sample = replay.sample(8, beta=0.0)
    assert np.isfinite(replay.statistics().total_priority)
    assert (sample.ids >= 120 * 2 - 2).all()
    newest = (sample.ids == 239).sum()
    assert newest in (5, 6)  # two thirds of eight, stratified


# -- continuing -------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("num", [0, 5, 33])
def test_a_loaded_replay_goes_on_with_the_same_samples(make: Make, num: int) -> None:
    rng = np.random.default_rng(0)
    original = filled(make, 20, num, seed=5)
    if num:
        original.update(original.sample(10).ids, rng.random(10) * 4)
    state = pickle.loads(pickle.dumps(original.state_dict()))
    loaded = make(20, seed=99)
    loaded.insert(numbered(0, 3), 0)
    loaded.load_state_dict(state)
    assert loaded.statistics().late_updates == original.statistics().late_updates
    for _ in range(4):
        for replay in (original, loaded):
            replay.insert(numbered(0, 6), 3)
        ours, theirs = original.sample(13, progress=0.3), loaded.sample(13, progress=0.3)
        assert_same_sample(ours, theirs)
        priorities = rng.random(13)
        original.update(ours.ids, priorities)
        loaded.update(theirs.ids, priorities)


@both
def test_the_fields_come_with_the_state(make: Make) -> None:
    replay = filled(make, 20, 20)
    replay.load_state_dict(make(20).state_dict())
    replay.insert({"another": np.ones(2)}, 0)
    assert replay.sample(3).items["another"].shape == (3,)


@both
def test_a_saved_state_does_not_change_with_the_replay(make: Make) -> None:
    replay = filled(make, 20, 20)
    state = replay.state_dict()
    before = copy.deepcopy(state)
    replay.insert(numbered(20, 5), 1)
    replay.update(replay.sample(5).ids, np.ones(5))
    assert pickle.dumps(state) == pickle.dumps(before)


@both
def test_a_state_of_another_capacity_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="cannot continue with"):
        make(21).load_state_dict(filled(make, 20, 20).state_dict())


def test_leaves_of_another_alpha_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot continue with"):
        PrioritizedReplay(20, alpha=0.5).load_state_dict(filled(PrioritizedReplay, 20, 20).state_dict())


@both
def test_statistics_are_immutable(make: Make) -> None:
    statistics = filled(make, 20, 33).statistics()
    assert (statistics.size, statistics.capacity, statistics.inserted) == (20, 20, 33)
    assert statistics.bytes > 20 * (8 + 1 + 8 + 5 + 84)
    with pytest.raises(AttributeError):
        statistics.size = 3


# -- in a run ---------------------------------------------------------------------------------------


class PrioritizedToyLearner(ToyLearner):
    """The toy problem's learner on top of a prioritized replay."""

    def __init__(self) -> None:
        super().__init__()
        self.replay = PrioritizedReplay(64, version_decay=0.99)

    def insert(self, batch: Batch) -> None:
        for rollout in batch.rollouts:
            self.replay.insert({k: v[None] for k, v in rollout.payload.items()}, version=batch.version)

    def learn(self, batch: Batch) -> LearnReport:
        sample = self.replay.sample(4, progress=0.5, version=batch.version)
        assert sample.staleness is not None and (sample.staleness >= 0).all()
        seen = sample.items["seen"]  # [4, SIZE]
        self._weights += 0.05 * np.cos((sample.weights[:, None] * seen).mean(axis=0))
        self.replay.update(sample.ids, np.abs(seen - self._weights).mean(axis=1))
        return LearnReport(samples=4)

    def state_dict(self) -> Any:
        return {"weights": self._weights, "replay": self.replay.state_dict()}


def run_with_replay() -> PrioritizedToyLearner:
    learners: list[PrioritizedToyLearner] = []

    def make_learner() -> PrioritizedToyLearner:
        learners.append(PrioritizedToyLearner())
        return learners[-1]

    ratio = ReplayRatio(samples_per_insert=0.5, min_size=8, samples_per_update=4, steps_per_ticket=4)
    config = Settings(plan=Plan(updates=30), max_lead=1, collectors=2, replay=ratio, seed=3)
    runtime = Inline()
    runtime.run(Coordinator(Stations(ToyCollector, make_learner), config, runtime).run())
    return learners[0]


def test_a_learner_with_a_prioritized_replay_keeps_the_replay_ratio() -> None:
    learner, again = run_with_replay(), run_with_replay()
    statistics = learner.replay.statistics()
    assert statistics.inserted >= 8
    assert statistics.max_priority != 1.0 or statistics.total_priority != statistics.size
    np.testing.assert_array_equal(learner.snapshot()["weights"], again.snapshot()["weights"])
    assert pickle.dumps(learner.state_dict()) == pickle.dumps(again.state_dict())
