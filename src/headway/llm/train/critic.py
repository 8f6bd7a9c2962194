"""A critic: how much reward is still to come, said before each token.

    text before a token --> backbone --> hidden [N, H] --> head --> value [N]

    shared    the policy's own backbone, one forward pass for both; the value loss shapes its features too
    own       a second model of the policy's kind: twice the memory and the work, and neither disturbs the other

    one update
        values, with the weights it starts from --> advantages and targets: GAE over the tokens of each reply, or
                                                    over the turns of each episode (credit.py)
        every gradient step: (value - target)^2, where a step beyond `value_clip` from the first value earns nothing

The head starts at zero, so the first advantages are the rewards. For the first `critic_warmup_updates` updates the
critic learns alone and the policy keeps every bit: with a shared backbone, only the head learns then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from headway.core.types import State
from headway.llm.model.types import CausalModel
from headway.llm.train.advantages import at_the_end, token_gae
from headway.llm.train.advantages_credit import Turns, turn_gae
from headway.llm.train.grpo_loss_loss import TokenLoss, value_loss
from headway.llm.train.kernels import PLAIN, Kernels
from headway.llm.train.optimizer_trained_weights import OptimizerSettings, TrainedWeights
from headway.llm.train.ragged import Ragged
from headway.llm.train.shard_files import SavedShards
from headway.llm.train.sharding import Shards, shard_body
from headway.llm.train.trees import TreeBatch, body_of, hidden_states
from headway.llm.train.without_dropout import without_dropout
from headway.ranks.rank import ALONE, Rank


class CriticSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Critic: with the estimator gae."""

    critic: Literal["shared", "own"] = "shared"
    """With gae: a head on the policy's backbone, or a second model. own takes twice the memory and the work; shared
    lets the value loss shape the policy's features."""
    gae_gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token, in episodes per turn. Below 1 short replies (few turns) are preferred."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """1: the advantage is the return minus the value. Lower trusts the critic more, with less variance. Per token, in
    episodes per turn."""
    value_clip: float | None = Field(default=0.5, gt=0)
    """How far a value may move in one update. Unset: as far as it likes."""
    value_weight: float = Field(default=0.5, gt=0)
    """Of the value loss; raising it gives a shared critic more to say about the backbone."""
    critic_learning_rate: float = Field(default=1e-4, gt=0)
    """Step size of AdamW for what only the critic has: its head, or its own model."""
    critic_warmup_updates: int = Field(default=0, ge=0)
    """The critic learns alone so many updates, and the policy keeps its weights. More make the first advantages
    better."""


class Critic:
    """Says before each token how much reward is still to come, and learns from its errors."""

    def __init__(
        self,
        settings: CriticSettings,
        policy: CausalModel,
        optimizer: OptimizerSettings,
        *,
        load: Callable[[], CausalModel] | None = None,
        kernels: Kernels = PLAIN,
        rank: Rank = ALONE,
        shard_ranks: int | None = None,
    ) -> None:
        self.settings = settings
        weight = policy.get_output_embeddings().weight
        kind: Any = torch.nn.Linear  # without its own random start
        self._head = torch.nn.utils.skip_init(kind, weight.shape[1], 1, device=weight.device, dtype=weight.dtype)
        torch.nn.init.zeros_(self._head.weight)
        torch.nn.init.zeros_(self._head.bias)
        self._body: Any = None
        self._shards: Shards | None = None
        if settings.critic == "own":
            if load is None:
                raise ValueError("a critic of its own needs a model")
            self._body = without_dropout(body_of(load()))  # no head over the vocabulary
            self._shards = shard_body(self._body, rank, shard_ranks)
            kernels.apply(self._body)
        trained = {f"head.{name}": p for name, p in self._head.named_parameters()}
        if self._body is not None:
            trained |= {name: p for name, p in self._body.named_parameters() if p.requires_grad}
        self.trained = TrainedWeights(trained, optimizer, settings.critic_learning_rate, rank)

    @property
    def is_shared(self) -> bool:
        return self._body is None

    def values(self, trees: TreeBatch, hidden: Tensor | None) -> Tensor:
        """Returns the value before each trained token, [N]. A shared critic reads the policy's `hidden` [N, H]."""
        if self._body is not None:
            hidden = hidden_states(self._body, trees)
        assert hidden is not None
        with torch.autocast(hidden.device.type, enabled=False):
            found: Tensor = self._head(hidden.to(self._head.weight.dtype))
        return found[:, 0]

    def advantages(
        self, rewards: Tensor, penalties: Tensor | None, values: Tensor, sequences: Ragged
    ) -> tuple[Tensor, Tensor]:
        """Makes advantages and value targets of tokens, both [N], from rewards of replies [S] and penalties [N]."""
        per_token = at_the_end(rewards.to(values.dtype), sequences)
        if penalties is not None:
            per_token = per_token - penalties
        return token_gae(per_token, values, sequences, gamma=self.settings.gae_gamma, lam=self.settings.gae_lambda)

    def turn_advantages(
        self, turns: Turns, penalties: Tensor | None, values: Tensor, sequences: Ragged, after: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Makes the same of episodes: `after` [S] is the value behind each that was cut."""
        gamma, lam = self.settings.gae_gamma, self.settings.gae_lambda
        return turn_gae(turns, penalties, values, sequences, gamma=gamma, lam=lam, bootstrap=after)

    def load_state_dict(self, state: State) -> None:
        self.trained.load_state_dict(state)
        if self._shards is not None:
            self._shards.forget_gathered()

    def load_parts(self, saved: SavedShards, rest: State) -> None:
        self.trained.load_parts("critic", saved, rest)
        if self._shards is not None:
            self._shards.forget_gathered()

    def loss(self, values: Tensor, targets: Tensor, old_values: Tensor, num_tokens: int) -> TokenLoss:
        """Returns the share of some tokens [n] in the mean error over `num_tokens`, before `value_weight`."""
        scale = torch.full_like(targets, 1 / num_tokens)
        return value_loss(values, targets, scale, old_values=old_values, clip=self.settings.value_clip)
