"""What is kept of a run, and who looks at it while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.runs.log_file import LOG_LIMIT_MB, wrong_log_limit
from headway.runs.monitor import Monitor
from headway.runs.sinks import INTERVAL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What is kept of a run, and who looks at it while it goes on."""

    keep_checkpoints: int = 2
    """How many checkpoints to keep."""
    log_limit_mb: int = LOG_LIMIT_MB
    """What the event log may have on the disk, in MiB; beyond it the oldest parts go. 0: whatever it comes to."""
    keep_best: bool = True
    """Keep the weights with the best score of an evaluation as well."""
    metrics_interval_s: float = INTERVAL_S
    """Write metrics at most once in this many seconds, after an update."""
    metric_aliases: bool = False
    """Write the metrics under the names known from other systems too."""
    alarms: Mapping[str, float] | None = None
    """Thresholds by name (`headway.runs.monitor_alarms.KNOWN`)."""
    monitor: Monitor | str | None = None
    """A function that looks at the statistics of every component, or where it is: file.py:function."""
    monitor_every_s: float = 30.0
    """How often it looks."""
    statistics_every_s: float = 30.0
    """Write these statistics into run.log so often; 0: never."""

    def __post_init__(self) -> None:
        wrong = wrong_log_limit(self.log_limit_mb)
        if wrong:
            raise ValueError(wrong)
        if self.monitor_every_s <= 0 or self.statistics_every_s < 0:
            wanted = f"received {self.monitor_every_s!r} and {self.statistics_every_s!r}"
            raise ValueError(f"monitor_every_s must be > 0 and statistics_every_s >= 0, {wanted}")
