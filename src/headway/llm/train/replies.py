"""A batch of groups as one long line of trained tokens.

    group     0                1
    reply     0       1        2                       [S]    what is known of a reply: its reward
    turn      0       1        2       3               [M]    what is known of a turn: its reward, its state
    line      a0 a1 a2| b0 b1 | c0 c1   d0 d1          [N]    what is known of a token: log-probability, version,
                                                              advantage, value

A reply is one to a prompt, or a whole episode: then the tokens of its turns follow each other in the line, and what the
environment said between them is read by the model and stands nowhere in the line.

Whoever computes in microbatches of trees (llm/train/trees.py) finds the places of their tokens in the line, reads
what is
there and writes what was found. So nothing that is known of a token depends on how the batch was cut.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Rollout
from headway.llm.rollouts_episode import Episodes
from headway.llm.rollouts_group import Group, group_of
from headway.llm.train.advantages_credit import Turns
from headway.llm.train.ragged import Ragged
from headway.llm.train.ragged_device_copies import send
from headway.llm.train.trees import ReplyTree, TreeBatch, Windows, lay_out, lay_out_joined, pack_trees, pays_to_join
from headway.llm.train.trees_row_packing import row_length

Record = Group | Episodes


def record_of(rollout: Rollout) -> Record:
    """What a rollout brought: episodes, or the replies to a prompt."""
    return rollout.payload if isinstance(rollout.payload, Episodes) else group_of(rollout)


def minibatches(num_groups: int, most: int, random: np.random.Generator) -> list[np.ndarray]:
    """Cuts groups into at most so many minibatches, shuffled: the numbers of each, rising. One draws nothing."""
    count = min(most, num_groups)
    order = random.permutation(num_groups) if count > 1 else np.arange(num_groups)
    return [np.sort(part) for part in np.array_split(order, count)]


@dataclass(frozen=True, slots=True)
class Branch:
    """Holds what follows a prompt: a reply, or an episode up to the last token that the policy drew."""

    tokens: np.ndarray  # [T] int64
    trained: np.ndarray | None = None  # [T] bool: drawn by the policy; None: all of them
    rest: np.ndarray | None = None  # [R] int64: what the environment said behind them

    def to_its_end(self) -> Branch:
        """The same with the rest and one place more: what predicts it has read everything. No token stands there."""
        trained = np.ones(len(self.tokens), bool) if self.trained is None else self.trained
        rest = np.zeros(0, np.int64) if self.rest is None else self.rest
        is_end = np.zeros(len(rest) + 1, bool)
        is_end[-1] = True
        return Branch(np.concatenate([self.tokens, rest, [0]]), np.concatenate([trained, is_end]))


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Holds some replies as the model reads them: n tokens in s replies."""

    trees: TreeBatch
    places: Tensor  # [n]: of its tokens in the line
    sequences: Ragged  # its s replies
    is_filler: bool = False  # read only because other ranks have one more to read


@dataclass(frozen=True, slots=True)
class MicrobatchSizes:
    """Says how large a microbatch may be: at most `budget` tokens; `price` and `apart` are those of `pack_trees`.

    With `windows` (llm/train/kernels.py) its trees stand in one row.
    """

    budget: int
    price: float
    device: torch.device
    apart: bool = False
    windows: Windows | None = None
    positions: int = sys.maxsize
    """The longest conversation that the model can read."""

    @property
    def can_join(self) -> bool:
        """Whether trees may share what their prompts begin with."""
        return not self.apart and self.windows is None

    def lay_out(self, trees: Sequence[ReplyTree]) -> TreeBatch:
        length = row_length(sum(tree.num_tokens for tree in trees), self.budget)
        return lay_out(trees, apart=self.apart, windows=self.windows, length=length)


