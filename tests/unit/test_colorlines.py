"""Colour Lines against a slow and obvious reference, and one test for each bug of the original."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headway.envs.gymnasium_vector import make_vector
from headway.ppo import colorlines as lines
from headway.ppo.colorlines import CELLS, MOVES, ColorLines
from headway.ppo.colorlines.vector_gymnasium_vector import ColorLinesVector
from headway.ppo.colorlines.view import Frame, animate, draw, human, parse_move, play

# -- the reference: pure Python, nothing shared with the kernels but the rules ------------------------

Board = list[int]
MASK64 = 2**64 - 1


class Draws:
    """splitmix64 on Python's integers, seeded with a state."""

    def __init__(self, state: int) -> None:
        self.state = state

    def __call__(self, n: int) -> int:
        while True:
            self.state = (self.state + 0x9E3779B97F4A7C15) & MASK64
            z = self.state
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
            high = (z ^ (z >> 31)) >> 32
            if high * n % 2**32 >= 2**32 % n:
                return high * n >> 32


def neighbours(cell: int) -> Iterator[int]:
    row, column = divmod(cell, 9)
    for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
        if 0 <= r < 9 and 0 <= c < 9:
            yield r * 9 + c


def reachable_from(board: Board, origin: int) -> set[int]:
    """Walk outwards from the ball."""
    found: set[int] = set()
    front = [origin]
    while front:
        for cell in neighbours(front.pop()):
            if not board[cell] and cell not in found:
                found.add(cell)
                front.append(cell)
    return found


def legal(board: Board) -> set[int]:
    return {origin * 81 + to for origin in range(81) if board[origin] for to in reachable_from(board, origin)}


def windows() -> list[list[int]]:
    """Every five cells in a line."""
    found = []
    for row in range(9):
        for column in range(9):
            for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(row + k * dr, column + k * dc) for k in range(5)]
                if all(0 <= r < 9 and 0 <= c < 9 for r, c in line):
                    found.append([r * 9 + c for r, c in line])
    return found


WINDOWS = windows()


def in_runs(board: Board) -> set[int]:
    """Every ball that belongs to five equal ones in a line; a longer run is a union of such fives."""
    return {cell for line in WINDOWS if board[line[0]] and len({board[c] for c in line}) == 1 for cell in line}


def clear(board: Board) -> int:
    gone = in_runs(board)
    for cell in gone:
        board[cell] = 0
    return 10 + 4 * (len(gone) - 5) if gone else 0


def turn(board: Board, coming: list[int], move: int, draw: Callable[[int], int]) -> int:
    origin, target = divmod(move, 81)
    board[origin], board[target] = 0, board[origin]
    points = clear(board)
    if points:
        return points
    for colour in coming:
        empty = [cell for cell in range(81) if not board[cell]]
        if empty:
            board[empty[draw(len(empty))]] = colour
    points = clear(board)
    coming[:] = [1 + draw(7) for _ in range(3)]
    return points


def start(draw: Callable[[int], int]) -> tuple[Board, list[int]]:
    while True:
        board = [0] * 81
        for _ in range(24):
            empty = [cell for cell in range(81) if not board[cell]]
            at = empty[draw(len(empty))]
            board[at] = 1 + draw(7)
        if not in_runs(board):
            return board, [1 + draw(7) for _ in range(3)]


def potential(board: Board) -> float:
    """Maximal runs, read off every line of the board as text."""
    grid = [board[9 * row : 9 * row + 9] for row in range(9)]
    rows = [*grid, *map(list, zip(*grid, strict=True))]
    for shift in range(-8, 9):
        rows.append([grid[r][r + shift] for r in range(9) if 0 <= r + shift < 9])
        rows.append([grid[r][8 - r + shift] for r in range(9) if 0 <= 8 - r + shift < 9])
    runs = [len(run[0]) for row in rows for run in re.finditer(r"([1-7])\1*", "".join(map(str, row)))]
    return sum({2: 0.1, 3: 0.3, 4: 1.0}.get(length, 0.0) for length in runs)


# -- positions to test on -----------------------------------------------------------------------------


