"""A prior trained by several ranks: the gradient that one makes, and the same bits on each of them."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prior_segments import random_segment

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.ranks.rank import ALONE, Meeting, Rank  # noqa: E402
from headway.ranks.rank_torch_groups import find_store, open_store  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402
from headway.text_games.prior_learner_learner import PriorLearner  # noqa: E402
from headway.text_games.prior_learner_settings import PriorSettings  # noqa: E402

START, HERE = tiny_model(), "127.0.0.1"
pytestmark = pytest.mark.usefixtures("one_thread")


def taught(rank: Rank, **settings: Any) -> tuple[dict[str, Any], str, dict[str, float]]:
    """The gradient of the last step, the weights after it, and what was measured."""
    chosen = PriorSettings(microbatch_tokens=60, **settings)
    subject = PriorLearner(
        lambda: copy.deepcopy(START), chosen, load_reference=lambda: copy.deepcopy(START), seed=3, rank=rank
    )
    report = subject.learn(Batch(0, tuple(Rollout(random_segment(number, 3)) for number in range(2))))
    gradients = {name: parameter.grad.clone() for name, parameter in subject._training.trained.named.items()}
    return gradients, fingerprint(subject.held_alike()), dict(report.metrics)


@pytest.mark.parametrize(("prior_loss", "size"), [("imitation", 2), ("ppo", 2), ("imitation", 7), ("ppo", 5)])
def test_ranks_learn_what_one_learns_and_hold_the_same_bits(prior_loss: str, size: int) -> None:
    """With more ranks than states some have nothing to do."""
    gradients, _, expected = taught(ALONE, prior_loss=prior_loss)
    store, port = open_store(HERE, size, 20.0)
    meeting = Meeting(HERE, port, "gloo", 20.0, 20.0)

    def on_one(rank: Rank) -> Any:
        rank.connect(meeting, store if rank.index == 0 else find_store(HERE, port, size, 20.0), HERE)
        return taught(rank, prior_loss=prior_loss)

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(on_one, [Rank(index, size) for index in range(size)]))
    assert len({weights for _, weights, _ in results}) == 1
    assert all(metrics == results[0][2] for *_, metrics in results)
    assert results[0][2] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(results[-1][0][name], gradient, atol=1e-5, rtol=1e-3)
