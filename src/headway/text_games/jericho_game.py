"""Story games from Z-machine files (.z3, .z5, .z8), through the package `jericho` and without spaCy.

    StoryFile(path) -- one child process, one cache of valid actions --+-- JerichoGame
                                                                       +-- JerichoGame ...

What can be done is found by trying it (valid_actions.py) within `limit_s`, in the child. Where that takes longer, the
child is killed, a short list of commands that are worth trying anywhere stands in, and it is counted; such a list is
never cached. A command of the player that takes longer raises StoryLost, and so does one that ends the process twice.
The game then stands where it stood before, and the next child goes on from there.

The score of a file that Jericho does not know is what the file says of it (z_machine.py). A file that says nothing of
scores has none: its score stays 0, and there is nothing to learn from.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from headway.text_games.jericho_game_z_machine_process import ZMachineProcess
from headway.text_games.story_interface import BadStory, Scene, StoryEnded, StoryLost
from headway.text_games.valid_actions import PAIRS, VERBS, ActionTemplates
from headway.text_games.z_machine import StoryMoment, check_story_file

CACHE_SIZE = 20_000
"""States whose valid actions are kept, the latest used."""


@dataclass
class TryingCounts:
    """Counts how valid actions were come by."""

    tried: int = 0
    cached: int = 0
    too_slow: int = 0
    """The limit was reached, or the process died twice: the short list stood in."""
    none_found: int = 0
    """Nothing that was tried changed anything: the short list stood in."""


class StoryFile:
    """Makes games of one file that share a child process and what they found out. Can be pickled, without these."""

    def __init__(
        self,
        path: str | Path,
        *,
        limit_s: float = 2.0,
        verbs: Sequence[str] = VERBS,
        pairs: Sequence[str] = PAIRS,
        cache_size: int = CACHE_SIZE,
    ) -> None:
        """Looks whether it is a story file; its child is started by the first game that begins.

        limit_s: how long an answer of the story, or trying out what can be done, may take.
        verbs: are tried with each thing that is there. More of them find more, in more time.
        pairs: templates with {held} and {other}, for two things.
        """
        if not limit_s > 0:
            raise ValueError(f"limit_s must be more than 0 seconds, received {limit_s!r}")
        for pair in pairs:
            if "{held}" not in pair or "{other}" not in pair:
                raise ValueError(f"a pair needs {{held}} and {{other}}, as in {PAIRS[0]!r}; received {pair!r}")
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise BadStory(f"there is no story file {self.path}")
        check_story_file(self.path.read_bytes(), self.path.name)
        self.limit_s = limit_s
        self._templates = ActionTemplates(tuple(verbs), tuple(pairs))
        self._cache_size = cache_size
        self._begin()

    def _begin(self) -> None:
        self.process = ZMachineProcess(self.path, self._templates)
        self.counts = TryingCounts()
        self._cache: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._num_games = 0

    def __call__(self) -> JerichoGame:
        with self._lock:
            self._num_games += 1
        return JerichoGame(self)

    def __getstate__(self) -> tuple[object, ...]:
        return self.path, self.limit_s, self._templates, self._cache_size

    def __setstate__(self, state: tuple[Path, float, ActionTemplates, int]) -> None:
        self.path, self.limit_s, self._templates, self._cache_size = state
        self._begin()

    def begin(self, seed: int) -> StoryMoment:
        return cast(StoryMoment, self.process.ask("begin", (seed,), "its beginning", self.limit_s))

    def act(self, state: bytes, command: str) -> StoryMoment:
        return cast(StoryMoment, self.process.ask("act", (state, command), repr(command), self.limit_s))

    def actions(self, moment: StoryMoment) -> tuple[tuple[str, ...], bool]:
        """Returns what can be done, at least something, and whether that is only the short list."""
        with self._lock:
            cached = self._cache.get(moment.key)
            if cached is not None:
                self.counts.cached += 1
                self._cache.move_to_end(moment.key)
                return cached, False
        self.counts.tried += 1
        try:
            answer = self.process.ask("actions", (moment,), "trying out what can be done", self.limit_s)
        except StoryLost:
            self.counts.too_slow += 1
            return self.process.facts().fallback, True
        found = cast("tuple[str, ...]", answer)
        if not found:
            self.counts.none_found += 1
            return self.process.facts().fallback, True
        with self._lock:
            self._cache[moment.key] = found
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return found, False

    def let_go(self) -> None:
        """One game fewer; the last one ends the process."""
        with self._lock:
            self._num_games -= 1
            is_last = self._num_games == 0
        if is_last:
            self.process.close()


class JerichoGame:
    """Plays a story file."""

    def __init__(self, file: StoryFile) -> None:
        self._file = file
        self._moment: StoryMoment | None = None
        self._scene: Scene | None = None
        self._is_closed = False
        self.objective = ""
        self.max_score: float | None = None

    def reset(self, seed: int) -> Scene:
        moment = self._file.begin(seed)
        return self._shown(replace(moment, said="") if moment.room else moment)  # titles and thanks

    def step(self, action: str) -> Scene:
        if self._moment is None or self._moment.is_over:
            raise StoryEnded(action, has_begun=self._moment is not None)
        return self._shown(self._file.act(self._moment.state, action))

    def save(self) -> bytes:
        return pickle.dumps((self._moment, self._scene, self.max_score))

    def load(self, state: bytes) -> Scene:
        self._moment, self._scene, self.max_score = pickle.loads(state)
        if self._scene is None:
            raise ValueError("this state was saved before the story began")
        return self._scene

    def key(self) -> bytes:
        return b"" if self._moment is None else self._moment.key

    def walkthrough(self) -> tuple[str, ...]:
        """A way to the end that Jericho knows; empty for other files."""
        return self._file.process.facts().walkthrough

    @property
    def walkthrough_seed(self) -> int:
        """The seed with which the walkthrough works."""
        return self._file.process.facts().walkthrough_seed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._file.let_go()

    def _shown(self, moment: StoryMoment) -> Scene:
        candidates, are_guesses = ((), False) if moment.is_over else self._file.actions(moment)
        self._moment = moment
        self.max_score = self.max_score if moment.max_score is None else moment.max_score
        text = joined_text(moment.said, moment.carried, moment.room)
        self._scene = Scene(text, moment.score, candidates, moment.is_over, moment.is_won, are_guesses)
        return self._scene


def joined_text(said: str, carried: str, room: str) -> str:
    """What happened, what is carried, the room; what stands in the answer already is not said again."""
    parts = [part for part in (carried, room) if part and part not in said]
    if room and room in said:
        said = said.replace(room, "").strip()
        parts.append(room)
    return "\n".join(part for part in (said, *parts) if part)
