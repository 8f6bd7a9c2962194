"""What a learner tells the replay that drew its batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Priorities:
    """How much each of B drawn items surprised the learner."""

    ids: npt.NDArray[np.int64]  # [B], as they were drawn
    priorities: npt.NDArray[np.float64]  # [B], not negative
