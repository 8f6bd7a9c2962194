"""Reads Hugging Face datasets: a folder that `save_to_disk` has written, or whatever `load_dataset` finds.

folder with state.json           one dataset, as save_to_disk writes it
folder with dataset_dict.json    one for each split
any other folder, an id          load_dataset(PLACE, config, split=...): from the hub, or from its cache
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

from headway.core.text_naming import unknown
from headway.core.text_one_line import shortened
from headway.llm.tasks.file_tasks_data_rows import Row


def read_dataset(place: str, split: str, config: str | None) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a split with their numbers, from 1 on."""
    is_empty = True
    for number, row in enumerate(_load(place, split, config), 1):
        is_empty = False
        yield number, row
    if is_empty:
        raise ValueError(f"dataset {place}, split {split!r}, holds no samples")


def _load(place: str, split: str, config: str | None) -> Any:
    folder = Path(place).expanduser()
    try:
        with warnings.catch_warnings():  # what the library says of its own dependencies
            warnings.simplefilter("ignore")
            splits = _splits(folder)
            part = folder if splits is None else folder / split
            if splits is None and not (folder / "state.json").is_file():
                return datasets.load_dataset(str(folder) if folder.is_dir() else place, config, split=split)
            is_there = splits is None or split in splits
            found = datasets.load_from_disk(part) if is_there and not _is_empty(part) else []
    except (OSError, ValueError, RuntimeError, LookupError) as error:  # its own errors are kinds of these
        what = f"dataset {place!r}" + (f", config {config!r}" if config else "")
        raise ValueError(f"{what}, split {split!r}, cannot be loaded: {shortened(error, 200)}") from None
    if config:
        raise ValueError(f"{place} was written by save_to_disk, which keeps no configs; received config={config!r}")
    if not is_there:
        raise ValueError(unknown(f"split of {place}", split, splits or ()))
    return found


def _splits(folder: Path) -> list[str] | None:
    """Those that were saved together, or none."""
    several = folder / "dataset_dict.json"
    return list(json.loads(several.read_text())["splits"]) if several.is_file() else None


def _is_empty(folder: Path) -> bool:
    """Nothing was saved, which the library does not load."""
    return not json.loads((folder / "state.json").read_text())["_data_files"]
