"""The bundles of a Ray placement group in the order in which processes take them: node by node.

placement group    bundle 0 on A, 1 on B, 2 on A, 3 on B
in order           0, 2, 1, 3            processes that follow each other are neighbours, as shards over a node want it
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


def in_order(group: PlacementGroup) -> list[int]:
    """The numbers of its bundles, those of one node after each other, nodes by their first bundle."""
    table: dict[str, Any] = ray.util.placement_group_table(group)
    nodes: dict[int, str] = table["bundles_to_node_id"]
    first: dict[str, int] = {}
    for index in sorted(nodes):
        first.setdefault(nodes[index], index)
    return sorted(nodes, key=lambda index: (first[nodes[index]], index))


def place_in(group: PlacementGroup, process: int) -> tuple[dict[str, float], PlacementGroupSchedulingStrategy]:
    """What the bundle of a process holds, and how its actor gets there."""
    bundle = in_order(group)[process]
    return dict(group.bundle_specs[bundle]), PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=bundle
    )


def own_group(least: int) -> PlacementGroup | None:
    """The group this actor is in, if it has room for so many processes."""
    group = get_current_placement_group()
    return group if group is not None and group.bundle_count >= least else None
