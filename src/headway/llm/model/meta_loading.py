"""A model without its weights, which are read when it is known which rows of them are needed here.

    config --> modules, weights on the meta device, buffers as they are --> cut into shards --> rows read from the files

So a rank never has more than its own rows: what it needs at its peak falls with the number of ranks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

PLACES = "_headway_places"
"""On a module whose weights are not read: name of a weight -> file and name there."""
INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
BLOCK_BYTES = 64 << 20
"""Rows of so many bytes are read at a time, or one row."""


class CannotWait(ValueError):
    """The weights of this model cannot be read row by row. One line."""


def unread_model(folder: Path, build: Callable[[], Any]) -> Any:
    """Builds a model whose weights are on the meta device and know where they lie in the files of `folder`."""
    files = _files(folder)
    with _weights_on_meta():
        model = build()
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            raise CannotWait(f"{name} is made while the model is built")
        if name not in files:
            raise CannotWait(f"its files do not have {name} by this name")
        with safe_open(files[name], "pt") as file:
            shape = tuple(file.get_slice(name).get_shape())
        if shape != tuple(parameter.shape):
            raise CannotWait(f"{name} has another shape in its files: {shape}")
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        own = {key: named[id(p)] for key, p in module._parameters.items() if p is not None}
        if own:
            setattr(module, PLACES, {key: (files[name], name) for key, name in own.items()})
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise CannotWait(f"the buffer {name} is made of weights")
        if name in files:
            with safe_open(files[name], "pt") as file:
                buffer.copy_(file.get_tensor(name))
    return model


def is_unread(root: Any) -> bool:
    return any(hasattr(module, PLACES) for module in root.modules())


@torch.no_grad()
def read_rows(root: Any, device: torch.device, first_row: Callable[[Tensor], int]) -> None:
    """Gives every weight on the meta device memory on `device`, and reads the rows that are here."""
    before = {id(p) for p in root.parameters() if p.is_meta}
    tied: dict[int, list[tuple[Any, str]]] = {}
    for module in root.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in before:
                tied.setdefault(id(parameter), []).append((module, key))
    root._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
    for (module, key), *others in tied.values():
        parameter = module._parameters[key]
        for other, its_key in others:
            other._parameters[its_key] = parameter
        path, name = getattr(module, PLACES)[key]
        rows: Any = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        _read_into(rows.detach(), path, name, first_row(parameter))
    for module in root.modules():
        if hasattr(module, PLACES):
            delattr(module, PLACES)


def _read_into(rows: Tensor, path: Path, name: str, first: int) -> None:
    with safe_open(path, "pt") as file:  # mapped: what is not asked for is not read
        found = file.get_slice(name)
        if not rows.dim():
            rows.copy_(file.get_tensor(name))
            return
        step = max(1, BLOCK_BYTES // max(1, rows[:1].nbytes))
        for begin in range(0, len(rows), step):
            end = min(len(rows), begin + step)
            rows[begin:end] = found[first + begin : first + end].to(rows.dtype)


def _files(folder: Path) -> dict[str, Path]:
    if (folder / INDEX).is_file():
        table = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in table.items()}
    if not (folder / ONE_FILE).is_file():
        raise CannotWait(f"{folder} has no safetensors files")
    with safe_open(folder / ONE_FILE, "pt") as file:
        return dict.fromkeys(file.keys(), folder / ONE_FILE)


@contextmanager
def _weights_on_meta() -> Iterator[None]:
    """Weights that this thread registers go to the meta device before anything is written into them."""
    kept, here = torch.nn.Module.register_parameter, threading.get_ident()

    def register(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and threading.get_ident() == here and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        kept(module, name, parameter)

    torch.nn.Module.register_parameter = register  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = kept  # type: ignore[method-assign]
