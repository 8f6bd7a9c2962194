"""Modules that have moved: their former names still import, with one line that says where they are now.

    import headway.observe.story  --->  headway.observe.run_history, and a FutureWarning

Whoever moves a module adds a row; code of users and pickles of theirs that name the old place go on working.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "headway.buffer.replay": "headway.buffer.item_ring",
    "headway.coordinate.best": "headway.coordinate.best_weights",
    "headway.coordinate.crew": "headway.coordinate.role_calls",
    "headway.coordinate.desk": "headway.coordinate.ticket_queue",
    "headway.coordinate.replay": "headway.coordinate.rerun",
    "headway.coordinate.shelf": "headway.coordinate.snapshots",
    "headway.core.loading": "headway.observe.user_functions",
    "headway.core.memory": "headway.children.memory",
    "headway.core.parents": "headway.children.in_child",
    "headway.demo": "headway.cli.demo",
    "headway.evaluating": "headway.cli.evaluate",
    "headway.exporting": "headway.cli.export",
    "headway.learn.linked": "headway.publish.linked_learner",
    "headway.llm.shown": "headway.llm.sample_text",
    "headway.llm.steady": "headway.llm.without_dropout",
    "headway.llm.weight_layout": "headway.publish.weight_layout",
    "headway.llm.weight_link": "headway.publish.weight_link",
    "headway.llm.weight_pair": "headway.publish.weight_pair",
    "headway.llm.weight_source": "headway.publish.weight_source",
    "headway.llm.weight_wire": "headway.publish.weight_wire",
    "headway.observe.accounts": "headway.observe.time_report",
    "headway.observe.glance": "headway.observe.status",
    "headway.observe.marks": "headway.observe.notable_moments",
    "headway.observe.points": "headway.observe.point_maker",
    "headway.observe.saying": "headway.observe.messages",
    "headway.observe.slices": "headway.observe.timeline_slices",
    "headway.observe.story": "headway.observe.run_history",
    "headway.observe.tail": "headway.observe.log_end",
    "headway.recipes.known_names": "headway.names.flat",
    "headway.recipes.known_paths": "headway.names.rows",
    "headway.recipes.lightzero": "headway.cli.lightzero",
    "headway.recipes.lightzero_names": "headway.names.lightzero",
    "headway.recipes.nested_corrections": "headway.names.verl_corrections",
    "headway.recipes.nested_names": "headway.names.verl",
    "headway.reporting": "headway.cli.report",
    "headway.runtime.beside": "headway.runtime.own_thread",
    "headway.runtime.channel": "headway.children.channel",
    "headway.testing.fitting": "headway.simulate.fitting",
    "headway.testing.reanalysis": "headway.testing.replay_fakes",
    "headway.testing.shared_replay": "headway.testing.replay_fakes",
    "headway.testing.simulation": "headway.simulate.simulation",
    "headway.testing.workloads": "headway.simulate.workloads",
    "headway.watching": "headway.cli.watching",
}


class _Alias(Loader):
    """Puts the module of the new name in the place of the old one."""

    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._new)


class FormerNames(MetaPathFinder):
    """Finds a moved module under its former name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = MOVED.get(fullname)
        if new is None:
            return None
        warnings.warn(f"{fullname} is now {new}; please import it from there", FutureWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(new))


def find_by_former_names() -> None:
    """From now on the former names import too."""
    if not any(isinstance(finder, FormerNames) for finder in sys.meta_path):
        sys.meta_path.append(FormerNames())
