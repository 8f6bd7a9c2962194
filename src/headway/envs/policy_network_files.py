"""A network as a file that other programs load.

    FILE.onnx   ONNX, for onnxruntime and others        needs onnx and onnxscript: pip install 'headway[onnx]'
    FILE.pt2    torch.export.load(FILE).module()        torch alone
    FILE.pt     torch.jit.load(FILE)                    torch alone, C++ too (TorchScript)

The number of observations in a batch may be any. A file that is there is whole.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headway.coordinator.state_files_whole_files import written_beside
from headway.core.text_naming import unknown


@dataclass(frozen=True, slots=True)
class Deployable:
    """A module whose `forward` takes the `inputs` and returns the `outputs`, each a tensor [B, ...]."""

    make_module: Callable[[], nn.Module]
    inputs: Mapping[str, Tensor]  # by name, in order: examples [B, ...] of the right kind
    outputs: tuple[str, ...]


def write_network(deployable: Deployable, to: Path) -> Path:
    """Writes it in the format that the ending of the name says."""
    if to.suffix not in WRITERS:
        raise ValueError(unknown("ending of a network's file", to.suffix, WRITERS))
    if to.exists():
        raise ValueError(f"{to} exists: choose another name")
    module = deployable.make_module().eval().requires_grad_(False)
    with written_beside(to) as beside, _quiet():
        WRITERS[to.suffix](module, deployable, beside)
    return to


def _write_onnx(module: nn.Module, deployable: Deployable, to: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"a file of ONNX needs {error.name}: pip install 'headway[onnx]'") from None
    torch.onnx.export(
        module,
        tuple(deployable.inputs.values()),
        to,
        input_names=list(deployable.inputs),
        output_names=list(deployable.outputs),
        dynamic_shapes=_any_batch(deployable),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _write_program(module: nn.Module, deployable: Deployable, to: Path) -> None:
    program = torch.export.export(module, tuple(deployable.inputs.values()), dynamic_shapes=_any_batch(deployable))
    with open(to, "wb") as file:
        torch.export.save(program, file)


def _write_script(module: nn.Module, deployable: Deployable, to: Path) -> None:
    traced = torch.jit.trace(module, tuple(deployable.inputs.values()))
    traced.save(str(to))


def _any_batch(deployable: Deployable) -> tuple[dict[int, torch.export.Dim], ...]:
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in deployable.inputs)


WRITERS: dict[str, Callable[[nn.Module, Deployable, Path], None]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_program,
    ".pt": _write_script,
}
"""By the ending of the file."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters speak of what is deprecated in their own code, which nobody here can change."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
