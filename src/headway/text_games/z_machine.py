"""A Z-machine that runs a story file in this process, through the package `jericho` and without spaCy.

    restart(seed), act(command) -> text     what the story says
    moment(text) -> StoryMoment             where it stands: the room, what is carried, score, key, state
    set_state(bytes)                        any moment of the same file again

The story is C code that cannot be interrupted, and a broken one takes its process with it: files of users run in a
child (z_machine_process.py). Jericho knows some sixty files by their checksum; of any other it gives no score, no
location, no valid actions, and the same hash for every state. What stands here needs none of that:

    key     bytes of the object table and of the properties, the text of room and inventory, the score
    score   Jericho, if it knows the file; else the status line's variable (version 3); else what `score` answers; else
            the sum of what was announced ("your score has just gone up by five points")
    end     Jericho; else the machine has halted, or the story offers to restart, restore or quit

Attributes that doing nothing changes (look, inventory, wait at the beginning) are no part of the key: Inform marks
there what it has just listed. What a story keeps outside of the object table and tells neither in the room's text nor
in the inventory is not seen: such states share a key.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import jericho
import numpy as np

from headway.text_games.story_interface import BadStory
from headway.text_games.valid_actions import ANNOUNCED, MovedThing

VERSIONS = (1, 2, 3, 4, 5, 7, 8)
"""Of story files that are text; 6 draws pictures."""
HEADER_BYTES = 64
FIRST_SEED = 1
"""Jericho takes 0 for no seed."""
NOTHING = ("look", "inventory", "wait")
"""Commands that change nothing in the world."""
MAX_INPUT_BYTES = 78
"""A line. Frotz types longer ones too, over the end of the story's buffer, and then it halts."""

_ANSWERED = re.compile(
    r"\bscored?\b[^.\d\n-]{0,30}(-?\d+)(?:[^.\d\n]{0,40}?\b(?:of|maximum)\b[^.\d\n]{0,20}(\d+))?", re.IGNORECASE
)
_OFFERS = re.compile(r"\brestart\b.{0,200}\brestore\b.{0,200}\bquit\b", re.IGNORECASE | re.DOTALL)
_VICTORY = re.compile(r"\*{3,}[^*]*\b(?:won|win|the end|victor\w*|congratulations)\b[^*]*\*{3,}", re.IGNORECASE)
_STATUS_AFTER = re.compile(r"\n>?[ \t]{20,}\S.*\Z")
_STATUS_BEFORE = re.compile(r"\A>(?:[^\n]*\S {10,}[^\n]*)?[ ]*\n")
_NUMBERS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty",
)


@dataclass(frozen=True, slots=True)
class StoryMoment:
    """Says where a story stands."""

    said: str
    """The answer to the last command."""
    room: str
    carried: str
    score: float
    max_score: float | None
    is_over: bool
    is_won: bool
    key: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class ObjectTable:
    """Says where the objects of a story stand in its memory."""

    first: int
    """Address of the first object."""
    count: int
    size: int
    """Bytes of an object."""
    attribute_bytes: int
    end: int
    """Address behind the last property."""

    @staticmethod
    def of(memory: bytes) -> ObjectTable:
        """Reads the addresses from the memory of a story that has just begun."""
        is_small = memory[0] <= 3
        first = _word(memory, 10) + 2 * (31 if is_small else 63)
        size, attribute_bytes = (9, 4) if is_small else (14, 6)
        count, properties, end = 0, len(memory), 0
        while (at := first + size * count) + size <= min(properties, len(memory)):
            mine = _word(memory, at + size - 2)
            properties, count = min(properties, mine), count + 1
            end = max(end, _end_of_properties(memory, mine, is_small))
        return ObjectTable(first, count, size, attribute_bytes, end)

    @property
    def parents(self) -> slice:
        """Where an object says in which other one it is."""
        width = (self.size - self.attribute_bytes - 2) // 3
        return slice(self.attribute_bytes, self.attribute_bytes + width)

    def rows(self, table: bytes) -> np.ndarray:
        """The objects of a table, [count, size]."""
        return np.frombuffer(table, np.uint8, self.count * self.size).reshape(self.count, self.size)


