"""Models that are built without their weights: each rank reads its own rows, and has the numbers of the whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from sharded_learners import batch  # noqa: E402
from waiting import patient  # noqa: E402

from headway.core.types import Batch, LearnReport, Rollout  # noqa: E402
from headway.llm.model.adapters import add_adapters  # noqa: E402
from headway.llm.model.loading_models import load_model, load_unread  # noqa: E402
from headway.llm.model.meta_loading import read_rows  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.ranks.rank import ALONE, Rank  # noqa: E402
from headway.ranks.rank_processes import RankProcesses  # noqa: E402
from headway.ranks.ranked_learner import RankedLearner  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text"])
def test_a_model_that_is_read_late_has_the_bits_and_buffers_of_one_that_was_loaded(kind: str, tmp_path: Path) -> None:
    tiny_model(kind).save_pretrained(tmp_path, max_shard_size="20KB")  # type: ignore[attr-defined]
    late: Any = load_unread(str(tmp_path))
    assert late is not None
    assert all(parameter.is_meta for parameter in late.parameters())
    read_rows(late, torch.device("cpu"), lambda _: 0)
    whole: Any = load_model(str(tmp_path))
    for found, expected in (
        (late.named_parameters(), whole.named_parameters()),
        (late.named_buffers(), whole.named_buffers()),
    ):
        ours, theirs = dict(found), dict(expected)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    tokens = torch.arange(3, 40)[None]
    assert torch.equal(late.eval()(tokens).logits, whole.eval()(tokens).logits)


def test_a_model_without_safetensors_files_is_not_read_by_rows_and_one_line_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_model().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert load_unread(str(tmp_path)) is None
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "before it is cut" in said[0]
    assert "no safetensors files" in said[0]


def load(folder: str, lora: bool, rank: Rank) -> Any:
    model: Any = load_model(folder) if rank.size == 1 else load_unread(folder)
    return add_adapters(model, 3, 8.0, seed=1) if lora else model


class Read(GRPOLearner):
    """Says, instead of learning, how far what it holds is from a model that was loaded whole."""

    def learn(self, data: Batch) -> LearnReport:
        folder, lora = data.rollouts[0].info["folder"], data.rollouts[0].info["lora"]
        shards = self._training.shards
        assert shards is not None
        shards.forget_gathered()
        whole = dict(load(folder, lora, ALONE).named_parameters())
        own: Any = dict(self._training.model.named_parameters())
        assert own.keys() == whole.keys()
        wrong = sum(not torch.equal(p.full_tensor(), whole[name]) for name, p in own.items())
        held = sum(p.to_local().numel() for p in own.values()) / sum(p.numel() for p in whole.values())
        return LearnReport({"wrong": float(wrong), "held": held})


def build(kind: Any, folder: str, lora: bool, rank: Rank) -> Any:
    torch.set_num_threads(1)
    settings = GRPOSettings(learning_rate=1e-2, microbatch_tokens=64, adam_eps=1e-3, kl_weight=0.1)
    make = partial(load, folder, lora, rank)
    return kind(make, settings, load_reference=make, seed=3, rank=rank, shard_ranks=rank.size)


@pytest.mark.parametrize(("size", "lora"), [(2, False), (2, True), (3, False)])
def test_ranks_that_read_their_rows_alone_hold_the_model_and_learn_what_one_rank_learns(
    size: int, lora: bool, tmp_path: Path
) -> None:
    tiny_model().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    told = Batch(0, (Rollout(None, info={"folder": str(tmp_path), "lora": lora}),))
    subject = RankedLearner(partial(build, Read, str(tmp_path), lora), size, RankProcesses, start_s=patient(120))
    try:
        found = subject.learn(told).metrics
    finally:
        subject.close()
    assert found["wrong"] == 0
    assert found["held"] < 1.3 / size
    if size > 2:
        return
    alone = build(GRPOLearner, str(tmp_path), lora, ALONE)
    subject = RankedLearner(partial(build, GRPOLearner, str(tmp_path), lora), size, RankProcesses, start_s=patient(120))
    try:
        for version in range(2):
            there, here = subject.learn(batch(version, lead=1)).metrics, alone.learn(batch(version, lead=1)).metrics
            assert there["grad_norm"] == pytest.approx(here["grad_norm"], rel=1e-4)
    finally:
        subject.close()


def with_critic(folder: str, rank: Rank) -> GRPOLearner:
    torch.set_num_threads(1)
    told: Any = {"estimator": "gae", "critic": "own", "critic_learning_rate": 1e-2, "adam_eps": 1e-3}
    settings = GRPOSettings(learning_rate=1e-2, microbatch_tokens=64, **told)
    make = partial(load, folder, False, rank)
    return GRPOLearner(make, settings, load_critic=make, seed=3, rank=rank, shard_ranks=rank.size)


def test_a_critic_of_its_own_is_read_by_rows_too_and_learns_what_one_rank_learns(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    alone = with_critic(str(tmp_path), ALONE)
    subject = RankedLearner(partial(with_critic, str(tmp_path)), 2, RankProcesses, start_s=patient(120))
    try:
        for version in range(2):
            there, here = subject.learn(batch(version, lead=1)).metrics, alone.learn(batch(version, lead=1)).metrics
            for name in ("grad_norm", "value_loss"):
                assert there[name] == pytest.approx(here[name], rel=1e-4), name
    finally:
        subject.close()
