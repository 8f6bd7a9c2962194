"""On a GPU the learner reads trees end to end, compiled, and learns what it learns from dense masks."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.experience.group import Group  # noqa: E402
from headway.learn.grpo.learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def batch(seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    groups = []
    for prompt, lengths in ((150, [100, 130, 3, 1]), (40, [200, 90]), (300, [60, 60, 60])):
        tokens = random.integers(3, 200, sum(lengths)).astype(np.int32)
        groups.append(
            Rollout(
                Group(
                    prompt=random.integers(3, 200, prompt).astype(np.int32),
                    tokens=tokens,
                    lengths=np.array(lengths),
                    log_probs=np.full(len(tokens), -5.5, np.float32),
                    versions=np.zeros(len(tokens), np.int32),
                    rewards=random.random(len(lengths)).astype(np.float32),
                ),
                steps=len(tokens),
            )
        )
    return Batch(0, tuple(groups))


def learner(kind: str, **settings: Any) -> GRPOLearner:
    def load() -> Any:
        return tiny_model(kind, context=1024, width=128, head_dim=64).to("cuda")

    return GRPOLearner(
        load, GRPOSettings(**{"microbatch_tokens": 1024, **settings}), load_reference=load, load_critic=load
    )


def gradients(subject: GRPOLearner) -> Any:
    return torch.cat([p.grad.flatten().float() for p in subject._training.trained.named.values() if p.grad is not None])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2", "mistral"])
def test_auto_is_quick_and_compiled_and_learns_what_dense_learns(kind: str) -> None:
    auto = learner(kind)
    dense = learner(kind, trainer_attention="dense", compile_trainer="off")
    assert auto._training.kernels.windows is not None
    assert auto._training.kernels.is_compiled
    assert dense._training.kernels.windows is None
    found, expected = auto.learn(batch()).metrics, dense.learn(batch()).metrics
    for name in ("grad_norm", "entropy", "policy_loss", "behaviour_kl"):
        assert found[name] == pytest.approx(expected[name], rel=0.03, abs=2e-3), name
    mine, theirs = gradients(auto), gradients(dense)
    assert float((mine - theirs).norm() / theirs.norm()) < 0.05  # bfloat16
    assert float(torch.nn.functional.cosine_similarity(mine, theirs, dim=0)) > 0.998


def test_reference_and_critic_are_compiled_too() -> None:
    settings: dict[str, Any] = {"kl_weight": 0.1, "estimator": "gae", "critic": "own"}
    found = learner("llama", **settings).learn(batch()).metrics
    expected = learner("llama", trainer_attention="dense", compile_trainer="off", **settings).learn(batch()).metrics
    assert abs(found["reference_kl"]) < 1e-4  # the same model, read in the same way
    assert found["critic_grad_norm"] == pytest.approx(expected["critic_grad_norm"], rel=0.05)


def test_nobody_waits_for_the_gpu_between_microbatches() -> None:
    """Waits of an update do not grow with its microbatches: measures are read at the end."""
    waits = []
    for budget in (1024, 512):
        subject = learner("llama", microbatch_tokens=budget)
        subject.learn(batch())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                subject.learn(batch())
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found = [one for one in caught if "synchroniz" in str(one.message)]
        waits.append(Counter(f"{Path(one.filename).name}:{one.lineno}" for one in found))
    assert waits[0] == waits[1]


def test_float32_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the model's own precision the kernels differ from dense masks by rounding alone."""
    import contextlib

    monkeypatch.setattr("headway.learn.grpo.policy.autocast", lambda device: contextlib.nullcontext())
    monkeypatch.setattr("headway.learn.model_in_training.autocast", lambda device: contextlib.nullcontext())
    auto, dense = learner("llama"), learner("llama", trainer_attention="dense", compile_trainer="off")
    assert auto._training.kernels.windows is not None
    auto.learn(batch())
    dense.learn(batch())
    mine, theirs = gradients(auto), gradients(dense)
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-3
