"""headway resume RUN [--checkpoint NAME|VERSION] [--FIELD VALUE ...] or headway resume SWEEP [--workers N] [--retry]

Goes on from the last checkpoint, with a longer plan if you like; with --checkpoint from an earlier one (000007-v42,
or the number of its version). What was recorded and saved after that one is set aside. Checkpoints are pickles:
resume only runs you trust."""

from __future__ import annotations

from pathlib import Path

from headway.cli.starting import launch_recipe, show_memory
from headway.cli.sweep import resume as resume_sweep
from headway.cli.words import UsageError, read_options
from headway.coordinate.checkpoint import CheckpointStore
from headway.launching.signals import answered_without_a_coordinator
from headway.observe.folder import RunFolder
from headway.recipes import load_recipe
from headway.recipes.config import read_values
from headway.sweeping.folder import SweepFolder


@answered_without_a_coordinator()
def command(words: list[str]) -> int:
    """The command."""
    if not words or words[0].startswith("-"):
        raise UsageError("resume needs the folder of a run: headway resume RUN")
    if SweepFolder.is_one(Path(words[0])):
        return resume_sweep({"resume": words[0], **read_options(words[1:], as_written=True)})
    folder = RunFolder.existing(Path(words[0]))
    options = read_options(words[1:])
    quiet = bool(options.pop("quiet", False))
    with folder.hold():  # before anything is read
        begin = options.pop("checkpoint", None)
        if begin is not None:
            store = CheckpointStore(folder.checkpoints)
            if begin is True:
                there = ", ".join(path.name for path in store.all()) or "none"
                raise UsageError(f"--checkpoint needs a name or a version; there: {there}")
            store.find(begin)  # before anything is built
        name, values = folder.read_config()
        recipe = load_recipe(name)
        config = read_values(recipe.config, values, options)
        show_memory(recipe, config)
        launch_recipe(recipe, recipe.stations(config), config, folder, resume=True, checkpoint=begin, quiet=quiet)
    return 0
