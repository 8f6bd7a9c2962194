"""A log of lines in parts: the part that is being written, and before it older ones that are closed and compressed.

    events-0-67108990.jsonl.gz   events-67108990-134217900.jsonl.gz   events.jsonl
    positions 0 to 67108990      the next                             from 134217900 on

A position counts the bytes of all parts, uncompressed. Closed parts carry theirs in their names, so the part that is
being written begins where the last of them ends. A part is compressed beside and renamed, then the plain file goes:
after a crash in between both are there and hold the same, and the plain one is read.

The oldest parts may be let go (`let_oldest_go`). Positions stay what they were; the newest closed part stays, as it
says where the one that is being written begins.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

KNOWN_BY_BYTES = 4096
"""How many bytes before a position are compared."""
PART = re.compile(r"-(\d+)-(\d+)\.jsonl(\.gz)?$")
DISCARDED = re.compile(r"\.discarded-(\d+)\.jsonl$")
KEEP_DISCARDED = 8
"""How many of the tails that resumes have set aside stay."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A closed part: its file, and where in the log it begins and ends."""

    path: Path
    begin: int
    end: int

    def open(self) -> BinaryIO:
        packed = self.path.suffix == ".gz"
        return cast(BinaryIO, gzip.open(self.path, "rb") if packed else open(self.path, "rb"))


def closed_parts(path: Path) -> list[LogPart]:
    """The closed parts of the log at `path`, in order."""
    found: dict[int, LogPart] = {}
    for other in path.parent.glob(f"{path.stem}-*.jsonl*"):
        name = PART.search(other.name)
        if name is None or other.name[: name.start()] != path.stem:
            continue
        part = LogPart(other, int(name[1]), int(name[2]))
        if part.begin not in found or other.suffix != ".gz":
            found[part.begin] = part
    return [found[begin] for begin in sorted(found)]


def all_parts(path: Path) -> list[LogPart]:
    """Those that are closed and, the last one, the file at `path`, as far as it is written now."""
    closed = closed_parts(path)
    begin = closed[-1].end if closed else 0
    return [*closed, LogPart(path, begin, begin + (path.stat().st_size if path.is_file() else 0))]


def log_begin(path: Path) -> int:
    """The position of the first byte that is there; more than 0 where parts were let go."""
    parts = closed_parts(path)
    return parts[0].begin if parts else 0


def begin_of_last_part(path: Path) -> int:
    """The position at which the part that is being written begins."""
    parts = closed_parts(path)
    return parts[-1].end if parts else 0


def log_size(path: Path) -> int:
    """The bytes of the whole log, with those that were let go; 0 where there is none."""
    return all_parts(path)[-1].end


def close_part(path: Path) -> None:
    """What is being written becomes a closed part; the file at `path` is there no more."""
    begin = begin_of_last_part(path)
    os.replace(path, path.with_name(f"{path.stem}-{begin}-{begin + path.stat().st_size}.jsonl"))


