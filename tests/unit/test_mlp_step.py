"""The hand-derived step against autograd, and what both do with one flat vector."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from headway.envs.gymnasium_vector import ActionSpec, Continuous, Discrete, MultiDiscrete, Spec
from headway.ppo.learner_autograd_step import AutogradStep
from headway.ppo.mlp_flat import Adam, flatten
from headway.ppo.mlp_kernels import _tanh, advantage_moments
from headway.ppo.mlp_memory import Loss as Scored
from headway.ppo.mlp_step import MLPStep
from headway.ppo.policy import Actor, ActorCritic, compiled

torch.set_num_threads(1)

ACTIONS: dict[str, ActionSpec] = {
    "two": Discrete(2),
    "many": Discrete(7),
    "multi": MultiDiscrete((2, 3, 4)),
    "real": Continuous((-1.0, -2.0, -1.0), (1.0, 2.0, 1.0)),
}
LOSSES = {
    "clip": Scored(0.2, 0.5, math.inf, 0.0, False),
    "everything": Scored(0.1, 0.7, 0.3, 0.02, False),
    "plain": Scored(0.2, 0.5, math.inf, 0.05, True),
}


def network(action: str = "two", hidden: tuple[int, ...] = (8, 8), shape: tuple[int, ...] = (5,), **more: Any) -> Any:
    net = ActorCritic(Spec(shape, ACTIONS[action]), hidden, **more)
    rng = torch.Generator().manual_seed(9)
    with torch.no_grad():  # away from where it starts: biases that are not 0, a policy that is not uniform
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng) * 0.3)
        net.obs_mean.copy_(torch.randn(shape, generator=rng) * 0.1)
        net.obs_scale.copy_(torch.rand(shape, generator=rng) * 0.5 + 0.2)
    return net


def example(net: Any, num: int, seed: int, *, mask: bool = False) -> tuple[Any, ...]:
    """Observations, actions, masks and columns of `num` rows; ratios on both sides of every limit."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(num, *net.obs_mean.shape)).astype(np.float32) * 3
    width = net.head.out_features
    masks = rng.random((num, width)) < 0.6 if mask else None
    begin = 0
    for count in getattr(net.action, "choices", (width,)):  # at least one is legal in every choice
        if masks is not None:
            masks[np.arange(num), begin + rng.integers(0, count, num)] = True
        begin += count
    actor = Actor(net)
    actions, log_probs = actor.act(obs, actor.noise(seed, 1, num)[0], masks)
    columns = rng.normal(size=(num, 5)).astype(np.float32)
    columns[:, 0] = log_probs + rng.choice([0.0, 0.05, 0.3, 25.0], num) * rng.choice([-1, 1], num)
    columns[:, 4] = rng.random(num) * 2
    return obs, actions, masks, columns


def both(net: Any) -> tuple[MLPStep, AutogradStep]:
    return MLPStep(net), AutogradStep(copy.deepcopy(net))


def gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-12))


