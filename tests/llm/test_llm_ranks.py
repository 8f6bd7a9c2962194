"""A language model trained by several ranks: what one learns, to rounding, and the same bits on each of them.

The ranks here are threads of one process that add up through real sockets; tests/unit/test_ranks.py has the processes.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from sharded_learners import batch  # noqa: E402

from headway.core.types import Batch, LearnReport  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.ranks.rank import ALONE, Meeting, Rank  # noqa: E402
from headway.ranks.rank_processes import RankProcesses  # noqa: E402
from headway.ranks.rank_torch_groups import find_store, open_store  # noqa: E402
from headway.ranks.ranked_learner import RankedLearner, RankFailed  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

START = tiny_model()
HERE = "127.0.0.1"

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"num_minibatches": 2, "num_epochs": 2},
    "whitened, by sequences, with a reference": {
        "estimator": "rloo",
        "whiten_advantages": True,
        "loss_aggregation": "seq-mean-token-mean",
        "kl_weight": 0.1,
        "entropy_weight": 0.01,
    },
    "the whole batch decides": {"correction": "m2po", "num_minibatches": 3},
    "shared critic": {"estimator": "gae", "critic_learning_rate": 1e-2, "num_minibatches": 2},
    "own critic": {"estimator": "gae", "critic": "own", "critic_learning_rate": 1e-2, "critic_warmup_updates": 1},
}

pytestmark = pytest.mark.usefixtures("one_thread")


def start(kind: Any) -> Any:
    return copy.deepcopy(START).to(kind)


def learner(name: str, kind: Any, rank: Rank) -> GRPOLearner:
    load = partial(start, kind)
    # In float32 a gradient that is nothing but rounding must not become a whole step of Adam.
    eps = 1e-8 if kind == torch.float64 else 1e-3
    chosen = GRPOSettings(learning_rate=1e-2, microbatch_tokens=64, adam_eps=eps, **CASES[name])
    return GRPOLearner(load, chosen, load_reference=load, load_critic=load, seed=3, rank=rank)


def on_ranks(size: int, work: Callable[[Rank], Any]) -> list[Any]:
    """`work` on every rank at once."""
    ranks = [Rank(index, size) for index in range(size)]
    store, port = open_store(HERE, size, 20.0)
    meeting = Meeting(HERE, port, "gloo", 20.0, 20.0)

    def on_one(rank: Rank) -> Any:
        rank.connect(meeting, store if rank.index == 0 else find_store(HERE, port, size, 20.0), HERE)
        return work(rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(on_one, ranks))


def taught(name: str, kind: Any, versions: range, rank: Rank) -> tuple[GRPOLearner, dict[str, float]]:
    subject = learner(name, kind, rank)
    metrics: dict[str, float] = {}
    for version in versions:
        metrics = dict(subject.learn(batch(version)).metrics)
    return subject, metrics


def flat(subject: GRPOLearner) -> Any:
    held = subject.held_alike()
    return torch.cat([t.flatten() for part in held.values() if part for t in part.values()])


def test_with_a_lead_the_first_rank_compares_with_the_weights_that_made_the_tokens_and_tells_the_others() -> None:
    def work(rank: Rank) -> tuple[Any, dict[str, float]]:
        subject = learner("grpo", torch.float32, rank)
        for version in range(3):
            whole = batch(version)
            for rollout in whole.rollouts:
                rollout.payload.versions[:] = max(0, version - 1)
            metrics = dict(subject.learn(whole).metrics)
        return fingerprint(subject.held_alike()), metrics

    alone = work(ALONE)[1]
    results = on_ranks(2, work)
    assert results[0] == results[1]
    for name in ("mismatch_mean", "mismatch_max", "mismatch_ratio_p50"):
        assert results[0][1][name] == pytest.approx(alone[name], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [
        *((name, 2, torch.float64) for name in CASES),
        *((name, 3, torch.float32) for name in CASES),
        ("grpo", 6, torch.float32),
        ("own critic", 6, torch.float32),
    ],
)
def test_ranks_learn_what_one_learns_and_hold_the_same_bits(name: str, size: int, kind: Any) -> None:
    """Six ranks and five groups: one has nothing to do, and more have nothing in a minibatch."""
    alone, expected = taught(name, kind, range(3), ALONE)
    results = on_ranks(size, partial(taught, name, kind, range(3)))
    assert len({fingerprint(subject.held_alike()) for subject, _ in results}) == 1
    moved = float((flat(alone) - flat(learner(name, kind, ALONE))).abs().max())
    gap = float((flat(alone) - flat(results[0][0])).abs().max())
    assert gap < (1e-9 if kind == torch.float64 else 1e-5) < 1e-3 < moved
    for _, metrics in results:
        assert metrics == results[0][1]
    assert results[0][1] == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_a_state_of_three_ranks_goes_on_with_two_or_one() -> None:
    name, kind = "own critic", torch.float64
    straight, _ = taught(name, kind, range(4), ALONE)
    state = copy.deepcopy(on_ranks(3, partial(taught, name, kind, range(2)))[0][0].state_dict())

    def go_on(rank: Rank) -> GRPOLearner:
        subject = learner(name, kind, rank)
        subject.load_state_dict(copy.deepcopy(state))
        for version in (2, 3):
            subject.learn(batch(version))
        return subject

    for subject in (go_on(ALONE), on_ranks(2, go_on)[0]):
        assert float((flat(subject) - flat(straight)).abs().max()) < 1e-9


# -- shares ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(1, 500), max_size=40), size=st.integers(1, 6))
def test_every_row_has_one_rank_and_loads_differ_by_one_row_at_most(sizes: list[int], size: int) -> None:
    shares = [Rank(index, size).share_by_size(sizes) for index in range(size)]
    assert sorted(row for share in shares for row in share) == list(range(len(sizes)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(sizes[row] for row in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_group_is_read_by_one_rank_alone() -> None:
    def read(rank: Rank) -> list[int]:
        subject = learner("grpo", torch.float32, rank)
        data = subject._begin(batch(0)).data
        parts = list(subject._my_microbatches(data, np.arange(data.num_groups)))
        return [int(data.group[reply]) for part in parts for reply in part.trees.replies]

    first, second = (set(groups) for groups in on_ranks(2, read))
    assert first | second == set(range(5))
    assert not first & second


# -- processes ------------------------------------------------------------------------------------


class Mortal(GRPOLearner):
    """Can be told to die or to hang in the middle of an update."""

    def learn(self, batch: Batch) -> LearnReport:
        deed = batch.rollouts[0].info.get("deed")
        if deed is not None and self._rank.index == 1:
            signal.raise_signal(deed)
        return super().learn(batch)


def mortal(rank: Rank) -> Mortal:
    torch.set_num_threads(1)
    chosen = GRPOSettings(estimator="gae", learning_rate=1e-2)
    return Mortal(partial(start, torch.float32), chosen, rank=rank)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("deed", "line"),
    [
        (signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL"),
        (signal.SIGSTOP, "rank 1 of 2 gave no answer within 30 s"),
    ],
)
def test_a_rank_that_dies_or_hangs_is_one_line(deed: signal.Signals, line: str) -> None:
    subject = RankedLearner(mortal, 2, RankProcesses, deadline_s=30.0, start_s=250.0, check_every=1)
    try:
        subject.learn(batch(0))
        deadly = batch(1)
        deadly.rollouts[0].info["deed"] = deed  # type: ignore[index]
        with pytest.raises(RankFailed, match=f"^{line}$"):
            subject.learn(deadly)
        with pytest.raises(RankFailed, match=f"^{line}$"):
            subject.state_dict()
    finally:
        subject.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_critic_that_differs_between_ranks_is_noticed_though_nothing_published_does() -> None:
    subject = RankedLearner(mortal, 2, RankProcesses, start_s=250.0, check_every=1)
    try:
        subject.learn(batch(0))
        mine = subject._learner
        assert isinstance(mine, Mortal)
        assert mine._critic is not None
        with torch.no_grad():
            mine._critic.trained.parameters[0][0, 0] += 1e-3
        with pytest.raises(RankFailed, match="different weights"):
            subject.learn(batch(1))
    finally:
        subject.close()
