"""Checkpoints: whole or not at all, the last few of them, and one clear line for every kind of damage."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.coordinator.checkpoint import FORMAT, CheckpointError, CheckpointStore, RunState
from headway.core.types import Rollout, Score, Span


def state(version: int = 3, **changes: Any) -> RunState:
    whole = RunState(
        version=version,
        updates=2 * version,
        updates_in_version=1,
        wall_s=12.5,
        ledger={"next_index": 9, "live": []},
        lead={"current": 2},
        learner={"weights": [1.0, 2.0], "momentum": None},
        rollouts={7: Rollout({"reward": 1.0}, steps=4, span=Span(1, 2), ticket=7)},
        snapshots={version: [1.0, 2.0]},
        collectors={0: {"episode": 3}},
        evaluations_due=(2,),
        scores=(Score(1, 0.5, {"length": 9.0}), Score(2, None, error="late")),
        evaluations_skipped=1,
        events_position=4096,
        events_s=0.0,
        settings={"seed": 0},
    )
    return dataclasses.replace(whole, **changes)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def names(store: CheckpointStore) -> list[str]:
    return [path.name for path in store.all()]


def refusal(store: CheckpointStore, path: Path | None = None) -> str:
    with pytest.raises(CheckpointError) as refused:
        store.load(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# -- round trip -------------------------------------------------------------------------------------


def test_what_is_saved_is_what_is_loaded(store: CheckpointStore) -> None:
    store.save(state())
    assert store.load() == state()


def test_arrays_come_back_bit_for_bit(store: CheckpointStore) -> None:
    weights = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    weights[0, 0] = np.nan
    store.save(state(learner=weights))
    loaded = store.load().learner
    assert (loaded.dtype, loaded.tobytes()) == (weights.dtype, weights.tobytes())


def test_the_newest_checkpoint_is_loaded_unless_another_is_named(store: CheckpointStore) -> None:
    first = store.save(state(1))
    store.save(state(2))
    assert store.load().version == 2
    assert store.load(first).version == 1


def test_a_checkpoint_is_named_after_its_turn_and_its_version(store: CheckpointStore) -> None:
    assert [store.save(state(version)).name for version in (5, 9)] == ["000000-v5", "000001-v9"]


def test_the_manifest_says_what_is_in_it(store: CheckpointStore) -> None:
    path = store.save(state(4))
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["updates"]) == (FORMAT, 4, 8)
    assert manifest["bytes"] == (path / "state.pkl").stat().st_size


def test_the_turn_counts_on_after_the_oldest_have_gone(store: CheckpointStore) -> None:
    for version in range(5):
        store.save(state(version))
    again = CheckpointStore(store.folder)  # a new session
    assert again.save(state(5)).name == "000005-v5"


def test_a_version_that_is_saved_again_replaces_what_was_saved_of_it(store: CheckpointStore) -> None:
    store.save(state(3))
    store.save(state(3, wall_s=20.0))
    assert names(store) == ["000001-v3"]
    assert store.load().wall_s == 20.0
    store.save(state(3, updates=7))  # in the middle of the next version
    assert names(store) == ["000001-v3", "000002-v3"]


# -- how many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_last_few_are_kept(tmp_path: Path, keep: int) -> None:
    store = CheckpointStore(tmp_path, keep=keep)
    for version in range(4):
        store.save(state(version))
    assert [store.load(path).version for path in store.all()] == list(range(4))[-keep:]


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be >= 1, received 0"):
        CheckpointStore(tmp_path, keep=0)


# -- whole or not at all ----------------------------------------------------------------------------


def test_a_checkpoint_that_was_being_written_does_not_exist(store: CheckpointStore) -> None:
    store.save(state(1))
    half = store.folder / ".writing-000001-v2"
    half.mkdir()
    (half / "state.pkl").write_bytes(b"half")
    assert names(store) == ["000000-v1"]
    assert store.load().version == 1


def test_a_half_written_one_does_not_hinder_the_next(store: CheckpointStore) -> None:
    half = store.folder / ".writing-000000-v2"
    half.mkdir(parents=True)
    (half / "left.over").write_bytes(b"from a crash")
    path = store.save(state(2))
    assert store.load() == state(2)
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "state.pkl"]
    assert not half.exists()


def test_a_state_that_cannot_be_pickled_leaves_the_earlier_ones(store: CheckpointStore) -> None:
    store.save(state(1))
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        store.save(state(2, learner=lambda: None))
    assert names(store) == ["000000-v1"]
    store.save(state(3))
    assert store.load().version == 3


# -- damage -----------------------------------------------------------------------------------------


def test_without_a_checkpoint_the_folder_is_named(store: CheckpointStore) -> None:
    assert refusal(store) == f"no checkpoint in {store.folder}: nothing was saved yet"
    store.folder.mkdir()
    assert refusal(store).startswith(f"no checkpoint in {store.folder}: ")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, empty])
def test_a_damaged_state_is_refused_before_it_is_unpickled(store: CheckpointStore, damage: Any) -> None:
    older = store.save(state(1))
    newest = store.save(state(2))
    damage(newest / "state.pkl")
    size = (newest / "state.pkl").stat().st_size
    assert refusal(store) == (
        f"checkpoint {newest} is damaged: state.pkl has {size} bytes that do not match its SHA-256; "
        f"others there: {older.name}; to go on from there: resume=True, checkpoint='{older.name}'"
    )
    assert store.load(older).version == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\xfa", b"[1, 2]", b"null"], ids=["empty", "cut", "binary", "list", "null"]
)
def test_a_damaged_manifest_is_refused(store: CheckpointStore, content: bytes) -> None:
    older = store.save(state(1))
    newest = store.save(state(2))
    (newest / "manifest.json").write_bytes(content)
    line = refusal(store)
    assert line.startswith(f"checkpoint {newest} cannot be read: ")
    assert f"; others there: {older.name}; to go on from there: " in line


@pytest.mark.parametrize("file", ["state.pkl", "manifest.json"])
def test_a_missing_file_is_named(store: CheckpointStore, file: str) -> None:
    path = store.save(state(1))
    (path / file).unlink()
    line = refusal(store)
    assert line.startswith(f"checkpoint {path} cannot be read: ")
    assert file in line
    assert "others there" not in line  # there are none


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(store: CheckpointStore) -> None:
    store.save(state(1))
    line = refusal(store, store.folder / "000009-v9")
    assert line.startswith(f"checkpoint {store.folder / '000009-v9'} cannot be read: ")
    assert "; others there: 000000-v1; to go on from there: " in line


def test_a_damaged_checkpoint_of_a_recipe_names_the_command_that_goes_on(store: CheckpointStore) -> None:
    (store.folder.parent / "config.yaml").write_text("recipe: functions")
    older, newest = store.save(state(1)), store.save(state(2))
    cut_short(newest / "state.pkl")
    command = f"headway resume {store.folder.parent} --checkpoint {older.name}"
    assert refusal(store).endswith(f"; others there: {older.name}; to go on from there: {command}")


def test_what_no_longer_unpickles_is_refused_in_one_line(store: CheckpointStore) -> None:
    older, newest = store.save(state(1)), store.save(state(2))
    content = b"cnowhere_to_be_found\nThing\n."  # a class of a module that is gone
    (newest / "state.pkl").write_bytes(content)
    manifest = json.loads((newest / "manifest.json").read_text()) | {"sha256": hashlib.sha256(content).hexdigest()}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    line = refusal(store)
    assert line.startswith(f"checkpoint {newest} cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_b")
    assert f"others there: {older.name}" in line


# -- one of several ---------------------------------------------------------------------------------


def test_a_checkpoint_is_found_by_its_name_or_its_version(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=9)
    first, again, newest = (store.save(state(version, updates=n)) for n, version in ((6, 3), (7, 3), (26, 13)))
    assert [store.find(which) for which in (first.name, 3, 13, "last")] == [first, again, newest, newest]


@pytest.mark.parametrize("which", ["000000-v4", "v3", 4, True, "best", ""])
def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path, which: Any) -> None:
    store = CheckpointStore(tmp_path)
    store.save(state(3))
    with pytest.raises(CheckpointError) as refused:
        store.find(which)
    assert str(refused.value).startswith(f"unknown checkpoint '{which}';")
    assert str(refused.value).endswith("allowed: 000000-v3, last")


def test_later_checkpoints_are_set_aside_and_come_again_under_their_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=9)
    paths = [store.save(state(version)) for version in range(4)]
    aside = store.set_aside_after(paths[1])
    assert [path.name for path in aside] == ["discarded-000003-v3", "discarded-000002-v2"]
    assert names(store) == ["000000-v0", "000001-v1"]
    assert store.load().version == 1
    store.save(state(2))
    assert store.set_aside_after(paths[1]) == [tmp_path / "discarded-000002-v2"]  # what was there before is replaced


@pytest.mark.parametrize("other", [FORMAT + 1, 0, None])
def test_another_format_is_refused_by_its_number(store: CheckpointStore, other: int | None) -> None:
    path = store.save(state(1))
    manifest = json.loads((path / "manifest.json").read_text()) | {"format": other}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert refusal(store) == f"checkpoint {path} has format {other!r}, this version reads {FORMAT}"
