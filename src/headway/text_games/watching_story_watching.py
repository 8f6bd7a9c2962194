"""A run's policy plays a story for an audience: for every move what the search tried and what the prior thought of it.

    checkpoint --> world model, prior --> one game: ask, search, act --> a table a move --> the terminal, watch.html

The table has the candidates, most visited first: visits, the world model's own policy, the prior, the value found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from headway.coordinator.checkpoint_best_weights import LAST, kept_weights
from headway.coordinator.state_files_whole_files import write_whole
from headway.core.text_naming import unknown
from headway.core.types import Snapshot
from headway.runs.config import read_values
from headway.runs.folder import RunFolder
from headway.runs.recipes_package import load_recipe
from headway.text_games.guidance import Guide, drawn_by_prior
from headway.text_games.vector_story_games import StoryGames
from headway.text_games.watching_story_page import rounded, story_page
from headway.zero.planner_planning import Planner
from headway.zero.planner_prior_weight import Mode
from headway.zero.search_batched import choose_actions

PAGE = "watch.html"
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that could be done, and what each side thought of it."""

    action: str
    visits: int
    policy: float
    """The world model's own opinion before any search."""
    prior: float | None
    """None: nobody was asked, or the answer came too late."""
    value: float | None
    """What the search found it worth; None: it was never tried."""
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class WatchedMove:
    """A scene, what could be done in it, and what came of what was done."""

    text: str
    score: float
    candidates: tuple[Candidate, ...]
    """The most visited first."""
    value: float
    """Of the scene, as the search found it."""
    reward: float
    unseen: int
    """Candidates that found no slot."""

    @property
    def action(self) -> str:
        return next(one.action for one in self.candidates if one.is_chosen)


@dataclass(frozen=True, slots=True)
class WatchedStory:
    """A whole episode."""

    title: str
    objective: str
    moves: tuple[WatchedMove, ...]
    ending: str
    """What the game said last."""
    score: float
    max_score: float | None
    is_won: bool
    is_over: bool

    def outcome(self) -> str:
        """`won: 1 of 1 points after 8 moves`"""
        how = "won" if self.is_won else "over" if self.is_over else "cut"
        most = "" if self.max_score is None else f" of {self.max_score:g}"
        moves = "1 move" if len(self.moves) == 1 else f"{len(self.moves)} moves"
        return f"{how}: {self.score:g}{most} points after {moves}"


def watch_story(
    folder: RunFolder,
    console: Console | None,
    *,
    checkpoint: str | int = LAST,
    seed: int = 0,
    max_moves: int = 0,
    mode: str = "both",
) -> WatchedStory:
    """One episode of a checkpoint (`last`, `best` or a version), played by both, the world model or the prior; its page
    is left in the run folder. `max_moves` 0: as many as in an evaluation."""
    if mode not in MODES:
        raise ValueError(unknown("mode", str(mode), MODES))
    if max_moves < 0:
        raise ValueError(f"max_moves must be >= 0, received {max_moves!r}")
    from headway.text_games.recipe_priorzero import PriorZeroConfig, seen_by_an_audience

    name, values = folder.read_config()
    config = read_values(load_recipe(name).config, values)
    assert isinstance(config, PriorZeroConfig)
    if mode != "world_model" and not config.has_prior:
        if mode == "prior":
            raise ValueError(f"{folder.path} has no prior that could play: it was run with prior={config.prior!r}")
        mode = "world_model"
    kept = kept_weights(folder.checkpoints, checkpoint)
    with ExitStack() as stack:
        games, planner, guide = seen_by_an_audience(config, mode, seed, max_moves)  # type: ignore[arg-type]
        stack.enter_context(closing(games))
        stack.enter_context(closing(guide))
        title = f"{config.env}: {kept.title()}, {mode.replace('_', ' ')}, seed {seed}"
        tell = None if console is None else teller(console)
        story = played_for_an_audience(games, planner, guide, kept.snapshot, title=title, seed=seed, tell=tell)
    write_whole(folder.path / PAGE, story_page(story))
    return story


