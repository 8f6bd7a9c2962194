"""What the learner of a language model can be told: a recipe's config inherits it and hands it on whole."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.train.advantages import ALL_ESTIMATORS, COMPARE_THE_BATCH, GAE
from headway.llm.train.advantages_credit import CreditSettings
from headway.llm.train.corrections import Correction, find_correction
from headway.llm.train.critic import CriticSettings
from headway.llm.train.grpo_loss_loss import LossSettings
from headway.llm.train.heads import CHUNK
from headway.llm.train.kernels_kernel_settings import KernelSettings
from headway.llm.train.optimizer_schedules import Schedule
from headway.llm.train.optimizer_trained_weights import OptimizerSettings

_GO_WITH = {"turn_gamma": "turn"} | dict.fromkeys(
    ("episode_reward_weight", "step_reward_weight", "step_reward_gamma"), "gigpo"
)
"""Settings of one kind of credit."""


class GRPOSettings(OptimizerSettings, LossSettings, CreditSettings, CriticSettings, KernelSettings):
    """Update: what the learner does with a batch of groups."""

    estimator: str = "grpo"
    """Advantages: grpo, dr_grpo, rloo, reinforce_plus_plus, or gae (also called ppo), which trains a critic."""
    whiten_advantages: bool = False
    """Scale the advantages of a batch to mean 0 and deviation 1."""
    correction: str = "token_is"
    """What makes up for stale data and for an engine that rounds differently: see docs/corrections.md."""
    correction_options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the correction, like {cap: 2.0} for token_is."""
    mask_truncated: bool = False
    """Learn nothing from replies (or episodes) that a limit has cut: they are in no loss and no mean over tokens. Their
    rewards still count in what the others are compared with."""
    kl_in_reward: bool = False
    """Take the penalty from the rewards instead of adding it to the loss: token by token with a critic, else from the
    reward of the whole reply."""
    temperature: float = Field(default=1.0, gt=0)
    """Higher explores more. The trainer computes its log-probabilities at the same one."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the fewest most likely tokens that together have this probability. Lower leaves out unlikely
    tokens, and what the trainer learns from is no longer its own policy: the correction sees by how much."""
    top_k: int = Field(default=0, ge=0)
    """Sample only from the k most likely tokens; 0: all. Fewer have the same effect as a lower top_p."""
    check_engine_every: int = Field(default=4, ge=0)
    """With a lead: every so many versions the trainer keeps its weights until tokens of that version come, reads some
    of them again and reports how far the engine was off (mismatch_*). Raising it costs less: each time that is a copy
    of what is trained, where it is up to 2 GiB, else in the machine's memory, and a forward pass over an eighth of a
    batch. 0: never; then the alarm engine_mismatch can ring only where tokens of the version being trained come."""
    microbatch_tokens: int = Field(default=2048, ge=1)
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
    def _can_update(self) -> Self:
        try:
            self._cut_fits(find_correction(self.correction, **self.correction_options))
        except TypeError as error:
            raise ValueError(f"correction_options={self.correction_options!r}: {in_a_line(error)}") from None
        if self.estimator not in ALL_ESTIMATORS:
            raise ValueError(unknown("estimator", self.estimator, ALL_ESTIMATORS))
        for name in CriticSettings.model_fields:
            value = getattr(self, name)
            if self.estimator != GAE and value != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value!r} goes with estimator='gae', received estimator={self.estimator!r}")
        self._credit_fits()
        if self.lr_floor and self.lr_schedule == "constant":
            raise ValueError(
                f"lr_floor={self.lr_floor:g} goes with a learning rate that falls: lr_schedule=linear or cosine"
            )
        if self.kl_in_reward and not self.kl_weight:
            raise ValueError("kl_in_reward=True needs kl_weight > 0: how much shall be taken from the rewards?")
        return self

    def _cut_fits(self, correction: Correction) -> None:
        """A cut tail makes every token likelier to the engine than to the trainer: over a reply that adds up."""
        is_anchored = correction.name == "gspo" and correction.proximal == "recomputed"
        if not self.sampling.is_cut or correction.name not in ("gspo", "sequence_mask") or is_anchored:
            return
        cut = f"top_p={self.top_p:g}" if self.top_p < 1 else f"top_k={self.top_k}"
        another = "correction_options={proximal: recomputed}" if correction.name == "gspo" else "correction=icepop"
        raise ValueError(
            f"correction={correction.name!r} with {cut}: the engine gives each token a higher probability than the "
            "trainer, so whole replies leave the band before the first step; use top_p=1 and top_k=0, or "
            f"{another}"
        )

    def _credit_fits(self) -> None:
        if self.credit != "episode" and self.has_critic:
            raise ValueError(f"credit={self.credit!r} compares episodes; with estimator='gae' the critic gives credit")
        if self.credit == "gigpo" and self.estimator in COMPARE_THE_BATCH:
            raise ValueError(f"credit='gigpo' compares within groups, which estimator={self.estimator!r} does not")
        for name, wanted in _GO_WITH.items():
            value = getattr(self, name)
            if self.credit != wanted and value != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value!r} goes with credit={wanted!r}, received credit={self.credit!r}")

    @model_validator(mode="after")
    def _a_fall_has_an_end(self) -> Self:
        self.policy_schedule()
        return self

    @property
    def has_critic(self) -> bool:
        return self.estimator == GAE

    @property
    def sampling(self) -> Sampling:
        """How the tokens were drawn."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def is_one_step(self) -> bool:
        """The policy that computes the gradient is the one at the start of the update."""
        return self.num_epochs == 1 and self.num_minibatches == 1

    @property
    def loss_terms(self) -> LossSettings:
        """What is in the loss itself."""
        return self.model_copy(update={"kl_weight": 0.0}) if self.kl_in_reward else self

    def terms_with(self, clip_range: tuple[float, float] | None) -> LossSettings:
        """What is in the loss, with the clip range of a correction that has one of its own."""
        if clip_range is None:
            return self.loss_terms
        low, high = clip_range
        return self.loss_terms.model_copy(update={"clip_low": low, "clip_high": high})

    @property
    def critic_alone(self) -> int:
        """Updates at the beginning in which the policy waits."""
        return self.critic_warmup_updates if self.has_critic else 0

    def policy_schedule(self) -> Schedule:
        """Begins when the policy does."""
        left = None if self.updates is None else self.updates - self.critic_alone
        return Schedule(self.lr_schedule, self.warmup_updates, left, self.lr_floor)

    def critic_schedule(self) -> Schedule:
        return Schedule(self.lr_schedule, 0, self.updates, self.lr_floor)