class ZMachine:
    """Runs one story file. `restart` before anything else."""

    def __init__(self, path: Path) -> None:
        """The file must stay where it is: it is read again at every start."""
        rom = path.read_bytes()
        check_story_file(rom, path.name)
        self._rom = rom
        self._digest = hashlib.blake2b(rom[HEADER_BYTES:], digest_size=8).digest()  # the header has the day it was made
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jericho.UnsupportedGameWarning)
            self._frotz = jericho.FrotzEnv(str(path), FIRST_SEED)
        self.words = {word.word: frozenset(word.pos()) for word in self._frotz.get_dictionary()}
        self.version = rom[0]
        is_made = path.name.startswith("tw-")  # Jericho keeps the score of such files where no state has it
        self.is_known = bool(self._frotz.is_fully_supported) and not is_made
        self.walkthrough = tuple(self._frotz.get_walkthrough()) if self.is_known else ()
        self.walkthrough_seed = int(self._frotz.bindings.get("seed", FIRST_SEED)) - FIRST_SEED
        self._begun = np.frombuffer(rom, np.uint8, self._frotz.frotz_lib.getRAMSize())
        self._table = ObjectTable.of(rom[: len(self._begun)])
        self._has_score_line = self.version <= 3 and not rom[1] & 2  # else it shows the time, or nothing
        self._score = 0.0
        self._mask = np.full(self._table.end - self._table.first, 255, np.uint8)
        self._leave_out_what_nothing_changes()

    def restart(self, seed: int) -> str:
        """Begins the story. What it says first, in words."""
        self._frotz.seed(FIRST_SEED + seed % (2**31 - 1 - FIRST_SEED))
        said: str = self._frotz.reset()[0]
        self._score = 0.0
        self._note_score(said)
        return said

    def act(self, command: str) -> str:
        """Types a command. What the story answers; where only a key is awaited, its first letter is that key."""
        typed = "".join(filter(str.isprintable, command.partition("\n")[0]))
        line = typed.encode("cp1252", "ignore")[:MAX_INPUT_BYTES]
        said: str = self._frotz.step(line.decode("cp1252"))[0]
        self._note_score(said)
        return said

    def tried(self, command: str) -> str:
        """Returns what the story would answer."""
        return self.outcome(command)[0]

    def outcome(self, command: str) -> tuple[str, bytes, bool]:
        """Returns what the story would answer, the object table then, and whether the machine would halt."""
        before, score = self._whole(), self._score
        said = self.act(command)
        objects, is_halted = self.objects(), self.is_halted
        self._set_whole(before)
        self._score = score
        return said, objects, is_halted

    @property
    def score(self) -> float:
        return self._score

    @property
    def is_halted(self) -> bool:
        return bool(self._frotz._emulator_halted())

    def moment(self, said: str) -> StoryMoment:
        """Where the story stands after this answer."""
        is_over = self.is_halted or (self._frotz.game_over() or self._frotz.victory() if self.is_known else False)
        is_over = is_over or bool(_OFFERS.search(said))
        state = self.state()
        answer = told(said)
        if not is_over or not _ANSWERED.search(answer):
            answer = told(self.tried("score"))
        max_score = self._max_score(answer)
        if not self.is_known and not self._has_score_line and (found := _ANSWERED.search(answer)):
            self._score = float(found[1])
            state = self.state()
        room, carried = ("", "") if is_over else (told(self.tried("look")), told(self.tried("inventory")))
        is_won = is_over and self._is_won(said, max_score)
        parts = [self.objects(), room.encode(), carried.encode(), struct.pack("<d??", self._score, is_over, is_won)]
        key = hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()
        return StoryMoment(told(said), room, carried, self._score, max_score, is_over, is_won, key, state)

    def objects(self) -> bytes:
        """The object table and the properties, without what looking changes; version 3: location and score too."""
        memory = self._memory()
        table = memory[self._table.first : self._table.end] & self._mask
        variables = memory[self._variables : self._variables + 4] if self.version <= 3 else memory[:0]
        return table.tobytes() + variables.tobytes()

    def moved(self, before: bytes, after: bytes) -> MovedThing | None:
        """Returns the one object that is elsewhere in the second table, with its attributes in the first."""
        then, now = self._table.rows(before), self._table.rows(after)
        parents = self._table.parents
        elsewhere = np.flatnonzero((then[:, parents] != now[:, parents]).any(1))
        if len(elsewhere) != 1:
            return None
        number = int(elsewhere[0])
        return MovedThing(number, then[number, : self._table.attribute_bytes].tobytes())

    def state(self) -> bytes:
        """The whole state, in some kilobytes."""
        memory, stack, *numbers, narrative = self._frotz.get_state()
        changed = memory ^ self._begun
        changed[:HEADER_BYTES] = 0
        counters = tuple(map(int, numbers[:5])), tuple(map(int, numbers[5]))
        body = pickle.dumps((changed.tobytes(), stack.tobytes(), *counters, narrative, self._score))
        return self._digest + zlib.compress(body, 1)

    def set_state(self, state: bytes) -> None:
        if state[:8] != self._digest:
            raise ValueError("this state was saved by another story file")
        changed, stack, numbers, random, narrative, self._score = pickle.loads(zlib.decompress(state[8:]))
        memory = self._begun ^ np.frombuffer(changed, np.uint8)
        memory[:HEADER_BYTES] = self._memory()[:HEADER_BYTES]
        self._set_whole((memory, np.frombuffer(stack, np.uint8).copy(), *numbers, random, narrative))

    def close(self) -> None:
        self._frotz.close()

    @property
    def _variables(self) -> int:
        return _word(self._rom, 12)

    def _memory(self) -> np.ndarray:
        memory: np.ndarray = self._frotz._get_ram()
        return memory

    def _whole(self) -> tuple[object, ...]:
        state: tuple[object, ...] = self._frotz.get_state()
        return state

    def _set_whole(self, state: tuple[object, ...]) -> None:
        if self.is_halted:
            self._frotz.reset()  # only a fresh start wakes it
        self._frotz.set_state(state)

    def _leave_out_what_nothing_changes(self) -> None:
        """Attributes are the same bits of each object."""
        self._frotz.reset()
        begun = self._whole()
        if self.is_halted:
            return
        size, count = self._table.size, self._table.count
        before = self._memory()[self._table.first :][: size * count].reshape(count, size)
        changed = np.zeros(size, np.uint8)
        for command in NOTHING:
            self._frotz.step(command)
            after = self._memory()[self._table.first :][: size * count].reshape(count, size)
            changed |= np.bitwise_or.reduce(before ^ after, axis=0)
            before = after
        changed[self._table.attribute_bytes :] = 0
        self._mask[: size * count].reshape(count, size)[:] &= ~changed
        self._set_whole(begun)

    def _note_score(self, said: str) -> None:
        if self.is_known:
            self._score = float(self._frotz.get_score())
        elif self._has_score_line:
            self._score = float(_signed(self._memory(), self._variables + 2))
        else:
            self._score += sum(_announced(*match) for match in ANNOUNCED.findall(said))

    def _max_score(self, answer: str) -> float | None:
        if self.is_known and self._frotz.get_max_score() > 0:
            return float(self._frotz.get_max_score())
        found = _ANSWERED.search(answer)
        return float(found[2]) if found and found[2] else None

    def _is_won(self, said: str, max_score: float | None) -> bool:
        if self.is_known:
            return bool(self._frotz.victory())
        return bool(_VICTORY.search(said)) or bool(max_score and self._score >= max_score)


