"""A model that cannot be cut, and a process that has no room for shards: one line, and the numbers are right."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

import torch.distributed as dist  # noqa: E402
from test_llm_ranks import batch, flat, on_ranks  # noqa: E402

from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.llm.train.sharding import find_layers, shard_body  # noqa: E402
from headway.ranks.rank import ALONE, Rank, RanksBroken  # noqa: E402
from headway.testing.tiny_models import KINDS, tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


START = tiny_model()  # here and not by the ranks, which are threads of this process and share its dice


def with_one_layer_twice() -> Any:
    model = copy.deepcopy(START)
    model.model.layers[1] = model.model.layers[0]
    return model


def taught(rank: Rank) -> GRPOLearner:
    settings = GRPOSettings(learning_rate=1e-2, microbatch_tokens=64, adam_eps=1e-3)
    shards = None if rank is ALONE else rank.size
    subject = GRPOLearner(with_one_layer_twice, settings, seed=3, rank=rank, shard_ranks=shards)
    for version in range(2):
        subject.learn(batch(version))
    return subject


def test_a_model_that_shares_layers_is_kept_whole_by_every_rank_and_learns_the_same(
    capfd: pytest.CaptureFixture[str],
) -> None:
    alone = taught(ALONE)
    results = on_ranks(2, taught)
    said = [line for line in capfd.readouterr().err.splitlines() if "shards" in line]
    assert said == ["headway: LlamaModel is not cut into shards, every rank keeps all of it: layers share weights"]
    for subject in results:
        assert not subject.is_sharded
        assert float((flat(subject) - flat(alone)).abs().max()) < 1e-5


def with_codes() -> Any:
    body = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])})
    codes = torch.nn.Parameter(torch.zeros(3, 3, dtype=torch.int8), requires_grad=False)
    body["layers"].register_parameter("codes", codes)
    return body


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (torch.nn.Sequential(torch.nn.Linear(3, 3)), "it has no list of layers"),
        (with_codes(), "it has weights of the types torch.float32, torch.int8"),
    ],
)
def test_why_a_model_is_kept_whole_is_said_by_the_first_rank(
    body: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(2):
        assert shard_body(body, Rank(index, 2), 2) is None
    assert capsys.readouterr().err.count(why) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_layers_of_every_family_are_found(kind: str) -> None:
    assert len(find_layers(tiny_model(kind))) == 2


def test_a_process_has_room_for_one_learner_in_shards() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = on_ranks(2, partial(_refused, 2))
    finally:
        dist.destroy_process_group()
    assert found == ["a process has room for one learner that is cut into shards, and there is one already"] * 2


def test_shards_need_ranks_that_are_connected_and_that_they_divide() -> None:
    with pytest.raises(RanksBroken, match="rank 0 of 2 is not connected"):
        Rank(0, 2).mesh(2)
    assert on_ranks(2, partial(_refused, 3)) == ["shard_ranks must divide learner_ranks=2, received 3"] * 2


def _refused(shard_ranks: int, rank: Rank) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        rank.mesh(shard_ranks)
    return str(error.value)
