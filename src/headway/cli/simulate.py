"""headway simulate [--run RUN] [--collect D] [--learn D] [--leads 0,1,2,4,8] ...: what each lead would give.

--collect                 seconds per rollout: 1.0, exponential:1, lognormal:1,0.5 or pareto:1,1.5 (default 1.0)
--learn                   seconds per update, likewise (default 1.0)
--evaluate                seconds per evaluation, likewise (default 0)
--evaluate_every          versions between evaluations (default 0: none)
--evaluate_in_background  evaluations beside the rest (default false)
--collectors              collectors at once (default 1)
--lanes                   rollouts one collector works on at once (default 1)
--tickets_per_batch       rollouts per update (default 1)
--publish_every           updates per version (default 1)
--order                   oldest, window(N) or ready (default oldest)
--max_staleness           age limit of one rollout
--on_stale                wait, drop, requeue or keep (default wait)
--dispatch                pinned or free (default: pinned where possible)
--updates                 updates to simulate (default 500)
--seed                    of the durations (default 0)
--leads                   the leads to compare, numbers or auto (default 0,1,2,4,8)
--run                     fit durations and cut to this recorded run; other options override
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Literal

from headway.cli import output
from headway.cli.output import print_table, say
from headway.cli.words import UsageError, read_options
from headway.core.naming import unknown
from headway.observe.run_history import read_story
from headway.simulate.fitting import fit
from headway.simulate.simulation import Outcome, Workshop, compare, recommend
from headway.simulate.workloads import parse_duration

OPTIONS = (
    "collect",
    "learn",
    "evaluate",
    "evaluate_every",
    "evaluate_in_background",
    "collectors",
    "lanes",
    "tickets_per_batch",
    "publish_every",
    "order",
    "max_staleness",
    "on_stale",
    "dispatch",
    "updates",
    "seed",
    "leads",
    "run",
)


COUNTS = (
    "evaluate_every",
    "collectors",
    "lanes",
    "tickets_per_batch",
    "publish_every",
    "max_staleness",
    "updates",
    "seed",
)


def command(words: list[str]) -> int:
    """The command."""
    options = read_options(words)
    for name in options:
        if name not in OPTIONS:
            raise UsageError(unknown("option", name, OPTIONS))
    leads = read_leads(options.pop("leads", "0,1,2,4,8"))
    path = options.pop("run", None)
    if path is None:
        workshop = Workshop(collect=parse_duration("1.0"), learn=parse_duration("1.0"))
    else:
        workshop = fit(read_story(Path(str(path))))
    for name, value in options.items():
        if name in ("collect", "learn", "evaluate"):
            options[name] = parse_duration(str(value))
        elif name in COUNTS and (isinstance(value, bool) or not isinstance(value, int)):
            raise UsageError(f"--{name} must be a whole number, received {value!r}")
        elif name in ("order", "on_stale", "dispatch"):
            options[name] = str(value)
    outcomes = compare(replace(workshop, **options), leads)
    _print_outcomes(leads, outcomes)
    return 0


def read_leads(value: object) -> list[float | Literal["auto"]]:
    """Reads `0,1,2,auto`."""
    leads: list[float | Literal["auto"]] = []
    for part in str(value).split(","):
        try:
            leads.append("auto" if part.strip() == "auto" else float(part))
        except ValueError:
            leads.append(-1.0)
    if any(lead != "auto" and not 0 <= lead < inf for lead in leads):
        raise UsageError(f"leads must be numbers >= 0 or auto, such as 0,1,2,auto, received {value!r}")
    return leads


def _print_outcomes(leads: Sequence[float | str], outcomes: list[Outcome]) -> None:
    base = outcomes[0]
    rows = [
        [
            f"auto ({outcome.lead:g})" if lead == "auto" else f"{lead:g}",
            f"{outcome.updates_per_s:.4g}",
            f"{outcome.updates_per_s / base.updates_per_s:.2f}x",
            f"{100 * outcome.learner_idle:.1f}%",
            f"{100 * outcome.collectors_idle:.1f}%",
            f"{outcome.staleness_mean:.2f} / {outcome.staleness_p99} / {outcome.staleness_max}",
            str(outcome.dropped),
            f"{100 * outcome.length_bias:+.1f}%",
        ]
        for lead, outcome in zip(leads, outcomes, strict=True)
    ]
    heads = [
        "lead",
        "updates/s",
        f"over lead {base.lead:g}",
        "learner idle",
        "collectors idle",
        "staleness mean / p99 / max",
        "dropped",
        "length bias",
    ]
    if output.OUT.width < sum(len(head) + 2 for head in heads):  # in two lines they fit into 80 columns
        heads = [head.replace(" ", "\n", 1).replace(" / ", "/") for head in heads]
    print_table(heads, rows)
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
