"""What a learner that imitates can be told: a recipe's config inherits it and hands it on whole."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headway.llm.train.heads import CHUNK
from headway.llm.train.kernels_kernel_settings import KernelSettings
from headway.llm.train.optimizer_schedules import Schedule
from headway.llm.train.optimizer_trained_weights import OptimizerSettings


class ImitationSettings(OptimizerSettings, KernelSettings):
    """Update: how the learner reads a batch of episodes."""

    microbatch_tokens: int = Field(default=2048, ge=1)
    """Tokens per forward pass. Fewer take less memory; what is learned is the same."""
    logit_chunk_tokens: int = Field(default=CHUNK, ge=1)
    """Tokens whose logits are in memory at once. Fewer take less, where the vocabulary is large; what is learned is the
    same."""
    layout: Literal["auto", "tree", "rows"] = "auto"
    """How the trainer reads an episode. tree: by a mask of ours. rows: by the model's own rules, which every model can.
    auto: tree where the model gives the same numbers, else rows."""

    @model_validator(mode="after")
    def _can_fall(self) -> Self:
        if self.lr_floor and self.lr_schedule == "constant":
            raise ValueError(
                f"lr_floor={self.lr_floor:g} goes with a learning rate that falls: lr_schedule=linear or cosine"
            )
        if self.lr_schedule == "constant" or self.updates is not None:
            self.schedule()
        return self

    def schedule(self) -> Schedule:
        return Schedule(self.lr_schedule, self.warmup_updates, self.updates, self.lr_floor)
