"""A causal language model as a policy over tokens: what it says of the tokens of a microbatch, and its reference.

trees --> hidden [N, H] --> log-probabilities [N], entropy [N]
              |
              +--> values, for a critic that shares the backbone
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor

from headway.llm.engine.decoder_sampling import log_kept_mass
from headway.llm.model.adapters import has_adapters, without_adapters
from headway.llm.model.types import CausalModel
from headway.llm.train.grpo_settings import GRPOSettings
from headway.llm.train.heads import chosen_log_probs, logit_transform_of, model_logits
from headway.llm.train.kernels import PLAIN, Kernels
from headway.llm.train.trees import TreeBatch, hidden_states


class TokenPolicy:
    """Reads a model at the temperature the tokens were drawn at."""

    def __init__(self, model: CausalModel, settings: GRPOSettings, kernels: Kernels = PLAIN) -> None:
        self.model = model
        self.kernels = kernels
        self._settings = settings
        self._transform = logit_transform_of(model)

    def hidden(self, trees: TreeBatch) -> Tensor:
        with autocast(trees.tokens.device):
            return hidden_states(self.model, trees)

    def log_probs(self, hidden: Tensor, trees: TreeBatch) -> tuple[Tensor, Tensor]:
        """Returns log p of the trained tokens [N], and the entropy [N], with a gradient if it is rewarded."""
        with autocast(trees.tokens.device):
            return chosen_log_probs(
                self.model.get_output_embeddings(),
                hidden,
                trees.targets,
                transform=self._transform,
                temperature=self._settings.temperature,
                chunk=self._settings.logit_chunk_tokens,
                fused=self.kernels.is_compiled,
                with_entropy_gradient=self._settings.entropy_weight > 0,
            )

    def drawn_log_probs(self, trees: TreeBatch) -> Tensor:
        """Returns the log-probabilities [N] with which an engine draws the tokens, `top_k` and `top_p` included.

        A token that this model would have left out gets the one it would have had if it were kept.
        """
        hidden = self.hidden(trees)
        logs, sampling = self.log_probs(hidden, trees)[0], self._settings.sampling
        if not sampling.is_cut:
            return logs
        head = self.model.get_output_embeddings()
        masses = []
        for rows in hidden.split(self._settings.logit_chunk_tokens):
            logits = model_logits(head, rows, self._transform) / sampling.temperature
            masses.append(log_kept_mass(torch.log_softmax(logits, -1), sampling))
        return logs - torch.cat(masses)

    def read(self, trees: TreeBatch) -> Tensor:
        return self.log_probs(self.hidden(trees), trees)[0]


def find_reference(
    policy: TokenPolicy, settings: GRPOSettings, load: Callable[[], CausalModel] | None
) -> Callable[[TreeBatch], Tensor] | None:
    """Log-probabilities of the model as it came, if the loss wants them. With adapters it is the same model, with the
    adapters switched off; only where all weights are trained there is a second one."""
    if not settings.kl_weight:
        return None
    if has_adapters(policy.model):

        def read(trees: TreeBatch) -> Tensor:
            with without_adapters(policy.model):
                return policy.read(trees)

        return read
    if load is None:
        raise ValueError(f"kl_weight={settings.kl_weight!r} needs a reference model")
    model = policy.kernels.apply(load().eval().requires_grad_(False))
    return TokenPolicy(model, settings, policy.kernels).read


def autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Computes in bfloat16 on a GPU, where matrix products are made for it; on a CPU in the model's own precision."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()
