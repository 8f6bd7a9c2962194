"""A small world of rooms with a chest: find the key, unlock the chest, open it, take what is in it.

    go north > take key > go south > go east > go east > unlock chest with key > open chest > take lamp

Nothing that is done can make the quest impossible, and most of what can be done is of no use: other things can be
taken, furniture can be looked at, and one can walk to and fro for ever. Points are given at the end alone, or with
`subgoals` a quarter for each part of the quest. One `world_seed` is one world; every episode begins alike, unless
`random_start`.
"""

from __future__ import annotations

import json
import random
from collections import deque
from typing import NamedTuple

from headway.core.types import derive_seed
from headway.text_games.mini_world_map import FURNITURE, made_map
from headway.text_games.story_interface import Scene, StoryEnded

LOCKED, CLOSED, OPEN = 0, 1, 2
TREASURES = ("lamp", "crown", "ring", "map", "sword")
TRINKETS = ("apple", "spoon", "button", "rope", "hat", "coin", "feather", "book")


class _State(NamedTuple):
    """Says where everything is. Few enough states that all of them can be listed."""

    room: int
    has_key: bool
    chest: int
    has_treasure: bool
    trinkets: int
    """A bit for each trinket that is carried."""


class MiniWorld:
    """Plays the quest of one world."""

    max_score = 1.0

    def __init__(
        self,
        rooms: int = 6,
        plan_steps: int = 8,
        world_seed: int = 0,
        *,
        trinkets: int = 2,
        subgoals: bool = False,
        random_start: bool = False,
    ) -> None:
        """Makes a world.

        rooms: how many there are; more of them make the walk without a plan longer.
        plan_steps: how many steps the shortest way to win has, from the usual start.
        trinkets: things that can be taken and are of no use.
        subgoals: gives a quarter of the score for each part of the quest.
        random_start: begins each episode in a room that its seed draws.
        """
        self._map = made_map(rooms, plan_steps, world_seed)
        if not 0 <= trinkets <= len(TRINKETS):
            raise ValueError(f"a mini world has 0 to {len(TRINKETS)} trinkets, received {trinkets!r}")
        rng = random.Random(f"mini world things {world_seed}")
        self._treasure = TREASURES[0] if world_seed == 0 else rng.choice(TREASURES)
        self._trinkets = tuple((name, rng.randrange(rooms)) for name in rng.sample(TRINKETS, trinkets))
        self._subgoals = subgoals
        self._random_start = random_start
        self._state: _State | None = None
        self._said = ""
        key_room, chest_room = self._map.rooms[self._map.key], self._map.rooms[self._map.chest]
        self.objective = (
            f"Take the key in the {key_room}, unlock the chest in the {chest_room} with the key, "
            f"open the chest and take the {self._treasure} out of it."
        )

    def reset(self, seed: int) -> Scene:
        """Begins the quest; the seed matters with `random_start` alone."""
        room = self._map.start
        if self._random_start:
            room = derive_seed(seed, "start") % len(self._map.rooms)
        self._state, self._said = _State(room, False, LOCKED, False, 0), ""
        return self._scene(self._state)

    def step(self, action: str) -> Scene:
        """Does something; what cannot be done changes nothing."""
        if self._state is None or self._state.has_treasure:
            raise StoryEnded(action, has_begun=self._state is not None)
        name = " ".join(action.lower().replace(" the ", " ").split())
        after = self._outcomes(self._state).get(name)
        self._state, self._said = after if after is not None else (self._state, "You cannot do that.")
        return self._scene(self._state)

    def save(self) -> bytes:
        """Returns the state as JSON."""
        return json.dumps([self._state, self._said]).encode()

    def load(self, state: bytes) -> Scene:
        """Goes back to a saved state."""
        fields, self._said = json.loads(state)
        self._state = _State(*fields)
        return self._scene(self._state)

    def key(self) -> bytes:
        """Returns the state without what was said last."""
        return json.dumps(self._state).encode()

    def close(self) -> None:
        """Holds nothing."""

    def plan(self) -> tuple[str, ...]:
        """Returns the shortest way to win from here, found breadth first."""
        start = self._state
        if start is None:
            raise StoryEnded("plan", has_begun=False)
        came_from: dict[_State, tuple[_State, str]] = {}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            if here.has_treasure:
                return _way(came_from, start, here)
            for action, (there, _) in self._outcomes(here).items():
                if there.trinkets == start.trinkets and there != start and there not in came_from:
                    came_from[there] = (here, action)
                    waiting.append(there)
        raise AssertionError("every state of a mini world can be won from")

    def described(self) -> str:
        """Returns what is here, without what the last action led to."""
        if self._state is None:
            raise StoryEnded("look", has_begun=False)
        return self._described(self._state)

    def _scene(self, state: _State) -> Scene:
        score = _parts_done(state) / 4 if self._subgoals else float(state.has_treasure)
        text = " ".join(part for part in (self._said, self._described(state)) if part)
        if state.has_treasure:
            return Scene(f"{text} You have won!", score, (), is_over=True, is_won=True)
        return Scene(text, score, tuple(self._outcomes(state)))

    def _described(self, state: _State) -> str:
        name = self._map.rooms[state.room]
        parts = [f"You are in the {name}."]
        if state.room == self._map.chest:
            chest = ("a locked chest", "an unlocked, closed chest", "an open chest")[state.chest]
            inside = f" with a {self._treasure} in it" if state.chest == OPEN and not state.has_treasure else ""
            parts.append(f"There is {chest}{inside} here.")
        lying = [f"{_a(thing)} {thing}" for thing in self._lying(state)]
        furniture = [f"{_a(thing)} {thing}" for thing in FURNITURE[name]]
        parts.append(f"You see {_listed([*lying, *furniture])}.")
        doors = [
            f"{direction} to the {self._map.rooms[room]}" for direction, room in self._map.exits[state.room].items()
        ]
        if doors:
            parts.append(f"You can go {_listed(doors)}.")
        carried = [f"{_a(thing)} {thing}" for thing in self._carried(state)]
        parts.append(f"You carry {_listed(carried) if carried else 'nothing'}.")
        return " ".join(parts)

    def _lying(self, state: _State) -> list[str]:
        key = ["key"] if state.room == self._map.key and not state.has_key else []
        rest = [
            name
            for bit, (name, room) in enumerate(self._trinkets)
            if room == state.room and not state.trinkets >> bit & 1
        ]
        return key + rest

    def _carried(self, state: _State) -> list[str]:
        things = ["key"] * state.has_key + [self._treasure] * state.has_treasure
        return things + [name for bit, (name, _) in enumerate(self._trinkets) if state.trinkets >> bit & 1]

    def _outcomes(self, state: _State) -> dict[str, tuple[_State, str]]:
        """Returns what can be done: the state after it, and what is said."""
        found: dict[str, tuple[_State, str]] = {}
        for direction, room in self._map.exits[state.room].items():
            found[f"go {direction}"] = (state._replace(room=room), "")
        if state.room == self._map.key and not state.has_key:
            found["take key"] = (state._replace(has_key=True), "You take the key.")
        for bit, (name, room) in enumerate(self._trinkets):
            if room == state.room and not state.trinkets >> bit & 1:
                found[f"take {name}"] = (state._replace(trinkets=state.trinkets | 1 << bit), f"You take the {name}.")
        if state.room == self._map.chest:
            found |= self._chest_outcomes(state)
        for thing in FURNITURE[self._map.rooms[state.room]]:
            found[f"look at {thing}"] = (state, f"The {thing} is nothing special.")
        found["wait"] = (state, "Time passes.")
        found["shout"] = (state, "Nobody answers.")
        return found

    def _chest_outcomes(self, state: _State) -> dict[str, tuple[_State, str]]:
        if state.chest == LOCKED:
            found = {"open chest": (state, "The chest is locked.")}
            if state.has_key:
                found["unlock chest with key"] = (state._replace(chest=CLOSED), "You unlock the chest with the key.")
            return found
        if state.chest == CLOSED:
            return {
                "open chest": (state._replace(chest=OPEN), f"You open the chest. There is a {self._treasure} in it.")
            }
        return {
            f"take {self._treasure}": (state._replace(has_treasure=True), f"You take the {self._treasure}."),
            "close chest": (state._replace(chest=CLOSED), "You close the chest."),
        }


def _parts_done(state: _State) -> int:
    """Counts the parts of the quest that are done: key, unlocked, opened, taken."""
    return int(state.has_key) + state.chest + int(state.has_treasure)


def _way(came_from: dict[_State, tuple[_State, str]], start: _State, end: _State) -> tuple[str, ...]:
    actions: list[str] = []
    while end != start:
        end, action = came_from[end]
        actions.append(action)
    return tuple(reversed(actions))


def _a(thing: str) -> str:
    return "an" if thing[0] in "aeiou" else "a"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
