"""Games of our own, by name. Each is one file, pure Python, with a random generator of its own."""

from __future__ import annotations

GAMES = {
    "calculator": "Calculator",
    "climb": "Climb",
    "corridor": "Corridor",
    "frozen_lake": "FrozenLake",
    "guess": "Guess",
    "lights": "Lights",
    "shop": "Shop",
    "sokoban": "Sokoban",
}
"""The class of each game, in the module of its name."""
