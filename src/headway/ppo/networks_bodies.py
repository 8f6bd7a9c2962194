"""What stands between an observation and the heads of a policy, by name.

    network   pictures of                what it is
    mlp       any size, and vectors      flat, tanh layers: a tower for acting, one for the value
    small     10 to 16 a side (auto)     16 filters 3x3, a layer of 128                     one trunk (MinAtar's)
    nature    36 to 128 a side (auto)    32 8x8/4, 64 4x4/2, 64 3x3, a layer of 512         one trunk (Mnih et al.)
    impala    any size                   16, 32, 32, two residual blocks each, 256          one trunk (Espeholt et al.)
    conv      any other size (auto)      halved until no side is longer than 8, then the two towers of mlp

One trunk has its layers once, and both heads read them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn

from headway.core.text_naming import unknown
from headway.envs.gymnasium_vector import Spec

NetworkName = Literal["auto", "mlp", "small", "nature", "impala", "conv"]
LAYERS: dict[str, tuple[int, ...]] = {
    "mlp": (64, 64),
    "conv": (64, 64),
    "small": (128,),
    "nature": (512,),
    "impala": (256,),
}
"""Widths of the layers after the convolutions, unless they are said."""
SMALL_SIDES, NATURE_SIDES = range(10, 17), range(36, 129)
"""Sides of pictures that `auto` takes them for."""
IMPALA_CHANNELS = 16, 32, 32
FIRST_CHANNELS, MOST_CHANNELS = 16, 64
SMALL_SIDE = 16
"""The first convolution leaves a picture of this size or less as it is; it halves what is larger, as all others do."""
LAST_SIDE = 8
"""Convolutions follow each other until no side is longer."""
Widths = TypeVar("Widths", bound=Sequence[int])


class Body(NamedTuple):
    """Layers both heads share, if there are any; what they give; and the layers each head has for itself."""

    layers: nn.Sequential | None
    shape: tuple[int, ...]
    towers: tuple[int, ...]


def make_body(spec: Spec, network: NetworkName, hidden: Sequence[int] | None) -> Body:
    """The body of this name, or of the one that suits the observation."""
    if network not in get_args(NetworkName):
        raise ValueError(unknown("network", network, get_args(NetworkName)))
    axes = _axes_of_planes(spec) if network != "mlp" else None
    name = network_for(spec) if network == "auto" else network
    widths = tuple(require_widths(LAYERS[name] if hidden is None else hidden))
    if name == "mlp":
        flat = nn.Sequential(nn.Flatten()) if spec.is_bytes else None
        return Body(flat, (math.prod(spec.observation),) if spec.is_bytes else spec.observation, widths)
    if axes is None:
        raise ValueError(
            f"network={name!r} sees pictures, received observations {list(spec.observation)}; allowed: mlp"
        )
    *of_channels, height, width = (spec.observation[axis - 1] for axis in axes)
    planes, size = math.prod(of_channels), (height, width)
    if name == "conv":
        layers, shape = _halving(planes, *size)
        return Body(nn.Sequential(_Planes(axes), *layers, nn.Flatten()), shape, widths)
    _require_side(name, size)
    made = {"small": _small, "nature": _nature, "impala": _impala}[name](planes)
    count = math.prod(_seen_by(made, planes, size))
    layers = [*made, nn.Flatten()]
    for before, after in zip((count, *widths), widths, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return Body(nn.Sequential(_Planes(axes), *layers), (widths[-1] if widths else count,), ())


def network_for(spec: Spec) -> Literal["mlp", "small", "nature", "conv"]:
    """The name that `auto` stands for."""
    axes = _axes_of_planes(spec)
    if axes is None:
        return "mlp"
    sides = [spec.observation[axis - 1] for axis in axes[-2:]]
    if all(side in SMALL_SIDES for side in sides):
        return "small"
    return "nature" if all(side in NATURE_SIDES for side in sides) else "conv"


def tower(shape: tuple[int, ...], hidden: Sequence[int]) -> tuple[nn.Sequential, int]:
    """Layers from an observation to features, and how many of those there are."""
    require_widths(hidden)
    layers: list[nn.Module] = [nn.Flatten() if len(shape) != 1 else nn.Identity()]
    width = math.prod(shape)
    for size in hidden:
        layers += [nn.Linear(width, size), nn.Tanh()]
        width = size
    return nn.Sequential(*layers), width


def require_widths(hidden: Widths) -> Widths:
    """The widths of layers, if there can be such layers: through a layer of no units nothing is seen."""
    if any(width < 1 for width in hidden):
        raise ValueError(f"a layer needs at least 1 unit, received {list(hidden)}; [] is a network without layers")
    return hidden


def begin_weights(module: nn.Module, scales: dict[nn.Module, float], random: torch.Generator) -> None:
    """Orthogonal weights, as large as `scales` says or sqrt(2), and no biases. A residual block begins as if it were
    not there."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(part.weight, scales.get(part, math.sqrt(2)), generator=random)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    for part in module.modules():
        if isinstance(part, _Residual):
            nn.init.zeros_(part.second.weight)


