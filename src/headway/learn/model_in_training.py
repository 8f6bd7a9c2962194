"""A causal language model in training: what every learner of one keeps and does alike.

    load --> the model, without dropout --> its layout (llm/layouts.py) and its kernels (llm/kernels.py)
         --> sizes of microbatches
         --> the weights that are trained, with AdamW (learn/trained_weights.py)

With it go the number of updates and the dice of the learner, so that its state is all there is to go on from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.learn.grpo.policy import autocast
from headway.learn.grpo.replies import MicrobatchSizes
from headway.learn.kernel_settings import KernelSettings
from headway.learn.rank import Rank
from headway.learn.trained_weights import OptimizerSettings, TrainedWeights
from headway.llm.adapters import plain_weights
from headway.llm.kernels import choose_kernels
from headway.llm.layouts import choose_layout
from headway.llm.model_types import CausalModel
from headway.llm.trees import pair_price
from headway.llm.without_dropout import without_dropout


class ModelInTraining:
    """Builds a model, trains it step by step, publishes it, and goes on from a saved state bit for bit."""

    def __init__(
        self,
        load: Callable[[], CausalModel],
        settings: OptimizerSettings,
        *,
        layout: str,
        kernels: KernelSettings,
        microbatch_tokens: int,
        publish_dtype: torch.dtype | None,
        seed: int,
        rank: Rank,
    ) -> None:
        self.model = without_dropout(load())
        found = choose_layout(self.model, layout)
        attention, compiling = kernels.trainer_attention, kernels.compile_trainer
        self.kernels = choose_kernels(self.model, found, attention, compiling, microbatch_tokens, autocast)
        apart, windows = found == "rows", self.kernels.windows
        device = next(self.model.parameters()).device
        price = 0.0 if apart or windows is not None else pair_price(self.model)
        self.sizes = MicrobatchSizes(microbatch_tokens, price, device, apart, windows)
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("the model has no weights to train")
        self.trained = TrainedWeights(trained, settings, settings.learning_rate)
        self.random = np.random.default_rng(seed)
        self.updates = 0
        self._publish_dtype = publish_dtype
        self._rank = rank

    @property
    def device(self) -> torch.device:
        return self.sizes.device

    def step(self) -> Tensor:
        """Adds the gradients up over ranks and takes a step; returns their norm."""
        self._rank.add_up_gradients(self.trained.parameters)
        norm = self.trained.clip()
        self.trained.step()
        return norm

    def published(self) -> dict[str, Tensor]:
        """Returns what training has changed, as an engine wants it: plain weights under the model's own names."""
        return plain_weights(self.model, self._publish_dtype)

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.trained.state_dict(),
            "updates": self.updates,
            "random": self.random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained.load_state_dict(state)
        self.updates = state["updates"]
        self.random.bit_generator.state = state["random"]
