"""The kernels that skip zeros against autograd over the same network."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("gymnasium")

from headway.envs.gymnasium_vector import ActionSpec, Continuous, Discrete, MultiDiscrete, Spec
from headway.ppo.learner_autograd_step import AutogradStep
from headway.ppo.mlp_flat import Adam
from headway.ppo.mlp_kernels import advantage_moments
from headway.ppo.mlp_memory import Loss as Scored
from headway.ppo.policy import Actor, ActorCritic, compiled
from headway.ppo.sparse_planes_plane_step import PlaneStep

torch.set_num_threads(1)

ACTIONS: dict[str, ActionSpec] = {
    "three": Discrete(3),
    "multi": MultiDiscrete((2, 3)),
    "real": Continuous((-1.0, -2.0), (1.0, 2.0)),
}
SHAPES = [(10, 10, 4), (3, 11, 12), (10, 16, 1), (7, 5, 2)]  # last, first, one plane, small
LOSSES = {
    "clip": Scored(0.2, 0.5, math.inf, 0.01, False),
    "everything": Scored(0.1, 0.7, 0.3, 0.02, False),
    "plain": Scored(0.2, 0.5, math.inf, 0.05, True),
}


def network(
    action: str = "three", shape: tuple[int, ...] = (10, 10, 4), width: int = 128, *, is_bytes: bool = False
) -> ActorCritic:
    spec = Spec(shape, ACTIONS[action], is_bytes=is_bytes)
    net = ActorCritic(spec, (width,), network="small", sparse_planes="float32")
    rng = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng) * 0.1)
    return net


def example(net: Any, num: int, seed: int, *, mask: bool = False) -> tuple[Any, ...]:
    """Pictures of which few cells are not zero, also of other numbers than 1; the last one is empty."""
    rng = np.random.default_rng(seed)
    shape = num, *net.obs_mean.shape
    obs = (rng.random(shape) < 0.1) * (rng.integers(1, 256, shape) if net.is_bytes else rng.choice([1, 1, -0.5], shape))
    obs = obs.astype(np.uint8 if net.is_bytes else np.float32)
    obs[-1] = 0
    masks = np.ones((num, net.head.out_features), bool) if mask else None
    if masks is not None:
        masks[::2, 0] = False
    actor = Actor(copy.deepcopy(net))
    actions, log_probs = actor.act(obs, actor.noise(seed, 1, num)[0], masks)
    columns = rng.normal(size=(num, 5)).astype(np.float32)
    columns[:, 0] = log_probs + rng.choice([0.0, 0.05, 0.3], num) * rng.choice([-1, 1], num)
    columns[:, 4] = rng.random(num) * 2
    return obs, actions, masks, columns


def gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-12))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(list(ACTIONS)),
    st.sampled_from(SHAPES),
    st.sampled_from([1, 7, 128]),
    st.booleans(),
    st.sampled_from(list(LOSSES)),
    st.integers(1, 300),
)
def test_gradients_values_and_log_probabilities_are_those_of_autograd(
    action: str, shape: tuple[int, ...], width: int, is_bytes: bool, name: str, num: int
) -> None:
    net = network(action, shape, width, is_bytes=is_bytes)
    ours, reference = PlaneStep(net, "float32"), AutogradStep(copy.deepcopy(net))
    obs, actions, masks, columns = example(net, num, 5, mask=action != "real" and num % 2 == 0)
    rows, expected_rows = ours.rows(obs, actions, masks), reference.rows(obs, actions, masks)
    part = np.random.default_rng(num).permutation(num)[: max(1, num * 2 // 3)]
    moments = advantage_moments(columns, part)
    measures = ours.gradient_of(rows, columns, part, moments, LOSSES[name])
    expected = reference.gradient_of(expected_rows, columns, part, moments, LOSSES[name])
    assert gap(ours.gradient, reference.gradient) < 1e-5
    np.testing.assert_allclose(measures, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.values(obs), reference.values(obs), rtol=1e-4, atol=1e-5)
    some = slice(num // 3, num)
    np.testing.assert_allclose(
        ours.log_probs(rows, some), reference.log_probs(expected_rows, some), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("action", ACTIONS)
def test_acting_is_what_it_is_with_torch(action: str) -> None:
    net = network(action)
    quick, slow = Actor(net), Actor(copy.deepcopy(net))
    assert isinstance(quick._compiled, PlaneStep)
    slow._compiled = None
    obs, _, masks, _ = example(net, 50, 3, mask=action != "real")
    noise = quick.noise(4, 1, 50)[0]
    for found, expected in zip(quick.act(obs, noise, masks), slow.act(obs, noise, masks), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_products_of_bfloat16_are_off_by_its_rounding_and_no_more() -> None:
    net = network()
    exact, rounded = PlaneStep(net, "float32"), PlaneStep(copy.deepcopy(net), "bfloat16")
    obs, actions, masks, columns = example(net, 256, 1)
    part = np.arange(256)
    for step in (exact, rounded):
        step.gradient_of(
            step.rows(obs, actions, masks), columns, part, advantage_moments(columns, part), LOSSES["clip"]
        )
    assert 1e-5 < gap(rounded.gradient, exact.gradient) < 0.05
    assert rounded.flat.dtype == rounded.gradient.dtype == np.float32


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_pass_is_its_steps_one_after_another(precision: Any) -> None:
    """What ranks do step by step, and one learner in one call; and the same rows give the same bits."""
    flats, loss = [], LOSSES["everything"]
    for at_once in (True, False):
        step = PlaneStep(network(), precision)
        obs, actions, masks, columns = example(network(), 250, 2)
        rows, order = step.rows(obs, actions, masks), np.random.default_rng(1).permutation(250)
        adam = Adam(step.flat, max_norm=0.5)
        if at_once:
            step.learn(rows, columns, order, 100, loss, adam, 1e-2)
        for start in range(0, 0 if at_once else 250, 100):
            part = order[start : start + 100]
            step.gradient_of(rows, columns, part, advantage_moments(columns, part), loss)
            adam.apply(step.gradient, 1e-2)
        flats.append(step.flat.tobytes())
    assert flats[0] == flats[1]


def test_a_number_that_is_none_stays_visible() -> None:
    net = network()
    step = PlaneStep(net, "float32")
    obs, actions, masks, columns = example(net, 20, 1)
    obs[3, 4, 4, 0] = np.nan
    step.gradient_of(step.rows(obs, actions, masks), columns, np.arange(20), (0.0, 1.0), LOSSES["clip"])
    assert np.isnan(step.gradient).any()
    assert np.isnan(step.values(obs)[3])
    assert np.isfinite(step.values(obs)[:3]).all()


def test_without_the_setting_torch_computes_as_before() -> None:
    assert compiled(ActorCritic(Spec((10, 10, 4), Discrete(3)), network="small")) is None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"network": "impala"}, "knows network='small' with one layer"),
        ({"network": "small", "hidden": (64, 64)}, "knows network='small' with one layer"),
        ({"network": "small", "normalise": True}, "skips zeros, and normalise leaves none"),
        ({"network": "small", "sparse_planes": "float16"}, "unknown sparse_planes 'float16'"),
    ],
)
def test_what_the_kernels_do_not_know_is_one_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ActorCritic(Spec((10, 10, 4), Discrete(3)), **{"sparse_planes": "float32", **more})
