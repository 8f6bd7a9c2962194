"""Groups of processes that hand each other tensors, as objects of their own: torch's global group stays free.

open_store: one process has a small server where all meet
gloo_group, nccl_group: the processes that met, by their ranks
open_global_group: the same as torch's global group, for what works with no other
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist


def open_store(host: str, size: int | None, timeout_s: float) -> tuple[dist.Store, int]:
    """Where processes meet: a small server at `host` and nowhere else, on a port of its own."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    limit = timedelta(seconds=timeout_s)
    fd = listener.detach()
    return dist.TCPStore(host, port, size, True, limit, wait_for_workers=False, master_listen_fd=fd), port


def find_store(host: str, port: int, size: int | None, timeout_s: float) -> dist.Store:
    """The same, for the others."""
    return dist.TCPStore(host, port, size, False, timedelta(seconds=timeout_s), wait_for_workers=False)


def gloo_group(store: dist.Store, rank: int, size: int, *, here: str, timeout_s: float) -> dist.ProcessGroup:
    """Through the memory of the machines. `here` is the address of this one that the others can reach."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=here)]
    options._timeout = timedelta(seconds=timeout_s)
    return gloo(store, rank, size, options)


def nccl_group(store: dist.Store, rank: int, size: int, *, timeout_s: float) -> dist.ProcessGroup:
    """From GPU to GPU, on the current device. The limit is that of torch's watchdog."""
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=timeout_s)
    return nccl(store, rank, size, options)


OURS = "headwaygloo"
"""Gloo at an address of ours, by the name that torch knows it under."""


def open_global_group(backend: str, store: dist.Store, rank: int, size: int, *, here: str, timeout_s: float) -> None:
    """Makes torch's global group of these processes: there is one in a process."""
    limit = timedelta(seconds=timeout_s)
    if backend == "nccl":
        dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=limit)
        return

    def make(its_store: dist.Store, its_rank: int, its_size: int, _: timedelta) -> dist.ProcessGroup:
        return gloo_group(its_store, its_rank, its_size, here=here, timeout_s=timeout_s)

    known: Any = dist.Backend
    if OURS not in known.backend_list:
        known.register_backend(OURS, _made_here, devices=["cpu"])
    _made_here.now = make
    dist.init_process_group(OURS, store=store, rank=rank, world_size=size, timeout=limit)


class _MadeHere:
    """Is what torch calls for a group; a backend is registered once, an address may change."""

    now: Any = None

    def __call__(self, *args: Any) -> Any:
        return self.now(*args)


_made_here = _MadeHere()


def leave_global_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def abort(group: Any) -> None:
    """Of NCCL: what waits on a GPU waits in a kernel, which nobody can leave otherwise."""
    (getattr(group, "abort", None) or group._shutdown)()  # its name before torch 2.6
