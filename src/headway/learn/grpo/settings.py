"""The knobs of an update of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headway.core.naming import unknown
from headway.learn.grpo.advantages import ALL_ESTIMATORS, GAE
from headway.learn.grpo.critic import CriticSettings
from headway.learn.grpo.loss import LossSettings
from headway.learn.schedules import Schedule
from headway.llm.engine import Sampling
from headway.llm.heads import CHUNK
from headway.llm.layouts import LAYOUTS


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOSettings:
    """What a learner does with a batch. The recipe's config says what each is for."""

    estimator: str = "grpo"
    critic: CriticSettings | None = None
    """With the estimator gae, and only there."""
    correction: str = "token_is"
    correction_knobs: Mapping[str, Any] = field(default_factory=dict)
    loss: LossSettings = field(default_factory=LossSettings)
    learning_rate: float = 1e-6
    schedule: str = "constant"
    """How the learning rate goes on after its warmup: constant, linear or cosine, over `total_updates`."""
    floor: float = 0.0
    """Where it ends then, as a share of the learning rate."""
    warmup_updates: int = 0
    total_updates: int | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    microbatch_tokens: int = 2048
    logit_chunk_tokens: int = CHUNK
    layout: str = "auto"
    """How replies are laid out for the model: tree, rows, or what fits it (llm/layouts.py)."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    check_engine_every: int = 4
    """How often, in versions, weights are kept until their tokens come (engine_check.py); 0: never."""
    whiten_advantages: bool = False
    kl_in_reward: bool = False
    """Take `loss.kl_weight` times log pi_b / pi_ref from the rewards of tokens; the loss has no penalty then."""

    def __post_init__(self) -> None:
        if self.estimator not in ALL_ESTIMATORS:
            raise ValueError(unknown("advantage estimator", self.estimator, ALL_ESTIMATORS))
        if (self.estimator == GAE) != (self.critic is not None):
            verb = "needs a critic" if self.critic is None else "has no use for a critic"
            raise ValueError(f"the estimator {self.estimator!r} {verb}")
        if self.layout not in LAYOUTS:
            raise ValueError(unknown("layout", self.layout, LAYOUTS))
        for name in ("epochs", "minibatches", "microbatch_tokens", "logit_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")
        for name in ("learning_rate", "eps", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, received {getattr(self, name)!r}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), received {self.betas!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be > 0 for sampling to be a policy, received {self.temperature!r}")
        if self.check_engine_every < 0:
            raise ValueError(f"check_engine_every must be >= 0 (0: never), received {self.check_engine_every!r}")
        if self.kl_in_reward and not self.loss.kl_weight:
            raise ValueError("kl_in_reward needs kl_weight > 0: how much shall be taken from the rewards?")
        self.policy_schedule()
        _ = self.sampling

    @property
    def sampling(self) -> Sampling:
        """How the tokens were drawn."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def is_one_step(self) -> bool:
        """The policy that computes the gradient is the one at the start of the update."""
        return self.epochs == 1 and self.minibatches == 1

    @property
    def loss_terms(self) -> LossSettings:
        """What is in the loss itself."""
        return replace(self.loss, kl_weight=0.0) if self.kl_in_reward else self.loss

    @property
    def critic_alone(self) -> int:
        """Updates at the beginning in which the policy waits."""
        return 0 if self.critic is None else self.critic.warmup_updates

    def policy_schedule(self) -> Schedule:
        """Begins when the policy does."""
        left = None if self.total_updates is None else self.total_updates - self.critic_alone
        return Schedule(self.schedule, self.warmup_updates, left, self.floor)

    def critic_schedule(self) -> Schedule:
        return Schedule(self.schedule, 0, self.total_updates, self.floor)
