"""What a batch says of itself, before anything is learned from it: rewards, lengths, turns, and how they ended."""

from __future__ import annotations

import numpy as np
import torch

from headway.llm.rollouts_episode import ENDS, Episodes
from headway.llm.rollouts_group import PART
from headway.llm.tasks.rewards import part_means
from headway.llm.train import grpo_loss_diagnostics as diagnostics
from headway.llm.train.replies import Replies

GAME = "game_"
"""What the names of an environment's other numbers begin with in metrics."""


def summarize(data: Replies) -> dict[str, float]:
    """Sums up a whole batch, what `mask_truncated` leaves out included."""
    episodes = [record for record in data.records if isinstance(record, Episodes)]
    replies = [record for record in data.records if not isinstance(record, Episodes)]
    found = part_means((record.part_names, record.parts) for record in replies)
    first = data.first_of_run
    found |= diagnostics.replies(data.rewards[first], data.group[first], data.turns.tokens.lengths)
    finish = [word for record in replies for word in record.finish]
    if finish and len(finish) == len(data.starts):
        found["cut_off"] = sum(word != "stop" for word in finish) / len(finish)
    if episodes:
        found |= _of_episodes(episodes)
        found["read_tokens"] = float(data.sizes.sum())
    return found


def _of_episodes(episodes: list[Episodes]) -> dict[str, float]:
    turns = np.concatenate([record.sums_of_runs(record.turns) for record in episodes])
    rewards = np.concatenate([record.rewards for record in episodes])
    tokens = np.concatenate([record.sums_of_runs(record.num_trained) for record in episodes])
    ends = [record.end[place] for record in episodes for place in np.flatnonzero(~record.forks)]
    parts = part_means((record.part_names, record.parts[:, ~record.forks]) for record in episodes if record.part_names)
    return {
        **{GAME + name.removeprefix(PART): mean for name, mean in parts.items()},
        "success": float(np.concatenate([record.succeeded[~record.forks] for record in episodes]).mean()),
        "turns": float(turns.mean()),
        "turns_max": float(turns.max()),
        "turn_reward": float(rewards.mean()),
        "episode_tokens": float(tokens.mean()),
        "episode_tokens_max": float(tokens.max()),
        "trained_tokens": float(tokens.sum()),
        **{f"end_{word}": ends.count(word) / len(ends) for word in ENDS},
    }


def equal_groups(advantages: torch.Tensor, data: Replies) -> float:
    """Returns the share of the groups in which all tokens have the same advantage, given advantages [N]."""
    found = advantages.cpu()
    tokens = np.add.reduceat(data.sequences.lengths.numpy(), data.first[:-1])
    return float(np.mean([bool((part == part[0]).all()) for part in found.split(tokens.tolist())]))
