"""Board games of two players: tic-tac-toe and connect-four.

rules ──> vector ──> players
  └─> symmetries
"""

from headway.zero.board_games_players import (
    Player,
    ScriptedPlayer,
    minimax_player,
    perfect_player,
    play_match,
    random_player,
)
from headway.zero.board_games_rules import CONNECT_FOUR, GAMES, TIC_TAC_TOE, Game
from headway.zero.board_games_symmetries import Symmetries, symmetries
from headway.zero.board_games_vector import BoardGames

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
