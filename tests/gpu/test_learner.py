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
from headway.llm.engine.gpu_share import generating  # noqa: E402
from headway.llm.engine.gpu_share_part_of_gpu import num_multiprocessors, stream_on_part  # noqa: E402
from headway.llm.rollouts_group import Group  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


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


def test_what_is_learned_beside_an_engine_is_what_is_learned_alone(capsys: pytest.CaptureFixture[str]) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    alone, beside, undivided = learner("llama"), learner("llama"), learner("llama", trainer_gpu_share=1.0)
    expected = alone.learn(batch()).metrics
    with generating(device):
        found = beside.learn(batch()).metrics
        undivided.learn(batch())
    assert (alone._training.gpu.num_shared, undivided._training.gpu.num_shared) == (0, 0)
    assert beside._training.gpu.num_shared > 0, capsys.readouterr().err
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
    mine, theirs = gradients(beside), gradients(alone)
    assert float((mine - theirs).norm() / theirs.norm()) < 0.01  # of flash kernels, which add up in any order
    for name, tensor in alone.snapshot().items():
        assert torch.allclose(tensor, beside.snapshot()[name], atol=1e-4), name


def test_a_part_of_a_gpu_has_fewer_multiprocessors() -> None:
    """A product that fills the GPU takes longer on a quarter of it, and gives the same."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    quarter = stream_on_part(torch.cuda.current_device(), num_multiprocessors(0.25, 132))

    def seconds(stream: Any) -> tuple[float, Any]:
        with torch.cuda.stream(stream):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            made = left @ right
            start.record()
            for _ in range(10):
                made = left @ right
            end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end), made

    whole, expected = seconds(torch.cuda.current_stream())
    part, found = seconds(quarter)
    assert part > 2 * whole
    assert torch.allclose(found, expected, rtol=0.02, atol=1.0)


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

    monkeypatch.setattr("headway.llm.train.model_in_training_policy.autocast", lambda device: contextlib.nullcontext())
    monkeypatch.setattr("headway.llm.train.model_in_training.autocast", lambda device: contextlib.nullcontext())
    auto, dense = learner("llama"), learner("llama", trainer_attention="dense", compile_trainer="off")
    assert auto._training.kernels.windows is not None
    auto.learn(batch())
    dense.learn(batch())
    mine, theirs = gradients(auto), gradients(dense)
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-3
