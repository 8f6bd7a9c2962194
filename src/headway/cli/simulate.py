"""headway simulate [--run RUN] [--collect D] [--learn D] [--leads 0,1,2,4,8] ...: what each lead would give.

--collect                 seconds per rollout: 1.0, exponential:1, lognormal:1,0.5 or pareto:1,1.5 (default 1.0)
--learn                   seconds per update, likewise (default 1.0)
--evaluate                seconds per evaluation, likewise (default 0)
--evaluate_every          versions between evaluations (default 0: none)
--evaluate_in_background  evaluations beside the rest (default false)
--collectors              collectors at once; 100,1000,10000 compares sizes (default 1)
--lanes                   rollouts one collector works on at once (default 1)
--tickets_per_batch       rollouts per update; one number a size, or one for all (default 1)
--publish_every           updates per version (default 1)
--order                   oldest, window(N) or ready (default oldest)
--max_staleness           age limit of one rollout
--on_stale                wait, drop, requeue or keep (default wait)
--dispatch                pinned or free (default: pinned where possible)
--updates                 updates to simulate (default 500; fewer where that is over 200,000 rollouts)
--seed                    of the durations (default 0)
--leads                   the leads to compare, numbers or auto (default 0,1,2,4,8)
--run                     fit durations and cut to this recorded run, of a long one to its end; other options override

Of a large cluster (docs/scale.md):
--ticket_cost             the coordinator's time per rollout: seconds; or threads, processes, ray: measured (default 0)
--engines                 engines that all collectors share; one number a size, or one for all (default 0: none)
--generate                seconds at an engine per rollout, before --collect (default 0)
--engine_slots            rollouts an engine works on at once; others wait (default 64)
--weights_gb              weights that each version brings to all engines, or to all collectors (default 0)
--publish_gb_per_s        of one link (default 2.5, as measured between two processes)
--fanout                  each, chain or tree:D: who sends the weights on (default each)
--collector_mtbf_s        seconds from repair to failure of one collector, on average (default: never);
                          likewise --engine_mtbf_s, --node_mtbf_s, --learner_mtbf_s
--collector_repair_s      seconds until it is back; likewise --engine_, --node_, --learner_repair_s (default 60)
--collectors_per_node     collectors that go down with a node (default 8)
--save_every_s            seconds between checkpoints, to which a failed learner goes back (default 300)
--save                    seconds of the learner per checkpoint (default 0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from headway.cli.options_words import UsageError, read_options
from headway.cli.simulate_tables import print_outcomes
from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.tools.report.recorded_run_run_history import read_story
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.cluster import Cluster
from headway.tools.simulate.cluster_broadcast import Broadcast, parse_fanout
from headway.tools.simulate.cluster_parts import KINDS, Failing
from headway.tools.simulate.cluster_ticket_costs import parse_ticket_cost
from headway.tools.simulate.simulation import Workshop, compare
from headway.tools.simulate.workloads import parse_duration

DURATIONS = ("collect", "learn", "evaluate", "save")
COUNTS = ("evaluate_every", "lanes", "publish_every", "max_staleness", "updates", "seed")
TEXTS = ("order", "on_stale", "dispatch")
SIZES = ("collectors", "tickets_per_batch", "engines")
MTBFS = tuple(f"{kind}_mtbf_s" for kind in KINDS)
REPAIRS = tuple(f"{kind}_repair_s" for kind in KINDS)
OF_CLUSTER = (
    *("ticket_cost", "generate", "engine_slots", "weights_gb", "publish_gb_per_s", "fanout", "collectors_per_node"),
    *MTBFS,
    *REPAIRS,
)
OPTIONS = (
    *DURATIONS,
    *COUNTS,
    *TEXTS,
    *SIZES,
    *OF_CLUSTER,
    "evaluate_in_background",
    "save_every_s",
    "leads",
    "run",
)
NEEDS = {
    **{
        "generate": "engines",
        "engine_slots": "engines",
        "engine_mtbf_s": "engines",
        "collectors_per_node": "node_mtbf_s",
    },
    **{"publish_gb_per_s": "weights_gb", "fanout": "weights_gb"},
    **dict(zip(REPAIRS, MTBFS, strict=True)),
}
"""Options that say nothing without another."""
GB = 1e9
PUBLISH_GB_PER_S = 2.5
SAVE_EVERY_S = 300.0
MANY_TICKETS = 200_000
"""Rollouts of one simulated run, unless --updates says otherwise: about ten seconds."""


def command(words: list[str]) -> int:
    """The command."""
    options = read_options(words)
    for name in options:
        if name not in OPTIONS:
            raise UsageError(unknown("option", name, OPTIONS))
    for name, other in NEEDS.items():
        if name in options and other not in options:
            raise UsageError(f"--{name} says nothing without --{other}")
    leads = read_leads(options.pop("leads", "0,1,2,4,8"))
    path = options.pop("run", None)
    if path is None:
        workshop = Workshop(collect=parse_duration("1.0"), learn=parse_duration("1.0"))
    else:
        workshop = fit(read_story(Path(str(path)), whole=False))
    sizes = read_sizes({name: options.pop(name) for name in SIZES if name in options})
    cluster = {name: options.pop(name) for name in OF_CLUSTER if name in options}
    workshop = replace(workshop, **_told(options))
    if "learner_mtbf_s" in cluster and not workshop.save_every_s:
        workshop = replace(workshop, save_every_s=SAVE_EVERY_S)
    outcomes = []
    for size in sizes:
        engines = size.pop("engines", 0)
        counts: dict[str, Any] = {**size}
        shop = replace(workshop, **counts)
        if cluster or engines:
            shop = replace(shop, cluster=read_cluster(cluster, engines))
        if "updates" not in options and path is None:
            shop = replace(shop, updates=max(10, min(shop.updates, MANY_TICKETS // shop.tickets_per_batch)))
        outcomes.append((shop, compare(shop, leads)))
    print_outcomes(leads, outcomes)
    return 0


def _told(options: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Fields of a workshop."""
    told: dict[str, SettingValue] = {}
    for name, value in options.items():
        if name in DURATIONS:
            told[name] = parse_duration(str(value))
        elif name in COUNTS:
            told[name] = _count(name, value)
        elif name in TEXTS:
            told[name] = str(value)
        elif name == "save_every_s":
            told[name] = _number(name, value, above=0)
        else:
            told[name] = value
    return told


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


