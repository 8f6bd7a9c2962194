"""A learner over several processes: the same weights as in one, and one clear line when a rank fails."""

from __future__ import annotations

import copy
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running_processes import is_running, wait_until_gone
from scripted_learner import Toy, told
from waiting import patient

from headway.core.types import Batch, LearnReport, Rollout, Span
from headway.envs.gymnasium_vector import Continuous, Discrete, Spec
from headway.ppo.colorlines.replayed import ReplayedPPOLearner
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.segments_segment import DrawnSegments, Segment
from headway.ranks.rank import ALONE, Rank
from headway.ranks.rank_processes import RankProcesses
from headway.ranks.ranked_learner import RankedLearner, RankFailed
from headway.runs.fingerprint import fingerprint

pytestmark = pytest.mark.timeout(180)
torch.set_num_threads(1)

# -- the share of a rank ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 257])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_all_rows_in_order_and_nearly_even(count: int, size: int) -> None:
    shares = [Rank(index, size).share(count) for index in range(size)]
    assert [row for share in shares for row in range(count)[share]] == list(range(count))
    lengths = [len(range(count)[share]) for share in shares]
    assert max(lengths) - min(lengths) <= 1


def test_a_rank_alone_has_everything_and_changes_nothing() -> None:
    weight, measures = torch.ones(3, requires_grad=True), torch.tensor([4.0])
    gradient = weight.grad = torch.arange(3.0)
    assert ALONE.average([weight], measures, 1.0) is measures
    assert weight.grad is gradient
    whole = torch.arange(5.0)
    assert ALONE.spread(5, lambda mine: whole[mine]).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: Rank(2, 2), "a rank is 0 to 1 of 2, received 2"),
        (lambda: Rank(0, 1, "tpu"), "device must be cpu or cuda, received 'tpu'"),  # type: ignore[arg-type]
        (lambda: RankedLearner(Toy, 1, RankProcesses), "ranks are two or more, received 1"),
        (lambda: RankedLearner(Toy, 2, RankProcesses, check_every=0), "check_every must be > 0, received 0"),
        (lambda: RankedLearner(Toy, 2, RankProcesses, deadline_s=-1.0), "deadline_s must be > 0, received -1.0"),
        (lambda: RankedLearner(lambda rank: Toy(rank), 2, RankProcesses), "must be a function defined at module level"),
    ],
)
def test_settings_that_cannot_work_are_refused(build: Callable[[], Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        build()


# -- PPO on one rank, on two, on three ----------------------------------------------------------------

VECTOR = Spec((3,), Discrete(4))
REAL = Spec((3,), Continuous((-1.0, -2.0), (1.0, 2.0)))
PICTURE = Spec((1, 4, 4), Discrete(3))  # by autograd: the kernels know no convolutions
CASES: dict[str, tuple[Spec, dict[str, Any]]] = {
    "decoupled": (VECTOR, {"value_clip": 0.2}),
    "vtrace": (REAL, {"correction": "vtrace", "final_learning_rate": 0.0, "updates": 20}),
    "few rows a minibatch": (VECTOR, {"minibatch_size": 2, "correction": "clip", "num_epochs": 1}),
    "stops early": (VECTOR, {"target_kl": 1e-4, "learning_rate": 0.02, "num_epochs": 50}),
    "no correction": (REAL, {"correction": "none"}),
    "pictures": (PICTURE, {}),
    "replayed": (VECTOR, {"value_clip": 0.2}),
}
NUM_UPDATES = 4


def network(spec: Spec, normalise: bool) -> ActorCritic:
    return ActorCritic(spec, (16, 16), normalise=normalise, seed=3)


def fields(spec: Spec, seed: int, *, width: int) -> dict[str, Any]:
    """Observations far from mean 0 and scale 1, behaviour a little stale, some steps invalid."""
    rng, steps = np.random.default_rng(seed), 9
    actor = Actor(ActorCritic(spec, (16, 16), seed=4 + seed % 2))
    obs = rng.normal(size=(steps + 1, width, *spec.observation)).astype(np.float32)
    if spec.observation == (3,):
        obs = obs * np.array([1.0, 20.0, 0.1], np.float32) + np.float32(5.0)
    noise = actor.noise(seed, steps, width)
    pairs = [actor.act(obs[t], noise[t], None) for t in range(steps)]
    return {
        "obs": obs,
        "actions": np.stack([pair[0] for pair in pairs]),
        "log_probs": np.stack([pair[1] for pair in pairs]),
        "rewards": rng.normal(size=(steps, width)).astype(np.float32),
        "terminated": rng.random((steps, width)) < 0.1,
        "truncated": rng.random((steps, width)) < 0.1,
        "valid": rng.random((steps, width)) < 0.8,
    }


def batch(spec: Spec, number: int) -> Batch:
    rollouts = [
        Rollout(
            Segment(**fields(spec, 10 * number + part, width=width)),
            span=Span(0, 0),
            info={"episodes": [(7.0, number)]},
        )
        for part, width in enumerate((4, 3))  # seven environments: no number of ranks divides them
    ]
    return Batch(number, tuple(rollouts))


def draw(spec: Spec, number: int) -> Batch:
    """What a replay would hand out: one rollout, with weights."""
    weights = np.random.default_rng(number).random(7).astype(np.float32)
    marks = {"weights": weights, "ids": np.arange(7), "versions": np.zeros(7, int)}
    return Batch(number, (Rollout(DrawnSegments(**fields(spec, number, width=7), **marks), span=Span(0, 0)),))


class Several:
    """A PPO learner for each of the CASES, all taught at once: starting processes is what takes time here."""

    def __init__(self, rank: Rank) -> None:
        self.learners: dict[str, Any] = {}
        for name, (spec, more) in CASES.items():
            is_replayed = name == "replayed"
            settings = PPOSettings(**{"minibatch_size": 20, "num_epochs": 2, **more})
            make = partial(network, spec, normalise=not is_replayed)
            kind: Any = ReplayedPPOLearner if is_replayed else PPOLearner
            self.learners[name] = kind(make, settings, seed=5, rank=rank)

    def learn(self, number: Batch) -> LearnReport:
        reports = {}
        for name, (spec, _) in CASES.items():
            data = (draw if name == "replayed" else batch)(spec, number.version)
            reports[name] = self.learners[name].learn(data)
        return LearnReport({f"{name}: {key}": v for name, r in reports.items() for key, v in r.metrics.items()})

    def snapshot(self) -> Any:
        return {name: learner.snapshot() for name, learner in self.learners.items()}

    def state_dict(self) -> Any:
        return {name: learner.state_dict() for name, learner in self.learners.items()}

    def load_state_dict(self, state: Any) -> None:
        for name, learner in self.learners.items():
            learner.load_state_dict(state[name])


def several(rank: Rank) -> Several:
    torch.set_num_threads(1)
    return Several(rank)


def teach(learner: Any, numbers: range) -> LearnReport:
    for number in numbers:
        report: LearnReport = learner.learn(Batch(number, ()))
    return report


@pytest.fixture(scope="module")
def alone() -> tuple[Any, LearnReport]:
    learner = several(ALONE)
    report = teach(learner, range(NUM_UPDATES))
    return learner.snapshot(), report


def largest_gap(one: Any, other: Any) -> float:
    return max(float((one[key] - other[key]).abs().max()) for key in one)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_learn_what_one_learns_repeat_themselves_and_go_on_from_a_saved_state(
    size: int, alone: tuple[Any, LearnReport]
) -> None:
    weights, expected = alone
    with running(several, size, check_every=1) as learner:
        start = copy.deepcopy(learner.state_dict())
        teach(learner, range(2))
        middle = copy.deepcopy(learner.state_dict())
        report = teach(learner, range(2, NUM_UPDATES))
        end = copy.deepcopy(learner.snapshot())
        for name in CASES:
            assert largest_gap(end[name], start[name]["network"]) > 0
            assert largest_gap(end[name], weights[name]) < 1e-5, name
        assert report.metrics == pytest.approx(expected.metrics, rel=2e-3, abs=2e-5)
        for state, numbers in ((middle, range(2, NUM_UPDATES)), (start, range(NUM_UPDATES))):
            learner.load_state_dict(state)
            teach(learner, numbers)
            assert fingerprint(learner.snapshot()) == fingerprint(end)


# -- the mechanism, with a learner that does as it is told --------------------------------------------


class ToyWithReplay(Toy):
    def insert(self, batch: Batch) -> None: ...


class Stray(Toy):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.total += rank.index


class Choosy(Toy):
    def __init__(self, rank: Rank) -> None:
        if rank.index == 2:
            raise OSError("no such simulator")
        super().__init__(rank)


@contextmanager
def running(make: Callable[[Rank], Any], size: int, num_threads: int = 1, **options: Any) -> Iterator[RankedLearner]:
    learner = RankedLearner(make, size, partial(RankProcesses, num_threads=num_threads), **options)
    pids = pids_of(learner)
    try:
        yield learner
    finally:
        learner.close()
        assert not [pid for pid in pids if is_running(pid)]


def pids_of(learner: RankedLearner) -> list[int]:
    peers = learner._peers
    assert isinstance(peers, RankProcesses)
    return list(peers.pids.values())


def test_every_rank_has_the_whole_batch_as_its_own_and_may_keep_it() -> None:
    with running(Toy, 2, num_threads=3) as learner:
        for number in (signal.SIGINT, signal.SIGTERM):  # as when a whole process group is told to end
            os.kill(pids_of(learner)[0], number)
        learner.learn(told(size=100_000))
        report = learner.learn(told(size=10))
        assert learner.snapshot()["total"].item() == np.arange(100_000.0).sum() + 45
        for index in range(2):
            expected = np.arange(100_000.0).sum() + 45 + (1.0 + index) * 100_010
            assert report.metrics[str(index)] == pytest.approx(expected)
        assert report.metrics["threads"] == 1 + 3
        assert len(shared_memory()) == 2, "what says how far each rank is, open and mapped"
    assert not shared_memory(), "nothing of it is left open"


def shared_memory() -> list[str]:
    links = (Path("/proc/self/fd") / fd for fd in os.listdir("/proc/self/fd"))
    return [str(link.readlink()) for link in links if link.is_symlink() and "memfd:headway" in str(link.readlink())]


@pytest.mark.parametrize(
    ("deed", "who", "line"),
    [
        ("raises", "1 of 2", r"rank 1 of 2: KeyError: 'reward'"),
        ("exits", "1 of 2", r"rank 1 of 2 exited with code 7"),
        ("dies", "1 of 3", r"rank 1 of 3 was killed by SIGKILL"),
        ("freezes", "2 of 3", r"rank 2 of 3 gave no answer within [\d.]+ s"),
        ("strays", "1 of 2", r"rank 1 of 2: the ranks have different weights: \w{16} there, \w{16} here"),
    ],
)
def test_a_rank_that_fails_is_one_line_at_once_and_ends_all(deed: str, who: str, line: str) -> None:
    rank, size = int(who[0]), int(who[-1])
    with running(Toy, size, deadline_s=patient(2.0) if deed == "freezes" else 1000.0, check_every=1) as learner:
        learner.learn(told())
        with pytest.raises(RankFailed) as caught:
            learner.learn(told(deed, (rank,)))
        assert re.fullmatch(line, str(caught.value))
        assert ("in raises" in "".join(getattr(caught.value, "__notes__", ()))) == (deed == "raises")
        wait_until_gone(pids_of(learner))
        for use in (learner.snapshot, learner.state_dict, partial(learner.learn, told())):
            with pytest.raises(RankFailed, match=f"^{line}$"):  # half an update is no state to go on from
                use()


def test_what_rank_0_raises_stays_what_it_is_and_ends_the_others() -> None:
    with running(Toy, 2) as learner:
        with pytest.raises(KeyError, match="reward"):
            learner.learn(told("raises", (0, 1)))
        wait_until_gone(pids_of(learner))
        with pytest.raises(RankFailed, match=r"^rank 0 of 2: KeyError: 'reward'$"):
            learner.snapshot()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (Choosy, "rank 2 of 3: OSError: no such simulator"),
        (Stray, "rank 1 of 3: the ranks start with different weights"),
        (ToyWithReplay, "the ranks of a learner cannot keep a replay each"),
    ],
)
def test_ranks_that_cannot_start_say_why_and_leave_nothing(make: Callable[[Rank], Any], line: str) -> None:
    before = children()
    with pytest.raises((RankFailed, ValueError), match=line):
        RankedLearner(make, 3, RankProcesses)
    assert children() == before


