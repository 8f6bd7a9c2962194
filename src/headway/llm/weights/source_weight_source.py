"""Where linked weights are kept: in the learner's process, on its device, until nobody needs them.

    offer(weights) --> frozen copy, key --> ... served to any number of engines ... --> dropped
                             |
                             +-- older than the newest two: moved to the machine's memory, if it is on a GPU

    one thread listens; one a connection answers, which is one an engine:

      who are you? --> pair (once) --> send | bytes, as often as asked
                   --> drop                                             then the connection ends, or is closed

A failure ends its connection and nothing else: the engine asks again over another one. Those who have not proved yet
that they know the token are strangers, of whom there are only so many at once.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from headway.core.types_opaque import JsonObject
from headway.llm.train.shard_files import Rows, write_shard
from headway.llm.weights.connection_weight_pair import (
    BYTES,
    NCCL,
    SOURCE,
    End,
    Pair,
    PairBroken,
    choose_backend,
    new_stream,
    on_stream,
    open_pair,
    this_end,
)
from headway.llm.weights.connection_weight_wire import Deadline, SourceAddress, Wire
from headway.llm.weights.receiver_weight_layout import BUCKET_BYTES, BucketLayout, Spec, checksum
from headway.llm.weights.receiver_weight_link import LinkedWeights
from headway.ranks.rank_torch_groups import open_store
from headway.runs.local_server_strangers import Strangers

ON_DEVICE = 2
"""How many of the newest stay on the GPU: collectors use the last one, an evaluation perhaps the one before."""
STORE_S = 300.0
CLOSE_S = 2.0
AGAIN_S = 0.05
"""Between two attempts to let somebody in."""


class WeightSource:
    """Keeps weights for engines elsewhere. `host` is the address of this machine that they can reach.

    What is not closed ends with this object, or with its process.
    """

    def __init__(self, host: str = "127.0.0.1", *, deadline_s: float = 60.0, bucket_bytes: int = BUCKET_BYTES) -> None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s must be > 0, received {deadline_s!r}")
        self._server = _WeightServer(host)
        self._deadline_s = deadline_s
        self._bucket_bytes = bucket_bytes
        self._end = weakref.finalize(self, self._server.close)

    def offer(self, weights: Mapping[str, Tensor]) -> LinkedWeights:
        """Copy the weights where they are, and keep the copy until it is given back."""
        if not weights:
            raise ValueError("there are no weights to offer")
        layout = BucketLayout.of(weights, self._bucket_bytes)
        return self._keep(layout, weights.items(), next(iter(weights.values())).device)

    def offer_each(self, specs: Sequence[Spec], weights: Iterable[tuple[str, Tensor]]) -> LinkedWeights:
        """The same with weights that are made one after another, all of `specs`, each once it is asked for. They are
        kept in the precision the specs say, on the device of the first one."""
        made = iter(weights)
        first = next(made, None)
        if first is None:
            raise ValueError("there are no weights to offer")
        return self._keep(BucketLayout(specs, self._bucket_bytes), chain([first], made), first[1].device)

    def _keep(self, layout: BucketLayout, weights: Iterable[tuple[str, Tensor]], device: torch.device) -> LinkedWeights:
        buckets = layout.empty(device)
        layout.write_each(weights, buckets)
        key = self._server.put(_Held(layout, device, buckets, _now_on(device)))
        return LinkedWeights(self._server.source, self._server.token, key, layout.num_bytes, self._deadline_s)

    @property
    def keys(self) -> tuple[int, ...]:
        """Of what is kept, oldest first."""
        return self._server.keys

    def close(self) -> None:
        self._end()


@dataclass(slots=True)
class _Held:
    """One set of weights. `buckets` are on `device`, or in the machine's memory."""

    layout: BucketLayout
    device: torch.device
    buckets: list[Tensor]
    ready: torch.cuda.Event | None
    """The copy is made when this has happened."""
    sums: list[int] | None = field(default=None)

    def wait_until_ready(self) -> None:
        """On the current stream."""
        if self.ready is not None:
            torch.cuda.current_stream(self.device).wait_event(self.ready)

    def on(self, device: torch.device) -> Iterator[Tensor]:
        return (bucket.to(device) for bucket in self.buckets)

    def head(self) -> JsonObject:
        layout = self.layout
        return {"specs": layout.specs, "bucket_bytes": layout.bucket_bytes, "sizes": layout.sizes}

    def written(self, asked: JsonObject) -> JsonObject:
        """Writes the weights into files, block by block; the answer says which, or what went wrong."""
        rows = {}
        with on_stream(self.device, new_stream(self.device)):
            self.wait_until_ready()
            for name, tensor in self.layout.read(self.buckets).items():
                first, whole = asked["places"][name]
                rows[name] = Rows(tensor, first, tuple(whole))
            try:
                return {"files": write_shard(Path(asked["folder"]), asked["number"], rows)}
            except OSError as error:
                return {"error": f"{error.strerror}: {error.filename}"}

    def checksums(self) -> list[int]:
        """Computed once; two threads that do it at the same time find the same."""
        if self.sums is None:
            self.sums = [checksum(bucket) for bucket in self.buckets]
        return self.sums


