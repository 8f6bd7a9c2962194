"""What `headway simulate` prints: a row a size and lead, then what the cluster cost, then what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headway.cli import options_output as output
from headway.cli.options_output import print_table, say
from headway.tools.simulate.cluster import Cluster
from headway.tools.simulate.cluster_sessions import ClusterCosts
from headway.tools.simulate.simulation import Outcome, Workshop, recommend

Leads = Sequence[float | str]
Sizes = Sequence[tuple[Workshop, Sequence[Outcome]]]
SATURATED = 0.9
"""A coordinator that is busy for this share of the time is what holds the run back."""


def print_outcomes(leads: Leads, sizes: Sizes) -> None:
    """Everything."""
    has_sizes = len(sizes) > 1
    _print_main(leads, sizes, has_sizes)
    cluster = sizes[0][0].cluster
    if cluster is not None:
        _print_costs(leads, sizes, has_sizes, cluster)
    for shop, _ in sizes if cluster is not None else ():
        _say_weights(shop)
    if cluster is not None and cluster.ticket_s:
        _say_saturation(sizes)
    if not has_sizes:
        _recommend(leads, sizes[0][1])


def _every(leads: Leads, sizes: Sizes, has_sizes: bool) -> Iterator[tuple[list[str], Workshop, Outcome]]:
    """Each row: how it begins, and what it is about."""
    for shop, outcomes in sizes:
        for lead, outcome in zip(leads, outcomes, strict=True):
            begin = [f"{shop.collectors:,}"] * has_sizes
            begin.append(f"auto ({outcome.lead:g})" if lead == "auto" else f"{lead:g}")
            yield begin, shop, outcome


def _print_main(leads: Leads, sizes: Sizes, has_sizes: bool) -> None:
    base = sizes[0][1][0]
    rows = [
        [
            *begin,
            f"{outcome.updates_per_s:.4g}",
            f"{outcome.updates_per_s * shop.tickets_per_batch:,.4g}"
            if has_sizes
            else f"{outcome.updates_per_s / base.updates_per_s:.2f}x",
            f"{100 * outcome.learner_idle:.1f}%",
            f"{100 * outcome.collectors_idle:.1f}%",
            f"{outcome.staleness_mean:.2f} / {outcome.staleness_p99} / {outcome.staleness_max}",
            str(outcome.dropped),
            f"{100 * outcome.length_bias:+.1f}%",
        ]
        for begin, shop, outcome in _every(leads, sizes, has_sizes)
    ]
    heads = [
        *["collectors"] * has_sizes,
        "lead",
        "updates/s",
        "tickets/s" if has_sizes else f"over lead {base.lead:g}",
        "learner idle",
        "collectors idle",
        "staleness mean / p99 / max",
        "dropped",
        "length bias",
    ]
    _print_wide(heads, rows)


def _print_wide(heads: list[str], rows: list[list[str]]) -> None:
    """A table; in two lines the heads fit into 80 columns."""
    if output.OUT.width < sum(len(head) + 2 for head in heads):
        heads = [head.replace(" ", "\n", 1).replace(" / ", "/") for head in heads]
    print_table(heads, rows)


# -- what the cluster cost ------------------------------------------------------------------------------


def _print_costs(leads: Leads, sizes: Sizes, has_sizes: bool, cluster: Cluster) -> None:
    """What was asked about; a column is a row of the table above."""
    heads, columns = [], []
    for begin, _, outcome in _every(leads, sizes, has_sizes):
        heads.append(" / ".join(begin))
        columns.append(_costs(cluster, outcome))
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    if rows:
        print_table(["of collectors / lead" if has_sizes else "of lead", *heads], rows)


def _costs(cluster: Cluster, outcome: Outcome) -> dict[str, str]:
    costs, told = outcome.cluster, {}
    assert isinstance(costs, ClusterCosts)
    for kind in cluster.failing:
        told[f"failures of {kind}s"] = f"{costs.failures[kind]:,}"
    if set(cluster.failing) - {"learner"}:
        told["tickets flown again"] = f"{costs.reissued:,}"
        told["restarts of collectors"] = f"{costs.restarts:,}"
        told["most restarts of one"] = f"{costs.most_restarts:,}"
    if "learner" in cluster.failing:
        told["resumes from a checkpoint"] = f"{costs.resumes:,}"
        told["updates made again"] = f"{costs.updates_again:,}"
    if cluster.failing:
        told["collecting for nothing"] = f"{100 * costs.work_lost:.2f}%"
    if cluster.broadcast is not None:
        told["collectors wait for weights"] = f"{100 * costs.publish_exposed:.1f}%"
    if cluster.ticket_s:
        told["coordinator busy"] = f"{100 * costs.coordinator_busy:.1f}%"
    return told


def _say_weights(shop: Workshop) -> None:
    cluster = shop.cluster
    if cluster is None or cluster.broadcast is None:
        return
    receivers = cluster.engines or shop.collectors
    what = "engines" if cluster.engines else "collectors"
    say(f"weights: the last of {receivers:,} {what} has them after {cluster.broadcast.last_s(receivers):,.4g} s")


def _say_saturation(sizes: Sizes) -> None:
    """What one coordinator can do, what these collectors ask of it, and where the two meet."""
    shop = sizes[0][0]
    cluster = shop.cluster
    assert cluster is not None
    most, each_s = 1 / cluster.ticket_s, shop.collect.mean + cluster.generate.mean
    line = f"coordinator: at most {most:,.0f} tickets/s"
    if each_s:
        line += f"; {each_s * most / shop.lanes:,.0f} collectors that are never held up would ask for that"
    say(line)
    busy = [(shop.collectors, costs.coordinator_busy) for shop, outs in sizes for out in outs if (costs := out.cluster)]
    saturated = [collectors for collectors, share in busy if share >= SATURATED]
    if saturated:
        say(f"coordinator: it holds back runs of {min(saturated):,} collectors and more (busy over {SATURATED:.0%})")


def _recommend(leads: Leads, outcomes: Sequence[Outcome]) -> None:
    fixed = [outcome for lead, outcome in zip(leads, outcomes, strict=True) if lead != "auto"]
    best = recommend(fixed or outcomes)
    say(
        f"recommended: max_lead={best.lead:g} (the smallest within 2 % of the best throughput; "
        f"mean staleness {best.staleness_mean:.2f})"
    )
    for name, line in best.lines.items():
        say(
            f"line {name}, which keeps its lead of {line.lead:g}: {line.updates_per_s:.4g} updates/s, "
            f"staleness {line.staleness_mean:.2f} mean / {line.staleness_max} max"
        )
