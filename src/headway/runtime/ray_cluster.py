"""Finding a Ray cluster, or starting one on this machine, within a deadline and with one line when it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping

import ray
from ray._private import ray_constants
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import RayError

from headway.children.daemon_thread import in_daemon_thread
from headway.core.one_line import first_line
from headway.core.opaque import SettingValue
from headway.core.protocols import Placement

LOOPBACK = "127.0.0.1"


def connect(address: str, timeout_s: float) -> bool:
    """Initialise Ray in this process, with the cluster at the address or, if that is "local", with one of its own.

    Nothing is left behind when it fails. Returns whether this connected: a Ray that was there already is left alone.
    """
    is_local = address == "local"
    place = "local" if is_local else _check_address(address, timeout_s)
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if not is_local and place != here:
            raise ConnectionError(f"this process is connected to Ray at {here}; it cannot use {place} as well")
        return False
    options: dict[str, SettingValue] = {"include_dashboard": False, "_node_ip_address": LOOPBACK} if is_local else {}
    try:
        with _signal_handlers_kept(), _on_loopback() if is_local else contextlib.nullcontext():
            ray.init(
                "auto" if address == "auto" else place,
                namespace=f"headway-{uuid.uuid4().hex}",
                log_to_driver=False,
                configure_logging=False,
                **options,
            )
    except Exception as error:
        if not isinstance(error, RayError | OSError | RuntimeError | ValueError) and type(error) is not Exception:
            raise  # a bare one is Ray's own word for a node that takes longer than 30 s to start
        ray.shutdown()
        what = "a local Ray cluster could not be started" if is_local else f"no Ray cluster at {address}"
        raise ConnectionError(f"{what}: {first_line(error)}") from error
    return True


def lacking(placement: Placement) -> str:
    wishes = {"CPU": placement.num_cpus, "GPU": placement.num_gpus, **placement.resources}
    asked = {name: amount for name, amount in wishes.items() if amount}
    total, free = ray.cluster_resources(), ray.available_resources()
    has = {name: f"{free.get(name, 0):g} of {total.get(name, 0):g} free" for name in asked}
    return f"asked for {_list(asked)}; the cluster has {_list(has)}"


def _list(amounts: Mapping[str, float | str]) -> str:
    return (
        ", ".join(
            f"{name} {amount:g}" if isinstance(amount, float) else f"{name} {amount}"
            for name, amount in amounts.items()
        )
        or "nothing"
    )


def _check_address(address: str, timeout_s: float) -> str:
    """host:port of a Ray cluster that answers. Ray itself would try for a minute, and may end the process."""
    ends_at = time.monotonic() + timeout_s
    try:
        found: str | None = ray._private.services.canonicalize_bootstrap_address(address)
        if found is None:
            raise ConnectionError("none runs on this machine")
        host, _, port = found.rpartition(":")
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.settimeout(max(0.001, ends_at - time.monotonic()))
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                answer = connection.recv(9)
                if len(answer) < 4 or answer[3] != 4:  # a gRPC server begins with a SETTINGS frame
                    raise ConnectionError("what listens there is not Ray")
        if address != "auto":  # to a cluster it finds by itself Ray shows its token, to an address only if asked to
            # As Ray's own client says hello; in a thread, for that may take half a minute to find nobody there.
            greeting = in_daemon_thread(lambda: GcsClient(address=found), "headway ray greeting")
            greeting.result(max(0.001, ends_at - time.monotonic()))
    except RayError as error:
        raise ConnectionError(f"the Ray cluster at {address} does not let us in: {first_line(error)}") from None
    except ValueError:
        raise ConnectionError(f"no Ray cluster at {address!r}: an address is host:port, or auto") from None
    except TimeoutError:
        raise ConnectionError(f"no Ray cluster at {address}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ConnectionError(f"no Ray cluster at {address}: {error.strerror or first_line(error)}") from None
    return found


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; it belongs to whoever runs the coordinator."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """A Ray that starts meanwhile listens on the loopback interface only. Ray does so by itself where it expects no
    other nodes; elsewhere it puts an address that others can reach in the place of the one it is given."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
