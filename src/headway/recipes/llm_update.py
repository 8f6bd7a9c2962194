"""The update of a language model as settings of a recipe: advantages, critic, loss, optimizer, memory."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from headway.core.naming import unknown
from headway.core.one_line import in_a_line
from headway.learn.corrections import find_correction
from headway.learn.grpo.advantages import ALL_ESTIMATORS, GAE
from headway.learn.grpo.critic import CriticSettings
from headway.learn.grpo.loss import LossSettings
from headway.learn.grpo.settings import GRPOSettings
from headway.llm.heads import CHUNK
from headway.recipes.config import require_correction
from headway.recipes.learner_ranks import RankedConfig

CRITIC_FIELDS = (
    *("critic", "gae_gamma", "gae_lambda", "value_clip", "value_weight"),
    *("critic_learning_rate", "critic_warmup_updates"),
)


class UpdateConfig(RankedConfig):
    """For recipes that train a language model."""

    # -- advantages
    estimator: str = "grpo"
    """Advantages: grpo, dr_grpo, rloo, reinforce_plus_plus, or gae (also called ppo), which trains a critic."""
    whiten_advantages: bool = False
    """Scale the advantages of a batch to mean 0 and deviation 1."""
    critic: Literal["shared", "own"] = "shared"
    """With gae: a head on the policy's backbone, or a second model. own takes twice the memory and the work; shared
    lets the value loss shape the policy's features."""
    gae_gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token. Below 1 short replies are preferred."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """1: the advantage is the return minus the value. Lower trusts the critic more, with less variance."""
    value_clip: float | None = Field(default=0.5, gt=0)
    """How far a value may move in one update. Unset: as far as it likes."""
    value_weight: float = Field(default=0.5, gt=0)
    """Of the value loss; raising it gives a shared critic more to say about the backbone."""
    critic_learning_rate: float = Field(default=1e-4, gt=0)
    """Step size of AdamW for what only the critic has: its head, or its own model."""
    critic_warmup_updates: int = Field(default=0, ge=0)
    """The critic learns alone so many updates, and the policy keeps its weights. More make the first advantages
    better."""

    # -- loss
    correction: str = "token_is"
    """What makes up for stale data and for an engine that rounds differently: see docs/corrections.md."""
    correction_options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the correction, like {cap: 2.0} for token_is."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far a token may become less likely in one update."""
    clip_high: float = Field(default=0.28, ge=0)
    """How far a token may become more likely in one update."""
    dual_clip: float | None = 3.0
    """Cap on the ratio where the advantage is negative."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """Who shares a batch evenly: tokens, sequences, or sequences by their length. The last is the third divided by the
    longest reply allowed (Dr. GRPO): without that the gradient is so many times larger."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Holds the policy near the model it started from. With adapters that model is there already; otherwise a second
    one is loaded."""
    kl_in_reward: bool = False
    """Take the penalty from the rewards instead of adding it to the loss: token by token with a critic, else from the
    reward of the whole reply."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus for staying undecided."""

    # -- optimizer
    learning_rate: float = Field(default=1e-5, gt=0)
    """Step size of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After its warmup the learning rate stays, or falls to lr_floor at the end of `updates`."""
    lr_floor: float = Field(default=0.0, ge=0, le=1)
    """Where such a fall ends, as a share of the learning rate."""
    warmup_updates: int = Field(default=0, ge=0)
    """The learning rate rises over this many updates."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """How long AdamW remembers the direction. Raising it makes smoother steps."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """How long AdamW remembers the size of gradients. Raising it makes it slower to notice that they have changed."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """Added to the size of gradients. Raising it makes the steps of weights with tiny gradients smaller."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over a batch."""
    num_minibatches: int = Field(default=1, ge=1)
    """Gradient steps per pass. More learn faster from a batch and move further from its data."""

    # -- engine and trainer
    check_engine_every: int = Field(default=4, ge=0)
    """With a lead: every so many versions the trainer keeps its weights until tokens of that version come, reads some
    of them again and reports how far the engine was off (mismatch_*). Raising it costs less: each time that is a copy
    of what is trained, in the machine's memory, and a forward pass over an eighth of a batch. 0: never; then the alarm
    engine_mismatch can ring only where tokens of the version being trained come."""

    # -- memory
    microbatch_tokens: int = Field(default=1024, ge=1)
    """Tokens per forward pass. Fewer take less memory; what is learned is the same."""
    logit_chunk_tokens: int = Field(default=CHUNK, ge=1)
    """Tokens whose logits are in memory at once. Fewer take less, where the vocabulary is large; what is learned is the
    same."""
    layout: Literal["auto", "tree", "rows"] = "auto"
    """How the trainer reads a group. tree: the prompt once, with all its replies. rows: each reply behind the prompt
    again, which every model can do. auto: tree where the model gives the same numbers, else rows."""

    @field_validator("estimator", mode="before")
    @classmethod
    def _known_as_ppo(cls, value: Any) -> Any:
        return GAE if value == "ppo" else value

    @model_validator(mode="after")
    def _can_update(self) -> UpdateConfig:
        require_correction(self.correction, self.max_lead)
        try:
            find_correction(self.correction, **self.correction_options)
        except TypeError as error:
            raise ValueError(f"correction_options={self.correction_options!r}: {in_a_line(error)}") from None
        if self.estimator not in ALL_ESTIMATORS:
            raise ValueError(unknown("estimator", self.estimator, ALL_ESTIMATORS))
        for name in CRITIC_FIELDS:
            value = getattr(self, name)
            if self.estimator != GAE and value != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value!r} goes with estimator='gae', received estimator={self.estimator!r}")
        if self.lr_floor and self.lr_schedule == "constant":
            raise ValueError(
                f"lr_floor={self.lr_floor:g} goes with a learning rate that falls: lr_schedule=linear or cosine"
            )
        if self.kl_in_reward and not self.kl_weight:
            raise ValueError("kl_in_reward=True needs kl_weight > 0: how much shall be taken from the rewards?")
        return self

    def update_settings(
        self, *, temperature: float, longest_reply: int, top_k: int = 0, top_p: float = 1.0
    ) -> GRPOSettings:
        """For the learner; tokens are drawn at this temperature and with this cut."""
        by: Any = self.loss_aggregation.removesuffix("-norm")
        critic = CriticSettings(
            kind=self.critic,
            gamma=self.gae_gamma,
            lam=self.gae_lambda,
            clip=self.value_clip,
            weight=self.value_weight,
            learning_rate=self.critic_learning_rate,
            warmup_updates=self.critic_warmup_updates,
        )
        return GRPOSettings(
            estimator=self.estimator,
            critic=critic if self.estimator == GAE else None,
            correction=self.correction,
            correction_knobs=self.correction_options,
            loss=LossSettings(
                clip_low=self.clip_low,
                clip_high=self.clip_high,
                dual_clip=self.dual_clip,
                aggregation=by,
                max_length=longest_reply if by != self.loss_aggregation else None,
                kl_weight=self.kl_weight,
                entropy_weight=self.entropy_weight,
            ),
            learning_rate=self.learning_rate,
            schedule=self.lr_schedule,
            floor=self.lr_floor,
            warmup_updates=self.warmup_updates,
            total_updates=self.settings().plan.updates,
            betas=(self.adam_beta1, self.adam_beta2),
            eps=self.adam_eps,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            epochs=self.num_epochs,
            minibatches=self.num_minibatches,
            microbatch_tokens=self.microbatch_tokens,
            logit_chunk_tokens=self.logit_chunk_tokens,
            layout=self.layout,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            check_engine_every=self.check_engine_every,
            whiten_advantages=self.whiten_advantages,
            kl_in_reward=self.kl_in_reward,
        )