def played_for_an_audience(
    games: StoryGames,
    planner: Planner,
    guide: Guide,
    snapshot: Snapshot,
    *,
    title: str = "",
    seed: int = 0,
    tell: Callable[[str, WatchedMove], None] | None = None,
) -> WatchedStory:
    """One episode of the only game. `tell` is given the objective, before the first move, and every move."""
    planner.load(snapshot.payload)
    guide.load(snapshot)
    rng, moves = np.random.default_rng(seed), list[WatchedMove]()
    game, score = games.games[0], games.scenes[0].score
    objective = game.objective
    for move in _moves(games, planner, guide, rng):
        if tell is not None:
            tell("" if moves else objective, move)
        moves.append(move)
        score = move.score + move.reward
    last = games.scenes[0]
    return WatchedStory(title, objective, tuple(moves), last.text, score, game.max_score, last.is_won, last.is_over)


def _moves(games: StoryGames, planner: Planner, guide: Guide, rng: np.random.Generator) -> Iterator[WatchedMove]:
    """Every move of one episode of the only game."""
    history = planner.history(games.obs)
    while not games.ended[0]:
        advice = guide.advise(games)
        scene, shown, obs, legal = games.scenes[0], games.shown[0], games.obs, games.legal
        thought = _Thoughts(guide)
        result = planner.plan(
            obs,
            rng,
            legal=legal,
            noise=False,
            past=None if history is None else history.past,
            prior=advice.priors,
            prior_weight=thought,
        )
        if guide.mode == "prior":
            actions = drawn_by_prior(advice.priors, legal, 0.0, rng)
        else:
            actions = choose_actions(result, 0.0, rng, legal)
        is_known = bool(advice.priors[0].any())
        candidates = [
            Candidate(
                action,
                int(result.visits[0, slot]),
                float(thought.policy[slot]),
                float(advice.priors[0, slot]) if is_known else None,
                float(result.q[0, slot]) if result.visits[0, slot] else None,
                slot == actions[0],
            )
            for slot, action in enumerate(shown)
        ]
        rewards, _, _ = games.step(actions)
        if history is not None:
            history.add(obs, actions)
        ordered = tuple(sorted(candidates, key=lambda one: (-one.visits, -one.policy)))
        unseen = len(scene.candidates) - len(shown)
        yield WatchedMove(scene.text, scene.score, ordered, float(result.values[0]), float(rewards[0]), unseen)


class _Thoughts:
    """The share of the prior at a root, which also keeps what the model thinks of it before any search."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self.policy = np.zeros(0, np.float32)

    def __call__(self, logits: np.ndarray, legal: np.ndarray) -> np.ndarray:
        powers = np.exp(logits[0] - logits[0][legal[0]].max()) * legal[0]
        self.policy = powers / powers.sum()
        if not self._guide.is_searched_with:
            return np.zeros(len(logits), np.float32)
        share = self._guide.share
        return share(logits, legal) if callable(share) else np.full(len(logits), share, np.float32)


# -- in the terminal ----------------------------------------------------------------------------------


def teller(out: Console) -> Callable[[str, WatchedMove], None]:
    """Prints every move as it is made."""

    def tell(objective: str, move: WatchedMove) -> None:
        if objective:
            out.print(objective, markup=False, style="bold")
        out.print(move.text, markup=False)
        out.print(move_table(move))
        out.print(f"> {move.action}", markup=False, style="bold")
        if move.reward:
            out.print(f"  reward {move.reward:g}", markup=False, style="dim")

    return tell


def move_table(move: WatchedMove) -> Table:
    """What could be done: visits of the search, and beside them what the model and the prior thought."""
    unseen = "" if not move.unseen else f"; {move.unseen} candidates found no slot"
    caption = f"score {move.score:g}, the search expects {rounded(move.value)} more{unseen}"
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    for name, justify in (("candidate", "left"), *((name, "right") for name in ("visits", "policy", "prior", "value"))):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]  # one of two of its words
    for one in move.candidates:
        table.add_row(*cells_of(one), style="bold" if one.is_chosen else "")
    return table


def cells_of(one: Candidate) -> tuple[str, str, str, str, str]:
    """A line of the table; what is not known is a dash."""
    prior = "-" if one.prior is None else f"{one.prior:.2f}"
    value = "-" if one.value is None else rounded(one.value)
    return one.action, str(one.visits), f"{one.policy:.2f}", prior, value
