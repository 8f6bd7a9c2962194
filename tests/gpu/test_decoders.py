"""Every decoder on a GPU passes the contracts of engines and sessions; the one made for GPUs, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
if not torch.cuda.is_available():  # then there need not be a triton either
    pytest.skip("needs a GPU", allow_module_level=True)

from headway.llm.engine.decoder_sampling import draw  # noqa: E402
from headway.llm.engine.general_decoders_padded_decoder import PaddedDecoder  # noqa: E402
from headway.llm.engine.general_decoders_rereading_decoder import RereadingDecoder  # noqa: E402
from headway.llm.engine.protocol_engine import Engine, Request, Sampling  # noqa: E402
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.llm.engine.triton_llama_decoder import TritonLlamaDecoder  # noqa: E402
from headway.llm.model.loading_models import load_model, load_tokenizer  # noqa: E402
from headway.llm.train.trees import ReplyTree  # noqa: E402
from headway.testing.engine_contract import EngineContract  # noqa: E402
from headway.testing.engine_contract_score_contract import ScoreContract  # noqa: E402
from headway.testing.session_contract import SessionContract  # noqa: E402
from headway.testing.tiny_models import tiny_model, tiny_tokenizer  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

COARSE = 3e-2  # of logits in bfloat16
KINDS = ("llama", "qwen2", "qwen3")


class TestOnAGPU(EngineContract, SessionContract, ScoreContract):
    exact = True

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = build_decoder(load_model(str(folder), device="cuda"), rows=rows, context=context, burst=4)
        assert isinstance(decoder, TritonLlamaDecoder)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)


class TestHeadsOfAnySize(TestOnAGPU):
    head_dim = 24


class TestTheGeneralDecoderOnAGPU(SessionContract, ScoreContract):
    tolerance = 1e-3

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = PaddedDecoder(load_model(str(folder), device="cuda"), rows, context)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)


class TestADecoderWithoutACacheOnAGPU(SessionContract, ScoreContract):
    has_cache = False
    tolerance = 1e-3

    def make(self, folder: Path, *, rows: int, context: int, recompute: bool) -> Engine:
        decoder = RereadingDecoder(load_model(str(folder), device="cuda"), rows, context)
        return TransformersEngine(decoder, load_tokenizer(str(folder)), self.stops, recompute=recompute)


def texts_of(*lengths: int) -> list[Any]:
    return [torch.from_numpy(np.random.default_rng(n).integers(3, 200, length)) for n, length in enumerate(lengths)]


@pytest.fixture
def own_stream() -> Iterator[None]:
    """An engine has a stream of its own, where steps can be captured."""
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.synchronize()


def models() -> list[Any]:
    """Small ones of each kind in both precisions, and one with sizes of a real model."""
    made = [tiny_model(kind).to("cuda", dtype) for kind in KINDS for dtype in (torch.float32, torch.bfloat16)]
    wide = tiny_model("llama", context=4096, width=576, head_dim=64).to("cuda", torch.bfloat16)
    return [*made, wide]


@pytest.mark.parametrize("number", range(7))
def test_a_text_has_the_same_bits_in_one_piece_or_many_alone_or_beside_others(number: int) -> None:
    texts = texts_of(5, 70, 1, 40, 33, 90, 128, 64, 65)
    whole = models()[number]
    decoder, alone = (TritonLlamaDecoder(whole, rows, 128, burst=4) for rows in (300, 9))
    expected = torch.cat([alone.extend([(text, row, 0)]) for row, text in enumerate(texts)])
    with torch.no_grad():
        model_says = torch.stack([whole(text[None].cuda()).logits[0, -1].float() for text in texts])
    near = 1e-3 if whole.dtype == torch.float32 else COARSE * float(model_says.abs().max())
    torch.testing.assert_close(expected.float(), model_says, atol=near, rtol=0)
    others = texts_of(*[(7 * n) % 120 + 1 for n in range(200)])
    assert torch.equal(decoder.prefill([(text, [row, row + 20]) for row, text in enumerate(texts)]), expected)
    decoder.prefill([(text, [row + 60]) for row, text in enumerate(others)])
    for piece in (64, 31, 9, 1):
        last: dict[int, Any] = {}
        for start in range(0, 128, piece):
            reads = [(text[start : start + piece], row, start) for row, text in enumerate(texts) if len(text) > start]
            beside = [
                (text[start : start + piece], row + 60, start) for row, text in enumerate(others) if start < len(text)
            ]
            for (_, row, _), line in zip(reads, decoder.extend([*reads, *beside]), strict=False):
                last[row] = line
        assert torch.equal(torch.stack([last[row] for row in range(len(texts))]), expected), piece


@pytest.mark.usefixtures("own_stream")
@pytest.mark.parametrize("number", range(7))
def test_a_drawn_token_has_the_bits_it_has_when_it_is_read(number: int) -> None:
    """A step's log-probabilities, and what it leaves in the cache, however many rows there are."""
    whole, sampling = models()[number], Sampling()
    for count in (1, 3, 20, 70):
        texts = texts_of(*[(11 * n) % 60 + 1 for n in range(count)])
        stepping, reading = (TritonLlamaDecoder(whole, 80, 128, burst=8) for _ in range(2))
        stepping.extend([(text, row, 0) for row, text in enumerate(texts)])
        firsts, places = torch.full((count,), 9), torch.tensor([len(text) for text in texts])
        tokens, logs = stepping.advance(
            firsts, places, torch.arange(count), torch.ones(count, dtype=torch.int64), sampling
        )
        seen = [torch.cat([text, firsts[:1], tokens[:7, row]]) for row, text in enumerate(texts)]
        reading.extend([(text, row, 0) for row, text in enumerate(seen)])
        for row, text in enumerate(seen):
            for cache, again in ((stepping.keys, reading.keys), (stepping.values, reading.values)):
                assert torch.equal(cache[:, :, row, : len(text)], again[:, :, row, : len(text)])
        trees = [
            ReplyTree(text.numpy(), [np.array([9, *tokens[:, row].tolist()])], 0) for row, text in enumerate(texts)
        ]
        scored = reading.score(trees).cpu().view(count, 9)[:, 1:].T
        assert torch.equal(scored, logs), "and those are what it is scored with"


