"""Learns the prior of a search, a language model, from segments of text games.

    segments --> steps --> distinct states (states.py) --> chunks of whole states --> trees (llm/train/trees.py)
                                                                                          |
    weights <-- AdamW <-- gradients, added up over ranks <-- imitation of the visits <----+
                                                         or ppo on what was executed (loss.py)

A softmax over the candidates of a state needs all of them, so a state is never shared between two backward passes: a
chunk holds whole states of at most `microbatch_tokens` in all, or one that is larger.

Data of older searches are as good for imitation; for ppo the weights rho make up for older or other engines.

As one rank of several a learner has the whole batch and does its share of the states; means are those of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Batch, LearnReport
from headway.llm.model.adapters import has_adapters
from headway.llm.model.types import CausalModel
from headway.llm.train.advantages import whiten
from headway.llm.train.grpo_loss_loss import measures, policy_loss, token_scale
from headway.llm.train.grpo_loss_update import sums_of_all_ranks
from headway.llm.train.model_in_training import LearnsAModel, ModelInTraining
from headway.llm.train.model_in_training_policy import TokenPolicy, find_reference
from headway.llm.train.ragged import Ragged
from headway.llm.train.ragged_device_copies import send
from headway.llm.train.replies import Replies, minibatches
from headway.llm.train.trees import TreeBatch
from headway.ranks.rank import ALONE, Rank
from headway.replay.records import record_of
from headway.text_games.prior_learner_loss import IMITATION_SUMS, clamped_weights, imitation_loss
from headway.text_games.prior_learner_settings import PriorSettings
from headway.text_games.prior_learner_states import (
    SearchedStates,
    TakenActions,
    searched_states,
    taken_actions,
    text_steps,
)
from headway.text_games.segment import TextSegment


class _Compared(NamedTuple):
    """What was said of each token of the line [N] before the first step, where it is needed."""

    proximal: Tensor | None = None
    reference: Tensor | None = None


class PriorLearner(LearnsAModel):
    """Trains a causal language model to guide a search. `load` builds the model, where the learner runs."""

    def __init__(
        self,
        load: Callable[[], CausalModel],
        settings: PriorSettings,
        *,
        load_reference: Callable[[], CausalModel] | None = None,
        publish_dtype: torch.dtype | None = None,
        seed: int = 0,
        rank: Rank = ALONE,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._tokens = settings.token_settings()
        self._training = ModelInTraining(
            load,
            self._tokens,
            layout=settings.layout,
            kernels=settings,
            microbatch_tokens=settings.microbatch_tokens,
            publish_dtype=publish_dtype,
            seed=seed,
            rank=rank,
        )
        self._policy = TokenPolicy(self._training.model, self._tokens, self._training.kernels)
        if settings.needs_reference and load_reference is None and not has_adapters(self._training.model):
            raise ValueError(f"prior_kl={settings.prior_kl!r} needs a reference model: load_reference, or adapters")
        self._reference = find_reference(self._policy, self._tokens, load_reference)

    # -- the learner's face -------------------------------------------------------------------------

    def learn(self, batch: Batch) -> LearnReport:
        settings = self._settings
        segments = [record_of(rollout, TextSegment) for rollout in batch.rollouts]
        steps = list(text_steps(segments, settings.prior_td_steps, settings.gamma))
        num_steps = sum(segment.num_steps for segment in segments)
        phase = settings.phase(self._training.updates)
        if phase == "imitation":
            states, skipped = searched_states(steps, settings.min_spread)
            found = {} if states is None else self._imitate(states)
        else:
            taken, skipped = taken_actions(steps)
            found = {} if taken is None else self._reinforce(taken)
        self._training.updates += 1
        skipped["unread"] = num_steps - len(steps)
        return LearnReport(
            {
                "rows": float(num_steps),
                "skipped_rows": sum(skipped.values()) / max(1, num_steps),
                **{f"skipped_{why}": count / max(1, num_steps) for why, count in skipped.items()},
                "is_imitation": float(phase == "imitation"),
                "grad_norm": 0.0,
                "learning_rate": settings.prior_learning_rate,
                **found,
            }
        )

    # -- imitation ----------------------------------------------------------------------------------

    def _imitate(self, states: SearchedStates) -> dict[str, float]:
        chosen = self._chosen_groups(states.counts.numpy())
        totals = dict.fromkeys(IMITATION_SUMS, torch.zeros((), device=self._training.device))
        norms = []
        for epoch in range(self._settings.prior_epochs):
            for groups in self._minibatches(chosen):
                sums = self._imitation_step(states, groups)
                norms.append(self._training.step())
                if epoch == 0:  # how well it did before it had seen the state in this update
                    totals = {name: total + sums[name] for name, total in totals.items()}
        counts = float(states.counts[torch.from_numpy(chosen)].sum())
        seen = self._added_up(totals)
        return {
            **{name: value / counts for name, value in seen.items()},
            "states": float(len(chosen)),
            "left_out_rows": float(states.counts.sum()) - counts,
            "read_tokens": float(states.replies.sizes[chosen].sum()),
            **self._training.trained.norms(norms),
        }

    def _imitation_step(self, states: SearchedStates, groups: np.ndarray) -> dict[str, Tensor]:
        """Makes the gradient of one step; its mean is over the steps in these states, whichever rank they are on."""
        device, replies = self._training.device, states.replies
        whole = float(states.counts[torch.from_numpy(groups)].sum())
        totals = {name: torch.zeros((), device=device) for name in IMITATION_SUMS}
        self._training.trained.forget_gradients()
        for chunk in self._my_chunks(replies, groups):
            with self._training.gpu.turn():
                numbers, some = torch.from_numpy(replies.numbers(chunk)), torch.from_numpy(chunk)
                logs, _ = self._read(replies, chunk, self._policy.read)
                loss = imitation_loss(
                    logs,
                    Ragged.of(replies.sequences.lengths[numbers]).to(device),
                    Ragged.of(states.candidates.lengths[some]).to(device),
                    send(states.visits[numbers], device),
                    send(states.counts[some], device),
                    self._settings.prior_temperature,
                )
                (loss.value / whole).backward()
                totals = {name: total + loss.sums[name] for name, total in totals.items()}
        return totals

    # -- ppo ----------------------------------------------------------------------------------------

    def _reinforce(self, taken: TakenActions) -> dict[str, float]:
        replies, settings = taken.replies, self._settings
        chosen = self._chosen_groups(np.bincount(taken.group, minlength=replies.num_groups))
        cut = list(self._minibatches(chosen))
        look = self._first_look(replies, chosen, is_one_step=len(cut) == 1 and settings.prior_epochs == 1)
        advantages = whiten(taken.advantages)
        sums: list[Mapping[str, Tensor]] = []
        norms = []
        for epoch in range(settings.prior_epochs):
            for groups in cut if epoch == 0 else self._minibatches(chosen):
                sums += self._ppo_step(taken, advantages, look, groups)
                norms.append(self._training.step())
        is_kept = np.isin(taken.group, chosen)
        num_tokens = int(taken.tokens.lengths[torch.from_numpy(is_kept)].sum())
        totals = sums_of_all_ranks(sums, self._rank, self._training.device)
        return {
            **measures(totals, num_tokens * settings.prior_epochs, len(norms)),
            "asked_tokens": float((~taken.log_probs.isnan()).float().mean()),
            "advantage_mean": float(taken.advantages.mean()),
            "advantage_std": float(taken.advantages.std(correction=0)),
            "states": float(len(chosen)),
            "left_out_rows": float((~is_kept).sum()),
            "read_tokens": float(replies.sizes[chosen].sum()),
            **self._training.trained.norms(norms),
        }

    @torch.no_grad()
    def _first_look(self, replies: Replies, groups: np.ndarray, *, is_one_step: bool) -> _Compared:
        """Reads what the loss compares with. With one step the policy that makes the gradient is the proximal one."""
        readers = (None if is_one_step else self._policy.read, self._reference)
        lines = torch.zeros(2, replies.num_tokens, device=self._training.device)
        for reader, line in zip(readers, lines, strict=True):
            for chunk in self._my_chunks(replies, groups) if reader is not None else ():
                assert reader is not None
                with self._training.gpu.turn():
                    logs, places = self._read(replies, chunk, reader)
                    line[places] = logs
        self._rank.add_up(lines)
        return _Compared(*(None if reader is None else line for reader, line in zip(readers, lines, strict=True)))

    def _ppo_step(
        self, taken: TakenActions, advantages: Tensor, look: _Compared, groups: np.ndarray
    ) -> list[Mapping[str, Tensor]]:
        """Makes the gradient of one step; its mean is over the tokens of these groups, whichever rank they are on."""
        device = self._training.device
        num_tokens = int(taken.tokens.lengths[torch.from_numpy(np.isin(taken.group, groups))].sum())
        sums: list[Mapping[str, Tensor]] = []
        self._training.trained.forget_gradients()
        for chunk in self._my_chunks(taken.replies, groups):
            with self._training.gpu.turn():
                logs, places = self._read(taken.replies, chunk, self._policy.read)
                is_here = torch.from_numpy(np.isin(taken.group, chunk))
                of_token = is_here[taken.tokens.row]
                in_line = send(torch.from_numpy(taken.places)[of_token], device)
                tokens = Ragged.of(taken.tokens.lengths[is_here]).to(device)
                logp = logs[
                    torch.searchsorted(places, in_line)
                ]  # an action that several steps took stands there for each
                proximal = logp.detach() if look.proximal is None else look.proximal[in_line]
                loss = policy_loss(
                    logp,
                    proximal,
                    tokens.spread(send(advantages[is_here], device)),
                    clamped_weights(proximal, send(taken.log_probs[of_token], device)),
                    token_scale(tokens, self._tokens, num_tokens=num_tokens, num_sequences=tokens.num_rows),
                    "clip",
                    self._tokens,
                    logp_ref=None if look.reference is None else look.reference[in_line],
                )
                loss.value.backward()
                sums.append(loss.sums)
        return sums

    # -- reading ------------------------------------------------------------------------------------

    def _chosen_groups(self, counts: np.ndarray) -> np.ndarray:
        """Draws the groups that are learned from, rising, rather those with more steps; all where there is no limit."""
        most = self._settings.prior_max_states
        if most is None or len(counts) <= most:
            return np.arange(len(counts))
        shares = counts.astype(np.float64) / counts.sum(dtype=np.float64)
        return np.sort(self._training.random.choice(len(counts), most, replace=False, p=shares))

    def _minibatches(self, groups: np.ndarray) -> Iterator[np.ndarray]:
        count = -(-len(groups) // self._settings.prior_batch_size)
        return (groups[some] for some in minibatches(len(groups), count, self._training.random))

    def _my_chunks(self, replies: Replies, groups: np.ndarray) -> Iterator[np.ndarray]:
        """Yields this rank's groups, as many together as may be read before a backward pass; numbers rise in each."""
        sizes = self._training.sizes
        work = replies.sizes[groups]
        if sizes.apart:  # each reply has the prompt again
            work = np.array([_size_apart(replies, group) for group in groups])
        mine = self._rank.share_by_size(work)
        some: list[int] = []
        total = 0
        for place in sorted(mine, key=lambda place: (-work[place], place)):
            if some and total + work[place] > sizes.budget:
                yield np.sort(np.array(some))
                some, total = [], 0
            some.append(int(groups[place]))
            total += int(work[place])
        if some:
            yield np.sort(np.array(some))

    def _read(
        self, replies: Replies, groups: np.ndarray, reader: Callable[[TreeBatch], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns the log-probabilities of the groups' tokens in the order of the line, and their places there."""
        logs, places = [], []
        for part in replies.microbatches(groups, self._training.sizes, joined=True):
            logs.append(reader(part.trees).float())
            places.append(part.places)
        found, order = torch.sort(torch.cat(places))
        return torch.cat(logs)[order], found

    def _added_up(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        totals = torch.stack(list(sums.values()))
        self._rank.add_up(totals)
        return dict(zip(sums, totals.tolist(), strict=True))


def _size_apart(replies: Replies, group: int) -> int:
    prompt, branches = len(replies.prompts[group]), replies.branches[group]
    return sum(prompt + len(branch.tokens) for branch in branches)
