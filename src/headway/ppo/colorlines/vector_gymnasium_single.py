"""One game for Gymnasium."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from headway.ppo.colorlines.rules import CELLS, COLOURS, COMING, MOVES, PLANES, SIDE
from headway.ppo.colorlines.rules_positions import legal_moves, planes
from headway.ppo.colorlines.vector import ColorLines

if TYPE_CHECKING:
    import gymnasium

GYMNASIUM_ID = "headway/ColorLines-v0"


@cache
def _single_game() -> type[gymnasium.Env[np.ndarray, np.int64]]:
    """The class is made on first use, so that this file needs no Gymnasium."""
    import gymnasium
    from gymnasium import spaces

    class SingleColorLines(gymnasium.Env[np.ndarray, np.int64]):
        """One game. `info["action_mask"]` [6561] int8 is what `action_space.sample(mask=...)` takes.

        :param illegal: what an illegal move does: "raise", or "stay" (nothing happens, reward 0,
            `info["illegal"]`), for tools that draw moves without looking at the mask
        :param compact: observations are 81 colours and the 3 that come [84] instead of planes
        """

        metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  (Gymnasium's own convention)

        def __init__(
            self,
            *,
            shaping: float = 0.0,
            gamma: float = 1.0,
            max_steps: int | None = None,
            illegal: Literal["raise", "stay"] = "raise",
            compact: bool = False,
            render_mode: str | None = None,
        ) -> None:
            if illegal not in ("raise", "stay"):
                raise ValueError(f'illegal must be "raise" or "stay", got {illegal!r}')
            if render_mode not in (None, "ansi"):
                raise ValueError(f'render_mode must be "ansi" or None, got {render_mode!r}')
            self.observation_space = spaces.Box(0, COMING, (PLANES, SIDE, SIDE), np.uint8)
            if compact:
                self.observation_space = spaces.Box(0, COLOURS, (CELLS + COMING,), np.uint8)
            self.action_space = spaces.Discrete(MOVES)
            self.render_mode = render_mode
            self._illegal = illegal
            self._is_compact = compact
            self._game = ColorLines(1, shaping=shaping, gamma=gamma, max_steps=max_steps, compact=True)
            self._last = self._game.observation()  # [1, 84], the ended position too, unlike the vector's

        def _seen(self, score: int) -> tuple[np.ndarray, dict[str, object]]:
            mask = legal_moves(self._last[:, :CELLS])[0].astype(np.int8)
            seen = self._last if self._is_compact else planes(self._last)
            return seen[0].copy(), {"action_mask": mask, "score": score}

        def reset(
            self, *, seed: int | None = None, options: dict[str, object] | None = None
        ) -> tuple[np.ndarray, dict[str, object]]:
            super().reset(seed=seed)
            self._last, _ = self._game.reset(seed=seed)
            return self._seen(0)

        def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
            if self._illegal == "stay" and self._game.why_illegal(0, int(action)):
                obs, info = self._seen(int(self._game.score[0]))
                return obs, 0.0, False, False, info | {"illegal": True}
            self._last, reward, terminated, truncated, told = self._game.step(np.array([action]))
            score = self._game.score
            if "final_obs" in told:
                self._last, score = told["final_obs"], told["final_score"]
            obs, seen = self._seen(int(score[0]))
            return obs, float(reward[0]), bool(terminated[0]), bool(truncated[0]), seen

        def render(self) -> str | None:
            if self.render_mode is None:
                return None
            rows = self._last[0, :CELLS].reshape(SIDE, SIDE)
            return "\n".join(" ".join(".1234567"[colour] for colour in row) for row in rows)

    return SingleColorLines


def single_game(**options: object) -> gymnasium.Env[np.ndarray, np.int64]:
    """A `gymnasium.Env` of one game; the entry point of `headway/ColorLines-v0`."""
    return _single_game()(**options)


def register() -> None:
    """Make `gymnasium.make("headway/ColorLines-v0")` work. Calling it again does nothing."""
    import gymnasium

    if GYMNASIUM_ID not in gymnasium.registry:
        gymnasium.register(
            GYMNASIUM_ID,
            entry_point=f"{__name__}:single_game",
            vector_entry_point="headway.ppo.colorlines.vector_gymnasium_vector:ColorLinesVector",
        )
