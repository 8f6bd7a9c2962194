"""Finds what can be done at a moment of a story, by trying it.

    words of the text that are in the story's dictionary -> names of things (those that can be dropped or looked at)
    dropping, looking, taking, directions, verbs x names, two-name templates -> tried, each from the same state
    kept: what changes the object table, the location or the score, and differs from what waiting changes

Of commands with the same outcome the first is kept ("take mailbox" and "take small mailbox" are one action). What
changes nothing of this is not found: speaking, and mostly reading and looking.

Nearly all of the time is the story's own, half a millisecond a turn, so what can be known without a turn is not tried:

    a thing that was taken or dropped is known by its object; others by their description
    of carried things with the same attributes one is opened, closed, switched, eaten, and something put into it; if
    that does nothing, it is not tried with the rest
    what can be opened is shut: it is not closed or unlocked, and nothing is put into it
    two things that look as they read: reading is looking, and no more is read
    two things together only where the answer to one pair was not dull (`_try_pairs`)

The result is worth caching by the moment's key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headway.text_games.valid_actions_names_of_things import DIRECTIONS, Vocabulary

VERBS = ("take", "drop", "open", "close", "push", "pull", "move", "turn on", "eat", "read", "climb", "enter")
PAIRS = (
    *("put {held} in {other}", "unlock {other} with {held}", "attack {other} with {held}", "give {held} to {other}"),
    "tie {held} to {other}",
)
"""`held` is a thing that is carried, `other` one that cannot be; things are put into anything."""
FOR_FIXED = ("push", "pull", "move", "climb", "enter")
"""Verbs that are not tried on what can be carried."""
FOR_PORTABLE = ("drop", "eat")
"""Verbs that are not tried on what cannot."""
FOR_A_KIND = ("open", "close", "turn on", "eat")
"""Verbs for which it takes a thing of the right kind, as its attributes say."""
FOR_OPEN = ("put ", "unlock ")
"""Templates that are not tried on what is shut and can be opened: it holds nothing now, and is not locked."""
FALLBACK = ("north", "south", "east", "west", "up", "down", "in", "out", "take all", "wait")
"""What is worth trying anywhere, for moments where trying took too long or found nothing."""
MAX_NAMES = 16

_NOT_THERE = re.compile(
    r"can't see|cannot see|don't see|do not see|no such|isn't here|not here|don't know the word|not a verb|which do you"
    r"|do you mean|what do you want|didn't understand|don't understand|there is no|there's no|used the word"
    r"|only understood you as far as",
    re.IGNORECASE,
)
ANNOUNCED = re.compile(r"score has (?:just )?gone (up|down) by ([\w-]+)", re.IGNORECASE)
"""How Inform's library tells of points."""


class MovedThing(NamedTuple):
    """Says which object of a story was moved, and what it is like."""

    number: int
    attributes: bytes


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

    def moved(self, before: bytes, after: bytes) -> MovedThing | None:
        """Returns the one thing that is elsewhere in the second object table. None: nothing is, or several are."""
        ...


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
    vocabulary = Vocabulary(machine.words)
    trials = _Trials(machine, vocabulary)
    verbs = [verb for verb in templates.verbs if vocabulary.knows(verb)]
    trials.find_held(carried, can_drop="drop" in verbs)
    trials.find_others(f"{room}\n{said}", can_take="take" in verbs)
    for way in DIRECTIONS:
        if vocabulary.knows(way):
            trials.does_nothing(way)
    for verb in verbs:
        if verb not in ("take", "drop"):
            trials.try_verb(verb)
    for pair in templates.pairs:
        if vocabulary.knows(pair.replace("{held}", "").replace("{other}", "")):
            trials.try_pairs(pair)
    return tuple(sorted(trials.found))