@dataclass(frozen=True, slots=True)
class Replies:
    """Holds G groups of S replies (or episodes) with M turns and N trained tokens in all."""

    records: Sequence[Record]
    prompts: list[np.ndarray]
    branches: list[list[Branch]]
    first: np.ndarray  # [G + 1]: the number of each group's first reply
    starts: np.ndarray  # [S]: where each reply begins in the line
    sequences: Ragged  # stays on the CPU: from here everything is cut
    rewards: Tensor  # [S]: of an episode the sum
    group: Tensor  # [S]: the group of each reply
    cut: np.ndarray  # [S] bool: a limit ended it
    runs: Ragged  # of the S replies, those of one run; without forks each is one
    turns: Turns
    log_probs: Tensor  # [N] of the behaviour policy
    versions: Tensor  # [N]

    @classmethod
    def of(cls, records: Sequence[Record], device: torch.device | str = "cpu") -> Replies:
        shown = [_shown(record) for record in records]
        counts = np.array([len(one.rewards) for one in shown])
        lengths = np.concatenate([one.lengths for one in shown]).astype(np.int64)
        group = torch.from_numpy(np.repeat(np.arange(len(records)), counts))
        turns = np.concatenate([one.turns for one in shown])
        sequence = torch.repeat_interleave(torch.from_numpy(turns))
        return cls(
            records=records,
            prompts=[record.prompt.astype(np.int64) for record in records],
            branches=[one.branches for one in shown],
            first=np.concatenate([[0], np.cumsum(counts)]),
            starts=np.cumsum(lengths) - lengths,
            sequences=Ragged.of(torch.from_numpy(lengths)),
            rewards=torch.from_numpy(np.concatenate([one.rewards for one in shown]).astype(np.float32)),
            group=group,
            cut=np.concatenate([one.cut for one in shown]),
            runs=Ragged.of(torch.from_numpy(np.bincount(np.cumsum(~np.concatenate([one.forks for one in shown])) - 1))),
            turns=Turns(
                Ragged.of(torch.from_numpy(np.concatenate([one.turn_lengths for one in shown]))),
                sequence,
                torch.from_numpy(np.concatenate([np.arange(count) for count in turns])),
                group[sequence],
                torch.from_numpy(np.concatenate([one.states for one in shown])),
                torch.from_numpy(np.concatenate([one.turn_rewards for one in shown]).astype(np.float32)),
            ),
            log_probs=send(torch.from_numpy(np.concatenate([one.log_probs for one in shown])), device),
            versions=send(torch.from_numpy(np.concatenate([one.versions for one in shown]).astype(np.int64)), device),
        )

    @property
    def num_groups(self) -> int:
        return len(self.prompts)

    @property
    def num_tokens(self) -> int:
        return self.sequences.num_values

    @property
    def first_of_run(self) -> Tensor:
        """The number of each run's first reply."""
        return self.runs.lengths.cumsum(0) - self.runs.lengths

    @property
    def has_episodes(self) -> bool:
        return any(isinstance(record, Episodes) for record in self.records)

    @property
    def sizes(self) -> np.ndarray:
        """Returns how many tokens a model reads for each group, [G]: the prompt once."""
        pairs = zip(self.prompts, self.branches, strict=True)
        return np.array([len(prompt) + sum(len(branch.tokens) for branch in some) for prompt, some in pairs])

    def without_cut(self) -> Replies | None:
        """Returns those that no limit has ended, without the groups that have none; None where nothing is left."""
        kept = [np.flatnonzero(~some) for some in np.split(self.cut, self.first[1:-1])]
        left = [record.take(places) for record, places in zip(self.records, kept, strict=True) if len(places)]
        return Replies.of(left, self.log_probs.device) if left else None

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

    def microbatches(
        self, groups: np.ndarray, sizes: MicrobatchSizes, *, with_ends: bool = False, joined: bool = False
    ) -> Iterator[Microbatch]:
        """Yields the replies of these groups.

        `with_ends`: what was cut is read to its end, and the place behind the last token of reply s has the number
        N + s in the line. `joined`: what the prompts of a microbatch begin with is read once, where that pays.
        """
        numbers = self.numbers(groups) if len(groups) else np.zeros(0, np.int64)
        return self.microbatches_of(numbers, sizes, with_ends=with_ends, joined=joined) if len(groups) else iter(())

    def microbatches_of(
        self, numbers: np.ndarray, sizes: MicrobatchSizes, *, with_ends: bool = False, joined: bool = False
    ) -> Iterator[Microbatch]:
        """Yields the replies with these numbers, group by group."""
        of_group = self.group.numpy()[numbers]
        groups = list(dict.fromkeys(of_group.tolist()))
        chosen = [numbers[of_group == g] for g in groups]
        branches = [[self._branch(number, with_ends) for number in some] for some in chosen]
        for g, some in zip(groups, branches, strict=True):
            self._check_readable(g, max(len(branch.tokens) for branch in some), sizes.positions)
        packed = pack_trees(
            [self.prompts[g] for g in groups],
            [[branch.tokens for branch in some] for some in branches],
            sizes.budget,
            sizes.price,
            apart=sizes.apart,
            end_to_end=sizes.windows is not None,
            trained=[[branch.trained for branch in some] for some in branches],
        )
        order = list(chain.from_iterable(chosen))
        for trees in packed:
            is_joined = joined and sizes.can_join and pays_to_join(trees, sizes.price)
            here = lay_out_joined(trees) if is_joined else sizes.lay_out(trees)
            mine = [int(order[reply]) for reply in here.replies]
            places = [self._places(number, with_ends) for number in mine]
            yield Microbatch(
                replace(here, replies=tuple(mine)).to(sizes.device),
                send(torch.from_numpy(np.concatenate(places)), sizes.device),
                Ragged.of([len(some) for some in places]).to(sizes.device),
            )

    def _check_readable(self, group: int, longest: int, positions: int) -> None:
        record, prompt = self.records[group], len(self.prompts[group])
        if not prompt:
            raise ValueError(f"{record}: the prompt is empty, so nothing predicts the first token of a reply")
        if prompt + longest - 1 > positions:  # the last token is not read
            raise ValueError(
                f"{record}: a prompt of {prompt} tokens with {longest} behind it goes beyond the {positions} positions "
                "of the model"
            )

    def _branch(self, number: int, with_ends: bool) -> Branch:
        group = int(self.group[number])
        branch = self.branches[group][number - self.first[group]]
        return branch.to_its_end() if with_ends and self.cut[number] else branch

    def _places(self, number: int, with_ends: bool) -> np.ndarray:
        begin = self.starts[number]
        places = np.arange(begin, begin + int(self.sequences.lengths[number]))
        return np.append(places, self.num_tokens + number) if with_ends and self.cut[number] else places


