"""Acting and learning with the network `small`, by kernels that skip what is zero in a picture.

    picture --> [cells that are not zero] --> 16 filters, relu --> a layer, relu --> heads --> loss
                       plane_kernels.py                            torch.mm          mlp_kernels.py

What MinAtar and its like show are planes of 0 and 1 of which nine in ten are 0. A convolution over the others is next
to nothing, so that a gradient step is three products of the layer. Those are of float32, or of bfloat16 with sums in
float32, which some processors (avx512_bf16, AMX) do several times as fast. Weights, Adam and all else are float32.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from headway.core.text_naming import unknown
from headway.ppo import mlp_kernels
from headway.ppo import sparse_planes_plane_kernels as plane_kernels
from headway.ppo.mlp_flat import Adam
from headway.ppo.mlp_memory import CHUNK, Loss, MLPLayout, MLPRows, Scratch
from headway.ppo.mlp_step import NUM_MEASURES, MLPStep, layout_of
from headway.ppo.sparse_planes_plane_kernels import FILTERS, SIDE, Cells, PlaneLayout

SparsePlanes = Literal["off", "float32", "bfloat16"]
_Begins = dict[Tensor, int]


class PlaneRows(NamedTuple):
    """What is learned from."""

    cells: Cells  # of the observations [B, ...]
    chosen: MLPRows  # actions and masks; of no observations


class PlaneStep:
    """What a network `small` does with rows. Its tensors become views of `flat`; buffers are its own."""

    def __init__(self, network: Any, precision: SparsePlanes) -> None:
        convolution, layer = _parts(network)
        self._share = np.float32(1 / 255 if network.is_bytes else 1)
        self._heads = MLPStep(network, _head_layout(network, layer.out_features))
        self.flat, self.gradient = self._heads.flat, self._heads.gradient
        begins = _begins(network)
        self._dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
        here = begins, self.flat, self.gradient
        self._filters = _Filters(convolution, *here, _plane_layout(network))
        self._layer = _Layer(layer, *here, self._dtype)
        self._scratch = _head_scratch(layer.out_features, network.head.out_features)

    def act(self, obs: np.ndarray, noise: np.ndarray, masks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Actions [B, ...] and their log-probabilities [B]."""
        return self._heads.act(self._features(obs), noise, masks)

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Of observations [B, ...]."""
        return self._heads.values(self._features(obs))

    def log_probs(self, rows: PlaneRows, part: slice) -> np.ndarray:
        """Of the actions in `part` of the rows."""
        some = MLPRows(*(array[part] for array in rows.chosen))
        seen = self._filters.see(rows.cells, np.arange(len(rows.chosen.obs))[part])
        features: np.ndarray = self._layer.features(seen).numpy()
        return self._heads.log_probs(some._replace(obs=features), slice(None))

    def rows(self, obs: np.ndarray, actions: np.ndarray, masks: np.ndarray | None) -> PlaneRows:
        """Arrays [B, ...] in the form the kernels take."""
        return PlaneRows(self._cells(obs), self._heads.rows(np.empty((len(obs), 0), np.float32), actions, masks))

    def learn(
        self, rows: PlaneRows, columns: np.ndarray, order: np.ndarray, size: int, loss: Loss, adam: Adam, rate: float
    ) -> np.ndarray:
        """A pass over `rows` in `order`, `size` rows a step of Adam; the measures of each step."""
        measured = []
        for start in range(0, len(order), size):
            part = order[start : start + size]
            moments = mlp_kernels.advantage_moments(columns, part)
            measured.append(self.gradient_of(rows, columns, part, moments, loss))
            adam.apply(self.gradient, rate)
        return np.stack(measured)

    def gradient_of(
        self, rows: PlaneRows, columns: np.ndarray, part: np.ndarray, moments: tuple[float, float], loss: Loss
    ) -> np.ndarray:
        """Writes the gradient of the mean loss over the rows in `part` to `gradient`; returns the measures."""
        seen = self._filters.see(rows.cells, part)
        rounded = seen.to(self._dtype)
        features, measures = self._layer.features(rounded).numpy(), np.empty(NUM_MEASURES)
        change = np.empty_like(features)
        weights = (self.flat, self.gradient, self._heads.layout)
        mlp_kernels.head_gradient(
            *weights, loss, rows.chosen, columns, part, moments, features, self._scratch, measures, change
        )
        below = self._layer.write_gradient(torch.from_numpy(change), rounded)
        self._filters.write_gradient(torch.ops.aten.threshold_backward(below, seen, 0), rows.cells, part)
        return measures

    def _features(self, obs: np.ndarray) -> np.ndarray:
        features: np.ndarray = self._layer.features(self._filters.see(self._cells(obs), np.arange(len(obs)))).numpy()
        return features

    def _cells(self, obs: np.ndarray) -> Cells:
        pictures, begins = np.ascontiguousarray(obs.reshape(len(obs), -1)), np.empty(len(obs) + 1, np.int64)
        plane_kernels.count(pictures, begins)
        found = Cells(begins, np.empty(begins[-1], np.int32), np.empty(begins[-1], np.float32))
        plane_kernels.compress(pictures, self._share, *found)
        return found


class _Filters:
    """The convolution. `taps` are its weights with a position's filters side by side, as the kernels have them."""

    def __init__(
        self,
        layer: nn.Conv2d,
        begins: _Begins,
        flat: np.ndarray,
        gradient: np.ndarray,
        layout: PlaneLayout,
    ) -> None:
        assert layer.bias is not None
        self._layout = layout
        self._weight, self._weight_gradient = (_view(of, layer.weight, begins) for of in (flat, gradient))
        self._bias, self._bias_gradient = (_view(of, layer.bias, begins) for of in (flat, gradient))

    def see(self, cells: Cells, part: np.ndarray) -> Tensor:
        """[B, P * 16], without what is negative."""
        seen = self._bias.repeat(len(part), self._layout.height * self._layout.width)
        taps = self._weight.permute(1, 2, 3, 0).flip(2).reshape(-1)
        plane_kernels.see(self._layout, *cells, part, taps.numpy(), seen.numpy())
        return seen.relu_()

    def write_gradient(self, change: Tensor, cells: Cells, part: np.ndarray) -> None:
        """From that of what was seen."""
        torch.sum(change.view(-1, FILTERS), 0, out=self._bias_gradient)
        taps = torch.zeros(self._weight.permute(1, 2, 3, 0).shape)
        plane_kernels.add_gradient(self._layout, *cells, part, change.numpy(), taps.view(-1).numpy())
        self._weight_gradient.copy_(taps.flip(2).permute(3, 0, 1, 2))


