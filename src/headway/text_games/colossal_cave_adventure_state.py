"""The state of a game of the package `adventure`, as plain numbers.

    game --facts(game)--> CaveFacts --put_back(game, facts)--> game as it was

The package's own way to save pickles everything it has ever read (98 KB), and cannot while it waits for a "yes" or a
"no". `CaveFacts` hold only what can change. Each cave has a game object of its own: nothing is shared between two.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple, TypeAlias

from adventure import load_advent_dat
from adventure.game import Game
from adventure.model import Dwarf

AdventureGame: TypeAlias = Any
"""A game of the package, which has no types."""

NUMBERS = (
    *("dwarf_stage", "dwarves_killed", "foobar", "gave_up", "treasures_not_found", "impossible_treasures"),
    *("lamp_turns", "warned_about_dim_lamp", "bonus", "is_dead", "deaths", "turns", "clock1", "clock2"),
    *("is_closing", "panic", "is_closed", "is_done", "could_fall_in_pit", "full_wests", "look_complaints"),
)
"""The attributes of a game that change and are numbers."""
NOWHERE = 0
"""The number of the room that deadly ways lead to."""
PLACES = ("loc", "oldloc", "oldloc2", "knife_location")
"""... and those that are rooms."""


class CaveFacts(NamedTuple):
    """Holds all that can change in a game, its generator of chance apart."""

    numbers: tuple[int, ...]
    places: tuple[int, ...]
    things: tuple[tuple[int, int, int, int, tuple[int, ...]], ...]
    """Of each object: its property, whether it is fixed and carried, what it contains, its rooms."""
    dwarves: tuple[tuple[int, int, bool], ...]
    """Of each dwarf, then of the pirate: the room, the room before, and whether it follows the player."""
    hints: tuple[tuple[bool, int], ...]


def opened_cave(seed: int) -> AdventureGame:
    """Returns a new game at the end of the road, which tells everything in full and never writes a file."""
    game = Game(seed)
    load_advent_dat(game)
    game.full_description_period = 1
    game.look_complaints = 0
    game.t_suspend = lambda verb, thing: game.write("That is not for a player to do.")
    describe = game.describe_location
    # The package goes on describing the room of the dead, which is dark: one may fall into a pit there and die again.
    game.describe_location = lambda: game.die() if game.loc.n == NOWHERE else describe()
    game.start()
    game.do_command(["no"])  # instructions cost points
    return game


def facts(game: AdventureGame) -> CaveFacts:
    """Returns the state of a game that asks no question."""
    return CaveFacts(
        tuple([getattr(game, name) for name in NUMBERS]),
        tuple([-1 if place is None else place.n for place in [getattr(game, name) for name in PLACES]]),
        tuple(
            [
                (
                    *(one.prop, one.is_fixed, one.is_toting, -1 if one.contents is None else one.contents.n),
                    tuple([room.n for room in one.rooms]),
                )
                for one in game.object_list
            ]
        ),
        tuple([(one.room.n, one.old_room.n, one.has_seen_adventurer) for one in [*game.dwarves, game.pirate]]),
        tuple([(hint.used, hint.turn_counter) for hint in game.hints.values()]),
    )


def put_back(game: AdventureGame, state: CaveFacts) -> None:
    """Puts a game into a state in which it asks no question."""
    for name, number in zip(NUMBERS, state.numbers, strict=True):
        setattr(game, name, number)
    rooms, objects = game.rooms, game.objects
    for name, place in zip(PLACES, state.places, strict=True):
        setattr(game, name, None if place < 0 else rooms[place])
    for thing, (prop, is_fixed, is_toting, contents, places) in zip(game.object_list, state.things, strict=True):
        thing.prop, thing.is_fixed, thing.is_toting = prop, is_fixed, is_toting
        thing.contents = None if contents < 0 else objects[contents]
        thing.rooms = [rooms[place] for place in places]
    game.dwarves = [Dwarf(rooms[room]) for room, _, _ in state.dwarves[:-1]]
    for one, (room, old_room, follows) in zip([*game.dwarves, game.pirate], state.dwarves, strict=True):
        one.room, one.old_room, one.has_seen_adventurer = rooms[room], rooms[old_room], follows
    for hint, (used, counter) in zip(game.hints.values(), state.hints, strict=True):
        hint.used, hint.turn_counter = used, counter
    game.yesno_callback = None


def visible(game: AdventureGame) -> tuple[object, ...]:
    """Returns what of a game's state a player can change or see.

    Counters and chance are left out, and with them dwarves that are elsewhere: two states that differ in these alone
    are the same to a player.
    """
    said = game.turns - game.foobar if game.foobar >= 0 else -1
    return (
        game.loc.n,
        tuple(
            [
                (one.prop, one.is_fixed, one.is_toting, one.contents is not None, tuple([room.n for room in one.rooms]))
                for one in game.object_list
            ]
        ),
        sum(one.room is game.loc for one in game.dwarves),
        (game.dwarf_stage > 0, game.deaths, game.is_dead, game.is_done, game.is_closing, game.is_closed, game.gave_up),
        (game.lamp_turns <= 0, game.could_fall_in_pit, game.bonus, said if said < 3 else -1),
        tuple([hint.used for hint in game.hints.values()]),
        bool(game.yesno_callback),
    )


class FixedChance(random.Random):
    """Draws the same number again and again: what is tried with it depends on the state alone."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self._number = number

    def random(self) -> float:
        """Returns the number."""
        return self._number
