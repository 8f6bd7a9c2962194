"""The decoder for GPUs: it reads on behind what it has cached, and leaves parked rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")
if not torch.cuda.is_available():  # then there need not be a triton either
    pytest.skip("needs a GPU", allow_module_level=True)

from headway.llm.engine import Engine, Sampling  # noqa: E402
from headway.llm.models import load_model, load_tokenizer  # noqa: E402
from headway.llm.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.llm.triton_llama_decoder import TritonLlamaDecoder  # noqa: E402
from headway.testing.session_contract import SessionContract  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

NEAR = 2e-2  # of logits: matrices are multiplied with fewer bits than additions have


def model() -> Any:
    return tiny_model().to("cuda")


def logits_behind(whole: Any, texts: list[Any]) -> Any:
    with torch.no_grad():
        return torch.stack([whole(text[None].to("cuda")).logits[0, -1].float() for text in texts])


def texts_of(*lengths: int) -> list[Any]:
    return [torch.from_numpy(np.random.default_rng(n).integers(3, 200, length)) for n, length in enumerate(lengths)]


@pytest.mark.parametrize("piece", [128, 31, 9])
def test_a_text_can_be_read_piece_by_piece(piece: int) -> None:
    whole, texts = model(), texts_of(5, 70, 1, 40, 33, 90)
    decoder, last = TritonLlamaDecoder(whole, 12, 128, burst=4), {}
    for start in range(0, 90, piece):
        reads = [(text[start : start + piece], row, start) for row, text in enumerate(texts) if len(text) > start]
        for (_, row, _), line in zip(reads, decoder.extend(reads), strict=True):
            last[row] = line.float()
    expected = logits_behind(whole, texts)
    torch.testing.assert_close(torch.stack([last[row] for row in range(6)]), expected, atol=NEAR, rtol=0)
    decoder.swap(1, 5, 90)
    decoder.move(3, 8, 40)
    again = decoder.extend([(texts[1][60:], 5, 60), (texts[5][89:], 1, 89), (texts[3][39:], 8, 39)]).float()
    torch.testing.assert_close(again, expected[[1, 5, 3]], atol=NEAR, rtol=0)


def test_steps_do_not_touch_parked_rows_though_a_graph_is_filled_up_with_them() -> None:
    texts = texts_of(5, 70, 1, 40, 33)
    decoder = TritonLlamaDecoder(model(), 12, 128, burst=4)
    decoder.extend([(text, row, 0) for row, text in enumerate(texts)])
    before = decoder.keys[:, 3:].clone(), decoder.values[:, 3:].clone()
    places = torch.tensor([len(text) for text in texts[:3]])  # three rows take steps, in a graph of four
    ones = torch.ones(3, dtype=torch.int64)
    decoder.advance(9 * ones, places, ones, ones, Sampling())
    assert torch.equal(before[0], decoder.keys[:, 3:]) and torch.equal(before[1], decoder.values[:, 3:])


class TestSessionsOnAGPU(SessionContract):
    tolerance = NEAR

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = build_decoder(load_model(str(folder), device="cuda"), rows=rows, context=context, burst=4)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)
