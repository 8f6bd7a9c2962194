"""A state whose large part lies in files: what is pickled with a checkpoint is small, and says where they are.

learner's processes --write--> folder beside the checkpoint --moved into it--> checkpoint, renamed as a whole

Processes that write while they go on leave a note each behind their last file: `SavedSoon` becomes `SavedBeside` then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headway.core.types_lent import Lent, LentLost
from headway.core.types_opaque import SavedState


@dataclass(frozen=True, slots=True)
class SavedBeside:
    """Files in a folder, name -> bytes, and the rest of the state."""

    folder: str
    files: Mapping[str, int]
    rest: SavedState = None

    def missing(self) -> str:
        """Says which file is not there as it was written; nothing if all are."""
        for name, size in self.files.items():
            path = Path(self.folder) / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                return f"{path} has {'no' if found is None else found} bytes of {size}"
        return ""


@dataclass(frozen=True, slots=True)
class SavedSoon(SavedBeside):
    """The same while some files are still being written: `notes` are the names of files that say who is done."""

    notes: tuple[str, ...] = ()

    def missing(self) -> str:
        return f"{self.folder} is still being written"

    def when_written(self) -> SavedBeside | None:
        """What there is in the end; None while somebody still writes. OSError: what one of them could not write."""
        files = dict(self.files)
        paths = [Path(self.folder) / note for note in self.notes]
        if not all(path.is_file() for path in paths):
            return None
        for path in paths:
            said = json.loads(path.read_text())
            if "error" in said:
                raise OSError(said["errno"], said["error"], said["path"])
            files |= said["files"]
        for path in paths:
            path.unlink()
        return SavedBeside(self.folder, files, self.rest)

    def unwritten(self) -> str:
        """The notes that are not there."""
        return ", ".join(note for note in self.notes if not (Path(self.folder) / note).is_file())


@dataclass(frozen=True, slots=True)
class LentFiles(Lent):
    """Weights that are kept in files, those of a checkpoint. A subclass knows how they are read."""

    saved: SavedBeside

    def saved_in(self, folder: str) -> LentFiles:
        """The same files under one more name each: nothing is copied."""
        if missing := self.saved.missing():
            raise LentLost(f"weights are gone: {missing}")
        Path(folder).mkdir(parents=True)
        for name in self.saved.files:
            os.link(Path(self.saved.folder) / name, Path(folder) / name)
        return replace(self, saved=replace(self.saved, folder=folder))

    def give_back(self) -> None:
        """They belong to the checkpoint."""
