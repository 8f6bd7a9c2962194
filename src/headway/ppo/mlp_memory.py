"""What the kernels of mlp_kernels.py work on: the network in a flat vector, rows, scratch, and Adam's memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CHUNK = 256


class MLPLayout(NamedTuple):
    """Where what is in the flat vector. Tower 0 acts, tower 1 estimates the value; the last layer is the head."""

    sizes: np.ndarray  # [L + 1] int64: width of the observation and of each hidden layer
    places: np.ndarray  # [2, L + 1, 2] int64: where weight [out, in] and bias [out] of each layer begin
    choices: np.ndarray  # [G] int64: options of each choice; none if actions are continuous
    num_outputs: int
    log_std: int  # where the log deviations begin, -1: there are none
    mean: np.ndarray  # [D] of the observations
    scale: np.ndarray  # [D]
    normalise: bool


class Scratch(NamedTuple):
    """Memory of one chunk, one row a column."""

    x: np.ndarray  # [D, CHUNK]
    hidden: np.ndarray  # [L, W, CHUNK] activations
    change: np.ndarray  # [2, W, CHUNK] their gradients, of this layer and the one below
    out: np.ndarray  # [A, CHUNK] outputs, then their gradients
    chances: np.ndarray  # [A, CHUNK] of the choices
    entropies: np.ndarray  # [CHUNK]


class MLPRows(NamedTuple):
    """What is learned from."""

    obs: np.ndarray  # [B, D] float32
    choices: np.ndarray  # [B, G] int64
    reals: np.ndarray  # [B, A] float32: continuous actions
    masks: np.ndarray  # [B, A] bool, or [0, A]: everything is legal


class Loss(NamedTuple):
    """The knobs of the loss."""

    clip: float
    value_weight: float
    value_clip: float  # inf: not clipped
    entropy_weight: float
    is_plain: bool  # policy gradient without a ratio


class Memory(NamedTuple):
    """What Adam remembers."""

    moments: np.ndarray  # [2, P] running mean of the gradient, and of its square
    steps: np.ndarray  # [1] int64
    max_norm: float
