"""Story games that the package `textworld` makes from a seed, without a network.

    make_textworld("coin", {"level": 5}) -> TextWorldStories -> TextWorldGame ...
    made once: the world in TextWorld's logic (facts and rules), and a Z-machine file compiled from it

Both are played side by side. The file says what happens in words; the logic says what can be done (TextWorld's
admissible commands) and what state this is. TextWorld's own player does the same, more slowly: it asks the file for the
room and the inventory at every step, and looks for what happened in a trace.

    coin      find the coin at the end of a chain of rooms
              level  TextWorld's, 1 to 300: (level - 1) % 100 + 1 rooms on the way; above 100 with dead ends
    treasure  find two things and take the right one
              level  TextWorld's, 1 to 30: 5, 10 or 20 rooms; from 11 with doors, from 21 with locks
    quest     a chain of actions in a furnished house
              rooms, objects, quest_length
    cooking   read the recipe, prepare what it says, cook, eat
              ingredients, rooms (1, 6, 9 or 12), open, cook, cut: what has to be done

All of them: world_seed, and looks=False leaves out what only looks (look, inventory, examine).
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
import tempfile
import threading
import warnings
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jericho

from headway.core.text_naming import unknown
from headway.core.text_one_line import shortened
from headway.core.types_opaque import JsonObject
from headway.text_games.jericho_game import joined_text
from headway.text_games.story_interface import BadStory, Scene, StoryEnded
from headway.text_games.z_machine import ZMachine, told

if TYPE_CHECKING:
    import textworld
    from textworld.logic import Action, State

OPTIONS: Mapping[str, Mapping[str, int | bool]] = {
    "coin": {"level": 5},
    "treasure": {"level": 5},
    "quest": {"rooms": 4, "objects": 8, "quest_length": 4},
    "cooking": {"ingredients": 1, "rooms": 1, "open": True, "cook": True, "cut": True},
}
"""The options of each kind of game and their defaults."""
ONE_AT_A_TIME = threading.Lock()
"""TextWorld's parser keeps what it is reading in a place that all threads share."""
COMMON: Mapping[str, int | bool] = {"world_seed": 0, "looks": True}
LOOKS = ("look", "inventory", "examine ")
"""How commands begin that change nothing."""
MAX_VIEWS = 10_000

_STATUS_SCORE = re.compile(r"=-\s*(-?\d+)/\d+\s*\Z")
_FINAL_SCORE = re.compile(r"You scored (-?\d+) out of")
_WON, _LOST = "*** The End ***", "*** You lost! ***"


@dataclass(frozen=True, slots=True)
class MadeWorld:
    """Holds a game that was made."""

    logic: str
    """In TextWorld's own JSON."""
    story: bytes
    """The Z-machine file."""


def make_textworld(kind: str, options: JsonObject | None = None) -> TextWorldStories:
    """Returns what makes games of this kind; the world is made with the first game."""
    if kind not in OPTIONS:
        raise BadStory(unknown("TextWorld game", kind, OPTIONS))
    allowed = {**OPTIONS[kind], **COMMON}
    for name, value in (options or {}).items():
        if name not in allowed:
            raise BadStory(unknown(f"option of textworld:{kind}", name, allowed))
        if type(value) is not type(allowed[name]):
            wanted = "true or false" if isinstance(allowed[name], bool) else "a whole number"
            raise BadStory(f"textworld:{kind}: {name} must be {wanted}, received {value!r}")
    return TextWorldStories(kind, {**allowed, **(options or {})})


class TextWorldStories:
    """Makes games of one world. Can be pickled; if the world is made already, it travels along."""

    def __init__(self, kind: str, options: Mapping[str, int | bool]) -> None:
        self.kind = kind
        self.options = dict(options)
        self._made: MadeWorld | None = None
        self._world: textworld.Game | None = None

    def __call__(self) -> TextWorldGame:
        from textworld import Game

        with ONE_AT_A_TIME:
            if self._made is None:
                self._made = made_world(self.kind, self.options)
            if self._world is None:
                self._world = Game.deserialize(json.loads(self._made.logic))
            return TextWorldGame(self._world, self._made.story, looks=bool(self.options["looks"]))

    def __getstate__(self) -> tuple[object, ...]:
        return self.kind, self.options, self._made

    def __setstate__(self, state: tuple[str, dict[str, int | bool], MadeWorld | None]) -> None:
        self.kind, self.options, self._made = state
        self._world = None


def made_world(kind: str, options: Mapping[str, int | bool]) -> MadeWorld:
    """Makes a world and compiles it; the same one for the same options."""
    from textworld import GameOptions, GenerationWarning
    from textworld.generator import compile_game

    settings = GameOptions()
    settings.seeds = int(options["world_seed"]) % 2**31
    try:
        with warnings.catch_warnings():
            # Its makers play what they have made, in files that Jericho does not know.
            warnings.simplefilter("ignore", jericho.UnsupportedGameWarning)
            warnings.simplefilter("ignore", GenerationWarning)
            game = _generated(kind, options, settings)
    except (ValueError, AssertionError) as error:
        raise BadStory(f"textworld:{kind} cannot be made with {dict(options)}: {shortened(error)}") from error
    with tempfile.TemporaryDirectory() as folder:
        settings.path = f"{folder}/story.z8"
        compile_game(game, settings)
        return MadeWorld(json.dumps(game.serialize()), Path(settings.path).read_bytes())


