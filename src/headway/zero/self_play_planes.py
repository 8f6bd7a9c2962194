"""What a model that searches sees of a Gymnasium environment: pictures as planes, bytes as bytes.

    Box uint8  [height, width, 3]  -->  [3, height, width]       channels last: 1, 3 or 4, fewer than both sides
               [4, height, width]  -->  as it is                 channels first: fewer than both sides
               [height, width]     -->  [1, height, width]
    anything else                  -->  its features as float32 (`as_features`)

The one place where axes are moved. Bytes stay bytes until a network reads them: a replay of floats is four times as
large.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from headway.envs.gymnasium_vector import SMALLEST_SIDE, Space, as_features, describe_spaces, is_bytes

CHANNELS_LAST = (1, 3, 4)


def seen_shape(space: Space) -> tuple[int, ...]:
    """The shape of one observation as it is seen; one clear line for a picture nobody could read."""
    shape = describe_spaces(space, spaces.Discrete(1)).observation
    if not isinstance(space, spaces.Box):
        return shape
    if _ends_with_channels(shape):
        return (shape[2], *shape[:2])
    if not is_bytes(space) or len(shape) < 2 or sorted(shape)[-2] < SMALLEST_SIDE:
        return shape
    if len(shape) == 2 and min(shape) >= SMALLEST_SIDE:
        return (1, *shape)
    if len(shape) == 3 and shape[0] < min(shape[1:]):
        return shape
    raise ValueError(
        f"observations {list(shape)} of bytes are no picture that can be read; allowed: [height, width], "
        "[height, width, channels] with 1, 3 or 4 channels, [channels, height, width] with fewer channels than either"
    )


def is_picture(shape: tuple[int, ...]) -> bool:
    """Planes [C, height, width] that are no small board, which is seen as a vector unless somebody says otherwise."""
    return len(shape) == 3 and min(shape[1:]) >= SMALLEST_SIDE


def as_seen(observations: object, space: Space) -> np.ndarray:
    """Observations of N copies as they are seen, [N, ...]: uint8 if they are bytes, else float32."""
    seen = np.array(observations) if is_bytes(space) else as_features(observations, space)
    if isinstance(space, spaces.Box) and _ends_with_channels(space.shape):
        seen = np.moveaxis(seen, -1, 1)
    return np.ascontiguousarray(seen.reshape(len(seen), *seen_shape(space)))


def _ends_with_channels(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] in CHANNELS_LAST and min(shape[:2]) > shape[2]