def children() -> set[str]:
    return {pid for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()}


def test_two_learners_live_in_one_process_and_end_when_nobody_holds_them() -> None:
    learners = {number: RankedLearner(Toy, 2, RankProcesses) for number in (1, 2)}

    def teach_one(number: int) -> None:
        for _ in range(50 * number):
            learners[number].learn(told())

    threads = [threading.Thread(target=teach_one, args=(number,)) for number in learners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(60))
    assert [learners[number].snapshot()["total"].item() for number in (1, 2)] == [50 * 45, 100 * 45]
    pids = [pid for learner in learners.values() for pid in pids_of(learner)]
    assert all(map(is_running, pids))
    learners.clear()
    gc.collect()
    wait_until_gone(pids)


SCRIPT = """
import os, sys
sys.path[:0] = {folders!r}
from test_ranks import *
if __name__ == "__main__":
    learner = RankedLearner(Toy, 3, RankProcesses)
    print(*pids_of(learner), flush=True)
    learner.learn(told("freezes", (0,)))
"""


def test_when_the_learner_is_killed_in_the_middle_of_an_update_its_ranks_go_too(tmp_path: Path) -> None:
    script = tmp_path / "learner.py"
    script.write_text(SCRIPT.format(folders=[str(folder) for folder in Path(__file__).parents[:2]]))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
        process.kill()
    wait_until_gone(pids)
