"""Streams whose kernels stay on some of a GPU's multiprocessors: green contexts of the CUDA driver.

The driver divides what a GPU has: a group of multiprocessors becomes a context of its own, and streams made in it use
no others. Memory, kernels and events are those of everybody, so torch takes such a stream as any other.
"""

from __future__ import annotations

import ctypes
import functools

import torch

MULTIPROCESSORS = 1
"""A kind of resource, as the driver numbers them."""
NON_BLOCKING = 1
WITH_STREAM = 1
ROOM = 1024
"""Bytes for a resource, whose size grows from version to version of the driver."""


class NoPart(Exception):
    """This driver or GPU cannot be divided; the message says what was refused."""


def num_multiprocessors(share: float, total: int) -> int:
    """How many of a GPU's multiprocessors are asked for: a multiple of eight, which is how they come apart, with eight
    left to others at least."""
    return min(max(8, 8 * round(share * total / 8)), max(8, 8 * ((total - 8) // 8)))


@functools.cache
def stream_on_part(device: int, count: int) -> torch.cuda.Stream:
    """Makes a stream that computes on so many multiprocessors; always the same one for a device and a number."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        torch.cuda.current_stream(device).synchronize()  # the device's own context is there from here on
        number, stream = ctypes.c_int(), ctypes.c_void_p()
        part, rest, one = _resource(), _resource(), ctypes.c_uint(1)
        described, context = ctypes.c_void_p(), ctypes.c_void_p()
        _call(driver.cuDeviceGet, ctypes.byref(number), device)
        whole = _resource()
        _call(driver.cuDeviceGetDevResource, number, ctypes.byref(whole), MULTIPROCESSORS)
        _call(
            driver.cuDevSmResourceSplitByCount,
            *(ctypes.byref(part), ctypes.byref(one), ctypes.byref(whole), ctypes.byref(rest), 0, count),
        )
        _call(driver.cuDevResourceGenerateDesc, ctypes.byref(described), ctypes.byref(part), 1)
        _call(driver.cuGreenCtxCreate, ctypes.byref(context), described, number, WITH_STREAM)
        _call(driver.cuGreenCtxStreamCreate, ctypes.byref(stream), context, NON_BLOCKING, 0)
    except (OSError, AttributeError) as error:  # no driver, or one that is older than this
        raise NoPart(str(error)) from None
    return torch.cuda.ExternalStream(stream.value, device=device)


def _resource() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(ROOM)


def _call(function: ctypes._NamedFuncPointer, *given: object) -> None:
    code = function(*given)
    if code:
        raise NoPart(f"{function.__name__} was refused with code {code}")