def check_story_file(rom: bytes, name: str = "the story file") -> None:
    """Refuses what is no Z-machine story that can be played by text."""
    if len(rom) < HEADER_BYTES or rom[0] not in VERSIONS or not HEADER_BYTES <= _word(rom, 14) <= len(rom):
        what = (
            f"begins with {rom[:4]!r}"
            if rom[:1] not in [bytes([version]) for version in range(1, 9)]
            else "is cut short"
        )
        what = "is of version 6, which draws pictures" if rom[:1] == b"\6" else what
        raise BadStory(f"{name} {what}; allowed: a Z-machine file of version 3, 5 or 8 (.z3, .z5, .z8)")


def told(answer: str) -> str:
    """An answer in plain words: without the prompt, the status line and empty lines."""
    text = _STATUS_BEFORE.sub("", _STATUS_AFTER.sub("", answer.rstrip())).rstrip().removesuffix(">")
    return "\n".join(line for line in (" ".join(line.split()) for line in text.splitlines()) if line)


def _announced(direction: str, number: str) -> float:
    points = int(number) if number.isdigit() else _NUMBERS.index(number.lower()) if number.lower() in _NUMBERS else 1
    return float(points if direction.lower() == "up" else -points)


def _end_of_properties(memory: bytes, at: int, is_small: bool) -> int:
    at += 1 + 2 * memory[at]
    while at < len(memory) and (size := memory[at]):
        if is_small:
            at += 2 + (size >> 5)
        elif size & 0x80:
            at += 2 + (memory[at + 1] & 63 or 64)
        else:
            at += 2 + (size >> 6)
    return min(at + 1, len(memory))


def _word(memory: bytes, at: int) -> int:
    return int.from_bytes(memory[at : at + 2], "big")


def _signed(memory: np.ndarray, at: int) -> int:
    return int.from_bytes(memory[at : at + 2].tobytes(), "big", signed=True)
