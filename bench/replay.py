"""Prioritized replay: one cycle is insert 64, sample 256, update 256 priorities, into a full replay.

    python bench/replay.py [--peer-python PATH] [--repeats 5] [--capacity 100000 1000000]

Every implementation has a process of its own, peers with the interpreter of their own environment (default
.bench-venv/bin/python if it is there; whatever cannot be imported is left out, with a line saying so). The
processes take turns, one repeat each, so that whatever else the machine does falls on all alike. Then each
draws from known priorities, and the parent tests the frequencies against p^alpha / sum p^alpha.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

INSERT, BATCH, ALPHA, BETA, EPS = 64, 256, 0.6, 0.4, 1e-6
LEVELS = 16  # distinct priorities in the test of the frequencies
DRAWS = 400  # batches in that test
OURS = "headway"
PEERS = ("cpprb", "torchrl", "tianshou", "plain")


def transitions(num: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "obs": rng.normal(size=(num, 4)).astype(np.float32),
        "next_obs": rng.normal(size=(num, 4)).astype(np.float32),
        "action": rng.integers(2, size=num),
        "reward": rng.normal(size=num).astype(np.float32),
        "done": np.zeros(num, np.float32),
    }


class Headway:
    def __init__(self, capacity: int) -> None:
        from headway.replay.prioritized import PrioritizedReplay

        self._replay = PrioritizedReplay(capacity, alpha=ALPHA, eps=EPS)

    def insert(self, items: dict[str, np.ndarray]) -> None:
        self._replay.insert(items, 0)

    def sample(self) -> Any:
        return self._replay.sample(BATCH, beta=BETA).ids

    def update(self, ids: Any, priorities: np.ndarray) -> None:
        self._replay.update(ids, priorities)

    def ids(self, slots: np.ndarray) -> np.ndarray:
        return slots + self._replay.statistics().inserted - self._replay.capacity  # oldest first

    def slots(self, ids: np.ndarray) -> np.ndarray:
        return ids - self.ids(np.zeros(1, np.int64))


class Cpprb:
    def __init__(self, capacity: int) -> None:
        from cpprb import PrioritizedReplayBuffer

        wide = {"shape": 4}
        fields = {"obs": wide, "next_obs": wide, "action": {"dtype": np.int64}, "reward": {}, "done": {}}
        self._replay = PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA, eps=EPS)

    def insert(self, items: dict[str, np.ndarray]) -> None:
        self._replay.add(**items)

    def sample(self) -> Any:
        return self._replay.sample(BATCH, beta=BETA)["indexes"]

    def update(self, ids: Any, priorities: np.ndarray) -> None:
        self._replay.update_priorities(ids, priorities)

    def ids(self, slots: np.ndarray) -> np.ndarray:
        return slots

    slots = ids


class Torchrl:
    def __init__(self, capacity: int) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        torch.set_num_threads(1)
        self._torch, self._dict = torch, TensorDict
        sampler = PrioritizedSampler(capacity, alpha=ALPHA, beta=BETA, eps=EPS)
        storage = LazyTensorStorage(capacity)
        self._replay = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCH)

    def insert(self, items: dict[str, np.ndarray]) -> None:
        num = len(items["reward"])
        self._replay.extend(self._dict({k: self._torch.from_numpy(v) for k, v in items.items()}, batch_size=[num]))

    def sample(self) -> Any:
        return self._replay.sample()["index"]

    def update(self, ids: Any, priorities: np.ndarray) -> None:
        self._replay.update_priority(self._torch.as_tensor(ids), self._torch.from_numpy(priorities.astype(np.float32)))

    def ids(self, slots: np.ndarray) -> np.ndarray:
        return slots

    def slots(self, ids: Any) -> np.ndarray:
        return np.asarray(ids)


class Tianshou:
    """Blocks go into a buffer per environment, 64 of them: the only way it takes more than one at a time."""

    def __init__(self, capacity: int) -> None:
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer

        self._batch = Batch
        self._replay = PrioritizedVectorReplayBuffer(capacity, INSERT, alpha=ALPHA, beta=BETA)

    def insert(self, items: dict[str, np.ndarray]) -> None:
        off = np.zeros(INSERT, bool)
        for start in range(0, len(items["reward"]), INSERT):
            block = {name: values[start : start + INSERT] for name, values in items.items()}
            self._replay.add(
                self._batch(
                    obs=block["obs"],
                    obs_next=block["next_obs"],
                    act=block["action"],
                    rew=block["reward"],
                    terminated=off,
                    truncated=off,
                    info=self._batch(),
                )
            )

    def sample(self) -> Any:
        return self._replay.sample(BATCH)[1]

    def update(self, ids: Any, priorities: np.ndarray) -> None:
        self._replay.update_weight(ids, priorities)

    def ids(self, slots: np.ndarray) -> np.ndarray:
        return slots

    slots = ids


class Plain:
    """The binary tree of tutorials: a Python loop per leaf, numpy arrays for the fields."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._leaves = 1 << (capacity - 1).bit_length()
        self._tree = [0.0] * (2 * self._leaves)
        self._fields: dict[str, np.ndarray] = {}
        self._at = self._size = 0
        self._largest = 1.0
        self._rng = np.random.default_rng(0)

    def insert(self, items: dict[str, np.ndarray]) -> None:
        num = len(items["reward"])
        slots = (self._at + np.arange(num)) % self._capacity
        for name, values in items.items():
            if name not in self._fields:
                self._fields[name] = np.zeros((self._capacity, *values.shape[1:]), values.dtype)
            self._fields[name][slots] = values
        self._at = (self._at + num) % self._capacity
        self._size = min(self._size + num, self._capacity)
        self.update(slots, np.full(num, self._largest))

    def sample(self) -> Any:
        tree, width = self._tree, self._tree[1] / BATCH
        slots = np.empty(BATCH, np.int64)
        for n in range(BATCH):
            mass, node = (n + self._rng.random()) * width, 1
            while node < self._leaves:
                node *= 2
                if mass >= tree[node]:
                    mass -= tree[node]
                    node += 1
            slots[n] = node - self._leaves
        self._items = {name: values[slots] for name, values in self._fields.items()}
        p = np.array([tree[self._leaves + slot] for slot in slots]) / tree[1]
        weights = (self._size * p) ** -BETA
        self._weights = weights / weights.max()
        return slots

    def update(self, ids: Any, priorities: np.ndarray) -> None:
        self._largest = max(self._largest, priorities.max())
        tree = self._tree
        for slot, leaf in zip(ids.tolist(), ((priorities + EPS) ** ALPHA).tolist(), strict=True):
            node = self._leaves + slot
            tree[node] = leaf
            while node > 1:
                node //= 2
                tree[node] = tree[2 * node] + tree[2 * node + 1]

    def ids(self, slots: np.ndarray) -> np.ndarray:
        return slots

    slots = ids


