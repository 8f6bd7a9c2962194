"""Groups of processes that hand each other tensors, as objects of their own: torch's global group stays free.

open_store: one process has a small server where all meet
gloo_group, nccl_group: the processes that met, by their ranks
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


def abort(group: Any) -> None:
    """Of NCCL: what waits on a GPU waits in a kernel, which nobody can leave otherwise."""
    (getattr(group, "abort", None) or group._shutdown)()  # its name before torch 2.6
