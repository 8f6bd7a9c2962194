"""Colossal Cave, the first adventure game: 350 points, 15 treasures, dwarves, a pirate and a lamp that runs out.

It is the package `adventure`, which is pure Python and needs no file of the user. The game understands two words at a
time and lists nothing that can be done, so candidates are found by trying: every way out of the room, and every verb on
every thing at hand, each on the state as it is; those that change what a player can see are kept, one for each outcome.
Counters and chance stand still while things are tried. A state's candidates are tried once.

    play --command--> question? --"yes" or "no" are the candidates--> play ... --> is_over: the third death, or the end
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Iterator
from importlib import resources

from headway.text_games.colossal_cave_adventure_state import (
    AdventureGame,
    FixedChance,
    facts,
    opened_cave,
    put_back,
    visible,
)
from headway.text_games.story_interface import Scene, StoryEnded

MAGIC = {"xyzzy": "say xyzzy", "plugh": "say plugh", "plover": "say plover"}
WAYS = {
    **{"building": "enter building", "north": "go north", "south": "go south", "east": "go east", "west": "go west"},
    **{"ne": "go northeast", "nw": "go northwest", "se": "go southeast", "sw": "go southwest"},
    **{"upward": "go up", "d": "go down", "inward": "go in", "out": "go out"},
    **{one: one for one in ("enter", "jump", "climb", "crawl", "cross")},
}
"""How a way out is said, by the package's word for it, best first; any other is a place: `go to forest`."""
SHORT = {"northeast": "ne", "northwest": "nw", "southeast": "se", "southwest": "sw"}
FILLERS = {"to", "the", "a", "an"}
DEEDS: dict[str, tuple[str, ...]] = {
    "unlock": ("grate", "chain"),
    "lock": ("grate", "chain"),
    "open": ("clam", "oyster", "door"),
    "light": ("lamp",),
    "extinguish": ("lamp",),
    "wave": ("rod",),
    "pour": ("water", "oil"),
    "fill": ("bottle", "vase"),
    "drink": ("water",),
    "eat": ("food",),
    "feed": ("bear", "dragon", "dwarf", "snake", "troll"),
    "attack": ("bear", "bird", "dragon", "dwarf", "snake", "troll"),
    "break": ("mirror", "vase"),
    "read": ("oyster",),
    "wake": ("dwarf",),
}
"""Verbs that do something to some things alone. All else can be taken, dropped and thrown."""
FEE, FOO = "fee", ("fie", "foe", "foo")
AT_DWARF = "throw axe"
"""What hits or misses by chance: with a dwarf here it is more than dropping the axe."""
CHANCES = (FixedChance(0.5), FixedChance(0.999))
"""What ways out are tried with: a way that is often closed is found by one of them."""
DARKNESS = 16
"""The number of the message that it is pitch dark."""
WON = 133
"""The bonus of the end that is a victory."""
BEST_WALK = 2
"""The seed whose story the package's own walkthrough takes to 350 points."""