# -- pictures ---------------------------------------------------------------------------------------


def _small(planes: int) -> list[nn.Module]:
    return [nn.Conv2d(planes, 16, 3), nn.ReLU()]


def _nature(planes: int) -> list[nn.Module]:
    first = [nn.Conv2d(planes, 32, 8, 4), nn.ReLU()]
    return [*first, nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]


def _impala(planes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in zip((planes, *IMPALA_CHANNELS), IMPALA_CHANNELS, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [_Residual(after), _Residual(after)]
    return [*layers, nn.ReLU()]


class _Residual(nn.Module):
    """What it is given, and what two convolutions add to that."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, planes: Tensor) -> Tensor:
        added: Tensor = self.second(torch.relu(self.first(torch.relu(planes))))
        return planes + added


def _halving(channels: int, height: int, width: int) -> tuple[list[nn.Module], tuple[int, ...]]:
    layers: list[nn.Module] = []
    wanted, stride = FIRST_CHANNELS, 1 if max(height, width) <= SMALL_SIDE else 2
    is_small = False
    while not is_small:
        layers += [nn.Conv2d(channels, wanted, 3, stride, padding=1), nn.ReLU()]
        height, width = -(-height // stride), -(-width // stride)
        is_small = stride == 2 and max(height, width) <= LAST_SIDE
        channels, wanted, stride = wanted, min(2 * wanted, MOST_CHANNELS), 2
    return layers, (channels * height * width,)


def _require_side(name: str, size: tuple[int, int]) -> None:
    least = {"nature": NATURE_SIDES.start, "small": 3}.get(name, 1)
    if min(size) < least:
        others = "small, impala or conv" if name == "nature" else "conv or mlp"
        raise ValueError(
            f"network={name!r} needs pictures of at least {least} a side, received {size[0]} x {size[1]}; "
            f"allowed: {others}, or resize"
        )


def _seen_by(layers: Sequence[nn.Module], planes: int, size: tuple[int, int]) -> torch.Size:
    """The shape [C, H, W] that layers make of a picture, by asking them."""
    with torch.no_grad():
        return nn.Sequential(*layers)(torch.zeros(1, planes, *size)).shape[1:]


def _axes_of_planes(spec: Spec) -> tuple[int, ...] | None:
    """Where a batch of pictures has its channels, then height and width; None for what is no picture."""
    shape = spec.observation
    if len(shape) == 3:
        channels = min(shape)
        if channels in (shape[0], shape[2]):
            is_first = channels == shape[0] and len(set(shape)) > 1  # a cube is taken as Gymnasium has pictures
            return (1, 2, 3) if is_first else (3, 1, 2)
    elif len(shape) == 2 and spec.is_bytes:
        return (1, 2)
    elif len(shape) == 4 and spec.is_bytes:
        return (1, 4, 2, 3)  # frames, one after the other
    if len(shape) == 3 or spec.is_bytes:
        raise ValueError(
            f"observations {list(shape)} are no picture that can be read; allowed: [height, width] of bytes, "
            "[height, width, channels] or [channels, height, width] with fewer channels than either, "
            "[frames, height, width, channels] of bytes"
        )
    return None


class _Planes(nn.Module):
    """Pictures [B, ...] as planes [B, channels, height, width]."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self._axes = axes

    def forward(self, pictures: Tensor) -> Tensor:
        planes = pictures.permute(0, *self._axes)
        return planes.unsqueeze(1) if planes.ndim == 3 else planes.flatten(1, -3)