cases = st.tuples(
    st.sampled_from(list(ACTIONS)),
    st.sampled_from([(), (1,), (5,), (8, 8), (6, 7, 4), (64, 64)]),
    st.sampled_from([(1,), (5,), (2, 3)]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(cases, st.sampled_from(list(LOSSES)), st.integers(1, 300), st.integers(0, 1000))
def test_the_gradient_is_that_of_autograd(case: tuple[Any, ...], name: str, num: int, seed: int) -> None:
    action, hidden, shape, normalise, mask = case
    ours, reference = both(net := network(action, hidden, shape, normalise=normalise))
    obs, actions, masks, columns = example(net, num, seed, mask=mask and action != "real")
    part = np.random.default_rng(seed).permutation(num)[: max(1, num * 2 // 3)]
    moments = advantage_moments(columns, part)
    measures = ours.gradient_of(ours.rows(obs, actions, masks), columns, part, moments, LOSSES[name])
    expected = reference.gradient_of(reference.rows(obs, actions, masks), columns, part, moments, LOSSES[name])
    assert gap(ours.gradient, reference.gradient) < 1e-5
    np.testing.assert_allclose(measures, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases, st.integers(1, 300), st.integers(0, 1000))
def test_values_and_log_probabilities_are_those_of_the_network(case: tuple[Any, ...], num: int, seed: int) -> None:
    action, hidden, shape, normalise, mask = case
    ours, reference = both(net := network(action, hidden, shape, normalise=normalise))
    obs, actions, masks, _ = example(net, num, seed, mask=mask and action != "real")
    part = slice(num // 3, num)
    found = ours.log_probs(ours.rows(obs, actions, masks), part)
    expected = reference.log_probs(reference.rows(obs, actions, masks), part)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.values(obs), reference.values(obs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("mask", [False, True])
def test_acting_is_what_it_was_with_torch(action: str, mask: bool) -> None:
    net = network(action, normalise=True)
    quick, slow = Actor(net), Actor(copy.deepcopy(net))
    assert quick._compiled is not None
    slow._compiled = None
    obs, _, masks, _ = example(net, 200, 3, mask=mask and action != "real")
    noise = quick.noise(4, 1, 200)[0]
    actions, log_probs = quick.act(obs, noise, masks)
    expected, expected_logs = slow.act(obs, noise, masks)
    assert (actions.dtype, actions.shape, log_probs.dtype) == (expected.dtype, expected.shape, np.float32)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    np.testing.assert_allclose(log_probs, expected_logs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(quick.best(obs, masks), slow.best(obs, masks), atol=1e-5)


@pytest.mark.parametrize("kind", [MLPStep, AutogradStep])
def test_a_pass_is_its_steps_one_after_another(kind: Any) -> None:
    """What ranks do step by step, and one learner in one call."""
    flats, loss = [], LOSSES["everything"]
    for at_once in (True, False):
        step = kind(net := network("many"))
        adam, order = Adam(step.flat, max_norm=0.5), np.random.default_rng(1).permutation(90)
        obs, actions, masks, columns = example(net, 90, 0)
        rows = step.rows(obs, actions, masks)
        if at_once:
            measured = step.learn(rows, columns, order, 40, loss, adam, 1e-2)
        else:
            parts = [order[:40], order[40:80], order[80:]]
            each = []
            for part in parts:
                each.append(step.gradient_of(rows, columns, part, advantage_moments(columns, part), loss).copy())
                adam.apply(step.gradient, 1e-2)
            np.testing.assert_array_equal(np.stack(each), measured)
        flats.append(step.flat.copy())
    np.testing.assert_array_equal(*flats)


def test_the_same_rows_give_the_same_bits_wherever_the_memory_lies() -> None:
    prints = set()
    for shift in range(4):
        step = MLPStep(network("multi"))
        room = np.zeros(300 * 5 + shift, np.float32)
        obs, actions, masks, columns = example(network("multi"), 300, 2)
        moved = room[shift:].reshape(300, 5)
        moved[:] = obs
        rows = step.rows(moved, actions, masks)._replace(obs=moved)
        step.learn(rows, columns, np.arange(300), 100, LOSSES["clip"], Adam(step.flat, max_norm=0.5), 1e-2)
        prints.add(step.flat.tobytes())
    assert len(prints) == 1


@njit
def tanh_of(values: Any) -> None:
    _tanh(values, *values.shape)


def test_tanh_is_exact_to_four_parts_in_ten_million() -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.logspace(-30, 1, 100_001)]).astype(np.float32)
    found = x[None].copy()
    tanh_of(found)
    np.testing.assert_allclose(found[0], np.tanh(x.astype(np.float64)), rtol=4e-7)
    assert np.abs(found).max() <= 1


@pytest.mark.parametrize("name", ["actor.1.weight", "critic.3.bias", "head.weight"])
def test_a_number_that_is_none_stays_visible(name: str) -> None:
    """Compiled code with fast arithmetic could lose it in a minimum or a comparison."""
    net = network()
    with torch.no_grad():
        dict(net.named_parameters())[name].view(-1)[0] = math.nan
    step = MLPStep(net)
    obs, actions, masks, columns = example(network(), 50, 0)
    measures = step.gradient_of(step.rows(obs, actions, masks), columns, np.arange(50), (0.0, 1.0), LOSSES["clip"])
    assert np.isnan(step.gradient).any()
    assert np.isnan(measures).any()


def test_adam_is_that_of_torch() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000).astype(np.float32)
    tensor = torch.nn.Parameter(torch.from_numpy(values.copy()))
    adam, reference = Adam(values, max_norm=0.5), torch.optim.Adam([tensor], 1e-2, eps=1e-5)
    for step in range(20):
        gradient = rng.normal(size=1000).astype(np.float32) * (0.001 if step % 2 else 10.0)
        tensor.grad = torch.from_numpy(gradient.copy())
        torch.nn.utils.clip_grad_norm_([tensor], 0.5)
        reference.step()
        adam.apply(gradient, 1e-2)
    np.testing.assert_allclose(values, tensor.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_network_is_flat_once_and_stays_itself() -> None:
    net = network()
    before = copy.deepcopy(net.state_dict())
    vector = flatten(net)
    assert flatten(net).ctypes.data == vector.ctypes.data
    assert flatten(copy.deepcopy(net)).ctypes.data != vector.ctypes.data
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
    vector[:] = 0.0
    assert not any(parameter.any() for parameter in net.parameters())
    net.load_state_dict(before)
    np.testing.assert_array_equal(vector, np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()]))


def test_only_float32_parameters_become_one_vector() -> None:
    with pytest.raises(ValueError, match=r"log_std must be float32 on the CPU, received torch.float64 on cpu"):
        flatten(network("real").double())


def test_what_the_kernels_do_not_know_is_left_to_autograd() -> None:
    class Louder(ActorCritic):
        def outputs(self, obs: torch.Tensor) -> torch.Tensor:
            return super().outputs(obs) * 2

    assert compiled(network()) is not None
    assert compiled(Louder(Spec((3,), Discrete(2)))) is None
    assert compiled(ActorCritic(Spec((1, 9, 9), Discrete(2)), (16,))) is None


def test_a_snapshot_carries_its_own_numbers_and_no_others() -> None:
    from headway.ppo.learner import PPOLearner, PPOSettings

    learner = PPOLearner(network, PPOSettings())
    snapshot = learner.snapshot()
    assert len(pickle.dumps(snapshot["head.bias"])) < 1000
    assert all(tensor.is_contiguous() for tensor in snapshot.values())