class ColossalCave:
    """Plays the cave. A seed decides where dwarves and pirate go, and nothing else."""

    objective = (
        "Explore the cave, find its treasures and bring them to the building. "
        'Magic works there: if a voice says "abra", say abra.'
    )
    max_score = 350.0
    walkthrough_seed = BEST_WALK

    def __init__(self, same_seed: int | None = None, known_states: int = 4096) -> None:
        """Makes a cave of its own.

        same_seed: is the seed of every episode, whatever `reset` is given: chance falls alike each time.
        known_states: how many states' candidates are remembered.
        """
        self._same_seed = same_seed
        self._game: AdventureGame | None = None
        self._seed = 0
        self._said = ""
        self._before: bytes | None = None
        """The state before the command that asked the question which is open now, and the command."""
        self._known: dict[bytes, tuple[str, ...]] = {}
        self._max_known = known_states

    def reset(self, seed: int) -> Scene:
        """Begins at the end of the road."""
        self._seed = seed if self._same_seed is None else self._same_seed
        self._game, self._before = opened_cave(self._seed), None
        self._said = self._game.output
        return self._scene(self._game)

    def step(self, action: str) -> Scene:
        """Gives the game a command of one or two words; fillers are left out."""
        game = self._game
        if game is None or game.is_finished:
            raise StoryEnded(action, has_begun=game is not None)
        words = _words(action)
        if not words:
            self._said = "Please say something."
            return self._scene(game)
        asked = bool(game.yesno_callback)
        before = b"" if asked else self._dumped(game, words)
        self._said = game.do_command(words)
        if not game.yesno_callback:
            self._before = None
        elif not asked:
            self._before = before
        return self._scene(game)

    def save(self) -> bytes:
        """Returns the state; that of a question is the state before it, and the command that asked it."""
        if self._game is None:
            raise StoryEnded("save", has_begun=False)
        state = self._before if self._before is not None else self._dumped(self._game, None)
        return pickle.dumps((self._seed, self._said, state))

    def load(self, state: bytes) -> Scene:
        """Goes back to a saved state."""
        self._seed, self._said, inner = pickle.loads(state)
        if self._game is None:
            self._game = opened_cave(self._seed)
        now, chance, words = pickle.loads(inner)
        put_back(self._game, now)
        self._game.random_generator.setstate(chance)
        self._before = None
        if words is not None:
            self._game.do_command(words)
            self._before = inner
        return self._scene(self._game)

    def key(self) -> bytes:
        """Returns what a player can change or see; counters and chance are left out."""
        return b"" if self._game is None else _key(self._game)

    def close(self) -> None:
        """Lets go of the cave."""
        self._game = None

    def walkthrough(self) -> tuple[str, ...]:
        """Returns a way to all 350 points, which the package brings along, if this is the story of its seed."""
        return _walkthrough() if self._seed == BEST_WALK else ()

    def described(self) -> str:
        """Returns the place and what is in it; of a question, its words.

        What is carried is left out: it differs almost whenever one comes by, and a place would be asked about again
        and again. What could be done with it stands among the candidates.
        """
        game = self._game
        if game is None:
            raise StoryEnded("look", has_begun=False)
        if game.is_finished or game.yesno_callback:
            return _readable(self._said)
        return _readable("\n\n".join(_here(game)))

    def _scene(self, game: AdventureGame) -> Scene:
        score = float(game.compute_score()[0])
        text = _readable(_text(game, self._said))
        if game.is_finished:
            return Scene(text, score, (), is_over=True, is_won=game.bonus == WON)
        if game.yesno_callback:
            return Scene(text, score, ("yes", "no"))
        return Scene(text, score, self._candidates(game))

    def _candidates(self, game: AdventureGame) -> tuple[str, ...]:
        key = _key(game)
        if key not in self._known:
            if len(self._known) >= self._max_known:
                self._known.pop(next(iter(self._known)))
            self._known[key] = _tried(game, key)
        return self._known[key]

    def _dumped(self, game: AdventureGame, words: list[str] | None) -> bytes:
        return pickle.dumps((facts(game), game.random_generator.getstate(), words))

    def __reduce__(self) -> tuple[object, ...]:
        saved = None if self._game is None else self.save()
        return _restored, (self._same_seed, self._max_known, saved)


def _restored(same_seed: int | None, known_states: int, saved: bytes | None) -> ColossalCave:
    """Makes a cave again from what a pickle holds."""
    cave = ColossalCave(same_seed, known_states)
    if saved is not None:
        cave.load(saved)
    return cave


def _key(game: AdventureGame) -> bytes:
    return pickle.dumps(visible(game))


def _tried(game: AdventureGame, key: bytes) -> tuple[str, ...]:
    """Returns what changes the state of this key, one action for each state that comes of it."""
    state, output, chance = facts(game), game.output, game.random_generator
    offer = game.should_offer_hint
    game.should_offer_hint = lambda hint, thing: False
    outcomes = {key}
    found: dict[str, None] = {}
    try:
        for action in _thinkable(game):
            words = _words(action)
            is_way = len(words) == 1 or words[0] in ("go", "enter")
            for number in CHANCES if is_way else CHANCES[:1]:
                game.random_generator = number
                game.turns += 1
                game.dispatch_command(words)
                after = _key(game)
                put_back(game, state)
                if after not in outcomes or (action == AT_DWARF and _has_dwarf(game)):
                    outcomes.add(after)
                    found[action] = None
                    break
    finally:
        game.should_offer_hint = offer
        game.random_generator, game.output = chance, output
    return tuple(found) or ("look",)


