"""How GPUs are divided between engines and the learner's ranks, and which lead that wants.

    every division that fits --> seconds of a group and of an update, from rates --> the fastest few --> simulated

The simulation is the real coordinator on a virtual clock (simulate/): an engine is a collector with lanes, a ticket is
a group of replies. What it is told are rates and lengths, so its answer is as good as those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headway.llm.memory.planned_run import PlannedRun, places_apart
from headway.llm.memory.remedies import is_refused
from headway.tools.plan.division_rates import PUBLISH_BYTES_PER_S, SPREAD_ENGINE, SPREAD_LEARNER, Rates, spread
from headway.tools.simulate.simulation import Outcome, Workshop, compare, recommend
from headway.tools.simulate.workloads import Constant, Duration, Lognormal

UNEVEN = 0.3
"""How much the lengths of replies vary around their mean, where nobody says: deviation over mean of a group's time."""
SIMULATED = 3
"""So many divisions, the fastest by calculation, are simulated."""
UPDATES = 60


@dataclass(frozen=True, slots=True)
class Work:
    """What an update is made of."""

    tickets_per_batch: int
    group_size: int
    reply_tokens: int
    engine_rows: int

    @property
    def update_tokens(self) -> int:
        return self.tickets_per_batch * self.group_size * self.reply_tokens

    @property
    def lanes(self) -> int:
        """Groups that an engine works on at once."""
        return max(1, self.engine_rows // self.group_size)


@dataclass(frozen=True, slots=True)
class Division:
    """So many engines of so many GPUs each, and so many ranks; with the seconds that follow from the rates."""

    engines: int
    engine_gpus: int
    learner_ranks: int
    evaluator_gpus: int
    group_s: float
    """A group, while all lanes of its engine are busy."""
    update_s: float
    """An update, publishing included."""

    @property
    def num_gpus(self) -> int:
        return self.engines * self.engine_gpus + self.learner_ranks + self.evaluator_gpus

    def collected_per_s(self, work: Work) -> float:
        """Batches that all engines together could collect in a second."""
        lanes = min(work.lanes, work.tickets_per_batch)  # more cannot be used by one update at lead 0
        return self.engines * lanes / self.group_s / work.tickets_per_batch

    def bound(self, work: Work) -> float:
        """Updates a second if nobody ever waited: the slower side's."""
        return min(self.collected_per_s(work), 1 / self.update_s)


def divide(
    run: PlannedRun,
    work: Work,
    rates: Rates,
    *,
    engines: int,
    engine_gpus: int,
    learner_ranks: int,
    evaluator_gpus: int,
    publish: float = PUBLISH_BYTES_PER_S,
) -> Division:
    """The seconds of one division; weights travel with `publish` bytes a second."""
    generated = spread(rates.engine_tokens_per_s, engine_gpus, SPREAD_ENGINE)
    learned = spread(rates.learner_tokens_per_s, learner_ranks, SPREAD_LEARNER)
    rows = min(work.engine_rows, work.lanes * work.group_size)
    group_s = work.reply_tokens * rows / generated
    publish_s = 2 * run.model.num_parameters / publish
    return Division(
        engines, engine_gpus, learner_ranks, evaluator_gpus, group_s, work.update_tokens / learned + publish_s
    )


def divisions(
    run: PlannedRun,
    work: Work,
    rates: Rates,
    *,
    gpus: int,
    gpu_room: int | None,
    nodes: int = 1,
    publish: float = PUBLISH_BYTES_PER_S,
    fits: Callable[[PlannedRun], bool] | None = None,
) -> list[Division]:
    """Every division of the GPUs that fits, the fastest first; of those as fast the one with fewer ranks.

    An engine's GPUs are on one node. `fits` decides in place of the memory of a GPU.
    """
    assert run.generation is not None
    parts = run.generation.tensor_parallel_size
    evaluator = parts if run.evaluator == "own" else 0
    per_node = max(1, gpus // nodes)
    found = []
    for ranks in range(1, gpus - evaluator - parts + 1):
        engines = _engines_that_fit(gpus, nodes, per_node, ranks, parts, evaluator)
        if engines < 1:
            continue
        training = replace(run.training, learner_ranks=ranks, ranks_per_node=per_node)
        if training.sharding == "hybrid" and (training.shards == 1 or ranks % training.shards):
            continue  # models of unequal parts, or of one
        candidate = replace(run, training=training, engines=engines)
        is_fitting = fits or (lambda one: not is_refused(places_apart(one, gpu_room, None, nodes)))
        if is_fitting(candidate):
            one = divide(
                run,
                work,
                rates,
                engines=engines,
                engine_gpus=parts,
                learner_ranks=ranks,
                evaluator_gpus=evaluator,
                publish=publish,
            )
            found.append(one)
    return sorted(found, key=lambda one: (-one.bound(work), one.learner_ranks))


def _engines_that_fit(gpus: int, nodes: int, per_node: int, ranks: int, parts: int, evaluator: int) -> int:
    """Engines in what the ranks leave: these fill nodes one after the other, an engine never spans two."""
    left = [per_node] * nodes
    for index in range(nodes):
        taken = min(left[index], ranks)
        left[index] -= taken
        ranks -= taken
    room = sum(free // parts for free in left)
    return room - (1 if evaluator else 0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One division, simulated under several leads."""

    division: Division
    outcomes: Sequence[Outcome]

    @property
    def best(self) -> Outcome:
        """The smallest lead within two percent of the best throughput."""
        return recommend(self.outcomes)


def predict(
    division: Division, work: Work, leads: Sequence[float | Literal["auto"]], *, uneven: float = UNEVEN
) -> Prediction:
    """Simulates a division. `uneven` is how much the times of groups vary, as deviation over mean."""
    collect: Duration = Lognormal(division.group_s, uneven) if uneven else Constant(division.group_s)
    workshop = Workshop(
        collect=collect,
        learn=Constant(division.update_s),
        collectors=division.engines,
        lanes=work.lanes,
        tickets_per_batch=work.tickets_per_batch,
        updates=UPDATES,
    )
    return Prediction(division, compare(workshop, leads))


def best_of(
    found: Sequence[Division], work: Work, leads: Sequence[float | Literal["auto"]], *, uneven: float = UNEVEN
) -> list[Prediction]:
    """The fastest few by calculation, simulated; the fastest by simulation first."""
    predicted = [predict(division, work, leads, uneven=uneven) for division in found[:SIMULATED]]
    return sorted(predicted, key=lambda one: -one.best.updates_per_s)
