"""One rank of a learner that is spread over processes: what the learner itself sees of it.

    every rank: the same weights, the whole batch
        rows --share--> this rank's rows --> values, gradients --add_up--> the same sums everywhere --> same weights

A learner that is built with a `Rank` works on its share of whatever is expensive and adds up; everything cheap it does
on the whole batch, like all the others, so that nothing else has to be said between them. Sums are the only thing
exchanged, and a sum has the same bits on every rank. `ALONE` is the rank of a learner in one process: its share is
everything, and there is nothing to add.

The process group is an object of its own, not torch's global one: two learners may live in one process. Only a learner
whose model is cut into shards (sharding.py) takes the global one too: torch shards over nothing else. So there is one
of those in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from headway.ranks.rank_torch_groups import abort, gloo_group, leave_global_group, nccl_group, open_global_group

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Numbers = MutableSequence[int] | memoryview
Device = Literal["cpu", "cuda"]
Backend = Literal["gloo", "nccl"]


def device_for(num_gpus: float) -> Device:
    """Where a role that asked for so many GPUs computes, in its own process: there need not be one."""
    return repeatable("cuda" if num_gpus and torch.cuda.is_available() else "cpu")


def repeatable(device: Device) -> Device:
    """Lets this process compute the same bits each time on this device: convolutions add up in a fixed order there."""
    if device == "cuda":
        torch.backends.cudnn.deterministic = True
    return device


class RanksBroken(ConnectionError):
    """A sum could not be made: another rank failed, or cannot be reached. The others know more."""


class Meeting(NamedTuple):
    """Where ranks find each other, and how they add up."""

    host: str
    port: int
    backend: Backend
    connect_s: float
    """How long they may take to find each other."""
    sum_s: float
    """How long one waits for the others in a sum."""


class Rank:
    """`index` of `size`; `device` is where its tensors belong. Sums are possible once it is connected, that is from
    the first call of the learner on, not yet in its constructor."""

    def __init__(
        self,
        index: int,
        size: int,
        device: Device = "cpu",
        progress: Numbers | None = None,
    ) -> None:
        if not 0 <= index < size:
            raise ValueError(f"a rank is 0 to {size - 1} of {size}, received {index}")
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda, received {device!r}")
        self.index = index
        self.size = size
        self.device = torch.device(
            f"cuda:{index % torch.cuda.device_count()}" if repeatable(device) == "cuda" else "cpu"
        )
        self._progress = [0] * size if progress is None else progress  # of each rank; this one writes its own
        self._group: Any = None
        self._sums_on = torch.device("cpu")
        self._meeting: tuple[Meeting, dist.Store, str] | None = None
        self._meshes: dict[int, DeviceMesh] = {}

    @property
    def num_sums(self) -> int:
        """Begun so far: of ranks that wait for each other, the one that hangs has the smallest number."""
        return self._progress[self.index]

    def connect(self, meeting: Meeting, store: dist.Store, here: str) -> None:
        """Returns when all ranks are there. `here` is the address of this machine that the others can reach."""
        try:
            store.set(str(self.index), "is here")
            store.wait([str(index) for index in range(self.size)], timedelta(seconds=meeting.connect_s))
            if meeting.backend == "nccl":
                self._sums_on = self.device
                with torch.cuda.device(self.device):
                    self._group = nccl_group(store, self.index, self.size, timeout_s=meeting.sum_s)
            else:
                self._group = gloo_group(store, self.index, self.size, here=here, timeout_s=meeting.sum_s)
        except RuntimeError as error:
            raise RanksBroken(str(error).splitlines()[0]) from error
        self._meeting = meeting, store, here

    def mesh(self, shard_ranks: int) -> DeviceMesh:
        """Makes the ranks known to torch: replicas of `shard_ranks` that hold a shard each. All ranks ask for it."""
        if self.size % shard_ranks:
            raise ValueError(f"shard_ranks must divide learner_ranks={self.size}, received {shard_ranks!r}")
        if self._meeting is None:
            raise RanksBroken(f"rank {self.index} of {self.size} is not connected to the others")
        meeting, store, here = self._meeting
        if self.device.type == "cuda" and meeting.backend != "nccl":
            raise ValueError(f"shards on GPUs need a GPU for each of the {self.size} ranks")
        if not self._meshes:
            if dist.is_initialized():
                raise ValueError("a process has room for one learner that is cut into shards, and there is one already")
            open_global_group(
                meeting.backend,
                dist.PrefixStore("shards", store),
                self.index,
                self.size,
                here=here,
                timeout_s=meeting.sum_s,
            )
        if shard_ranks not in self._meshes:
            from torch.distributed.device_mesh import init_device_mesh

            whole = shard_ranks == self.size
            shape = (shard_ranks,) if whole else (self.size // shard_ranks, shard_ranks)
            names = ("shard",) if whole else ("replicate", "shard")
            self._meshes[shard_ranks] = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        return self._meshes[shard_ranks]

    @property
    def here(self) -> str:
        """The address of this machine that others can reach."""
        return "127.0.0.1" if self._meeting is None else self._meeting[2]

    def leave(self) -> None:
        """Ends what `mesh` began. Nothing of the learner is used afterwards."""
        if self._meshes:
            self._meshes.clear()
            leave_global_group()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside, what torch says when it lost the other ranks becomes RanksBroken."""
        try:
            yield
        except RuntimeError as error:
            if self._meshes and (isinstance(error, dist.DistError) or "gloo" in str(error).lower()):
                raise RanksBroken(str(error).splitlines()[0]) from error
            raise

    def most(self, count: int) -> int:
        """Returns the largest of what the ranks say."""
        if self.size == 1:
            return count
        said = torch.zeros(self.size, dtype=torch.float64)
        said[self.index] = count
        self.add_up(said)
        return int(said.max())

    def disconnect(self) -> None:
        """From any thread. A sum that still waits for others ends with an error, or with nonsense that nobody uses."""
        group, self._group = self._group, None
        if group is not None and self._sums_on.type == "cuda":
            # What gloo waits for ends with the other processes; a kernel on a GPU would wait on.
            abort(group)

    def share(self, count: int) -> slice:
        """This rank's part of `count` rows. Parts differ by one row at most; of very few rows, some are empty."""
        return slice(self.index * count // self.size, (self.index + 1) * count // self.size)

    def share_by_size(self, sizes: Sequence[int] | np.ndarray) -> list[int]:
        """This rank's of some rows that are unequal work, in their order. The largest are given out first, each to
        whom has least: the most that two ranks differ by is one row."""
        loads = [0] * self.size
        mine = []
        for row in sorted(range(len(sizes)), key=lambda row: (-sizes[row], row)):
            to = loads.index(min(loads))
            loads[to] += int(sizes[row])
            if to == self.index:
                mine.append(row)
        return sorted(mine)

    def add_up(self, tensor: Tensor) -> None:
        """Put the sum over all ranks in place of `tensor`."""
        if self.size == 1:
            return
        group = self._group
        if group is None:
            raise RanksBroken(f"rank {self.index} of {self.size} is not connected to the others")
        self._progress[self.index] += 1
        moved = tensor.to(self._sums_on).contiguous()
        try:
            group.allreduce([moved]).wait()
        except RuntimeError as error:  # torch has no class of its own for it
            raise RanksBroken(str(error).splitlines()[0]) from error
        if moved is not tensor:
            tensor.copy_(moved)

    def spread(self, count: int, compute: Callable[[slice], Tensor]) -> Tensor:
        """`compute` for all of `count` rows, each rank for its share. Floats [count, ...], known to everyone."""
        if self.size == 1:
            return compute(slice(0, count))
        mine = self.share(count)
        part = compute(mine)
        whole = part.new_zeros(count, *part.shape[1:])
        whole[mine] = part
        self.add_up(whole)
        return whole

    def add_up_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Put the sums over all ranks in place of the gradients, in one message. None counts as zero."""
        if self.size == 1 or not parameters:
            return
        flat = torch.cat([_flat_gradient(parameter) for parameter in parameters])
        self.add_up(flat)
        _hand_out(flat, parameters)

    def average(self, parameters: Sequence[Tensor], measures: Tensor, weight: float) -> Tensor:
        """Make of this rank's gradients those of the whole minibatch, of which it had `weight`; of its measures too.

        A rank without rows has weight 0 and no gradients. All of it is one sum.
        """
        if self.size == 1:
            return measures
        parts = [_flat_gradient(parameter) for parameter in parameters]
        flat = torch.cat([*parts, measures.to(parts[0])])
        flat = flat * weight if weight else torch.zeros_like(flat)  # not 0 * nan: nothing was measured
        self.add_up(flat)
        _hand_out(flat[: len(flat) - measures.numel()], parameters)
        return flat[len(flat) - measures.numel() :].to(measures)


ALONE = Rank(0, 1)


def _flat_gradient(parameter: Tensor) -> Tensor:
    return parameter.new_zeros(parameter.numel()) if parameter.grad is None else parameter.grad.reshape(-1)


def _hand_out(flat: Tensor, parameters: Sequence[Tensor]) -> None:
    """Back to where they came from, as views where the precision is theirs."""
    for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter).to(parameter.dtype)
