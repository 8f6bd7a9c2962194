"""PPO on pictures: bytes are brightnesses, and a network for pictures is small whatever their size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium import spaces

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.core.types import Snapshot, Ticket
from headway.envs.gymnasium_vector import Discrete, Spec, as_features, describe_spaces
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.recipe_ppo import PPOConfig, stations
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime


def config_of(env: str, **more: Any) -> PPOConfig:
    base: dict[str, Any] = {"num_envs": 4, "segment_steps": 5, "updates": 2, "evaluate_every": 0}
    return PPOConfig(**{**base, "env": f"picture_games:{env}", "learner_gpus": 0, **more})


def run(config: PPOConfig) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(stations(config), config.settings(), place).run())


LEARNING = {"updates": 15, "num_envs": 16, "segment_steps": 20, "gamma": 0.5, "learning_rate": 1e-3, "seed": 1}


@pytest.mark.parametrize("kind", ["bytes", "beside"])
def test_pictures_of_bytes_are_learned(kind: str) -> None:
    result = run(config_of(f"Spots-{kind}-v0", max_lead=0, evaluate_every=15, **LEARNING))
    assert result.scores[-1].value is not None
    assert result.scores[-1].value >= 19, "of 20; chance makes 5"


def test_bytes_and_their_255th_parts_give_the_same_bits() -> None:
    first, second = (run(config_of(f"Spots-{kind}-v0", **LEARNING | {"updates": 3})) for kind in ("bytes", "floats"))
    assert fingerprint(first.weights) == fingerprint(second.weights)


@pytest.mark.parametrize("stepping", ["vector", "first_ready"])
def test_bytes_stay_bytes_until_the_network_reads_them(stepping: str) -> None:
    parts = stations(config_of("Spots-bytes-v0", stepping=stepping))
    collector: Any = parts.collector(0)
    segment = collector.collect(Ticket(0, 5, 0), Snapshot(0, parts.learner().snapshot())).payload
    if stepping == "first_ready":
        collector.close()
    assert segment.obs.dtype == np.uint8
    assert segment.obs.shape == (6, 4, 24, 24, 3)
    assert len({obs.tobytes() for obs in segment.obs}) == 6, "each step has pictures of its own"


def test_whoever_is_ready_first_sees_the_same_pictures() -> None:
    kinds = ("vector", "first_ready")
    prints = {fingerprint(run(config_of("Spots-bytes-v0", stepping=stepping)).weights) for stepping in kinds}
    assert len(prints) == 1


@pytest.mark.parametrize("layout", ["last", "first", "gray", "frames"])
def test_every_layout_of_a_picture_is_seen_by_convolutions(layout: str) -> None:
    config = config_of(f"Lights-{layout}-v0", evaluate_every=2, eval_episodes=2)
    learner: Any = stations(config).learner()
    assert any(name.startswith("body.") for name in learner.snapshot())
    assert run(config).scores[-1].value is not None


def test_the_layouts_of_a_picture_are_the_same_planes() -> None:
    colours = torch.randint(256, (2, 32, 24, 3), dtype=torch.uint8)
    for shape, pictures in {
        (32, 24, 3): colours,
        (3, 32, 24): colours.permute(0, 3, 1, 2),
        (1, 32, 24, 3): colours[:, None],
    }.items():
        seen = ActorCritic(Spec(shape, Discrete(2), is_bytes=True), seed=4).features(pictures)
        expected = ActorCritic(Spec((32, 24, 3), Discrete(2), is_bytes=True), seed=4).features(colours)
        assert torch.equal(seen, expected), shape


@pytest.mark.parametrize(
    "shape", [(84, 84, 3), (210, 160, 3), (4, 84, 84), (4, 84, 84, 3), (84, 84), (24, 24, 3), (1024, 512, 3)]
)
def test_a_network_that_halves_pictures_is_small_whatever_their_size(shape: tuple[int, ...]) -> None:
    network = ActorCritic(Spec(shape, Discrete(6), is_bytes=True), network="conv")
    assert sum(tensor.numel() for tensor in network.parameters()) < 500_000
    strides = [math.prod(layer.stride) for layer in network.body or () if isinstance(layer, torch.nn.Conv2d)]
    assert math.prod(strides) >= math.prod(sorted(shape)[-2:]) / 64, "so that 64 cells are left at most"


def test_the_first_units_of_a_bright_picture_are_not_saturated() -> None:
    network = ActorCritic(Spec((84, 84, 3), Discrete(6), is_bytes=True), network="conv")
    pictures = torch.randint(256, (8, 84, 84, 3), dtype=torch.uint8)
    for tower in (network.actor, network.critic):
        units = tower[:3](network.features(pictures))
        assert (units.abs() > 0.99).float().mean() < 0.1


def test_a_network_that_normalises_takes_bytes_as_they_are() -> None:
    result = run(config_of("Spots-bytes-v0", normalise=True))
    seen = result.weights["obs_mean"]
    assert 90 < float(seen.mean()) < 150, "the mean of the bytes"


@pytest.mark.parametrize(
    ("space", "is_bytes"),
    [
        (spaces.Box(0, 255, (24, 24, 3), np.uint8), True),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), True),
        (spaces.Box(0, 255, (84, 84), np.uint8), True),
        (spaces.Box(0, 255, (128,), np.uint8), False),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), False),
        (spaces.Box(0, 7, (24, 24), np.uint8), False),
        (spaces.Box(0, 1, (24, 24, 3), np.uint8), False),
        (spaces.Box(0, 255, (24, 24, 3), np.float32), True),
        (spaces.Box(0, 255, (24, 24, 3), np.int64), True),
        (spaces.Box(-255, 255, (24, 24, 3), np.float32), False),
        (spaces.Box(0, 1, (24, 24, 3), np.float32), False),
        (spaces.Box(0, 255, (128,), np.float32), False),
    ],
)
def test_what_counts_as_a_picture_of_bytes(space: spaces.Box, is_bytes: bool) -> None:
    spec = describe_spaces(space, spaces.Discrete(2))
    assert spec.is_bytes is is_bytes
    rows = np.stack([space.sample(), space.sample()])
    assert as_features(rows, space).dtype == spec.dtype == (np.uint8 if is_bytes else np.float32)
    np.testing.assert_array_equal(as_features(rows, space), np.rint(rows) if is_bytes else rows)
    actor = Actor(ActorCritic(spec, (8,)))
    assert actor.best(as_features(rows, space), None).shape == (2,)


def test_brightnesses_as_floats_are_seen_as_the_same_picture_of_bytes() -> None:
    space, floats = (spaces.Box(0, 255, (24, 24, 3), kind) for kind in (np.uint8, np.float32))
    spec = describe_spaces(floats, spaces.Discrete(2))
    picture = np.stack([space.sample(), space.sample()])
    actor = Actor(ActorCritic(spec, (8,)))
    seen = [as_features(picture, space), as_features(picture.astype(np.float32), floats)]
    assert spec == describe_spaces(space, spaces.Discrete(2))
    np.testing.assert_array_equal(actor.best(seen[0], None), actor.best(seen[1], None))


def test_features_are_no_view_of_what_the_environment_draws_into() -> None:
    space = spaces.Box(0, 255, (24, 24, 3), np.uint8)
    drawn = np.zeros((2, 24, 24, 3), np.uint8)
    seen = as_features(drawn, space)
    drawn += 1
    assert not seen.any()


@pytest.mark.parametrize("shape", [(84, 3, 84), (2, 84, 84, 3, 2)])
def test_a_picture_that_cannot_be_read_is_one_clear_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="are no picture that can be read; allowed: ") as caught:
        ActorCritic(Spec(shape, Discrete(2), is_bytes=True))
    assert str(list(shape)) in str(caught.value) and "\n" not in str(caught.value)