@dataclass(frozen=True, slots=True)
class _Shown:
    """Shows a record as the line needs it: s replies with m turns and n trained tokens."""

    branches: list[Branch]
    lengths: np.ndarray  # [s]: trained tokens
    rewards: np.ndarray  # [s]
    cut: np.ndarray  # [s] bool
    forks: np.ndarray  # [s] bool
    turns: np.ndarray  # [s]: how many
    turn_lengths: np.ndarray  # [m]: trained tokens
    turn_rewards: np.ndarray  # [m]
    states: np.ndarray  # [m]
    log_probs: np.ndarray  # [n]
    versions: np.ndarray  # [n]


def _shown(record: Record) -> _Shown:
    return _shown_episodes(record) if isinstance(record, Episodes) else _shown_group(record)


def _shown_group(group: Group) -> _Shown:
    size = len(group.lengths)
    lengths = group.lengths.astype(np.int64)
    return _Shown(
        branches=[Branch(reply.astype(np.int64)) for reply in group.replies],
        lengths=lengths,
        rewards=group.rewards,
        cut=np.array([word != "stop" for word in group.finish]) if group.finish else np.zeros(size, bool),
        forks=np.zeros(size, bool),
        turns=np.ones(size, np.int64),
        turn_lengths=lengths,
        turn_rewards=group.rewards,
        states=-1 - np.arange(size),
        log_probs=group.log_probs,
        versions=group.versions,
    )


def _shown_episodes(record: Episodes) -> _Shown:
    ends = np.cumsum(record.lengths)
    number = np.repeat(np.cumsum(record.turns) - record.turns, record.lengths) + record.turn  # [T]: among all turns
    branches = []
    for end, length in zip(ends, record.lengths, strict=True):
        tokens, trained = record.tokens[end - length : end].astype(np.int64), record.trained[end - length : end]
        last = int(np.flatnonzero(trained)[-1]) + 1
        branches.append(Branch(tokens[:last], None if trained[:last].all() else trained[:last], tokens[last:]))
    return _Shown(
        branches=branches,
        lengths=record.num_trained,
        rewards=record.returns,
        cut=np.array([word != "done" for word in record.end]),
        forks=record.forks,
        turns=record.turns.astype(np.int64),
        turn_lengths=np.bincount(number[record.trained], minlength=len(record.rewards)),
        turn_rewards=record.rewards,
        states=record.states,
        log_probs=record.log_probs[record.trained],
        versions=record.versions[record.trained],
    )
