"""headway resume RUN [--checkpoint NAME|VERSION] [--FIELD VALUE ...] or headway resume SWEEP [--workers N] [--retry]

Goes on from the last checkpoint, with a longer plan if you like; with --checkpoint from an earlier one (000007-v42,
or the number of its version). What was recorded and saved after that one is set aside. Checkpoints are pickles:
resume only runs you trust."""

from __future__ import annotations

import math
from pathlib import Path

from headway.cli.launch import launch_recipe, show_memory
from headway.cli.options_output import say
from headway.cli.options_words import UsageError, read_options
from headway.cli.sweep import resume as resume_sweep
from headway.coordinator.checkpoint import CheckpointStore
from headway.core.types_opaque import JsonObject
from headway.runs.config import RunConfig, read_values, understand
from headway.runs.folder import RunFolder
from headway.runs.launch_signals import answered_without_a_coordinator
from headway.runs.recipes_package import load_recipe
from headway.tools.sweep.grid_folder import SweepFolder

PLAN = {"updates", "steps", "wall_s", "target_score"}
"""Settings that say when a run is over."""


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
        is_as_it_was = begin is None and set(understand(recipe.config, options)[0]) <= PLAN
        if is_as_it_was and (end := folder.read_end()) is not None and _is_reached(config, end):
            CheckpointStore(folder.checkpoints).load()  # whole, or it says how to go on
            what = "target_score" if end["stop_reason"].startswith("reached a score") else "updates"
            say(
                f"{folder} is complete: {end['stop_reason']}, version {end['version']}; with a longer plan it goes on: "
                f"headway resume {folder} --{what} N"
            )
            return 0
        show_memory(recipe, config)
        launch_recipe(recipe, recipe.stations(config), config, folder, resume=True, checkpoint=begin, quiet=quiet)
    return 0


def _is_reached(config: RunConfig, end: JsonObject) -> bool:
    """Whether a run that ended like this has reached the plan that it has now, with nothing to make up for."""
    if not end["complete"] or end.get("evaluations_abandoned"):
        return False
    values = [score["value"] for score in end["scores"] if score["value"] is not None]
    return (
        (config.updates is not None and end["updates"] >= config.updates)
        or end["stop_reason"] in (f"reached {config.steps} steps", f"reached {config.wall_s or 0:g} seconds")
        or (config.target_score is not None and max(values, default=-math.inf) >= config.target_score)
    )
