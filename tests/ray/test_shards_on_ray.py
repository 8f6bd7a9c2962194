"""A model in shards whose ranks are Ray actors: FSDP2 over gloo on this machine's loopback, from the run to its files.

With a GPU for each rank it would be NCCL and bfloat16: that needs two GPUs and is tested nowhere here.
"""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs headway[llm]")

from running_processes import wait_until_gone
from sharded_learners import batch, mortal, written
from waiting import patient

from headway import cli
from headway.core.protocols import Placement
from headway.ranks.rank_processes import RankProcesses
from headway.ranks.ranked_learner import RankedLearner, RankFailed
from headway.ranks.ray_ranks import RayRanks
from headway.testing.tiny_models import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]


@pytest.mark.usefixtures("no_ray")
def test_a_run_in_shards_on_ray_has_the_bits_of_one_in_processes_and_goes_on_with_one_rank(tmp_path: Path) -> None:
    tiny = {"model": save_tiny_model(tmp_path / "model"), "task": "arithmetic", "max_tokens": 6, "group_size": 3}
    tiny |= {"max_prompt_tokens": 96, "tickets_per_batch": 2, "updates": 2, "max_lead": 0, "evaluate_every": 0}
    tiny |= {"device": "cpu", "learning_rate": 1e-3, "learner_ranks": 2, "sharding": "full", "save_every": 1}
    tiny |= {"start_deadline_s": 300}
    words = [word for name, value in tiny.items() for word in (f"--{name}", str(value))] + ["--quiet"]
    prints = {}
    for runtime in ("processes", "ray"):
        runs = tmp_path / runtime
        assert cli.main(["run", "grpo", "--runs", str(runs), "--runtime", runtime, *words]) == 0
        (folder,) = runs.iterdir()
        prints[runtime] = json.loads((folder / "summary.json").read_text())["fingerprint"]
        assert list(folder.glob("checkpoints/*-v2/learner/shard-00001.safetensors"))
    assert prints["ray"] == prints["processes"]
    more = ["--updates", "3", "--learner_ranks", "1", "--runtime", "inline", "--quiet"]
    assert cli.main(["resume", str(folder), *more]) == 0
    assert json.loads((folder / "summary.json").read_text())["updates"] == 3


@pytest.mark.usefixtures("local_ray")
def test_a_killed_actor_is_one_line_and_its_state_goes_on_in_other_shards(tmp_path: Path) -> None:
    start = {"deadline_s": patient(60), "start_s": patient(120), "check_every": 1}
    actors = RankedLearner(mortal, 2, partial(RayRanks, placement=Placement(num_cpus=0)), **start)  # type: ignore[arg-type]
    peers = actors._peers
    assert isinstance(peers, RayRanks)
    pids = list(peers.pids.values())
    actors.learn(batch(0))
    soon = actors.save_beside(str(tmp_path / "state"))
    expected = actors.learn(batch(1)).metrics  # while it is being written
    saved = written(soon)
    assert len(saved.files) == 4
    deadly = batch(2)
    deadly.rollouts[0].info["deed"] = signal.SIGKILL  # type: ignore[index]
    began = time.monotonic()
    with pytest.raises(RankFailed, match=r"^rank 1 of 2 died because its worker process has died"):
        actors.learn(deadly)
    assert time.monotonic() - began < patient(30)
    actors.close()
    wait_until_gone(pids)
    processes = RankedLearner(mortal, 2, RankProcesses, **start)  # type: ignore[arg-type]
    try:
        processes.load_state_dict(saved)
        assert processes.learn(batch(1)).metrics == expected
    finally:
        processes.close()
