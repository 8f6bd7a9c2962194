"""Learns a language model from groups of replies.

    groups --> advantages --> [log-probabilities before the update] --> minibatches --> AdamW --> weights
                                                       each cut into microbatches of trees (llm/trees.py)

What a rollout brings (one group; G replies of T tokens in all):

    prompt     [P] int32
    tokens     [T] int32     the replies end to end
    lengths    [G] int64
    log_probs  [T] float32   of the behaviour policy, stamped where the token was made
    versions   [T] int32     likewise
    rewards    [G] float32

With one minibatch and one epoch the policy at the start of the update is the policy that computes the gradient, so
the proximal log-probabilities cost nothing extra; otherwise they are computed once per batch, before the first step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Batch, LearnReport
from headway.learn.corrections import Correction, Weighed, find_correction, interpolate
from headway.learn.grpo.advantages import group_advantages
from headway.learn.grpo.diagnostics import behaviour, mismatch, staleness
from headway.learn.grpo.loss import LossSettings, measures, policy_loss, token_scale
from headway.learn.ragged import Ragged
from headway.llm.adapters import plain_weights
from headway.llm.trees import TreeBatch, chosen_log_probs, hidden_states, lay_out, plant


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOSettings:
    """The knobs of an update."""

    estimator: str = "grpo"
    correction: str = "token_is"
    correction_knobs: Mapping[str, Any] = field(default_factory=dict)
    loss: LossSettings = field(default_factory=LossSettings)
    learning_rate: float = 1e-6
    warmup_updates: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    microbatch_tokens: int = 2048
    temperature: float = 1.0
    whiten_advantages: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches", "microbatch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be > 0, received {self.learning_rate!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be > 0 for sampling to be a policy, received {self.temperature!r}")


@dataclass(slots=True)
class _Replies:
    """A batch as one long line of trained tokens, reply by reply, and what belongs to each."""

    prompts: list[np.ndarray]
    replies: list[list[np.ndarray]]
    sequences: Ragged  # S replies, N tokens
    advantages: Tensor  # [S]
    log_probs: Tensor  # [N] of the behaviour policy
    versions: Tensor  # [N]
    offsets: np.ndarray  # [S]: where each reply begins

    def places(self, batch: TreeBatch) -> Tensor:
        """Where a microbatch's trained tokens lie in the line, [n]."""
        lengths = self.sequences.lengths.numpy()
        parts = [np.arange(self.offsets[r], self.offsets[r] + lengths[r]) for r in batch.replies]
        return torch.from_numpy(np.concatenate(parts))


