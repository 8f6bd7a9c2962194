"""Tic-tac-toe and connect-four against a slow, obvious implementation; known positions; players that never lose."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.zero.board_games_package import (
    CONNECT_FOUR,
    GAMES,
    TIC_TAC_TOE,
    BoardGames,
    Game,
    minimax_player,
    perfect_player,
    play_match,
    random_player,
    symmetries,
)
from headway.zero.board_games_players import values_of

stable = settings(max_examples=60, deadline=None, derandomize=True)
games_and_seeds = given(st.sampled_from(sorted(GAMES)), st.integers(0, 2**32))


class SlowGame:
    """A list of rows and four loops."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.board = [[0] * game.columns for _ in range(game.rows)]  # the top row first; 1 began, 2 is the other
        self.player = 1
        self.winner: int | None = None  # 0: drawn

    def legal(self) -> list[int]:
        if self.winner is not None:
            return []
        if self.game.drops:
            return [column for column in range(self.game.columns) if not self.board[0][column]]
        return [cell for cell in range(self.game.num_cells) if not self._at(cell)]

    def _at(self, cell: int) -> int:
        return self.board[cell // self.game.columns][cell % self.game.columns]

    def step(self, action: int) -> int:
        row, column = divmod(action, self.game.columns)
        if self.game.drops:
            column = action
            row = max(row for row in range(self.game.rows) if not self.board[row][column])
        self.board[row][column] = self.player
        if self._won():
            self.winner = self.player
        elif all(all(row) for row in self.board):
            self.winner = 0
        reward = int(self.winner == self.player)
        self.player = 3 - self.player
        return reward

    def _won(self) -> bool:
        rows, columns, run = self.game.rows, self.game.columns, self.game.run
        for row in range(rows):
            for column in range(columns):
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    line = [(row + k * down, column + k * right) for k in range(run)]
                    inside = all(0 <= r < rows and 0 <= c < columns for r, c in line)
                    if inside and all(self.board[r][c] == self.player for r, c in line):
                        return True
        return False

    def planes(self) -> np.ndarray:
        board = np.array(self.board)
        return np.stack([board == self.player, board == 3 - self.player]).astype(np.uint8)


# -- the rules --------------------------------------------------------------------------------------


@stable
@games_and_seeds
def test_games_agree_with_the_slow_rules_move_by_move(name: str, seed: int) -> None:
    draw, num = random.Random(seed), 3
    games = BoardGames(name, num)
    slow = [SlowGame(GAMES[name]) for _ in range(num)]
    for _ in range(60):
        masks = games.masks()
        actions = []
        for index, game in enumerate(slow):
            assert np.flatnonzero(masks[index]).tolist() == game.legal()
            actions.append(draw.choice(game.legal() or [-7]))
        expected = []
        for index, game in enumerate(slow):
            if game.winner is None:
                expected.append(game.step(actions[index]))
            else:
                slow[index] = SlowGame(GAMES[name])
                expected.append(0)
        observation, rewards, ended = games.step(np.array(actions))
        assert rewards.tolist() == expected
        assert ended.tolist() == [game.winner is not None for game in slow]
        assert games.to_play.tolist() == [game.player - 1 for game in slow]
        np.testing.assert_array_equal(observation, [game.planes() for game in slow])
        for index, game in enumerate(slow):
            marks = "\n".join(" ".join(".xo"[stone] for stone in row) for row in game.board)
            assert games.text(index) == marks


@pytest.mark.parametrize(
    "game", [Game("row", 1, 9, 3, False), Game("tall", 15, 4, 4, True), Game("wide", 4, 12, 5, True)]
)
def test_other_boards_follow_the_same_rules(game: Game) -> None:
    draw, games, slow = random.Random(3), BoardGames(game, 1), SlowGame(game)
    for _ in range(300):
        if slow.winner is not None:
            slow = SlowGame(game)
            games.step(np.array([0]))
        action = draw.choice(slow.legal())
        reward = slow.step(action)
        observation, rewards, ended = games.step(np.array([action]))
        assert (rewards[0], ended[0]) == (reward, slow.winner is not None)
        np.testing.assert_array_equal(observation[0], slow.planes())


def test_a_run_does_not_go_around_the_edge() -> None:
    games = BoardGames(CONNECT_FOUR, 1)
    games.play(0, [0, 1, 0, 1, 0, 1, 6, 0, 6, 0])  # x holds three in column 0 and two in 6, o lies on top
    assert not games.ended[0]


def test_illegal_moves_are_refused_before_anything_changes() -> None:
    games = BoardGames(CONNECT_FOUR, 2)
    games.play(1, [3] * 6)
    before = games.state_dict()
    with pytest.raises(ValueError, match="game 1: action 3 is illegal; allowed: 0, 1, 2, 4, 5, 6"):
        games.step(np.array([3, 3]))
    for name, array in games.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    for wrong in (np.array([7, 0]), np.array([0, -1])):
        with pytest.raises(ValueError, match="is illegal"):
            games.step(wrong)
    with pytest.raises(ValueError, match="must be 2 integers"):
        games.step(np.array([0.0, 1.0]))


def test_a_game_without_restarts_stays_ended() -> None:
    games = BoardGames(TIC_TAC_TOE, 1, restarts=False)
    games.play(0, [0, 3, 1, 4, 2])
    last = games.observation()
    observation, rewards, ended = games.step(np.array([5]))
    assert ended[0] and not rewards[0]
    np.testing.assert_array_equal(observation, last)
    with pytest.raises(ValueError, match="over before action 8"):
        games.play(0, [8])


@stable
@games_and_seeds
def test_games_go_on_from_a_state_bit_for_bit(name: str, seed: int) -> None:
    games, player = BoardGames(name, 4), random_player(4, seed)
    for _ in range(seed % 50):
        games.step(player(games))
    twin, twin_player = BoardGames(name, 4), random_player(4)
    twin.load_state_dict(games.state_dict())
    twin_player.load_state_dict(player.state_dict())
    for _ in range(20):
        mine, theirs = games.step(player(games)), twin.step(twin_player(twin))
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stones", [[1, 1]]),
        ("stones", [[3, 0]]),
        ("stones", [[8, 0]]),
        ("length", [1]),
        ("to_play", [1]),
        ("ended", [True]),
    ],
)
def test_what_is_not_a_position_is_refused(name: str, value: list[object]) -> None:
    games = BoardGames(TIC_TAC_TOE, 1)
    state = games.state_dict()
    state[name] = np.array(value, state[name].dtype)
    with pytest.raises(ValueError, match="game 0: not a position of tic_tac_toe"):
        games.load_state_dict(state)


