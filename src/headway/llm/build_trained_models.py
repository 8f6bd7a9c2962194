"""The language model that a recipe trains: where it computes, how it is built, and how it is written for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.state_files_saved_beside import SavedBeside
from headway.core.protocols import Learner, Placement
from headway.core.types import derive_seed
from headway.llm.model.adapters import add_adapters
from headway.llm.model.types import CausalModel, NamedWeights
from headway.llm.weights.source_offered_rows import OffersRows, RankOfShards
from headway.llm.weights.source_weight_source import WeightSource
from headway.ranks.rank import Device, Rank, repeatable
from headway.ranks.settings import BEFORE_THE_DEADLINE, ShardedConfig
from headway.runs.recipes_package import Exported

UNREAD = "meta"
"""In place of a device: weights are read when the model is cut, by each rank its own rows."""


class TrainsAModel(Protocol):
    """The settings of a recipe, as far as they concern the model itself."""

    @property
    def model(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def parameter_dtype(self) -> str: ...

    @property
    def lora_rank(self) -> int: ...

    @property
    def lora_alpha(self) -> float: ...

    @property
    def gradient_checkpointing(self) -> bool: ...

    @property
    def torch_threads(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def runtime(self) -> str: ...

    @property
    def placement(self) -> Placement: ...


class ShardedModel(TrainsAModel, Protocol):
    """The same, where the model may be cut into shards."""

    @property
    def ranks_of_a_model(self) -> int | None: ...


def device_of(config: TrainsAModel) -> Device:
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU")
    return "cuda" if config.device == "cuda" else "cpu"


def with_gpus(config: TrainsAModel, num_gpus: float, processes: int = 1) -> Placement:
    """What each process of a role asks for, and how many of them it is made of."""
    gpus = 0.0 if config.device == "cpu" else num_gpus
    return replace(config.placement, num_gpus=gpus, processes=processes)


def ranks_on(config: TrainsAModel) -> Device:
    if config.runtime == "ray" and config.device == "cuda":  # where the run is started there need not be one
        return "cuda"
    return "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"


def loading_device(config: ShardedModel, rank: Rank) -> str:
    """Where a rank loads a model. Of one that will be cut, only this rank's rows are read, after that (UNREAD)."""
    if rank.size > 1 and config.ranks_of_a_model is not None:
        return UNREAD
    return str(rank.device) if rank.device.type == "cuda" else repeatable(device_of(config))


def offering_rows(config: ShardedConfig, build: Callable[[Rank], RankOfShards]) -> Callable[[Rank], Learner]:
    """Builds one rank of a learner; where the model is cut, each offers its rows to whoever needs the weights."""
    return build if config.ranks_of_a_model is None else partial(_offering_rank, config, build)


def _offering_rank(config: ShardedConfig, build: Callable[[Rank], RankOfShards], rank: Rank) -> Learner:
    learner = build(rank)
    if rank.size == 1:
        return learner
    deadline_s = BEFORE_THE_DEADLINE * config.publish_deadline_s
    return OffersRows(learner, partial(WeightSource, rank.here, deadline_s=deadline_s))


def trained_model(config: TrainsAModel, device: str) -> CausalModel:
    torch.set_num_threads(config.torch_threads)
    model = frozen_model(config, device, trained_dtype(config))
    if config.lora_rank:
        seed = derive_seed(config.seed, "adapters")
        model = add_adapters(model, config.lora_rank, config.lora_alpha, seed=seed)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def trained_dtype(config: TrainsAModel) -> torch.dtype:
    return torch.bfloat16 if config.parameter_dtype == "bfloat16" else torch.float32


def frozen_model(config: TrainsAModel, device: str, dtype: torch.dtype = torch.float32) -> CausalModel:
    from headway.llm.model.loading_models import load_model, load_unread

    unread = load_unread(config.model, dtype=dtype) if device == UNREAD else None
    return unread or load_model(config.model, dtype=dtype, device="cpu" if device == UNREAD else device)


# -- for others -------------------------------------------------------------------------------------


def export_model(
    config: TrainsAModel, kept: Kept, folder: Path, *, facts: Mapping[str, object], adapters: bool = False
) -> Exported:
    """The model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    from headway.llm.model.loading_models import load_tokenizer, locate
    from headway.llm.model.loading_saving import save_adapters, save_model

    base, tokenizer = locate(config.model), load_tokenizer(config.model)
    metadata = {"pipeline_tag": "text-generation", "tags": ["reinforcement-learning", "headway"]}
    if not Path(base).is_dir():
        metadata["base_model"] = base
    facts = {"model it began with": config.model, **facts}
    if not adapters:
        save_model(frozen_model(config, "cpu"), kept.weights, tokenizer, folder)
        usage = (
            'from transformers import AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM.from_pretrained("FOLDER")'
        )
        return Exported(usage, {"library_name": "transformers", **metadata}, facts)
    rank, alpha = config.lora_rank, config.lora_alpha
    save_adapters(_adapters(config, kept), tokenizer, folder, rank=rank, alpha=alpha, base=base)
    usage = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
    usage += f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "FOLDER")'
    return Exported(usage, {"library_name": "peft", **metadata}, {**facts, "rank": rank, "alpha": alpha})


def _adapters(config: TrainsAModel, kept: Kept) -> NamedWeights:
    """As they were trained. Published weights have them folded in: only a checkpoint has them by themselves."""
    if not config.lora_rank:
        raise ValueError("adapters=true needs a run with lora_rank > 0: this one trained all weights")
    if kept.state is None:
        raise ValueError(f"version {kept.version} is kept with its adapters folded in: export it without adapters=true")
    is_last = kept.state.last is not None and kept.state.last[0] == kept.version  # what the run ended with
    if kept.state.updates_in_version and not is_last:
        raise ValueError(f"the adapters of this checkpoint are newer than version {kept.version}, within publish_every")
    learner = kept.state.learner
    if isinstance(learner, SavedBeside):
        from headway.llm.train.shard_files import SavedShards

        saved, kind = SavedShards(Path(learner.folder)), "policy/weights/"
        return {name.removeprefix(kind): saved.read(name) for name in saved.shapes if name.startswith(kind)}
    weights: NamedWeights = learner["weights"]
    return weights