class GRPOLearner:
    """Policy gradients on a causal language model. `load` builds it, where the learner runs."""

    def __init__(
        self,
        load: Callable[[], Any],
        settings: GRPOSettings,
        *,
        load_reference: Callable[[], Any] | None = None,
        publish_dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        self._settings = settings
        self._correction: Correction = find_correction(settings.correction, **settings.correction_knobs)
        self._model = load()
        self._model.train()
        self._device = next(self._model.parameters()).device
        self._trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        if not self._trained:
            raise ValueError("the model has no weights to train")
        self._optimizer = torch.optim.AdamW(
            self._trained.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._reference = None
        if settings.loss.kl_weight:
            if load_reference is None:
                raise ValueError(f"kl_weight={settings.loss.kl_weight!r} needs a reference model")
            self._reference = load_reference().eval().requires_grad_(False)
        self._publish_dtype = publish_dtype
        self._random = np.random.default_rng(seed)
        self._updates = 0

    # -- the learner's face -------------------------------------------------------------------------

    def learn(self, batch: Batch) -> LearnReport:
        data, found = self._read(batch)
        self._set_learning_rate()
        before = self._before_update(data)
        sums: list[Mapping[str, Tensor]] = []
        norms: list[float] = []
        now = torch.zeros(data.sequences.num_values)  # log-probabilities at the first look at each token
        weights = torch.zeros_like(now)
        for epoch in range(self._settings.epochs):
            for part in self._minibatches(len(data.prompts)):
                norms.append(self._step(data, part, batch.version, before, sums, None if epoch else (now, weights)))
        self._updates += 1
        num_tokens = data.sequences.num_values * self._settings.epochs
        weighed = Weighed(weights, weights > 0)
        fresh = data.versions == batch.version
        found.update(measures(sums, num_tokens, num_steps=len(norms)))
        found.update(behaviour(now, data.log_probs, weighed))
        found.update(mismatch(now[fresh], data.log_probs[fresh]) if bool(fresh.any()) else {})
        found.update(staleness(batch.version, data.versions))
        found["grad_norm"] = float(np.mean(norms))
        found["learning_rate"] = self._optimizer.param_groups[0]["lr"]
        return LearnReport(found)

    def snapshot(self) -> dict[str, Tensor]:
        """What training has changed, as an engine wants it: plain weights under the model's own names."""
        weights = plain_weights(self._model)
        if self._publish_dtype is None:
            return weights
        return {name: tensor.to(self._publish_dtype) for name, tensor in weights.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": {name: parameter.detach() for name, parameter in self._trained.items()},
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(torch.as_tensor(state["weights"][name]))
        self._optimizer.load_state_dict(state["optimizer"])
        self._updates = state["updates"]
        self._random.bit_generator.state = state["random"]

    # -- one update ---------------------------------------------------------------------------------

    def _read(self, batch: Batch) -> tuple[_Replies, dict[str, float]]:
        groups = [rollout.payload for rollout in batch.rollouts]
        lengths = np.concatenate([group["lengths"] for group in groups]).astype(np.int64)
        rewards = np.concatenate([group["rewards"] for group in groups]).astype(np.float32)
        owner = np.repeat(np.arange(len(groups)), [len(group["lengths"]) for group in groups])
        advantages = group_advantages(self._settings.estimator, rewards, owner)
        values = advantages.values
        if self._settings.whiten_advantages:
            values = (values - values.mean()) / (values.std() + 1e-6)
        data = _Replies(
            prompts=[np.asarray(group["prompt"], np.int64) for group in groups],
            replies=[
                np.split(np.asarray(group["tokens"], np.int64), np.cumsum(group["lengths"])[:-1]) for group in groups
            ],
            sequences=Ragged.of(torch.from_numpy(lengths)),
            advantages=values,
            log_probs=torch.from_numpy(np.concatenate([group["log_probs"] for group in groups])),
            versions=torch.from_numpy(np.concatenate([group["versions"] for group in groups]).astype(np.int64)),
            offsets=np.cumsum(lengths) - lengths,
        )
        return data, {
            "reward": float(rewards.mean()),
            "reward_std": float(rewards.std()),
            "reply_tokens": float(lengths.mean()),
            "silent_groups": advantages.num_silent / advantages.num_groups,
        }

    def _before_update(self, data: _Replies) -> Tensor | None:
        """log pi_prox of every token, where it cannot be had on the way; [N]."""
        settings, correction = self._settings, self._correction
        is_single = settings.epochs == 1 and settings.minibatches == 1
        if correction.proximal != "recomputed" or (is_single and not correction.needs_whole_batch):
            return None
        line = torch.zeros(data.sequences.num_values)
        with torch.no_grad():
            for trees in plant(data.prompts, data.replies, settings.microbatch_tokens):
                batch = lay_out(trees)
                logp, _ = self._log_probs(self._model, batch.to(self._device))
                line[data.places(batch)] = logp.float().cpu()
        return line

    def _minibatches(self, num_groups: int) -> list[np.ndarray]:
        count = min(self._settings.minibatches, num_groups)
        order = self._random.permutation(num_groups) if count > 1 else np.arange(num_groups)
        return [np.sort(part) for part in np.array_split(order, count)]

    def _step(
        self,
        data: _Replies,
        groups: np.ndarray,
        version: int,
        before: Tensor | None,
        sums: list[Mapping[str, Tensor]],
        seen: tuple[Tensor, Tensor] | None,
    ) -> float:
        """One step of the optimizer on some of the groups; returns the gradient's norm."""
        settings = self._settings
        numbers = np.concatenate([_reply_numbers(data, group) for group in groups])
        num_tokens = int(data.sequences.lengths[numbers].sum())
        whole = None
        if self._correction.needs_whole_batch and before is not None:
            whole = self._correction.weigh(before, data.log_probs, data.sequences)
        self._optimizer.zero_grad(set_to_none=True)
        for trees in plant(*_some(data, groups), settings.microbatch_tokens):
            here = lay_out(trees)
            batch = TreeBatch(
                here.tokens,
                here.positions,
                here.branch,
                here.sources,
                here.targets,
                tuple(int(numbers[reply]) for reply in here.replies),
            )
            places = data.places(batch)
            batch = batch.to(self._device)
            logp, entropy = self._log_probs(self._model, batch)
            sequences = Ragged.of(data.sequences.lengths[list(batch.replies)]).to(self._device)
            behaviour_logs = data.log_probs[places].to(self._device)
            proximal = self._proximal(logp, behaviour_logs, data, places, before, version)
            if whole is not None:
                weighed = Weighed(whole.weights[places].to(self._device), whole.kept[places].to(self._device))
            else:
                weighed = self._correction.weigh(proximal, behaviour_logs, sequences)
            advantages = sequences.spread(data.advantages[list(batch.replies)].to(self._device))
            loss = policy_loss(
                logp,
                proximal,
                advantages,
                weighed,
                token_scale(sequences, settings.loss, num_tokens=num_tokens, num_sequences=len(numbers)),
                self._correction.surrogate,
                settings.loss,
                logp_ref=self._reference_log_probs(batch),
                entropy=entropy,
            )
            loss.value.backward()
            sums.append(loss.sums)
            if seen is not None:
                seen[0][places] = logp.detach().float().cpu()
                seen[1][places] = weighed.weights.float().cpu()
        norm = torch.nn.utils.clip_grad_norm_(list(self._trained.values()), settings.max_grad_norm, foreach=True)
        self._optimizer.step()
        return float(norm)

    def _proximal(
        self, logp: Tensor, behaviour_logs: Tensor, data: _Replies, places: Tensor, before: Tensor | None, version: int
    ) -> Tensor:
        if self._correction.proximal == "behaviour":
            return behaviour_logs
        if self._correction.proximal == "interpolated":
            born = data.versions[places].to(self._device)
            return interpolate(logp, behaviour_logs, born, proximal_version=version, version=version + 1)
        return logp.detach() if before is None else before[places].to(self._device)

    def _log_probs(self, model: Any, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        with self._autocast():
            logits = model.get_output_embeddings()(hidden_states(model, batch))
        return chosen_log_probs(logits, batch.targets, self._settings.temperature)

    def _reference_log_probs(self, batch: TreeBatch) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return self._log_probs(self._reference, batch)[0]

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return contextlib.nullcontext()

    def _set_learning_rate(self) -> None:
        settings = self._settings
        share = min(1.0, (self._updates + 1) / settings.warmup_updates) if settings.warmup_updates else 1.0
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * share


def _reply_numbers(data: _Replies, group: int) -> np.ndarray:
    first = sum(len(replies) for replies in data.replies[:group])
    return np.arange(first, first + len(data.replies[group]))


def _some(data: _Replies, groups: np.ndarray) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    return [data.prompts[group] for group in groups], [data.replies[group] for group in groups]
