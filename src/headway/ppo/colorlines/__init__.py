"""Colour Lines (Lines 98).

rules ──> positions ──> vector ──> players, view
      └─> symmetries          └──> gymnasium_single, gymnasium_vector (loaded when asked for)
"""

from headway.ppo.colorlines.players import VectorPlayer, greedy_player, play_games, random_player
from headway.ppo.colorlines.rules import CELLS, COLOURS, COMING, COMPACT, MOVES, PLANES, RUN, SIDE, START_BALLS
from headway.ppo.colorlines.rules_positions import cell_name, labels_of, legal_moves, planes, potential_of
from headway.ppo.colorlines.rules_symmetries import (
    CELL_IMAGE,
    MOVE_IMAGE,
    draw_symmetries,
    transform_moves,
    transform_policies,
    transform_positions,
)
from headway.ppo.colorlines.vector import ColorLines
from headway.ppo.colorlines.vector_gymnasium_single import GYMNASIUM_ID, register, single_game

__all__ = [
    "CELLS",
    "CELL_IMAGE",
    "COLOURS",
    "COMING",
    "COMPACT",
    "GYMNASIUM_ID",
    "MOVES",
    "MOVE_IMAGE",
    "PLANES",
    "RUN",
    "SIDE",
    "START_BALLS",
    "ColorLines",
    "VectorPlayer",
    "cell_name",
    "draw_symmetries",
    "greedy_player",
    "labels_of",
    "legal_moves",
    "planes",
    "play_games",
    "potential_of",
    "random_player",
    "register",
    "single_game",
    "transform_moves",
    "transform_policies",
    "transform_positions",
]
