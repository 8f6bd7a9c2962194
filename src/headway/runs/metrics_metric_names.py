"""The names of a run's metrics and what they mean; docs/metrics.md shows them.

A run with several lines has the names of its first line as they are, and those of another line behind its name:
`prior/run/version`, `prior/staleness/mean`.
"""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS = {
    # -- at every look: where the run is
    "run/updates": "learn calls so far",
    "run/version": "the newest version",
    "run/steps": "environment steps (or tokens) trained on so far",
    "run/env_steps": "environment steps (or tokens) behind the newest update: trained on, and thrown away, so far",
    "run/lead": "how far collection may run ahead now, in versions",
    "run/collectors": "collectors there are, without those that are leaving",
    "run/restarts": "roles that were built anew so far",
    "run/publish_retries": "attempts to hand a version on that failed so far",
    "run/evaluations_failed": "evaluations that ended without a score so far",
    "run/evaluations_skipped": "evaluations that a later version took the place of so far",
    "run/saves_skipped": "checkpoints that were not made because one before was still being written, so far",
    "run/memory_mb": "resident memory of the coordinator's process, in MiB",
    "run/cpu_cores": "processor cores in use since the look before, by the processes of the run on this machine",
    "run/error_rate": "share of the flights since the look before that failed, or whose rollout was lost",
    "run/since_update_s": "seconds since the last update ended, or since the session began",
    # -- at every look: per second, since the look before
    "throughput/updates_per_s": "learn calls per second",
    "throughput/rollouts_per_s": "rollouts that came in, per second",
    "throughput/steps_per_s": "environment steps (or tokens) that came in, per second",
    "throughput/targets_per_s": "stored targets that were reanalyzed, per second, if any were",
    "time/update_s": "mean seconds of a learn call",
    "time/collect_s": "mean seconds from a ticket's start to its landing",
    "time/publish_lag_s": "mean seconds from the end of an update to the first rollout that took off with its version",
    # -- at every look: tickets
    "tickets/opened": "tickets opened so far",
    "tickets/landed": "rollouts that came in so far; a ticket that was requeued or lost counts each time",
    "tickets/taken": "rollouts the learner has taken so far",
    "tickets/learned": "tickets settled as learned so far",
    "tickets/reissued": "flights that failed and were flown again so far",
    "tickets/requeued": "rollouts that came too late and were collected again so far",
    "tickets/lost": "rollouts that were here, were gone with the node that held them and were collected again so far",
    "queue/open": "tickets that wait for a collector now",
    "queue/in_flight": "tickets being collected now",
    "queue/ready": "rollouts that wait for the learner now",
    "queue/taken": "rollouts with the learner now: their slots are not free yet",
    "queue/empty": "share of the time since the look before in which no rollout waited for the learner",
    "queue/bytes": "what the rollouts that wait for the learner hold now, in bytes",
    "drops/stale": "tickets dropped as too old so far, in versions (`max_staleness`)",
    "drops/expired": "tickets dropped as too old so far, in seconds (`max_age_s`)",
    "drops/filtered": "tickets dropped as without signal so far",
    "drops/failed": "tickets dropped because their collection failed so far",
    # -- at a look with rollouts taken since the look before
    "staleness/mean": "mean age of those rollouts when taken, in versions",
    "staleness/max": "the oldest of them",
    "staleness/nonzero": "share of them that were not of the newest version",
    "staleness/in_flight": "mean part of that age which had come up when they landed",
    "staleness/in_queue": "mean part which came up while they waited for the learner",
    "age/mean_s": "mean seconds from their landing to the moment they were taken",
    "age/max_s": "the longest of them",
    "age/expired": "share of those taken or thrown away for it that had waited longer than `max_age_s`",
    "length/bias": "how much shorter the trained rollouts are than the offered ones, so far (-0.2: a fifth)",
    # -- at every look: shares of the time since the look before
    "busy/learner": "share of the time the learner was in a call",
    "busy/collectors": "the same for the collectors, all of them together",
    "busy/evaluator": "the same for the evaluator, if there is one",
    "busy/reanalyzer": "the same for the reanalyzer, if there is one",
    "busy/replay": "the same for a replay with a role of its own, if there is one",
    "waiting/learner": "share of the time the learner waited, for whatever reason",
    "waiting/learner_for_data": "share of the time the learner waited for rollouts, or for a draw from the replay",
    "waiting/learner_for_evaluation": "share of the time the learner waited for an evaluation",
    "waiting/collectors": "share of the time the collectors waited",
    "waiting/collectors_for_slot": "share of the time the collectors waited for a free slot",
    "waiting/collectors_for_weights": "share of the time the collectors waited for weights",
    "waiting/collectors_for_evaluation": "share of the time the collectors waited for an evaluation",
    # -- when an evaluation is over
    "evaluate/score": "the score",
    "evaluate/version": "the version it belongs to",
    "time/evaluate_s": "seconds from the beginning of the evaluation to its score",
}
"""Every name with a fixed meaning. Besides them `learn/<name>` is the mean, since the look before, of what the
learner reports under that name, `evaluate/<name>` is what an evaluation reports besides its score, `memory/<role>_mb`
is the resident memory of a role with a process of its own (at every look, where the system says so),
`drops/filtered_<reason>` counts what was filtered for that reason, where the collector gives one, and `alarms/<name>`
is 1 when that alarm is raised and 0 when all is well again."""

