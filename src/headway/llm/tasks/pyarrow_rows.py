"""Reads parquet files with pyarrow, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow
from pyarrow import parquet

from headway.core.text_one_line import shortened
from headway.llm.tasks.file_tasks_data_rows import Row

ROWS_AT_ONCE = 1024


def read_parquet(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields the rows with their numbers, from 1 on. What is nested in a column comes as dictionaries and lists."""
    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            for part in file.iter_batches(batch_size=ROWS_AT_ONCE):
                for row in part.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as parquet: {shortened(error)}") from None
