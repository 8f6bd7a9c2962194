"""The shape of a model by what a user writes: a named shape, a config.json, a folder, or any name that recipes take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.types_opaque import JsonObject
from headway.llm.memory.model_shape import FAMILY, NAMED_CONFIGS, ModelShape, ShapeError, named_shape, shape_of
from headway.runs.parsed_json import parsed

if TYPE_CHECKING:
    import torch

    from headway.llm.model.types import CausalModel


def find_shape(name: str) -> ModelShape:
    """Finds it without loading a weight. Only kinds of models outside of the Llama family, and names that are no
    folder, need transformers."""
    if name in NAMED_CONFIGS:
        return named_shape(name)
    path = Path(name).expanduser()
    file = path if path.suffix == ".json" else path / "config.json"
    if file.is_file():
        config = _read(file)
        if (config.get("text_config") or config).get("model_type") in FAMILY:
            return shape_of(config, name)
        if path == file:
            return _by_transformers(name, str(path.parent))
    elif path.suffix == ".json":
        raise ShapeError(f"model {name!r}: there is no such file")
    return _by_transformers(name, name)


def _read(file: Path) -> JsonObject:
    try:
        config = parsed(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShapeError(f"{file} could not be read: {error}") from None
    if not isinstance(config, dict):
        raise ShapeError(f"{file} holds no config: it must be an object")
    return config


def _by_transformers(name: str, place: str) -> ModelShape:
    from headway.llm.engine.vllm_engine import weight_shapes
    from headway.llm.model.loading_models import load_config

    config = load_config(place)
    known = config.to_dict()
    if (known.get("text_config") or known).get("model_type") in FAMILY:
        return shape_of(known, name)
    return shape_of(known, name, weight_shapes(config))


def random_model(name: str, *, dtype: torch.dtype, device: str) -> CausalModel:
    """Builds a model of this shape with random weights: it says nothing, and takes as long as the real one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from headway.llm.model.loading_models import load_config

    path = Path(name).expanduser()
    if name in NAMED_CONFIGS or path.suffix == ".json":
        known = {**(NAMED_CONFIGS[name] if name in NAMED_CONFIGS else _read(path))}
        config = AutoConfig.for_model(str(known.pop("model_type")), **known)
    else:
        config = load_config(name)
    with torch.device(device):
        model: CausalModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model
