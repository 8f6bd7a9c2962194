"""headway run [RECIPE] [--config FILE] [--names SYSTEM] [--replay RUN] [--runs FOLDER] [--quiet] [--FIELD VALUE]

RECIPE is a name, or a file of your own that ends in .py. Settings known from other systems are understood too,
nested ones as group.name=value: see headway explain. --names says whose they are, where systems mean different
things by one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headway.cli.explain_recipe_help import explain_recipe
from headway.cli.launch import start
from headway.cli.lightzero import read_file
from headway.cli.options_output import print_table, say
from headway.cli.options_words import UsageError, config_file, read_options
from headway.coordinator.rerun import replay
from headway.coordinator.roles import Stations
from headway.core.types_opaque import SettingValue
from headway.runs.config import read_values
from headway.runs.event_log import read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RecordedSettings, RunFolder
from headway.runs.recipes_package import RECIPES, load_recipe
from headway.tools.names import roll, sb3


def command(words: list[str]) -> int:
    """The command."""
    recipe_name = words.pop(0) if words and not words[0].startswith("-") and "=" not in words[0] else ""
    if not recipe_name and words[:1] in (["-h"], ["--help"]):
        return _help_run()
    options = read_options(words)
    if "replay" in options:
        path = Path(str(options.pop("replay")))
        if options or recipe_name:
            raise UsageError("--replay repeats a run as it was: it takes no recipe and no other option")
        return _replay(path)
    values: dict[str, SettingValue] = {}
    file = config_file(options)
    if file is not None:
        named, values = read_file(file)
        values = sb3.of_one_environment(values, options.get("env", options.get("env_id")))
        recipe_name = recipe_name or named or ("agent" if roll.is_file(values) else "")
    if not recipe_name:
        raise UsageError(f"run needs a recipe: {', '.join(RECIPES)}")
    recipe = load_recipe(recipe_name)
    if "help" in options or "h" in options:
        return explain_recipe(recipe, every="all" in (options.get("help"), options.get("h")))
    root = Path(str(options.pop("runs", "runs")))
    quiet = bool(options.pop("quiet", False))
    start(recipe, values, options, root=root, quiet=quiet)
    return 0


def _replay(path: Path) -> int:
    folder = RunFolder.existing(path)
    name, values = folder.read_config()
    recipe = load_recipe(name)

    def stations_for(config: Mapping[str, object] | None) -> Stations:
        """Of one session: with the settings it had."""
        told = values if config is None else {key: value for key, value in config.items() if key != "recipe"}
        return recipe.stations(read_values(recipe.config, RecordedSettings(told)))

    winner = folder.recorded_winner()
    done = replay(stations_for, read_events(folder.events), until_version=winner)
    print_now = fingerprint(done.weights)
    say(f"replayed {done.updates} updates to version {done.version}: weights {print_now}")
    lines = {name: fingerprint(line.weights) for name, line in done.lines.items()}
    for name, line in done.lines.items():
        say(f"line {name}: {line.updates} updates to version {line.version}: weights {lines[name]}")
    recorded = folder.recorded_fingerprint()
    if recorded is None:
        say("the run did not finish, so there is nothing to compare with")
        return 0
    same = recorded == print_now and (winner is not None or folder.recorded_lines() == lines)  # they have gone on
    told = ", ".join([recorded, *folder.recorded_lines().values()])
    say("the same bits as recorded" if same else f"NOT the recorded {told}")
    return 0 if same else 1


def _help_run() -> int:
    say(__doc__)
    print_table(["recipe", "what it is"], [[name, what] for name, what in RECIPES.items()])
    say("headway run RECIPE --help lists its settings")
    return 0
