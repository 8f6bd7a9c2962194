"""Published weights as a checkpoint keeps them: files of rows, which whoever needs the weights reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from headway.coordinator.state_files_saved_beside import LentFiles
from headway.core.types_lent import LentLost
from headway.llm.train.shard_files import SavedShards, ShardError


@dataclass(frozen=True, slots=True)
class SavedRows(LentFiles):
    """A handle of weights in files of shards."""

    def take(self) -> dict[str, Tensor]:
        try:
            saved = SavedShards(Path(self.saved.folder))
            return {name: saved.read(name) for name in saved.shapes}
        except (ShardError, OSError) as error:
            raise LentLost(f"weights did not come from {self.saved.folder}: {error}") from error
