"""A state is written as it was when the save began, whatever changes meanwhile, and a bounded part of it is copied.

The disk is a named pipe: it takes nothing until somebody reads, and at the end it cannot be flushed, which is an error.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

torch = pytest.importorskip("torch")

from headway.coordinator.state_files_saved_beside import SavedSoon  # noqa: E402
from headway.llm.train import shard_files_shard_writer as shard_writer  # noqa: E402
from headway.llm.train.shard_files import Rows, SavedShards  # noqa: E402
from headway.llm.train.shard_files_shard_writer import ShardWriter  # noqa: E402

KIB = 1 << 10
NUM_TENSORS = 10


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.llm.train.shard_files.BLOCK_BYTES", 16 * KIB)


def tensors() -> dict[str, Any]:
    """Ten of 256 KiB, and a single number."""
    made = {f"w{number}": torch.full((64, KIB), float(number)) for number in range(NUM_TENSORS)}
    return {**made, "count": torch.tensor(7.0)}


def parts(named: dict[str, Any]) -> dict[str, Rows]:
    return {name: Rows.all_of(tensor) for name, tensor in named.items()}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "shard-00000.safetensors"
    os.mkfifo(path)
    return path


def content(written: bytes) -> dict[str, list[float]]:
    size = int.from_bytes(written[:8], "little")
    found = {}
    for name, about in json.loads(written[8 : 8 + size]).items():
        begin, end = about["data_offsets"]
        data = bytearray(written[8 + size + begin : 8 + size + end])
        found[name] = torch.frombuffer(data, dtype=torch.float32).unique().tolist()
    return found


EXPECTED = {**{f"w{number}": [float(number)] for number in range(NUM_TENSORS)}, "count": [7.0]}


def change(writer: ShardWriter, named: dict[str, Any]) -> None:
    writer.before_change()
    for tensor in named.values():
        tensor.add_(100.0)


def test_what_changes_during_a_save_is_written_as_it_was(pipe: Path) -> None:
    writer, named = ShardWriter(), tensors()
    note = writer.begin(pipe.parent, 0, parts(named))
    change(writer, named)  # returns although nothing can have been written yet
    change(writer, named)
    assert content(pipe.read_bytes()) == EXPECTED
    writer.wait()
    assert NUM_TENSORS * 256 * KIB - 16 * KIB <= writer.peak_bytes <= NUM_TENSORS * 256 * KIB + 4
    with pytest.raises(OSError, match="Invalid argument") as refused:
        SavedSoon(str(pipe.parent), {}, None, (note,)).when_written()
    assert refused.value.errno == errno.EINVAL
    assert not pipe.exists()


def test_a_step_waits_until_what_is_left_can_be_copied(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_writer, "AHEAD_BYTES", 600 * KIB)
    writer, named = ShardWriter(), tensors()
    writer.begin(pipe.parent, 0, parts(named))
    step = threading.Thread(target=change, args=(writer, named))
    step.start()
    with pipe.open("rb") as reader:
        written = reader.read(256 * KIB)
        assert step.is_alive()  # far more than it may copy is still to be written
        written += reader.read((NUM_TENSORS * 256 - 600 - 256 + 8) * KIB)  # with the header: what it may copy is left
        step.join(60)
        assert not step.is_alive()
        written += reader.read()
    assert content(written) == EXPECTED
    assert 0 < writer.peak_bytes <= 600 * KIB


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    writer, named = ShardWriter(), tensors()
    places = [tmp_path / name for name in ("one", "two")]
    notes = []
    for place in places:
        notes.append(writer.begin(place, 3, parts(named)))
        change(writer, named)
    assert SavedSoon(str(places[0]), {}, None, (notes[0],)).when_written() is not None
    later = SavedSoon(str(places[1]), {"other": 3}, "rest", (notes[1],))
    assert later.missing().endswith("two is still being written")
    wait_until(lambda: not later.unwritten())
    saved = later.when_written()
    assert saved is not None
    assert set(saved.files) == {"other", "shard-00003.safetensors", "shard-00003.json"}
    assert saved.rest == "rest"
    for place, more in zip(places, (0.0, 100.0), strict=True):
        shards = SavedShards(place)
        assert {name: shards.read(name).unique().tolist() for name in shards.shapes} == {
            name: [value + more] for name, (value,) in EXPECTED.items()
        }


def test_without_a_save_nothing_is_copied() -> None:
    writer = ShardWriter()
    writer.before_change()
    writer.wait()
    assert writer.peak_bytes == 0


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer, named = ShardWriter(), tensors()
    with pytest.raises(NotADirectoryError):
        writer.begin(tmp_path / "file" / "learner", 0, parts(named))
    change(writer, named)
    writer.begin(tmp_path / "learner", 0, parts(named))
    writer.wait()
    assert SavedShards(tmp_path / "learner").read("w1").unique().tolist() == [101.0]
