"""Which nodes are in doubt, for how long, and where a role goes instead."""

from __future__ import annotations

from headway.runtimes.ray_cluster_ray_doubts import DOUBT_S, Doubts, NodeRoom

WISHES = {"CPU": 1.0, "GPU": 0.0, "simulator": 1.0}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def room(node: str, cpus: float = 2.0, simulators: float = 1.0) -> NodeRoom:
    return NodeRoom(node, {"CPU": cpus, "simulator": simulators})


def doubts_about(*nodes: str) -> Doubts:
    doubts = Doubts(Clock())
    for node in nodes:
        doubts.add(node)
    return doubts


def test_while_no_node_is_in_doubt_nobody_says_where_a_role_goes() -> None:
    assert doubts_about().way_around(WISHES, [room("a"), room("b")], []) is None


def test_a_role_goes_to_another_node_than_the_one_in_doubt() -> None:
    assert doubts_about("a").way_around(WISHES, [room("a"), room("b")], []) == ("b", WISHES)


def test_of_several_it_is_the_one_with_the_fewest_roles() -> None:
    nodes = [room("a"), room("b"), room("c")]
    assert doubts_about("a").way_around(WISHES, nodes, ["b", "b", "c", "a"]) == ("c", WISHES)


def test_a_node_with_free_cpus_comes_before_one_where_they_are_shared() -> None:
    nodes = [room("a"), room("b", cpus=0.5), room("c")]
    assert doubts_about("a").way_around(WISHES, nodes, ["c", "c"]) == ("c", WISHES)
    assert doubts_about("a", "c").way_around(WISHES, nodes, []) == ("b", {**WISHES, "CPU": 0.0})


def test_where_no_other_node_has_what_the_role_needs_nothing_is_avoided() -> None:
    assert doubts_about("a").way_around(WISHES, [room("a"), room("b", simulators=0.0)], []) is None
    assert doubts_about("a").way_around(WISHES, [room("a")], []) is None


def test_where_all_nodes_are_in_doubt_a_role_goes_to_the_one_that_has_been_for_longest() -> None:
    clock = Clock()
    doubts = Doubts(clock)
    for clock.now_s, node in ((0.0, "c"), (1.0, "a"), (2.0, "b")):
        doubts.add(node)
    there = [room("a"), room("b"), room("c", cpus=0.5)]
    assert doubts.way_around(WISHES, there, ["c"]) == ("c", {**WISHES, "CPU": 0.0})
    clock.now_s = 3.0
    doubts.add("c")
    assert doubts.way_around(WISHES, there, []) == ("a", WISHES)
    assert doubts.way_around(WISHES, [room("b"), room("c")], []) == ("b", WISHES)


def test_a_doubt_ends_with_the_first_answer_or_by_itself() -> None:
    clock = Clock()
    doubts = Doubts(clock)
    doubts.add("a")
    doubts.add("b")
    doubts.end("a")
    assert doubts.nodes() == {"b"}
    clock.now_s = DOUBT_S - 1
    assert doubts.nodes() == {"b"}
    clock.now_s = DOUBT_S + 1
    assert not doubts.nodes() and not doubts
