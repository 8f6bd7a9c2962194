"""A state whose large part lies in files: what is pickled with a checkpoint is small, and says where they are.

learner's processes --write--> folder beside the checkpoint --moved into it--> checkpoint, renamed as a whole
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.core.opaque import SavedState


@dataclass(frozen=True, slots=True)
class SavedBeside:
    """Files in a folder, name -> bytes, and the rest of the state."""

    folder: str
    files: Mapping[str, int]
    rest: SavedState

    def missing(self) -> str:
        """Says which file is not there as it was written; nothing if all are."""
        for name, size in self.files.items():
            path = Path(self.folder) / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                return f"{path} has {'no' if found is None else found} bytes of {size}"
        return ""
