"""Finding a Ray cluster, or starting one on this machine, within a deadline and with one line when it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping

import ray
from ray._private import ray_constants
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import RayError

from headway.core.protocols import Placement
from headway.core.text_one_line import first_line
from headway.core.types_opaque import SettingValue
from headway.runtimes.loop_threads_daemon_thread import in_daemon_thread

LOOPBACK = "127.0.0.1"
GREETING_S = 2.0
"""How long a process of Ray may take for its first words; milliseconds where it is well."""


class Connection:
    """This process in a Ray cluster, by way of the raylet of its node."""

    def __init__(self, *, is_ours: bool, is_local: bool) -> None:
        self._is_ours = is_ours
        self._agents_end = _end_agents_with_this_process() if is_ours and is_local else None
        here = ray.get_runtime_context().get_node_id()
        (node,) = (known for known in ray.nodes() if known["NodeID"] == here)
        self.node: str = here
        self.raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
        self._sockets = (node["RayletSocketName"], node["ObjectStoreSocketName"])
        self._control_store: str = ray.get_runtime_context().gcs_address

    def end(self) -> None:
        """Also the cluster, if it was started here. A Ray that was there before is left alone."""
        if not self._is_ours:
            return
        # `ray.shutdown` waits without a limit for what does not answer, a process that is stopped.
        if is_silent(self.raylet):
            _hang_up(self._sockets)
        if is_silent(self._control_store):
            _stop_listening()
        ray.shutdown()
        if self._agents_end is not None:
            self._agents_end.communicate()


def connect(address: str, timeout_s: float) -> Connection:
    """Initialise Ray in this process, with the cluster at the address or, if that is "local", with one of its own.

    Nothing is left behind when it fails. A Ray that was there already is used and left alone.
    """
    is_local = address == "local"
    place = "local" if is_local else _check_address(address, timeout_s)
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if not is_local and place != here:
            raise ConnectionError(f"this process is connected to Ray at {here}; it cannot use {place} as well")
        return Connection(is_ours=False, is_local=False)
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
    return Connection(is_ours=True, is_local=is_local)


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
        greet(found, timeout_s)
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


def greet(address: str, timeout_s: float) -> None:
    """Exchange the first words of gRPC with a process of Ray; TimeoutError where it does not answer, as one that is
    stopped. With TLS it is enough that the port is open."""
    host, _, port = address.rpartition(":")
    ends_at = time.monotonic() + timeout_s
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.settimeout(max(0.001, ends_at - time.monotonic()))
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            answer = connection.recv(9)
            if len(answer) < 4 or answer[3] != 4:  # a gRPC server begins with a SETTINGS frame
                raise ConnectionError("what listens there is not Ray")


def is_silent(address: str) -> bool:
    """Whether a process of Ray is there and says nothing."""
    try:
        greet(address, GREETING_S)
    except OSError as error:
        return isinstance(error, TimeoutError)
    return False


def _stop_listening() -> None:
    """Ask the control store for errors and logs no more, without a goodbye."""
    worker = ray._private.worker.global_worker
    worker.threads_stopped.set()
    worker.threads_stopped = threading.Event()  # the threads keep theirs, which `ray.shutdown` would clear again
    for name in ("gcs_error_subscriber", "gcs_log_subscriber", "listener_thread", "logger_thread"):
        vars(worker).pop(name, None)


def _hang_up(names: Collection[str]) -> None:
    """Close this process's connections to the sockets of these names."""
    for fd in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # one that was closed meanwhile, or has no peer
            if stat.S_ISSOCK(os.fstat(int(fd)).st_mode):
                with socket.socket(fileno=os.dup(int(fd))) as connection:
                    if connection.family == socket.AF_UNIX and connection.getpeername() in names:
                        connection.shutdown(socket.SHUT_RDWR)


def _end_agents_with_this_process() -> subprocess.Popen[bytes]:
    """Start a shell that kills the agents of the Ray started here when this process is gone, or closes its pipe. The
    kernel ends Ray's other processes; its agents would look for the control store for a minute first."""
    raylet = ray._private.worker._global_node.all_processes["raylet"][0].process.pid  # type: ignore[attr-defined]
    children = ray._private.services.psutil.Process(raylet).children()
    agents = [str(child.pid) for child in children if "agent" in " ".join(child.cmdline()[:3]).lower()]
    return subprocess.Popen(
        ["/bin/sh", "-c", "read end_of_pipe; kill -KILL $*", "end of Ray", *agents],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )


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