MAKERS: dict[str, type] = {
    OURS: Headway,
    "cpprb": Cpprb,
    "torchrl": Torchrl,
    "tianshou": Tianshou,
    "plain": Plain,
}
BLOCK = 16_000  # whole inserts


def serve(name: str, capacity: int) -> None:
    """The child: prefill, then one line of output per line of input (a number of cycles, or 'count')."""
    try:
        replay = MAKERS[name](capacity)
    except (ImportError, RuntimeError) as error:  # torchrl: its extension does not fit every torch
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    block = transitions(BLOCK)
    rng = np.random.default_rng(2)
    for _ in range(0, capacity, BLOCK):
        replay.insert(block)
    for start in range(0, capacity, BLOCK):
        slots = np.arange(start, min(start + BLOCK, capacity))
        replay.update(replay.ids(slots), rng.random(len(slots)) + 0.01)
    few = {key: values[:INSERT] for key, values in block.items()}
    fresh = [rng.random(BATCH) + 0.01 for _ in range(64)]

    def cycles(num: int) -> float:
        began = time.perf_counter()
        for n in range(num):
            replay.insert(few)
            replay.update(replay.sample(), fresh[n % 64])
        return (time.perf_counter() - began) / num

    print(json.dumps({"warm_up_s": cycles(5)}), flush=True)
    for line in sys.stdin:
        if line.strip() != "count":
            print(json.dumps({"s": cycles(int(line))}), flush=True)
            continue
        for start in range(0, capacity, BLOCK):
            slots = np.arange(start, min(start + BLOCK, capacity))
            replay.update(replay.ids(slots), 1.0 + slots % LEVELS)
        counts = np.zeros(LEVELS, np.int64)
        for _ in range(DRAWS):
            counts += np.bincount(replay.slots(replay.sample()) % LEVELS, minlength=LEVELS)
        print(json.dumps({"counts": counts.tolist()}), flush=True)


