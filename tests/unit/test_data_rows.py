"""Data in parquet files and Hugging Face datasets: the same rules as JSON lines, and one line where they are broken."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.llm.tasks.file_tasks_data_rows import files_at, read_rows
from headway.llm.tasks.tasks import Task, load_task

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
needs_datasets = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")


def verl_row(number: int) -> dict[str, Any]:
    """A row as verl's preprocessing writes it."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
        "extra_info": {"split": "train", "index": number},
    }


@pytest.fixture
def reward(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert data_source == 'openai/gsm8k' and extra_info['split'] == 'train'\n"
        "    return float(solution_str == ground_truth)\n"
    )
    return f"{tmp_path}/mine.py:compute_score"


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def all_of(task: Task) -> list[tuple[Any, ...]]:
    prompts = sorted((task.prompt(k) for k in range(len(task))), key=lambda prompt: prompt.index)
    return [(p.question, p.truth, p.data_source, p.info, p.is_chat) for p in prompts]


@needs_pyarrow
def test_parquet_as_verl_writes_it_is_read_as_the_same_rows_of_json(tmp_path: Path, reward: str) -> None:
    rows = [verl_row(number) for number in range(5)]
    packed = write_parquet(tmp_path / "train.parquet", rows)
    lines = tmp_path / "train.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task, same = (
        load_task(f"{kind}:{file}", reward=reward, held_out_fraction=0)
        for kind, file in (("parquet", packed), ("jsonl", lines))
    )
    assert all_of(task) == all_of(same)
    assert all_of(task)[0][:3] == ("What is 0 + 1?", "1", "openai/gsm8k")
    assert task.reward(task.prompt(0), task.prompt(0).truth) == 1.0
    assert task.prompt(0).uid.startswith("train/")


@needs_pyarrow
def test_a_folder_and_several_files_are_read_in_order(tmp_path: Path, reward: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in (1, 0):
        write_parquet(folder / f"train-{part}.parquet", [verl_row(10 * part + k) for k in range(2)])
    more = write_parquet(tmp_path / "more.parquet", [verl_row(90)])
    task = load_task(f"parquet:{folder}", reward=reward, more_files=[str(more)], held_out_fraction=0)
    assert [row[1] for row in all_of(task)] == ["1", "2", "11", "12", "91"]
    with pytest.raises(ValueError, match=r"option 'more_files' of task 'parquet': 'str' .* Sequence value, received"):
        load_task(f"parquet:{folder}", reward=reward, more_files=str(more))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no parquet files"):
        files_at(tmp_path / "empty")


@needs_pyarrow
def test_rules_are_those_of_json_lines_and_name_the_row(tmp_path: Path, reward: str) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a", "truth": "b", "images": None}]
    rows += [{"prompt": "c", "truth": "d", "images": ["x.png"]}]
    file = write_parquet(tmp_path / "x.parquet", rows)
    with pytest.raises(ValueError, match=r"x.parquet, row 2: 'images' holds what is not text \(a list of 1\)"):
        load_task(f"parquet:{file}", reward=reward)
    file = write_parquet(tmp_path / "y.parquet", [{"prompt": "a", "trut": "b"}])
    with pytest.raises(ValueError, match=r"y.parquet, row 1: unknown field 'truth'; did you mean 'trut'\?"):
        load_task(f"parquet:{file}", reward=reward)
    file = write_parquet(tmp_path / "z.parquet", [{"prompt": [{"role": "user"}], "truth": "b"}])
    with pytest.raises(ValueError, match=r"z.parquet, row 1: 'prompt' must be a text or a list of messages"):
        load_task(f"parquet:{file}", reward=reward)
    rows = [{"prompt": "a", "truth": "b", "uid": "u"}, {"prompt": "a", "truth": "b", "uid": "u"}]
    with pytest.raises(ValueError, match=r"row 2: uid 'u' is already that of line 1"):
        load_task(f"parquet:{write_parquet(tmp_path / 'u.parquet', rows)}", reward=reward)
    file.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"z.parquet cannot be read as parquet: ") as caught:
        list(read_rows(file))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="holds no samples"):
        list(read_rows(write_parquet(tmp_path / "none.parquet", [])))


