"""Ways to turn and mirror a board after which it is the same game.

    seen[place] = board[cells[way, place]]      seen_policy[action] = policy[actions[way, action]]

Way 0 leaves everything as it is. Where stones drop, up stays up: only left and right can be exchanged. Elsewhere a
square has eight ways, any other board four.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.zero.board_games_rules import Game


class Symmetries(NamedTuple):
    """S ways to see a board of C cells with A actions."""

    cells: np.ndarray  # [S, C] int64: which cell of the board is seen at a place
    actions: np.ndarray  # [S, A] int64: which action is meant by one in what is seen


def symmetries(game: Game) -> Symmetries:
    """All ways of this game, the plain one first."""
    board = np.arange(game.num_cells).reshape(game.rows, game.columns)
    if game.drops:
        ways = [board, board[:, ::-1]]
        columns = np.arange(game.columns)
        actions = [columns, columns[::-1]]
        return Symmetries(np.stack([way.ravel() for way in ways]), np.stack(actions))
    turns = range(4) if game.rows == game.columns else (0, 2)
    ways = [way for turn in turns for way in (np.rot90(board, turn), np.rot90(board, turn)[:, ::-1])]
    cells = np.stack([way.ravel() for way in ways])
    return Symmetries(cells, cells.copy())
