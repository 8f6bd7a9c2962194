"""Episodes in training on a CPU: the pass that computes only what is asked for says what the model's own pass says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("numba", reason="needs headway[llm]")

from headway.llm.model.adapters import add_adapters  # noqa: E402
from headway.llm.train import llama_episodes  # noqa: E402
from headway.llm.train.trees import body_of, hidden_states, lay_out, pack_trees  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def episodes(*, price: float, trained: bool = True) -> Any:
    """Three groups of three branches, of which the policy drew some tokens, as one microbatch."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 200, length) for length in (5, 9, 2)]
    replies = [[rng.integers(3, 200, length) for length in (12, 7, 20)] for _ in prompts]
    masks: list[list[Any]] = [[rng.random(len(reply)) < 0.4 for reply in group] for group in replies]
    for mask in (mask for group in masks for mask in group):
        mask[0] = mask[-1] = True
    packed = pack_trees(prompts, replies, 4096, price, trained=masks if trained else None)
    return [lay_out(trees) for trees in packed]


def read(model: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """Hidden states, and the gradients of every weight when each of them is wanted differently."""
    model.zero_grad(set_to_none=True)
    hidden = hidden_states(model, batch)
    wanted = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    (hidden * wanted).sum().backward()
    return hidden.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("price", [0.0, 100.0], ids=["trees", "one reply each"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_states_and_gradients_are_those_of_the_model(kind: str, price: float) -> None:
    model = tiny_model(kind)
    (batch,) = episodes(price=price)
    assert llama_episodes.can_read(body_of(model))
    assert int(batch.branch.max()) == (1 if price else 3)
    found, gradients = read(model, batch)
    expected, model_gradients = read(model, replace(batch, has_observations=False))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert gradients.keys() == model_gradients.keys()
    for name, gradient in gradients.items():
        scale = float(model_gradients[name].abs().max())
        torch.testing.assert_close(gradient / scale, model_gradients[name] / scale, atol=2e-5, rtol=1e-4, msg=name)


def test_the_last_layer_multiplies_only_what_predicts_a_drawn_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (batch,) = tiny_model("llama"), episodes(price=100.0)
    rows: list[int] = []
    there = llama_episodes._gate_there

    def counted(*given: Any) -> None:
        rows.append(len(given[0]))
        there(*given)

    monkeypatch.setattr(llama_episodes, "_gate_there", counted)
    hidden_states(model, batch)
    assert rows == [batch.tokens.numel()] * (len(rows) - 1) + [len(batch.sources)]
    assert len(batch.sources) < batch.tokens.numel() / 2


def test_single_replies_keep_the_pass_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_episodes, "read_episodes", lambda *given: pytest.fail("was read as episodes"))
    (batch,) = episodes(price=0.0, trained=False)
    assert not batch.has_observations
    hidden_states(tiny_model("llama"), batch)


def test_what_it_cannot_compute_goes_through_the_model() -> None:
    assert not llama_episodes.can_read(body_of(tiny_model("qwen3")))
    assert not llama_episodes.can_read(body_of(tiny_model("gpt2")))
    assert not llama_episodes.can_read(body_of(tiny_model("mistral")))  # this one attends through a window
    checkpointed = tiny_model("llama")
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    assert not llama_episodes.can_read(body_of(checkpointed))
    assert not llama_episodes.can_read(body_of(tiny_model("llama").to(torch.bfloat16)))


def test_adapters_go_through_the_model() -> None:
    pytest.importorskip("peft", reason="needs headway[llm]")
    assert not llama_episodes.can_read(body_of(add_adapters(tiny_model("llama"), 2, 4.0)))
