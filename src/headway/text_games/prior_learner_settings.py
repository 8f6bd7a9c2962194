"""What the learner of a prior can be told: a recipe's config inherits it and hands it on whole."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headway.llm.train.grpo_settings import GRPOSettings
from headway.llm.train.heads import CHUNK
from headway.llm.train.kernels_kernel_settings import KernelSettings

PriorLoss = Literal["imitation", "ppo", "imitation_then_ppo"]
PriorPhase = Literal["imitation", "ppo"]


class PriorSettings(KernelSettings):
    """Prior: how the language model learns from what the search has found."""

    prior_loss: PriorLoss = "imitation"
    """imitation: say what the search visited. ppo: make actions likelier that turned out better than the search's
    value. imitation_then_ppo: the first for imitation_updates, then the second."""
    imitation_updates: int = Field(default=100, ge=0)
    """With imitation_then_ppo: updates of imitation before the first of ppo."""
    prior_learning_rate: float = Field(default=3e-5, gt=0)
    """Step size of AdamW. Adapters (lora_rank) take about ten times as much, a small model made on the spot a hundred
    times."""
    prior_batch_size: int = Field(default=16, ge=1)
    """Distinct states per gradient step. Equal states of a batch are read once and count as often as they came."""
    prior_epochs: int = Field(default=1, ge=1)
    """Passes over a batch."""
    prior_max_states: int | None = Field(default=None, ge=1)
    """The most distinct states of a batch that are learned from, drawn by how often they came; unset: all. Fewer make
    an update of a large model quick; how many rows were left out is reported."""
    prior_temperature: float = Field(default=2.0, gt=0)
    """The prior of actions is softmax(mean log-probability of their tokens / this): in the search, and in what
    imitation compares with the visits. Raising it makes the prior flatter."""
    min_spread: float = Field(default=0.01, ge=0)
    """Imitate only searches that saw values so far apart, largest less smallest: where all look alike, visits tell
    nothing but the prior itself."""
    prior_clip: float = Field(default=0.2, gt=0, lt=1)
    """ppo: how far a token may become more or less likely in one update."""
    prior_kl: float = Field(default=0.01, ge=0)
    """ppo: holds the prior near the model it started from. With adapters that model is there already; otherwise a
    second one is loaded."""
    prior_td_steps: int = Field(default=5, ge=1)
    """ppo: rewards that are summed up before the search's value is trusted."""
    gamma: float = Field(default=0.997, gt=0, le=1)
    """Discount of rewards per step."""
    prior_max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm of the prior."""
    microbatch_tokens: int = Field(default=2048, ge=1)
    """Tokens per forward pass of the language model. Fewer take less memory; what is learned is the same."""
    logit_chunk_tokens: int = Field(default=CHUNK, ge=1)
    """Tokens whose logits are in memory at once. Fewer take less, where the vocabulary is large; what is learned is the
    same."""
    layout: Literal["auto", "tree", "rows"] = "auto"
    """How the trainer reads a state. tree: the prompt once, with all its actions. rows: each action behind the prompt
    again, which every model can do. auto: tree where the model gives the same numbers, else rows."""

    @model_validator(mode="after")
    def _imitation_has_an_end_only_before_ppo(self) -> Self:
        default = type(self).model_fields["imitation_updates"].default
        if self.prior_loss != "imitation_then_ppo" and self.imitation_updates != default:
            raise ValueError(
                f"imitation_updates={self.imitation_updates} goes with prior_loss='imitation_then_ppo', "
                f"received prior_loss={self.prior_loss!r}"
            )
        return self

    def phase(self, updates: int) -> PriorPhase:
        """What is done in the update after so many."""
        if self.prior_loss != "imitation_then_ppo":
            return self.prior_loss
        return "imitation" if updates < self.imitation_updates else "ppo"

    @property
    def needs_reference(self) -> bool:
        return self.prior_loss != "imitation" and self.prior_kl > 0

    def token_settings(self) -> GRPOSettings:
        """How tokens are read, and what the loss of ppo does with them. The engine scored them at temperature 1."""
        return GRPOSettings(
            learning_rate=self.prior_learning_rate,
            max_grad_norm=self.prior_max_grad_norm,
            clip_low=self.prior_clip,
            clip_high=self.prior_clip,
            dual_clip=None,
            kl_weight=self.prior_kl if self.needs_reference else 0.0,
            temperature=1.0,
            microbatch_tokens=self.microbatch_tokens,
            logit_chunk_tokens=self.logit_chunk_tokens,
            layout=self.layout,
            trainer_attention=self.trainer_attention,
            compile_trainer=self.compile_trainer,
            trainer_gpu_share=self.trainer_gpu_share,
        )
