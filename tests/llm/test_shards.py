"""A language model cut into shards: what several ranks learn together is what one learns, and each holds a part.

The ranks are processes on CPUs that sum through gloo. With a GPU for each of them torch sums through NCCL instead, in
bfloat16: that needs two GPUs and is tested nowhere here.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from sharded_learners import CASES, batch, compared, in_bfloat16, mortal, offering, written  # noqa: E402

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.train.shard_files import SavedShards  # noqa: E402
from headway.llm.weights.connection_weight_wire import LinkBroken  # noqa: E402
from headway.llm.weights.receiver_weight_link import Intake, ShardedWeights  # noqa: E402
from headway.ranks.rank import ALONE  # noqa: E402
from headway.ranks.rank_processes import RankProcesses  # noqa: E402
from headway.ranks.ranked_learner import RankedLearner, RankFailed  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("size", "shard_ranks", "cases"),
    [(2, 2, list(CASES)), (3, 3, ["own critic", "lora", "imitation"]), (4, 4, ["grpo"]), (4, 2, ["grpo", "reference"])],
)
def test_shards_learn_what_one_rank_learns(size: int, shard_ranks: int, cases: list[str]) -> None:
    """Three ranks and five groups, so that some have fewer passes; four in two replicas of two shards."""
    subject = RankedLearner(partial(compared, shard_ranks), size, RankProcesses, deadline_s=400.0, start_s=250.0)
    try:
        found = subject.learn(Batch(0, (Rollout(None, info={"cases": cases}),))).metrics
    finally:
        subject.close()
    for case in cases:
        assert found[f"gradients of {case}"] < 1e-5
        assert found[f"weights of {case}"] < 1e-5
        assert found[f"metrics of {case}"] < 1e-3
        assert found[f"share of {case}"] < 1.3 / shard_ranks


@pytest.mark.parametrize(("size", "shard_ranks"), [(2, 2), (4, 2)])
def test_float32_shards_that_are_computed_in_bfloat16_make_the_gradient_of_one_rank_in_bfloat16(
    size: int, shard_ranks: int
) -> None:
    """As on GPUs: what one rank is away from float32 because of bfloat16, ranks are too, and sums are in float32."""
    subject = RankedLearner(partial(in_bfloat16, shard_ranks), size, RankProcesses, deadline_s=400.0, start_s=250.0)
    try:
        found = subject.learn(Batch(0, ())).metrics
    finally:
        subject.close()
    assert found["kinds"] == 1
    assert 0 < found["alone"] < 0.05
    assert 0 < found["cut"] < 2 * found["alone"]


# -- checkpoints --------------------------------------------------------------------------------------


@contextlib.contextmanager
def ranks(size: int, make: Any = mortal, deadline_s: float = 60.0) -> Iterator[RankedLearner]:
    subject = RankedLearner(make, size, RankProcesses, deadline_s=deadline_s, start_s=250.0, check_every=1)
    try:
        yield subject
    finally:
        subject.close()


def content(folder: Path) -> dict[str, Any]:
    saved = SavedShards(folder)
    return {name: saved.read(name) for name in saved.shapes}


def assert_same_bits(first: Path, second: Path) -> None:
    one, other = content(first), content(second)
    assert one.keys() == other.keys()
    assert any("exp_avg_sq" in name for name in one)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_a_state_goes_from_two_ranks_to_three_to_one_and_a_killed_rank_loses_nothing(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("two", "expected", "resumed", "three", "one")}
    with ranks(2) as subject:
        subject.learn(batch(0))
        subject.learn(batch(1))
        soon = subject.save_beside(str(places["two"]))
        expected = subject.learn(batch(2)).metrics  # while it is being written
        saved = written(soon)
        assert saved.missing() == ""
        assert {Path(name).suffix for name in saved.files} == {".safetensors", ".json"}
        assert len(saved.files) == 4
        written(subject.save_beside(str(places["expected"])))
        deadly = batch(3)
        deadly.rollouts[0].info["deed"] = signal.SIGKILL  # type: ignore[index]
        began = time.monotonic()
        with pytest.raises(RankFailed, match=r"^rank 1 of 2 was killed by SIGKILL$"):
            subject.learn(deadly)
        assert time.monotonic() - began < 60
    with ranks(2) as subject:
        subject.load_state_dict(saved)
        assert subject.learn(batch(2)).metrics == expected
        written(subject.save_beside(str(places["resumed"])))
    assert_same_bits(places["expected"], places["resumed"])
    with ranks(3) as subject:
        subject.load_state_dict(saved)
        saved = written(subject.save_beside(str(places["three"])))
    assert_same_bits(places["two"], places["three"])
    alone = mortal(ALONE)
    alone.load_state_dict(saved)
    written(alone.save_beside(str(places["one"])))
    assert_same_bits(places["two"], places["one"])
    assert alone.learn(batch(2)).metrics == pytest.approx(dict(expected), rel=1e-3, abs=1e-5)


def test_a_rank_that_hangs_in_a_pass_is_one_line() -> None:
    with ranks(2, deadline_s=20.0) as subject:
        subject.learn(batch(0))
        deadly = batch(1)
        deadly.rollouts[0].info["deed"] = signal.SIGSTOP  # type: ignore[index]
        with pytest.raises(RankFailed, match=r"^rank 1 of 2 gave no answer within 20 s$"):
            subject.learn(deadly)


# -- publishing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["untied", "lora"])
def test_engines_come_to_every_rank_for_its_rows_and_no_rank_has_them_all(case: str, tmp_path: Path) -> None:
    alone = offering(case, torch.bfloat16, ALONE)
    with ranks(2, partial(offering, case, torch.bfloat16)) as subject:
        subject.learn(batch(0))
        alone.load_state_dict(written(subject.save_beside(str(tmp_path / "state"))))
        expected = alone.snapshot()
        handle = subject.snapshot()
        assert isinstance(handle, ShardedWeights)
        whole = sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
        kept = [part.kept.num_bytes for part in handle.parts]
        assert max(kept) < 0.6 * whole
        assert sum(kept) < 1.1 * whole
        subject.learn(batch(1))  # what was published stays as it was
        intake = Intake("cpu")
        for found in (intake.plain(handle), handle.take(), intake.plain(handle)):
            assert found.keys() == expected.keys()
            for name, tensor in found.items():
                assert tensor.dtype == torch.bfloat16
                assert torch.equal(tensor, expected[name]) or torch.allclose(tensor, expected[name], atol=1e-2), name
        filed = handle.saved_in(str(tmp_path / "weights")).saved_in(str(tmp_path / "linked"))
        for found in (filed.take(), intake.plain(filed)):
            assert all(torch.equal(tensor, found[name]) for name, tensor in handle.take().items())
        newer = subject.snapshot()
        handle.give_back()
        assert any(not torch.equal(t, expected[name]) for name, t in intake.plain(newer).items())
        if case == "untied":
            assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
            subject._peers.kill()
            began = time.monotonic()
            with pytest.raises(LinkBroken):
                intake.plain(newer)
            assert time.monotonic() - began < 25
        intake.close()
