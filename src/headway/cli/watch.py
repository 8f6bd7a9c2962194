"""headway watch RUN [--checkpoint best|last|VERSION] [--seed N] [--episodes N] [--max_steps N] [--quiet]
             [--render MODE | --video FILE.mp4] [--opponent NAME] [--max_moves N] [--mode MODE]

A run's policy plays the environment it was trained in. The newest checkpoint plays, unless another is named.

Gymnasium environments   in a window where there is a screen, in characters where the environment has them, or with
                         --render in one of its render modes (none: nothing is drawn); --video films it instead.
                         Returns and lengths of --episodes episodes are printed.
board games              against --opponent: random, depth_N or perfect (default: the first of the run's own)
colorlines               in the terminal, and as a page in the run folder; --max_moves ends it
priorzero                every move with what the search tried and what the prior thought of it, in the terminal and as
                         a page; --mode says who plays: both, world_model or prior
agent                    one episode of its game in the terminal, with the newest weights

Checkpoints are pickles: watch only runs you trust.
"""

from __future__ import annotations

from pathlib import Path

from headway.cli import options_output as output
from headway.cli.options_output import say
from headway.cli.options_words import UsageError, needs_games, read_options, whole_numbers
from headway.coordinator.checkpoint_best_weights import LAST
from headway.core.text_naming import unknown
from headway.core.types_opaque import JsonObject
from headway.runs.folder import RunFolder
from headway.runs.recipes_package import load_recipe

LANGUAGE = ("grpo", "gsm8k", "sft")
"""Recipes of language models without an environment."""


def command(words: list[str]) -> int:
    """The command."""
    if not words or words[0].startswith("-"):
        raise UsageError("watch needs the folder of a run: headway watch RUN")
    folder = RunFolder.existing(Path(words[0]))
    name, values = folder.read_config()
    options = read_options(words[1:])
    if name == "priorzero":
        return _watch_story(folder, options)
    if name == "colorlines" and "video" not in options and "render" not in options:
        return _watch_colorlines(folder, options)
    if name == "agent":
        return _watch_agent(folder, values, options)
    recipe = load_recipe(name)
    if recipe.load_policy is None or name in LANGUAGE:
        hint = f"; headway samples {folder.path} shows what it said" if name in LANGUAGE else ""
        raise ValueError(f"{folder.path} is a run of {recipe.title!r}, which has no environment to watch{hint}")
    return _watch_policy(folder, options)


def _watch_policy(folder: RunFolder, options: JsonObject) -> int:
    with needs_games():
        from headway.cli.watch_env_watching import MAX_STEPS, Audience, watch_board, watch_policy
        from headway.runs.recipes_loading import load
        from headway.zero.board_games_package import GAMES
    which, render = options.pop("checkpoint", LAST), str(options.pop("render", "auto"))
    video, opponent = options.pop("video", None), options.pop("opponent", None)
    known = {"seed": 0, "episodes": 1, "max_steps": MAX_STEPS, "quiet": False}
    for name in options:
        if name not in known:
            raise UsageError(unknown("option", name, [*known, "checkpoint", "render", "video", "opponent"]))
    numbers = whole_numbers(options, **known)
    if video is not None and not isinstance(video, str):
        raise UsageError("--video needs a file to write: --video FILE.mp4")
    console = None if numbers.pop("quiet") else output.OUT
    policy = load(folder, which)
    say(str(policy.facts))
    game = policy.facts.env.replace("tictactoe", "tic_tac_toe")
    if game in GAMES:
        if video is not None or render != "auto":
            raise UsageError(f"{game} is shown in characters, received --{'render' if video is None else 'video'}")
        against = str(opponent or next(iter(folder.read_config()[1].get("opponents") or ("random",))))
        say(watch_board(policy, game, against, numbers["seed"], console))
        return 0
    if opponent is not None:
        raise UsageError(f"--opponent is for board games, received {policy.facts.env}")
    for line in watch_policy(policy, Audience(**numbers, render=render, video=video), console):
        say(line)
    return 0


def _watch_agent(folder: RunFolder, values: JsonObject, options: JsonObject) -> int:
    from headway.cli.watch_env_watching import watch_agent

    if options.pop("checkpoint", LAST) != LAST:
        raise UsageError("runs of agent are watched with their newest weights: without --checkpoint")
    watch_agent(folder, values, whole_numbers(options, seed=0)["seed"], output.OUT)
    return 0


def _watch_colorlines(folder: RunFolder, options: JsonObject) -> int:
    with needs_games():
        from headway.ppo.colorlines.view_watching import MAX_MOVES, PAGE, watch
    which = options.pop("checkpoint", LAST)
    numbers = whole_numbers(options, seed=0, max_moves=MAX_MOVES, quiet=False)
    frames = watch(folder, None if numbers.pop("quiet") else output.OUT, checkpoint=which, **numbers)
    say(f"{frames[-1].score} points; the game as a page: {folder.path / PAGE}")
    return 0


def _watch_story(folder: RunFolder, options: JsonObject) -> int:
    from headway.text_games.watching_story_watching import PAGE, watch_story

    which, mode = options.pop("checkpoint", LAST), str(options.pop("mode", "both"))
    numbers = whole_numbers(options, seed=0, max_moves=0, quiet=False)
    console = None if numbers.pop("quiet") else output.OUT
    story = watch_story(folder, console, checkpoint=which, mode=mode, **numbers)
    if console is not None:
        console.print(story.ending, markup=False)
    say(f"{story.outcome()} ({story.title}); the story as a page: {folder.path / PAGE}")
    return 0
