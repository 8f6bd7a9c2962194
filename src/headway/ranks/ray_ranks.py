"""Ranks in Ray actors, where the cluster has room for them.

      rank 0, itself in an actor or a driver              rank 1, 2, ... (`RayRankHost`)
      call --- method, reference ------------------------>  a copy of the value --> RankHost.answer
           <-- the Answer -------------------------------

What is said is put into the object store once; each node pulls it once, and its ranks copy it from there. The actors
belong to the process rank 0 lives in: Ray ends them with it. Where whole GPUs were reserved for the learner, each rank
has its bundle of that, neighbours on one node as far as it goes. Otherwise they are placed on its node while that has
what they ask for, because sums are quicker there, and anywhere else otherwise.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from headway.core.protocols import Placement
from headway.ranks.rank import Backend, Device, Rank
from headway.ranks.ranked_learner import Answer, MakeLearner, RankHost, raised
from headway.runtimes.child_process_child import thread_limits
from headway.runtimes.ray_cluster_ray_bundles import own_group, place_in
from headway.runtimes.ray_role_ray_errors import how_it_died

SHARE_AFTER_S = 10.0
"""A rank that could not be placed by then shares the CPUs of others."""
SAY_S = 2.0
"""An actor that is alive answers a small question within this time."""


class RayRanks:
    """Ranks 1 to size - 1. Each asks for `placement`: its CPUs while the cluster has them free, GPUs if it has any."""

    def __init__(
        self, make_learner: MakeLearner, size: int, device: Device = "cpu", *, placement: Placement | None = None
    ) -> None:
        if not ray.is_initialized():
            raise ValueError("ranks in Ray actors need a process that is connected to Ray: use the runtime 'ray'")
        placement = placement or Placement()
        self.host: str = ray.util.get_node_ip_address()
        self.backend: Backend = "nccl" if device == "cuda" and placement.num_gpus >= 1 else "gloo"
        try:
            factory = cloudpickle.dumps(make_learner)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"the learner's factory cannot be sent to a Ray actor ({error})") from error
        self._hosts: dict[int, Any] = {}
        self._pending: dict[ray.ObjectRef, int] = {}
        try:
            self._place(size, placement)
            for rank, host in self._hosts.items():
                start = factory, rank, size, device, placement.num_threads, sys.path
                self._pending[host.build.remote(*start)] = rank
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> dict[int, int]:
        """Of the processes, on whichever nodes they run."""
        return {rank: ray.get(host.pid.remote()) for rank, host in self._hosts.items()}

    def call(self, method: str, *args: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        header = cloudpickle.dumps(args, protocol=5, buffer_callback=buffers.append)
        stored = [ray.put([header, *buffers])]  # in a list: the actor shall get the reference and copy from the store
        self._pending = {host.answer.remote(method, stored): rank for rank, host in self._hosts.items()}

    def answers(self, timeout_s: float) -> Sequence[Answer]:
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout_s)
        return [self._take(ref, self._pending.pop(ref)) for ref in done]

    def num_sums(self) -> dict[int, int]:
        asked = {rank: host.num_sums.remote() for rank, host in self._hosts.items()}
        ends_at = time.monotonic() + SAY_S
        sums = {}
        for rank, ref in asked.items():
            try:
                sums[rank] = ray.get(ref, timeout=max(0.0, ends_at - time.monotonic()))
            except (GetTimeoutError, RayError):
                sums[rank] = -1
        return sums

    def kill(self) -> None:
        for host in self._hosts.values():
            ray.kill(host, no_restart=True)

    def close(self) -> None:
        if ray.is_initialized():  # otherwise they have ended with the connection
            self.kill()

    def _take(self, ref: ray.ObjectRef, rank: int) -> Answer:
        try:
            return cloudpickle.loads(ray.get(ref))
        except RayTaskError as error:
            return raised(rank, error.cause or error)
        except RayError as error:
            return Answer(rank, ended=how_it_died(error))

    def _place(self, size: int, placement: Placement) -> None:
        """Start the actors, where room was reserved for them; else those that find no free CPUs share them."""
        group = own_group(size)
        if group is not None:
            for rank in range(1, size):
                bundle, where = place_in(group, rank)
                cpus, gpus = bundle.pop("CPU", 0.0), bundle.pop("GPU", 0.0)
                self._hosts[rank] = _start(where, num_cpus=cpus, num_gpus=gpus, resources=bundle)
            return
        free, total = ray.available_resources(), ray.cluster_resources()
        fits = (size - 1) * placement.num_cpus <= free.get("CPU", 0.0)
        num_gpus = placement.num_gpus if total.get("GPU") else 0.0
        wishes: dict[str, Any] = {"num_gpus": num_gpus, "resources": dict(placement.resources)}
        for rank in range(1, size):
            self._hosts[rank] = _start(num_cpus=placement.num_cpus if fits else 0.0, **wishes)
        if not fits:
            return
        there = {host.pid.remote(): rank for rank, host in self._hosts.items()}
        _, waiting = ray.wait(list(there), num_returns=len(there), timeout=SHARE_AFTER_S)
        for ref in waiting:
            rank = there[ref]
            ray.kill(self._hosts[rank], no_restart=True)
            self._hosts[rank] = _start(num_cpus=0.0, **wishes)


def _start(where: PlacementGroupSchedulingStrategy | None = None, **wishes: object) -> Any:
    here = where or NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    host: Any = ray.remote(RayRankHost)
    return host.options(
        **wishes,
        scheduling_strategy=here,
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=2,  # one learns, one can say how far it is
    ).remote()


class RayRankHost:
    """What runs in the actor of a rank."""

    def __init__(self) -> None:
        self._rank: Rank | None = None
        self._host: RankHost | None = None

    def pid(self) -> int:
        return os.getpid()

    def where(self) -> str:
        """The id of the node it runs on."""
        return ray.get_runtime_context().get_node_id()

    def build(
        self, factory: bytes, index: int, size: int, device: Device, num_threads: int, path: Sequence[str]
    ) -> bytes:
        os.environ.update(thread_limits(num_threads))
        sys.path += [folder for folder in path if folder not in sys.path]
        try:
            self._rank = Rank(index, size, device)
            self._host = RankHost(self._rank, ray.util.get_node_ip_address(), cloudpickle.loads(factory))
            sys.modules["torch"].set_num_threads(num_threads)
        except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 says it
            return _pack(raised(index, error))
        return _pack(Answer(index))

    def answer(self, method: str, stored: Sequence[ray.ObjectRef]) -> bytes:
        assert self._host is not None
        header, *buffers = ray.get(stored[0])
        args = pickle.loads(header, buffers=[bytearray(buffer) for buffer in buffers])
        return _pack(self._host.answer(method, args))

    def num_sums(self) -> int:
        return -1 if self._rank is None else self._rank.num_sums


def _pack(answer: Answer) -> bytes:
    return cloudpickle.dumps(answer)
