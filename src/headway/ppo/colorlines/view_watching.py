"""Colour Lines for an audience: a trained policy plays in the terminal and on a page, or a person plays.

run folder ──newest or best checkpoint──> policy ──> play() ──> terminal
                                                        └─────> watch.html in the run folder
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console

from headway.coordinator.checkpoint_best_weights import LAST, kept_weights
from headway.coordinator.state_files_whole_files import write_whole
from headway.ppo.colorlines import recipe as colorlines
from headway.ppo.colorlines.network_cells import CellsActor
from headway.ppo.colorlines.vector import ColorLines
from headway.ppo.colorlines.view import Frame, Player, animate, human, play
from headway.runs.config import read_values
from headway.runs.folder import RunFolder
from headway.runs.recipes_package import load_recipe

PAGE = "watch.html"
MAX_MOVES = 2000  # a strong policy may play for hours


def watch(
    folder: RunFolder,
    console: Console | None,
    *,
    checkpoint: str | int = LAST,
    seed: int = 0,
    max_moves: int = MAX_MOVES,
) -> list[Frame]:
    """One game of the policy of a checkpoint (`last`, `best` or a version); its page is left in the run folder."""
    name, values = folder.read_config()
    config = read_values(load_recipe(name).config, values)
    kept = kept_weights(folder.checkpoints, checkpoint)
    policy = colorlines.policy(config)  # type: ignore[arg-type]  # the recipe's own config, by its name
    policy.load(kept.weights)
    frames = play(_most_likely(policy), console, seed=seed, max_steps=max_moves)
    title = f"Colour Lines: version {kept.version}, {frames[-1].score} points in {len(frames) - 1} moves"
    write_whole(folder.path / PAGE, animate(frames, title))
    return frames


def play_by_hand(console: Console, *, seed: int = 0) -> list[Frame]:
    """One game of a person who types moves."""
    return play(human(sys.stdin, console), console, seed=seed)


def _most_likely(policy: CellsActor) -> Player:
    def choose(env: ColorLines) -> int:
        return int(policy.best(env.observation().astype(np.float32), None)[0])

    return choose
