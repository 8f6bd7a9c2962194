"""The weights that scored best are kept: whole, through resumes, and brought from afar only when they are new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.cli import main
from headway.coordinator.checkpoint import CheckpointError, CheckpointStore
from headway.coordinator.checkpoint_best_weights import BestWeights, Kept, kept_weights
from headway.coordinator.run_result import RunResult
from headway.core.protocols import PayloadLost
from headway.core.types import Score
from headway.runs.event_log import read_events
from headway.runs.launch_of_functions import run
from headway.runtimes.inline import Inline
from headway.runtimes.threads import Threads

Output = pytest.CaptureFixture[str]


def one(weights: int, ticket: Any) -> int:
    return 1


def count(weights: int, rollouts: list[int]) -> int:
    return weights + sum(rollouts)


SCORES = {2: 5.0, 4: 9.0, 6: 7.0, 8: 9.0, 10: 3.0, 12: 9.5, 14: 1.0}


def score(weights: int) -> float:
    """Best at version 4 up to 10, then at 12."""
    return SCORES[weights]


def counted(folder: Path, updates: int, **options: Any) -> RunResult:
    options = {"evaluate_every": 2, "runtime": "inline"} | options
    return run(one, count, score, weights=0, updates=updates, folder=folder, **options)


def best_in(folder: Path) -> Kept:
    return BestWeights(folder / "checkpoints").load()


# -- in a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["inline", "threads"])
@pytest.mark.parametrize("in_background", [False, True])
def test_the_best_version_is_kept_and_of_equal_ones_the_first(
    tmp_path: Path, runtime: str, in_background: bool
) -> None:
    lead = {"max_lead": 0} if in_background else {}  # so that no evaluation is skipped by a later one
    result = counted(tmp_path, 10, runtime=runtime, evaluate_in_background=in_background, **lead)
    scored = {one.version: one.value for one in result.scores}
    first = next(version for version, value in scored.items() if value == max(scored.values()))
    assert best_in(tmp_path) == Kept(first, first, scored[first])
    if not in_background:
        assert best_in(tmp_path) == Kept(4, 4, 9.0)


def test_the_log_says_which_versions_became_the_best(tmp_path: Path) -> None:
    counted(tmp_path, 14)
    events = [(event["v"], event["value"]) for event in read_events(tmp_path / "events.jsonl") if event["e"] == "best"]
    assert events == [(2, 5.0), (4, 9.0), (12, 9.5)]


def test_a_worse_score_after_a_resume_does_not_replace_the_best(tmp_path: Path) -> None:
    counted(tmp_path, 6)
    for updates, version in ((8, 4), (10, 4), (12, 12), (14, 12)):
        counted(tmp_path, updates, resume=True)
        assert best_in(tmp_path) == Kept(version, version, SCORES[version])


def test_arrays_come_back_bit_for_bit(tmp_path: Path) -> None:
    start = np.zeros((64, 3), np.float64)
    for runtime in ("threads", "processes"):
        path = tmp_path / runtime
        done = run(_normal, _step, _zero, weights=start, updates=3, evaluate_every=3, runtime=runtime, folder=path)
        assert best_in(path).weights.tobytes() == done.weights.tobytes()


def _normal(weights: np.ndarray, ticket: Any) -> np.ndarray:
    return np.random.default_rng(ticket.seed).normal(size=weights.shape)


def _step(weights: np.ndarray, rollouts: list[np.ndarray]) -> np.ndarray:
    return weights + rollouts[0]


def _zero(weights: np.ndarray) -> float:
    return 0.0


class CountsFetches(Inline):
    """Tells how often weights were brought to the coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[Any] = []

    def fetch(self, payload: Any) -> Any:
        self.fetched.append(payload)
        return super().fetch(payload)


def test_weights_are_fetched_for_a_new_best_only(tmp_path: Path) -> None:
    runtime = CountsFetches()
    counted(tmp_path, 14, runtime=runtime)
    assert [weights for weights in runtime.fetched if weights != 14] == [2, 4, 12]
    without = CountsFetches()
    counted(tmp_path / "none", 14, runtime=without, keep_best=False)
    assert set(without.fetched) == {14}
    assert not (tmp_path / "none/checkpoints/best.weights").exists()


class LosesVersionFour(Inline):
    def fetch(self, payload: Any) -> Any:
        if payload == 4:
            raise PayloadLost("driver", "fetch", "the payload was lost with the node that held it")
        return super().fetch(payload)


def test_weights_that_are_lost_before_they_are_kept_leave_the_best_before(tmp_path: Path) -> None:
    done = counted(tmp_path, 6, runtime=LosesVersionFour())
    assert [one.value for one in done.scores] == [5.0, 9.0, 7.0]
    assert best_in(tmp_path) == Kept(6, 6, 7.0)


def test_a_run_without_a_folder_keeps_nothing() -> None:
    runtime = CountsFetches()
    run(one, count, score, weights=0, updates=4, evaluate_every=2, runtime=runtime)
    assert runtime.fetched == [4]


def test_an_evaluation_that_fails_is_never_the_best(tmp_path: Path) -> None:
    def sometimes(weights: int) -> float:
        if weights != 4:
            raise RuntimeError("the arena is closed")
        return -3.0

    run(one, count, sometimes, weights=0, updates=8, evaluate_every=2, runtime="inline", folder=tmp_path)
    assert best_in(tmp_path) == Kept(4, 4, -3.0)


