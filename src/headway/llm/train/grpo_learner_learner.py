"""Learns a language model from groups of replies, or of episodes in an environment.

    groups --> look: what the weights say of each token as the update starts --> advantages --> minibatches
                                                                                                    |
    weights <-- AdamW <-- gradients, added up over ranks <-- microbatches of trees (llm/train/trees.py) <-+
                                                               or of rows (llm/train/kernels_layouts.py)

The look takes what the update needs and nothing else: values for a critic, log-probabilities of the reference, those of
the proximal policy. With one minibatch and one epoch the policy at the start of the update is the policy that computes
the gradient, so the proximal ones cost nothing extra.

What an environment said between the turns of an episode is read and goes no further: hidden states are taken where a
token that the policy drew is predicted, so the head, ratios, denominators and measures know of nothing else.

As one rank of several a learner has the whole batch and does its share of the forward and backward passes: whole
groups, so that no two read the same prompt. Advantages, denominators and minibatches are those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.coordinator.state_files_saved_beside import SavedBeside, SavedSoon
from headway.core.types import Batch, LearnReport, State
from headway.llm.model.types import CausalModel
from headway.llm.train import grpo_loss_diagnostics as diagnostics
from headway.llm.train.advantages import COMPARE_THE_BATCH, group_advantages, whiten
from headway.llm.train.advantages_credit import gigpo_credit, turn_credit
from headway.llm.train.corrections import Correction, Weighed, find_correction, interpolate
from headway.llm.train.critic import Critic
from headway.llm.train.grpo_learner_engine_check import EngineCheck
from headway.llm.train.grpo_learner_summary import equal_groups, summarize
from headway.llm.train.grpo_loss_loss import policy_loss, token_scale
from headway.llm.train.grpo_loss_update import GRPOUpdate, measure
from headway.llm.train.grpo_settings import GRPOSettings
from headway.llm.train.model_in_training import LearnsAModel, ModelInTraining
from headway.llm.train.model_in_training_policy import TokenPolicy, autocast, find_reference
from headway.llm.train.optimizer_trained_weights import TrainedWeights
from headway.llm.train.replies import Microbatch, Replies, minibatches, record_of
from headway.llm.train.shard_files import SavedShards
from headway.llm.train.sharding import shard_model
from headway.ranks.rank import ALONE, Rank

__all__ = ["GRPOLearner", "GRPOSettings"]


class _Look(NamedTuple):
    """What the weights said of each token as the update started, [N] each, where it is needed."""

    proximal: Tensor | None = None
    reference: Tensor | None = None
    values: Tensor | None = None
    after: Tensor | None = None  # [S]: values behind the last token of episodes that were cut, else 0

    def only(self, kept: Tensor) -> _Look:
        """The same of some tokens, given which [N]; what comes after them was needed before."""
        return _Look(*(line if line is None else line[kept] for line in self[:3]))


class GRPOLearner(LearnsAModel):
    """Trains a causal language model by policy gradients. `load` builds the model, where the learner runs."""

    def __init__(
        self,
        load: Callable[[], CausalModel],
        settings: GRPOSettings,
        *,
        load_reference: Callable[[], CausalModel] | None = None,
        load_critic: Callable[[], CausalModel] | None = None,
        publish_dtype: torch.dtype | None = None,
        seed: int = 0,
        rank: Rank = ALONE,
        shard_ranks: int | None = None,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._correction: Correction = find_correction(settings.correction, **settings.correction_options)
        self._training = ModelInTraining(
            load,
            settings,
            layout=settings.layout,
            kernels=settings,
            microbatch_tokens=settings.microbatch_tokens,
            publish_dtype=publish_dtype,
            seed=seed,
            rank=rank,
            shard_ranks=shard_ranks,
        )
        model = self._training.model
        self._policy = TokenPolicy(model, settings, self._training.kernels)
        self._check = EngineCheck(
            self._policy, self._training.trained, settings.check_engine_every, rank, self._training.shards
        )
        self._reference = find_reference(self._policy, settings, _sharded(load_reference, rank, shard_ranks))
        self._critic: Critic | None = None
        if settings.has_critic:
            self._critic = Critic(
                settings,
                model,
                settings,
                load=load_critic,
                kernels=self._training.kernels,
                rank=rank,
                shard_ranks=shard_ranks,
            )

    # -- the learner's face -------------------------------------------------------------------------

    def learn(self, batch: Batch) -> LearnReport:
        self._set_learning_rates()
        update = self._begin(batch)
        for epoch in range(0 if update.is_nothing_left else self._settings.num_epochs):
            for groups in minibatches(update.data.num_groups, self._settings.num_minibatches, self._training.random):
                self._step(update, groups, is_first_look=epoch == 0)
        self._training.updates += 1
        found = measure(update, self._rank, self._settings.num_epochs)
        found |= self._training.trained.norms(update.norms)
        found["learning_rate"] = 0.0 if update.is_policy_waiting else self._training.trained.learning_rate
        if self._critic is not None:
            found |= {f"critic_{name}": norm for name, norm in self._critic.trained.norms(update.critic_norms).items()}
            found["critic_learning_rate"] = self._critic.trained.learning_rate
        found["without_signal"] = self._without_signal(update, found)
        return LearnReport(found)

    def held_alike(self) -> dict[str, Any]:
        """Returns the weights that are the same on every rank, the critic's included."""
        return {"policy": self._training.trained.alike(), "critic": self._critic and self._critic.trained.alike()}

    def state_dict(self) -> State:
        return {
            **self._training.state_dict(),
            "critic": self._critic and self._critic.trained.state_dict(),
            "version": self._check.version,
        }

    def save_beside(self, folder: str) -> SavedSoon:
        critic = None if self._critic is None else self._critic.trained
        rest = {"critic": critic and critic.rest(), "version": self._check.version}
        return self._training.save_beside(folder, {} if critic is None else {"critic": critic}, rest)

    def load_state_dict(self, state: State | SavedBeside) -> None:
        rest = state.rest if isinstance(state, SavedBeside) else state
        critic = rest.get("critic")
        if (critic is None) != (self._critic is None):
            raise ValueError(f"the saved state has {'no' if critic is None else 'a'} critic: another estimator's")
        self._training.load_state_dict(state)
        if self._critic is not None and critic is not None:
            if isinstance(state, SavedBeside):
                self._critic.load_parts(SavedShards(Path(state.folder)), critic)
            else:
                self._critic.load_state_dict(critic)
        self._check.version = rest.get("version")

    # -- before the first step ----------------------------------------------------------------------

    def _begin(self, batch: Batch) -> GRPOUpdate:
        settings, correction = self._settings, self._correction
        whole = data = Replies.of([record_of(rollout) for rollout in batch.rollouts], self._training.device)
        look = self._first_look(whole)
        advantages, targets = self._advantages(whole, look)
        summary, left = summarize(whole), whole.without_cut() if settings.mask_truncated else whole
        if settings.mask_truncated:
            summary["left_out"] = float(whole.cut.mean())
        if left is not None and left is not whole:
            kept = torch.from_numpy(~whole.cut)[whole.sequences.row].to(self._training.device)
            data, look, advantages = left, look.only(kept), advantages[kept]
            targets = None if targets is None else targets[kept]
        verdict = None
        if correction.needs_whole_batch and look.proximal is not None:
            verdict = correction.weigh(look.proximal, data.log_probs, data.sequences.to(self._training.device))
        return GRPOUpdate(
            data=data,
            version=batch.version,
            summary=summary,
            proximal=look.proximal,
            reference=look.reference,
            values=look.values,
            advantages=advantages,
            targets=targets,
            whole=verdict,
            is_policy_waiting=self._training.updates < settings.critic_alone,
            mismatch={} if left is None else self._mismatch(data, batch.version, look.proximal),
            logs=torch.zeros(data.num_tokens, device=self._training.device),
            weights=torch.zeros(data.num_tokens, device=self._training.device),
            is_nothing_left=left is None,
        )

    def _mismatch(self, data: Replies, version: int, proximal: Tensor | None) -> Mapping[str, float] | None:
        is_known = self._settings.is_one_step or proximal is not None
        is_free = is_known and not self._settings.sampling.is_cut
        with self._training.gpu.turn():
            return self._check.mismatch(data, version, self._training.sizes, is_free=is_free)

    def _advantages(self, data: Replies, look: _Look) -> tuple[Tensor, Tensor | None]:
        """Returns the advantages of tokens [N] over the whole batch; with a critic also its targets, [N]."""
        settings = self._settings
        refine = whiten if settings.whiten_advantages else lambda found: found
        sequences = data.sequences.to(self._training.device)
        penalties = None
        if settings.kl_in_reward and look.reference is not None:
            penalties = settings.kl_weight * (data.log_probs - look.reference)
        rewards = data.rewards.to(self._training.device)
        if self._critic is not None and look.values is not None:
            if data.has_episodes:
                turns = data.turns.to(self._training.device)
                advantages, targets = self._critic.turn_advantages(turns, penalties, look.values, sequences, look.after)
            else:
                advantages, targets = self._critic.advantages(rewards, penalties, look.values, sequences)
            return refine(advantages), targets
        runs = data.runs.to(self._training.device)
        if penalties is not None:
            rewards = rewards - runs.spread(runs.sums(sequences.sums(penalties)))
        first = data.first_of_run  # a run is compared once, however many conversations it had
        per_run = group_advantages(settings.estimator, rewards[first], data.group[first].to(self._training.device))
        per_reply = runs.spread(per_run)
        if settings.credit == "episode":
            return sequences.spread(refine(per_reply)), None
        turns = data.turns.to(self._training.device)
        earned = turns.rewards if penalties is None else turns.rewards - turns.tokens.sums(penalties)
        if settings.credit == "turn":
            per_turn = turn_credit(settings.estimator, turns, earned, settings.turn_gamma)
        else:
            per_turn = gigpo_credit(settings.estimator, turns, earned, per_reply, settings)
        return turns.tokens.spread(refine(per_turn)), None

    def _without_signal(self, update: GRPOUpdate, found: Mapping[str, float]) -> float:
        if update.is_nothing_left:
            return 1.0
        if self._settings.credit != "episode":
            return equal_groups(update.advantages, update.data)
        return diagnostics.without_signal(found, in_groups=self._settings.estimator not in COMPARE_THE_BATCH)

    @torch.no_grad()
    def _first_look(self, data: Replies) -> _Look:
        """Computes proximal and reference log-probabilities and values where they are needed."""
        correction, critic = self._correction, self._critic
        is_on_the_way = self._settings.is_one_step and not correction.needs_whole_batch
        needs_proximal = correction.proximal == "recomputed" and not is_on_the_way
        needs = (needs_proximal, self._reference is not None, critic is not None)
        if not any(needs):
            return _Look()
        num_tokens = data.num_tokens
        with_ends = critic is not None and data.has_episodes and bool(data.cut.any())
        lines = torch.zeros(3, num_tokens + len(data.starts) * with_ends, device=self._training.device)
        for part in self._my_microbatches(data, np.arange(data.num_groups), with_ends=with_ends):
            with self._training.gpu.turn():
                hidden = None
                found: dict[int, Tensor] = {}
                if needs_proximal or (critic is not None and critic.is_shared):
                    hidden = self._policy.hidden(part.trees)
                if needs_proximal and hidden is not None:
                    found[0] = self._policy.log_probs(hidden, part.trees)[0]
                if self._reference is not None:
                    found[1] = self._reference(part.trees)
                if critic is not None:
                    found[2] = self._values(part, hidden)
                for line, numbers in found.items() if not part.is_filler else ():
                    lines[line, part.places] = numbers.float()
        self._rank.add_up(lines)
        proximal, reference, values = (
            line[:num_tokens] if is_needed else None for line, is_needed in zip(lines, needs, strict=True)
        )
        return _Look(proximal, reference, values, lines[2, num_tokens:] if with_ends else None)

    # -- one step of the optimizer ------------------------------------------------------------------

    def _my_microbatches(self, data: Replies, groups: np.ndarray, *, with_ends: bool = False) -> Iterator[Microbatch]:
        mine = groups[self._rank.share_by_size(data.sizes[groups])]
        return self._training.in_step(data.microbatches(mine, self._training.sizes, with_ends=with_ends), data)

    def _step(self, update: GRPOUpdate, groups: np.ndarray, *, is_first_look: bool) -> None:
        """Takes one step on some groups. The denominators are theirs, whichever rank and microbatch a token is in."""
        data = update.data
        numbers = data.numbers(groups)
        counts = int(data.sequences.lengths[numbers].sum()), len(numbers)
        for trained in self._all_trained:
            trained.forget_gradients()
        for part in self._my_microbatches(data, groups):
            with self._training.gpu.turn():
                if part.is_filler:
                    self._keep_in_step(part, is_policy_waiting=update.is_policy_waiting)
                else:
                    self._add_gradients(update, part, *counts, is_first_look=is_first_look)
        self._finish_step(update)

    def _add_gradients(
        self, update: GRPOUpdate, part: Microbatch, num_tokens: int, num_sequences: int, *, is_first_look: bool
    ) -> None:
        """Adds what a microbatch says to the gradients of a step on so many tokens and sequences."""
        critic = self._critic
        with torch.set_grad_enabled(not update.is_policy_waiting):
            hidden = self._policy.hidden(part.trees)
            logp, entropy = self._policy.log_probs(hidden, part.trees)
            weighed, loss, sums = self._policy_loss(update, part, logp, entropy, num_tokens, num_sequences)
        if critic is None:
            loss.backward()
        elif critic.is_shared:
            worth, more = self._value_loss(update, part, hidden, num_tokens)
            (loss + worth).backward()
        else:
            if not update.is_policy_waiting:
                loss.backward()  # before the critic's pass: one model's activations at a time
            worth, more = self._value_loss(update, part, None, num_tokens)
            worth.backward()
        update.sums.append(sums if critic is None else {**sums, **more})
        if is_first_look:
            update.logs[part.places] = logp.detach().float()
            update.weights[part.places] = weighed.weights.float()

    def _keep_in_step(self, part: Microbatch, *, is_policy_waiting: bool) -> None:
        """Makes the passes that other ranks make, for a gradient of zero."""
        with torch.set_grad_enabled(not is_policy_waiting):
            logp, _ = self._policy.log_probs(self._policy.hidden(part.trees), part.trees)
        if not is_policy_waiting:
            (0.0 * logp.sum()).backward()
        if self._critic is not None and not self._critic.is_shared:
            (0.0 * self._values(part, None).sum()).backward()

    def _policy_loss(
        self, update: GRPOUpdate, part: Microbatch, logp: Tensor, entropy: Tensor, num_tokens: int, num_sequences: int
    ) -> tuple[Weighed, Tensor, Mapping[str, Tensor]]:
        terms, places = self._settings.terms_with(self._correction.clip_range), part.places
        behaviour_logs = update.data.log_probs[places]
        proximal = self._proximal(update, part, logp, behaviour_logs)
        if update.whole is not None:
            weighed = Weighed(update.whole.weights[places], update.whole.kept[places])
        else:
            weighed = self._correction.weigh(proximal, behaviour_logs, part.sequences)
        loss = policy_loss(
            logp,
            proximal,
            update.advantages[places],
            weighed,
            token_scale(part.sequences, terms, num_tokens=num_tokens, num_sequences=num_sequences),
            self._correction.surrogate,
            terms,
            logp_ref=None if update.reference is None else update.reference[places],
            entropy=entropy,
            sequences=part.sequences,
        )
        return weighed, loss.value, loss.sums

    def _proximal(self, update: GRPOUpdate, part: Microbatch, logp: Tensor, behaviour_logs: Tensor) -> Tensor:
        if self._correction.proximal == "behaviour":
            return behaviour_logs
        if self._correction.proximal == "interpolated":
            born, version = update.data.versions[part.places], update.version
            return interpolate(logp, behaviour_logs, born, proximal_version=version, version=version + 1)
        return logp.detach() if update.proximal is None else update.proximal[part.places]

    def _value_loss(
        self, update: GRPOUpdate, part: Microbatch, hidden: Tensor | None, num_tokens: int
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert self._critic is not None
        assert update.values is not None
        assert update.targets is not None
        values = self._values(part, hidden)
        loss = self._critic.loss(values, update.targets[part.places], update.values[part.places], num_tokens)
        return self._critic.settings.value_weight * loss.value, loss.sums

    def _values(self, part: Microbatch, hidden: Tensor | None) -> Tensor:
        assert self._critic is not None
        with autocast(self._training.device):
            return self._critic.values(part.trees, hidden)

    def _finish_step(self, update: GRPOUpdate) -> None:
        policy = [] if update.is_policy_waiting else [(self._training.trained, update.norms)]
        critic = [] if self._critic is None else [(self._critic.trained, update.critic_norms)]
        steps = [*policy, *critic]
        for trained, norms in steps:
            trained.add_up_gradients()
            norms.append(trained.clip())
        for trained, _ in steps:
            trained.step()

    @property
    def _all_trained(self) -> list[TrainedWeights]:
        return [self._training.trained, *([] if self._critic is None else [self._critic.trained])]

    def _set_learning_rates(self) -> None:
        settings, updates = self._settings, self._training.updates
        share = settings.policy_schedule().share(max(0, updates - settings.critic_alone))
        self._training.trained.learning_rate = settings.learning_rate * share
        if self._critic is not None:
            share = settings.critic_schedule().share(updates)
            self._critic.trained.learning_rate = self._critic.settings.critic_learning_rate * share


def _sharded(
    load: Callable[[], CausalModel] | None, rank: Rank, shard_ranks: int | None
) -> Callable[[], CausalModel] | None:
    """Builds a model that nobody trains, cut like the one that is trained."""
    if load is None or shard_ranks is None:
        return load

    def cut() -> CausalModel:
        model = load().eval().requires_grad_(False)
        shard_model(model, rank, shard_ranks)
        return model

    return cut
