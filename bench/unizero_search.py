"""UniZero's search: simulations per second, ours and LightZero's, in turns.

    python bench/unizero_search.py [--roots 8] [--simulations 25] [--layers 2] [--dim 64] [--device cpu]

A whole search: the root's observation encoded, every simulation through the transformer with the keys and values of its
path, the tree, the visits. Random weights; one thread of torch for both. LightZero with its own CartPole configuration
(`make bench-peers`; without, or on a GPU, ours alone).
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from figures import spread

from headway.learn.packed import pack_weights
from headway.learn.unizero.inference import searchable
from headway.learn.unizero.network import Architecture, UniZeroNetwork
from headway.search.interface import SearchSettings
from headway.search.planning import Planner

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".bench-venv-lightzero" / "bin" / "python"


class Ours:
    def __init__(self, given: argparse.Namespace) -> None:
        architecture = Architecture(observation=(4,), num_actions=2, dim=given.dim, layers=given.layers)
        network = UniZeroNetwork(architecture, seed=0)
        settings = SearchSettings(num_simulations=given.simulations, discount=0.997)
        self._planner = Planner(searchable(network, device=given.device), settings)
        self._planner.load({"network": pack_weights(network)})
        self._rng = np.random.default_rng(0)
        self._roots, self._per_search = given.roots, given.roots * given.simulations
        for _ in range(3):
            self._search()

    def _search(self) -> None:
        obs = self._rng.normal(size=(self._roots, 4)).astype(np.float32)
        found = self._planner.plan(obs, self._rng)
        assert (found.visits.sum(1) == self._per_search // self._roots).all()

    def repeat(self, seconds: float) -> float:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            self._search()
            done += 1
        return done * self._per_search / (time.perf_counter() - began)


class Peer:
    def __init__(self, given: argparse.Namespace) -> None:
        numbers = [str(number) for number in (given.roots, given.simulations, given.layers, given.dim)]
        words = [str(PEER), str(ROOT / "bench" / "peers" / "lightzero_unizero.py"), *numbers]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit("LightZero did not start")

    def repeat(self, seconds: float) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roots", type=int, default=8)
    parser.add_argument("--simulations", type=int, default=25)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    ours = Ours(given)
    peer = Peer(given) if PEER.exists() and given.device == "cpu" else None
    mine, theirs = [], []
    for _ in range(given.repeats):
        mine.append(ours.repeat(given.seconds))
        if peer is not None:
            theirs.append(peer.repeat(given.seconds))
    print(
        f"{given.roots} roots, {given.simulations} simulations, {given.layers} layers, dim {given.dim}, {given.device}"
    )
    print(f"headway    {spread(mine, 0)} simulations/s")
    if peer is not None:
        peer.close()
        print(f"LightZero  {spread(theirs, 0)} simulations/s")
        ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
        print(f"ratio      {spread(ratios, 1)}")


if __name__ == "__main__":
    main()
