"""Nodes that are in doubt, and where a role goes instead.

    trusted --a role there missed a deadline--> in doubt --anything there answers, or DOUBT_S pass--> trusted

Ray believes in a node that is cut off until its health checks have failed, about a minute by default, and would place
there again what was just given up there. A role that is built anew goes to another node while one can take it: a
trusted one, else the one that has been in doubt for longest. If there is no other it goes back into the doubt.
Nothing here waits or speaks to Ray but `rooms`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray._private.state import available_resources_per_node

from headway.runtimes.ray_cluster_ray_notices import draining_nodes

DOUBT_S = 120.0
"""Twice as long as Ray takes by default to find out by itself."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What nobody uses of a node that Ray believes in."""

    node: str
    free: Mapping[str, float]


def rooms() -> list[NodeRoom]:
    """Of all nodes where Ray would place something."""
    free, going = available_resources_per_node(), draining_nodes()
    return [
        NodeRoom(node["NodeID"], free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in going
    ]


class Doubts:
    """The nodes in which a role missed a deadline and nothing has answered since."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def add(self, node: str) -> None:
        self._until[node] = self._now() + DOUBT_S

    def end(self, node: str) -> None:
        """Something there has answered."""
        self._until.pop(node, None)

    def nodes(self) -> set[str]:
        now = self._now()
        self._until = {node: until for node, until in self._until.items() if until > now}
        return set(self._until)

    def way_around(
        self, wishes: Mapping[str, float], there: Sequence[NodeRoom], placed: Iterable[str]
    ) -> tuple[str, dict[str, float]] | None:
        """Another node, and what to reserve there: the one where the fewest of `placed` (nodes of other roles) are, of
        those with CPUs left if there are any. None if no node is in doubt, or no other can take the role.

        A role that comes here has just missed its deadline, so where all nodes are in doubt it is in the newest doubt.
        """
        doubted = self.nodes()
        if not doubted:
            return None
        must = {name: amount for name, amount in wishes.items() if name != "CPU" and amount}
        able = [room for room in there if all(room.free.get(name, 0.0) >= amount for name, amount in must.items())]
        others = [room for room in able if room.node not in doubted]
        if not others:
            others = sorted(able, key=lambda room: self._until[room.node])[:-1][:1]
        if not others:
            return None
        cpus, roles = wishes.get("CPU", 0.0), Counter(placed)
        has_cpus = {room.node: room.free.get("CPU", 0.0) >= cpus for room in others}
        best = min(others, key=lambda room: (not has_cpus[room.node], roles[room.node], room.node))
        return best.node, {**wishes, "CPU": cpus if has_cpus[best.node] else 0.0}
