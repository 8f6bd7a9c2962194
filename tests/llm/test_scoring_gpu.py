"""Scores on a GPU: by the decoder for it, beside what it generates."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")
if not torch.cuda.is_available():  # then there need not be a triton either
    pytest.skip("needs a GPU", allow_module_level=True)

from headway.llm.engine import Engine  # noqa: E402
from headway.llm.models import load_model, load_tokenizer  # noqa: E402
from headway.llm.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.testing.score_contract import ScoreContract  # noqa: E402


class TestScoresOnAGPU(ScoreContract):
    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = build_decoder(load_model(str(folder), device="cuda"), rows=rows, context=context, burst=4)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)