@pytest.mark.usefixtures("own_stream")
def test_steps_do_not_touch_parked_rows_though_a_graph_is_filled_up_with_them() -> None:
    texts = texts_of(5, 70, 1, 40, 33)
    decoder = TritonLlamaDecoder(models()[0], 12, 128, burst=4)
    decoder.extend([(text, row, 0) for row, text in enumerate(texts)])
    before = decoder.keys[:, :, 3:].clone(), decoder.values[:, :, 3:].clone()
    places = torch.tensor([len(text) for text in texts[:3]])  # three rows take steps, in a graph of four
    ones = torch.ones(3, dtype=torch.int64)
    decoder.advance(9 * ones, places, ones, ones, Sampling())
    assert torch.equal(before[0], decoder.keys[:, :, 3:]) and torch.equal(before[1], decoder.values[:, :, 3:])


def test_rows_move_and_change_places_with_what_they_have_cached() -> None:
    texts = texts_of(5, 70, 1, 40, 33, 90)
    decoder = TritonLlamaDecoder(models()[1], 12, 128, burst=4)
    expected = decoder.extend([(text, row, 0) for row, text in enumerate(texts)])
    decoder.swap(1, 5, 90)
    decoder.move(3, 8, 40)
    again = decoder.extend([(texts[1][60:], 5, 60), (texts[5][89:], 1, 89), (texts[3][39:], 8, 39)])
    assert torch.equal(again, expected[[1, 5, 3]])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7), Sampling(top_k=20), Sampling(top_p=0.8)])
def test_a_draw_does_not_depend_on_the_rows_beside_it(sampling: Sampling) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = 4 * torch.randn(300, 5000, device="cuda", generator=generator)
    numbers = torch.rand(300, device="cuda", generator=generator)
    tokens, logs = draw(logits, numbers, sampling)
    for count in (1, 2, 7, 64, 299):
        some, their = draw(logits[:count], numbers[:count], sampling)
        assert torch.equal(some, tokens[:count]) and torch.equal(their, logs[:count]), count
    probs = torch.softmax(logits.double() / sampling.temperature, -1)
    if not sampling.is_cut:
        chosen = probs.gather(1, tokens[:, None])[:, 0].log()
        torch.testing.assert_close(logs.double(), chosen, atol=1e-5, rtol=0)
        below = (probs.cumsum(1) - probs).gather(1, tokens[:, None])[:, 0]
        assert bool(((below - 1e-5 < numbers) & (numbers < below + chosen.exp() + 1e-5)).all())


def test_what_the_kernels_cannot_take_is_decoded_by_transformers_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from triton.runtime.errors import OutOfResources

    def no_room(*_: Any, **__: Any) -> Any:
        raise OutOfResources(400_000, 232_448, "shared memory")

    monkeypatch.setattr(TritonLlamaDecoder, "_attend", no_room)
    decoder = build_decoder(tiny_model().to("cuda"), rows=4, context=64)
    assert isinstance(decoder, PaddedDecoder)
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "decoded by transformers, more slowly: OutOfResources" in said, said
    engine = TransformersEngine(decoder, tiny_tokenizer(), (0,))
    (sample,) = engine.generate(Request("a", (5, 6, 7), sampling=Sampling(max_tokens=5)))
    assert 1 <= len(sample.tokens) <= 5
