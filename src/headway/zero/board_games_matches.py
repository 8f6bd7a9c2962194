"""Play matches of a board game against scripted players and take the share that was won."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from headway.core.text_naming import unknown
from headway.core.types import Score, Snapshot, derive_seed
from headway.envs.evaluator_policies import BestActions
from headway.zero.board_games_package import BoardGames, Game, ScriptedPlayer, minimax_player, play_match, random_player


def opponent(name: str, num_games: int, game: Game, seed: int) -> ScriptedPlayer:
    """random, depth_N (looks N moves ahead) or perfect (looks to the end)."""
    ahead = moves_ahead(name, game)
    return minimax_player(num_games, ahead, seed) if ahead else random_player(num_games, seed)


def moves_ahead(name: str, game: Game) -> int:
    """How far an opponent of this name looks ahead; refuses a name that is none."""
    if name in ("random", "perfect"):
        return 0 if name == "random" else game.num_cells
    depth = name.removeprefix("depth_")
    if depth == name or not depth.isdecimal() or int(depth) < 1:
        raise ValueError(unknown("opponent", name, ("random", "perfect", "depth_2")))
    return int(depth)


class MatchEvaluator:
    """Plays `games` games against each opponent, begins in half of them, and acts without chance.

    The score is the mean over opponents, weighted by `opponents`, of won games plus half of the drawn. For each of them
    the shares of games won, drawn and lost are reported as well.
    """

    def __init__(
        self, make_policy: Callable[[], BestActions], game: Game, opponents: Mapping[str, float], *, games: int
    ) -> None:
        if games < 2:
            raise ValueError(f"a match needs at least 2 games, one begun by each side, received {games!r}")
        if not opponents:
            raise ValueError("an evaluation needs an opponent")
        self._policy = make_policy()
        self._game = game
        self._opponents = dict(opponents)
        self._num = games
        self._is_closed = False

    def close(self) -> None:
        """Nobody waits for a match that may still be under way in another thread: it ends at its next move."""
        self._is_closed = True

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        self._policy.load(snapshot.payload)
        metrics: dict[str, float] = {}
        total = 0.0
        for name, weight in self._opponents.items():
            other = opponent(name, self._num, self._game, derive_seed(seed, name))
            results = play_match(self._game, self._act, other, self._num)
            won, drawn = float((results > 0).mean()), float((results == 0).mean())
            metrics |= {f"won_{name}": won, f"drawn_{name}": drawn, f"lost_{name}": 1 - won - drawn}
            total += weight * (won + 0.5 * drawn)
        return Score(snapshot.version, total / sum(self._opponents.values()), metrics)

    def _act(self, games: BoardGames, asked: np.ndarray) -> np.ndarray:
        """Only the games that ask are searched."""
        if self._is_closed:
            raise RuntimeError("the evaluation was abandoned")
        actions = np.zeros(games.num_envs, np.int64)
        if asked.any():
            actions[asked] = self._policy.best(games.observation()[asked], games.masks()[asked])
        return actions
