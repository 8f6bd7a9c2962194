"""One learner on several processes: the setting, and how a recipe's learner is spread over them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from pydantic import Field

from headway.core.protocols import Learner, Placement
from headway.learn.rank import ALONE, Device, Rank
from headway.learn.rank_processes import RankProcesses
from headway.learn.ranks import RankedLearner, StartPeers
from headway.recipes.config import RunConfig

BEFORE_THE_DEADLINE = 0.9
"""Ranks give up a little before the coordinator does: they can say which of them it was."""


class RankedConfig(RunConfig):
    """Ranks: the processes a learner is spread over."""

    learner_ranks: int = Field(default=1, ge=1)
    """Processes the learner is spread over, each with the same weights and a share of the gradient. More pay where a
    gradient step takes much longer than sending the gradient; sums are rounded differently for each number."""
    torch_threads: int = Field(default=1, ge=1)
    """Threads of torch in each process, that is in each rank. One, where roles share the cores: more are slower, and
    differ in bits."""

    @property
    def placement(self) -> Placement:
        """Of each process."""
        return Placement(num_cpus=self.torch_threads, num_threads=self.torch_threads)


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
    from headway.learn.ray_ranks import RayRanks

    return partial(RayRanks, placement=placement)