def compress(part: Path) -> None:
    """A closed part in a tenth of its bytes; one that is compressed stays as it is."""
    if part.suffix == ".gz":
        return
    beside = part.with_name(f".{part.name}.gz.writing")
    try:
        with open(part, "rb") as plain, gzip.open(beside, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
        os.replace(beside, part.with_name(f"{part.name}.gz"))
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    part.unlink()


def let_oldest_go(path: Path, limit_bytes: int) -> int:
    """Remove the oldest closed parts until those that stay have at most so many bytes on the disk; how many went."""
    parts = closed_parts(path)
    sizes = [part.path.stat().st_size for part in parts]
    gone = 0
    while gone < len(parts) - 1 and sum(sizes[gone:]) > limit_bytes:
        parts[gone].path.unlink()
        gone += 1
    return gone


def whole_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """A last line that a crash, or a run that goes on, has not finished is left out."""
    return itertools.takewhile(lambda line: line.endswith(b"\n"), file)


def lines_from(path: Path, position: int = 0) -> Iterator[bytes]:
    """The whole lines of the log from a position on. A part that is closed meanwhile is read as it was opened."""
    while True:
        with open(path, "rb") as newest:
            parts = closed_parts(path)
            begin = parts[-1].end if parts else 0
            if not path.exists() or os.stat(newest.fileno()).st_ino != path.stat().st_ino:
                continue  # it was closed between the two looks: `parts` may hold it or not
            for part in parts:
                if part.end > position:
                    with part.open() as file:
                        file.seek(max(0, position - part.begin))
                        yield from whole_lines(file)
            newest.seek(max(0, position - begin))
            yield from whole_lines(newest)
            return


def cut(path: Path, position: int) -> None:
    """End the log at a position. What lay behind it is moved to `<name>.discarded-<n>.jsonl`."""
    parts = closed_parts(path)
    begin = parts[-1].end if parts else 0
    later = [part for part in parts if part.end > position]
    if not later:
        with open(path, "r+b") as file:
            file.seek(position - begin)
            tail = file.read()
            if tail:
                _aside(path).write_bytes(tail)
                file.truncate(position - begin)
        return
    aside = _aside(path)
    opened = path.with_name(f".{path.name}.writing")
    with open(aside, "wb") as discarded, open(opened, "wb") as kept:
        for part in later:
            with part.open() as file:
                if part is later[0]:
                    kept.write(file.read(max(0, position - part.begin)))
                shutil.copyfileobj(file, discarded, 1 << 20)
        discarded.write(path.read_bytes())
    os.replace(opened, path)
    for part in later:
        part.path.unlink()


def go_on_at(path: Path, position: int | None, check: int | None) -> str:
    """Make a log end where a checkpoint was written, at `position`, with bytes before it whose CRC-32 is `check`.

    Returns what is missing, or nothing. Of a log that is too short the whole lines are kept; one that is another, or no
    log at all, is set aside.
    """
    size = log_size(path)
    if position and position <= log_begin(path):
        aside = set_aside(path)
        return f"the parts of {path.name} from before the checkpoint were let go; what came after it is in {aside.name}"
    if position is not None and size >= position and (check is None or crc_before(path, position) == check):
        if path.exists():
            cut(path, position)
        return ""
    if size == 0:
        return f"{path.name} is gone" if position else ""
    if position is None or size < position:
        first = next(lines_from(path), b"") if path.exists() else b""
        if b'"e":"run"' in first or b'"e":"gap"' in first:
            with open(path, "rb") as file:
                whole = sum(map(len, whole_lines(file)))
            cut(path, begin_of_last_part(path) + whole)
            had = "an unknown number" if position is None else str(position)
            return f"{path.name} has {size} bytes, and had {had} when the checkpoint was written"
    aside = set_aside(path)
    return f"{path.name} is not the log that the checkpoint was written beside; it is in {aside.name} now"


def crc_before(path: Path, position: int) -> int:
    """CRC-32 of the last bytes before a position, as far as they are in the part that ends with them or goes on."""
    part = next((part for part in all_parts(path) if part.begin < position <= part.end), None)
    if part is None:
        return 0
    with part.open() as file:
        begin = max(0, position - part.begin - KNOWN_BY_BYTES)
        file.seek(begin)
        return zlib.crc32(file.read(position - part.begin - begin))


def set_aside(path: Path) -> Path:
    """The whole log leaves; what follows is a new one."""
    aside = _aside(path)
    with open(aside, "wb") as discarded:
        for part in closed_parts(path):
            with part.open() as file:
                shutil.copyfileobj(file, discarded, 1 << 20)
        if path.exists():
            discarded.write(path.read_bytes())
    for part in closed_parts(path):
        part.path.unlink()
    path.unlink(missing_ok=True)
    return aside


def _aside(path: Path) -> Path:
    """Where what is cut off goes. Only the newest of those files stay."""
    others = ((DISCARDED.search(other.name), other) for other in path.parent.glob(f"{path.stem}.discarded-*.jsonl"))
    found = sorted((int(name[1]), other) for name, other in others if name is not None)
    for _, other in found[: max(0, len(found) + 1 - KEEP_DISCARDED)]:
        other.unlink()
    number = found[-1][0] + 1 if found else 0
    return path.with_suffix(f".discarded-{number}.jsonl")
