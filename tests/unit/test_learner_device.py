"""The network may compute on another device; what leaves the learner never was there.

`cpu:0` is a device of its own here: what is copied to and fro for a GPU is copied for it too.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from headway.core.types import Batch, Rollout, Span
from headway.envs.gymnasium_vector import Discrete, Spec
from headway.ppo.cartpole import CartPoleConfig
from headway.ppo.colorlines import recipe as colorlines
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.learner_autograd_step import AutogradStep
from headway.ppo.policy import ActorCritic
from headway.ppo.recipe_ppo import PPOConfig, _num_gpus, stations
from headway.ppo.segments_segment import Segment
from headway.runs.config import ConfigError, read_values

DEVICES = ["cpu:0", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [(4,), (1, 9, 9)]


def network(shape: tuple[int, ...], normalise: bool = True) -> ActorCritic:
    return ActorCritic(Spec(shape, Discrete(3)), (16, 16), normalise=normalise, seed=3)


def batch(shape: tuple[int, ...], seed: int = 0) -> Batch:
    """A segment of 12 steps of 5 copies."""
    rng = np.random.default_rng(seed)
    steps, width = 12, 5
    segment = Segment(
        obs=rng.normal(1, 2, size=(steps + 1, width, *shape)).astype(np.float32),
        actions=rng.integers(3, size=(steps, width)),
        log_probs=np.full((steps, width), -1.1, np.float32),
        rewards=rng.normal(size=(steps, width)).astype(np.float32),
        terminated=rng.random((steps, width)) < 0.1,
        truncated=np.zeros((steps, width), bool),
        valid=np.ones((steps, width), bool),
    )
    return Batch(0, (Rollout(segment, steps=steps * width, span=Span(0, 0)),))


def learner(shape: tuple[int, ...], device: str) -> PPOLearner:
    settings = PPOSettings(minibatch_size=16, num_epochs=2)
    return PPOLearner(partial(network, shape), settings, seed=1, device=device)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors(item)]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_copy_elsewhere_computes_is_what_the_network_would(shape: tuple[int, ...]) -> None:
    torch.set_num_threads(1)
    nets = [network(shape), network(shape)]
    here, there = AutogradStep(nets[0]), AutogradStep(nets[1], "cpu:0")
    for change in (0.0, 0.01):  # the copy follows weights and statistics that move
        for step, net in zip((here, there), nets, strict=True):
            step.flat += change
            net.obs_mean += change
        obs = batch(shape).rollouts[0].payload.obs.reshape(-1, *shape)
        np.testing.assert_array_equal(here.values(obs), there.values(obs))
    assert not np.shares_memory(there.flat, there._weights.numpy())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", DEVICES)
def test_weights_and_state_of_a_learner_are_on_the_cpu_wherever_it_computes(
    shape: tuple[int, ...], device: str
) -> None:
    torch.set_num_threads(1)
    elsewhere, reference = learner(shape, device), learner(shape, "cpu:0")
    for seed in range(3):
        elsewhere.learn(batch(shape, seed))
        reference.learn(batch(shape, seed))
    assert {tensor.device.type for tensor in tensors(elsewhere.snapshot())} == {"cpu"}
    state = elsewhere.state_dict()
    assert {tensor.device.type for tensor in tensors(state)} == {"cpu"}
    for name, tensor in elsewhere.snapshot().items():
        torch.testing.assert_close(tensor, reference.snapshot()[name], rtol=2e-3, atol=2e-4)
    resumed = learner(shape, "cpu:0")
    resumed.load_state_dict(copy.deepcopy(state))
    more = [each.learn(batch(shape, 7)).metrics for each in (elsewhere, resumed)]
    assert more[0]["value_loss"] == pytest.approx(more[1]["value_loss"], rel=1e-2)


def test_only_a_learner_asks_for_gpus() -> None:
    def asked(**settings: Any) -> tuple[float, float, float]:
        wired = stations(PPOConfig(num_envs=2, segment_steps=4, updates=1, **settings))
        places = (wired.learner_placement, wired.collector_placement, wired.evaluator_placement)
        return places[0].num_gpus, places[1].num_gpus, places[2].num_gpus

    assert asked() == (0.0, 0.0, 0.0), "small networks are quicker on the CPU"
    assert asked(learner_gpus=0.5) == (0.5, 0.0, 0.0)
    assert asked(hidden=(256, 256)) == (1.0, 0.0, 0.0)
    pictures = Spec((3, 8, 8), Discrete(2))
    assert _num_gpus(PPOConfig(hidden=(8,)), pictures) == 1.0
    assert _num_gpus(CartPoleConfig(learner_gpus=0), pictures) == 0.0
    assert colorlines.stations(colorlines.ColorLinesConfig(updates=1)).learner_placement.num_gpus == 0.0
    with pytest.raises(ConfigError, match="learner_gpus"):
        read_values(PPOConfig, {"learner_gpus": -1})
    with pytest.raises(ConfigError, match="learner_gpus"):
        read_values(PPOConfig, {"learner_gpus": "some"})
