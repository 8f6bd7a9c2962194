"""Many games in one vector, stepped by one call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headway.envs.compiled_games_game_kernels import seed_all
from headway.envs.compiled_games_states import require_state
from headway.ppo.colorlines.rules import (
    CELLS,
    COLOURS,
    COMING,
    COMPACT,
    MOVES,
    NEVER,
    RUN,
    first_illegal,
    has_run,
    label_all,
    masks_all,
    origins_all,
    start_all,
    step_all,
    targets_all,
)
from headway.ppo.colorlines.rules_positions import cell_name, planes, potential_of


class ColorLines:
    """`num_envs` games stepped together.

    :param num_envs: games in the vector. More of them share the cost of a call: from about 64 on it is negligible
    :param seed: with the game's index it fixes every draw of that game, whatever the others do
    :param shaping: factor of the potential-based shaping, reward = points + shaping * (gamma * after - before), zero
        potential when the game has ended. 0 leaves the points alone; raising it rewards runs that are begun
    :param gamma: the learner's discount: only with this one does the shaping leave the best policy unchanged
    :param max_steps: a game this long is truncated (not terminated: its last position keeps its value). None: never
    :param same_step: a game that ends is started again in the same step; otherwise its last position is shown, and its
        next move, whatever it is, starts it again with reward 0 (Gymnasium's "next step" mode)
    :param compact: observe [84] uint8 (board, coming colours), from which `planes` makes the usual [15, 9, 9]
    """

    def __init__(
        self,
        num_envs: int,
        seed: int = 0,
        *,
        shaping: float = 0.0,
        gamma: float = 1.0,
        max_steps: int | None = None,
        same_step: bool = True,
        compact: bool = False,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must lie in 0..1, got {gamma}")
        if not np.isfinite(shaping) or shaping < 0:
            raise ValueError(f"shaping must be finite and not negative, got {shaping}")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, or None, got {max_steps}")
        self.num_envs, self.shaping, self.gamma = num_envs, shaping, gamma
        self.max_steps, self.same_step, self.compact = max_steps, same_step, compact
        # What the games are: read as you like, written by `reset`, `step` and `load_state_dict` only.
        self.board = np.zeros((num_envs, CELLS), np.uint8)
        self.coming = np.zeros((num_envs, COMING), np.uint8)
        self.score = np.zeros(num_envs, np.int64)
        self.length = np.zeros(num_envs, np.int64)
        self.ended = np.zeros(num_envs, np.bool_)  # to be started again by the next step; never with `same_step`
        self._rng = np.zeros(num_envs, np.uint64)
        self._labels = np.zeros((num_envs, CELLS + 1), np.uint8)  # of the boards as they are
        self.reset(seed=seed)

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start every game anew; with a seed, as a new vector with that seed would."""
        if seed is not None:
            if not 0 <= seed < 2**64:
                raise ValueError(f"seed must fit in 64 bits without a sign, got {seed}")
            seed_all(np.uint64(seed), self._rng)
        start_all(self.board, self.coming, self._rng)
        self.score[:] = 0
        self.length[:] = 0
        self.ended[:] = False
        label_all(self.board, self._labels)
        return self.observation(), {}

    def step(self, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """One move in every game; an illegal one raises before anything has changed.

        :param moves: [B] integers, from * 81 + to
        :return: observation [B, ...] (of the new game where one ended), reward [B] float32, terminated [B], truncated
            [B], info: `points` [B], and when a game ended `final_obs` [B, ...] (what the move led to, in every row),
            `_final_obs` [B] (the rows that ended), `final_score` [B], `final_length` [B] (valid in those rows)
        """
        moves = np.asarray(moves)
        if moves.shape != (self.num_envs,) or moves.dtype.kind not in "iu":
            raise ValueError(f"moves must be {self.num_envs} integers, got {moves.dtype} of shape {moves.shape}")
        moves = moves.astype(np.int64)
        illegal = first_illegal(self.board, self._labels, self.ended, moves)
        if illegal >= 0:
            raise ValueError(f"game {illegal}: {self.why_illegal(illegal, int(moves[illegal]))}")
        final = np.empty((self.num_envs, COMPACT), np.uint8)
        points = np.empty(self.num_envs, np.int64)
        terminated, truncated = np.empty(self.num_envs, np.bool_), np.empty(self.num_envs, np.bool_)
        before = potential_of(self.board) if self.shaping else 0.0
        moved = ~self.ended
        state = (self.board, self.coming, self.score, self.length, self._rng, self._labels, self.ended)
        step_all(*state, moves, self.max_steps or NEVER, self.same_step, final, points, terminated, truncated)
        reward = points.astype(np.float32)
        if self.shaping:
            after = np.where(terminated, 0.0, potential_of(final[:, :CELLS]))
            reward += (moved * self.shaping * (self.gamma * after - before)).astype(np.float32)
        info: dict[str, np.ndarray] = {"points": points}
        done = terminated | truncated
        if done.any():
            info["final_obs"] = final if self.compact else planes(final)
            info["_final_obs"] = done
            info["final_score"], info["final_length"] = self.score.copy(), self.length.copy()
            if self.same_step:
                self.score[done] = 0
                self.length[done] = 0
        return self.observation(), reward, terminated, truncated, info

    def observation(self) -> np.ndarray:
        """What the players see now: [B, 15, 9, 9], or [B, 84] when compact."""
        compact = np.concatenate([self.board, self.coming], axis=1)
        return compact if self.compact else planes(compact)

    def why_illegal(self, index: int, move: int) -> str | None:
        """What is wrong with a move in one game; None when it is legal."""
        if not 0 <= move < MOVES:
            return f"move {move} is not in 0..{MOVES - 1}"
        origin, target = divmod(move, CELLS)
        if not self.board[index, origin]:
            return f"there is no ball on {cell_name(origin)}"
        if self.board[index, target]:
            return f"{cell_name(target)} is not empty"
        if not self.targets(np.full(self.num_envs, origin))[index, target]:
            return f"no way leads from {cell_name(origin)} to {cell_name(target)}"
        return None

    # -- masks

    def masks(self, out: np.ndarray | None = None) -> np.ndarray:
        """Legal moves [B, 6561] bool, in `out` if given. No row is ever all false, but for games that have `ended`."""
        if out is None:
            out = np.empty((self.num_envs, MOVES), np.bool_)
        if out.shape != (self.num_envs, MOVES) or out.dtype != np.bool_ or not out.flags.c_contiguous:
            raise ValueError(f"out must be contiguous bool [{self.num_envs}, {MOVES}], got {out.dtype} {out.shape}")
        masks_all(self.board, self._labels, out.reshape(self.num_envs, CELLS, CELLS))
        return out

    def origins(self) -> np.ndarray:
        """Balls that can move: [B, 81] bool, the first half of the factorised mask."""
        out = np.empty((self.num_envs, CELLS), np.bool_)
        origins_all(self.board, self._labels, out)
        return out

    def targets(self, origins: np.ndarray) -> np.ndarray:
        """Where the ball on `origins` [B] may go: [B, 81] bool, the second half."""
        origins = np.asarray(origins, np.int64)
        if origins.shape != (self.num_envs,) or origins.min() < 0 or origins.max() >= CELLS:
            raise ValueError(f"origins must be {self.num_envs} cells in 0..{CELLS - 1}, got {origins}")
        out = np.empty((self.num_envs, CELLS), np.bool_)
        targets_all(self.board, self._labels, origins, out)
        return out

    def reachable(self) -> np.ndarray:
        """The mask as a matrix of origin and target: [B, 81, 81] bool."""
        return self.masks().reshape(self.num_envs, CELLS, CELLS)

    # -- checkpoints

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything the games depend on, copied."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("board", "coming", "score", "length", "ended")
        return {**{name: getattr(self, name) for name in names}, "rng": self._rng}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there, bit for bit. Positions that cannot occur between two steps are refused."""
        mine = self._arrays()
        require_state(state, mine)
        board, coming = state["board"], state["coming"]
        if board.max() > COLOURS or coming.max() > COLOURS or coming.min() < 1:
            raise ValueError(f"colours must lie in 1..{COLOURS} (0: empty cell)")
        if state["ended"].any() and self.same_step:
            raise ValueError("a game that has ended is no state of a vector that starts it again in the same step")
        for index, cells in enumerate(np.ascontiguousarray(board)):
            if not state["ended"][index] and (cells.all() or not cells.any() or has_run(cells)):
                raise ValueError(f"game {index}: a board that is full, empty or holds a run of {RUN} is not a position")
        for name, array in mine.items():
            array[:] = state[name]
        label_all(self.board, self._labels)
