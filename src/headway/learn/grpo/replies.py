"""A batch of groups as one long line of trained tokens.

    group     0                1
    reply     0       1        2                       [S]    what is known of a reply: its reward
    line      a0 a1 a2| b0 b1 | c0 c1 c2 c3            [N]    what is known of a token: log-probability, version,
                                                              advantage, value

Whoever computes in microbatches of trees (llm/trees.py) finds the places of their tokens in the line, reads what is
there and writes what was found. So nothing that is known of a token depends on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headway.experience.group import Group
from headway.learn.ragged import Ragged
from headway.llm.trees import TreeBatch, lay_out, pack_trees


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Holds some replies as the model reads them: n tokens in s replies."""

    trees: TreeBatch
    places: Tensor  # [n]: of its tokens in the line
    sequences: Ragged  # its s replies


@dataclass(frozen=True, slots=True)
class MicrobatchSizes:
    """Says how large a microbatch may be: at most `budget` tokens; `price` and `apart` are those of `pack_trees`."""

    budget: int
    price: float
    device: torch.device
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Replies:
    """Holds G groups of S replies with N tokens in all."""

    groups: Sequence[Group]
    prompts: list[np.ndarray]
    replies: list[list[np.ndarray]]
    first: np.ndarray  # [G + 1]: the number of each group's first reply
    starts: np.ndarray  # [S]: where each reply begins in the line
    sequences: Ragged  # stays on the CPU: from here everything is cut
    rewards: Tensor  # [S]
    group: Tensor  # [S]: the group of each reply
    log_probs: Tensor  # [N] of the behaviour policy
    versions: Tensor  # [N]

    @classmethod
    def of(cls, groups: Sequence[Group], device: torch.device | str = "cpu") -> Replies:
        counts = np.array([len(group.lengths) for group in groups])
        lengths = np.concatenate([group.lengths for group in groups]).astype(np.int64)
        rewards = np.concatenate([group.rewards for group in groups]).astype(np.float32)
        log_probs = np.concatenate([group.log_probs for group in groups])
        versions = np.concatenate([group.versions for group in groups]).astype(np.int64)
        return cls(
            groups=groups,
            prompts=[group.prompt.astype(np.int64) for group in groups],
            replies=[[reply.astype(np.int64) for reply in group.replies] for group in groups],
            first=np.concatenate([[0], np.cumsum(counts)]),
            starts=np.cumsum(lengths) - lengths,
            sequences=Ragged.of(torch.from_numpy(lengths)),
            rewards=torch.from_numpy(rewards),
            group=torch.from_numpy(np.repeat(np.arange(len(groups)), counts)),
            log_probs=torch.from_numpy(log_probs).to(device),
            versions=torch.from_numpy(versions).to(device),
        )

    @property
    def num_groups(self) -> int:
        return len(self.prompts)

    @property
    def num_tokens(self) -> int:
        return self.sequences.num_values

    @property
    def sizes(self) -> np.ndarray:
        """Returns how many tokens a model reads for each group, [G]: the prompt once."""
        return np.array([len(p) + sum(map(len, r)) for p, r in zip(self.prompts, self.replies, strict=True)])

    def numbers(self, groups: np.ndarray) -> np.ndarray:
        """Returns the numbers of the replies in these groups."""
        return np.concatenate([np.arange(self.first[g], self.first[g + 1]) for g in groups])

    def begun_by(self, version: int) -> np.ndarray:
        """Returns the numbers of the replies whose first token this version made."""
        return np.flatnonzero(self.versions.cpu().numpy()[self.starts] == version)

    def made_by(self, version: int) -> Tensor:
        """Says which tokens [N] this version made, in replies that began with it."""
        begun = self.versions[torch.from_numpy(self.starts).to(self.versions.device)]
        own = begun[self.sequences.row.to(begun.device)] == self.versions
        return own & (self.versions == version)

    def microbatches(self, groups: np.ndarray, sizes: MicrobatchSizes) -> Iterator[Microbatch]:
        """Yields the replies of these groups."""
        return self.microbatches_of(self.numbers(groups), sizes) if len(groups) else iter(())

    def microbatches_of(self, numbers: np.ndarray, sizes: MicrobatchSizes) -> Iterator[Microbatch]:
        """Yields the replies with these numbers, group by group."""
        of_group = self.group.numpy()[numbers]
        groups = list(dict.fromkeys(of_group.tolist()))
        chosen = [numbers[of_group == g] - self.first[g] for g in groups]
        prompts = [self.prompts[g] for g in groups]
        replies = [[self.replies[g][place] for place in places] for g, places in zip(groups, chosen, strict=True)]
        lengths = self.sequences.lengths
        for trees in pack_trees(prompts, replies, sizes.budget, sizes.price, apart=sizes.apart):
            here = lay_out(trees, apart=sizes.apart)
            mine = [int(numbers[reply]) for reply in here.replies]
            places = np.concatenate([np.arange(self.starts[r], self.starts[r] + int(lengths[r])) for r in mine])
            yield Microbatch(
                replace(here, replies=tuple(mine)).to(sizes.device),
                torch.from_numpy(places).to(sizes.device),
                Ragged.of(lengths[mine]).to(sizes.device),
            )
