"""Weights that go from the learner's device straight to the engine's, and never through the driver.

      learner's process                    driver                     engine's process
      WeightSource.offer(weights)                                     Intake.plain(handle)
        frozen copy on the device  --- LinkedWeights, < 1 KB --->       |
        a thread serves            <-------- wire: which weights? ------+
                                   --------- wire: names, dtypes, shapes -->
                                   ========= pair: buckets of bytes =======> fresh memory on the device
                                   --------- wire: checksums -------------->   all there? then the engine applies it

      connected --> paired --> bringing --> paired ...     one link, for every version that follows
           whatever fails or is late --> closed; the next attempt connects anew

A *handle* names a copy that the source keeps until it is told that nobody needs it (`give_back`). A *pair* is a process
group of two (weight_pair.py): NCCL where both ends have a GPU of their own, gloo otherwise; where neither works the
bytes go over the wire itself. Training goes on meanwhile: what is sent is a copy, by a thread and a stream of its own.

Invariants: what `plain` returns came whole, with the source's checksums, or it raises LinkBroken in one line; nothing
waits longer than the handle's deadline; after a failure nothing of the link is used again.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headway.coordinator.state_files_saved_beside import SavedBeside
from headway.core.types_lent import Lent, taken
from headway.core.types_opaque import JsonObject, Weights
from headway.llm.train.shard_files_saved_rows import SavedRows
from headway.llm.weights.connection_weight_pair import (
    BYTES,
    ENGINE,
    Pair,
    PairBroken,
    new_stream,
    on_stream,
    open_pair,
    this_end,
)
from headway.llm.weights.connection_weight_wire import Deadline, LinkBroken, SourceAddress, Wire
from headway.llm.weights.receiver_weight_layout import BucketLayout, checksum
from headway.ranks.rank_torch_groups import find_store
from headway.runtimes.loop_threads_daemon_thread import in_daemon_thread

T = TypeVar("T")

GIVE_BACK_S = 5.0
GRACE_S = 0.5
"""Every step keeps the deadline itself. A call into a backend that does not come back at all is left so much later."""


@dataclass(frozen=True, slots=True)
class LinkedWeights(Lent):
    """A handle of weights that their source keeps."""

    source: SourceAddress
    token: bytes = field(repr=False)
    key: int
    num_bytes: int
    deadline_s: float
    """Of one attempt to have them."""

    def take(self) -> dict[str, Tensor]:
        """In the memory of this machine, over the wire alone."""
        until = Deadline(self.deadline_s)
        wire = _connect(self.source, self.token, until)
        try:
            wire.say({"do": BYTES, "key": self.key, "seconds": until.left_s}, until)
            layout, buckets = _receive(wire, None, torch.device("cpu"), until)
            return {name: tensor.clone() for name, tensor in layout.read(buckets).items()}  # a bucket is pickled whole
        except (OSError, PairBroken, ValueError) as error:
            raise LinkBroken(_line(self, error)) from error
        finally:
            wire.close()

    def give_back(self) -> None:
        threading.Thread(target=_give_back, args=(self,), name="headway weights back", daemon=True).start()


class LinkedRows(NamedTuple):
    """What one rank keeps of weights that are in shards: its rows."""

    kept: LinkedWeights
    places: Mapping[str, tuple[int, tuple[int, ...]]]
    """Of each weight: which row is the first one here, and the shape of all of them."""


@dataclass(frozen=True, slots=True)
class ShardedWeights(Lent):
    """A handle of weights whose rows are kept by several sources. Whoever needs them comes to each."""

    parts: tuple[LinkedRows, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.kept.num_bytes for part in self.parts)

    def take(self) -> dict[str, Tensor]:
        return join_rows(self, lambda kept: kept.take(), torch.device("cpu"))

    def saved_in(self, folder: str) -> SavedRows:
        """Each source writes its rows; nothing of them comes here."""
        files: dict[str, int] = {}
        for number, part in enumerate(self.parts):
            kept, until = part.kept, Deadline(part.kept.deadline_s)
            wire = _connect(kept.source, kept.token, until)
            try:
                asked = {"do": "write", "key": kept.key, "seconds": until.left_s, "folder": folder, "number": number}
                wire.say({**asked, "places": dict(part.places)}, until)
                answer = wire.hear(until)
                if "error" in answer:
                    raise ConnectionError(answer["error"])
                files |= answer["files"]
            except (OSError, ValueError) as error:
                raise LinkBroken(_line(kept, error)) from error
            finally:
                wire.close()
        return SavedRows(SavedBeside(folder, files))

    def give_back(self) -> None:
        for part in self.parts:
            part.kept.give_back()


def join_rows(
    weights: ShardedWeights, bring: Callable[[LinkedWeights], Mapping[str, Tensor]], device: torch.device
) -> dict[str, Tensor]:
    """Puts the rows of all sources together. One source's are in memory twice, until they are in their place.

    All of it has the time that one source has for itself.
    """
    until = Deadline(min(part.kept.deadline_s for part in weights.parts))
    found: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    for part in weights.parts:
        for name, tensor in bring(replace(part.kept, deadline_s=max(0.0, until.left_s))).items():
            first, whole = part.places[name]
            if name not in found:
                found[name] = torch.empty(whole, dtype=tensor.dtype, device=device)
            found[name][first : first + len(tensor)] = tensor
            rows[name] = rows.get(name, 0) + len(tensor)
    for name, tensor in found.items():
        if rows[name] != len(tensor):
            raise LinkBroken(f"of {name} {rows[name]} rows came, not {len(tensor)}")
    return found


def _give_back(weights: LinkedWeights) -> None:
    until = Deadline(GIVE_BACK_S)
    try:
        wire = _connect(weights.source, weights.token, until)
    except LinkBroken:
        return  # gone, and what it kept with it
    try:
        wire.say({"do": "drop", "key": weights.key}, until)
    except OSError:
        pass
    finally:
        wire.close()


class Intake:
    """The engine's end: one link to the source that the last weights came from. For one thread at a time."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._link: _Link | None = None
        self._links: list[_Link] = []  # whatever is open, also where pairing is under way or was given up
        self._of_ranks: dict[SourceAddress, Intake] = {}
        self._end = weakref.finalize(self, _close_all, self._links)

    def plain(self, weights: Weights) -> Weights:
        """Weights by name, on the device. What is not linked is plain already."""
        if isinstance(weights, ShardedWeights):
            return join_rows(weights, self._bring_rows, self._device)
        if not isinstance(weights, LinkedWeights):
            return taken(weights)
        until = Deadline(weights.deadline_s)
        try:
            return _within(until, lambda: self._bring(weights, until))
        except (OSError, PairBroken, ValueError) as error:
            line = _line(weights, error, self._link)
            self.close()
            raise LinkBroken(line) from error
        except LinkBroken:
            self.close()
            raise

    @property
    def backend(self) -> str:
        """What the last weights came by: nccl, gloo or bytes; nothing before the first."""
        return "" if self._link is None else self._link.backend

    @property
    def num_buckets(self) -> int:
        """How many have come of the weights on their way."""
        return 0 if self._link is None or self._link.pair is None else self._link.pair.num_done

    def close(self) -> None:
        self._link = None
        _close_all(self._links)
        for other in self._of_ranks.values():
            other.close()

    def _bring_rows(self, kept: LinkedWeights) -> Mapping[str, Tensor]:
        """Of one rank. There is a link to each, which stays."""
        if kept.source not in self._of_ranks:
            self._of_ranks[kept.source] = Intake(self._device)
        rows: Mapping[str, Tensor] = self._of_ranks[kept.source].plain(kept)
        return rows

    def _bring(self, weights: LinkedWeights, until: Deadline) -> dict[str, Tensor]:
        if self._link is None or self._link.source != weights.source:
            self.close()
            self._link = self._open(weights, until)
        link = self._link
        do = BYTES
        if link.pair is not None:
            do, link.pair.num_done = "send", 0
        link.wire.say({"do": do, "key": weights.key, "seconds": until.left_s}, until)
        with on_stream(self._device, link.stream):
            layout, buckets = _receive(link.wire, link.pair, self._device, until)
        return layout.read(buckets)

    def _open(self, weights: LinkedWeights, until: Deadline) -> _Link:
        """Connect, and pair by the best backend that works."""
        barred: list[str] = []
        while True:
            wire = _connect(weights.source, weights.token, until)
            link = _Link(weights.source, wire, None, new_stream(self._device))
            self._links.append(link)
            limit = until.part(0.5)  # if it does not work, the rest is for another way
            end = this_end(self._device, barred).as_message()
            wire.say({"do": "pair", "end": end, "seconds": limit.left_s}, limit)
            answer = wire.hear(limit)
            if answer["backend"] == BYTES:
                return link
            try:
                link.pair = self._pair(answer, weights.source, wire, limit)
                return link
            except PairBroken as error:
                until.check()
                _say(f"weights cannot come from {weights.source} by {answer['backend']}: {error}")
                barred.append(answer["backend"])
                wire.close()

    def _pair(self, answer: JsonObject, source: SourceAddress, wire: Wire, until: Deadline) -> Pair:
        try:
            with socket.create_connection((source.host, answer["port"]), until.left_s):
                pass  # somebody is there: a TCPStore would try longer than it is told to
            store = find_store(source.host, answer["port"], None, until.left_s)
        except (RuntimeError, OSError) as error:
            raise PairBroken(f"where the pair meets: {str(error).splitlines()[0]}") from error
        return open_pair(
            answer["backend"],
            dist.PrefixStore(answer["name"], store),
            ENGINE,
            self._device,
            here=wire.here,
            until=until,
            is_peer_up=lambda: wire.is_up,
        )


