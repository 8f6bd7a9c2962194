"""UniZero's search: simulations per second, ours and LightZero's, in turns.

    python bench/unizero_search.py [--roots 8] [--simulations 25] [--layers 2] [--dim 64] [--device cpu]
                                   [--results FILE]

A whole search: the root's observation encoded, every simulation through the transformer with the keys and values of its
path, the tree, the visits. Random weights; one thread of torch for both. LightZero with its own CartPole configuration
(`make bench-peers`; without, or on a GPU, ours alone). On a GPU also without graphs, every kernel launched by itself;
`--tf32` for products in TF32; the GPU's busy share is what nvidia-smi says while it searches.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from figures import Busy, spread
from runs import keep

from headway.zero.model_calls_device_calls import unpack
from headway.zero.planner_planning import Planner
from headway.zero.search_interface import Leaves, SearchSettings
from headway.zero.unizero_inference import UniZeroModel, searchable
from headway.zero.unizero_network import UniZeroArchitecture, UniZeroNetwork
from headway.zero.world_model_packed import pack_weights

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".bench-venv-lightzero" / "bin" / "python"


class Launched(UniZeroModel):
    """Without graphs."""

    @torch.inference_mode()
    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        words = [torch.from_numpy(given).to(self._device, torch.long) for given in (parents, actions)]
        return unpack(self._expand(simulation + 1, *words).cpu())


class Ours:
    def __init__(self, given: argparse.Namespace, *, is_launched: bool = False) -> None:
        architecture = UniZeroArchitecture(observation=(4,), num_actions=2, dim=given.dim, layers=given.layers)
        network = UniZeroNetwork(architecture, seed=0)
        settings = SearchSettings(num_simulations=given.simulations, discount=0.997)
        model = Launched(network, device=given.device) if is_launched else searchable(network, device=given.device)
        self._planner = Planner(model, settings)
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
    parser.add_argument("--tf32", action="store_true", help="products with 10 bits of mantissa, on a GPU")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path, help="add the figures to this file, a line each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = given.tf32
    is_gpu = given.device == "cuda"
    ours, launched = Ours(given), Ours(given, is_launched=True) if is_gpu else None
    peer = Peer(given) if PEER.exists() and not is_gpu else None
    mine, plain, theirs, busy = [], [], [], []
    for _ in range(given.repeats):
        with Busy() as watched:
            mine.append(ours.repeat(given.seconds))
        busy.append(100 * watched.share)
        if launched is not None:
            plain.append(launched.repeat(given.seconds))
        if peer is not None:
            theirs.append(peer.repeat(given.seconds))
    words = f"{given.device}{', tf32' if given.tf32 else ''}"
    print(f"{given.roots} roots, {given.simulations} simulations, {given.layers} layers, dim {given.dim}, {words}")
    print(f"headway    {spread(mine, 0)} simulations/s")
    if launched is not None:
        print(f"GPU busy   {spread(busy, 0)} %")
        print(f"launched   {spread(plain, 0)} simulations/s")
        print(f"ratio      {spread([one / other for one, other in zip(mine, plain, strict=True)], 1)}")
    if peer is not None:
        peer.close()
        print(f"LightZero  {spread(theirs, 0)} simulations/s")
        ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
        print(f"ratio      {spread(ratios, 1)}")
    sizes = {name: getattr(given, name) for name in ("roots", "simulations", "layers", "dim", "device", "tf32")}
    rates = {"headway": mine, "launched": plain, "LightZero": theirs}
    keep(given.results, **sizes, simulations_per_s={name: found for name, found in rates.items() if found})


if __name__ == "__main__":
    main()