class EndsWhileSaving(Threads):
    """Says when the best is being written, and writes it late."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    async def offload(self, work: Any) -> Any:
        self.log.append("begin")
        done = await super().offload(work)
        self.log.append("end")
        return done


def test_a_run_does_not_end_before_the_best_is_written(tmp_path: Path) -> None:
    runtime = EndsWhileSaving()
    done = counted(tmp_path, 4, runtime=runtime, evaluate_in_background=True)
    assert [one.value for one in done.scores][-1] == 9.0
    assert runtime.log.count("begin") == runtime.log.count("end") >= 2
    assert best_in(tmp_path).score == 9.0


# -- the file ---------------------------------------------------------------------------------------


def test_a_crash_while_writing_leaves_the_best_before(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    best.save(Score(1, 0.5), [1.0])
    with pytest.raises(TypeError, match="cannot pickle"):
        best.save(Score(2, 0.9), (value for value in ()))  # fails half way, as a full disk would
    (tmp_path / ".writing-best.weights").write_bytes(b"half")
    again = BestWeights(tmp_path)
    assert (again.version, again.score, again.load()) == (1, 0.5, Kept(1, [1.0], 0.5))
    again.save(Score(3, 0.7), [3.0])
    assert BestWeights(tmp_path).load() == Kept(3, [3.0], 0.7)
    assert [path.name for path in tmp_path.iterdir()] == ["best.weights"]


def test_the_first_line_says_what_is_in_the_file(tmp_path: Path) -> None:
    counted(tmp_path, 4)
    path = tmp_path / "checkpoints/best.weights"
    header, _, content = path.read_bytes().partition(b"\n")
    about = json.loads(header)
    assert (about["version"], about["score"], about["bytes"]) == (4, 9.0, len(content))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "cannot be read: "),
        (b"{", "cannot be read: "),
        (b"\xff\xfe\n", "cannot be read: "),
        (b"[1]\n", "has format [1], this version reads 1"),
        (b'{"format": 9}\n', "has format 9, this version reads 1"),
    ],
)
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, content: bytes, line: str) -> None:
    (tmp_path / "best.weights").write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        BestWeights(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'best.weights'} {line}")
    assert "\n" not in str(refused.value)


def test_damaged_weights_are_refused_before_they_are_unpickled(tmp_path: Path) -> None:
    counted(tmp_path, 4)
    path = tmp_path / "checkpoints/best.weights"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is damaged: its 4 bytes of weights do not match their SHA-256"):
        best_in(tmp_path)


# -- which weights ----------------------------------------------------------------------------------


def test_weights_are_called_best_last_or_by_their_version(tmp_path: Path) -> None:
    counted(tmp_path, 10, save_every=3)
    checkpoints = tmp_path / "checkpoints"
    assert [path.name for path in CheckpointStore(checkpoints).all()] == ["000002-v9", "000003-v10"]
    assert kept_weights(checkpoints) == kept_weights(checkpoints, "last") == Kept(10, 10, 3.0)
    assert kept_weights(checkpoints, "best") == Kept(4, 4, 9.0)
    assert kept_weights(checkpoints, 9) == Kept(9, 9)
    assert kept_weights(checkpoints, 4) == Kept(4, 4, 9.0)
    for which, line in {
        5: f"no checkpoint of version 5 in {checkpoints}; there: 9, 10, 4 (best)",
        "first": "a checkpoint is called best, last or by its version, received 'first'",
        True: "a checkpoint is called best, last or by its version, received True",
    }.items():
        with pytest.raises(CheckpointError) as refused:
            kept_weights(checkpoints, which)
        assert str(refused.value) == line


def test_where_nothing_is_kept_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^no best weights in {tmp_path}: no evaluation ended, or keep_best"):
        kept_weights(tmp_path, "best")
    with pytest.raises(CheckpointError, match=f"^no checkpoint of version 3 in {tmp_path}; there: none$"):
        kept_weights(tmp_path, 3)


# -- watching ---------------------------------------------------------------------------------------


def test_watch_plays_the_best_the_last_or_a_version(tmp_path: Path, capsys: Output) -> None:
    words = "--updates 4 --evaluate_every 1 --evaluate_in_background false --eval_episodes 2 --num_envs 2 --width 2"
    words += " --segment_steps 2 --save_every 1 --keep_checkpoints 4 --quiet"
    assert main(["run", "colorlines", *words.split(), "--runs", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    best = best_in(folder)
    titles = []
    for which in (None, "last", "best", str(best.version), "2"):
        chosen = [] if which is None else ["--checkpoint", which]
        assert main(["watch", str(folder), "--quiet", "--max_moves", "3", *chosen]) == 0
        page = (folder / "watch.html").read_text()
        titles.append(page[page.index("version ") :].partition(",")[0])
    assert titles == ["version 4", "version 4", f"version {best.version}", f"version {best.version}", "version 2"]
    capsys.readouterr()
    assert main(["watch", str(folder), "--checkpoint", "77", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith(
        f"headway: no checkpoint of version 77 in {folder / 'checkpoints'}; there:"
    )
    assert main(["watch", str(folder), "--checkpoint", "--quiet"]) == 2
    assert main(["watch", str(folder), "--chekpoint", "best"]) == 2
    assert "unknown option 'chekpoint'" in capsys.readouterr().err
