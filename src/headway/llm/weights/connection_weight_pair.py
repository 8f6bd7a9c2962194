"""Two processes that hand each other tensors: a process group of two, with a deadline on everything.

    source: rank 0  ---- tensors ---->  engine: rank 1

    nccl    from GPU to GPU; each end has one of its own
    gloo    through the memory of both machines; for everything else that torch.distributed can do

A group is an object of its own, not torch's global one: a learner has one for every engine, and may be a rank of
several itself. It is built once and used for every version; whatever goes wrong, it is given up and another is built.

NCCL has two traps. What waits on a GPU waits in a kernel, which nobody can leave but by aborting the group: so the
completion is polled here, and the deadline is ours. And torch, by default, ends the whole process when an operation
fails or the other end dies: these groups are built with that switched off, for a learner must survive its engines.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from headway.core.text_one_line import first_line
from headway.core.types_opaque import JsonObject
from headway.llm.weights.connection_weight_wire import Deadline
from headway.ranks.rank_torch_groups import abort, gloo_group, nccl_group

NCCL, GLOO, BYTES = "nccl", "gloo", "bytes"
"""Bytes: no group at all, everything goes over the wire that says where it is."""
WINDOW = 4
"""Messages under way at a time: staging one overlaps with sending another, and takes bounded memory."""
POLL_S = 2e-4
ABORT_S = 1.0
"""A group that lets itself be aborted is gone in milliseconds. One whose other end is stopped is not, for as long as
that is: it is left to a thread, and what is under way with it."""
SOURCE, ENGINE = 0, 1


_Message = tuple[dist.Work, Callable[[], object]]
"""torch's work, and what is left to do when it is done."""


class PairBroken(RuntimeError):
    """Tensors did not come through. One line."""


