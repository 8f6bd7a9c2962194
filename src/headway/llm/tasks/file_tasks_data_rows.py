"""Rows of data from files: JSON objects, one a line, or the rows of parquet files.

    prompts.jsonl      one JSON object a line
    prompts.parquet    a row of its columns; what lies nested in them comes out as objects and lists
    a folder           its parquet files, in the order of their names

A file is parquet if it begins as parquet does, whatever it is called.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
"""What one line of a file says."""
PARQUET_BEGINS = b"PAR1"


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields the rows of one file with their numbers, from 1 on; blank lines are skipped, no rows are an error."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a file of JSON lines or a parquet file is read here")
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    is_empty = True
    for number, row in _parquet(path) if is_parquet(path) else _json_lines(path):
        is_empty = False
        yield number, row
    if is_empty:
        raise ValueError(f"{path} holds no samples")


def files_at(place: str | Path) -> list[Path]:
    """Returns a file itself, or the parquet files of a folder in the order of their names."""
    path = Path(place).expanduser()
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix == ".parquet")
    if not found:
        raise ValueError(f"{path} holds no parquet files")
    return found


def is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(PARQUET_BEGINS)) == PARQUET_BEGINS


def place_of(path: Path, number: int) -> str:
    """Says where a row stands, for people: `prompts.jsonl, line 3`."""
    return f"{path}, {'row' if path.suffix == '.parquet' else 'line'} {number}"


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        from headway.llm.tasks.pyarrow_rows import read_parquet
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ValueError(f"{path} is a parquet file, which needs pyarrow: pip install 'headway[data]'") from None
    yield from read_parquet(path)


def _json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: a JSON object is allowed, received a {type(row).__name__}")
            yield number, row
