"""Segments of games: targets as brute force says, nothing incomplete drawn, ids that outlive eviction."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.types import Batch, Rollout, Span
from headway.replay.records import arrays_of
from headway.replay.records_feedback import Priorities
from headway.zero.board_games_package import CONNECT_FOUR, BoardGames, random_player, symmetries
from headway.zero.replay_game_segments import GameSegments, Reanalysis
from headway.zero.replay_game_windows import Windows, gather
from headway.zero.segments import GameSegment, SearchedTargets

ACTIONS = 3
pytestmark = pytest.mark.filterwarnings("error")


@dataclass
class Step:
    """One row as the brute force sees it."""

    obs: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    to_play: int
    policy: np.ndarray
    value: float


def a_stream(rng: np.random.Generator, num: int, *, players: int, is_vector: bool) -> list[Step]:
    """Episodes one after another. As a vector environment gives them: each end is followed by a row that only resets;
    as a board game gives them: a termination is not."""
    steps: list[Step] = []
    mover, must_reset = 0, False
    while len(steps) < num:
        policy = rng.dirichlet(np.ones(ACTIONS)).astype(np.float32)
        step = Step(
            obs=float(len(steps)) + 0.5 * float(rng.random()),
            action=int(rng.integers(ACTIONS)),
            reward=float(np.float32(rng.normal())),
            terminated=False,
            truncated=False,
            valid=True,
            to_play=mover,
            policy=policy,
            value=float(np.float32(rng.normal())),
        )
        steps.append(step)
        if must_reset:
            step.valid, step.reward, must_reset = False, 0.0, False
            mover = 0
            continue
        ending = rng.random()
        step.terminated, step.truncated = ending < 0.15, 0.15 <= ending < 0.25
        mover = (mover + 1) % players
        if step.truncated or (step.terminated and is_vector):
            must_reset = True
        elif step.terminated:
            mover = 0
    return steps


def rollout_of(
    streams: list[list[Step]], order: int, steps: int, *, first: int = 0, version: int | None = None
) -> Rollout:
    """Segment `order` of each stream, side by side."""
    parts = [stream[order * steps : (order + 1) * steps] for stream in streams]

    def column(name: str, dtype: Any) -> np.ndarray:
        return np.array([[getattr(part[t], name) for part in parts] for t in range(steps)], dtype)

    segment = GameSegment(
        obs=column("obs", np.float32)[..., None],
        actions=column("action", np.int32),
        rewards=column("reward", np.float32),
        terminated=column("terminated", bool),
        truncated=column("truncated", bool),
        valid=column("valid", bool),
        to_play=column("to_play", np.int8),
        policies=column("policy", np.float32),
        values=column("value", np.float32),
        stream=first,
        serial=order,
    )
    made_by = order if version is None else version
    return Rollout(segment, steps=segment.num_steps, span=Span(made_by, made_by))


def a_replay(**changes: Any) -> GameSegments:
    known: dict[str, Any] = {
        "capacity": 2 * 4 * 6,
        "num_streams": 2,
        "segment_steps": 4,
        "observation": (1,),
        "num_actions": ACTIONS,
        "batch_size": 16,
        "windows": Windows(num_unroll_steps=3, td_steps=2, discount=0.9),
    } | changes
    return GameSegments(known.pop("capacity"), **known)


def brute_force(stream: list[Step], at: int, known: int, windows: Windows) -> dict[str, Any] | None:
    """The window at a position, step by step from the definition; None if anything is missing."""
    H, n, gamma = windows.num_unroll_steps, windows.td_steps, windows.discount
    out: dict[str, Any] = {name: [] for name in ("obs", "returns", "factors", "roots", "mask", "ended", "policies")}
    over, terminated = False, False
    for k in range(H + 1):
        here = at + k
        if over:
            for name in ("obs", "returns", "factors", "roots", "mask"):
                out[name].append(0.0)
            out["policies"].append(np.zeros(ACTIONS))
            out["ended"].append(float(terminated))
            continue
        if here >= known:
            return None
        total, factor, root = 0.0, 0.0, 0.0
        for j in range(n + 1):
            if here + j >= known:
                return None
            step = stream[here + j]
            sign = 1.0 if step.to_play == stream[here].to_play else -1.0
            if j == n or (j and stream[here + j - 1].truncated and not stream[here + j - 1].terminated):
                factor, root = gamma**j * sign, step.value
                break
            total += gamma**j * sign * step.reward
            if step.terminated:
                break
        out["obs"].append(stream[here].obs)
        out["returns"].append(total)
        out["factors"].append(factor)
        out["roots"].append(root)
        out["mask"].append(1.0)
        out["ended"].append(0.0)
        out["policies"].append(stream[here].policy)
        over = stream[here].terminated or stream[here].truncated
        terminated = stream[here].terminated
    return out


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    unroll=st.integers(1, 6),
    td=st.integers(1, 7),
    steps=st.integers(1, 6),
    players=st.sampled_from([1, 2]),
    is_vector=st.booleans(),
    segments=st.integers(1, 12),
)
def test_targets_equal_brute_force_on_random_episodes(
    seed: int, unroll: int, td: int, steps: int, players: int, is_vector: bool, segments: int
) -> None:
    rng = np.random.default_rng(seed)
    windows = Windows(num_unroll_steps=unroll, td_steps=td, discount=0.9)
    ring = 2 + -(-windows.reach // steps)
    replay = a_replay(capacity=2 * steps * ring, segment_steps=steps, windows=windows, batch_size=64)
    streams = [a_stream(rng, steps * segments, players=players, is_vector=is_vector) for _ in range(2)]
    for order in range(segments):
        replay.insert(Batch(order, (rollout_of(streams, order, steps),)))
    known = steps * segments
    oldest = max(0, segments - ring) * steps
    wanted = {
        (stream, at): target
        for stream in range(2)
        for at in range(oldest, known)
        if streams[stream][at].valid and (target := brute_force(streams[stream], at, known, windows)) is not None
    }
    assert len(replay) == len(wanted), "what is complete can be drawn, and nothing else"
    if not wanted:
        with pytest.raises(ValueError, match="nothing to draw"):
            replay.sample(segments)
        return
    drawn = set()
    for _ in range(4):
        payload = replay.sample(segments).payload
        for b, identity in enumerate(payload.ids):
            segment, step = divmod(int(identity), steps)
            order, stream = divmod(segment, 2)
            at = order * steps + step
            drawn.add((stream, at))
            target = wanted[stream, at]
            for name, ours in (
                ("obs", payload.obs[:, b, 0]),
                ("returns", payload.returns[:, b]),
                ("factors", payload.factors[:, b]),
                ("roots", payload.root_values[:, b]),
                ("mask", payload.mask[:, b]),
                ("ended", payload.ended[:, b]),
                ("policies", payload.policies[:, b]),
            ):
                np.testing.assert_allclose(ours, np.array(target[name]), rtol=1e-5, atol=1e-6, err_msg=name)
            for k in range(unroll):
                if target["mask"][k]:
                    assert payload.actions[k, b] == streams[stream][at + k].action
                    assert payload.rewards[k, b] == np.float32(streams[stream][at + k].reward)
            for k in range(unroll + 1):
                if target["factors"][k]:
                    value = target["roots"][k]
                    row = next(s for s in streams[stream][at + k :] if np.float32(s.value) == np.float32(value))
                    assert payload.bootstrap_obs[k, b, 0] == np.float32(row.obs)
    assert drawn <= wanted.keys()


def plain_stream(num: int, *, value: float = 0.0) -> list[Step]:
    policy = np.full(ACTIONS, 1 / ACTIONS, np.float32)
    return [Step(float(t), t % ACTIONS, 1.0, False, False, True, 0, policy, value + t) for t in range(num)]


def test_truncation_is_not_termination() -> None:
    """Two rewards and then the end: a cut episode goes on in the value of its last observation, a finished one not."""
    for is_cut in (True, False):
        stream = plain_stream(12)
        stream[1].truncated, stream[1].terminated, stream[2].valid = is_cut, not is_cut, False
        replay = a_replay(capacity=4 * 6, num_streams=1, windows=Windows(num_unroll_steps=1, td_steps=3, discount=0.5))
        for order in range(3):
            replay.insert(Batch(0, (rollout_of([stream], order, 4),)))
        payload = replay.sample(0).payload
        b = list(payload.ids).index(0)
        assert payload.returns[0, b] == 1 + 0.5
        assert payload.factors[0, b] == (0.25 if is_cut else 0.0)
        assert payload.root_values[0, b] == (2.0 if is_cut else 0.0)
        if is_cut:
            assert payload.bootstrap_obs[0, b, 0] == 2.0


def test_the_other_players_rewards_count_against_the_mover() -> None:
    stream = plain_stream(12)
    for t, step in enumerate(stream):
        step.to_play, step.reward = t % 2, 0.0
    stream[3].reward, stream[3].terminated = 1.0, True  # player 1 wins with its second move
    replay = a_replay(capacity=4 * 6, num_streams=1, windows=Windows(num_unroll_steps=1, td_steps=9, discount=1.0))
    for order in range(3):
        replay.insert(Batch(0, (rollout_of([stream], order, 4),)))
    payload = replay.sample(0).payload
    of = {int(i): payload.returns[0, b] for b, i in enumerate(payload.ids)}
    assert [of[t] for t in range(4)] == [-1.0, 1.0, -1.0, 1.0]


def test_positions_without_complete_targets_are_never_drawn() -> None:
    replay = a_replay(num_streams=1, capacity=24)
    stream = plain_stream(20)
    replay.insert(Batch(0, (rollout_of([stream], 0, 4),)))
    assert len(replay) == 0
    replay.insert(Batch(0, (rollout_of([stream], 1, 4),)))
    assert {int(i) for i in replay.sample(0).payload.ids} == {0, 1, 2}, "the row 5 steps later must be there: 7"
    replay.insert(Batch(0, (rollout_of([stream], 2, 4),)))
    assert len(replay) == 7


def test_the_oldest_segments_are_evicted_whole_and_what_comes_late_for_them_is_ignored() -> None:
    replay = a_replay(num_streams=1, capacity=4 * 3, batch_size=8)
    stream = plain_stream(80)
    for order in range(3):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
    early = replay.sample(3).payload.ids.copy()
    assert early.min() < 4
    for order in (3, 4, 5, 6):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
        size = len(replay)
        assert {int(i) // 4 for i in replay.sample(9).payload.ids} <= {order - 2, order - 1, order}
        assert size == 12 - 5
    before = copy.deepcopy(replay.state_dict()["leaves"])
    replay.update(Priorities(early, np.full(len(early), 9.0)))
    np.testing.assert_array_equal(replay.state_dict()["leaves"], before)
    assert replay.statistics()["replay_late_updates"] == len(early)
    with pytest.raises(ValueError, match="never given out"):
        replay.update(Priorities(np.array([4 * 7]), np.array([1.0])))


def test_priorities_change_what_is_drawn_and_weights_undo_it() -> None:
    replay = a_replay(num_streams=1, capacity=4 * 6, batch_size=64, alpha=1.0, beta_start=1.0)
    stream = plain_stream(24)
    for order in range(6):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
    num = len(replay)
    every = np.arange(num)
    priorities = np.where(every == 5, 30.0, 1.0)
    replay.update(Priorities(every, priorities))
    payloads = [replay.sample(6).payload for _ in range(20)]
    share = np.mean([(p.ids == 5).mean() for p in payloads])
    assert share == pytest.approx(30 / (30 + num - 1), rel=0.05)
    weights = {int(i): w for p in payloads for i, w in zip(p.ids, p.weights, strict=True)}
    assert weights[5] == pytest.approx(1 / 30, rel=1e-3)
    assert weights[4] == pytest.approx(1.0, rel=1e-3)


def test_the_exponent_of_the_weights_moves_over_the_run() -> None:
    replay = a_replay(num_streams=1, capacity=24, beta_start=0.4, beta_end=0.8, total_draws=4)
    stream = plain_stream(24)
    for order in range(6):
        replay.insert(Batch(0, (rollout_of([stream], order, 4),)))
    seen = []
    for _ in range(6):
        replay.sample(0)
        seen.append(replay.statistics()["replay_beta"])
    assert seen == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.8, 0.8])


def test_a_segment_that_does_not_follow_begins_a_new_chain() -> None:
    """A collector that lost its state: its old tail will never be completed, and no window reaches across."""
    replay = a_replay(num_streams=1, capacity=4 * 6)
    stream, other = plain_stream(24), plain_stream(24, value=100.0)
    for order in range(2):
        replay.insert(Batch(0, (rollout_of([stream], order, 4),)))
    assert len(replay) == 3
    for order in range(2):  # serials begin anew
        replay.insert(Batch(0, (rollout_of([other], order, 4),)))
    assert len(replay) == 3 + 3
    drawn = {int(i) for _ in range(5) for i in replay.sample(0).payload.ids}
    assert drawn == {0, 1, 2, 8, 9, 10}
    assert replay.statistics()["replay_broken_chains"] == 1


def test_segments_of_one_collector_that_come_in_one_batch_are_put_in_their_order() -> None:
    replay, reference = a_replay(), a_replay()
    streams = [plain_stream(24), plain_stream(24)]
    rollouts = [rollout_of(streams, order, 4, version=0) for order in range(3)]
    replay.insert(Batch(0, tuple(reversed(rollouts))))
    for rollout in rollouts:
        reference.insert(Batch(0, (rollout,)))
    assert len(replay) == len(reference) == 14
    np.testing.assert_array_equal(replay.sample(1).payload.obs, reference.sample(1).payload.obs)


# -- reanalysis ---------------------------------------------------------------------------------------


def targets_for(work: Rollout, version: int, value: float) -> Rollout:
    groups, steps = work.payload.actions.shape
    policies = np.zeros((groups, steps, ACTIONS), np.float32)
    policies[..., 1] = 1.0
    values = np.full((groups, steps), value, np.float32)
    return Rollout(SearchedTargets(ids=work.payload.ids, policies=policies, values=values, version=version))


def test_the_oldest_targets_are_handed_out_first_and_written_back_by_id() -> None:
    replay = a_replay(reanalysis=Reanalysis(ratio=1.0, roots=8), num_streams=1, capacity=4 * 6)
    stream = plain_stream(24)
    for order in range(6):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
    assert replay.oldest(6) is None, "nothing was drawn, so nothing is due"
    replay.sample(6)
    work = replay.oldest(6)
    assert work is not None
    assert list(work.payload.ids) == [0, 1]
    np.testing.assert_array_equal(work.payload.obs[:, :, 0], np.arange(8.0).reshape(2, 4))
    replay.refresh(targets_for(work, 6, 7.5))
    numbers = replay.statistics()
    assert numbers["target_age_before"] == pytest.approx(5.5)
    assert numbers["target_age_after"] == 0
    assert numbers["target_age_mean"] == pytest.approx((0 + 0 + 4 + 3 + 2 + 1) / 6)
    assert numbers["targets_refreshed"] == 8
    payload = replay.sample(6).payload
    for b, identity in enumerate(payload.ids):
        assert payload.policies[0, b, 1] == (1.0 if identity < 8 else np.float32(1 / 3))
        assert payload.target_versions[b] == (6 if identity < 8 else identity // 4)
        assert payload.versions[b] == identity // 4, "data stay as old as they are"
        if payload.factors[0, b] and identity + 2 < 8:
            assert payload.root_values[0, b] == 7.5
    assert list(replay.oldest(6).payload.ids) == [2, 3]  # type: ignore[union-attr]


def test_ages_before_and_after_are_those_of_the_same_segments_against_the_version_trained_by_then() -> None:
    replay = a_replay(reanalysis=Reanalysis(ratio=1.0, roots=8), num_streams=1, capacity=4 * 6)
    stream = plain_stream(24)
    for order in range(6):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
    replay.sample(6)
    work = replay.oldest(6)
    assert work is not None
    replay.sample(9)  # learning goes on while they are searched
    replay.refresh(targets_for(work, 6, 7.5))
    numbers = replay.statistics()
    assert (numbers["target_age_before"], numbers["target_age_after"]) == (8.5, 3.0)
    assert numbers["target_age_mean"] == pytest.approx(9 - (6 + 6 + 2 + 3 + 4 + 5) / 6)
    again = a_replay(reanalysis=Reanalysis(ratio=1.0, roots=8), num_streams=1, capacity=4 * 6)
    again.load_state_dict(replay.state_dict())
    assert again.statistics() == numbers


def test_the_page_on_metrics_has_every_number_of_the_replay() -> None:
    replay = a_replay(reanalysis=Reanalysis(ratio=1.0, roots=8))
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    _, section = page.split("## What a search learner reports\n")
    section = section.split("\n## ")[0]
    assert [name for name in replay.statistics() if f"`{name}`" not in section] == []


def test_no_more_targets_are_made_again_than_the_ratio_allows() -> None:
    replay = a_replay(reanalysis=Reanalysis(ratio=0.5, roots=4), num_streams=1, capacity=4 * 6, batch_size=16)
    stream = plain_stream(24)
    for order in range(6):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
    replay.sample(9)
    handed = 0
    while (work := replay.oldest(9)) is not None:
        replay.refresh(targets_for(work, 9, 0.0))
        handed += work.steps
    assert handed == 8


def test_fresh_targets_and_those_outside_the_partition_are_left_alone() -> None:
    replay = a_replay(reanalysis=Reanalysis(ratio=9.0, roots=4, partition=0.5), num_streams=1, capacity=4 * 6)
    stream = plain_stream(24)
    for order in range(6):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
    replay.sample(9)
    seen = []
    while (work := replay.oldest(9)) is not None:
        seen += list(work.payload.ids)
        replay.refresh(targets_for(work, 9, 0.0))
    assert seen == [0, 1, 2]


def test_targets_of_segments_that_are_gone_are_ignored() -> None:
    replay = a_replay(reanalysis=Reanalysis(ratio=1.0, roots=8), num_streams=1, capacity=4 * 3)
    stream = plain_stream(40)
    for order in range(3):
        replay.insert(Batch(order, (rollout_of([stream], order, 4),)))
    replay.sample(3)
    work = replay.oldest(3)
    assert work is not None
    replay.insert(Batch(3, (rollout_of([stream], 3, 4),)))  # evicts segment 0
    replay.refresh(targets_for(work, 3, 7.5))
    assert replay.statistics()["targets_late"] == 4
    assert replay.statistics()["targets_refreshed"] == 4
    draw = replay.sample(4).payload
    assert {int(i) // 4: int(v) for i, v in zip(draw.ids, draw.target_versions, strict=True)}[1] == 3


# -- state --------------------------------------------------------------------------------------------


def test_a_replay_that_was_loaded_goes_on_bit_for_bit() -> None:
    rng = np.random.default_rng(3)
    streams = [a_stream(rng, 4 * 14, players=2, is_vector=True) for _ in range(2)]
    for saved_at in (0, 2, 9):
        mine = a_replay(reanalysis=Reanalysis(ratio=1.0, roots=8))
        copied = a_replay(reanalysis=Reanalysis(ratio=1.0, roots=8), seed=99)

        def go_on(replay: GameSegments, order: int) -> Any:
            replay.insert(Batch(order, (rollout_of(streams, order, 4),)))
            if not len(replay):
                return None
            draw = replay.sample(order).payload
            replay.update(Priorities(draw.ids, draw.obs[0, :, 0]))
            work = replay.oldest(order + 1)
            if work is not None:
                replay.refresh(targets_for(work, order, float(order)))
            return draw

        for order in range(saved_at):
            go_on(mine, order)
        copied.load_state_dict(copy.deepcopy(mine.state_dict()))
        for order in range(saved_at, 14):
            first, second = go_on(mine, order), go_on(copied, order)
            if first is not None:
                for name, values in arrays_of(first).items():
                    np.testing.assert_array_equal(values, getattr(second, name), err_msg=name)
        assert mine.statistics() == copied.statistics()
    with pytest.raises(ValueError, match="cannot continue"):
        a_replay(alpha=0.1).load_state_dict(mine.state_dict())


def test_memory_is_taken_once_and_reported() -> None:
    replay = a_replay()
    before = replay.nbytes
    streams = [plain_stream(80), plain_stream(80)]
    for order in range(20):
        replay.insert(Batch(order, (rollout_of(streams, order, 4),)))
    assert replay.nbytes == before
    assert replay.statistics()["replay_mb"] == pytest.approx(before / 2**20)


# -- symmetries ---------------------------------------------------------------------------------------


def played(num_games: int, steps: int) -> Rollout:
    """Connect-four by lot, as self-play gives it; the policy of a row is what was played there, and a little more."""
    games, random = BoardGames("connect_four", num_games), random_player(num_games, 3)
    rows: dict[str, list[np.ndarray]] = {}
    for _ in range(steps):
        valid, to_play, obs = ~games.ended, games.to_play.copy(), games.observation()
        actions = random(games)
        _, rewards, ended = games.step(actions)
        policies = np.full((num_games, 7), 0.05, np.float32)
        policies[np.arange(num_games), actions] = 0.7
        row = {"obs": obs, "actions": actions.astype(np.int32), "rewards": rewards, "to_play": to_play, "valid": valid}
        row |= {"terminated": ended & valid, "truncated": np.zeros(num_games, bool), "policies": policies}
        for name, value in (row | {"values": np.zeros(num_games, np.float32)}).items():
            rows.setdefault(name, []).append(value)
    segment = GameSegment(stream=0, serial=0, **{name: np.stack(parts) for name, parts in rows.items()})
    return Rollout(segment, steps=segment.num_steps, span=Span(0, 0))


def test_what_is_seen_in_another_way_is_still_the_game() -> None:
    """Every window that is drawn can be played, and what is seen differs from what was played in half of them."""
    replay = GameSegments(
        2 * 4 * 300,
        num_streams=4,
        segment_steps=300,
        observation=(2, 6, 7),
        num_actions=7,
        batch_size=256,
        windows=Windows(num_unroll_steps=2, td_steps=2, discount=1.0),
        store_as=np.uint8,
        symmetries=symmetries(CONNECT_FOUR),
    )
    rollout = played(4, 300)
    replay.insert(Batch(0, (rollout,)))
    draw = replay.sample(0).payload
    rings = replay._rings
    plain, bootstraps = gather(rings, rings.rows_of(draw.ids), np.zeros((2, 256), np.int64), replay.windows)
    mirrored = (draw.policies[0] != plain["policies"][0]).any(1)
    played_in_the_middle = plain["actions"][0] == 3
    assert 0.3 < mirrored[~played_in_the_middle].mean() < 0.7
    goes_on = draw.mask[1] > 0
    before, after, actions = draw.obs[0, goes_on], draw.obs[1, goes_on], draw.actions[0, goes_on]
    changed = (after[:, 1] != before[:, 0]).sum(1)  # the stones of who moved, seen by the other: one more, in a column
    assert (changed.sum(1) == 1).all()
    np.testing.assert_array_equal(changed.argmax(1), actions)
    np.testing.assert_array_equal(draw.policies[0].argmax(1), draw.actions[0])
    again = draw.bootstrap_obs[0][mirrored][..., ::-1]
    np.testing.assert_array_equal(again, rings.steps.obs[bootstraps][0][mirrored])


@pytest.mark.parametrize(
    ("symmetries", "why"),
    [
        ((np.array([[0, 0, 2]]), np.array([[0, 1, 2]])), r"exchanges all 3 cells: \[S, 3\], received \[\[0, 0, 2\]\]"),
        ((np.array([[0, 1, 2]]), np.array([[0, 1]])), "exchanges all 3 actions"),
        ((np.array([[0, 1, 2]] * 2), np.array([[0, 1, 2]])), "2 symmetries of cells and 1 of actions"),
    ],
)
def test_symmetries_that_are_none_are_refused(symmetries: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        a_replay(observation=(1, 1, 3), symmetries=symmetries)


def test_what_cannot_work_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="needs at least 24 steps: a position looks 5 steps ahead"):
        a_replay(capacity=16)
    with pytest.raises(ValueError, match="td_steps must be >= 1"):
        Windows(td_steps=0)
    with pytest.raises(ValueError, match=r"discount must be in \[0, 1\], received 1.5"):
        Windows(discount=1.5)
    with pytest.raises(ValueError, match="partition"):
        Reanalysis(partition=0.0)
    with pytest.raises(ValueError, match="ratio"):
        Reanalysis(ratio=-1.0)
    replay = a_replay()
    with pytest.raises(ValueError, match=r"streams 1\.\.2 do not fit: the replay has 2"):
        replay.insert(Batch(0, (rollout_of([plain_stream(8), plain_stream(8)], 0, 4, first=1),)))
    with pytest.raises(ValueError, match=r"obs of a segment must be \[4, 2, 1\], received \[3, 2, 1\]"):
        replay.insert(Batch(0, (rollout_of([plain_stream(8), plain_stream(8)], 0, 3),)))
    small = a_replay(store_as=np.uint8)
    stream = plain_stream(8)
    stream[0].obs = 0.5
    with pytest.raises(ValueError, match="do not fit into uint8"):
        small.insert(Batch(0, (rollout_of([stream, stream], 0, 4),)))
