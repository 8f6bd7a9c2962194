"""A trained language model, or its adapters alone, as others load them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headway.coordinate.best_weights import Kept
from headway.llm.model_types import NamedWeights
from headway.recipes import Exported

if TYPE_CHECKING:
    from headway.recipes.grpo import GRPOConfig


def export(config: GRPOConfig, kept: Kept, folder: Path, *, adapters: bool = False) -> Exported:
    """Writes the model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    from headway.llm.models import load_model, load_tokenizer, locate
    from headway.llm.saving import save_adapters, save_model

    base, tokenizer = locate(config.model), load_tokenizer(config.model)
    metadata = {"pipeline_tag": "text-generation", "tags": ["reinforcement-learning", "headway"]}
    if not Path(base).is_dir():
        metadata["base_model"] = base
    facts = {"model it began with": config.model, "task": config.task}
    if not adapters:
        save_model(load_model(config.model), kept.weights, tokenizer, folder)
        usage = (
            'from transformers import AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM.from_pretrained("FOLDER")'
        )
        return Exported(usage, {"library_name": "transformers", **metadata}, facts)
    rank, alpha = config.lora_rank, config.lora_alpha
    save_adapters(_adapters(config, kept), tokenizer, folder, rank=rank, alpha=alpha, base=base)
    usage = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
    usage += f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "FOLDER")'
    return Exported(usage, {"library_name": "peft", **metadata}, {**facts, "rank": rank, "alpha": alpha})


def _adapters(config: GRPOConfig, kept: Kept) -> NamedWeights:
    """Finds adapters as they were trained. Published weights have them folded in: only a checkpoint has them apart."""
    if not config.lora_rank:
        raise ValueError("adapters=true needs a run with lora_rank > 0: this one trained all weights")
    if kept.state is None:
        raise ValueError(f"version {kept.version} is kept with its adapters folded in: export it without adapters=true")
    is_last = kept.state.last is not None and kept.state.last[0] == kept.version  # what the run ended with
    if kept.state.updates_in_version and not is_last:
        raise ValueError(f"the adapters of this checkpoint are newer than version {kept.version}, within publish_every")
    weights: NamedWeights = kept.state.learner["weights"]
    return weights
