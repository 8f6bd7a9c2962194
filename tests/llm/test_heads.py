"""Log-probabilities read off a head in chunks: the same as log_softmax, its gradient, and no large matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway.llm.train.heads import PLAIN, LogitTransform, chosen_log_probs

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's compiler, when it is imported


def plain(
    head: torch.nn.Linear, hidden: Tensor, targets: Tensor, temperature: float, transform: LogitTransform
) -> tuple[Tensor, Tensor]:
    logits = head(hidden) * transform.scale
    if transform.cap is not None:
        logits = transform.cap * torch.tanh(logits / transform.cap)
    logs = torch.log_softmax(logits / temperature, -1)
    return logs.gather(1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def made_up(seed: int, rows: int, words: int = 29, width: int = 6, bias: bool = True) -> tuple[Any, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    head = torch.nn.Linear(width, words, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    hidden = 3 * torch.randn(rows, width, generator=random, dtype=torch.float64)
    return head, hidden.requires_grad_(), torch.randint(0, words, (rows,), generator=random)


@pytest.fixture(autouse=True, scope="module")
def uncompiled() -> Iterator[None]:
    """What would be compiled runs as it is written; compiled it is in test_kernels.py."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("fused", [False, True])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 13),
    chunk=st.integers(1, 14),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    bias=st.booleans(),
    entropy_matters=st.booleans(),
    transform=st.sampled_from(
        [PLAIN, LogitTransform(scale=0.3), LogitTransform(cap=4.0), LogitTransform(scale=2.0, cap=5.0)]
    ),
)
def test_values_and_gradients_are_those_of_log_softmax_whatever_the_chunk(
    fused: bool,
    seed: int,
    rows: int,
    chunk: int,
    temperature: float,
    bias: bool,
    entropy_matters: bool,
    transform: LogitTransform,
) -> None:
    head, hidden, targets = made_up(seed, rows, bias=bias)
    slopes = torch.randn(2, rows, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    found = chosen_log_probs(
        head,
        hidden,
        targets,
        transform=transform,
        temperature=temperature,
        chunk=chunk,
        with_entropy_gradient=entropy_matters,
        fused=fused,
    )
    expected = plain(head, hidden, targets, temperature, transform)
    subjects = [hidden, *head.parameters()]
    gradients = []
    for logs, entropy in (found, expected):
        loss = (slopes[0] * logs).sum() + ((slopes[1] * entropy).sum() if entropy_matters else 0)
        gradients.append(torch.autograd.grad(loss, subjects))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*gradients)
    assert found[1].requires_grad == entropy_matters


@pytest.mark.parametrize("fused", [False, True])
def test_absurd_logits_give_finite_numbers(fused: bool) -> None:
    head, hidden, targets = made_up(0, 5)
    logs, entropy = chosen_log_probs(head, hidden * 1e4, targets, with_entropy_gradient=True, fused=fused)
    (logs.sum() + entropy.sum()).backward()
    for values in (logs, entropy, hidden.grad):
        assert values is not None
        assert torch.isfinite(values).all()


class Largest(TorchDispatchMode):
    """Rows of the largest matrix over the vocabulary that is made."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.rows = 0
        self._words = words

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_matrix = isinstance(out, Tensor) and out.dim() == 2 and out.shape[1] == self._words
        if is_matrix and func is not torch.ops.aten.t.default:  # the weights seen from the other side
            self.rows = max(self.rows, out.shape[0])
        return out


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("entropy_matters", [False, True])
def test_logits_are_never_there_for_more_rows_than_a_chunk(entropy_matters: bool, fused: bool) -> None:
    head, hidden, targets = made_up(1, 32, words=101)
    options: Any = {"chunk": 8, "with_entropy_gradient": entropy_matters, "fused": fused}
    with Largest(101) as seen:
        logs, entropy = chosen_log_probs(head, hidden, targets, **options)
        (logs.sum() + entropy.sum()).backward()
    assert seen.rows == 8
