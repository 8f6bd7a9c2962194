"""AdamW in less memory: in full it is torch's, in 8 bit it learns as well, and its state is what it is said to be."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headway.llm.train.optimizer_lean_adamw import BLOCK, LeanAdamW  # noqa: E402
from headway.llm.train.optimizer_trained_weights import OptimizerSettings, TrainedWeights  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def weights(kind: Any = None) -> list[Any]:
    dice = torch.Generator().manual_seed(5)
    shapes = [(70, 300), (33,), (4, 8, 100), ()]
    return [torch.randn(shape, generator=dice).to(kind or torch.float32).requires_grad_() for shape in shapes]


def push(parameters: list[Any], number: int) -> None:
    dice = torch.Generator().manual_seed(number)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=dice).to(parameter.dtype)


@pytest.mark.parametrize("state", ["full", "host"])
def test_in_full_and_on_the_host_it_is_adamw(state: Any) -> None:
    ours, theirs = weights(), weights()
    lean, plain = LeanAdamW(ours, state=state, **SETTINGS), torch.optim.AdamW(theirs, **SETTINGS)
    for number in range(5):
        push(ours, number)
        push(theirs, number)
        lean.step()
        plain.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def bytes_of(optimizer: LeanAdamW) -> int:
    return sum(part.numel() * part.element_size() for parts in optimizer.state.values() for part in parts.values())


def test_in_8_bit_the_state_takes_a_quarter_and_goes_on_bit_for_bit() -> None:
    sizes = {}
    for state in ("full", "8bit"):
        ours = [torch.zeros(64, 1024, requires_grad=True)]
        optimizer = LeanAdamW(ours, state=state, **SETTINGS)
        push(ours, 0)
        optimizer.step()
        sizes[state] = bytes_of(optimizer)
    assert sizes["full"] == 8 * 64 * 1024
    assert sizes["8bit"] == 2 * 64 * 1024 + 2 * 4 * 64 * 1024 // BLOCK
    first = weights()
    one = LeanAdamW(first, state="8bit", **SETTINGS)
    push(first, 1)
    one.step()
    second = [copy.deepcopy(parameter) for parameter in first]
    other = LeanAdamW(second, state="8bit", **SETTINGS)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for parameters, optimizer in ((first, one), (second, other)):
        push(parameters, 2)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(ValueError, match="the saved state is of another optimizer_state than 'full'"):
        LeanAdamW(second, state="full", **SETTINGS).load_state_dict(one.state_dict())


def learned(state: str, kind: Any, seed: int) -> float:
    """The loss of a small network after some steps on a made-up task."""
    torch.manual_seed(seed)
    inputs = torch.randn(512, 96)
    target = torch.tanh(inputs @ torch.randn(96, 1) / 5)
    layers = [torch.nn.Linear(96, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)]
    network = torch.nn.Sequential(*layers).to(kind)
    settings = OptimizerSettings(learning_rate=3e-3, optimizer_state=state, adam_beta2=0.999)
    trained = TrainedWeights(dict(network.named_parameters()), settings, settings.learning_rate)
    for step in range(300):
        rows = slice(64 * (step % 8), 64 * (step % 8) + 64)
        trained.forget_gradients()
        (network(inputs[rows].to(kind)).float() - target[rows]).square().mean().backward()
        trained.clip()
        trained.step()
    with torch.no_grad():
        return float((network(inputs.to(kind)).float() - target).square().mean())


@pytest.mark.parametrize("share", [1e-7, 1e-6, 2e-5, 3e-3, 0.4])
def test_moments_in_8_bit_are_right_on_average(share: float) -> None:
    """Of a gradient that is this share of the largest one in its block."""
    gradient = torch.full((400, BLOCK), share)
    gradient[:, 0] = 1.0
    parameter = torch.zeros(400, BLOCK, requires_grad=True)
    optimizer = LeanAdamW([parameter], state="8bit", **SETTINGS | {"weight_decay": 0.0})
    parameter.grad = gradient
    optimizer.step()
    state = optimizer.state[0]
    means = (state["exp_avg"].double() / 127) ** 3 * state["exp_avg_scale"].double()
    found = means[:, 1:]
    error = float(found.std()) / found.numel() ** 0.5
    assert abs(float(found.mean()) - 0.1 * share) < 4 * error + 1e-6 * share  # beta1 0.9: a tenth of the gradient
    squares = (state["exp_avg_sq"].double() / 255) ** 4 * state["exp_avg_sq_scale"].double()
    found, exact = squares[:, 1:], 0.05 * share**2
    if share**2 > 255.0**-4:  # below the smallest code it is that code, never nothing
        error = float(found.std()) / found.numel() ** 0.5
        assert abs(float(found.mean()) - exact) < 4 * error + 1e-6 * exact
    assert float(found.min()) > 0


def test_in_8_bit_and_in_bfloat16_it_learns_like_in_full_within_the_spread_of_seeds() -> None:
    full = [learned("full", torch.float32, seed) for seed in range(4)]
    for state, kind in (("8bit", torch.float32), ("host", torch.float32), ("full", torch.bfloat16)):
        found = [learned(state, kind, seed) for seed in range(4)]
        assert sum(found) / 4 < 1.5 * max(full) + 1e-3, (state, kind, found, full)


def test_bfloat16_weights_move_by_steps_that_they_cannot_show() -> None:
    """A step of 1e-5 on a weight of 1 is lost by rounding to the nearest; by chance it is there on average."""
    weight = torch.ones(20_000, dtype=torch.bfloat16, requires_grad=True)
    optimizer = LeanAdamW([weight], **{**SETTINGS, "lr": 1e-5, "weight_decay": 0.0})
    for _ in range(50):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert float(weight.detach().float().mean()) == pytest.approx(1 - 50e-5, abs=1e-4)


@pytest.mark.parametrize(("state", "kind"), [("8bit", "float32"), ("host", "float32"), ("full", "bfloat16")])
def test_the_setting_chooses_what_is_kept(state: Any, kind: str) -> None:
    named = {"w": torch.zeros(4, 256, dtype=getattr(torch, kind), requires_grad=True)}
    trained = TrainedWeights(named, OptimizerSettings(optimizer_state=state), 1e-3)
    named["w"].grad = torch.ones_like(named["w"])
    trained.step()
    (kept,) = trained.state_dict()["optimizer"]["state"].values()
    assert kept["exp_avg"].dtype == (torch.int8 if state == "8bit" else torch.float32)
    assert kept["exp_avg"].device.type == "cpu"