def _thinkable(game: AdventureGame) -> Iterator[str]:
    """Names every way out, then every verb on every thing at hand."""
    for move in list(game.loc.travel_table):
        words = {verb.text for verb in move.verbs}
        known = [way for word, way in WAYS.items() if word in words]
        places = [f"go to {verb.text}" for verb in move.verbs if verb.text not in MAGIC]
        yield from known[:2] or places[:1]
        yield from (spell for word, spell in MAGIC.items() if word in words)
    for thing in _at_hand(game):
        name = thing.names[0]
        yield from (f"drop {name}", f"throw {name}") if thing.is_toting else (f"take {name}",)
        yield from (f"{verb} {name}" for verb, things in DEEDS.items() if name in things)
    if game.eggs.prop >= 0:
        yield f"say {FEE}"
        yield from (f"say {word}" for word in FOO if game.foobar >= 0)
    if game.is_closed:
        yield "blast"


def _at_hand(game: AdventureGame) -> list[AdventureGame]:
    """Returns what is carried or here, with the water or oil of the room and of the bottle, and a dwarf."""
    things = [one for one in game.object_list if game.is_here(one)]
    inside = game.bottle.contents if game.is_here(game.bottle) else None
    dwarf = game.dwarf if _has_dwarf(game) else None
    return things + [one for one in (game.loc.liquid, inside, dwarf) if one is not None and one not in things]


def _has_dwarf(game: AdventureGame) -> bool:
    return any(dwarf.room is game.loc for dwarf in game.dwarves)


def _words(action: str) -> list[str]:
    words = [SHORT.get(word, word) for word in action.lower().split() if word not in FILLERS]
    return words[1:] if len(words) == 2 and words[0] == "say" and words[1] in (*MAGIC, FEE, *FOO) else words


def _text(game: AdventureGame, said: str) -> str:
    """Returns what happened, what is carried, and the room with what is in it.

    Rooms take many words and come last, so that a row which has no place for all of them still has the rest.
    """
    if game.is_finished or game.yesno_callback:
        return said
    names = [one.inventory_message for one in game.inventory if one.inventory_message]
    carried = f"You carry: {', '.join(names)}." if names else "You carry nothing."
    place, *things = _here(game)
    if place.upper() in said:  # it has just been told, with what was found there
        return f"{carried}\n\n{said}"
    return "\n\n".join([said, carried, place, *things])


def _here(game: AdventureGame) -> list[str]:
    """Returns what is said of the room, and of each thing in it; in the dark no more than that it is dark."""
    if game.is_dark:
        return [str(game.messages[DARKNESS])]
    things = [one.messages.get(one.prop, "") for one in game.objects_here if one.prop >= 0]
    return [game.loc.long_description, *things]


@functools.lru_cache(maxsize=8192)
def _readable(text: str) -> str:
    """Returns a text that was all in capitals as sentences, on one line."""
    paragraphs = [" ".join(part.split()).lower() for part in re.split(r"\n\s*\n", text)]
    line = " ".join(f"{part}." if part[-1].isalnum() else part for part in paragraphs if part)
    line = re.sub(r"(^|[.!?]\s+\"?)([a-z])", lambda found: found[1] + found[2].upper(), line)
    return re.sub(r"\bi\b(?!/)", "I", line)


@functools.cache
def _walkthrough() -> tuple[str, ...]:
    """Reads the commands of the package's longest successful walk, after the answer about instructions."""
    text = (resources.files("adventure") / "tests" / f"walkthrough{BEST_WALK}.txt").read_text()
    lines = [line[4:].strip() for line in text.splitlines() if line.startswith(">>> ")]
    spoken = [re.sub(r"[(),\s]+", " ", line).strip() for line in lines[2:]]
    return tuple(spoken[1:])