@dataclass(frozen=True, slots=True)
class End:
    """One side of a pair, as far as the choice of a backend depends on it."""

    machine: str
    gpu: str
    """Which one, so that two processes can tell whether they share it; empty on a CPU."""
    backends: tuple[str, ...]

    def as_message(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def of_message(cls, message: JsonObject) -> End:
        return cls(message["machine"], message["gpu"], tuple(message["backends"]))


def choose_backend(source: End, engine: End) -> str:
    """NCCL needs a GPU on both sides, and not the same one: it refuses two ranks on one GPU."""
    both = set(source.backends) & set(engine.backends)
    share_one = (source.machine, source.gpu) == (engine.machine, engine.gpu)
    if NCCL in both and source.gpu and engine.gpu and not share_one:
        return NCCL
    return GLOO if GLOO in both else BYTES


def this_end(device: torch.device, barred: Collection[str] = ()) -> End:
    """Of this process, with tensors on `device`, without the backends that did not work."""
    available = {NCCL: dist.is_available() and dist.is_nccl_available() and device.type == "cuda"}
    available[GLOO] = dist.is_available() and dist.is_gloo_available()
    gpu = ""
    if device.type == "cuda":
        gpu = str(getattr(torch.cuda.get_device_properties(device), "uuid", device))
    backends = tuple(name for name, is_there in available.items() if is_there and name not in barred)
    return End(os.environ.get("NCCL_HOSTID") or _machine(), gpu, backends)


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{os.uname().nodename} {boot.read_text().strip() if boot.exists() else ''}"


class Pair:
    """A group of two. What does not come through raises PairBroken, or TimeoutError past the deadline."""

    backend: str

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        self._group: dist.ProcessGroup | None = group
        self._peer = 1 - rank
        self.num_done = 0
        """Messages that came through in the last `send` or `receive`."""
        self._under_way: deque[_Message] = deque()

    def send(self, tensors: Iterable[Tensor], until: Deadline) -> None:
        """One message each. Returns when none of them is needed any more."""
        self._pass(tensors, self._post_send, until)

    def receive(self, tensors: Iterable[Tensor], until: Deadline) -> None:
        """Returns when all of them are filled, for any stream and thread."""
        self._pass(tensors, self._post_receive, until)

    def prove(self, rank: int, device: torch.device, until: Deadline) -> None:
        """One message each way: whatever a backend finds out at its first message, it finds out here."""
        numbers = torch.arange(64, dtype=torch.uint8, device=device)
        heard = torch.zeros_like(numbers)
        for sender in (SOURCE, ENGINE):
            if sender == rank:
                self.send([numbers], until)
            else:
                self.receive([heard], until)
        if not torch.equal(heard, numbers):
            raise PairBroken("what came through is not what was sent")

    def close(self) -> None:
        """From any thread. What is under way ends with an error."""
        self._group = None

    def _pass(self, tensors: Iterable[Tensor], post: Callable[[Tensor, int], _Message], until: Deadline) -> None:
        self.num_done = 0
        under_way = self._under_way
        under_way.clear()
        try:
            for number, tensor in enumerate(tensors):
                under_way.append(post(tensor, number))
                if len(under_way) > WINDOW:
                    self._complete_oldest(until)
            while under_way:
                self._complete_oldest(until)
        except TimeoutError:
            self.close()  # before the tensors are let go: something may still read or write them
            raise
        except RuntimeError as error:  # torch has no class of its own for it
            self.close()
            raise PairBroken(f"{self.backend}: {first_line(error)}") from error

    def _complete_oldest(self, until: Deadline) -> None:
        """It is under way until it is done: if it fails, its tensor is kept with the group."""
        work, then = self._under_way[0]
        self._finish(work, until)
        then()
        self._under_way.popleft()
        self.num_done += 1

    def _post_send(self, tensor: Tensor, number: int) -> _Message:
        staged = self._staged(tensor)
        return self._live_group().send([staged], self._peer, number), lambda: staged  # kept until it is sent

    def _post_receive(self, tensor: Tensor, number: int) -> _Message:
        place = self._place_for(tensor)
        work = self._live_group().recv([place], self._peer, number)
        return work, lambda: place is tensor or tensor.copy_(place)

    def _live_group(self) -> dist.ProcessGroup:
        if self._group is None:
            raise PairBroken("the pair was closed")
        return self._group

    def _staged(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError

    def _place_for(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError

    def _finish(self, work: dist.Work, until: Deadline) -> None:
        raise NotImplementedError


class GlooPair(Pair):
    """Tensors in the memory of the machine. `here` is its address that the other end can reach."""

    backend = GLOO

    def __init__(self, store: dist.Store, rank: int, here: str, until: Deadline) -> None:
        super().__init__(gloo_group(store, rank, 2, here=here, timeout_s=until.left_s), rank)

    def _staged(self, tensor: Tensor) -> Tensor:
        return tensor.cpu()

    def _place_for(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")

    def _finish(self, work: dist.Work, until: Deadline) -> None:
        try:
            work.wait(timedelta(seconds=until.left_s))
        except RuntimeError:
            until.check()  # it says nothing else when it is late
            raise


class NcclPair(Pair):
    """Tensors on the GPU `device`. `is_peer_up` says whether the other end still lives: nothing else would."""

    backend = NCCL

    def __init__(self, store: dist.Store, rank: int, device: torch.device, is_peer_up: Callable[[], bool]) -> None:
        with torch.cuda.device(device), _errors_are_ours():
            group = nccl_group(store, rank, 2, timeout_s=86_400.0)  # the deadline is kept here
            if hasattr(group, "eager_connect_single_device"):  # else at the first message
                group.eager_connect_single_device(device)
        super().__init__(group, rank)
        self._is_peer_up = is_peer_up

    def close(self) -> None:
        groups, self._group = [self._group], None
        if groups[0] is not None:
            # In a thread, with the last reference: a group that is just being connected, or whose other end is
            # stopped, may keep whoever aborts and destroys it. The tensors stay with it: a kernel may write to them.
            held = list(self._under_way)
            thread = threading.Thread(target=_abort, args=(groups, held), name="headway weights abort", daemon=True)
            thread.start()
            thread.join(ABORT_S)

    def _staged(self, tensor: Tensor) -> Tensor:
        return tensor

    def _place_for(self, tensor: Tensor) -> Tensor:
        return tensor

    def _finish(self, work: dist.Work, until: Deadline) -> None:
        while not work.is_completed():
            until.check()
            if not self._is_peer_up():
                raise PairBroken("the other end is gone")
            time.sleep(POLL_S)


def _abort(groups: list[dist.ProcessGroup], held: list[_Message]) -> None:
    abort(groups.pop())
    held.clear()


_BUILDING = threading.Lock()
_OURS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",  # one after another is what is wanted
}


@contextmanager
def _errors_are_ours() -> Iterator[None]:
    """A group that is built in here leaves the process alone when something fails, and asks nobody whether it shall
    end. torch reads these variables as it builds one; there is no option for them."""
    with _BUILDING:
        before = {name: os.environ.get(name) for name in _OURS}
        os.environ.update(_OURS)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def open_pair(
    backend: str,
    store: dist.Store,
    rank: int,
    device: torch.device,
    *,
    here: str,
    until: Deadline,
    is_peer_up: Callable[[], bool],
) -> Pair:
    """Returns when a message went each way."""
    pair: Pair | None = None
    try:
        if backend == NCCL:
            pair = NcclPair(store, rank, device, is_peer_up)
        else:
            pair = GlooPair(store, rank, here, until)
        pair.prove(rank, device if backend == NCCL else torch.device("cpu"), until)
    except (RuntimeError, TimeoutError) as error:
        if pair is not None:
            pair.close()
        raise PairBroken(f"{backend}: {first_line(error)}") from error
    return pair


@contextmanager
def on_stream(device: torch.device, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Work on a GPU goes to a stream of its own; on a CPU there is none."""
    if stream is None:
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None
