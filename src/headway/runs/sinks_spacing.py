"""How often a sink that keeps everything for ever takes a look of a run: less often the longer the run lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headway.runs.metrics import Moment

LOOKS = 10_000


class Spacing:
    """Lets a look pass when the run is older by one part in `looks` than at the one before; scores and alarms always.

    With a look a second all of them pass in the first `looks` seconds; from then on their number grows with the
    logarithm of the time: 10,000 after three hours, about 65,000 after four weeks.
    """

    def __init__(self, looks: int = LOOKS) -> None:
        self._looks = looks
        self._next_s = -math.inf

    def takes(self, moment: Moment, values: Mapping[str, float]) -> bool:
        """Whether these numbers are to be kept."""
        if "run/updates" not in values:
            return True
        if moment.time_s < self._next_s:
            return False
        self._next_s = moment.time_s * (1 + 1 / self._looks)
        return True
