"""Finds what can be done at a moment of a story, by trying it.

    words of the text that are in the story's dictionary -> names of things (those that can be looked at)
    directions, verbs x names, two-name templates        -> tried, one after another, from the same state
    kept: what changes the object table, the location or the score, and differs from what waiting changes

Of commands with the same outcome the first is kept ("take mailbox" and "take small mailbox" are one action). What
changes nothing of this is not found: speaking, reading, looking. Trying takes some hundred turns of the story, so the
result is worth caching by the moment's key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

DIRECTIONS = (
    *("north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest"),
    *("up", "down", "in", "out"),
)
VERBS = ("take", "drop", "open", "close", "push", "pull", "move", "turn on", "eat", "read", "climb", "enter")
PAIRS = ("put {held} in {other}", "unlock {other} with {held}", "attack {other} with {held}", "give {held} to {other}")
"""`held` is a thing that is carried, `other` one that is not."""
FALLBACK = ("north", "south", "east", "west", "up", "down", "in", "out", "take all", "wait")
"""What is worth trying anywhere, for moments where trying took too long or found nothing."""
MAX_NAMES = 16

_FILLING = frozenset(
    re.findall(
        r"\w+",
        "a an the and or of it its is are was were be you your yourself me my him her them they this that these those "
        "here there all both every each no not some any other another one two three to from with at by for as if then",
    )
)
_NOT_THERE = re.compile(
    r"can't see|cannot see|don't see|do not see|no such|isn't here|not here|don't know the word|not a verb|which do you"
    r"|do you mean|what do you want|didn't understand|don't understand|there is no|there's no|used the word",
    re.IGNORECASE,
)
ANNOUNCED = re.compile(r"score has (?:just )?gone (up|down) by ([\w-]+)", re.IGNORECASE)
"""How Inform's library tells of points."""
_WORD = re.compile(r"[a-z0-9][a-z0-9'-]*|[.,;:!?()\n]")


class TryingMachine(Protocol):
    """What a machine must be able to do for this."""

    @property
    def words(self) -> Mapping[str, frozenset[str]]:
        """The story's dictionary: each word, cut to the length that the story reads, and its parts of speech."""
        ...

    def outcome(self, command: str) -> tuple[str, bytes, bool]:
        """Returns what the story would answer, the object table then, and whether the machine would halt."""
        ...

    def objects(self) -> bytes: ...


@dataclass(frozen=True)
class ActionTemplates:
    """Says which commands are tried, in the order in which they are preferred."""

    verbs: tuple[str, ...] = VERBS
    pairs: tuple[str, ...] = PAIRS


def find_valid_actions(
    machine: TryingMachine, room: str, carried: str, said: str = "", templates: ActionTemplates | None = None
) -> tuple[str, ...]:
    """Finds what can be done. Empty if nothing was found."""
    templates = templates or ActionTemplates()
    held = _there(machine, names_in(carried, machine.words))
    others = _there(machine, (name for name in names_in(f"{room}\n{said}", machine.words) if name not in held))
    now = machine.objects()
    seen = {now}
    _, waited, _ = machine.outcome("wait")
    commands = dict.fromkeys(_commands(machine.words, held, others, templates))
    found = []
    if waited != now:
        seen.add(waited)
        found.append("wait")
    for command in commands:
        said, objects, is_halted = machine.outcome(command)
        if (objects not in seen or ANNOUNCED.search(said)) and not is_halted:
            seen.add(objects)
            found.append(command)
    return tuple(sorted(found))


def names_in(text: str, words: Mapping[str, frozenset[str]]) -> list[str]:
    """Names of things that stand in a text: words of the dictionary, the last one of a row first, then the row.

    Of "a small brass lantern" these are "lantern", "small brass lantern" and "brass".
    """
    length = max(map(len, words), default=0)
    heads: dict[str, None] = {}
    rows: dict[str, None] = {}
    rest: dict[str, None] = {}
    for row in _rows(_WORD.findall(text.lower()), words, length):
        heads[row[-1]] = None
        if len(row) > 1:
            rows[" ".join(row[-3:])] = None
            rest.update(dict.fromkeys(row[:-1]))
    return list(heads | rows | rest)


def _rows(tokens: Iterable[str], words: Mapping[str, frozenset[str]], length: int) -> Iterator[list[str]]:
    """The longest rows of words that may name a thing."""
    row: list[str] = []
    for token in [*tokens, "."]:
        if _may_name(token, words, length):
            row.append(token)
        elif row:
            yield row
            row = []


def _may_name(token: str, words: Mapping[str, frozenset[str]], length: int) -> bool:
    parts = words.get(token[:length])
    if parts is None or token in _FILLING or token in DIRECTIONS or not token[0].isalpha() or len(token) < 2:
        return False
    return not parts or bool(parts & {"noun", "adj", "plural"})


def _there(machine: TryingMachine, names: Iterable[str]) -> list[str]:
    """Those names that can be looked at, one for each thing: two with the same description are one thing."""
    found: dict[str, str] = {}
    for name in list(names)[:MAX_NAMES]:
        said, _, _ = machine.outcome(f"examine {name}")
        if not _NOT_THERE.search(said):
            found.setdefault(f"{said} of {name}" if _says_nothing(said, name) else said, name)
    return list(found.values())


def _says_nothing(said: str, name: str) -> bool:
    """Is this what a story says of whatever has no description? Then it does not tell things apart."""
    return "nothing special" in said.lower() and name not in said.lower()


def _commands(
    words: Mapping[str, frozenset[str]], held: list[str], others: list[str], templates: ActionTemplates
) -> Iterator[str]:
    length = max(map(len, words), default=0)

    def is_known(command: str) -> bool:
        return all(word[:length] in words for word in command.split())

    yield from filter(is_known, DIRECTIONS)
    for verb in filter(is_known, templates.verbs):
        for name in [*others, *held]:
            if not (verb == "take" and name in held) and not (verb == "drop" and name in others):
                yield f"{verb} {name}"
    for pair in templates.pairs:
        if is_known(pair.replace("{held}", "").replace("{other}", "")):
            yield from (
                pair.format(held=mine, other=other) for mine in held for other in [*others, *held] if mine != other
            )


def fallback_actions(words: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """What is tried where nothing better is known, as far as the story knows the words."""
    length = max(map(len, words), default=0)
    known = [command for command in FALLBACK if all(word[:length] in words for word in command.split())]
    return tuple(sorted(known)) or ("wait",)