def read_sizes(options: Mapping[str, object]) -> list[dict[str, int]]:
    """Reads `100,1000` collectors with `10,100` engines: a dictionary a size."""
    lists: dict[str, list[int]] = {}
    for name, value in options.items():
        parts = str(value).split(",")
        if isinstance(value, bool) or not all(part.strip().isdecimal() for part in parts):
            raise UsageError(f"--{name} must be a whole number, or one a size such as 100,1000, received {value!r}")
        lists[name] = [int(part) for part in parts]
        if min(lists[name]) < 1:
            raise UsageError(f"--{name} must be at least 1, received {value!r}")
    count = max(map(len, lists.values()), default=1)
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise UsageError(
                f"--{name} has {len(values)} sizes where another option has {count}: one for all, or as many"
            )
    return [{name: values[size % len(values)] for name, values in lists.items()} for size in range(count)]


def read_cluster(options: Mapping[str, object], engines: int) -> Cluster:
    """What these options and so many engines make."""
    failing = {}
    for kind, mtbf, repair in zip(KINDS, MTBFS, REPAIRS, strict=True):
        if mtbf in options:
            repair_s = _number(repair, options[repair], least=0) if repair in options else 60.0
            failing[kind] = Failing(_number(mtbf, options[mtbf], above=0), repair_s)
    broadcast = None
    if options.get("weights_gb"):
        speed = _number("publish_gb_per_s", options.get("publish_gb_per_s", PUBLISH_GB_PER_S), above=0)
        size = _number("weights_gb", options["weights_gb"], above=0)
        broadcast = Broadcast(size * GB, speed * GB, parse_fanout(str(options.get("fanout", "each"))))
    counts = {name: _count(name, options[name]) for name in ("engine_slots", "collectors_per_node") if name in options}
    return Cluster(
        engines=engines,
        generate=parse_duration(str(options.get("generate", "0"))),
        failing=failing,
        broadcast=broadcast,
        ticket_s=parse_ticket_cost(str(options.get("ticket_cost", "0"))),
        **counts,
    )


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"--{name} must be a whole number, received {value!r}")
    return value


def _number(name: str, value: object, *, above: float = -inf, least: float = -inf) -> float:
    """A finite number; YAML takes 1e6 for a text."""
    wanted = f"above {above:g}" if above > -inf else f"of at least {least:g}"
    try:
        number = float(str(value))
    except ValueError:
        number = inf
    if isinstance(value, bool) or not above < number < inf or number < least:
        raise UsageError(f"--{name} must be a number {wanted}, received {value!r}")
    return number
