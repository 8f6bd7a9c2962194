"""What is asked of a causal language model and of its tokenizer: as transformers makes them, written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

NamedWeights = Mapping[str, Tensor | np.ndarray]
"""Weights under the model's own names."""


class ModelError(ValueError):
    """A model cannot be loaded, or not be used as it is asked to. One line."""


class Detokenizer(Protocol):
    """Makes text of tokens."""

    def decode(self, token_ids: list[int]) -> str: ...


class Tokenizer(Detokenizer, Protocol):
    """Makes tokens of text and of conversations."""

    chat_template: Any
    eos_token_id: int | None

    def encode(self, text: str, **options: Any) -> list[int]: ...

    def get_chat_template(self) -> str: ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> Any: ...

    def save_pretrained(self, save_directory: str | Path) -> Any: ...


class CausalModel(Protocol):
    """A module whose output are logits of the next token. What its config says, and under which names, differs."""

    config: Any
    base_model: Any

    def __call__(self, *, input_ids: Tensor, **options: Any) -> Any: ...

    def get_input_embeddings(self) -> torch.nn.Embedding: ...

    def get_output_embeddings(self) -> torch.nn.Linear: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...

    def modules(self) -> Iterator[torch.nn.Module]: ...

    def named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def train(self) -> Self: ...

    def eval(self) -> Self: ...

    def requires_grad_(self, requires_grad: bool = True) -> Self: ...

    def to(self, target: torch.dtype | torch.device | str) -> Self: ...

    def save_pretrained(self, save_directory: str | Path) -> Any: ...

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None: ...
