"""Networks for pictures: which is chosen, what it is made of, and that both heads share it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.envs.gymnasium_vector import Discrete, Spec
from headway.ppo.networks_bodies import network_for
from headway.ppo.policy import ActorCritic, compiled


def picture(*shape: int, is_bytes: bool = True) -> Spec:
    return Spec(shape, Discrete(4), is_bytes=is_bytes)


def num_weights(network: nn.Module) -> int:
    return sum(tensor.numel() for tensor in network.parameters())


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Spec((4,), Discrete(2)), "mlp"),
        (picture(10, 10, 4, is_bytes=False), "small"),
        (picture(10, 10, 10, is_bytes=False), "small"),
        (picture(4, 84, 84), "nature"),
        (picture(84, 84), "nature"),
        (picture(4, 84, 84, 3), "nature"),
        (picture(64, 64, 3), "nature"),
        (picture(24, 24, 3), "conv"),
        (picture(210, 160, 3), "conv"),
        (picture(96, 20, 3), "conv"),
        (picture(7, 7, 3, is_bytes=False), "conv"),
    ],
)
def test_the_observation_chooses_the_network(spec: Spec, name: str) -> None:
    assert network_for(spec) == name
    assert num_weights(ActorCritic(spec)) == num_weights(ActorCritic(spec, network=name))  # type: ignore[arg-type]


def test_nature_is_the_network_that_everybody_calls_so() -> None:
    network = ActorCritic(picture(4, 84, 84), network="nature")
    convolutions = 32 * (4 * 64 + 1) + 64 * (32 * 16 + 1) + 64 * (64 * 9 + 1)
    assert num_weights(network) == convolutions + 512 * (64 * 7 * 7 + 1) + (4 + 1) * (512 + 1)


def test_small_is_the_network_of_minatar() -> None:
    network = ActorCritic(picture(10, 10, 4, is_bytes=False), network="small")
    assert num_weights(network) == 16 * (4 * 9 + 1) + 128 * (16 * 64 + 1) + (4 + 1) * (128 + 1)


def test_impala_has_three_sections_of_two_residual_blocks() -> None:
    network = ActorCritic(picture(84, 84, 4), network="impala")
    assert network.body is not None
    convolutions = [part for part in network.body.modules() if isinstance(part, nn.Conv2d)]
    assert [part.out_channels for part in convolutions] == [16] * 5 + [32] * 10
    dense = [part for part in network.body.modules() if isinstance(part, nn.Linear)]
    assert [(part.in_features, part.out_features) for part in dense] == [(32 * 11 * 11, 256)]


@pytest.mark.parametrize("name", ["small", "nature", "impala"])
def test_both_heads_share_one_trunk(name: str) -> None:
    network = ActorCritic(picture(40, 48, 3), network=name)  # type: ignore[arg-type]
    assert not list(network.actor.parameters()) and not list(network.critic.parameters())
    pictures = torch.randint(256, (2, 40, 48, 3), dtype=torch.uint8)
    network.values(pictures).sum().backward()
    assert network.body is not None
    touched = [name for name, tensor in network.body.named_parameters() if tensor.grad is not None]
    assert touched == [name for name, _ in network.body.named_parameters()]
    network.zero_grad()
    network.outputs(pictures).sum().backward()
    assert all(tensor.grad is not None for tensor in network.body.parameters())


@pytest.mark.parametrize("name", ["small", "nature", "impala", "conv"])
def test_signals_neither_vanish_nor_explode_at_first(name: str) -> None:
    network = ActorCritic(picture(84, 84, 4), network=name)  # type: ignore[arg-type]
    features = network.features(torch.randint(256, (16, 84, 84, 4), dtype=torch.uint8))
    assert 0.02 < features.std().item() < 5


def test_layers_after_the_convolutions_are_as_wide_as_is_said() -> None:
    network = ActorCritic(picture(40, 40, 3), [32, 16], network="nature")
    assert network.head.in_features == 16
    bare = ActorCritic(picture(40, 40, 3), [], network="nature")
    assert bare.head.in_features == 64


def test_a_picture_may_be_seen_by_layers_alone_with_the_brightness_it_has() -> None:
    network = ActorCritic(picture(12, 12, 3), network="mlp")
    assert compiled(network) is None, "kernels know no bytes"
    seen = network.features(torch.full((1, 12, 12, 3), 255, dtype=torch.uint8))
    assert torch.equal(seen, torch.ones(1, 12 * 12 * 3))


@pytest.mark.parametrize(
    ("spec", "name", "says"),
    [
        (
            picture(10, 10, 4),
            "nature",
            "needs pictures of at least 36 a side, received 10 x 10; allowed: small, impala",
        ),
        (Spec((4,), Discrete(2)), "impala", r"sees pictures, received observations \[4\]; allowed: mlp"),
        (picture(2, 2, 1, is_bytes=False), "small", "needs pictures of at least 3 a side, received 2 x 2"),
        (Spec((4,), Discrete(2)), "natur", "nature"),
    ],
)
def test_a_network_that_does_not_suit_is_one_clear_line(spec: Spec, name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        ActorCritic(spec, network=name)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_cube_has_its_channels_last_as_gymnasium_has_them() -> None:
    network = ActorCritic(picture(10, 10, 10, is_bytes=False), network="small")
    assert network.body is not None
    cube = torch.rand(1, 10, 10, 10)
    assert torch.equal(network.body[0](cube), cube.permute(0, 3, 1, 2))