class _WeightServer:
    """What all threads of a source share. It knows nothing of the WeightSource, which is collected otherwise never."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_bytes(32)
        self._listener = socket.create_server((host, 0))
        self.source = SourceAddress(host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._next_key = 0
        self._store: tuple[dist.Store, int] | None = None  # where pairs meet, and its port
        self._num_pairs = 0
        self._open: dict[Wire, threading.Thread] = {}
        self._strangers = Strangers()
        self._is_closed = False
        self._listening = threading.Thread(target=self._listen, name="headway weight source", daemon=True)
        self._listening.start()

    @property
    def keys(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(self._held)

    def put(self, held: _Held) -> int:
        with self._lock:
            key = self._next_key
            self._next_key += 1
            self._held[key] = held
            old = [held for held in list(self._held.values())[:-ON_DEVICE] if held.buckets[0].is_cuda]
        for one in old:
            threading.Thread(target=_move_off, args=(one,), name="headway weights off the GPU", daemon=True).start()
        return key

    def close(self) -> None:
        """Wait for the threads, too: one that is inside torch while the interpreter ends takes the process down."""
        self._is_closed = True
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens
        self._listener.close()
        with self._lock:
            threads = dict(self._open)
            self._held.clear()
        for wire in threads:
            wire.close()
        ends_at = time.monotonic() + CLOSE_S
        for thread in (self._listening, *threads.values()):
            if thread is not threading.current_thread():  # which a garbage collection may have chosen
                thread.join(max(0.0, ends_at - time.monotonic()))

    # -- in threads of their own --------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._is_closed:
                    time.sleep(AGAIN_S)  # this process may have no further descriptor now
                continue
            self._strangers.welcome(connection)
            wire = Wire(connection)
            serving = threading.Thread(target=self._serve, args=(wire, connection), name="headway weights", daemon=True)
            with self._lock:
                self._open[wire] = serving
                try:
                    serving.start()
                except RuntimeError:  # there can be no further thread now
                    del self._open[wire]
                    wire.close()

    def _serve(self, wire: Wire, connection: socket.socket) -> None:
        pair: Pair | None = None
        try:
            if wire.greet_as_source(self.token, secrets.token_bytes(32)):
                self._strangers.remove(connection)
                while True:
                    pair = self._answer(wire, wire.hear(None), pair)
        except (OSError, PairBroken):
            pass  # the engine is gone, or has the same error and says it
        finally:
            self._strangers.remove(connection)
            wire.close()
            if pair is not None:
                pair.close()
            with self._lock:
                del self._open[wire]

    def _answer(self, wire: Wire, asked: JsonObject, pair: Pair | None) -> Pair | None:
        """Returns the pair from now on."""
        if asked["do"] == "drop":
            with self._lock:
                self._held.pop(asked["key"], None)
            return pair
        until = Deadline(asked["seconds"])
        if asked["do"] == "pair":
            return self._pair(wire, End.of_message(asked["end"]), until)
        with self._lock:
            held = self._held.get(asked["key"])
        if held is None:
            wire.say({"error": "it does not have them, or not any more"}, until)
            return pair
        if asked["do"] == "write":
            wire.say(held.written(asked), until)
            return pair
        wire.say(held.head(), until)
        with on_stream(held.device, new_stream(held.device)):
            held.wait_until_ready()
            if asked["do"] == BYTES:
                for bucket in held.on(torch.device("cpu")):
                    wire.send(bucket.numpy().data, until)
            else:
                assert pair is not None
                pair.send(held.on(held.device) if pair.backend == NCCL else held.on(torch.device("cpu")), until)
            wire.say({"sums": held.checksums()}, until)
        return pair

    def _pair(self, wire: Wire, engine: End, until: Deadline) -> Pair | None:
        with self._lock:
            device = next(reversed(self._held.values())).device if self._held else torch.device("cpu")
        backend = choose_backend(this_end(device), engine)
        if backend == BYTES:
            wire.say({"backend": backend}, until)
            return None
        store, port, name = self._meeting_place()
        wire.say({"backend": backend, "port": port, "name": name}, until)
        return open_pair(
            backend,
            dist.PrefixStore(name, store),
            SOURCE,
            device,
            here=wire.here,
            until=until,
            is_peer_up=lambda: wire.is_up,
        )

    def _meeting_place(self) -> tuple[dist.Store, int, str]:
        """A store for all pairs of this source, and a name in it for the next."""
        with self._lock:
            if self._store is None:
                self._store = open_store(self.source.host, None, STORE_S)
            self._num_pairs += 1
            return *self._store, f"pair {self._num_pairs}"


def _now_on(device: torch.device) -> torch.cuda.Event | None:
    """Happens when everything given to the device's current stream by now is done."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _move_off(held: _Held) -> None:
    with on_stream(held.device, new_stream(held.device)):
        held.wait_until_ready()
        held.buckets = [bucket.cpu() for bucket in held.buckets]
