"""Tensors of a learner in files: every rank writes the rows it has, any number of ranks reads the rows it wants.

    shard-00000.safetensors    rows of each tensor, one after another, as safetensors has them: nothing is unpickled
    shard-00000.json           of each tensor: which rows of which whole shape, and a CRC-32 for every block of them

Tensors are written and read block by block: what a save or a load needs besides the tensors themselves is BLOCK_BYTES,
or one row where that is larger, on each rank, however large the model is.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headway.core.types_opaque import JsonObject

BLOCK_BYTES = 16 << 20
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
}
_KINDS = {name: kind for kind, name in _NAMES.items()}


class Rows(NamedTuple):
    """Some rows of a tensor: those from `first` on, of `shape` as a whole."""

    tensor: Tensor
    first: int
    shape: tuple[int, ...]

    @classmethod
    def all_of(cls, tensor: Tensor) -> Rows:
        return cls(tensor, 0, tuple(tensor.shape))


class ShardError(ValueError):
    """Files of a state are damaged, or not of this model. One line."""


ReadBlock = Callable[[str, int, int], Tensor]
"""Of a tensor by its name, the rows from one to before another, in the machine's memory."""


def write_shard(
    folder: Path, number: int, parts: Mapping[str, Rows], read_block: ReadBlock | None = None
) -> dict[str, int]:
    """Writes a file of tensors and its index, to the disk; returns their names and sizes. With `read_block` their
    content comes from there, block by block; else it is that of the parts."""
    header: JsonObject = {}
    index: JsonObject = {}
    at = 0
    for name, part in parts.items():
        size = part.tensor.numel() * part.tensor.element_size()
        kind = _NAMES[part.tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(part.tensor.shape), "data_offsets": [at, at + size]}
        index[name] = {"first": part.first, "shape": list(part.shape), "block_rows": _block_rows(part), "crc32": []}
        at += size
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"shard-{number:05d}.safetensors"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, part in parts.items():
            rows, step = as_rows(part.tensor), index[name]["block_rows"]
            for low in range(0, len(rows), step) if rows.numel() else ():
                high = min(low + step, len(rows))
                block = rows[low:high] if read_block is None else read_block(name, low, high)
                data = block.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data
                index[name]["crc32"].append(zlib.crc32(data))
                file.write(data)
        file.flush()
        os.fsync(file.fileno())
    about = folder / f"shard-{number:05d}.json"
    about.write_text(json.dumps({"start": 8 + len(text), "tensors": index, "places": header}))
    return {path.name: path.stat().st_size, about.name: about.stat().st_size}


def as_rows(tensor: Tensor) -> Tensor:
    """The same memory without its gradient; a single number is a row."""
    return tensor.detach() if tensor.dim() else tensor.detach().reshape(1)


def _block_rows(part: Rows) -> int:
    row = math.prod(part.tensor.shape[1:]) * part.tensor.element_size()
    return max(1, BLOCK_BYTES // max(1, row))


class _Piece(NamedTuple):
    path: Path
    start: int  # in the file
    first: int
    num_rows: int
    block_rows: int
    sums: list[int]
    kind: torch.dtype


def _check(about: JsonObject, place: JsonObject) -> None:
    """Numbers that no save has written would be read as no rows at all."""
    rows = (place["shape"] or [1])[0]
    total = (about["shape"] or [1])[0]
    if about["block_rows"] < 1 or not 0 <= about["first"] <= about["first"] + rows <= total:
        raise ValueError(f"rows {about['first']} to {about['first'] + rows} of {total}, {about['block_rows']} a block")
    if place["data_offsets"][0] < 0:
        raise ValueError(f"data that begin at {place['data_offsets'][0]}")


class SavedShards:
    """Reads rows out of the files that some ranks have written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: dict[str, list[_Piece]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for about in sorted(folder.glob("shard-*.json")):
            try:
                found = json.loads(about.read_text())
                if found["start"] < 0:
                    raise ValueError(f"data that begin at {found['start']}")
                self._note(about.with_suffix(".safetensors"), found)
            except (ValueError, KeyError, TypeError) as error:
                raise ShardError(f"{about} cannot be read: {type(error).__name__}: {error}") from None

    def _note(self, path: Path, found: JsonObject) -> None:
        for name, about in found["tensors"].items():
            place = found["places"][name]
            _check(about, place)
            piece = _Piece(
                path,
                found["start"] + place["data_offsets"][0],
                about["first"],
                place["shape"][0] if place["shape"] else 1,
                about["block_rows"],
                about["crc32"],
                _KINDS[place["dtype"]],
            )
            self.shapes[name] = tuple(about["shape"])
            self._pieces.setdefault(name, []).append(piece)

    def read(self, name: str, first: int = 0, count: int | None = None) -> Tensor:
        """Returns rows of a tensor, all from `first` on where no number is given."""
        if name not in self._pieces:
            raise ShardError(f"{self._folder} has no {name}: it was written for another model or other settings")
        shape = self.shapes[name]
        total = shape[0] if shape else 1
        count = total - first if count is None else count
        pieces = self._pieces[name]
        into = torch.empty((count, *shape[1:]), dtype=pieces[0].kind)
        have = torch.zeros(count, dtype=torch.bool)
        for piece in pieces:
            begin, end = max(first, piece.first), min(first + count, piece.first + piece.num_rows)
            if begin < end:
                self._read_piece(name, piece, begin, end, into[begin - first : end - first])
                have[begin - first : end - first] = True
        if not bool(have.all()):
            raise ShardError(f"{self._folder} lacks {int((~have).sum())} of the {total} rows of {name}")
        return into if shape else into.reshape(())

    def _read_piece(self, name: str, piece: _Piece, begin: int, end: int, into: Tensor) -> None:
        """Reads the blocks that rows `begin` to `end` lie in, and keeps those rows."""
        row = math.prod(into.shape[1:]) * into.element_size()
        with piece.path.open("rb") as file:
            step = piece.block_rows
            for block in range((begin - piece.first) // step, -(-(end - piece.first) // step)):
                low = piece.first + block * step
                rows = min(step, piece.first + piece.num_rows - low)
                data = torch.empty(rows * row, dtype=torch.uint8)
                file.seek(piece.start + block * step * row)
                found = file.readinto(data.numpy().data)
                if found != rows * row or zlib.crc32(data.numpy().data) != piece.sums[block]:
                    raise ShardError(f"{piece.path} is damaged in {name}, rows {low} to {low + rows - 1}")
                keep = slice(max(begin, low) - low, min(end, low + rows) - low)
                some = data.view(piece.kind).view(rows, *into.shape[1:])[keep]
                into[max(begin, low) - begin : max(begin, low) - begin + len(some)] = some
