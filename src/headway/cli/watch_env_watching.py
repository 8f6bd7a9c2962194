"""A run's policy plays the environment it was trained in, for an audience: on the screen, in characters, or on film."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from headway.agents.loading import load_env
from headway.cli.options_words import UsageError
from headway.core.text_naming import unknown
from headway.core.types_opaque import JsonObject
from headway.runs.folder import RunFolder

NOTHING, BY_ITSELF = "none", "auto"
MAX_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Audience:
    """How a policy is watched."""

    seed: int = 0
    episodes: int = 1
    max_steps: int = MAX_STEPS
    render: str = BY_ITSELF
    """One of the environment's render modes, or none; auto: a window where there is a screen, characters where the
    environment draws with them, else nothing but how episodes came out."""
    video: str | None = None
    """The file that is written instead."""


def watch_policy(policy: Any, audience: Audience, console: Console | None) -> list[str]:
    """Lets a policy play its environment; a line for every episode."""
    if audience.video is not None:
        from headway.envs.policy_video import record_video

        if audience.render != BY_ITSELF:
            raise UsageError("--render and --video exclude each other")
        played = record_video(
            policy, audience.video, episodes=audience.episodes, seed=audience.seed, max_steps=audience.max_steps
        )
        return [*_lines(played, audience.seed), f"the film: {audience.video}"]
    mode = _render_mode(policy, audience.render)
    env = policy.make_env(mode)
    try:
        played = policy.play(
            audience.episodes,
            env=env,
            seed=audience.seed,
            max_steps=audience.max_steps,
            on_step=_printer(console) if mode == "ansi" and console is not None else None,
        )
    finally:
        env.close()
    return _lines(played, audience.seed)


def _lines(played: Sequence[Any], first_seed: int) -> list[str]:
    lines = []
    for number, episode in enumerate(played):
        cut = ", cut" if episode.is_cut else ""
        lines.append(f"seed {first_seed + number}: return {episode.total:g} in {episode.steps} steps{cut}")
    if len(played) > 1:
        total = np.mean([one.total for one in played])
        lines.append(f"mean: return {total:g} in {np.mean([one.steps for one in played]):g} steps")
    return lines


def _render_mode(policy: Any, asked: str) -> str | None:
    plain = policy.make_env(None)
    modes = [str(mode) for mode in plain.metadata.get("render_modes", ())]
    plain.close()
    if asked == BY_ITSELF:
        asked = "human" if "human" in modes and _has_screen() else "ansi" if "ansi" in modes else NOTHING
    if asked != NOTHING and asked not in modes:
        raise ValueError(unknown("render mode", asked, [BY_ITSELF, NOTHING, *modes]))
    return None if asked == NOTHING else asked


def _has_screen() -> bool:
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _printer(console: Console) -> Callable[[Any], None]:
    def show(env: Any) -> None:
        console.print(env.render(), markup=False, end="\n\n")

    return show


# -- board games ------------------------------------------------------------------------------------


def watch_board(policy: Any, game: str, opponent_name: str, seed: int, console: Console | None) -> str:
    """A game against a scripted opponent, whose turn comes second with an even seed."""
    from headway.zero.board_games_matches import opponent
    from headway.zero.board_games_package import BoardGames

    games = BoardGames(game, 1, restarts=False)
    other = opponent(opponent_name, 1, games.game, seed)
    own = seed % 2
    result = 0.0
    while not games.ended[0]:
        is_own = int(games.to_play[0]) == own
        if is_own:
            actions = policy.act(games.observation(), mask=games.masks())
        else:
            actions = other(games)
        _, rewards, _ = games.step(actions)
        result = float(rewards[0]) if is_own else -float(rewards[0])
        if console is not None:
            console.print(f"{'the policy' if is_own else opponent_name} plays {int(actions[0])}", markup=False)
            console.print(games.text(), markup=False, end="\n\n")
    how = {1.0: "won", -1.0: "lost"}.get(result, "drawn")
    return f"{how} against {opponent_name} after {int(games.length[0])} moves, as {'xo'[own]}, seed {seed}"


# -- games for agents -------------------------------------------------------------------------------


def watch_agent(folder: RunFolder, values: JsonObject, seed: int, console: Console) -> None:
    """An episode of the newest weights in the game they were trained in."""
    from headway.agents.run_player import RunPlayer
    from headway.cli.play import show_episode

    env, options = str(values.get("env") or ""), values.get("env_options") or {}
    if not env or values.get("agent"):
        raise ValueError(f"{folder.path} has no game of its own that could be watched")
    player = RunPlayer(Path(folder.path), env, options, seed=seed)
    try:
        show_episode(load_env(env, options)(), player, seed, console)
    finally:
        player.close()