@st.composite
def boards(draw: st.DrawFn, num_colours: int = 7) -> np.ndarray:
    """Any density, no run, neither full nor empty: [81] uint8."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    density = draw(st.sampled_from((0.02, 0.3, 0.6, 0.9, 0.98)))
    colours = rng.sample(range(1, 8), num_colours)
    board = [rng.choice(colours) if rng.random() < density else 0 for _ in range(81)]
    while gone := in_runs(board):
        board[rng.choice(sorted(gone))] = 0
    if not any(board):
        board[rng.randrange(81)] = 1
    if all(board):
        board[rng.randrange(81)] = 0
    return np.array(board, np.uint8)


def position(env: ColorLines, board: Any, coming: tuple[int, ...] = (1, 2, 3), rng: int = 5) -> ColorLines:
    """Put every game of `env` on this position."""
    state = env.state_dict()
    state["board"][:] = board
    state["coming"][:] = coming
    state["rng"][:] = rng
    env.load_state_dict(state)
    return env


def from_text(text: str) -> np.ndarray:
    return np.array([int(mark) if mark.isdigit() else 0 for mark in "".join(text.split())], np.uint8)


def move(text: str) -> np.ndarray:
    return np.array([parse_move(text)])


def console() -> Console:
    return Console(file=io.StringIO(), width=80, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# -- legality -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(boards())
def test_every_mask_agrees_with_a_walk_from_each_ball(board: np.ndarray) -> None:
    env = position(ColorLines(1), board)
    expected = legal(board.tolist())
    mask = env.masks()
    assert set(np.flatnonzero(mask[0]).tolist()) == expected
    assert np.array_equal(lines.legal_moves(board[None]), mask)
    assert np.array_equal(env.reachable()[0], mask.reshape(CELLS, CELLS))
    assert np.array_equal(env.origins()[0], env.reachable()[0].any(1))
    for origin in range(0, CELLS, 7):
        assert np.array_equal(env.targets(np.array([origin]))[0], env.reachable()[0, origin])


@settings(max_examples=60, deadline=None)
@given(boards())
def test_a_board_that_is_not_terminal_has_a_legal_move(board: np.ndarray) -> None:
    assert lines.legal_moves(board[None]).any()


def test_a_mask_written_into_dirty_memory_is_clean() -> None:
    env = ColorLines(3, seed=1)
    out = np.ones((3, MOVES), np.bool_)
    assert env.masks(out) is out
    assert np.array_equal(out, env.masks())
    with pytest.raises(ValueError, match="out must be contiguous bool"):
        env.masks(np.empty((MOVES, 3), np.bool_).T)


WALLED = """
    .1.......
    11.......
    .........
    .........
    ....2....
    .........
    .........
    .........
    ........."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("c1 d1", "there is no ball on c1"),
        ("b1 b2", "b2 is not empty"),
        ("e5 a1", "no way leads from e5 to a1"),
        ("e5 e5", "e5 is not empty"),
    ],
)
def test_an_illegal_move_says_what_is_wrong_and_changes_nothing(text: str, reason: str) -> None:
    env = position(ColorLines(2), from_text(WALLED))
    before = env.state_dict()
    with pytest.raises(ValueError, match=f"game 1: {reason}"):
        env.step(np.concatenate([move("e5 e6"), move(text)]))
    assert all(np.array_equal(before[name], env.state_dict()[name]) for name in before)


def test_the_ball_at_a_wall_may_enter_the_corner_behind_it() -> None:
    env = position(ColorLines(1), from_text(WALLED))
    env.step(move("b1 a1"))
    assert env.board[0, 0] == 1


@pytest.mark.parametrize("moves", [[-1], [MOVES]])
def test_a_move_outside_the_range_is_refused(moves: list[int]) -> None:
    with pytest.raises(ValueError, match=r"is not in 0\.\.6560"):
        ColorLines(1).step(np.array(moves))


@pytest.mark.parametrize("moves", [np.array([1, 2]), np.array([1.0]), np.array([[1]])])
def test_moves_of_another_shape_or_type_are_refused(moves: np.ndarray) -> None:
    with pytest.raises(ValueError, match="moves must be 1 integers"):
        ColorLines(1).step(moves)


# -- what a move does ---------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(boards(num_colours=2), st.integers(0, MASK64), st.data())
def test_a_turn_agrees_with_the_reference_on_the_same_draws(board: np.ndarray, rng: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(sorted(legal(board.tolist()))))
    coming = data.draw(st.tuples(*[st.integers(1, 7)] * 3))
    env = position(ColorLines(1, compact=True), board, coming, rng)
    expected, announced, draw = board.tolist(), list(coming), Draws(rng)
    points = turn(expected, announced, chosen, draw)
    obs, reward, terminated, truncated, info = env.step(np.array([chosen]))
    after = info["final_obs"] if terminated[0] else obs
    assert after[0].tolist() == expected + announced
    assert reward[0] == info["points"][0] == points
    assert terminated[0] == (all(expected) or not any(expected))
    assert not truncated[0]
    if terminated[0]:
        assert (env.board[0].tolist(), env.coming[0].tolist()) == start(draw)
    assert int(env.state_dict()["rng"][0]) == draw.state


