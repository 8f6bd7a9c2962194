"""Runs on a simulated cluster: what can be computed by hand, and what must hold whatever fails."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.tools.simulate.cluster import Cluster
from headway.tools.simulate.cluster_broadcast import EACH, Broadcast, parse_fanout
from headway.tools.simulate.cluster_parts import Failing, Part
from headway.tools.simulate.cluster_sessions import ClusterCosts
from headway.tools.simulate.cluster_ticket_costs import TICKET_COSTS, parse_ticket_cost
from headway.tools.simulate.simulation import Outcome, Workshop, simulate
from headway.tools.simulate.workloads import Constant, Lognormal

stable = settings(max_examples=50, deadline=None, derandomize=True)


def run(
    max_lead: float = 1,
    *,
    failing: dict[str, Failing] | None = None,
    cluster: dict[str, Any] | None = None,
    **told: Any,
) -> tuple[Outcome, ClusterCosts]:
    """A run on a cluster, and what that cost."""
    shop: dict[str, Any] = {"collect": Constant(1.0), "learn": Constant(0.5), "updates": 40, **told}
    outcome = simulate(Workshop(cluster=Cluster(failing=failing or {}, **(cluster or {})), **shop), max_lead)
    assert outcome.cluster is not None
    return outcome, outcome.cluster


# -- the coordinator's own time -------------------------------------------------------------------------


def test_a_cluster_that_has_nothing_is_the_plain_simulation() -> None:
    shop: dict[str, Any] = {"collect": Lognormal(1.0, 0.5), "collectors": 8, "tickets_per_batch": 8}
    plain = simulate(Workshop(learn=Constant(0.5), updates=40, **shop), 2)
    on_cluster, costs = run(2, **shop)
    for name in ("updates_per_s", "learner_idle", "collectors_idle", "staleness_mean", "staleness_max", "wall_s"):
        assert getattr(on_cluster, name) == getattr(plain, name), name
    assert (costs.work_lost, costs.reissued, costs.coordinator_s, costs.publish_exposed) == (0, 0, 0, 0)


def test_what_a_ticket_costs_the_coordinator_is_paid_one_after_the_other() -> None:
    outcome, costs = run(0, cluster={"ticket_s": 0.25}, collectors=4, tickets_per_batch=4, updates=8)
    # out go tickets at 1/8, 2/8, 3/8, 4/8; back they come a second later, an eighth each; then the learner
    assert outcome.wall_s == 8 * (4 / 8 + 1.0 + 1 / 8 + 0.5 - 0.0)
    assert costs.coordinator_s == 8 * 4 * 0.25


def test_a_coordinator_that_is_asked_for_more_than_it_can_do_gives_what_it_can() -> None:
    outcome, costs = run(
        2, cluster={"ticket_s": 0.01}, collectors=400, tickets_per_batch=400, learn=Constant(0.01), updates=30
    )
    tickets_per_s = outcome.updates_per_s * 400
    assert 0.9 * 100 < tickets_per_s <= 100, "400 collectors offer 400 tickets a second, it can do 100"
    assert costs.coordinator_busy > 0.9
    assert outcome.staleness_max <= 2


def test_tickets_cost_what_was_measured_or_what_is_said() -> None:
    assert parse_ticket_cost("threads") == TICKET_COSTS["threads"].seconds
    assert parse_ticket_cost("0.002") == 0.002
    assert all(0 < cost.seconds < 0.1 and "bench/" in cost.source for cost in TICKET_COSTS.values())
    with pytest.raises(ValueError, match="unknown ticket_cost 'thread'; did you mean 'threads'"):
        parse_ticket_cost("thread")
    with pytest.raises(ValueError, match="ticket_cost must be >= 0 seconds, received -1"):
        parse_ticket_cost("-1")


# -- engines --------------------------------------------------------------------------------------------


def test_rollouts_wait_for_a_place_at_their_engine() -> None:
    engines = {"engines": 2, "engine_slots": 2, "generate": Constant(1.0)}
    outcome, _ = run(0, cluster=engines, collectors=8, tickets_per_batch=8, updates=4)
    assert outcome.wall_s == 4 * (2 * 1.0 + 1.0 + 0.5), (
        "four rollouts an engine, two at once, then a second of their own"
    )


def test_an_engine_with_room_for_all_holds_nobody_up() -> None:
    engines = {"engines": 1, "engine_slots": 8, "generate": Constant(1.0)}
    assert run(0, cluster=engines, collectors=8, tickets_per_batch=8, updates=4)[0].wall_s == 4 * 2.5


# -- failures -------------------------------------------------------------------------------------------


def test_parts_fail_as_often_as_they_should_and_the_same_every_time() -> None:
    parts = [Part(Failing(1000.0, 50.0), 0, "collector", number) for number in range(200)]
    for part in parts:
        part.look(50_000.0)
    assert sum(part.failures for part in parts) == pytest.approx(200 * 50_000 / 1050, rel=0.05)
    again = Part(Failing(1000.0, 50.0), 0, "collector", 7)
    for now in range(0, 50_001, 10):
        again.look(now)
    assert (again.failures, again.next_at) == (parts[7].failures, parts[7].next_at)
    assert again.failed_at <= 50_000 < again.next_at
    assert again.up_at == again.failed_at + 50


def test_a_flight_that_fails_is_flown_again_when_its_collector_is_back() -> None:
    first = Part(Failing(30.0, 10.0), 0, "collector", 0)
    outcome, costs = run(0, failing={"collector": Failing(30.0, 10.0)}, updates=200)
    assert costs.failures["collector"] == costs.restarts == costs.most_restarts > 5
    assert costs.reissued == costs.restarts
    lost_s = outcome.wall_s - 200 * 1.5
    assert 0 < first.next_at < 200
    # each failure costs the repair and what was collected, less what of the repair passed while nobody collected
    assert costs.lost_s < lost_s <= costs.restarts * 10.0 + costs.lost_s
    assert outcome.staleness_max == 0


def test_a_node_takes_its_collectors_along() -> None:
    shop: dict[str, Any] = {"collectors": 8, "tickets_per_batch": 8, "updates": 200, "learn": Constant(0.01)}
    failing = {"node": Failing(40.0, 0.5)}
    _, one = run(2, failing=failing, cluster={"collectors_per_node": 1}, **shop)
    _, eight = run(2, failing=failing, cluster={"collectors_per_node": 8}, **shop)
    assert eight.restarts == 8 * eight.failures["node"] > 0
    assert 0.8 * one.failures["node"] < one.restarts <= one.failures["node"], "some were idle, and failed again"
    assert one.failures["node"] > 4 * eight.failures["node"], "eight nodes fail more often than one"


def test_an_engine_that_fails_takes_its_collectors_along() -> None:
    engines = {"engines": 2, "generate": Constant(1.0)}
    _, costs = run(failing={"engine": Failing(200.0)}, cluster=engines, collectors=8, tickets_per_batch=8, updates=60)
    assert costs.failures["engine"] > 0
    assert costs.restarts == 4 * costs.failures["engine"]


def test_strict_order_waits_for_a_repair_and_free_dispatch_does_not() -> None:
    failing = {"collector": Failing(300.0, 60.0)}
    shop: dict[str, Any] = {"collectors": 16, "tickets_per_batch": 16, "updates": 100}
    pinned, _ = run(1, failing=failing, **shop)
    free, costs = run(1, failing=failing, dispatch="free", **shop)
    assert costs.reissued > 0
    assert free.updates_per_s > 1.5 * pinned.updates_per_s


def test_a_failed_learner_goes_back_to_its_checkpoint() -> None:
    told: dict[str, Any] = {"learn": Constant(1.0), "updates": 60, "failing": {"learner": Failing(40.0, 5.0)}}
    rare, rare_costs = run(save_every_s=25.0, **told)
    often, often_costs = run(save_every_s=5.0, **told)
    for outcome, costs in ((rare, rare_costs), (often, often_costs)):
        assert costs.resumes > 0
        assert costs.failures["learner"] == costs.resumes
        assert outcome.wall_s > 60 + 5.0 * costs.resumes
        assert outcome.staleness_max <= 1
        assert 0 < costs.work_lost < 1
    assert often_costs.updates_again / often_costs.resumes < rare_costs.updates_again / rare_costs.resumes
    assert often_costs.updates_again <= 6 * often_costs.resumes, "a checkpoint every five updates"


def test_checkpoints_that_take_time_are_paid_for() -> None:
    told: dict[str, Any] = {"learn": Constant(1.0), "updates": 50, "save_every_s": 10.0}
    free, _ = run(**told)
    paid, _ = run(save=Constant(0.5), **told)
    assert paid.wall_s - free.wall_s == pytest.approx(0.5 * (50 // 11 + 1), abs=1.0)


def test_a_learner_that_fails_before_it_ever_saves_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the learner fails too often to get beyond update \d+ of 500"):
        run(failing={"learner": Failing(1.0, 1.0)}, save_every_s=60.0, updates=500)


@stable
@given(
    st.integers(0, 10_000),
    st.sampled_from([0, 0.5, 1, 3]),
    st.sampled_from(["pinned", "free"]),
    st.sampled_from([1, 3]),
    st.sets(st.sampled_from(["collector", "engine", "node", "learner"])),
    st.booleans(),
)
def test_whatever_fails_the_plan_is_reached_within_the_bound(
    seed: int, lead: float, dispatch: str, lanes: int, kinds: set[str], sends: bool
) -> None:
    outcome, costs = run(
        lead,
        failing={kind: Failing(40.0, 4.0) for kind in sorted(kinds)},
        cluster={
            "engines": 2,
            "engine_slots": 2,
            "generate": Lognormal(0.5, 1.0),
            "collectors_per_node": 2,
            "ticket_s": 0.002,
            "broadcast": Broadcast(1e9, 2e10, 2) if sends else None,
        },
        collect=Lognormal(1.0, 1.0),
        collectors=5,
        lanes=lanes,
        tickets_per_batch=4,
        updates=25,
        dispatch=dispatch,
        save_every_s=10.0,
        seed=seed,
    )
    assert outcome.updates_per_s * outcome.wall_s == pytest.approx(25)
    assert outcome.staleness_max <= math.ceil(lead)
    assert 0 <= costs.work_lost < 1
    assert costs.coordinator_s >= 100 * 0.002
    assert min(costs.reissued, costs.restarts, costs.resumes, costs.updates_again) >= 0
    assert costs.resumes == 0 or costs.failures["learner"] > 0
    if not kinds:
        assert (costs.lost_s, costs.reissued, costs.restarts, costs.resumes) == (0, 0, 0, 0)


def test_the_same_failures_are_the_same_run() -> None:
    told: dict[str, Any] = {"failing": {"collector": Failing(50.0)}, "collectors": 4, "tickets_per_batch": 4}
    assert run(seed=1, **told) == run(seed=1, **told)
    assert run(seed=1, **told) != run(seed=2, **told)


# -- weights --------------------------------------------------------------------------------------------


def test_sending_to_each_in_turn_takes_as_often_as_long() -> None:
    each = Broadcast(1e9, 1e9, EACH)
    assert [each.arrival_s(number, 3) for number in range(3)] == [1.0, 2.0, 3.0]
    assert (each.last_s(3), each.sender_s(3)) == (3.0, 3.0)


def test_a_chain_costs_a_piece_for_each_link() -> None:
    chain = Broadcast(1e9, 1e9, 1, piece_bytes=1e8)  # ten pieces of a tenth of a second
    assert [chain.arrival_s(number, 3) for number in range(3)] == pytest.approx([1.0, 1.1, 1.2])
    assert chain.sender_s(1000) == 1.0


def test_a_tree_costs_its_degree_and_a_piece_for_each_turn_on_the_way() -> None:
    tree = Broadcast(1e9, 1e9, 2, piece_bytes=1e8)
    arrivals = [tree.arrival_s(number, 6) for number in range(6)]
    # 9 further pieces each 0.2 s apart; the first takes 1 or 2 turns a level
    assert arrivals == pytest.approx([1.9, 2.0, 2.0, 2.1, 2.1, 2.2])
    assert tree.last_s(6) == pytest.approx(2.2)


@stable
@given(st.integers(1, 300), st.integers(1, 9), st.floats(1e6, 1e11))
def test_a_broadcast_is_what_passing_pieces_on_one_by_one_gives(receivers: int, degree: int, size: float) -> None:
    """Against a simulation of every link: a sender passes each piece to all it sends to before the next one."""
    broadcast = Broadcast(size, 1e9, degree, piece_bytes=size / 5)
    width = min(degree, receivers)
    has = {0: [0.0] * broadcast.pieces}  # when each piece is there
    for place in range(receivers + 1):
        others = [other for other in range(place * width + 1, place * width + width + 1) if other <= receivers]
        free_at = 0.0
        sent: dict[int, list[float]] = {other: [] for other in others}
        for at in has[place]:
            for turn, other in enumerate(range(place * width + 1, place * width + width + 1)):
                begins_at = max(free_at, at) if turn == 0 else free_at
                free_at = begins_at + broadcast.piece_s
                if other in sent:
                    sent[other].append(free_at)
        has.update(sent)
    for number in range(receivers):
        assert broadcast.arrival_s(number, receivers) == pytest.approx(has[number + 1][-1])


def test_a_tree_is_quicker_than_a_chain_for_many_and_slower_for_few() -> None:
    chain, tree = (Broadcast(14e9, 2.5e9, degree) for degree in (1, 2))
    assert chain.last_s(10) < tree.last_s(10)
    assert chain.last_s(10_000) > 5 * tree.last_s(10_000)


def test_collectors_wait_for_the_weights_of_their_ticket() -> None:
    outcome, costs = run(0, cluster={"broadcast": Broadcast(1e9, 1e9)}, collectors=2, tickets_per_batch=2, updates=10)
    assert outcome.wall_s == 10 * (2.0 + 1.0 + 0.5), "the second collector has a version two seconds after it was made"
    assert costs.publish_s == 10 * (1.0 + 2.0)


def test_a_lead_hides_the_broadcast_of_weights() -> None:
    cluster = {"broadcast": Broadcast(1e9, 2e9)}
    blocked, _ = run(0, cluster=cluster)
    ahead, costs = run(2, cluster=cluster, learn=Constant(1.5))
    assert blocked.wall_s == 40 * 2.0
    assert ahead.learner_idle < 0.05
    assert costs.publish_exposed > 0


@pytest.mark.parametrize("text", ["", "tree", "tree:1", "tree:x", "star", "tree:-2"])
def test_a_fanout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: each, chain, tree:D with D of 2 or more"):
        parse_fanout(text)
    assert [parse_fanout(one) for one in ("each", "chain", "tree:4")] == [0, 1, 4]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"engine_slots": 0}, "engine_slots must be >= 1, received 0"),
        ({"collectors_per_node": 0}, "collectors_per_node must be >= 1, received 0"),
        ({"generate": Constant(1.0)}, "generate is time at an engine: it needs engines"),
        ({"failing": {"engine": Failing(1.0)}}, "engine_mtbf_s is about engines: it needs engines"),
        ({"failing": {"disk": Failing(1.0)}}, "unknown kind of part 'disk'; allowed: collector, engine, learner, node"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(told: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        Cluster(**told)
    assert str(refused.value) == message


@pytest.mark.parametrize("told", [{"mtbf_s": 0}, {"mtbf_s": -1}, {"mtbf_s": 1, "repair_s": -1}, {"mtbf_s": math.nan}])
def test_a_part_that_cannot_fail_so_is_refused(told: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be "):
        Failing(**told)
