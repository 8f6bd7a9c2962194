"""From the rewards of turns to advantages: which turn of an episode is to thank for what was earned.

    credit     advantage of a token in turn t of an episode                             compared with
    episode    the sum of all rewards                                                   the episodes of its group
    turn       G_t = r_t + turn_gamma r_t+1 + turn_gamma^2 r_t+2 + ...                  turn t of its group's episodes
    gigpo      episode_reward_weight * (as `episode`)
               + step_reward_weight * (G_t, with step_reward_gamma)                     turns of its group that began
                                                                                        in the same state

How a number is compared with others is the estimator's affair (advantages.py): grpo divides by their deviation, dr_grpo
does not, rloo leaves the number itself out. A turn that has nothing to compare with, because no other episode is that
long or was in that state, gets 0. A reply to a prompt is an episode of one turn: `episode` and `turn` are one then.

With a critic nothing is compared: `turn_gae` discounts from turn to turn, and within a turn not at all.

    inside a turn          A_i = V_i+1 - V_i                            + A_i+1
    at the end of a turn   A_i = r + gamma V_next turn - V_i            + gamma lam A_next turn
    at the end             A_i = r - V_i                                where the episode was cut: + gamma V_after
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from headway.llm.train.advantages import at_the_end, group_advantages
from headway.llm.train.ragged import Ragged

Credit = Literal["episode", "turn", "gigpo"]


class CreditSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Credit: which turn of an episode is to thank."""

    credit: Credit = "episode"
    """What is compared within a group: episode (the sum of the rewards), turn (what was earned from each turn on, turn
    by turn) or gigpo (the sum, and what was earned from equal states on). Of single replies the first two are the
    same."""
    turn_gamma: float = Field(default=1.0, ge=0, le=1)
    """With credit=turn: discount per turn. Lower thanks a turn for what comes soon after it."""
    episode_reward_weight: float = Field(default=1.0, ge=0)
    """With credit=gigpo: weight of the comparison of whole episodes."""
    step_reward_weight: float = Field(default=1.0, ge=0)
    """With credit=gigpo: weight of the comparison among equal states. 0: as credit=episode."""
    step_reward_gamma: float = Field(default=0.95, ge=0, le=1)
    """With credit=gigpo: discount per turn of what is compared among equal states. At 1 a detour costs nothing."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Holds M turns of S episodes with N trained tokens, end to end. Every turn has a token."""

    tokens: Ragged  # M rows: the trained tokens of each turn
    sequence: Tensor  # [M]: the number of its episode, never falling
    place: Tensor  # [M]: counted from 0 in each episode
    group: Tensor  # [M]: the number of its group
    states: Tensor  # [M]: where it began; equal numbers in one group are equal states
    rewards: Tensor  # [M] float32

    def to(self, device: torch.device | str) -> Turns:
        others = (self.sequence, self.place, self.group, self.states, self.rewards)
        return Turns(self.tokens.to(device), *(tensor.to(device) for tensor in others))


def returns_to_go(rewards: Tensor, sequence: Tensor, gamma: float) -> Tensor:
    """Returns the discounted sum of each turn's reward and those behind it in its episode, [M]."""
    owners, found = sequence.tolist(), rewards.tolist()
    for turn in reversed(range(len(found) - 1)):
        if owners[turn] == owners[turn + 1]:
            found[turn] += gamma * found[turn + 1]
    return torch.tensor(found, dtype=torch.float64).to(rewards)


def turn_credit(estimator: str, turns: Turns, rewards: Tensor, gamma: float) -> Tensor:
    """Returns advantages of turns [M]: what was earned from there on, against the same turn in the group."""
    to_go = returns_to_go(rewards, turns.sequence, gamma)
    return group_advantages(estimator, to_go, _together(turns.group, turns.place))


def state_credit(estimator: str, turns: Turns, rewards: Tensor, gamma: float) -> Tensor:
    """Returns advantages of turns [M]: what was earned from there on, against turns that began in the same state."""
    to_go = returns_to_go(rewards, turns.sequence, gamma)
    return group_advantages(estimator, to_go, _together(turns.group, turns.states))


def gigpo_credit(
    estimator: str, turns: Turns, rewards: Tensor, per_episode: Tensor, settings: CreditSettings
) -> Tensor:
    """Returns advantages of turns [M]: those of their episodes [S], and the comparison among equal states."""
    among_states = state_credit(estimator, turns, rewards, settings.step_reward_gamma)
    whole = settings.episode_reward_weight * per_episode[turns.sequence]
    return whole + settings.step_reward_weight * among_states


def turn_gae(
    turns: Turns,
    penalties: Tensor | None,  # [N]: taken from the rewards
    values: Tensor,  # [N]: of the text before each token
    sequences: Ragged,
    *,
    gamma: float,
    lam: float,
    bootstrap: Tensor | None = None,  # [S]: value after the last token of what was cut, 0 of what had ended
) -> tuple[Tensor, Tensor]:
    """Returns the advantages and the value targets of tokens, both [N]: discounts between turns, none within.

    The sum is built by doubling, as in `token_gae`; the factors between a token and one further on are multiplied up
    on the way.
    """
    rewards = at_the_end(turns.rewards.to(values), turns.tokens)
    if penalties is not None:
        rewards = rewards - penalties
    row, turn = sequences.row, turns.tokens.row
    is_last, ends_turn = torch.ones_like(row, dtype=torch.bool), torch.ones_like(row, dtype=torch.bool)
    is_last[:-1], ends_turn[:-1] = row[1:] != row[:-1], turn[1:] != turn[:-1]
    after = torch.cat([values[1:], values.new_zeros(1)])
    beyond = values.new_zeros(sequences.num_rows) if bootstrap is None else bootstrap.to(values)
    after = torch.where(is_last, sequences.spread(beyond), after)
    one = values.new_ones(())
    advantages = rewards + torch.where(ends_turn, gamma * one, one) * after - values
    factors = torch.where(ends_turn, gamma * lam * one, one)
    reach, longest = 1, int(sequences.lengths.max())
    while reach < longest:
        together = row[reach:] == row[:-reach]
        further = torch.where(together, factors[:-reach] * advantages[reach:], 0.0)
        advantages = torch.cat([advantages[:-reach] + further, advantages[-reach:]])
        factors = torch.cat([factors[:-reach] * factors[reach:], factors[-reach:]])
        reach *= 2
    return advantages, advantages + values


def _together(group: Tensor, other: Tensor) -> Tensor:
    """Numbers [M] that are equal where both numbers are."""
    return torch.unique(torch.stack([group, other]), dim=1, return_inverse=True)[1]
