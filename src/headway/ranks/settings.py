"""One learner on several processes: the setting, and how a recipe's learner is spread over them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Self

import torch
from pydantic import Field, model_validator

from headway.core.protocols import Learner, Placement
from headway.ranks.rank import ALONE, Device, Rank
from headway.ranks.rank_processes import RankProcesses
from headway.ranks.ranked_learner import RankedLearner, StartPeers
from headway.runs.config import RunConfig

BEFORE_THE_DEADLINE = 0.9
"""Ranks give up a little before the coordinator does: they can say which of them it was."""


class RankedConfig(RunConfig):
    """Ranks: the processes a learner is spread over."""

    learner_ranks: int = Field(default=1, ge=1)
    """Processes the learner is spread over, each with a share of the gradient. More pay where a
    gradient step takes much longer than sending the gradient; sums are rounded differently for each number."""
    torch_threads: int = Field(default=1, ge=1)
    """Threads of torch in each process, that is in each rank. One, where roles share the cores: more are slower, and
    differ in bits."""

    @property
    def placement(self) -> Placement:
        """Of each process."""
        return Placement(num_cpus=self.torch_threads, num_threads=self.torch_threads)


class ShardedConfig(RankedConfig):
    """Ranks: the processes a learner is spread over, and what each holds of its model."""

    sharding: Literal["replicas", "full", "hybrid"] = "replicas"
    """What each of the learner_ranks holds. replicas: the whole model, with its gradient and optimizer. full: a shard
    of all of that, for messages at every layer; checkpoints are files of shards, which any number of ranks reads.
    hybrid: shards within shard_ranks ranks, replicas across, for fewer messages between machines."""
    shard_ranks: int | None = Field(default=None, ge=2)
    """hybrid: ranks that share one model, those of one machine for example. A divisor of learner_ranks."""

    @model_validator(mode="after")
    def _can_shard(self) -> Self:
        if (self.shard_ranks is None) != (self.sharding != "hybrid"):
            raise ValueError(
                f"shard_ranks goes with sharding='hybrid', received shard_ranks={self.shard_ranks!r} and "
                f"sharding={self.sharding!r}"
            )
        if self.shard_ranks is not None and self.learner_ranks % self.shard_ranks:
            raise ValueError(
                f"shard_ranks={self.shard_ranks} must divide learner_ranks={self.learner_ranks} without a rest"
            )
        return self

    @property
    def ranks_of_a_model(self) -> int | None:
        """How many ranks hold a model together; None: each holds its own."""
        return None if self.sharding == "replicas" else self.shard_ranks or self.learner_ranks


def over_ranks(
    config: RankedConfig,
    make_learner: Callable[[Rank], Learner],
    placement: Placement | None = None,
    device: Device = "cpu",
) -> Callable[[], Learner]:
    """The factory of the learner's role. `make_learner` builds one rank of it, wherever that runs; each rank asks for
    `placement` (default: that of every process). On `device` cuda every rank is given a GPU, as far as they go."""
    one_rank = partial(_one_rank, config.torch_threads, make_learner)
    return partial(_learner, config, one_rank, placement or config.placement, device)


def _learner(
    config: RankedConfig, make_learner: Callable[[Rank], Learner], placement: Placement, device: Device
) -> Learner:
    if config.learner_ranks == 1:
        return make_learner(ALONE)
    return RankedLearner(
        make_learner,
        config.learner_ranks,
        _peers(config, placement),
        device=device,
        deadline_s=BEFORE_THE_DEADLINE * config.learn_deadline_s,
        start_s=BEFORE_THE_DEADLINE * config.start_deadline_s,
    )


def _one_rank(num_threads: int, make_learner: Callable[[Rank], Learner], rank: Rank) -> Learner:
    torch.set_num_threads(num_threads)
    return make_learner(rank)


def _peers(config: RankedConfig, placement: Placement) -> StartPeers:
    """Ranks live where roles do: in Ray's actors, else in processes on this machine."""
    if config.runtime != "ray":
        return partial(RankProcesses, num_threads=config.torch_threads)
    from headway.ranks.ray_ranks import RayRanks

    return partial(RayRanks, placement=placement)
