"""What must survive a restart, and how it gets to disk.

    checkpoints/000007-v42/     state.pkl       everything below, in one file
                                manifest.json   format, size and SHA-256 of state.pkl
                                learner/, weights-42/   where a learner writes those (state_files_saved_beside.py)

A checkpoint is written into a hidden folder beside, flushed, and renamed: a crash, or a full disk, leaves either
the whole of it or nothing, and those before it as they were. On load the hash is checked before anything is
unpickled. Checkpoints are pickles: resume only runs you trust.

A run that goes on from an older checkpoint sets the later ones aside, as discarded-000007-v42: they belong to a course
of the run that is not followed any more.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar

from headway.coordinator.state_files_saved_beside import LentFiles, SavedBeside
from headway.coordinator.state_files_whole_files import flush_folder, written_beside
from headway.core.text_naming import unknown
from headway.core.types import Rollout, Score, State
from headway.core.types_opaque import JsonObject, SavedState, Weights

FORMAT = 3
LAST = "last"


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or of another run."""


OfLines = Mapping[str, int]
"""A version of each of the other lines, by their names."""
Companions = tuple[Mapping[int, OfLines], OfLines, Mapping[int, OfLines], Mapping[str, Mapping[int, int]]]


@dataclass(frozen=True, slots=True)
class LineState:
    """One line between two updates; see `RunState`, which holds the first one."""

    version: int
    updates: int
    updates_in_version: int
    ledger: State
    lead: State
    learner: SavedState
    snapshots: dict[int, Weights]
    replay: SavedState = None
    last: tuple[int, Weights] | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """A run between two updates: what was taken has been trained on, so nothing is half done."""

    version: int
    updates: int
    updates_in_version: int
    wall_s: float
    ledger: State
    lead: State
    learner: SavedState
    rollouts: dict[int, Rollout]
    """Landed and not yet taken, payloads and all. What was in flight is in the ledger, as open tickets."""
    snapshots: dict[int, Weights]
    """The newest weights, and older ones that a pinned ticket or an evaluation still needs."""
    collectors: dict[int, SavedState]
    """What each stateful collector carried after its last landed rollout."""
    evaluations_due: tuple[int, ...]
    scores: tuple[Score, ...]
    evaluations_skipped: int
    events_position: int | None
    """Where in the event log it was written; None if nothing was being recorded then."""
    events_s: float
    settings: JsonObject = field(default_factory=dict)
    replay: SavedState = None
    """Of a replay with a role of its own; one inside the learner is part of the learner's state."""
    last: tuple[int, Weights] | None = None
    """Version and weights a run ended with in the middle of a version; whoever resumes goes on without them."""
    events_check: int | None = None
    """CRC-32 of the last bytes of the event log before `events_position`."""
    metrics: bytes | None = None
    """The metrics of the run so far, pickled."""
    lines: dict[str, LineState] | None = None
    """The other lines of the run, if it has any."""
    companions: Companions | None = None
    """Which versions of the other lines go with a ticket, with the newest version, with an evaluation that is due, and
    with the rollouts that a line does not take."""
    configured_collectors: int | None = None
    """How many collectors the run was told to have; `settings` say how many it had."""


AnyState = TypeVar("AnyState", RunState, LineState)


