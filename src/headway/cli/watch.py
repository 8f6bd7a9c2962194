"""headway watch RUN [--checkpoint best|last|VERSION] [--seed N] [--max_moves N] [--mode MODE] [--quiet]

A run's policy plays a game in the terminal, and leaves it as a page in the run folder. Runs of colorlines and of
priorzero can be watched: a story is shown move by move with what the search tried and what the prior thought of it;
--mode says who plays it: both, world_model or prior. The newest checkpoint plays, unless another is named. Checkpoints
are pickles: watch only runs you trust.
"""

from __future__ import annotations

from pathlib import Path

from headway.cli import output
from headway.cli.output import say
from headway.cli.words import UsageError, needs_games, read_options, whole_numbers
from headway.coordinate.best_weights import LAST
from headway.core.opaque import JsonObject
from headway.observe.folder import RunFolder

WATCHED = ("colorlines", "priorzero")
"""The recipes whose runs can be watched."""


def command(words: list[str]) -> int:
    """The command."""
    if not words or words[0].startswith("-"):
        raise UsageError("watch needs the folder of a run: headway watch RUN")
    folder = RunFolder.existing(Path(words[0]))
    recipe, _ = folder.read_config()
    options = read_options(words[1:])
    if recipe not in WATCHED:
        known = " and ".join(f"{name!r}" for name in WATCHED)
        raise ValueError(f"{folder.path} is a run of {recipe!r}; only runs of {known} can be watched")
    return _watch_story(folder, options) if recipe == "priorzero" else _watch_colorlines(folder, options)


def _watch_colorlines(folder: RunFolder, options: JsonObject) -> int:
    with needs_games():
        from headway.cli.watching import MAX_MOVES, PAGE, watch
    which = options.pop("checkpoint", LAST)
    numbers = whole_numbers(options, seed=0, max_moves=MAX_MOVES, quiet=False)
    frames = watch(folder, None if numbers.pop("quiet") else output.OUT, checkpoint=which, **numbers)
    say(f"{frames[-1].score} points; the game as a page: {folder.path / PAGE}")
    return 0


def _watch_story(folder: RunFolder, options: JsonObject) -> int:
    from headway.cli.story_watching import PAGE, watch_story

    which, mode = options.pop("checkpoint", LAST), str(options.pop("mode", "both"))
    numbers = whole_numbers(options, seed=0, max_moves=0, quiet=False)
    console = None if numbers.pop("quiet") else output.OUT
    story = watch_story(folder, console, checkpoint=which, mode=mode, **numbers)
    if console is not None:
        console.print(story.ending, markup=False)
    say(f"{story.outcome()} ({story.title}); the story as a page: {folder.path / PAGE}")
    return 0
