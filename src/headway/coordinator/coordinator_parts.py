"""The parts of a run, and all the edges between them in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.checkpoint_best_weights import BestWeights
from headway.coordinator.collecting import Collecting
from headway.coordinator.collectors_collector_calls import CollectorCalls
from headway.coordinator.evaluating import Evaluating
from headway.coordinator.learning import Learning
from headway.coordinator.learning_ending import Ending
from headway.coordinator.learning_feed import feed_for
from headway.coordinator.learning_reanalyzing import Reanalyzing
from headway.coordinator.line import Line
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.run_result_control import RunControl
from headway.coordinator.run_result_evaluations import Evaluations
from headway.coordinator.saving import Checkpointing
from headway.coordinator.scaling import Scaling
from headway.coordinator.scaling_moving import Moving
from headway.coordinator.tickets_flights import Flights
from headway.coordinator.tickets_ticket_queue import TicketQueue
from headway.runs.samples import SampleLog


@dataclass(frozen=True, slots=True)
class Parts:
    """What the coordinator runs."""

    lines: Sequence[Line]
    flights: Flights
    collecting: Collecting
    scaling: Scaling
    learnings: Sequence[Learning]
    """One a line."""
    evaluating: Evaluating
    reanalyzing: Reanalyzing
    checkpointing: Checkpointing
    moving: Moving


def wire(
    calls: RoleCalls,
    control: RunControl,
    *,
    has_evaluator: bool,
    rooted: Collection[str],
    stop: Callable[[str], None],
    wall_s: Callable[[], float],
    after_publish: Callable[[], Awaitable[None]],
    after_publish_of_others: Callable[[], Awaitable[None]],
    store: CheckpointStore | None,
    best: BestWeights | None,
    samples: SampleLog | None,
) -> Parts:
    """Build them, one line per edge. `rooted` are the roles that cannot move, `after_publish` is what follows a version
    of the first line."""
    settings = calls.settings
    lines = [Line(name, calls) for name in settings.all_lines]
    first = lines[0]
    queue = TicketQueue(settings.collectors, pinned=settings.is_pinned, lanes=settings.lanes)
    collectors = CollectorCalls(calls)
    flights = Flights(lines, queue, calls, control, collectors.posts.names)
    collecting = Collecting(flights, collectors, calls, control)
    evaluations = Evaluations(settings.plan.evaluate_every if has_evaluator else 0)
    ending = Ending(settings, control, first, evaluations, wall_s)
    why_no_ticket = collecting.why_no_ticket
    feeds = {line.name: feed_for(line)(line, flights, calls, control, ending, why_no_ticket) for line in lines}
    collecting.feeds = feeds
    evaluating = Evaluating(evaluations, flights, collectors, calls, control, ending, best=best, samples=samples)
    learnings = [
        Learning(
            line,
            feeds[line.name],
            flights,
            calls,
            control,
            after_update=ending.look if line is first else None,
            on_publish=evaluating.pause_if_due if line is first else None,
            after_publish=after_publish if line is first else after_publish_of_others,
            samples=samples if line is first else None,
        )
        for line in lines
    ]
    reanalyzing = Reanalyzing(first, feeds[first.name], calls)
    scaling = Scaling(collecting, collectors, calls, control)
    checkpointing = Checkpointing(store, feeds, flights, collectors, evaluating, calls, wall_s, scaling.bring_back)
    moving = Moving(calls, collectors, rooted, stop)
    return Parts(lines, flights, collecting, scaling, learnings, evaluating, reanalyzing, checkpointing, moving)
