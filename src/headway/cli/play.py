"""headway play [GAME] [--me | --random | --expert] [--seed N] [--env_options JSON]

Plays one game in the terminal. GAME is a game for agents: one of ours (lights, guess, shop, ...), file.py:Class,
module:Class or library:ID. You type the replies, or the game's own random or expert player does. Without a game, and
as `headway play colorlines`, it is Colour Lines by hand.
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from headway.cli import output
from headway.cli.words import UsageError, needs_games, read_options, whole_numbers
from headway.core.naming import unknown
from headway.envs.agents.interface import AgentEnv, EnvironmentLost, Step
from headway.envs.agents.loading import env_options, load_env
from headway.envs.agents.players import PlayedEpisode, TextPlayer, human, play_episode

COLORLINES = "colorlines"
ME = "me"
PLAYERS = (ME, "random", "expert")


def command(words: list[str]) -> int:
    """The command."""
    asked = [name for name in PLAYERS if f"--{name}" in words]
    rest = [word for word in words if word.removeprefix("--") not in asked or word in asked]
    has_game = bool(rest) and not rest[0].startswith("-")
    game = rest.pop(0) if has_game else COLORLINES
    options = read_options(rest)
    if game == COLORLINES and not asked:
        with needs_games():
            from headway.cli.watching import play_by_hand
        play_by_hand(output.OUT, **whole_numbers(options, seed=0))
        return 0
    if game == COLORLINES:
        raise UsageError(f"Colour Lines is played by you alone, received --{asked[0]}: headway play GAME --{asked[0]}")
    if len(asked) > 1:
        raise UsageError(f"one player plays, received {', '.join(f'--{name}' for name in asked)}")
    player = asked[0] if asked else ME
    factory = load_env(game, env_options(options.pop("env_options", None)))
    seed = _seed(options)
    try:
        show_episode(factory(), player, seed, output.OUT)
    except EnvironmentLost as lost:
        raise UsageError(lost.what) from None
    return 0


def show_episode(env: AgentEnv, player: TextPlayer | str, seed: int, out: Console) -> PlayedEpisode:
    """Plays one episode and prints it while it goes on: texts, replies, rewards, and how it came out."""
    prefix = str(getattr(env, "reply_prefix", ""))
    is_typed = player == ME
    chosen = human(sys.stdin, lambda: out.print(f"> {prefix}", end=" ", markup=False)) if is_typed else player

    def show(text: str) -> None:
        out.print(text, markup=False)

    def answered(reply: str, step: Step) -> None:
        if not is_typed:  # a person has just seen it
            out.print(f"> {prefix} {reply}" if prefix else f"> {reply}", markup=False, style="bold")
        if step.reward:
            out.print(f"  reward {step.reward:g}", markup=False, style="dim")

    episode = play_episode(env, chosen, seed, on_text=show, on_reply=answered)
    if episode.replies:
        show(episode.texts[-1])
    outcome = "success" if episode.success else "no success"
    show(f"{outcome}: {episode.total:g} in {len(episode.replies)} turns, seed {seed}")
    return episode


def _seed(options: dict[str, Any]) -> int:
    for name in options:
        if name != "seed":
            raise UsageError(unknown("option", name, (*PLAYERS, "seed", "env_options")))
    seed: int = whole_numbers(options, seed=0)["seed"]
    return seed
