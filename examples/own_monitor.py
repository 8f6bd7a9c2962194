"""A monitor: raises an alarm when data grow old, and ends a run that has collapsed.

headway run grpo --monitor examples/own_monitor.py:look --monitor_every_s 60
"""

import math

from headway.runs.monitor import Statistics, StopRun


def look(statistics: Statistics) -> str | None:
    learn, freshness, queue = (statistics[group] for group in ("learn", "freshness", "queue"))
    if not math.isfinite(learn.get("grad_norm", 0.0)):
        raise StopRun(f"the gradient is {learn['grad_norm']} at version {statistics['trainer']['global_steps']}")
    if freshness["max_sample_age"] > 4:
        return f"a sample was {freshness['max_sample_age']} versions old; {queue['queue_size']} wait"
    return None
