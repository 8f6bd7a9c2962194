"""A learner that does as it is told, for tests of ranks."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import torch

from headway.core.types import Batch, LearnReport, Rollout
from headway.ranks.rank import Rank


class Toy:
    """Adds up what it is given, each rank its share. The payload says which rank shall do what instead."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.total = torch.zeros(1, dtype=torch.float64)
        self.kept: list[np.ndarray] = []

    def learn(self, batch: Batch) -> LearnReport:
        for rollout in batch.rollouts:
            payload = rollout.payload
            if self.rank.index in payload.get("ranks", ()):
                getattr(self, payload["deed"])()
            values = payload["values"]
            part = torch.tensor([float(values[self.rank.share(len(values))].sum())], dtype=torch.float64)
            self.rank.add_up(part)
            self.total += part
            values += 1.0 + self.rank.index  # its own copy
            self.kept.append(values)
        sums = torch.zeros(self.rank.size, 1, dtype=torch.float64)
        sums[self.rank.index] = float(sum(values.sum() for values in self.kept))
        self.rank.add_up(sums)
        threads = torch.tensor([torch.get_num_threads()])
        self.rank.add_up(threads)
        return LearnReport({"threads": threads.item(), **{str(i): value for i, (value,) in enumerate(sums.tolist())}})

    def raises(self) -> None:
        raise KeyError("reward")

    def exits(self) -> None:
        os._exit(7)

    def dies(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def freezes(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def strays(self) -> None:
        self.total += 1e-7

    def snapshot(self) -> Any:
        return {"total": self.total}

    def state_dict(self) -> Any:
        return {"total": self.total}

    def load_state_dict(self, state: Any) -> None:
        self.total = state["total"].clone()


def told(deed: str = "", ranks: tuple[int, ...] = (), size: int = 10) -> Batch:
    return Batch(0, (Rollout({"values": np.arange(float(size)), "deed": deed, "ranks": ranks}),))
