"""Whoever is ready first acts, and the segments are those of lock-step, bit for bit."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from random_walk_envs import ACTIONS, Broken, Hanging, Mortal, Unpicklable, Wanderer
from running_processes import is_running, wait_until_gone
from waiting import patient, wait_until

from headway.coordinator.role_calls import RunFailed
from headway.core.protocols import Stateful
from headway.core.types import Rollout, Snapshot, Ticket
from headway.envs.gymnasium_vector import Continuous, Discrete, Spec, describe_spaces
from headway.envs.gymnasium_worker import EnvStepper
from headway.envs.gymnasium_workers import EnvironmentFailed, EnvWorkers
from headway.envs.gymnasium_workers_gymnasium_rows import EnvRows, EnvShape
from headway.ppo.first_ready import (
    EnvTurns,
    FirstReadyCollector,
    ResumableFirstReadyCollector,
    first_ready_collector,
)
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.recipe_ppo import PPOConfig, stations
from headway.ppo.segments import SegmentCollector
from headway.replay.records import arrays_of
from headway.runs.config import ConfigError, read_values
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch

torch.set_num_threads(1)  # two tests on two cores would only wait for each other


class InTorch(ActorCritic):
    """Nobody compiles a subclass: torch computes it."""


def policy(spec: Any) -> Actor:
    return Actor(ActorCritic(spec, (16,)))


def policy_in_torch(spec: Any) -> Actor:
    return Actor(InTorch(spec, (16,)))


def weights_for(env: gym.Env[Any, Any], seed: int = 0) -> Any:
    network = ActorCritic(describe_spaces(env.observation_space, env.action_space), (16,), seed=seed)
    with torch.no_grad():
        network.head.weight.mul_(100)  # of consequence
    return network.state_dict()


def lock_step(
    make_env: Callable[[], Any], num_envs: int, steps: int, seed: int, make_policy: Callable[[Any], Actor] = policy
) -> SegmentCollector:
    copies = [make_env] * num_envs
    return SegmentCollector(lambda: gym.vector.SyncVectorEnv(copies), make_policy, steps=steps, seed=seed)


def collect(collector: Any, index: int, weights: Any, version: int = 0) -> Rollout:
    rollout: Rollout = collector.collect(Ticket(index, 100 + index), Snapshot(version, weights))
    return rollout


def assert_same(one: Rollout, other: Rollout) -> None:
    ours, theirs = arrays_of(one.payload), arrays_of(other.payload)
    assert list(ours) == list(theirs)
    for name, values in ours.items():
        assert values.dtype == theirs[name].dtype
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)
    assert (one.steps, one.info) == (other.steps, other.info)


class OutOfOrder:
    """Environments in this process that arrive in an order of `choose`; rows under way hold rubbish."""

    def __init__(
        self, make_env: Callable[[], Any], num_envs: int, choose: Callable[[Sequence[int]], Sequence[int]]
    ) -> None:
        one = make_env()
        self.shape = EnvShape(num_envs, one.observation_space, one.action_space)
        self.rows, self._there = EnvRows(self.shape), EnvRows(self.shape)
        self._steppers = [EnvStepper(index, make_env, self.shape, self._there) for index in range(num_envs)]
        self._choose = choose
        self._under_way: list[int] = []
        self.is_closed = False

    def reset(self, seed: int) -> None:
        for index, stepper in enumerate(self._steppers):
            stepper.reset(seed)
            self._under_way.append(index)

    def step(self, indices: np.ndarray, actions: np.ndarray) -> None:
        for index, action in zip(indices.tolist(), actions, strict=True):
            assert index not in self._under_way
            self._there.actions[index] = action
            self._steppers[index].step()
            self.rows.obs[index], self.rows.rewards[index] = np.nan, np.nan
            self.rows.terminated[index] = self.rows.truncated[index] = True
            self._under_way.append(index)

    def wait(self) -> Sequence[int]:
        assert self._under_way, "nobody is under way: this would wait for ever"
        arrived = self._choose(self._under_way)
        for index in arrived:
            self._under_way.remove(index)
            for name in self.shape.fields():
                getattr(self.rows, name)[index] = getattr(self._there, name)[index]
        return arrived

    def states(self) -> list[bytes]:
        return [stepper.state() for stepper in self._steppers]

    def load_states(self, states: Sequence[bytes]) -> None:
        for stepper, state in zip(self._steppers, states, strict=True):
            stepper.load_state(state)

    def close(self) -> None:
        self.is_closed = True


def by_chance(seed: int) -> Callable[[Sequence[int]], Sequence[int]]:
    chance = random.Random(seed)
    return lambda under_way: chance.sample(list(under_way), chance.randint(1, len(under_way)))


# -- the same bits as lock-step ---------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(sorted(ACTIONS)),
    make_policy=st.sampled_from([policy, policy_in_torch]),
    num_envs=st.integers(1, 6),
    steps=st.integers(1, 12),
    seed=st.integers(0, 2**31 - 100),
    order=st.integers(0, 2**32),
    data=st.data(),
)
def test_the_order_of_arrival_does_not_change_a_bit(
    kind: str,
    make_policy: Callable[[Any], Actor],
    num_envs: int,
    steps: int,
    seed: int,
    order: int,
    data: st.DataObject,
) -> None:
    min_ready = data.draw(st.integers(1, num_envs))
    make_env = partial(Wanderer, kind)
    one = FirstReadyCollector(
        lambda: OutOfOrder(make_env, num_envs, by_chance(order)),
        make_policy,
        steps=steps,
        seed=seed,
        min_ready=min_ready,
    )
    other = lock_step(make_env, num_envs, steps, seed, make_policy)
    for index in range(3):
        weights = weights_for(make_env(), seed=index)
        assert_same(collect(one, index, weights, index), collect(other, index, weights, index))


@pytest.mark.parametrize("network", [ActorCritic, InTorch])
@pytest.mark.parametrize("shape", [(3,), (17,), (376,), (3, 8, 8)], ids=str)
@pytest.mark.parametrize("num_envs", [1, 2, 3, 7, 16, 33, 100])
def test_a_row_gets_the_same_bits_whoever_stands_beside_it(
    network: type[ActorCritic], shape: tuple[int, ...], num_envs: int
) -> None:
    """What first ready rests on: in a batch of one size a row depends on nothing but itself."""
    chance = np.random.default_rng(num_envs)
    for action in (Discrete(5), Continuous((-1.0,) * 3, (1.0,) * 3)):
        actor = Actor(network(Spec(shape, action), (64, 64), seed=1))
        obs, noise = chance.standard_normal((num_envs, *shape), np.float32), actor.noise(3, 1, num_envs)[0]
        actions, log_probs = actor.act(obs, noise, None)
        for strangers in (chance.standard_normal(obs.shape, np.float32), np.nan, 1e-40):
            rows = chance.random(num_envs) < 0.5
            mixed, other_noise = obs.copy(), noise.copy()
            mixed[~rows], other_noise[~rows] = np.broadcast_to(strangers, obs.shape)[~rows], 0.3
            again, log_probs_again = actor.act(mixed, other_noise, None)
            np.testing.assert_array_equal(again[rows], actions[rows])
            np.testing.assert_array_equal(log_probs_again[rows], log_probs[rows])


@pytest.mark.parametrize("kind", ["masked", "continuous"])
@pytest.mark.parametrize(("num_workers", "min_ready"), [(5, 1), (2, 3)])
def test_real_processes_collect_what_lock_step_does(kind: str, num_workers: int, min_ready: int) -> None:
    make_env = partial(Wanderer, kind, slow_s=0.002)
    one = first_ready_collector(
        make_env, policy, num_envs=5, steps=20, seed=3, num_workers=num_workers, min_ready=min_ready
    )
    other = lock_step(partial(Wanderer, kind, slow_s=1e-9), 5, 20, 3)
    for index in range(2):
        weights = weights_for(make_env(), seed=index)
        assert_same(collect(one, index, weights, index), collect(other, index, weights, index))
    one.close()


# -- who acts when ----------------------------------------------------------------------------------


def test_a_straggler_does_not_hold_the_others() -> None:
    """Environment 0 arrives only when nobody else is under way: the others have made all their steps by then."""
    make_env, seen = partial(Wanderer), []

    def others_first(under_way: Sequence[int]) -> Sequence[int]:
        chosen = [index for index in under_way if index] or [0]
        seen.append(chosen)
        return chosen

    collector = FirstReadyCollector(lambda: OutOfOrder(make_env, 4, others_first), policy, steps=6, seed=0)
    seen.clear()
    collect(collector, 0, weights_for(make_env()))
    assert seen == [[1, 2, 3]] * 6 + [[0]] * 6


@pytest.mark.parametrize("min_ready", [1, 2, 3, 4])
def test_the_policy_acts_once_enough_are_ready(min_ready: int) -> None:
    """One at a time arrives, the oldest first: so the policy acts for exactly `min_ready`, at the end for fewer."""
    make_env, calls = partial(Wanderer), []

    class Counting(Actor):
        def act(self, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None) -> Any:
            calls.append(len(obs))
            return super().act(obs, noise, mask)

    collector = FirstReadyCollector(
        lambda: OutOfOrder(make_env, 4, lambda under_way: under_way[:1]),
        lambda spec: Counting(ActorCritic(spec, (16,))),
        steps=12,
        seed=0,
        min_ready=min_ready,
    )
    collect(collector, 0, weights_for(make_env()))
    assert set(calls) == {4}  # always the whole batch
    fewest = {1: 45, 2: 22, 3: 15, 4: 12}  # the first call is for all four, the rest for `min_ready` of 44 steps
    assert fewest[min_ready] <= len(calls) <= fewest[min_ready] + min_ready


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(1, 10), st.data())
def test_there_is_always_somebody_to_act_for_or_to_wait_for(num_envs: int, steps: int, data: st.DataObject) -> None:
    min_ready = data.draw(st.integers(1, num_envs))
    choose = by_chance(data.draw(st.integers(0, 2**32)))
    turns, under_way = EnvTurns(num_envs, steps, min_ready), set()
    while not turns.are_over:
        if turns.may_act:
            ready = turns.act()
            left = int((turns.made < steps).sum())
            assert len(ready) >= min(min_ready, left)
            assert not under_way & set(ready.tolist())
            under_way |= set(ready.tolist())
        assert under_way
        arrived = choose(sorted(under_way))
        under_way -= set(arrived)
        turns.arrive(np.array(arrived))
    assert not under_way
    assert (turns.made == steps).all()


class Numbers(gym.Env[Any, Any]):
    """Shows as many zeros as `size` says, whatever its space says."""

    def __init__(self, size: int) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (size,)), spaces.Discrete(2)
        self.size = size

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(self.size, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(self.size, np.float32), 0.0, False, False, {}


# -- what goes wrong --------------------------------------------------------------------------------


def start(flaw: str = "", *, kind: str = "discrete", **more: Any) -> FirstReadyCollector:
    return first_ready_collector(partial(Wanderer, kind, flaw), policy, num_envs=3, steps=6, seed=0, **more)


@pytest.mark.parametrize(
    ("flaw", "kind", "message"),
    [
        ("nan", "discrete", r"^observation of environment 0 is not finite at step \d of ticket 0$"),
        ("empty mask", "masked", r"^environment \d has a mask with no legal action$"),
        ("raises", "discrete", r"^environment \d raised ConnectionError: the simulator hung up"),
        ("narrow", "discrete", r"received an observation of shape \(3,\); the observation space says \(5,\)"),
    ],
)
def test_a_flaw_is_one_line_that_names_the_environment(flaw: str, kind: str, message: str) -> None:
    collector = start(flaw, kind=kind)
    assert isinstance(collector._envs, EnvWorkers)
    pids = collector._envs.pids
    with pytest.raises((ValueError, EnvironmentFailed), match=message):
        collect(collector, 0, weights_for(Wanderer(kind)))
    assert not any(is_running(pid) for pid in pids)  # nothing of a failed attempt is used again


def test_an_observation_that_became_a_single_number_is_not_stretched() -> None:
    env = Numbers(3)
    shape = EnvShape(1, env.observation_space, env.action_space)
    rows = EnvRows(shape)
    stepper = EnvStepper(0, lambda: env, shape, rows)
    stepper.reset(0)
    np.testing.assert_array_equal(rows.obs, [[0, 0, 0]])
    env.size = 1
    with pytest.raises(ValueError, match=r"received an observation of shape \(1,\); the observation space says \(3,\)"):
        stepper.step()
    np.testing.assert_array_equal(rows.obs, [[0, 0, 0]])


def test_in_lock_step_an_observation_of_another_shape_names_its_environment() -> None:
    collector = lock_step(partial(Wanderer, "discrete", "narrow"), num_envs=3, steps=6, seed=0)
    with pytest.raises(ValueError, match=r"environment \d: received an observation of shape \(3,\); .* says \(5,\)"):
        collect(collector, 0, weights_for(Wanderer()))


def test_a_mask_of_another_size_is_refused_when_the_environment_starts() -> None:
    with pytest.raises(
        EnvironmentFailed, match=r"^environment \d raised ValueError: .* each of 5 actions, received \(3,\)"
    ):
        start("short mask", kind="masked")


def test_an_environment_that_cannot_be_built_in_a_worker_is_named() -> None:
    one = Wanderer()
    shape = EnvShape(2, one.observation_space, one.action_space)
    with pytest.raises(EnvironmentFailed, match=r"^environment \d raised OSError: no display"):
        EnvWorkers(Broken, shape, 2)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"min_ready must be from 1 to 3 environments, received 4"):
        start(min_ready=4)
    with pytest.raises(ValueError, match=r"num_workers must be from 0 to 3 environments, received 4"):
        start(num_workers=4)
    with pytest.raises(ValueError, match=r"at least one step, received 0"):
        first_ready_collector(Wanderer, policy, num_envs=3, steps=0, seed=0)


def test_a_worker_that_dies_is_named_and_the_next_attempt_goes_on_bit_for_bit() -> None:
    weights = weights_for(Wanderer())
    collector, undisturbed = start(num_workers=2), lock_step(Wanderer, 3, 6, 0)
    assert isinstance(collector, ResumableFirstReadyCollector)
    assert_same(collect(collector, 0, weights), collect(undisturbed, 0, weights))
    state = collector.state_dict()
    assert isinstance(collector._envs, EnvWorkers)
    pid = collector._envs.pids[1]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailed, match=rf"^environment 1 is lost: process {pid} was killed by SIGKILL$"):
        collect(collector, 1, weights)
    collector.load_state_dict(state)
    assert_same(collect(collector, 1, weights), collect(undisturbed, 1, weights))


def test_an_environment_that_hangs_is_named_after_its_deadline() -> None:
    limit_s = patient(0.5)
    collector = first_ready_collector(Hanging, policy, num_envs=3, steps=4, seed=0, num_workers=2, step_s=limit_s)
    assert isinstance(collector._envs, EnvWorkers)
    pids = collector._envs.pids
    with pytest.raises(EnvironmentFailed, match=rf"^environment 1 made no step within {limit_s:g} s \(process \d+\)$"):
        collect(collector, 0, weights_for(Wanderer()))
    assert not any(is_running(pid) for pid in pids)


def test_environments_that_wait_for_another_in_their_worker_are_not_late() -> None:
    """Six in one process, each 0.3 s a step: the last of them waits 1.8 s, and its own step is within 1 s."""
    collector = first_ready_collector(
        partial(Wanderer, slow_s=0.1), policy, num_envs=6, steps=2, seed=0, num_workers=1, step_s=patient(1.0)
    )
    assert collect(collector, 0, weights_for(Wanderer())).payload.obs.shape == (3, 6, 5)
    collector.close()


# -- what is left behind ----------------------------------------------------------------------------


def test_workers_end_with_their_collector() -> None:
    collector = start()
    assert isinstance(collector._envs, EnvWorkers)
    pids = collector._envs.pids
    assert len(pids) == 3 and all(is_running(pid) for pid in pids)
    del collector
    gc.collect()
    assert not any(is_running(pid) for pid in pids)


PARENT = """
import os, sys, time, torch
from headway.ppo.first_ready import first_ready_collector
from headway.core.types import Snapshot, Ticket
from random_walk_envs import Hanging, Wanderer
from test_first_ready import policy, weights_for

