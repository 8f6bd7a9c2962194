"""How a run ends when the operating system refuses what it cannot do without.

disk full, file too large, no descriptor, no thread, no memory, read-only
    --> one line: the path, the reason, the limit; and the command that goes on from the last checkpoint
"""

from __future__ import annotations

from pathlib import Path

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.role_calls import RunFailed
from headway.core.os_errors import refusal


class SystemFailed(RunFailed):
    """The operating system refused something. One line, with the way back."""


class FolderLost(SystemFailed):
    """The run's folder is not where it was. One line, with the way back."""


def folder_lost(run: Path, now_at: Path | None) -> FolderLost:
    """What to raise when a run's folder was moved or deleted while the run went on."""
    if now_at is None:
        return FolderLost(f"{run} was deleted or moved while the run went on: nothing more can be saved there")
    return FolderLost(f"{run} was moved to {now_at} while the run went on{way_back(now_at)}")


def system_failed(error: BaseException, run: Path | None) -> SystemFailed | None:
    """What to raise in place of `error`; None if it is not the operating system's. `run` is the run's folder."""
    what = refusal(error)
    return None if what is None else SystemFailed(f"{what}{way_back(run)}")


def way_back(run: Path | None) -> str:
    """How to go on with what was saved, as the end of a sentence."""
    if run is None:
        return ""
    try:
        saved = CheckpointStore(run / "checkpoints").all()
    except OSError:  # the same failure again, perhaps
        return f"; to go on, if a checkpoint was saved: {_command(run)}"
    if not saved:
        return "; no checkpoint was saved"
    return f"; to go on from checkpoint {saved[-1].name}: {_command(run)}"


def _command(run: Path) -> str:
    """A run that no recipe made is resumed by the program that made it."""
    if (run / "config.yaml").is_file():
        return f"headway resume {run}"
    return f"run(..., folder={str(run)!r}, resume=True)"
