"""headway play [GAME] [--me | --random | --expert | --run RUN] [--seed N] [--temperature T] [--env_options JSON]

Plays one game in the terminal. GAME is a game for agents: one of ours (lights, guess, shop, ...), file.py:Class,
module:Class or library:ID. You type the replies, or the game's own random or expert player does, or the newest weights
of a run do: with the most likely tokens, or drawn at --temperature. Or GAME is a story: mini_world, colossal_cave,
textworld:coin, FILE.z5 or file.py:Class; you type what you do, or its number. Without a game, and as
`headway play colorlines`, it is Colour Lines by hand.
"""

from __future__ import annotations

import difflib
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from rich.console import Console

from headway.agents.env import AgentEnv, EnvironmentLost, Step
from headway.agents.games import GAMES
from headway.agents.loading import env_options, load_env
from headway.agents.players import PlayedConversation, TextPlayer, human, play_episode
from headway.agents.run_player import RunPlayer
from headway.cli import options_output as output
from headway.cli.options_words import UsageError, needs_games, read_options, whole_numbers
from headway.cli.play_story_telling import tell_story
from headway.core.text_naming import unknown
from headway.core.types_opaque import JsonObject, SettingValue
from headway.text_games.loading import STORY_NAMES, is_story, load_story

COLORLINES = "colorlines"
ME = "me"
PLAYERS = (ME, "random", "expert")


def command(words: list[str]) -> int:
    """The command."""
    asked = [name for name in PLAYERS if f"--{name}" in words]
    rest = [word for word in words if word not in [f"--{name}" for name in asked]]
    has_game = bool(rest) and not rest[0].startswith("-")
    game = rest.pop(0) if has_game else COLORLINES
    options = read_options(rest)
    if game == COLORLINES and not asked:
        with needs_games():
            from headway.ppo.colorlines.view_watching import play_by_hand
        play_by_hand(output.OUT, **whole_numbers(options, seed=0))
        return 0
    if game == COLORLINES:
        raise UsageError(f"Colour Lines is played by you alone, received --{asked[0]}: headway play GAME --{asked[0]}")
    if len(asked) > 1:
        raise UsageError(f"one player plays, received {', '.join(f'--{name}' for name in asked)}")
    run, temperature = options.pop("run", None), options.pop("temperature", None)
    if run is not None and asked:
        raise UsageError(f"one player plays, received --run and --{asked[0]}")
    if run is None and temperature is not None:
        raise UsageError("--temperature goes with --run RUN")
    given = env_options(options.pop("env_options", None))
    if _means_story(game):
        if run is not None:
            raise UsageError(f"--run plays games for agents, received the story {game}")
        story = load_story(game, given)
        tell_story(story(), asked[0] if asked else ME, _seed(options), output.OUT)
        return 0
    factory = load_env(game, given)
    seed = _seed(options)
    with ExitStack() as stack:
        player: TextPlayer | str = asked[0] if asked else ME
        if run is not None:
            player = stack.enter_context(closing(_player_of(run, game, given, temperature, seed)))
        try:
            show_episode(factory(), player, seed, output.OUT)
        except EnvironmentLost as lost:
            raise UsageError(lost.what) from None
    return 0


def _means_story(game: str) -> bool:
    """Says whether a name, perhaps with a slip in it, is a story's rather than that of a game for agents."""
    near = difflib.get_close_matches(game, (*STORY_NAMES, *GAMES), n=1)
    return is_story(game) or (game not in GAMES and bool(near) and near[0] in STORY_NAMES)


def _player_of(run: SettingValue, game: str, given: JsonObject, temperature: SettingValue, seed: int) -> RunPlayer:
    if isinstance(run, bool):
        raise UsageError("--run needs the folder of a run: headway play GAME --run RUN")
    heat = 0.0 if temperature is None else temperature
    if isinstance(heat, bool) or not isinstance(heat, int | float) or heat < 0:
        raise UsageError(f"--temperature must be a number >= 0, received {temperature!r}")
    return RunPlayer(Path(str(run)), game, given, temperature=heat, seed=seed)


def show_episode(env: AgentEnv, player: TextPlayer | str, seed: int, out: Console) -> PlayedConversation:
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
    if episode.replies and episode.texts[-1]:
        show(episode.texts[-1])
    outcome = "success" if episode.success else "no success"
    show(f"{outcome}: {episode.total:g} in {len(episode.replies)} turns, seed {seed}")
    return episode


def _seed(options: JsonObject) -> int:
    for name in options:
        if name != "seed":
            raise UsageError(unknown("option", name, (*PLAYERS, "run", "temperature", "seed", "env_options")))
    seed: int = whole_numbers(options, seed=0)["seed"]
    return seed