def test_whole_games_agree_with_the_reference() -> None:
    """Greedy play, which clears often, over several games of several environments."""
    env = ColorLines(4, seed=11)
    player = lines.greedy_player(4, seed=2)
    draws = [Draws(int(state)) for state in env.state_dict()["rng"]]
    games = [(env.board[k].tolist(), env.coming[k].tolist()) for k in range(4)]
    scores, finished, cleared = [0] * 4, 0, 0
    for _ in range(150):
        chosen = player(env)
        _, reward, terminated, _, info = env.step(chosen)
        for k, (board, coming) in enumerate(games):
            points = turn(board, coming, int(chosen[k]), draws[k])
            assert points == reward[k]
            scores[k] += points
            cleared += points > 0
            assert terminated[k] == (all(board) or not any(board))
            if terminated[k]:
                assert info["final_score"][k] == scores[k]
                games[k], scores[k], finished = start(draws[k]), 0, finished + 1
            assert env.board[k].tolist() == games[k][0]
            assert env.score[k] == scores[k]
    assert finished > 4
    assert cleared > 10


@pytest.mark.parametrize(
    ("text", "how", "points"),
    [
        ("11.11.... ..1......", "c2 c1", 10),
        ("1111.1111 ....1....", "e2 e1", 10 + 4 * 4),
        # five across and five down share one ball: nine go
        ("1111..... ....1.... ....1.... ....1.... ....1.... .....1...", "f6 e1", 10 + 4 * 4),
        ("1........ .1....... ..1...... ...1..... .....1...", "f5 e5", 10),
        ("........1 .......1. ......1.. .....1... .........1", "a6 e5", 10),
        ("1111.1... ....2.... ....1....", "e3 d3", 0),
    ],
)
def test_points_are_ten_for_five_and_four_for_each_further_ball(text: str, how: str, points: int) -> None:
    board = np.zeros(CELLS, np.uint8)
    given = from_text(text)
    board[: len(given)] = given
    board[80] = 7  # so that the board is not empty afterwards
    env = position(ColorLines(1), board)
    _, reward, *_ = env.step(move(how))
    assert reward[0] == env.score[0] == points
    assert np.count_nonzero(env.board) == np.count_nonzero(board) - ((points - 10) // 4 + 5 if points else -3)


def test_runs_of_two_colours_completed_by_appearing_balls_go_at_once_and_count_as_one_set() -> None:
    """Find a state of the generator whose first two places complete both runs."""
    board = np.array([1 + (row + 2 * column) % 7 for row in range(9) for column in range(9)], np.uint8)
    board[0:5], board[27:32] = 1, 2
    board[5], board[32], board[70] = 6, 6, 7
    board[[2, 29, 80]] = 0  # two gaps and the cell the ball leaves for
    assert not in_runs(board.tolist())
    for rng in range(200):
        env = position(ColorLines(1, compact=True), board, (1, 2, 3), rng)
        expected, draw = board.tolist(), Draws(rng)
        chosen = 71 * 81 + 80
        points = turn(expected, [1, 2, 3], chosen, draw)
        _, reward, *_ = env.step(np.array([chosen]))
        assert reward[0] == points
        if points >= 30:
            assert points == 10 + 4 * 5
            return
    pytest.fail("no state did it")


def test_a_move_that_clears_brings_no_balls_and_keeps_the_announcement() -> None:
    board = from_text("1111..... ....1...." + "........." * 6 + "7........")
    env = position(ColorLines(1), board, (4, 5, 6), rng=9)
    env.step(move("e2 e1"))
    assert np.count_nonzero(env.board) == 1
    assert env.coming[0].tolist() == [4, 5, 6]
    assert env.state_dict()["rng"][0] == 9


def test_the_start_has_24_balls_and_no_run() -> None:
    env = ColorLines(500, seed=3)
    assert (np.count_nonzero(env.board, axis=1) == 24).all()
    assert not any(in_runs(board) for board in env.board.tolist())
    assert env.board.max() == 7
    assert env.coming.min() == 1
    assert env.coming.max() == 7


def test_starts_agree_with_the_reference_and_use_colours_and_cells_evenly() -> None:
    env = ColorLines(2000, seed=8)
    rng = env.state_dict()["rng"]
    env.reset()
    for k in range(20):
        assert (env.board[k].tolist(), env.coming[k].tolist()) == start(Draws(int(rng[k])))
    colours = np.bincount(env.board[env.board > 0], minlength=8)[1:]
    expected = 2000 * 24 / 7
    assert ((colours - expected) ** 2 / expected).sum() < 22.5  # chi-square, 6 degrees of freedom, p 0.001
    cells = np.count_nonzero(env.board, axis=0)
    assert abs(cells - 2000 * 24 / 81).max() < 5 * (2000 * 24 / 81) ** 0.5


# -- bugs of the original -----------------------------------------------------------------------------


def almost_full() -> np.ndarray:
    """One empty cell at i9 and no run wherever its neighbour goes."""
    board = np.array([1 + (row + 2 * column) % 7 for row in range(9) for column in range(9)], np.uint8)
    board[80] = 0
    assert not in_runs(board.tolist())
    return board


def test_a_full_board_ends_the_game() -> None:
    env = position(ColorLines(1, compact=True), almost_full(), (int(almost_full()[79]),) * 3)
    obs, _, terminated, truncated, info = env.step(move("h9 i9"))
    assert terminated[0]
    assert not truncated[0]
    assert info["_final_obs"][0]
    assert (info["final_obs"][0, :CELLS] > 0).all()
    assert np.count_nonzero(obs[0, :CELLS]) == 24, "the next game has begun"


def test_only_the_balls_that_fit_appear() -> None:
    board = almost_full()
    board[0] = 0
    env = position(ColorLines(1, compact=True), board, (5, 6, 7))
    *_, terminated, _, info = env.step(move("h9 i9"))
    assert terminated[0]
    placed = info["final_obs"][0, [0, 79]].tolist()
    assert sorted(placed) == [5, 6]


def test_an_emptied_board_ends_the_game_because_nothing_can_move() -> None:
    board = np.zeros(CELLS, np.uint8)
    board[[0, 1, 2, 3, 13]] = 4
    env = position(ColorLines(1), board)
    _, reward, terminated, _, info = env.step(move("e2 e1"))
    assert reward[0] == 10
    assert terminated[0]
    assert (info["final_obs"][0, 7] == 1).all()


def test_truncation_is_not_termination() -> None:
    env = ColorLines(2, seed=4, max_steps=3, compact=True, shaping=1.0, gamma=0.9)
    player = lines.random_player(2)
    for _ in range(2):
        _, _, terminated, truncated, info = env.step(player(env))
        assert not truncated.any()
        assert "final_obs" not in info
    before = lines.potential_of(env.board)
    obs, reward, terminated, truncated, info = env.step(player(env))
    assert truncated.all()
    assert not terminated.any()
    assert (info["final_length"] == 3).all()
    assert not np.array_equal(info["final_obs"], obs), "the last observation is not the new game's first"
    after = lines.potential_of(info["final_obs"][:, :CELLS])
    assert np.allclose(reward, info["points"] + 0.9 * after - before), "a truncated position keeps its potential"


def test_a_game_that_ends_on_its_last_allowed_step_is_terminated_not_truncated() -> None:
    env = position(ColorLines(1, max_steps=1), almost_full(), (int(almost_full()[79]),) * 3)
    _, _, terminated, truncated, _ = env.step(move("h9 i9"))
    assert (terminated[0], truncated[0]) == (True, False)


def transcript(env: ColorLines, index: int, num_steps: int) -> list[Any]:
    """Game `index` of `env`, played by its own first legal moves."""
    found = []
    for _ in range(num_steps):
        env.step(env.masks().argmax(1))
        found.append((env.board[index].tolist(), env.coming[index].tolist()))
    return found


def test_a_game_depends_on_its_seed_and_index_only_not_on_its_neighbours() -> None:
    alone, among = ColorLines(3, seed=6), ColorLines(40, seed=6)
    assert transcript(alone, 2, 60) == transcript(among, 2, 60)
    assert not np.array_equal(among.board[0], among.board[1])
    assert not np.array_equal(ColorLines(3, seed=7).board, ColorLines(3, seed=6).board)


def test_the_order_in_which_environments_are_stepped_does_not_matter() -> None:
    a, b = ColorLines(1, seed=1), ColorLines(1, seed=2)
    one_after_the_other = [transcript(a, 0, 30), transcript(b, 0, 30)]
    a, b = ColorLines(1, seed=1), ColorLines(1, seed=2)
    taking_turns = [(transcript(b, 0, 1)[0], transcript(a, 0, 1)[0]) for _ in range(30)]
    assert one_after_the_other == [[second for _, second in taking_turns], [first for first, _ in taking_turns]]


def test_the_global_generators_are_neither_used_nor_disturbed() -> None:
    np.random.seed(1)
    random.seed(1)
    first = transcript(ColorLines(2, seed=5), 1, 20)
    np.random.seed(2)
    random.seed(2)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    assert transcript(ColorLines(2, seed=5), 1, 20) == first
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


def test_no_path_is_searched_per_pair_of_ball_and_cell() -> None:
    """Components are labelled once a board; a mask only compares labels."""
    env = ColorLines(1, seed=2)
    labels = lines.labels_of(env.board)[0]
    mask = env.reachable()[0]
    for origin in range(CELLS):
        near = {int(labels[cell]) for cell in neighbours(origin)} - {0}
        expected = np.isin(labels, list(near)) if env.board[0, origin] else np.zeros(CELLS, bool)
        assert np.array_equal(mask[origin], expected)


def test_a_game_loaded_beyond_its_allowed_length_is_truncated_at_its_next_step() -> None:
    long = ColorLines(1, seed=2)
    transcript(long, 0, 5)
    short = ColorLines(1, max_steps=3)
    short.load_state_dict(long.state_dict())
    _, _, _, truncated, _ = short.step(short.masks().argmax(1))
    assert truncated[0]


# -- shaping ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(boards(num_colours=3))
def test_the_potential_counts_maximal_runs_of_two_three_and_four(board: np.ndarray) -> None:
    assert lines.potential_of(board[None])[0] == pytest.approx(potential(board.tolist()))


@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_shaped_rewards_of_a_game_telescope_to_the_points_minus_the_first_potential(gamma: float) -> None:
    env = ColorLines(8, seed=9, shaping=2.0, gamma=gamma)
    player = lines.random_player(8, seed=1)
    first = lines.potential_of(env.board)
    shaped, plain, alive, discount = np.zeros(8), np.zeros(8), np.ones(8, bool), 1.0
    while alive.any():
        _, reward, terminated, _, info = env.step(player(env))
        shaped += alive * discount * reward
        plain += alive * discount * info["points"]
        alive &= ~terminated
        discount *= gamma
    assert np.allclose(shaped, plain - 2.0 * first, atol=1e-4)


def test_without_shaping_the_reward_is_the_points() -> None:
    env = ColorLines(16, seed=2)
    player = lines.greedy_player(16)
    for _ in range(40):
        _, reward, _, _, info = env.step(player(env))
        assert np.array_equal(reward, info["points"])


# -- observations -------------------------------------------------------------------------------------


def test_planes_are_one_hot_and_count_the_coming_colours() -> None:
    env = position(ColorLines(2), from_text(WALLED), (3, 3, 7))
    obs = env.observation()
    assert obs.shape == (2, 15, 9, 9)
    assert obs.dtype == np.uint8
    assert (obs[:, :8].sum(1) == 1).all()
    assert obs[0, 0, 0, 1] == obs[0, 1, 4, 4] == obs[0, 7, 8, 8] == 1
    assert [int(plane.max()) for plane in obs[0, 8:]] == [0, 0, 2, 0, 0, 0, 1]
    assert (obs[0, 8:] == obs[0, 8:, :1, :1]).all()


def test_the_compact_form_holds_the_same_games() -> None:
    env, compact = ColorLines(5, seed=3), ColorLines(5, seed=3, compact=True)
    for _ in range(60):
        chosen = env.masks().argmax(1)
        obs, *_, info = env.step(chosen)
        small, *_, small_info = compact.step(chosen)
        assert np.array_equal(obs, lines.planes(small))
        assert ("final_obs" in info) == ("final_obs" in small_info)
        if "final_obs" in info:
            assert np.array_equal(info["final_obs"], lines.planes(small_info["final_obs"]))


def test_returned_observations_are_not_overwritten_by_later_steps() -> None:
    env = ColorLines(2, seed=3, compact=True)
    obs, _ = env.reset()
    kept = obs.copy()
    env.step(env.masks().argmax(1))
    assert np.array_equal(obs, kept)


# -- checkpoints --------------------------------------------------------------------------------------


def test_a_checkpoint_in_the_middle_of_a_game_goes_on_bit_for_bit() -> None:
    env = ColorLines(4, seed=21, max_steps=50, shaping=0.5, gamma=0.99)
    transcript(env, 0, 17)
    saved = env.state_dict()
    other = ColorLines(4, seed=0, max_steps=50, shaping=0.5, gamma=0.99)
    other.load_state_dict(saved)
    for _ in range(80):
        chosen = env.masks().argmax(1)
        assert np.array_equal(env.masks(), other.masks())
        ours, theirs = env.step(chosen), other.step(chosen)
        for a, b in zip(ours[:4], theirs[:4], strict=True):
            assert np.array_equal(a, b)
    now = env.state_dict()
    assert all(np.array_equal(now[name], other.state_dict()[name]) for name in now)
    assert not np.array_equal(saved["board"], now["board"]), "the saved state is a copy"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("board", np.zeros((1, 81), np.uint8), "full, empty or holds a run"),
        ("board", np.ones((1, 81), np.uint8), "full, empty or holds a run"),
        ("board", np.array([[1] * 5 + [0] * 76], np.uint8), "full, empty or holds a run"),
        ("board", np.array([[9] + [0] * 80], np.uint8), "colours must lie in"),
        ("coming", np.zeros((1, 3), np.uint8), "colours must lie in"),
        ("score", np.zeros(2, np.int64), "score must be int64 of shape"),
        ("rng", np.zeros(1, np.int64), "rng must be uint64"),
        ("extra", np.zeros(1), "state must hold"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_nothing_changes(name: str, value: np.ndarray, reason: str) -> None:
    env = ColorLines(1, seed=1)
    before = env.state_dict()
    with pytest.raises(ValueError, match=reason):
        env.load_state_dict(env.state_dict() | {name: value})
    assert all(np.array_equal(before[key], env.state_dict()[key]) for key in before)


@pytest.mark.parametrize(
    "options",
    [{"num_envs": 0}, {"gamma": 1.5}, {"shaping": -1.0}, {"shaping": float("nan")}, {"max_steps": 0}, {"seed": -1}],
)
def test_settings_that_cannot_work_are_refused_with_their_value(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=rf"{name} must .* got {value}"):
        ColorLines(**({"num_envs": 1} | options))


def test_resetting_with_a_seed_is_like_a_new_vector() -> None:
    env = ColorLines(3, seed=1)
    transcript(env, 0, 5)
    obs, _ = env.reset(seed=1)
    assert np.array_equal(obs, ColorLines(3, seed=1).observation())
    assert not np.array_equal(env.reset()[0], obs)


# -- symmetries ---------------------------------------------------------------------------------------


def test_the_eight_symmetries_are_different_and_keep_neighbours() -> None:
    assert len({tuple(image) for image in lines.CELL_IMAGE.tolist()}) == 8
    assert lines.CELL_IMAGE[0].tolist() == list(range(CELLS))
    for image in lines.CELL_IMAGE:
        for cell in range(CELLS):
            assert {int(image[near]) for near in neighbours(cell)} == set(neighbours(int(image[cell])))


@settings(max_examples=40, deadline=None)
@given(boards(num_colours=2), st.integers(0, 2**32), st.data())
def test_legal_moves_and_the_potential_commute_with_symmetries(
    board: np.ndarray, seed: int, data: st.DataObject
) -> None:
    compact = np.concatenate([np.tile(board, (8, 1)), np.tile(np.array([1, 2, 3], np.uint8), (8, 1))], axis=1)
    _, colours = lines.draw_symmetries(np.random.default_rng(seed), 8)
    every = np.arange(8)
    turned = lines.transform_positions(compact, every, colours)
    assert turned.dtype == np.uint8
    masks = lines.legal_moves(compact[:, :CELLS])
    assert np.array_equal(lines.legal_moves(turned[:, :CELLS]), lines.transform_policies(masks, every))
    assert np.array_equal(lines.potential_of(turned[:, :CELLS]), lines.potential_of(compact[:, :CELLS]))

    chosen = np.full(8, data.draw(st.sampled_from(np.flatnonzero(masks[0]).tolist())))
    images = lines.transform_moves(chosen, every)
    assert lines.transform_policies(masks, every)[every, images].all()


def test_clears_commute_with_symmetries() -> None:
    """Wherever a greedy game clears, its eight images clear the images of the same balls for the same points."""
    env, images = ColorLines(6, seed=5, compact=True), ColorLines(8, compact=True)
    player, rng, every = lines.greedy_player(6, seed=5), np.random.default_rng(5), np.arange(8)
    num_cleared = 0
    for _ in range(120):
        positions, chosen = env.observation(), player(env)
        obs, reward, terminated, *_ = env.step(chosen)
        for k in np.flatnonzero((reward > 0) & ~terminated):
            before, after = np.tile(positions[k], (8, 1)), np.tile(obs[k], (8, 1))
            if not np.array_equal(before[:, CELLS:], after[:, CELLS:]):
                continue  # cleared by balls that appeared, in places drawn by lot
            _, colours = lines.draw_symmetries(rng, 8)
            turned = lines.transform_positions(before, every, colours)
            images.load_state_dict(images.state_dict() | {"board": turned[:, :CELLS], "coming": turned[:, CELLS:]})
            seen, points, *_ = images.step(lines.transform_moves(np.repeat(chosen[k], 8), every))
            assert (points == reward[k]).all()
            assert np.array_equal(seen, lines.transform_positions(after, every, colours))
            num_cleared += 1
    assert num_cleared > 20


def test_cells_are_transformed_like_moves() -> None:
    env = ColorLines(8, seed=3)
    every = np.arange(8)
    moves = lines.transform_policies(env.masks(), every).reshape(8, CELLS, CELLS)
    assert np.array_equal(lines.transform_policies(env.origins(), every), moves.any(2))


def test_drawn_colour_permutations_keep_empty_and_are_permutations() -> None:
    symmetry, colours = lines.draw_symmetries(np.random.default_rng(0), 200)
    assert set(symmetry.tolist()) == set(range(8))
    assert (np.sort(colours, axis=1) == np.arange(8)).all()
    assert (colours[:, 0] == 0).all()
    assert len({tuple(row) for row in colours.tolist()}) > 150


# -- players ------------------------------------------------------------------------------------------


def test_the_random_player_takes_every_legal_move_equally_often() -> None:
    env = position(ColorLines(4000), almost_full())
    moves, counts = np.unique(lines.random_player(4000, seed=1)(env), return_counts=True)
    assert set(moves.tolist()) == legal(almost_full().tolist())
    assert abs(counts - 2000).max() < 160

    env = position(ColorLines(3000), from_text(WALLED))
    moves, counts = np.unique(lines.random_player(3000, seed=1)(env), return_counts=True)
    expected = 3000 / len(legal(from_text(WALLED).tolist()))
    assert set(moves.tolist()) <= legal(from_text(WALLED).tolist())
    assert counts.max() < expected + 6 * expected**0.5


@settings(max_examples=15, deadline=None)
@given(boards(num_colours=3), st.integers(0, 99))
def test_the_greedy_player_takes_a_best_move(board: np.ndarray, seed: int) -> None:
    def value(action: int) -> float:
        cells = board.tolist()
        cells[action % 81], cells[action // 81] = cells[action // 81], 0
        return clear(cells) + potential(cells)

    env = position(ColorLines(1), board)
    chosen = int(lines.greedy_player(1, seed)(env)[0])
    options = sorted(legal(board.tolist()))
    some = options if len(options) < 150 else random.Random(seed).sample(options, 150)
    assert value(chosen) >= max(map(value, some)) - 1e-9
    assert np.array_equal(env.board[0], board), "it only looks"


def test_greedy_play_scores_far_more_than_random_play() -> None:
    chance = lines.play_games(lines.random_player(100, seed=1), 100, seed=1)
    greedy = lines.play_games(lines.greedy_player(100, seed=1), 100, seed=1)
    assert chance.mean() < 2
    assert 35 < greedy.mean() < 70


# -- Gymnasium ----------------------------------------------------------------------------------------


def test_gymnasium_checks_the_single_game_without_a_complaint() -> None:
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    lines.register()
    lines.register()
    env = gymnasium.make(lines.GYMNASIUM_ID, illegal="stay", render_mode="ansi")
    check_env(env.unwrapped)
    env.close()


def test_a_single_game_plays_to_its_end_and_shows_the_last_position() -> None:
    import gymnasium

    lines.register()
    env = gymnasium.make(lines.GYMNASIUM_ID)
    obs, info = env.reset(seed=3)
    terminated, total = False, 0.0
    env.action_space.seed(0)
    while not terminated:
        assert info["action_mask"].any()
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample(mask=info["action_mask"]))
        total += float(reward)
        assert not truncated
    assert not obs[7].any(), "the full board, not the next game"
    assert not info["action_mask"].any()
    assert info["score"] == total
    obs, _ = env.reset(seed=3)
    with pytest.raises(ValueError, match="there is no ball on"):
        env.step(int(obs[7].argmax()) * CELLS)


def test_gymnasium_is_needed_for_the_single_game_only() -> None:
    code = "import sys; sys.modules['gymnasium'] = None; import headway.ppo.colorlines as c; c.ColorLines(1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- many games for Gymnasium -------------------------------------------------------------------------


def test_the_next_step_mode_is_the_same_game_with_a_step_between() -> None:
    """One game at a time: both modes pass through the same positions, only the restart takes a step."""
    for seed in range(3):
        same = ColorLines(1, seed, compact=True, shaping=1.0)
        later = ColorLines(1, seed, compact=True, shaping=1.0, same_step=False)
        choose, num_ended = random.Random(seed), 0
        for _ in range(100):
            assert np.array_equal(same.observation(), later.observation())
            moves = np.array([choose.choice(np.flatnonzero(same.masks()[0]))])
            _, reward, terminated, _, info = same.step(moves)
            seen, late_reward, late_terminated, _, _ = later.step(moves)
            assert (reward, terminated) == (late_reward, late_terminated)
            assert later.ended == terminated
            if terminated:
                num_ended += 1
                assert np.array_equal(seen, info["final_obs"])
                assert later.score == info["final_score"]
                _, nothing, ended, cut, _ = later.step(np.array([-1]))  # ignored, whatever it is
                assert (nothing, ended, cut) == (0, False, False)
            assert (same.score, same.length) == (later.score, later.length)
        assert num_ended


def test_a_vector_made_by_its_id_is_the_fast_one_with_masks_that_always_allow_something() -> None:
    env = make_vector(lines.GYMNASIUM_ID, 5)
    assert isinstance(env, ColorLinesVector)
    obs, info = env.reset(seed=1)
    choose, ended = random.Random(1), np.zeros(5, bool)
    for _ in range(60):
        assert env.observation_space.contains(obs)
        legal = lines.legal_moves(env._games.board)
        assert np.array_equal(info["action_mask"][~ended], legal[~ended])
        moves = np.array([choose.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
        obs, reward, terminated, truncated, info = env.step(moves)
        assert not reward[ended].any()
        ended = terminated | truncated


def test_a_pickled_vector_goes_on_bit_for_bit() -> None:
    env = ColorLinesVector(4, compact=True, masks=False, max_steps=7)
    env.reset(seed=2)
    for _ in range(7):
        env.step(lines.random_player(4)(env._games))
    assert env._games.ended.any()
    twin = cloudpickle.loads(cloudpickle.dumps(env))
    for k in range(20):
        moves = np.zeros(4, np.int64) if env._games.ended.any() else lines.random_player(4, k)(env._games)
        for one, other in zip(env.step(moves)[:4], twin.step(moves)[:4], strict=True):
            assert np.array_equal(one, other)


def test_an_ended_game_is_a_state_of_the_next_step_mode_only() -> None:
    later = ColorLines(2, max_steps=1, same_step=False)
    later.step(lines.random_player(2)(later))
    twin = ColorLines(2, max_steps=1, same_step=False)
    twin.load_state_dict(later.state_dict())
    assert twin.ended.all()
    with pytest.raises(ValueError, match="starts it again in the same step"):
        ColorLines(2, max_steps=1).load_state_dict(later.state_dict())


def test_the_reward_scale_multiplies_points_and_shaping_alike() -> None:
    plain, scaled = ColorLinesVector(8, shaping=1.0), ColorLinesVector(8, shaping=1.0, reward_scale=0.1)
    plain.reset(seed=3)
    scaled.reset(seed=3)
    for _ in range(10):
        moves = lines.greedy_player(8)(plain._games)
        assert np.allclose(plain.step(moves)[1] * 0.1, scaled.step(moves)[1])


# -- what people see ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["c3 f7", "C3F7", " c3-f7 \n"])
def test_a_move_is_read_in_several_spellings(text: str) -> None:
    assert parse_move(text) == (2 * 9 + 2) * 81 + 6 * 9 + 5


@pytest.mark.parametrize("text", ["", "c3", "c0 f7", "j1 a1", "3c 7f", "c3 f7 g8"])
def test_what_is_not_a_move_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a move like c3 f7"):
        parse_move(text)


def test_cell_names_and_moves_agree() -> None:
    for cell in range(CELLS):
        assert parse_move(f"{lines.cell_name(cell)} a1") == cell * 81


def test_a_drawn_board_shows_coordinates_balls_score_and_what_comes() -> None:
    text = draw(Frame(tuple(from_text(WALLED).tolist()), (3, 3, 7), 24, None)).plain.splitlines()
    assert text[0].split() == list("abcdefghi")
    assert text[1].split() == ["1", "·", "❶", *"·······"]
    assert text[5].split()[5] == "❷"
    assert "score 24" in text[-1]
    assert text[-1].endswith("❸ ❸ ❼ ")


def test_a_person_plays_and_is_told_what_is_wrong() -> None:
    first = ColorLines(1, seed=4)
    origin, target = divmod(int(first.masks()[0].argmax()), CELLS)
    good = f"{lines.cell_name(origin)} {lines.cell_name(target)}"
    screen = console()
    typed = io.StringIO(f"hello\n{lines.cell_name(target)} {lines.cell_name(origin)}\n{good}\nq\n")
    frames = play(human(typed, screen), screen, seed=4)
    assert [frame.move for frame in frames] == [None, origin * 81 + target]
    assert frames[0].board == tuple(first.board[0].tolist())
    assert "'hello' is not a move" in printed(screen)
    assert "there is no ball on" in printed(screen)


def test_a_game_leaves_when_the_stream_ends() -> None:
    assert len(play(human(io.StringIO(""), console()), seed=1)) == 1


def whole_game() -> list[Frame]:
    player = lines.random_player(1, seed=2)
    return play(lambda env: int(player(env)[0]), seed=4)


def test_a_recorded_game_ends_on_the_full_board() -> None:
    frames = whole_game()
    assert all(frames[-1].board)
    assert frames[-1].score >= frames[-2].score
    screen = console()
    play(lambda env: int(env.masks()[0].argmax()), screen, seed=4, max_steps=3)
    assert "game over after 3 moves" in printed(screen)


def test_the_page_holds_the_whole_game_and_needs_no_network() -> None:
    frames = whole_game()
    page = animate(frames, title="a <b> & c")
    found = re.search(r"^const frames = (.*);$", page, re.MULTILINE)
    assert found
    record = json.loads(found[1])
    assert [tuple(map(int, frame["board"])) for frame in record] == [frame.board for frame in frames]
    assert [frame["score"] for frame in record] == [frame.score for frame in frames]
    assert record[0]["move"] is None
    assert record[1]["move"] == list(divmod(frames[1].move or 0, CELLS))
    assert "a &lt;b&gt; &amp; c" in page
    assert "%TITLE%" not in page
    assert "prefers-color-scheme: dark" in page
    outside = set(re.findall(r"https?://[^\"'\s]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)


def test_an_empty_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="no frame"):
        animate([])
