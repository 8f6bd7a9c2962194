"""Searching again what was searched before, with newer weights.

    work (whole segments, targets oldest) + snapshot ---> a search from every row, B at a time ---> newer targets, by id

Nothing is kept from one call to the next, and the only chance in it comes from the seed and the number of the work: a
reanalyzer that died is built anew and does the same again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headway.core.types import Rollout, Snapshot
from headway.replay.records import record_of
from headway.zero.planner_history import Past, pasts
from headway.zero.planner_planning import Planner
from headway.zero.planner_prior_weight import PriorWeight
from headway.zero.segments import OldTargets, SearchedTargets


class SearchReanalyzer:
    """Searches from up to `max_roots` observations at once.

    Opinions that were stored with the segments have the share `prior_weight` in the roots' own, as when they were
    first searched; without one they are left out.
    """

    def __init__(
        self,
        make_planner: Callable[[], Planner],
        *,
        max_roots: int = 256,
        prior_weight: PriorWeight | None = None,
        seed: int = 0,
    ) -> None:
        if max_roots < 1:
            raise ValueError(f"max_roots must be >= 1, received {max_roots!r}")
        self._planner = make_planner()
        self._max_roots = max_roots
        self._prior_weight = prior_weight
        self._seed = seed
        self._version: int | None = None

    def reanalyze(self, snapshot: Snapshot, work: Rollout) -> Rollout:
        """Search again what `work` holds (OldTargets); what is found are SearchedTargets."""
        if self._version != snapshot.version:
            self._planner.load(snapshot.payload)
            self._version = snapshot.version
        segments = record_of(work, OldTargets)
        groups, steps = segments.actions.shape
        rng = np.random.default_rng([self._seed, segments.round])
        obs = segments.obs.reshape(groups * steps, *segments.obs.shape[2:])
        legal = None if segments.legal is None else segments.legal.reshape(groups * steps, -1)
        to_play = segments.to_play.reshape(-1)
        past = self._past(segments)
        weight = 0.0 if self._prior_weight is None else self._prior_weight.at(snapshot.version)
        stored = None if weight == 0.0 or segments.priors is None else segments.priors.reshape(groups * steps, -1)
        policies, values = [], []
        for begin in range(0, groups * steps, self._max_roots):
            part = slice(begin, begin + self._max_roots)
            allowed = None if legal is None else legal[part]
            result = self._planner.plan(
                obs[part],
                rng,
                legal=allowed,
                to_play=to_play[part],
                active=None if allowed is None else np.logical_or.reduce(allowed, axis=1),  # an ended game has none
                past=None if past is None else Past(*(rows[part] for rows in past)),
                prior=None if stored is None else stored[part],
                prior_weight=weight,
            )
            policies.append(result.policies)
            values.append(result.values)
        found = SearchedTargets(
            ids=segments.ids,
            policies=np.concatenate(policies).reshape(groups, steps, -1),
            values=np.concatenate(values).reshape(groups, steps),
            version=snapshot.version,
        )
        return Rollout(found, steps=groups * steps)

    def _past(self, segments: OldTargets) -> Past | None:
        """Of every position, as far as its segment reaches; None: the model does not look back."""
        steps = self._planner.context_steps
        return pasts(segments.obs, segments.actions, segments.begins, steps) if steps else None