@dataclass(slots=True)
class _Link:
    source: SourceAddress
    wire: Wire
    pair: Pair | None
    stream: torch.cuda.Stream | None

    @property
    def backend(self) -> str:
        return BYTES if self.pair is None else self.pair.backend

    def close(self) -> None:
        self.wire.close()
        if self.pair is not None:
            self.pair.close()


def _close_all(links: list[_Link]) -> None:
    while links:
        links.pop().close()


def _connect(source: SourceAddress, token: bytes, until: Deadline) -> Wire:
    try:
        wire = Wire(socket.create_connection(source, until.left_s))
    except OSError as error:
        raise LinkBroken(f"{source} does not answer: {error}") from error
    try:
        wire.greet_as_engine(token, secrets.token_bytes(32), until)
    except OSError as error:
        wire.close()
        raise LinkBroken(f"{source} does not let us in: {error}") from error
    return wire


def _receive(
    wire: Wire, pair: Pair | None, device: torch.device, until: Deadline
) -> tuple[BucketLayout, Sequence[Tensor]]:
    """What was asked for: all of it, or an error."""
    answer = wire.hear(until)
    if "error" in answer:
        raise ConnectionError(answer["error"])
    layout = BucketLayout(
        [(name, dtype, tuple(shape)) for name, dtype, shape in answer["specs"]], answer["bucket_bytes"]
    )
    if layout.sizes != answer["sizes"]:
        raise ValueError(f"its layout has buckets of {answer['sizes']} bytes, ours {layout.sizes}")
    if pair is not None:
        buckets = layout.empty(device)
        pair.receive(buckets, until)
    else:
        buckets = layout.empty("cpu")
        for bucket in buckets:
            wire.read_into(bucket.numpy().data, until)
        buckets = [bucket.to(device) for bucket in buckets]
    sums = wire.hear(until)["sums"]
    for number, bucket in enumerate(buckets):
        if (found := checksum(bucket)) != sums[number]:
            raise ValueError(f"bucket {number} of {len(buckets)} has the checksum {found}, not {sums[number]}")
    return layout, buckets


def _within(until: Deadline, work: Callable[[], T]) -> T:
    """Do it in a thread that can be left behind. It ends when what it waits for is closed."""
    try:
        return in_daemon_thread(work, "headway weights").result(until.left_s + GRACE_S)
    except NotDone:
        raise TimeoutError(f"not within {until.seconds:g} s") from None


def _line(weights: LinkedWeights, error: Exception, link: _Link | None = None) -> str:
    line = f"weights {weights.key} did not come from {weights.source}"
    if link is not None and link.pair is not None:
        line += f" by {link.backend} ({link.pair.num_done} messages did)"
    why = f"not within {weights.deadline_s:g} s" if isinstance(error, TimeoutError) else str(error)
    return f"{line}: {why}"


def _say(line: str) -> None:
    print(f"headway: {line}", file=sys.stderr, flush=True)