def test_unknown_games_and_boards_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'connect_four'"):
        BoardGames("connectfour", 1)
    with pytest.raises(ValueError, match="64 bits"):
        BoardGames(Game("large", 8, 8, 5, False), 1)
    with pytest.raises(ValueError, match="num_envs"):
        BoardGames(TIC_TAC_TOE, 0)


# -- the players ------------------------------------------------------------------------------------


def slow_value(game: SlowGame, depth: int) -> int:
    """For who is to move: the sign says who wins within `depth` moves, the size how soon."""
    if depth == 0 or game.winner is not None:
        return 0
    best = -10_000
    for action in game.legal():
        after = SlowGame(game.game)
        after.board, after.player = [row[:] for row in game.board], game.player
        reward = after.step(action)
        best = max(best, 1000 + depth if reward else -slow_value(after, depth - 1))
    return best


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(GAMES)), st.integers(0, 2**32), st.integers(1, 3))
def test_values_are_those_of_plain_minimax(name: str, seed: int, depth: int) -> None:
    draw, games, slow = random.Random(seed), BoardGames(name, 1), SlowGame(GAMES[name])
    for _ in range(draw.randrange(4, 20)):
        action = draw.choice(slow.legal())
        games.play(0, [action])
        slow.step(action)
        if slow.winner is not None:
            return
    out = np.empty(games.game.num_actions, np.int64)
    player = games.to_play[0]
    values_of(games.stones[0, player], games.stones[0, 1 - player], depth, *games.game.numbers, out)
    for action in slow.legal():
        after = SlowGame(slow.game)
        after.board, after.player = [row[:] for row in slow.board], slow.player
        assert out[action] == (1000 + depth if after.step(action) else -slow_value(after, depth - 1))
    assert (np.delete(out, slow.legal()) < -1100).all()


def test_depth_one_wins_where_it_can_and_depth_two_stops_the_other() -> None:
    games = BoardGames(CONNECT_FOUR, 64)
    for index in range(64):
        games.play(index, [3, 0, 3, 0, 3])  # x threatens a fourth in column 3; o is to move
    assert len(set(minimax_player(64, 1)(games).tolist())) == 7
    assert (minimax_player(64, 2)(games) == 3).all()
    for index in range(64):
        games.play(index, [0])  # o let it pass, and threatens column 0
    assert (minimax_player(64, 1)(games) == 3).all()


def test_a_double_threat_is_seen_three_moves_ahead() -> None:
    games = BoardGames(CONNECT_FOUR, 16)
    for index in range(16):
        games.play(index, [2, 2, 3, 3])  # x to move: 1 or 4 makes three with two open ends
    assert set(minimax_player(16, 3)(games).tolist()) == {1, 4}


