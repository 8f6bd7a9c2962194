"""A trained model as a folder that others load: all of it, or the adapters beside the model they belong to.

config.json, model.safetensors, generation_config.json    the model, trained weights in place of its own
adapter_config.json, adapter_model.safetensors            adapters alone, as peft reads them
tokenizer.json and its neighbours                         in both
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from headway.llm.model.loading_models import ModelError
from headway.llm.model.types import CausalModel, NamedWeights, Tokenizer

PLACE = ".lora_"
ADAPTER = ".default."  # what peft calls an adapter without a name


def save_model(model: CausalModel, weights: NamedWeights, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a model with the weights that training has changed, under its own names; their dtype becomes its own."""
    save_pretrained(with_weights(model, weights), tokenizer, folder)


def save_pretrained(model: CausalModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a model as it is, with its tokenizer."""
    with _refusals_as_os_errors(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def with_weights(model: CausalModel, weights: NamedWeights) -> CausalModel:
    """Puts the weights that training has changed into a model, whose dtype becomes theirs."""
    trained: dict[str, Tensor] = {name: torch.as_tensor(value) for name, value in weights.items()}
    model = model.to(next(iter(trained.values())).dtype)
    own = dict(model.named_parameters())
    for name, tensor in trained.items():
        if name not in own or own[name].shape != tensor.shape:
            there = f"of shape {tuple(own[name].shape)}" if name in own else "not there"
            raise ModelError(
                f"the run has trained {name} {tuple(tensor.shape)}, which is {there} in the model it began with"
            )
    with torch.no_grad():
        for name, tensor in trained.items():
            own[name].copy_(tensor)
    return model


@contextmanager
def _refusals_as_os_errors(folder: Path) -> Iterator[None]:
    """Raises OSError where the operating system refuses: what writes these files has exceptions of its own for that."""
    try:
        yield
    except Exception as error:
        found = None if isinstance(error, OSError) else re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(folder)) from error


def save_adapters(
    weights: NamedWeights, tokenizer: Tokenizer, folder: Path, *, rank: int, alpha: float, base: str
) -> None:
    """Writes the A and B of every adapted layer, given under the names they have where they are trained; `base` is the
    folder of the model they belong to, or its id."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    named = {
        f"base_model.model.{name.replace(ADAPTER, '.')}": torch.as_tensor(value).contiguous()
        for name, value in weights.items()
    }
    layers = sorted({name.partition(PLACE)[0].rpartition(".")[2] for name in weights})
    config = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=layers,
        lora_dropout=0.0,
        inference_mode=True,
    )
    with _refusals_as_os_errors(folder):
        config.save_pretrained(str(folder))
        save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(folder)
