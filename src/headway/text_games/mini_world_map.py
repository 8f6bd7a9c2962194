"""The map of a mini world: rooms on a grid, and where start, key and chest are. One seed is one map."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

DIRECTIONS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
FURNITURE: dict[str, tuple[str, str]] = {
    "hall": ("mirror", "clock"),
    "kitchen": ("stove", "table"),
    "bedroom": ("bed", "carpet"),
    "garden": ("fountain", "bench"),
    "library": ("desk", "bookshelf"),
    "cellar": ("barrel", "cobweb"),
    "attic": ("trunk", "window"),
    "workshop": ("anvil", "workbench"),
    "dining room": ("candle", "painting"),
    "stable": ("saddle", "haystack"),
    "tower": ("telescope", "flag"),
    "bathroom": ("bathtub", "sink"),
    "study": ("globe", "armchair"),
    "pantry": ("shelf", "jar"),
    "chapel": ("altar", "statue"),
    "courtyard": ("well", "gate"),
}
"""Rooms, and what stands in each: to be looked at and for nothing else."""
FIRST_STEPS = 4
"""Taking the key, unlocking, opening, and taking what lies in the chest: what a quest without a walk needs."""


@dataclass(frozen=True, slots=True)
class WorldMap:
    """Holds the rooms of a world, by their numbers."""

    rooms: tuple[str, ...]
    exits: tuple[dict[str, int], ...]
    """Of each room: where a direction leads."""
    start: int
    key: int
    """Where the key lies at first."""
    chest: int


def made_map(rooms: int, plan_steps: int, world_seed: int) -> WorldMap:
    """Makes a map on which a quest that begins at the start takes exactly so many steps."""
    if not 1 <= rooms <= len(FURNITURE):
        raise ValueError(f"a mini world has 1 to {len(FURNITURE)} rooms, received {rooms!r}")
    walk = plan_steps - FIRST_STEPS
    if not 0 <= walk <= 2 * (rooms - 1):
        most = FIRST_STEPS + 2 * (rooms - 1)
        raise ValueError(
            f"a quest in {rooms} rooms has {FIRST_STEPS} to {most} steps, received plan_steps {plan_steps!r}"
        )
    rng = random.Random(f"mini world {world_seed}")
    while True:  # a line of rooms has every walk that is allowed, and every tree is drawn some time
        exits = _tree(rooms, rng)
        distances = [_distances(exits, room) for room in range(rooms)]
        places = [
            (start, key, chest)
            for start in range(rooms)
            for key in range(rooms)
            for chest in range(rooms)
            if distances[start][key] + distances[key][chest] == walk
        ]
        apart = [one for one in places if len(set(one)) == 3] or places
        if apart:
            start, key, chest = rng.choice(apart)
            names = tuple(rng.sample(list(FURNITURE), rooms))
            return WorldMap(names, exits, start, key, chest)


def _tree(rooms: int, rng: random.Random) -> tuple[dict[str, int], ...]:
    """Draws rooms on a grid, each new one beside an old one; at most three doors in a room."""
    opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}
    places = [(0, 0)]
    exits: list[dict[str, int]] = [{}]
    while len(places) < rooms:
        old = rng.randrange(len(places))
        direction = rng.choice(list(DIRECTIONS))
        place = (places[old][0] + DIRECTIONS[direction][0], places[old][1] + DIRECTIONS[direction][1])
        if place in places or len(exits[old]) == 3:
            continue
        exits[old][direction] = len(places)
        exits.append({opposite[direction]: old})
        places.append(place)
    return tuple({name: doors[name] for name in DIRECTIONS if name in doors} for doors in exits)


def _distances(exits: tuple[dict[str, int], ...], room: int) -> list[int]:
    """Returns how many steps each room is away from this one."""
    found = {room: 0}
    waiting = deque([room])
    while waiting:
        here = waiting.popleft()
        for there in exits[here].values():
            if there not in found:
                found[there] = found[here] + 1
                waiting.append(there)
    return [found[one] for one in range(len(exits))]