class CheckpointStore:
    """A folder of checkpoints, the last `keep` of them."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be >= 1, received {keep!r}")
        self.folder = folder
        self.keep = keep

    def save(self, state: RunState) -> Path:
        """Write beside, rename, then let the oldest go."""
        make_folder(self.folder)
        number = max((_number(path) for path in self.all()), default=-1) + 1
        final = self.folder / f"{number:06d}-v{state.version if state.last is None else state.last[0]}"
        state, folders = _with_folders(state)
        for missing in filter(None, (saved.missing() for saved in folders.values())):
            raise CheckpointError(f"the learner's state was not written: {missing}")
        content = pickle.dumps(state, protocol=5)
        manifest = {
            "format": FORMAT,
            "version": state.version,
            "updates": state.updates,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        with written_beside(final) as beside:
            beside.mkdir()
            (beside / "state.pkl").write_bytes(content)
            (beside / "manifest.json").write_text(json.dumps(manifest, indent=1))
            for name, saved in folders.items():
                Path(saved.folder).rename(beside / name)
        for same in self.all()[:-1]:
            if same.name[6:] == final.name[6:] and _updates(same) == state.updates:
                shutil.rmtree(same)  # the same learner, before the run knew its last scores
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old)
        return final

    def beside(self, line: str = "", version: int | None = None) -> str:
        """A folder that is not there yet, for files that the next checkpoint takes along: of the state of a line's
        learner, or of the weights of a version."""
        make_folder(self.folder)
        folder = self.folder / f".{_folder_of(line, version)}"
        shutil.rmtree(folder, ignore_errors=True)
        return str(folder)

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted((p for p in self.folder.iterdir() if p.name[:6].isdigit()), key=_number)

    def find(self, which: str | int) -> Path:
        """A checkpoint by its name (000007-v42), or the newest of a version (42); `last` is the newest of all."""
        found = self.all()
        if not found:
            raise self._none()
        for path in reversed(found):
            if which in (path.name, LAST) or (type(which) is int and path.name.endswith(f"-v{which}")):
                return path
        raise CheckpointError(unknown("checkpoint", str(which), [LAST, *(path.name for path in found)]))

    def set_aside_after(self, path: Path) -> list[Path]:
        """Rename the checkpoints that are later than this one, the newest first, so that no resume finds them."""
        aside = []
        for later in reversed(self.all()):
            if _number(later) > _number(path):
                to = later.with_name(f"discarded-{later.name}")
                shutil.rmtree(to, ignore_errors=True)
                aside.append(later.rename(to))
        return aside

    def load(self, path: Path | None = None) -> RunState:
        """The newest checkpoint, or the one at `path`, after checking it."""
        if path is None:
            found = self.all()
            if not found:
                raise self._none()
            path = found[-1]
        try:
            manifest = json.loads((path / "manifest.json").read_text())
            content = (path / "state.pkl").read_bytes()
        except (OSError, ValueError) as error:
            raise CheckpointError(f"checkpoint {path} cannot be read: {error}{self._older(path)}") from None
        if not isinstance(manifest, dict):
            raise CheckpointError(f"checkpoint {path} cannot be read: manifest.json is no mapping{self._older(path)}")
        if manifest.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {manifest.get('format')!r}, this version reads {FORMAT}"
            )
        if hashlib.sha256(content).hexdigest() != manifest.get("sha256"):
            raise CheckpointError(
                f"checkpoint {path} is damaged: state.pkl has {len(content)} bytes that do not match its "
                f"SHA-256{self._older(path)}"
            )
        try:
            state = pickle.loads(content)
        except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError) as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be loaded: {type(error).__name__}: {error}{self._older(path)}"
            ) from None
        assert isinstance(state, RunState)
        for one in fields(RunState):  # those that came later are not in older checkpoints
            if not hasattr(state, one.name):
                object.__setattr__(state, one.name, one.default)
        state, folders = _with_folders(state, within=path)
        for missing in filter(None, (saved.missing() for saved in folders.values())):
            raise CheckpointError(f"checkpoint {path} is damaged: {missing}{self._older(path)}")
        return state

    def _none(self) -> CheckpointError:
        return CheckpointError(f"no checkpoint in {self.folder}: nothing was saved yet")

    def _older(self, path: Path) -> str:
        """The other checkpoints, and how to go on from the newest of them."""
        others = [other.name for other in self.all() if other != path]
        if not others:
            return ""
        run, newest = self.folder.parent, others[-1]
        has_recipe = (run / "config.yaml").is_file()
        command = f"headway resume {run} --checkpoint {newest}" if has_recipe else f"resume=True, checkpoint={newest!r}"
        return f"; others there: {', '.join(others)}; to go on from there: {command}"


def _folder_of(line: str, version: int | None = None) -> str:
    name = "learner" if version is None else f"weights-{version}"
    return f"{name}-{line}" if line else name


def _with_folders(state: RunState, within: Path | None = None) -> tuple[RunState, dict[str, SavedBeside]]:
    """The state with the names of the folders that its files have in a checkpoint, or, `within` one, their paths; and
    those files, by the names of the folders."""
    found: dict[str, SavedBeside] = {}

    def placed(value: Weights | SavedState, line: str, version: int | None = None) -> Weights | SavedState:
        if isinstance(value, LentFiles):
            return replace(value, saved=placed(value.saved, line, version))
        if not isinstance(value, SavedBeside):
            return value
        name = _folder_of(line, version)
        moved = replace(value, folder=str(within.absolute() / name) if within else name)
        found[name] = moved if within else value
        return moved

    def of_line(part: AnyState, line: str) -> AnyState:
        last = None if part.last is None else (part.last[0], placed(part.last[1], line, part.last[0]))
        snapshots = {version: placed(weights, line, version) for version, weights in part.snapshots.items()}
        return replace(part, learner=placed(part.learner, line), snapshots=snapshots, last=last)

    lines = state.lines and {name: of_line(part, name) for name, part in state.lines.items()}
    return replace(of_line(state, ""), lines=lines), found


def _updates(path: Path) -> int | None:
    """The updates that a checkpoint was made after; None where that cannot be read."""
    try:
        found = json.loads((path / "manifest.json").read_text())
    except (OSError, ValueError):
        return None
    return found.get("updates") if isinstance(found, dict) else None


def _number(path: Path) -> int:
    return int(path.name[:6])


def make_folder(checkpoints: Path) -> None:
    """The folder of a run's checkpoints, so that its name survives what its content survives."""
    if not checkpoints.is_dir():
        checkpoints.mkdir()
        flush_folder(checkpoints.parent)
