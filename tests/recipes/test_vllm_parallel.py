"""vLLM over two processes (tensor parallelism) takes weights that a learner's ranks hold in shards.

On CPUs, where the processes of vLLM add up through gloo. With GPUs that is NCCL, which needs several: not tested here.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from running_processes import wait_until_gone  # noqa: E402
from sharded_learners import batch, publishing  # noqa: E402
from test_learner_ranks import descendants  # noqa: E402
from waiting import patient  # noqa: E402
from with_vllm import needs_vllm, vllm_python  # noqa: E402

from headway.llm.engine.protocol_engine import Request, Sample, Sampling  # noqa: E402
from headway.llm.engine.vllm_engine import VLLMEngine  # noqa: E402
from headway.llm.model.loading_models import load_model  # noqa: E402
from headway.llm.weights.receiver_weight_link import Intake, ShardedWeights  # noqa: E402
from headway.ranks.rank_processes import RankProcesses  # noqa: E402
from headway.ranks.ranked_learner import RankedLearner  # noqa: E402
from headway.testing.tiny_models import save_tiny_model  # noqa: E402

pytestmark = [needs_vllm, pytest.mark.usefixtures("one_thread"), pytest.mark.slow, pytest.mark.timeout(900)]

PROMPT = (5, 17, 99, 23, 42)


def log_probs_of(folder: Path, weights: dict[str, torch.Tensor] | None, sample: Sample) -> torch.Tensor:
    """What the model itself says of a sample's tokens."""
    model = load_model(str(folder), dtype=torch.float32, device="cpu")
    if weights is not None:
        model.load_state_dict({**model.state_dict(), **weights})
        model.tie_weights()
    tokens = torch.tensor([[*PROMPT, *sample.tokens.tolist()]])
    with torch.no_grad():
        logits = model(tokens).logits[0, len(PROMPT) - 1 : -1]
    found: torch.Tensor = torch.log_softmax(logits, -1).gather(1, tokens[0, len(PROMPT) :, None])[:, 0]
    return found


def test_an_engine_over_two_processes_takes_weights_from_two_ranks_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", head_dim=64)
    engine = VLLMEngine(
        str(folder),
        Sampling(),
        rows=4,
        context=64,
        python=vllm_python(),
        options={"kv_cache_memory_bytes": 1 << 26, "tensor_parallel_size": 2},
        start_s=patient(200),
        deadline_s=patient(60),
        intake=Intake("cpu"),
    )
    start = {"deadline_s": patient(60), "start_s": patient(200)}
    try:
        ranks = RankedLearner(partial(publishing, str(folder)), 2, RankProcesses, **start)  # type: ignore[arg-type]
        try:
            for version in (0, 1):
                if version:
                    ranks.learn(batch(0))
                    handle = ranks.snapshot()
                    assert isinstance(handle, ShardedWeights)
                    engine.apply(version, handle)
                asked = Request(f"asked/{version}", PROMPT, 2, 7, Sampling(max_tokens=8, min_tokens=8))
                for sample in engine.generate(asked):
                    assert set(sample.versions.tolist()) == {version}
                    expected = log_probs_of(folder, handle.take() if version else None, sample)
                    torch.testing.assert_close(torch.from_numpy(sample.log_probs), expected, atol=2e-3, rtol=1e-3)
        finally:
            ranks.close()
        family = [pid for pid, line in descendants(os.getpid()).items() if "vllm" in line.lower()]
        assert len(family) >= 2  # the host and what vLLM has started
        (host,) = [pid for pid, line in descendants(os.getpid()).items() if "vllm_host.py" in line]
        os.kill(host, signal.SIGKILL)
        wait_until_gone(family)
    finally:
        engine.close()
