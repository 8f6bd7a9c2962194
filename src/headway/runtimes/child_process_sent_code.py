"""A function that a fresh interpreter shall call, with what that needs to know of the user's own script.

The script is imported there as multiprocessing does it, under another name than `__main__`, so that what it defines at
module level is found.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable
from multiprocessing import spawn

from headway.core.types_opaque import UserFunction


def pack_function(function: Callable[..., object], name: str) -> bytes:
    """For a process named `name`. What cannot be sent raises PicklingError, AttributeError or TypeError."""
    preparation = spawn.get_preparation_data(name)
    preparation["authkey"] = bytes(preparation["authkey"])  # refuses to be pickled otherwise
    return pickle.dumps((preparation, _pickled(function)))


def unpack_function(packed: bytes) -> UserFunction:
    """There: import the user's script first, then find the function."""
    preparation, pickled = pickle.loads(packed)
    # As in multiprocessing: a __main__ without a guard is told so instead of starting everything again.
    multiprocessing.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(preparation)
    finally:
        del multiprocessing.current_process()._inheriting  # type: ignore[attr-defined]
    return pickle.loads(pickled)


def _pickled(function: Callable[..., object]) -> bytes:
    """What a notebook or a console defines has no module in another process, so it goes along."""
    if not hasattr(sys, "ps1"):  # neither of them
        return pickle.dumps(function)
    try:
        import cloudpickle
    except ModuleNotFoundError:
        packed = pickle.dumps(function)
        if b"__main__" in packed:
            raise AttributeError("what a notebook defines needs cloudpickle: pip install cloudpickle") from None
        return packed
    return cloudpickle.dumps(function)
