"""Ways to see a board in which the game stays the same."""

from __future__ import annotations

import numpy as np


class BoardViews:
    """S ways to see observations [..., cells] and actions: which of the old is at each new place.

    :param cells: [S, cells]
    :param actions: [S, A]
    """

    def __init__(self, cells: np.ndarray, actions: np.ndarray, observation: tuple[int, ...], num_actions: int) -> None:
        named = (("cells", cells, int(np.prod(observation[1:]))), ("actions", actions, num_actions))
        for name, of, size in named:
            every = np.broadcast_to(np.arange(size), of.shape) if of.shape[1:] == (size,) else None
            if every is None or not np.array_equal(np.sort(of, 1), every):
                raise ValueError(f"a symmetry exchanges all {size} {name}: [S, {size}], received {of.tolist()}")
        if len(cells) != len(actions):
            raise ValueError(f"{len(cells)} symmetries of cells and {len(actions)} of actions: each needs both")
        self._cells, self._actions = cells, actions
        self._places = np.argsort(actions, 1)  # where each of the old actions is

    def __len__(self) -> int:
        return len(self._cells)

    def see(self, draw: dict[str, np.ndarray], ways: np.ndarray) -> None:
        """Each window of a draw in its own way [B]."""
        for name in ("obs", "bootstrap_obs"):
            if name in draw:
                flat = draw[name].reshape(*draw[name].shape[:3], -1)  # [H + 1, B, planes, cells]
                seen = np.take_along_axis(flat, self._cells[ways][None, :, None], -1)
                draw[name] = seen.reshape(draw[name].shape)
        draw["policies"] = np.take_along_axis(draw["policies"], self._actions[ways][None], -1)
        draw["actions"] = np.take_along_axis(self._places[ways], draw["actions"].T, 1).T.copy()