def test_perfect_play_of_both_is_a_draw() -> None:
    results = play_match(TIC_TAC_TOE, perfect_player(20, 1), perfect_player(20, 2), 20)
    assert not results.any()


def test_the_perfect_player_never_loses_and_beats_the_random_one_nearly_always() -> None:
    results = play_match(TIC_TAC_TOE, perfect_player(200, 1), random_player(200, 2), 200)
    assert (results >= 0).all()
    assert (results == 1).mean() > 0.85


@cache
def outcome(board: tuple[int, ...], player: int) -> int:
    """Tic-tac-toe solved another way: over all positions, by tuples."""
    lines = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
    if any(all(board[cell] == 3 - player for cell in line) for line in lines):
        return -1
    free = [cell for cell in range(9) if not board[cell]]
    after = ((*board[:cell], player, *board[cell + 1 :]) for cell in free)
    return max((-outcome(next_board, 3 - player) for next_board in after), default=0)


def test_the_perfect_player_keeps_the_value_of_every_position_it_meets() -> None:
    games, perfect, anyone = BoardGames(TIC_TAC_TOE, 50), perfect_player(50, 3), random_player(50, 4)
    for move in range(120):
        boards = [tuple((plane[0] + 2 * plane[1]).reshape(-1).tolist()) for plane in games.observation()]
        actions, playing = (perfect if move % 3 else anyone)(games), ~games.ended
        before = [outcome(board, 1) for board in boards]  # 1 is who is to move
        games.step(actions)
        if move % 3:
            after = [tuple((2 * plane[1] + plane[0]).reshape(-1).tolist()) for plane in games.observation()]
            for index in np.flatnonzero(playing):
                assert -outcome(after[index], 1) == before[index]


def test_deeper_players_beat_shallower_ones() -> None:
    assert play_match(CONNECT_FOUR, minimax_player(100, 2, 1), random_player(100, 2), 100).mean() > 0.8
    assert play_match(CONNECT_FOUR, minimax_player(60, 5, 1), minimax_player(60, 1, 2), 60).mean() > 0.4


def test_each_player_begins_half_of_a_match() -> None:
    began = []

    def first_free(games: BoardGames, asked: np.ndarray) -> np.ndarray:
        if not games.length.any():
            began.append(asked.tolist())
        return games.masks().argmax(axis=1)

    play_match(CONNECT_FOUR, first_free, random_player(5), 5)
    assert began == [[True, True, True, False, False]]


def test_players_repeat_themselves_by_seed_and_refuse_to_look_nowhere() -> None:
    games = BoardGames(CONNECT_FOUR, 200)
    assert (random_player(200, 5)(games) == random_player(200, 5)(games)).all()
    assert (random_player(200, 5)(games) != random_player(200, 6)(games)).any()
    assert np.bincount(random_player(200, 5)(games), minlength=7).min() > 10
    with pytest.raises(ValueError, match="depth must be at least 1"):
        minimax_player(1, 0)


# -- symmetries -------------------------------------------------------------------------------------


@stable
@games_and_seeds
def test_a_game_that_is_seen_in_another_way_is_the_same_game(name: str, seed: int) -> None:
    ways = symmetries(GAMES[name])
    draw, num = random.Random(seed), len(ways.cells)
    plain, seen = BoardGames(name, num), BoardGames(name, num)
    for _ in range(40):
        if plain.ended[0]:
            break
        action = draw.choice(np.flatnonzero(plain.masks()[0]).tolist())
        one = plain.step(np.full(num, action))
        other = seen.step(np.flatnonzero(ways.actions == action) % ways.actions.shape[1])  # in every way the same move
        flat = one[0].reshape(num, 2, -1)
        np.testing.assert_array_equal(np.take_along_axis(flat, ways.cells[:, None], 2).reshape(one[0].shape), other[0])
        np.testing.assert_array_equal(one[1], other[1])
        np.testing.assert_array_equal(np.take_along_axis(plain.masks(), ways.actions, 1), seen.masks())


def test_a_square_has_eight_ways_and_what_drops_has_two() -> None:
    for game, num in ((TIC_TAC_TOE, 8), (CONNECT_FOUR, 2), (Game("plain", 4, 5, 4, False), 4)):
        ways = symmetries(game)
        assert len(ways.cells) == len({tuple(way) for way in ways.cells.tolist()}) == num
        np.testing.assert_array_equal(ways.cells[0], np.arange(game.num_cells))
        np.testing.assert_array_equal(ways.actions[0], np.arange(game.num_actions))