@needs_pyarrow
def test_gsm8k_is_read_from_parquet_too(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [verl_row(number) for number in range(3)])
    write_parquet(tmp_path / "test.parquet", [{"question": "3 + 4?", "answer": "It is\n#### 7"}])
    task = load_task(f"gsm8k:{tmp_path}", scoring="flexible")
    assert (task.held_out[0].truth, task.reward(task.held_out[0], "so 7")) == ("7", 1.0)
    assert sorted(task.prompt(k).truth for k in range(3)) == ["1", "2", "3"]


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1....PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headway.llm.tasks.pyarrow_rows", raising=False)
    with pytest.raises(
        ValueError, match=r"x.parquet is a parquet file, which needs pyarrow: pip install 'headway\[data"
    ):
        load_task(f"parquet:{tmp_path}/x.parquet", reward=reward)


def test_datasets_without_the_package_says_what_to_install(reward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "headway.llm.tasks.datasets_rows", raising=False)
    with pytest.raises(ValueError, match=r"^task datasets needs the package datasets: pip install 'headway\[data\]'$"):
        load_task("datasets:somewhere", reward=reward)


@needs_datasets
@pytest.mark.filterwarnings("ignore")  # the library's own
def test_a_dataset_that_was_saved_is_read_by_its_splits(tmp_path: Path, reward: str) -> None:
    import datasets

    train = datasets.Dataset.from_list([verl_row(number) for number in range(4)])
    test = datasets.Dataset.from_list([verl_row(90)])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "both")
    train.save_to_disk(tmp_path / "one")
    task = load_task(f"datasets:{tmp_path}/both", reward=reward, held_out_split="test")
    assert [row[1] for row in all_of(task)] == ["1", "2", "3", "4"]
    assert [prompt.truth for prompt in task.held_out] == ["91"]
    assert task.held_out[0].uid == "both/test/1"
    one = load_task(f"datasets:{tmp_path}/one", reward=reward, held_out_fraction=0)
    assert all_of(one) == all_of(task)
    with pytest.raises(ValueError, match=r"unknown split of .*both 'trian'; did you mean 'train'\?"):
        load_task(f"datasets:{tmp_path}/both", reward=reward, split="trian")
    with pytest.raises(ValueError, match="keeps no configs; received config='main'"):
        load_task(f"datasets:{tmp_path}/one", reward=reward, config="main")


@needs_datasets
@pytest.mark.filterwarnings("ignore")
def test_a_dataset_that_was_saved_empty_holds_no_samples(tmp_path: Path, reward: str) -> None:
    import datasets

    nothing = datasets.Dataset.from_dict({"prompt": [], "reward_model": []})
    nothing.save_to_disk(tmp_path / "one")
    train = datasets.Dataset.from_list([verl_row(number) for number in range(4)])
    datasets.DatasetDict({"train": train, "test": nothing}).save_to_disk(tmp_path / "half")
    for place, split in (("one", "train"), ("half", "test")):
        with pytest.raises(ValueError, match=rf"^dataset .*{place}, split '{split}', holds no samples$"):
            load_task(f"datasets:{tmp_path}/{place}", reward=reward, split=split)
    assert len(all_of(load_task(f"datasets:{tmp_path}/half", reward=reward, held_out_fraction=0))) == 4
    (tmp_path / "one" / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"^dataset '.*one', split 'train', cannot be loaded: "):
        load_task(f"datasets:{tmp_path}/one", reward=reward)


@needs_datasets
@pytest.mark.filterwarnings("ignore")
def test_a_dataset_that_is_not_there_is_one_line(tmp_path: Path, reward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=r"^dataset 'nobody/nothing', config 'main', split 'train', cannot be"
    ) as caught:
        load_task("datasets:nobody/nothing", reward=reward, config="main")
    assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"^dataset '.*empty', split 'train', cannot be loaded: "):
        load_task(f"datasets:{tmp_path}/empty", reward=reward)


@needs_datasets
@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_files_is_loaded_as_the_library_does(
    tmp_path: Path, reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.jsonl").write_text("".join(json.dumps(verl_row(k)) + "\n" for k in range(3)))
    task = load_task(f"datasets:{tmp_path}/mine", reward=reward, held_out_fraction=0)
    assert [row[1] for row in all_of(task)] == ["1", "2", "3"]