class _Layer:
    """The layer after the filters: its weight with the positions first, as `seen` has them."""

    def __init__(
        self, layer: nn.Linear, begins: _Begins, flat: np.ndarray, gradient: np.ndarray, dtype: torch.dtype
    ) -> None:
        shape = layer.out_features, FILTERS, layer.in_features // FILTERS
        self._dtype = dtype
        self._weight, self._weight_gradient = (
            _view(of, layer.weight, begins).view(shape).transpose(1, 2) for of in (flat, gradient)
        )
        self._bias, self._bias_gradient = (_view(of, layer.bias, begins) for of in (flat, gradient))

    def features(self, seen: Tensor) -> Tensor:
        """[B, H], without what is negative."""
        product = (seen.to(self._dtype) @ self._as_it_is().T).float()
        return product.add_(self._bias).relu_()

    def write_gradient(self, change: Tensor, seen: Tensor) -> Tensor:
        """From that of its outputs [B, H]; returns that of what it saw [B, P * 16]."""
        torch.sum(change, 0, out=self._bias_gradient)
        change = change.to(self._dtype)
        self._weight_gradient.copy_((change.T @ seen).view(self._weight.shape))
        return (change @ self._as_it_is()).float()

    def _as_it_is(self) -> Tensor:
        """The weight [H, P * 16], in the precision of products."""
        return self._weight.to(self._dtype).reshape(len(self._weight), -1)


def require_plane_network(network: Any, precision: SparsePlanes) -> None:
    """The one network that these kernels know, or what is wrong with this one."""
    if precision not in get_args(SparsePlanes):
        raise ValueError(unknown("sparse_planes", precision, get_args(SparsePlanes)))
    if precision == "off":
        return
    if not _is_small(network):
        raise ValueError(
            f"sparse_planes={precision!r} knows network='small' with one layer (hidden: [128], or of another width); "
            "allowed for others: off"
        )
    if network.normalise:
        raise ValueError(f"sparse_planes={precision!r} skips zeros, and normalise leaves none: choose one")


def _is_small(network: Any) -> bool:
    layers = [] if network.body is None else list(network.body.children())[1:]
    kinds = [nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear, nn.ReLU]
    return [type(layer) for layer in layers] == kinds and layers[0].kernel_size == (SIDE, SIDE)


def _parts(network: Any) -> tuple[nn.Conv2d, nn.Linear]:
    _, convolution, _, _, layer, _ = network.body.children()
    return convolution, layer


def _begins(network: Any) -> _Begins:
    """Where the parameters are in the flat vector."""
    begins: _Begins = {}
    begin = 0
    for parameter in network.parameters():
        begins[parameter] = begin
        begin += parameter.numel()
    return begins


def _view(of: np.ndarray, parameter: Tensor, begins: _Begins) -> Tensor:
    begin = begins[parameter]
    return torch.from_numpy(of)[begin : begin + parameter.numel()].view(parameter.shape)


def _plane_layout(network: Any) -> PlaneLayout:
    shape = tuple(network.obs_mean.shape)
    places = torch.arange(math.prod(shape)).reshape(1, *shape)
    planes = network.body[0](places)[0].numpy()  # [C, height, width]: which number of an observation is there
    plane, row, column = (np.ascontiguousarray(axis) for axis in np.unravel_index(planes.argsort(None), planes.shape))
    return PlaneLayout(plane, row, column, height=planes.shape[1] - SIDE + 1, width=planes.shape[2] - SIDE + 1)


def _head_layout(network: Any, width: int) -> MLPLayout:
    """Of two towers without layers, which see what the layer gives."""
    return layout_of(network, width)._replace(mean=np.zeros(width, np.float32), scale=np.ones(width, np.float32))


def _head_scratch(width: int, num_outputs: int) -> Scratch:
    return Scratch(
        x=np.zeros((width, CHUNK), np.float32),
        hidden=np.zeros((0, 1, CHUNK), np.float32),
        change=np.zeros((2, width, CHUNK), np.float32),
        out=np.zeros((num_outputs, CHUNK), np.float32),
        chances=np.zeros((num_outputs, CHUNK), np.float32),
        entropies=np.zeros(CHUNK, np.float32),
    )
