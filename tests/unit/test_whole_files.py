"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from system_limits import file_size_limit, no_descriptor_left

from headway.coordinator.state_files_whole_files import write_whole, written_beside


def test_a_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "first")
    write_whole(path, b"second")
    assert path.read_text() == "second"
    assert os.listdir(tmp_path) == ["file"]


def test_what_does_not_fit_leaves_the_file_before_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "first")
    with file_size_limit(8), pytest.raises(OSError, match="File too large") as caught:
        write_whole(path, "longer than that")
    assert caught.value.filename == str(path)
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["file"]


def test_without_a_descriptor_the_file_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "first")
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        write_whole(path, "second")
    assert path.read_text() == "first"


def test_a_folder_that_could_not_be_finished_is_removed(tmp_path: Path) -> None:
    def stop_half_way() -> None:
        with written_beside(tmp_path / "folder") as beside:
            beside.mkdir()
            (beside / "inside").write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        stop_half_way()
    assert not os.listdir(tmp_path)


def test_what_a_crash_left_beside_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / ".writing-folder"
    left.mkdir()
    (left / "old").write_text("old")
    with written_beside(tmp_path / "folder") as beside:
        beside.mkdir()
        (beside / "new").write_text("new")
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == ["new"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the operating system is asked for, in order."""
    seen: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        seen.append(("flush", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def note_replace(source: Any, target: Any) -> None:
        seen.append(("rename", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return seen


def test_the_folder_is_flushed_after_the_rename(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    write_whole(tmp_path / "file", "text")
    assert steps == [("flush", ".writing-file"), ("rename", "file"), ("flush", tmp_path.name)]


def test_all_of_a_folder_is_flushed_before_the_rename(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    with written_beside(tmp_path / "folder") as beside:
        beside.mkdir()
        (beside / "inside").write_text("text")
    inside = [("flush", "inside"), ("flush", ".writing-folder")]
    assert steps == [*inside, ("rename", "folder"), ("flush", tmp_path.name)]
