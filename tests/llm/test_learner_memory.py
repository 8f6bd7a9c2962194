"""What is said of a model's memory beside what a real one takes: counts to the byte, activations within a factor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.core.types import Batch, Rollout, Span
from headway.llm.memory.model_shape import FAMILY, shape_of
from headway.llm.memory.model_shapes import find_shape
from headway.llm.memory.planned_run import PAIR_SLOWNESS, tree_tokens
from headway.llm.memory.roles_training_memory import (
    Training,
    activation_bytes,
    copied_matrices_bytes,
    layer_activation_bytes,
    learner_memory,
)
from headway.llm.model.adapters import add_adapters
from headway.llm.rollouts_group import Group
from headway.llm.train import heads_layer_compiler as layer_compiler
from headway.llm.train.grpo_learner_learner import GRPOLearner
from headway.llm.train.grpo_settings import GRPOSettings
from headway.llm.train.kernels import BY_FLASH, Kernels
from headway.llm.train.kernels_layouts import log_probs_of_group
from headway.llm.train.trees import SLOWNESS, pack_trees, pair_price
from headway.testing.tiny_models import save_tiny_model, tiny_model

PROMPT, REPLY, REPLIES = 24, 16, 4
MICROBATCH = 96
FACTOR = 1.25
"""What autograd keeps may differ by so much from what is said, either way."""


def batch(vocab: int) -> Batch:
    rng = np.random.default_rng(0)
    group = Group(
        prompt=rng.integers(vocab, size=PROMPT).astype(np.int32),
        tokens=rng.integers(vocab, size=REPLIES * REPLY).astype(np.int32),
        lengths=np.full(REPLIES, REPLY, np.int64),
        log_probs=np.full(REPLIES * REPLY, -1.0, np.float32),
        versions=np.zeros(REPLIES * REPLY, np.int32),
        rewards=np.array([0.0, 1.0, 0.0, 1.0], np.float32),
    )
    return Batch(0, (Rollout(group, steps=REPLIES * REPLY, span=Span(0, 0)),))


def held_bytes(model: Any, learner: GRPOLearner) -> int:
    """Of weights, gradients and the optimizer's tensors, as they are after an update."""
    state = learner.state_dict()["optimizer"]["state"].values()
    weights = sum(p.nbytes + (0 if p.grad is None else p.grad.nbytes) for p in model.parameters())
    return weights + sum(tensor.nbytes for one in state for tensor in one.values())


@pytest.mark.parametrize("kind", FAMILY)
def test_the_weights_of_the_family_are_known_by_name_and_shape(kind: str) -> None:
    model = tiny_model(kind)
    known = shape_of(model.config.to_dict())
    assert dict(known.weights) == {name: tuple(one.shape) for name, one in model.named_parameters()}
    assert known.num_parameters == sum(one.numel() for one in model.parameters())


def test_a_model_of_another_kind_is_asked_for_its_weights(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", "gpt2")
    found = find_shape(str(folder))
    assert found.num_parameters == sum(one.numel() for one in tiny_model("gpt2").parameters())
    assert find_shape(str(folder / "config.json")).weights == found.weights


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_weights_gradients_and_optimizer_are_said_to_the_byte(kind: str, lora_rank: int) -> None:
    model = tiny_model(kind)
    shape = shape_of(model.config.to_dict())
    if lora_rank:
        pytest.importorskip("peft")
        model = add_adapters(model, lora_rank, 8.0)
    learner = GRPOLearner(lambda: model, GRPOSettings(microbatch_tokens=MICROBATCH))
    learner.learn(batch(shape.vocab))
    said = learner_memory(shape, Training(device="cpu", lora_rank=lora_rank, saves=False))
    assert held_bytes(model, learner) == said.held_bytes


@pytest.mark.parametrize("critic", ["shared", "own"])
def test_a_critic_and_a_reference_are_said_to_the_byte(critic: str) -> None:
    models: list[Any] = []

    def load() -> Any:
        models.append(tiny_model("qwen2", seed=len(models)))
        return models[-1]

    settings = GRPOSettings(microbatch_tokens=MICROBATCH, estimator="gae", critic=critic, kl_weight=0.1)
    learner = GRPOLearner(load, settings, load_reference=load, load_critic=load)
    shape = shape_of(models[0].config.to_dict())
    learner.learn(batch(shape.vocab))
    said = learner_memory(shape, Training(device="cpu", critic=critic, has_reference=True, saves=False))
    assert said.bytes_of("reference") == sum(one.nbytes for one in models[1].parameters())
    state = learner.state_dict()["critic"]
    moments = sum(tensor.nbytes for one in state["optimizer"]["state"].values() for tensor in one.values())
    weights = sum(one.nbytes for one in state["weights"].values())
    assert said.bytes_of("critic") == 2 * weights + moments


@contextmanager
def saved_by_autograd(model: Any) -> Iterator[list[int]]:
    """Counts the bytes that a backward pass waits for, without weights and logits."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, int] = {}
    total = [0]

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_logits = tensor.dim() == 2 and tensor.shape[-1] == model.config.vocab_size
        if not is_logits and storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()  # everything is alive until the backward pass
            total[0] = max(total[0], sum(seen.values()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_what_a_microbatch_leaves_behind_is_within_the_factor(kind: str) -> None:
    model = tiny_model(kind, width=64)
    shape = shape_of(model.config.to_dict())
    learner = GRPOLearner(lambda: model, GRPOSettings(microbatch_tokens=MICROBATCH, layout="tree"))
    with saved_by_autograd(model) as found:
        learner.learn(batch(shape.vocab))
    row = tree_tokens(shape, PROMPT, REPLY, REPLIES)
    said = activation_bytes(shape, Training(microbatch_tokens=row, row_tokens=row, device="cpu"))
    assert said / FACTOR <= found[0] <= said * FACTOR


def test_trees_are_said_as_long_as_they_are_made() -> None:
    assert PAIR_SLOWNESS == SLOWNESS
    model = tiny_model("llama")
    shape = shape_of(model.config.to_dict())
    prompt, replies = np.zeros(PROMPT, np.int64), [np.zeros(REPLY, np.int64)] * 16
    packed = pack_trees([prompt], [replies], 10_000, pair_price(model))
    assert tree_tokens(shape, PROMPT, REPLY, 16) == max(tree.num_tokens for part in packed for tree in part)


@pytest.mark.filterwarnings("ignore")  # the compiler's, about torch itself
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_what_a_compiled_layer_leaves_behind_is_said_to_the_byte(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flash kernels and bfloat16 as on a GPU. What is kept is chosen before programs are written, so none are here."""

    def compiled(forward: Any, dynamic: bool | None) -> Any:
        return torch.compile(forward, backend="aot_eager_decomp_partition", dynamic=dynamic)

    monkeypatch.setattr(layer_compiler, "_compiled", compiled)
    found = []
    for layers in (1, 2):
        model = tiny_model(kind, width=64)
        del model.model.layers[layers:]
        Kernels(BY_FLASH, is_compiled=True).apply(model)
        with torch.autocast("cpu", torch.bfloat16), saved_by_autograd(model) as saved:
            log_probs_of_group(model, apart=False, windows=BY_FLASH, length=512, sizes=(200, 130, 150))
        found.append(saved[0])
    shape, training = shape_of(tiny_model(kind, width=64).config.to_dict()), Training(device="cuda")
    said = 512 * layer_activation_bytes(shape, training) + copied_matrices_bytes(shape, training) // shape.layers
    assert found[1] - found[0] == said