class _Trials:
    """Tries commands at one moment of a story, and keeps what was learned of the things that are there."""

    def __init__(self, machine: TryingMachine, vocabulary: Vocabulary) -> None:
        self.found: list[str] = []
        self._machine, self._vocabulary = machine, vocabulary
        self._now = machine.objects()
        self._seen = {self._now}
        self._held: list[str] = []
        self._others: list[str] = []
        self._portable: set[str] = set()
        self._shut: set[str] = set()  # what could be opened
        self._named_held: set[str] = set()  # words for what is carried, asked about or not
        self._looks: dict[str, str] = {}  # what looking at a thing says, where it was looked at
        self._attributes: dict[str, bytes] = {}  # of things that were moved
        _, waited, _ = machine.outcome("wait")
        if waited != self._now:
            self._seen.add(waited)
            self.found.append("wait")

    def does_nothing(self, command: str) -> str | None:
        """Tries a command. What the story answers, if nothing comes of it."""
        answer, is_nothing, _ = self._try(command)
        return answer if is_nothing else None

    def _try(self, command: str) -> tuple[str, bool, MovedThing | None]:
        """Tries a command: what the story answers, whether nothing new comes of it, and what is elsewhere then."""
        answer, objects, is_halted = self._machine.outcome(command)
        moved = None if objects == self._now else self._machine.moved(self._now, objects)
        if is_halted or (objects in self._seen and not ANNOUNCED.search(answer)):
            return answer, True, moved
        self._seen.add(objects)
        self.found.append(command)
        return answer, False, moved

    # -- which things are there --------------------------------------------------------------------

    def find_held(self, carried: str, *, can_drop: bool) -> None:
        """Finds names of what is carried, one for each thing: by dropping it, or else by looking at it."""
        numbers: set[int] = set()

        def is_new(name: str) -> bool | None:
            answer, is_nothing, moved = self._try(f"drop {name}") if can_drop else ("", True, None)
            if is_nothing and _NOT_THERE.search(answer):
                return None
            if moved is None:
                return self._looks_new(name)
            self._attributes[name] = moved.attributes
            is_first = moved.number not in numbers
            numbers.add(moved.number)
            return is_first

        names = self._vocabulary.names_in(carried)
        self._held, self._named_held = _there(names, is_new)
        self._portable.update(self._held)

    def find_others(self, text: str, *, can_take: bool) -> None:
        """Finds names of what is there otherwise, one for each thing, and which of them can be taken."""
        names = self._vocabulary.names_in(text)
        names = {name: instead for name, instead in names.items() if name not in self._named_held}
        self._others, _ = _there(names, self._looks_new)
        for name in self._others if can_take else ():
            _, is_nothing, moved = self._try(f"take {name}")
            if not is_nothing:
                self._portable.add(name)
                if moved is not None:
                    self._attributes[name] = moved.attributes

    def _looks_new(self, name: str) -> bool | None:
        """Looks at a thing. Is it a new one? Two with the same description are one thing. None: it is not there."""
        said = self._try(f"examine {name}")[0]
        if _NOT_THERE.search(said):
            return None
        is_new = _says_nothing(said, name) or said not in self._looks.values()
        self._looks[name] = said
        return is_new

    # -- what can be done with them ----------------------------------------------------------------

    def try_verb(self, verb: str) -> None:
        """Tries a verb with each thing for which it makes sense; not on, once it has proved to be a word for looking.

        One thing may be described by what is written on it, so it takes two that look as they read.
        """
        refused: set[bytes] = set()
        num_looks = 0
        for name in [*self._others, *self._held]:
            if verb in (FOR_FIXED if name in self._portable else FOR_PORTABLE) or (
                verb == "close" and name in self._shut
            ):
                continue
            attributes = self._attributes.get(name) if verb in FOR_A_KIND else None
            if attributes in refused:
                continue
            answer = self.does_nothing(f"{verb} {name}")
            if answer is None:
                self._shut.update([name] if verb == "open" else [])
                continue
            if attributes is not None:
                refused.add(attributes)
            if verb == "read":
                if name not in self._looks:
                    self._looks_new(name)
                num_looks += answer == self._looks[name]
                if num_looks == 2:
                    return

    def try_pairs(self, pair: str) -> None:
        """Tries two things: each with the first that is carried, and with all the rest where the answer was not dull.

        An answer is dull that several things get ("that can't contain things"): it is about their kind. One that a
        single thing gets ("it does not fit the lock") says that something else might do.
        """
        targets = [*self._others, *self._held]
        if not pair.startswith("put "):
            targets = [name for name in self._others if name not in self._portable]
        if pair.startswith(FOR_OPEN):
            targets = [name for name in targets if name not in self._shut]
        answers: dict[str, tuple[str, ...] | None] = {}  # None: something came of it
        of_kind: dict[bytes, tuple[str, ...]] = {}
        for other in targets:
            mine = next((one for one in self._held if one != other), None)
            if mine is None:
                continue
            attributes = self._attributes.get(other, b"")
            if attributes in of_kind:
                answers[other] = of_kind[attributes]
                continue
            said = self.does_nothing(pair.format(held=mine, other=other))
            answers[other] = answer = None if said is None else self._vocabulary.without_names(said)
            if answer is not None and attributes:
                of_kind[attributes] = answer
        often = Counter(answers.values())
        for other, answer in answers.items():
            more = [one for one in self._held if one != other][1:]
            if answer is None or (often[answer] == 1 and not self._is_dull(pair, answer, more)):
                for mine in more:
                    self.does_nothing(pair.format(held=mine, other=other))

    def _is_dull(self, pair: str, answer: tuple[str, ...], more: list[str]) -> bool:
        """Asks something that is carried the same, where that is less work than trying all that might do."""
        if pair.startswith("put ") or len(more) < 2:
            return False
        said = self.does_nothing(pair.format(held=self._held[0], other=self._held[1]))
        return said is not None and self._vocabulary.without_names(said) == answer


def _there(names: Mapping[str, frozenset[str]], is_new: Callable[[str], bool | None]) -> tuple[list[str], set[str]]:
    """Those names of which each names a new thing, and all that name something; `is_new` asks (None: not there)."""
    found: list[str] = []
    named: set[str] = set()
    asked = 0
    for name, instead in names.items():
        if instead and instead <= named:
            named.add(name)
        elif asked < MAX_NAMES:
            asked += 1
            answer = is_new(name)
            if answer is not None:
                named.add(name)
            if answer:
                found.append(name)
    return found, named


def _says_nothing(said: str, name: str) -> bool:
    """Is this what a story says of whatever has no description? Then it does not tell things apart."""
    return "nothing special" in said.lower() and name not in said.lower()


def fallback_actions(words: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """What is tried where nothing better is known, as far as the story knows the words."""
    known = filter(Vocabulary(words).knows, FALLBACK)
    return tuple(sorted(known)) or ("wait",)
