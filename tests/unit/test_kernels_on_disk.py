"""Compiled kernels are kept on disk: one that has just been compiled says the same bits as one that was read."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from waiting import patient

torch = pytest.importorskip("torch")

from test_mlp_step import LOSSES, example  # noqa: E402
from test_mlp_step import network as actor_critic  # noqa: E402
from test_muzero import SMALL  # noqa: E402
from test_muzero import a_network as muzero_network  # noqa: E402
from test_unizero import a_network as unizero_network  # noqa: E402

from headway.ppo.mlp_kernels import advantage_moments  # noqa: E402
from headway.ppo.mlp_step import MLPStep  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.zero.muzero_inference import VectorModel  # noqa: E402
from headway.zero.planner_planning import SearchableModel  # noqa: E402
from headway.zero.unizero_inference import CompiledModel  # noqa: E402

SIZES = (10, 33, 64)
"""Widths of layers: fewer than a vector of the processor, uneven, and several whole ones."""


def searched(model: SearchableModel, rows: int) -> list[np.ndarray]:
    """What a model says of roots and of eight nodes below them."""
    rng = np.random.default_rng(rows)
    said = [*model.begin(rng.normal(size=(rows, 4)).astype(np.float32), 9)[:3]]
    said = [array.copy() for array in said]
    for simulation in range(8):
        parents = rng.integers(simulation + 1, size=rows).astype(np.int32)
        said += [a.copy() for a in model.expand(simulation, parents, rng.integers(3, size=rows).astype(np.int32))[:3]]
    return said


def muzero() -> list[np.ndarray]:
    nets = [muzero_network(replace(SMALL, latent=size, hidden=size)) for size in SIZES]
    return [said for net in nets for said in searched(VectorModel(net), rows=5)]  # type: ignore[arg-type]


def unizero() -> list[np.ndarray]:
    nets = [unizero_network(dim=size) for size in (16, 36, 64)]
    return [said for net in nets for said in searched(CompiledModel(net), rows=5)]


def ppo() -> list[np.ndarray]:
    said: list[np.ndarray] = []
    for size in SIZES:
        for action in ("many", "real"):
            step = MLPStep(net := actor_critic(action, (size, size), normalise=True))
            obs, actions, masks, columns = example(net, 300, seed=1)
            part = np.random.default_rng(0).permutation(300)
            rows, moments = step.rows(obs, actions, masks), advantage_moments(columns, part)
            said.append(step.gradient_of(rows, columns, part, moments, LOSSES["everything"]))
            said += [step.gradient.copy(), step.values(obs), step.log_probs(rows, slice(0, 300))]
    return said


KERNELS = {"muzero": muzero, "unizero": unizero, "ppo": ppo}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_say_the_same_bits_when_they_are_compiled_and_when_they_are_read(name: str, tmp_path: Path) -> None:
    """A run on a machine that has never seen the kernels is one with all others."""
    tests, environment = Path(__file__).parent, {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent), *sys.path])

    def said() -> str:
        command = [sys.executable, __file__, name]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=patient(100), check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    compiled, kept = said(), list(tmp_path.rglob("*.nbc"))
    assert kept, "nothing was compiled"
    times = {path: path.stat().st_mtime_ns for path in kept}
    read = said()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == times, "it was compiled again"
    assert read == compiled


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*(fingerprint(array) for array in KERNELS[sys.argv[1]]()))
