"""A causal language model with its optimizer: what learners that have one model and one loss keep and do alike.

load --> the model, without dropout --> its layout (llm/layouts.py) --> sizes of microbatches
     --> the weights that are trained --> AdamW
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headway.learn.grpo.replies import MicrobatchSizes
from headway.learn.grpo.settings import OptimizerSettings
from headway.learn.rank import Rank
from headway.llm.adapters import plain_weights
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
        microbatch_tokens: int,
        publish_dtype: torch.dtype | None,
        rank: Rank,
    ) -> None:
        self.model = without_dropout(load())
        apart = choose_layout(self.model, layout) == "rows"
        device = next(self.model.parameters()).device
        price = 0.0 if apart else pair_price(self.model)
        self.sizes = MicrobatchSizes(microbatch_tokens, price, device, apart)
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ValueError("the model has no weights to train")
        self._optimizer = torch.optim.AdamW(
            self.trained.values(),
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._max_grad_norm = settings.max_grad_norm
        self._publish_dtype = publish_dtype
        self._rank = rank

    def set_learning_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def step(self) -> Tensor:
        """Adds the gradients up over ranks and takes a step; returns their norm."""
        parameters = list(self.trained.values())
        self._rank.add_up_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._max_grad_norm, foreach=True)
        self._optimizer.step()
        return norm

    def published(self) -> dict[str, Tensor]:
        """Returns what training has changed, as an engine wants it: plain weights under the model's own names."""
        return plain_weights(self.model, self._publish_dtype)

    def weights(self) -> dict[str, Tensor]:
        """Returns the trained weights themselves."""
        return {name: parameter.detach() for name, parameter in self.trained.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(torch.as_tensor(state["weights"][name]))
        self._optimizer.load_state_dict(state["optimizer"])
