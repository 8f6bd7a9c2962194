"""Board games of two players: tic-tac-toe and connect-four.

rules ──> vector ──> players
  └─> symmetries
"""

from headway.envs.board_games.players import (
    Player,
    ScriptedPlayer,
    minimax_player,
    perfect_player,
    play_match,
    random_player,
)
from headway.envs.board_games.rules import CONNECT_FOUR, GAMES, TIC_TAC_TOE, Game
from headway.envs.board_games.symmetries import Symmetries, symmetries
from headway.envs.board_games.vector import BoardGames

__all__ = [
    "CONNECT_FOUR",
    "GAMES",
    "TIC_TAC_TOE",
    "BoardGames",
    "Game",
    "Player",
    "ScriptedPlayer",
    "Symmetries",
    "minimax_player",
    "perfect_player",
    "play_match",
    "random_player",
    "symmetries",
]