collector = first_ready_collector(Hanging, policy, num_envs=3, steps=4, seed=0)
fork = os.fork()
if fork == 0:
    time.sleep(600)
    os._exit(0)
print(fork, *collector._envs.pids, flush=True)
collector.collect(Ticket(0, 0), Snapshot(0, weights_for(Wanderer())))
"""


def test_no_worker_outlives_a_collector_that_is_killed() -> None:
    """Not one that hangs, and not while a fork of the collector's process lives on."""
    path = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert parent.stdout is not None
    fork, *pids = map(int, parent.stdout.readline().split())
    try:
        assert len(pids) == 3
        wait_until_busy(pids[1])
        parent.kill()
        parent.wait()
        wait_until_gone(pids)
        assert is_running(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        parent.stdout.close()


def wait_until_busy(pid: int, cpu_s: float = 2.0) -> None:
    """More than starting takes: it hangs in a loop."""

    def is_busy() -> bool:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > cpu_s

    wait_until(is_busy, 60)


# -- going on ---------------------------------------------------------------------------------------


def test_a_resumed_collector_goes_on_bit_for_bit() -> None:
    weights = weights_for(Wanderer("masked"))
    make_env = partial(Wanderer, "masked")
    first = start(kind="masked")
    assert isinstance(first, ResumableFirstReadyCollector) and isinstance(first, Stateful)
    collect(first, 0, weights)
    state = first.state_dict()
    second = first_ready_collector(make_env, policy, num_envs=3, steps=6, seed=99, num_workers=2)
    assert isinstance(second, ResumableFirstReadyCollector)
    second.load_state_dict(state)
    for index in (1, 2):
        assert_same(collect(first, index, weights), collect(second, index, weights))


def test_environments_that_cannot_be_pickled_still_collect_and_begin_anew_after_a_failure() -> None:
    weights = weights_for(Wanderer())
    collector = first_ready_collector(Unpicklable, policy, num_envs=2, steps=3, seed=0, num_workers=1)
    assert type(collector) is FirstReadyCollector and not isinstance(collector, Stateful)
    first = collect(collector, 0, weights)
    assert isinstance(collector._envs, EnvWorkers)
    os.kill(collector._envs.pids[0], signal.SIGKILL)
    with pytest.raises(EnvironmentFailed, match="environment"):
        collect(collector, 0, weights)
    assert_same(collect(collector, 0, weights), first)


# -- in a run ---------------------------------------------------------------------------------------


def tiny(**more: Any) -> PPOConfig:
    base: dict[str, Any] = {"env": "Acrobot-v1", "updates": 4, "num_envs": 3, "segment_steps": 16, "evaluate_every": 0}
    return PPOConfig(**{**base, "env_backend": "gymnasium", **more})


def run(config: PPOConfig) -> Any:
    return launch(stations(config), config.settings(), runtime=config.runtime)


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_a_run_gives_the_same_bits_as_with_a_vector_on_every_runtime(runtime: str) -> None:
    vector = run(tiny(max_lead=2, collectors=2))
    apart = run(tiny(max_lead=2, collectors=2, runtime=runtime, stepping="first_ready", env_workers=2, min_ready=2))
    assert fingerprint(apart.weights) == fingerprint(vector.weights)


def test_a_resumed_run_gives_the_bits_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    apart = {"stepping": "first_ready", "max_lead": 0}
    straight = run(tiny(**apart, env_workers=1))
    half, whole = tiny(**apart, env_workers=3, updates=2), tiny(**apart, env_workers=2)
    launch(stations(half), half.settings(), folder=RunFolder(tmp_path))
    resumed = launch(stations(whole), whole.settings(), folder=RunFolder(tmp_path), resume=True)
    assert resumed.updates == 4
    assert fingerprint(resumed.weights) == fingerprint(straight.weights)


def test_the_settings_of_first_ready_reach_the_collector() -> None:
    limit_s = patient(0.5)
    settings = {"env_workers": 2, "min_ready": 3, "step_deadline_s": limit_s, "start_deadline_s": 100.0}
    collector = stations(tiny(stepping="first_ready", **settings)).collector(0)
    assert isinstance(collector, ResumableFirstReadyCollector) and isinstance(collector._envs, EnvWorkers)
    assert len(collector._envs.pids) == 2
    assert collector._min_ready == 3
    os.kill(collector._envs.pids[1], signal.SIGSTOP)
    weights = weights_for(gym.make("Acrobot-v1"))
    collector._policy = policy(collector._spec)
    with pytest.raises(EnvironmentFailed, match=rf"^environment 1 made no step within {limit_s:g} s"):
        collect(collector, 0, weights)
    collector = stations(tiny(stepping="first_ready")).collector(0)
    assert isinstance(collector, ResumableFirstReadyCollector) and isinstance(collector._envs, EnvWorkers)
    assert len(collector._envs.pids) == 3


def test_a_setting_of_first_ready_is_refused_where_it_would_do_nothing() -> None:
    for name, value in {"env_workers": 2, "min_ready": 2, "step_deadline_s": 5.0}.items():
        with pytest.raises(ConfigError, match=rf"{name}={value} needs stepping='first_ready'"):
            read_values(PPOConfig, {name: value})
        config = read_values(PPOConfig, {name: value, "stepping": "first_ready"})
        assert getattr(config, name) == value
    for name in ("env_workers", "min_ready"):
        with pytest.raises(ConfigError, match=rf"{name}=5 is more than there are copies \(num_envs=4\)"):
            read_values(PPOConfig, {name: 5, "num_envs": 4, "stepping": "first_ready"})


@pytest.fixture
def mortal(tmp_path: Path) -> Any:
    grave = tmp_path / "grave"
    gym.register("test/Mortal-v0", Mortal, kwargs={"grave": str(grave)}, disable_env_checker=True)
    yield grave
    gym.registry.pop("test/Mortal-v0")


def test_a_run_survives_an_environment_that_takes_its_process_down(mortal: Path) -> None:
    mortal.touch()
    undisturbed = run(tiny(env="test/Mortal-v0"))
    mortal.unlink()
    with pytest.raises(RunFailed, match=r"ticket 0 .*EnvironmentFailed: environment \d is lost: .*SIGKILL"):
        run(tiny(env="test/Mortal-v0", stepping="first_ready"))
    mortal.unlink()
    healed = run(tiny(env="test/Mortal-v0", stepping="first_ready", attempts_on_error=2))
    assert mortal.exists()
    assert healed.ledger.reissued == 1
    assert fingerprint(healed.weights) == fingerprint(undisturbed.weights)
