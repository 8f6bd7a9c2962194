"""GRPO whose engines fetch the weights from the trainer themselves: the same bits, whatever happens on the way."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import patient

pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny
from log_totals import audit

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.checkpoint_best_weights import BestWeights, kept_weights
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.run_result import RunResult
from headway.llm.grpo import GRPOConfig, stations
from headway.llm.weights.receiver_weight_link import LinkedWeights
from headway.runs.config import ConfigError
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.inline import Inline
from headway.runtimes.processes import Processes
from headway.runtimes.shared_memory_arena import SharedRef


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("weight_transport"))


def config_of(folder: Path, **values: Any) -> GRPOConfig:
    return tiny(folder, **{"updates": 6, "eval_prompts": 4, "publish_deadline_s": patient(10), **values})


def in_one_process(folder: Path, **values: Any) -> RunResult:
    config = config_of(folder, **values)
    runtime = Inline()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return runtime.run(Coordinator(stations(config), config.settings(), runtime).run())
    finally:
        torch.set_num_threads(before)


class Weighed(Processes):
    """Notes how large what the learner publishes is, where the driver sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[int] = []

    async def call(self, role: str, method: str, *args: Any, deadline_s: float) -> Any:
        answer = await super().call(role, method, *args, deadline_s=deadline_s)
        if role == "learner" and method in ("learn", "snapshot"):
            for part in answer if isinstance(answer, tuple) else (answer,):
                payload = getattr(part, "payload", None)
                if isinstance(payload, LinkedWeights | SharedRef):
                    is_lent = isinstance(payload, LinkedWeights)
                    self.published.append(len(pickle.dumps(payload)) if is_lent else payload.size)
        return answer


class Killer(MemoryRecorder):
    """Kills a collector's process when it starts on a ticket."""

    def __init__(self, runtime: Processes, ticket: int) -> None:
        super().__init__()
        self._runtime, self._ticket = runtime, ticket
        self.killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "start" and fields["k"] == self._ticket and not self.killed:
            self.killed = self._runtime.pid("collector-0")
            os.kill(self.killed, signal.SIGKILL)


def is_plain(weights: Any) -> bool:
    return all(type(tensor) is torch.Tensor for tensor in weights.values()) and bool(weights)


def test_a_run_with_direct_weights_has_the_same_bits_and_only_handles_pass_the_driver(
    folder: Path, tmp_path: Path
) -> None:
    config = config_of(folder, updates=3, runtime="processes", weight_transport="direct")
    runtime, store = Weighed(), CheckpointStore(tmp_path / "checkpoints")
    result = runtime.run(Coordinator(stations(config), config.settings(), runtime, checkpoints=store).run())
    assert fingerprint(result.weights) == fingerprint(in_one_process(folder, updates=3).weights)
    size = sum(tensor.nbytes for tensor in result.weights.values())
    assert len(runtime.published) == 4 and max(runtime.published) < 1024 < size
    assert is_plain(result.weights)
    assert all(map(is_plain, store.load().snapshots.values()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_with_direct_weights_survives_a_killed_engine_saves_plain_weights_and_goes_on(
    folder: Path, tmp_path: Path
) -> None:
    values = {"runtime": "processes", "weight_transport": "direct", "evaluate_every": 3}
    config = config_of(folder, **values, updates=4, save_every=2)
    runtime, store = Weighed(), CheckpointStore(tmp_path / "checkpoints", keep=9)
    log = Killer(runtime, ticket=7)
    best = BestWeights(store.folder)
    coordinator = Coordinator(stations(config), config.settings(), runtime, recorder=log, checkpoints=store, best=best)
    result = runtime.run(coordinator.run())

    whole = in_one_process(folder, evaluate_every=3, updates=4)
    assert log.killed and result.restarts == 1
    assert fingerprint(result.weights) == fingerprint(whole.weights)
    assert [(s.version, s.value) for s in result.scores] == [(s.version, s.value) for s in whole.scores]
    assert set(audit(log.events).learned.values()) == {1}
    assert max(runtime.published) < 1024
    assert is_plain(result.weights) and is_plain(kept_weights(store.folder, "best").weights)
    states = [store.load(path) for path in store.all()]
    assert all(is_plain(weights) for state in states for weights in state.snapshots.values())
    assert sorted(states[0].snapshots) == [1, 2]  # an older one, for tickets under way

    again = config_of(folder, **values, updates=6)
    fresh = Processes()
    resumed = fresh.run(Coordinator(stations(again), again.settings(), fresh, resume=states[0]).run())
    assert resumed.updates == 6
    assert fingerprint(resumed.weights) == fingerprint(in_one_process(folder).weights)


@pytest.mark.slow
@pytest.mark.parametrize("lead", [0, 1])
def test_direct_and_store_give_the_same_bits_on_processes(folder: Path, lead: int) -> None:
    results = {}
    for way in ("store", "direct"):
        config = config_of(folder, runtime="processes", weight_transport=way, max_lead=lead, save_every=3)
        runtime = Weighed()
        results[way] = fingerprint(runtime.run(Coordinator(stations(config), config.settings(), runtime).run()).weights)
        assert (max(runtime.published) < 1024) == (way == "direct")
    assert results["direct"] == results["store"]


@pytest.mark.slow
def test_rank_0_of_several_publishes(folder: Path) -> None:
    found = {}
    for way in ("store", "direct"):
        config = config_of(folder, runtime="processes", weight_transport=way, learner_ranks=2, updates=3)
        runtime = Weighed()
        found[way] = fingerprint(runtime.run(Coordinator(stations(config), config.settings(), runtime).run()).weights)
    assert found["direct"] == found["store"]


def test_a_recorded_run_is_replayed_without_the_link(folder: Path) -> None:
    config = config_of(folder, updates=3)
    runtime, log = Inline(), MemoryRecorder()
    result = runtime.run(Coordinator(stations(config), config.settings(), runtime, recorder=log).run())
    direct = config_of(folder, updates=3, runtime="processes", weight_transport="direct")
    done = replay(stations(direct), log.events)
    assert is_plain(done.weights) and fingerprint(done.weights) == fingerprint(result.weights)


def test_direct_needs_two_processes(folder: Path) -> None:
    line = r"weight_transport='direct' needs runtime='processes' or 'ray', received runtime='threads'"
    with pytest.raises(ConfigError, match=line):
        config_of(folder, runtime="threads", weight_transport="direct")
    with pytest.raises(ConfigError, match="weight_transport='nccl'"):
        config_of(folder, runtime="ray", weight_transport="nccl")


@pytest.mark.parametrize(
    ("values", "is_linked"),
    [
        ({"runtime": "processes"}, False),  # there all use the same GPU, which NCCL refuses
        ({"runtime": "processes", "weight_transport": "direct"}, True),
        ({"runtime": "ray", "device": "cpu"}, False),
        ({"runtime": "ray", "device": "cuda"}, True),
        ({"runtime": "ray", "device": "auto"}, True),  # decided by where the weights are
        ({"runtime": "ray", "device": "cuda", "engine_gpus": 0.5}, False),
        ({"runtime": "ray", "device": "cuda", "weight_transport": "store"}, False),
    ],
)
def test_auto_is_direct_where_both_ends_have_gpus_of_their_own(
    folder: Path, values: dict[str, Any], is_linked: bool
) -> None:
    learner: Any = stations(config_of(folder, **values)).learner
    assert (learner.func.__name__ == "_linked_learner") == is_linked
