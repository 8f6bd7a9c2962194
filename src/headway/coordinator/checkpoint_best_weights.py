"""The weights that scored best, kept beside the checkpoints.

    checkpoints/best.weights    a line of JSON: format, version, score, size and SHA-256; then the pickled weights

One file, written beside and renamed: a crash leaves the best before or the best now. It holds weights and no
state of the run, so it is small, and it knows its own score: a resumed run asks the file what there is to beat. Of a
run with several lines it holds those of the others too that were evaluated together with the first.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.coordinator.checkpoint import LAST as LAST
from headway.coordinator.checkpoint import CheckpointError, CheckpointStore, RunState, make_folder
from headway.coordinator.state_files_whole_files import written_beside
from headway.core.types import Score, Snapshot
from headway.core.types_lent import taken
from headway.core.types_opaque import JsonObject, Weights

FORMAT = 1
FILE = "best.weights"
BEST = "best"


@dataclass(frozen=True, slots=True)
class Kept:
    """Weights to look at or to use. `score` is None where nobody evaluated them, `state` where they are kept alone."""

    version: int
    weights: Weights
    score: float | None = None
    state: RunState | None = field(default=None, compare=False, repr=False)
    others: Mapping[str, Snapshot] = field(default_factory=dict, compare=False, repr=False)
    """What goes with them of the other lines of the run, by name."""

    @property
    def snapshot(self) -> Snapshot:
        """As whoever plays or evaluates is given it."""
        return Snapshot(self.version, self.weights, self.others)

    def title(self) -> str:
        """`version 12`; with other lines `version 12 with prior 3`."""
        beside = "".join(f" with {name} {part.version}" for name, part in self.others.items())
        return f"version {self.version}{beside}"


class BestWeights:
    """The best of a run, by the score of its evaluations; of equal ones the first."""

    def __init__(self, checkpoints: Path) -> None:
        self.path = checkpoints / FILE
        self.version: int | None = None
        self.score: float | None = None
        if self.path.exists():
            header = self._header()
            self.version, self.score = header["version"], header["score"]

    def is_beaten_by(self, score: Score) -> bool:
        return score.value is not None and (self.score is None or score.value > self.score)

    def save(self, score: Score, weights: Weights, others: Mapping[str, Snapshot] | None = None) -> None:
        """Keep these weights in place of those kept so far; `others` are those of the other lines."""
        others = others or {}
        content = pickle.dumps((weights, dict(others)) if others else weights, protocol=5)
        header: JsonObject = {
            "format": FORMAT,
            "version": score.version,
            "score": score.value,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        if others:
            header["others"] = {name: part.version for name, part in others.items()}
        make_folder(self.path.parent)
        with written_beside(self.path) as beside, open(beside, "wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            file.write(content)
        self.version, self.score = score.version, score.value

    def load(self) -> Kept:
        """The weights, after checking them."""
        if not self.path.exists():
            raise CheckpointError(f"no best weights in {self.path.parent}: no evaluation ended, or keep_best is off")
        header = self._header()
        content = self.path.read_bytes().partition(b"\n")[2]
        if hashlib.sha256(content).hexdigest() != header.get("sha256"):
            raise CheckpointError(
                f"{self.path} is damaged: its {len(content)} bytes of weights do not match their SHA-256"
            )
        kept = pickle.loads(content)
        weights, others = kept if header.get("others") else (kept, {})
        return Kept(header["version"], weights, header["score"], others=others)

    def _header(self) -> JsonObject:
        try:
            with open(self.path, "rb") as file:
                header = json.loads(file.readline(4096))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            found = header.get("format") if isinstance(header, dict) else header
            raise CheckpointError(f"{self.path} has format {found!r}, this version reads {FORMAT}")
        return header


def kept_weights(checkpoints: Path, which: str | int = LAST) -> Kept:
    """The weights a run keeps under this name: `best`, `last`, or a version."""
    store, best = CheckpointStore(checkpoints), BestWeights(checkpoints)
    if which == BEST:
        return best.load()
    if which == LAST:
        state = store.load()
        return _kept_in(state, state.version if state.last is None else state.last[0])
    if isinstance(which, bool) or not isinstance(which, int):
        raise CheckpointError(f"a checkpoint is called best, last or by its version, received {which!r}")
    for path in reversed(store.all()):
        if _version(path) == which:
            return _kept_in(store.load(path), which)
    if best.version == which:
        return best.load()
    there = list(dict.fromkeys(str(_version(path)) for path in store.all()))
    there += [] if best.version is None else [f"{best.version} (best)"]
    raise CheckpointError(f"no checkpoint of version {which} in {checkpoints}; there: {', '.join(there) or 'none'}")


def _kept_in(state: RunState, version: int) -> Kept:
    scores = (score.value for score in state.scores if score.version == version)
    weights = state.last[1] if state.last is not None and state.last[0] == version else state.snapshots[version]
    others = {name: _other_line(state, name, version) for name in state.lines or {}}
    return Kept(version, taken(weights), next(scores, None), state, others)


def _other_line(state: RunState, name: str, version: int) -> Snapshot:
    """What another line has beside this version of the first: in a pinned run what that was evaluated with."""
    assert state.lines is not None
    line = state.lines[name]
    if state.settings.get("dispatch") == "pinned" and state.companions is not None and version == state.version:
        beside = state.companions[1].get(name)
        if beside in line.snapshots:
            return Snapshot(beside, taken(line.snapshots[beside]))
    last, weights = line.last or (line.version, line.snapshots[line.version])
    return Snapshot(last, taken(weights))


def _version(path: Path) -> int:
    return int(path.name.partition("-v")[2])
