"""What collectors of all kinds do alike: carry their environments over a restart, and refuse what is not a number."""

from __future__ import annotations

from typing import ClassVar

import cloudpickle
import numpy as np

from headway.core.types import Ticket


class Carried:
    """A mixin: what the attributes named in CARRIED hold goes on bit for bit after a restart."""

    CARRIED: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> bytes:
        state: bytes = cloudpickle.dumps({name: getattr(self, name) for name in self.CARRIED})
        return state

    def load_state_dict(self, state: bytes) -> None:
        for name, value in cloudpickle.loads(state).items():
            setattr(self, name, value)


ONLY_HOW_IT_IS_MADE = b"_ezpickle_args"
"""Gymnasium's EzPickle: what comes back is a new environment, in no episode (LunarLander, MuJoCo, Atari)."""


def can_be_carried(environments: object) -> bool:
    """Whether environments go on in the middle of an episode after they were pickled."""
    try:
        pickled = cloudpickle.dumps(environments)
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 - whatever an environment raises here, it cannot be carried
        return False
    return ONLY_HOW_IT_IS_MADE not in pickled


def refuse_nan(record: object, ticket: Ticket, **named: str) -> None:
    """Nothing, or one line for the first value that is not a number, under the name it has for people."""
    for name, what in named.items():
        values = getattr(record, name)
        if not np.isfinite(values).all():
            step, index = np.argwhere(~np.isfinite(values))[0][:2]
            raise ValueError(f"{what} of environment {index} is not finite at step {step} of {ticket}")