class Contender:
    """One implementation in its process."""

    def __init__(self, name: str, python: str, capacity: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, __file__, "--serve", name, "--capacity", str(capacity)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        answer = self._hear()
        self.missing: str | None = answer.get("missing")
        self.cycles = max(1, int(0.4 / answer.get("warm_up_s", 1.0)))  # about half a second a repeat
        self.seconds: list[float] = []

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # torchrl logs there too
                return json.loads(line)
        return {"missing": "its process ended"}

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._hear()

    def close(self) -> None:
        self._process.communicate()


def chi_square(counts: list[int]) -> float:
    """Chi-square over its degrees of freedom: about 1 if the frequencies are right."""
    share = (1.0 + np.arange(LEVELS) + EPS) ** ALPHA
    expected = share / share.sum() * sum(counts)
    return float(((np.array(counts) - expected) ** 2 / expected).sum() / (LEVELS - 1))


def compare(capacity: int, repeats: int, peer_python: str) -> None:
    contenders = []
    for name in (OURS, *PEERS):
        contender = Contender(name, sys.executable if name == OURS else peer_python, capacity)
        if contender.missing is None:
            contenders.append(contender)
        else:
            print(f"{name}: left out ({contender.missing})")
            contender.close()
    for repeat in range(repeats + 1):
        for contender in contenders:
            seconds = contender.ask(str(contender.cycles))["s"]
            if repeat:  # the first is to warm up, and to learn the pace
                contender.seconds.append(seconds)
            else:
                contender.cycles = max(1, int(0.5 / seconds))
    ours = statistics.median(contenders[0].seconds)
    for contender in contenders:
        rates = sorted(1 / s for s in contender.seconds)
        middle = statistics.median(rates)
        error = chi_square(contender.ask("count")["counts"])
        verdict = "ok" if error < 3.0 else "WRONG"  # right ones exceed it once in ten thousand
        spread = f"{rates[0]:,.0f} .. {rates[-1]:,.0f}"
        print(
            f"{capacity:>10,} {contender.name:10} {middle:>10,.0f} {spread:>18} {1 / (middle * ours):>8.1f} "
            f"{error:>9.2f} {verdict}"
        )
        contender.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--capacity", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.capacity[0])
        return
    beside = Path(__file__).parent.parent / ".bench-venv" / "bin" / "python"
    peer_python = args.peer_python or (str(beside) if beside.exists() else sys.executable)
    print(f"insert {INSERT}, sample {BATCH}, update {BATCH}; median of {args.repeats} repeats; peers: {peer_python}")
    print(f"{'capacity':>10} {'':10} {'cycles/s':>10} {'min .. max':>18} {'we are x':>8} {'chi2/dof':>9}")
    for capacity in args.capacity:
        compare(capacity, args.repeats, peer_python)


if __name__ == "__main__":
    main()