def _generated(kind: str, options: Mapping[str, int | bool], settings: textworld.GameOptions) -> textworld.Game:
    if kind == "coin":
        from textworld.challenges.tw_coin_collector import coin_collector

        return coin_collector.make({"level": options["level"]}, settings)
    if kind == "treasure":
        from textworld.challenges.tw_treasure_hunter import treasure_hunter

        return treasure_hunter.make({"level": options["level"]}, settings)
    if kind == "cooking":
        from textworld.challenges.tw_cooking import cooking

        if options["rooms"] not in (1, 6, 9, 12):
            raise ValueError(f"rooms must be 1, 6, 9 or 12, received {options['rooms']}")
        skills = {"recipe": options["ingredients"], "take": options["ingredients"], "go": options["rooms"]}
        skills |= {name: options[name] for name in ("open", "cook", "cut")} | {"drop": False}
        return cooking.make({**skills, "recipe_seed": 0, "split": ""}, settings)
    from textworld.generator import make_game

    settings.nb_rooms, settings.nb_objects = options["rooms"], options["objects"]
    settings.quest_length = options["quest_length"]
    return make_game(settings)


class _View(NamedTuple):
    """Holds what a player sees and can do in a state."""

    carried: str
    room: str
    actions: Mapping[str, Action]
    """By the command that does it, sorted."""


class TextWorldGame:
    """Plays a world that TextWorld made. Every episode begins alike, whatever its seed.

    What is no candidate is not understood and changes nothing: the logic must know of all that happens. A state is
    saved whole; its key is made of the facts that hold and the score.
    """

    def __init__(self, game: textworld.Game, story: bytes, *, looks: bool = True) -> None:
        """The game is read only: others may be playing it."""
        from textworld.generator.inform7 import Inform7Game

        self._game = game
        self._naming = Inform7Game(self._game)
        self._looks = looks
        folder = tempfile.mkdtemp()
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "story.z8"
        path.write_bytes(story)
        self._machine = ZMachine(path)
        self._facts: State | None = None
        self._actions: Mapping[str, Action] = {}
        self._scene: Scene | None = None
        self._views: OrderedDict[bytes, _View] = OrderedDict()
        self.objective: str = self._game.objective
        self.max_score: float | None = float(self._game.max_score)

    def reset(self, seed: int) -> Scene:
        self._machine.restart(0)
        self._facts = self._game.world.state.copy()
        return self._shown("", 0.0)

    def step(self, action: str) -> Scene:
        if self._facts is None or self._scene is None or self._scene.is_over:
            raise StoryEnded(action, has_begun=self._scene is not None)
        if action not in self._actions:
            return self._shown("That is not something that can be done here.", self._scene.score)
        said = self._machine.act(action)
        self._facts.apply(self._actions[action])
        found = _FINAL_SCORE.search(said) or _STATUS_SCORE.search(said)
        return self._shown(said, float(found[1]) if found else self._scene.score)

    def save(self) -> bytes:
        if self._facts is None:
            raise ValueError("there is no state to save before the story has begun")
        facts = [fact.serialize() for fact in sorted(self._facts.facts, key=str)]
        return zlib.compress(pickle.dumps((self._machine.state(), facts, self._scene)), 1)

    def load(self, state: bytes) -> Scene:
        from textworld.logic import Proposition, State

        scene: Scene
        machine, facts, scene = pickle.loads(zlib.decompress(state))
        self._machine.set_state(machine)
        self._facts = State(self._game.kb.logic, [Proposition.deserialize(fact) for fact in facts])
        self._actions = {} if scene.is_over else self._view().actions
        self._scene = scene
        return scene

    def key(self) -> bytes:
        if self._scene is None:
            return b""
        return hashlib.blake2b(self._facts_text() + repr((self._scene.score, self._scene.is_over)).encode()).digest()[
            :16
        ]

    def walkthrough(self) -> tuple[str, ...]:
        """A way to win from the beginning."""
        return tuple(self._game.metadata.get("walkthrough") or ())

    def close(self) -> None:
        self._machine.close()
        self._remove_folder()

    def _shown(self, said: str, score: float) -> Scene:
        is_won = _WON in said
        is_over = is_won or _LOST in said
        if is_over:
            self._actions = {}
            text = told(said)
        else:
            view = self._view()
            self._actions = view.actions
            text = joined_text(told(said), view.carried, view.room)
        self._scene = Scene(text, score, tuple(self._actions), is_over, is_won)
        return self._scene

    def _admissible(self) -> dict[str, Action]:
        assert self._facts is not None
        kb = self._game.kb
        actions = list(self._facts.all_applicable_actions(kb.rules.values(), kb.types.constants_mapping))
        commands = sorted(
            zip(self._naming.gen_commands_from_actions(actions), actions, strict=True), key=lambda both: both[0]
        )
        return {command: action for command, action in commands if self._looks or not command.startswith(LOOKS)}

    def _facts_text(self) -> bytes:
        assert self._facts is not None
        return "\n".join(sorted(map(str, self._facts.facts))).encode()

    def _view(self) -> _View:
        """Asking the story takes longer than anything else, so what it says is kept."""
        here = self._machine.objects() + self._facts_text()
        view = self._views.get(here)
        if view is None:
            carried, room = (told(self._machine.tried(command)) for command in ("inventory", "look"))
            view = self._views[here] = _View(carried, room, self._admissible())
            if len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)
        return view
