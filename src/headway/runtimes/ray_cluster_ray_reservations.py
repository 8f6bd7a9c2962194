"""Whole GPUs for every role before any of them starts: one placement group each, the largest first.

    learner, 4 processes of 1 GPU   [G][G][G][G]   as few nodes as possible
    engine of 2 GPUs                [GG]           a bundle is on one node
    engine of 1 GPU                 [G]

Roles that were placed one by one would scatter: the last and largest would find GPUs enough, and none of them together.
What can never fit is refused at once; what others occupy at the moment is waited for. A role keeps its group while it
is built anew, and all are given back when the runtime closes. Roles without whole GPUs have no part in this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headway.core.protocols import Placement, Role, RoleLate
from headway.runtimes.ray_cluster import lacking
from headway.runtimes.ray_cluster_ray_bundles import place_in

SHARE_AFTER_S = 10.0
"""A group that could not be placed by then asks for GPUs alone, and shares the CPUs of others."""
LOOK_S = 0.05


class CannotPlace(ValueError):
    """The cluster is too small for the GPUs that are asked for, however they are divided."""


def check_room(roles: Sequence[Role], node_gpus: Sequence[int]) -> None:
    """Refuses roles whose whole GPUs the nodes can never give, with what is asked for and what there is."""
    asked = {role.name: role.placement for role in roles}
    there = f"the cluster has {sum(node_gpus)} in {len(node_gpus)} nodes ({', '.join(map(str, node_gpus)) or 'none'})"
    largest = max(node_gpus, default=0)
    for name, placement in asked.items():
        if placement.num_gpus > largest:
            raise CannotPlace(f"{name} asks for {placement.num_gpus:g} GPUs of one node; {there}")
    left = sorted(node_gpus, reverse=True)
    for placement in sorted(asked.values(), key=_size, reverse=True):
        for _ in range(placement.processes):
            left.sort(reverse=True)
            if not left or left[0] < placement.num_gpus:
                told = ", ".join(f"{name} {_in_words(one)}" for name, one in asked.items())
                total = sum(one.num_gpus * one.processes for one in asked.values())
                raise CannotPlace(f"{told}: {total:g} GPUs in all; {there}")
            left[0] -= int(placement.num_gpus)


def _size(placement: Placement) -> tuple[float, float]:
    return placement.num_gpus, placement.processes * placement.num_gpus


def _in_words(placement: Placement) -> str:
    return f"{placement.processes} x {placement.num_gpus:g}" if placement.processes > 1 else f"{placement.num_gpus:g}"


def has_whole_gpus(placement: Placement) -> bool:
    return placement.num_gpus >= 1


class GpuReservations:
    """The placement groups of the roles of one run."""

    def __init__(self) -> None:
        self._groups: dict[str, PlacementGroup] = {}

    async def reserve(self, roles: Sequence[Role], timeout_s: float) -> None:
        """Returns when every role with whole GPUs has its room. Where the cluster has no GPU, nobody gets one."""
        node_gpus = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
        wanted = [role for role in roles if has_whole_gpus(role.placement)]
        if not sum(node_gpus) or not wanted:
            return
        check_room(wanted, [count for count in node_gpus if count])
        cpus = sum(role.placement.num_cpus * role.placement.processes for role in roles)
        with_cpus = cpus <= ray.cluster_resources().get("CPU", 0.0)
        ends_at = time.monotonic() + timeout_s
        try:
            for role in sorted(wanted, key=lambda role: _size(role.placement), reverse=True):
                await self._reserve(role, with_cpus, ends_at)
        except BaseException:
            for role in wanted:
                self.give_back(role.name)
            raise

    def of(self, role: str) -> tuple[dict[str, float], PlacementGroupSchedulingStrategy] | None:
        """Where the role's own actor goes; None if nothing is reserved for it."""
        group = self._groups.get(role)
        return None if group is None else place_in(group, 0)

    def give_back(self, role: str) -> None:
        group = self._groups.pop(role, None)
        if group is not None:
            remove_placement_group(group)

    def give_all_back(self) -> None:
        for role in list(self._groups):
            self.give_back(role)

    async def _reserve(self, role: Role, with_cpus: bool, ends_at: float) -> None:
        placement = role.placement
        gpus = {"GPU": placement.num_gpus, **placement.resources}
        if with_cpus and placement.num_cpus:
            share_at = min(ends_at, time.monotonic() + SHARE_AFTER_S)
            if await self._is_placed(role.name, {"CPU": placement.num_cpus, **gpus}, placement.processes, share_at):
                return
        if not await self._is_placed(role.name, gpus, placement.processes, ends_at):
            raise RoleLate(role.name, "start", f"not placed ({lacking(placement)})")

    async def _is_placed(self, name: str, bundle: dict[str, float], count: int, ends_at: float) -> bool:
        group = placement_group([dict(bundle) for _ in range(count)], strategy="PACK")
        ready = group.ready()
        while not ray.wait([ready], timeout=0)[0]:
            if time.monotonic() > ends_at:
                remove_placement_group(group)
                return False
            await asyncio.sleep(LOOK_S)
        self._groups[name] = group
        return True