TOTALS = ("run/restarts", "run/publish_retries", "run/evaluations_", "tickets/", "drops/")
"""How the names of counts begin that only grow, one by one."""

ALIASES: dict[str, tuple[str, ...]] = {
    "global_steps": ("run/updates",),
    "processed_samples": ("tickets/taken",),
    "current_param_version": ("run/version",),
    "param_sync_count": ("run/version",),
    "param_sync_requests": ("run/version", "run/publish_retries"),
    "sync_failures": ("run/publish_retries",),
    "total_generated_samples": ("tickets/landed",),
    "generation_errors": ("tickets/reissued", "tickets/lost", "drops/failed"),
    "dropped_stale_samples": ("drops/stale", "drops/expired"),
    "avg_sample_age": ("staleness/mean",),
    "max_sample_age": ("staleness/max",),
    "stale_samples_ratio": ("staleness/nonzero",),
    "avg_sample_age_s": ("age/mean_s",),
    "max_sample_age_s": ("age/max_s",),
    "stale_samples_ratio_s": ("age/expired",),
    "queue_size": ("queue/ready",),
    "queue_bytes": ("queue/bytes",),
    "memory": ("queue/bytes",),
    "total_produced": ("tickets/landed",),
    "total_consumed": ("tickets/taken",),
    "dropped_samples": ("drops/stale", "drops/expired", "drops/filtered", "drops/failed"),
}
"""Names known from other systems; each is the sum of ours."""


def with_aliases(values: Mapping[str, float]) -> dict[str, float]:
    """`values`, and those of the known names that can be computed from them."""
    known = {
        alias: sum(values[name] for name in names)
        for alias, names in ALIASES.items()
        if all(name in values for name in names)
    }
    return {**values, **known}


BY_ENV_STEP = "by_env_step/"
"""Before the names of curves whose axis is the environment steps."""

_CURVES = {
    "evaluate/score": "score",
    "evaluate/length": "score_length",
    **{f"learn/{name}": name for name in ("return", "length", "reward", "accuracy")},
}


def by_env_step(values: Mapping[str, float]) -> dict[str, float]:
    """How well the policy does, under names of their own for an axis of environment steps: `by_env_step/return` is
    `learn/return`, `by_env_step/score` is `evaluate/score`, `by_env_step/score_length` is `evaluate/length`."""
    return {BY_ENV_STEP + short: values[name] for name, short in _CURVES.items() if name in values}


def name_in_line(name: str) -> str:
    """The name without that of a line: `prior/run/version` is `run/version`."""
    behind = name.partition("/")[2]
    return behind if behind in MEANINGS else name
