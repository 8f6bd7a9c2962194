"""Files of shards: any rows can be read back from any cut, damage is one line, and a checkpoint has them or is none."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from headway.coordinator.checkpoint import CheckpointError, CheckpointStore  # noqa: E402
from headway.coordinator.state_files_saved_beside import SavedBeside  # noqa: E402
from headway.llm.train import shard_files  # noqa: E402
from headway.llm.train.shard_files import Rows, SavedShards, ShardError, write_shard  # noqa: E402

WEIGHT = torch.arange(11 * 7, dtype=torch.float32).view(11, 7)
SCALE = torch.arange(11).to(torch.bfloat16)


def write(folder: Path, *ends: int) -> dict[str, int]:
    files: dict[str, int] = {}
    for number, (first, end) in enumerate(zip((0, *ends), (*ends, 11), strict=True)):
        parts = {"a/weights/w": Rows(WEIGHT[first:end], first, (11, 7)), "a/s": Rows(SCALE[first:end], first, (11,))}
        files |= write_shard(folder, number, parts)
    return files


@pytest.mark.parametrize("ends", [(), (5,), (4, 8), (1, 1, 11)])
def test_rows_come_back_from_any_cut(ends: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "BLOCK_BYTES", 60)  # two rows
    write(tmp_path, *ends)
    saved = SavedShards(tmp_path)
    assert saved.shapes == {"a/weights/w": (11, 7), "a/s": (11,)}
    for first in range(11):
        for count in range(11 - first):
            assert torch.equal(saved.read("a/weights/w", first, count), WEIGHT[first : first + count])
    assert torch.equal(saved.read("a/s"), SCALE)


def test_others_can_read_the_files_too(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    write(tmp_path, 5)
    found = load_file(tmp_path / "shard-00001.safetensors")
    assert torch.equal(found["a/weights/w"], WEIGHT[5:])
    assert torch.equal(found["a/s"], SCALE[5:])


def test_damage_and_what_is_missing_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, 5)
    path = tmp_path / "shard-00001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])
    with pytest.raises(ShardError, match=r"shard-00001.safetensors is damaged in a/weights/w, rows 5 to 10$"):
        SavedShards(tmp_path).read("a/weights/w")
    assert torch.equal(SavedShards(tmp_path).read("a/weights/w", 0, 5), WEIGHT[:5])
    path.with_suffix(".json").unlink()
    with pytest.raises(ShardError, match=r"lacks 6 of the 11 rows of a/weights/w$"):
        SavedShards(tmp_path).read("a/weights/w")
    with pytest.raises(ShardError, match="has no a/weights/v: it was written for another model"):
        SavedShards(tmp_path).read("a/weights/v")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"block_rows": ', '"block_rows": -'),
        ('"first": ', '"first": -1'),
        ('"start": ', '"start": -'),
        ('"first": 0', '"first": 1000'),
    ],
)
def test_an_index_with_numbers_that_no_save_has_written_is_one_line(tmp_path: Path, old: str, new: str) -> None:
    """Read as they are, some of them would be no rows at all, and the tensor whatever was in memory."""
    write_shard(tmp_path, 0, {"w": Rows.all_of(torch.arange(12.0).reshape(4, 3))})
    index = tmp_path / "shard-00000.json"
    assert old in index.read_text()
    index.write_text(index.read_text().replace(old, new))
    with pytest.raises(ShardError, match=r"shard-00000\.json cannot be read: ValueError: "):
        SavedShards(tmp_path).read("w")


def test_a_save_holds_no_more_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest thing that is handed to the file is a block, whatever the tensor."""
    monkeypatch.setattr(shard_files, "BLOCK_BYTES", 1 << 12)
    seen: list[int] = []
    crc32 = shard_files.zlib.crc32
    monkeypatch.setattr(shard_files.zlib, "crc32", lambda data: (seen.append(data.nbytes), crc32(data))[1])
    write_shard(tmp_path, 0, {"a": Rows.all_of(torch.zeros(1000, 100))})
    assert max(seen) <= 1 << 12
    assert sum(seen) == 400_000
    seen.clear()
    SavedShards(tmp_path).read("a", 3, 900)
    assert max(seen) <= 1 << 12


SAVES = """
import sys, time
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from test_checkpoint import state
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.state_files_saved_beside import SavedSoon
from headway.llm.train.shard_files import Rows, write_shard
from headway.llm.train.shard_files_shard_writer import ShardWriter
writers = [ShardWriter(), ShardWriter()]
store = CheckpointStore(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    folder = store.beside()
    files, notes = {}, []
    for shard, writer in enumerate(writers):
        rows = torch.full((50, 400), float(number))
        parts = {"w": Rows(rows, 50 * shard, (100, 400))}
        if sys.argv[3] == "waiting":
            files |= write_shard(Path(folder), shard, parts)
            continue
        notes.append(writer.begin(Path(folder), shard, parts))
        writer.before_change()
        rows.zero_()
    saved = SavedSoon(folder, files, number, tuple(notes))
    while (found := saved.when_written()) is None:
        time.sleep(0.001)
    store.save(state(version=number, learner=found))
    print(number, flush=True)
"""


@pytest.mark.parametrize("way", ["waiting", "beside training"])
def test_a_save_killed_at_any_moment_leaves_the_last_one_whole(way: str, tmp_path: Path) -> None:
    dice = random.Random(3)
    for run in range(3):
        folder = tmp_path / str(run)
        command = [sys.executable, "-c", SAVES, str(folder), str(Path(__file__).parent), way]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = [child.stdout.readline() for _ in range(2)]
            time.sleep(dice.uniform(0.0, 0.05))  # somewhere within a save
            child.kill()
            said += child.stdout.readlines()
        found = CheckpointStore(folder).load()
        assert found.version >= int(said[-1])
        assert isinstance(found.learner, SavedBeside)
        assert found.learner.rest == found.version
        tensor = SavedShards(Path(found.learner.folder)).read("w")
        assert torch.equal(tensor, torch.full((100, 400), float(found.version)))


def test_a_checkpoint_whose_files_are_cut_is_refused_in_one_line(tmp_path: Path) -> None:
    from test_checkpoint import state

    store = CheckpointStore(tmp_path)
    folder = Path(store.beside())
    saved = SavedBeside(str(folder), write(folder, 5), None)
    path = store.save(state(learner=saved))
    assert not folder.exists()
    assert Path(store.load().learner.folder) == path / "learner"
    part = path / "learner" / "shard-00000.safetensors"
    os.truncate(part, 100)
    with pytest.raises(CheckpointError, match=r"is damaged: .*shard-00000.safetensors has 100 bytes of \d+$"):
        store.load()
    with pytest.raises(CheckpointError, match="the learner's state was not written"):
        store.save(state(learner=saved))
