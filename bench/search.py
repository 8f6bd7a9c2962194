"""Search: simulations per CPU second, the trees alone and with a small network.

    python bench/search.py [--repeats 5] [--seconds 0.3] [--roots 8 64 256] [--simulations 25 50] [--actions 2 4 7]
                           [--results FILE]

Trees alone: the model's answers are drawn beforehand, the same for everybody; what is measured is everything else a
search does, from the root's noise to the visits. LightZero's ctree is called as its own `MuZeroMCTSCtree.search` calls
it (answers as lists), mctx's `muzero_policy` is compiled and warmed up, and its model looks the answers up in tables.
With a network: an MLP of 64 units in torch, one thread, for us and for the ctree, whose latents are gathered as
LightZero does it.

Every implementation has a process of its own, peers with the interpreter of their own environment (`make bench-peers`);
one that is missing is named and left out. The processes take turns, one repeat each, so that whatever else the machine
does falls on all alike. In the same run every search must have visits that add up, and ours must make the same trees as
the slow search in `headway.testing`.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from runs import keep

ROOT = Path(__file__).parent.parent
DISCOUNT, BASE, INIT, FLOOR, ALPHA, NOISE = 0.997, 19652, 1.25, 0.01, 0.3, 0.25
WIDTH = 64
TABLE = 4096  # rows of answers; mctx walks through them, the others take one per simulation and root
OURS = "headway"
PEERS = {"ctree": "lightzero", "mctx": "mctx"}


class Cell(NamedTuple):
    """One figure: how much of what."""

    roots: int
    simulations: int
    actions: int
    network: bool = False


class Answers:
    """What the model says: [S + 1, B] rows drawn once from a table; the last is the root."""

    def __init__(self, cell: Cell) -> None:
        rng = np.random.default_rng(1)
        self.rewards = rng.normal(size=TABLE).astype(np.float32)
        self.values = rng.normal(size=TABLE).astype(np.float32)
        self.logits = rng.normal(size=(TABLE, cell.actions)).astype(np.float32)
        rows = rng.integers(TABLE, size=(cell.simulations + 1, cell.roots))
        self.rows = [(self.rewards[row], self.values[row], self.logits[row]) for row in rows]


class Network:
    """The same small network for everybody who has torch."""

    def __init__(self, num_actions: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.torch = torch
        self.step = torch.nn.Linear(WIDTH, WIDTH)
        self.action = torch.nn.Embedding(num_actions, WIDTH)
        self.heads = torch.nn.Linear(WIDTH, 2 + num_actions)

    def __call__(self, latents: Any, actions: Any) -> tuple[Any, Any]:
        """Latents [B, 64] after `actions` [B]; reward, value and logits [B, 2 + A]."""
        after = self.torch.relu(self.step(latents) + self.action(actions))
        return after, self.heads(after)


# -- the contenders: each makes a function that does one search and returns the visits [B, A] --------------------------


def _settings(simulations: int) -> Any:
    from headway.zero.search_package import SearchSettings

    return SearchSettings(
        num_simulations=simulations,
        discount=DISCOUNT,
        pb_c_base=BASE,
        pb_c_init=INIT,
        root_dirichlet_alpha=ALPHA,
        root_noise_weight=NOISE,
        value_norm_floor=FLOOR,
    )


def headway(cell: Cell) -> Callable[[], np.ndarray]:
    from headway.zero.search_package import Leaves, Tree, search

    answers, rng = Answers(cell), np.random.default_rng(0)
    leaves = [Leaves(*row) for row in answers.rows]
    settings = _settings(cell.simulations)
    tree = Tree(cell.roots, cell.simulations, cell.actions)

    class Looked:
        def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
            return leaves[simulation]

    class Computed:
        def __init__(self) -> None:
            self.network = Network(cell.actions)
            torch = self.network.torch
            self.latents = torch.zeros(cell.simulations + 1, cell.roots, WIDTH)
            self.rows = torch.arange(cell.roots)

        def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
            torch = self.network.torch
            with torch.inference_mode():
                above = self.latents[torch.from_numpy(parents), self.rows]
                self.latents[simulation + 1], said = self.network(above, torch.from_numpy(actions))
            said = said.numpy()
            return Leaves(said[:, 0], said[:, 1], said[:, 2:])

    model = Computed() if cell.network else Looked()
    return lambda: search(model, leaves[-1], settings, rng, tree=tree).visits


def ctree(cell: Cell) -> Callable[[], np.ndarray]:
    from lzero.mcts.ctree.ctree_muzero import mz_tree

    answers = Answers(cell)
    everything = [list(range(cell.actions)) for _ in range(cell.roots)]
    nobody = [-1] * cell.roots  # one player
    network = Network(cell.actions) if cell.network else None
    root_latents = np.zeros((cell.roots, WIDTH), np.float32)

    def infer(latents: list[np.ndarray], actions: list[int]) -> tuple[np.ndarray, ...]:
        assert network is not None
        torch = network.torch
        states = torch.from_numpy(np.asarray(latents)).to("cpu")
        taken = torch.from_numpy(np.asarray(actions)).to("cpu").long()
        after, said = network(states, taken)
        said = said.detach().cpu().numpy()
        return after.detach().cpu().numpy(), said[:, 0], said[:, 1], said[:, 2:]

    def search() -> np.ndarray:
        roots = mz_tree.Roots(cell.roots, everything)
        noises = [np.random.dirichlet([ALPHA] * cell.actions).astype(np.float32).tolist() for _ in range(cell.roots)]
        rewards, _, logits = answers.rows[-1]
        roots.prepare(NOISE, noises, rewards.tolist(), logits.tolist(), nobody)
        seen = [root_latents]
        stats = mz_tree.MinMaxStatsList(cell.roots)
        stats.set_delta(FLOOR)
        for simulation in range(cell.simulations):
            results = mz_tree.ResultsWrapper(num=cell.roots)
            at, places, actions, turns = mz_tree.batch_traverse(
                roots, BASE, INIT, DISCOUNT, stats, results, copy.deepcopy(nobody)
            )
            if network is None:
                rewards, values, logits = answers.rows[simulation]
            else:
                latents = [seen[node][place] for node, place in zip(at, places, strict=True)]
                with network.torch.no_grad():
                    after, rewards, values, logits = infer(latents, actions)
                seen.append(after)
            said = rewards.reshape(-1).tolist(), values.reshape(-1).tolist(), logits.tolist()
            mz_tree.batch_backpropagate(simulation + 1, DISCOUNT, *said, stats, results, turns)
        visits = np.array(roots.get_distributions())
        roots.get_values()
        return visits

    return search


def mctx(cell: Cell) -> Callable[[], np.ndarray]:
    import jax
    import jax.numpy as jnp
    from mctx import RecurrentFnOutput, RootFnOutput, muzero_policy

    answers = Answers(cell)
    rewards, values, logits = (jnp.asarray(table) for table in (answers.rewards, answers.values, answers.logits))
    _, root_values, root_logits = (jnp.asarray(row) for row in answers.rows[-1])
    discount = jnp.full(cell.roots, DISCOUNT)

    def step(_: Any, __: Any, actions: Any, at: Any) -> tuple[Any, Any]:
        after = (at * 31 + actions + 1) % TABLE  # another row for every node
        said = RecurrentFnOutput(
            reward=rewards[after], discount=discount, prior_logits=logits[after], value=values[after]
        )
        return said, after

    @jax.jit
    def policy(key: Any) -> Any:
        root = RootFnOutput(prior_logits=root_logits, value=root_values, embedding=jnp.arange(cell.roots))
        how: dict[str, Any] = {"dirichlet_fraction": NOISE, "dirichlet_alpha": ALPHA, "pb_c_init": INIT}
        return muzero_policy(None, key, root, step, cell.simulations, pb_c_base=BASE, **how).action_weights

    keys = itertools.cycle(np.asarray(jax.random.split(jax.random.PRNGKey(0), 1000)))
    return lambda: np.asarray(policy(next(keys))) * cell.simulations


MAKERS: dict[str, Callable[[Cell], Callable[[], np.ndarray]]] = {OURS: headway, "ctree": ctree, "mctx": mctx}


def serve(name: str) -> None:
    """The child: one line of output per line of input, a cell and for how long to search."""
    try:
        MAKERS[name](Cell(2, 2, 2))()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps({}), flush=True)
    made: dict[Cell, Callable[[], np.ndarray]] = {}
    for line in sys.stdin:
        what = json.loads(line)
        cell, seconds = Cell(*what["cell"]), what["seconds"]
        if cell not in made:
            made[cell] = MAKERS[name](cell)
            made[cell]()
        visits = np.asarray(made[cell]())
        adds_up = visits.shape == (cell.roots, cell.actions) and np.allclose(visits.sum(axis=1), cell.simulations)
        num, began = 0, time.process_time()
        while (took := time.process_time() - began) < seconds:
            made[cell]()
            num += 1
        rate = num * cell.roots * cell.simulations / took
        print(json.dumps({"rate": rate, "adds_up": bool(adds_up)}), flush=True)


class Contender:
    """One implementation in its process."""

    def __init__(self, name: str) -> None:
        self.name = name
        python = Path(sys.executable) if name == OURS else ROOT / f".bench-venv-{PEERS[name]}" / "bin" / "python"
        self.missing: str | None = f"no {python}; make bench-peers"
        if not python.exists():
            return
        one_thread = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        self._process = subprocess.Popen(
            [str(python), __file__, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "XLA_FLAGS": one_thread, "JAX_PLATFORMS": "cpu"},
        )
        self.missing = self._hear().get("missing")

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        return {"missing": "its process ended"}

    def search(self, cell: Cell, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"cell": cell, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def close(self) -> None:
        self._process.communicate()


def same_as_slow() -> str:
    """Ours against the slow search, on the answers of the benchmark."""
    from headway.zero.search_package import Leaves, search

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from slow_search import slow_search

    num_same = num = 0
    for actions in (2, 4, 7):
        cell = Cell(8, 50, actions)
        leaves = [Leaves(*row) for row in Answers(cell).rows]

        class Looked:
            def expand(self, simulation: int, parents: np.ndarray, taken: np.ndarray) -> Leaves:
                return leaves[simulation]  # noqa: B023  (used up before the next round)

        settings = _settings(cell.simulations)
        fast, slow = (one(Looked(), leaves[-1], settings, np.random.default_rng(3)) for one in (search, slow_search))
        num_same += int((fast.visits == slow.visits).all(axis=1).sum())
        num += cell.roots
    return f"{num_same} of {num} roots have the visits of the slow search" + ("" if num_same == num else "  WRONG")


def measure(cells: list[Cell], contenders: list[Contender], repeats: int, seconds: float, results: Path | None) -> None:
    names = [contender.name for contender in contenders]
    print(f"{'roots':>6} {'sims':>5} {'actions':>7}" + "".join(f"{name:>34}" for name in names) + "   we are x")
    for cell in cells:
        rates: dict[str, list[float]] = {name: [] for name in names}
        wrong = set()
        for repeat in range(repeats + 1):
            for contender in contenders:
                answer = contender.search(cell, seconds if repeat else 0.02)
                if not answer.get("adds_up"):
                    wrong.add(contender.name)
                if repeat:  # the first is to warm up
                    rates[contender.name].append(answer.get("rate", float("nan")))
        middle = {name: statistics.median(values) for name, values in rates.items()}
        row = f"{cell.roots:>6} {cell.simulations:>5} {cell.actions:>7}"
        for name in names:
            spread = f"({min(rates[name]):,.0f}..{max(rates[name]):,.0f})"
            row += f"{middle[name]:>12,.0f} {spread:>21}"
        row += "".join(f"{middle[OURS] / middle[name]:>8.1f} {name}" for name in names if name != OURS)
        print(row + (f"  WRONG: {', '.join(sorted(wrong))}" if wrong else ""), flush=True)
        keep(results, **cell._asdict(), simulations_per_cpu_s=rates, wrong=sorted(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--roots", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--simulations", type=int, nargs="+", default=[25, 50])
    parser.add_argument("--actions", type=int, nargs="+", default=[2, 4, 7])
    parser.add_argument("--results", type=Path, help="add the figures to this file, a line each")
    parser.add_argument("--serve", choices=MAKERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    print(same_as_slow())
    contenders = []
    for name in (OURS, *PEERS):
        contender = Contender(name)
        if contender.missing is None:
            contenders.append(contender)
        else:
            print(f"{name}: left out ({contender.missing})")
    grid = [(b, s, a) for a in args.actions for b in args.roots for s in args.simulations]
    print(f"simulations per CPU second, median (range) of {args.repeats} repeats; the trees alone")
    measure([Cell(*sizes) for sizes in grid], contenders, args.repeats, args.seconds, args.results)
    print("with a network of 64 units in torch, one thread")
    with_network = [contender for contender in contenders if contender.name != "mctx"]
    measure([Cell(b, s, 4, True) for b, s, a in grid if a == 4], with_network, args.repeats, args.seconds, args.results)
    for contender in contenders:
        contender.close()


if __name__ == "__main__":
    main()
