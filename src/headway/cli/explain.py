"""headway explain [NAME | NAME=VALUE ...] [--names SYSTEM] or --from SYSTEM or [RECIPE] --config FILE

What names from other systems are here. A name that means different things in different systems is shown with all
of its meanings, or with --names in that of one. --from sb3 shows all names of one system."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headway.cli import options_output as output
from headway.cli.explain_recipe_help import assignments
from headway.cli.lightzero import read_file
from headway.cli.options_output import print_table, say
from headway.cli.options_words import UsageError, any_value, config_file, read_options, scalar
from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.runs.config import RunConfig, defaults_of, in_our_words, read_values
from headway.runs.recipes_package import RECIPES, load_recipe
from headway.text_games.loading_story_defaults import story_defaults
from headway.tools.names import lightzero as lightzero_names
from headway.tools.names import roll, sb3, verl, verl_agent
from headway.tools.names import translate_nested_paths as nested_paths
from headway.tools.names import translate_peers as peers
from headway.tools.names.flat import KNOWN_NAMES, SYSTEMS, KnownName, OtherMeaning
from headway.tools.names.rows_peer_rows import NOT_HERE
from headway.tools.names.translate_layers import Said


def command(words: list[str]) -> int:
    """The command."""
    if any(
        word.partition("=")[0].replace("_", "-") in ("--config", "--config-path", "--config-name") for word in words
    ):
        return _explain_file(words)
    if words and words[0].partition("=")[0] == "--from":
        return _explain_system(words)
    if words:
        words, names = _named_system(words)
        pairs = [word.lstrip("-").partition("=") for word in words]
        together = {name: any_value(text) for name, has_value, text in pairs if has_value}
        for name, has_value, text in pairs:
            if name == "env" and has_value and names is None:
                _explain_env(text)
                continue
            known = KNOWN_NAMES.get(name)
            if names is not None and _explain_peers(name, names, together):
                continue
            if known is None and (nested_paths.find_path(name) or nested_paths.is_theirs(name, {})):
                _explain_path(name, together)
                _explain_peers(name, names, together, others=True)
                continue
            if known is None and name in lightzero_names.ALONE:
                path = lightzero_names.ALONE[name]
                _explain_path(path, {**together, **({path: together[name]} if has_value else {})})
                continue
            if known is None and _explain_peers(name, None, together):
                continue
            if known is None:
                _explain_ours(name)
                continue
            value = scalar(text) if has_value else known.example
            for settings, meaning in _meanings(known, value, names, together):
                say(f"{name}={value}  ->  {settings}   ({meaning})")
        return 0
    rows = [
        [f"{known.name}={known.example}", ours, meaning]
        for known in KNOWN_NAMES.values()
        for ours, meaning in _meanings(known, known.example)
    ]
    print_table(["known name", "in Headway", "meaning"], rows)
    for table in nested_paths.TABLES:
        output.OUT.print()
        print_table(["nested name", "in Headway"], [[known.path, known.ours] for known in table.PATHS.values()])
        output.OUT.print()
        print_table(["without effect", "because"], [[path, why] for path, why in table.WITHOUT_EFFECT.items()])
    return 0


def _explain_ours(name: str) -> None:
    """A setting of every recipe, or of some; what nobody knows is refused with the nearest name."""
    known = {*KNOWN_NAMES, *lightzero_names.ALONE, *(one for table in peers.TABLES.values() for one in table)}
    for recipe in ("", *RECIPES):
        kind = load_recipe(recipe).config if recipe else RunConfig
        if name in kind.model_fields:
            say(f"{name}{f' (of {recipe})' if recipe else ''}: {kind.model_fields[name].description}")
            return
        known |= kind.model_fields.keys()
    raise UsageError(
        f"{unknown('name', name, (), also=known).removesuffix(' allowed: ').rstrip(';')}; headway explain lists all"
    )


def _explain_env(env: str) -> None:
    """Which defaults a story game has of its own."""
    own = story_defaults(env)
    say(f"env={env}  ->  {assignments(own)}   (priorzero)" if own else f"env={env} has the defaults of its recipe")


def _named_system(words: list[str], option: str = "--names") -> tuple[list[str], str | None]:
    """Whose names an option says they are, and the other words."""
    place = next((at for at, word in enumerate(words) if word.partition("=")[0] == option), None)
    if place is None:
        return words, None
    end = place + (1 if "=" in words[place] else 2)
    system = str(read_options(words[place:end])[option.lstrip("-")])
    if system not in SYSTEMS:
        raise UsageError(unknown("system of names", system, SYSTEMS))
    return words[:place] + words[end:], system


def _explain_system(words: list[str]) -> int:
    """All names of one system."""
    rest, system = _named_system(words, "--from")
    if rest:
        raise UsageError(f"--from shows all names of a system, received {rest[0]!r} as well; see explain NAME --names")
    assert system is not None
    rows = [[known.name, known.ours] for known in peers.TABLES.get(system, {}).values()]
    rows += [
        [known.name, meaning]
        for known in KNOWN_NAMES.values()
        for whose, meaning in (
            (known.systems, _assignments(known.translate(known.example))),
            *((other.systems, f"{other.ours}: {other.meaning}") for other in known.others),
        )
        if system in whose
    ]
    table = {"lightzero": "lightzero", "roll_agentic": "roll", "verl": "verl"}.get(system, system)
    nested = next((one for one in nested_paths.TABLES if one.__name__.rpartition(".")[2] == table), None)
    if nested is not None:
        rows += [[known.path, known.ours] for known in nested.PATHS.values()]
        rows += [[path, f"(no effect: {why})"] for path, why in nested.WITHOUT_EFFECT.items()]
    if not rows:
        raise UsageError(f"the names of {SYSTEMS[system]} are in the table of `headway explain`")
    print_table([f"in {SYSTEMS[system]}", "in Headway"], rows)
    return 0


def _explain_peers(name: str, names: str | None, together: Mapping[str, SettingValue], *, others: bool = False) -> bool:
    """What the libraries mean by a name, or the one that is named; False: they have no such name.

    A value that one of them refuses is a line beside `others` or their meanings; alone it is refused here too.
    """
    systems = [system for system, table in peers.TABLES.items() if name in table and names in (None, system)]
    for system in systems:
        known = peers.TABLES[system][name]
        if known.ours.startswith(f"({NOT_HERE}: ") and name not in together:
            say(f"{name} is {known.ours.strip('()')}   ({SYSTEMS[system]})")
            continue
        value, kind = together.get(name, known.example), load_recipe(RECIPE_OF[system]).config
        said = {**together, name: value}
        _, understood, _ = in_our_words(kind, {**said, "names": system})
        meaning = next((one.meaning for one in understood if one.name == name), None)
        try:
            meaning = meaning if meaning is not None else peers.meaning_in(system, name, value, said, defaults_of(kind))
        except ValueError as error:
            if len(systems) == 1 and not others:
                raise
            why = str(error).removeprefix(f"{name}={value!r}: ")
            say(f"{name}={value}  ->  refused: {why}   ({SYSTEMS[system]})")
            continue
        ours = f"no effect: {meaning}" if isinstance(meaning, str) else _assignments(meaning or {})
        say(f"{name}={value}  ->  {ours}   ({SYSTEMS[system]})")
    return bool(systems)


RECIPE_OF = {
    "cleanrl": "ppo",
    "color_gomoku": "colorlines",
    "lightzero": "muzero",
    "prime_rl": "grpo",
    "priorzero": "priorzero",
    "rllib": "ppo",
    "roll": "grpo",
    "roll_agentic": "agent",
    "sample_factory": "ppo",
    "sb3": "ppo",
    "trl": "grpo",
    "verl": "grpo",
}
"""Which recipe the names of a system are explained in, where none is named."""


def _meanings(
    known: KnownName, value: object, names: str | None = None, together: Mapping[str, object] | None = None
) -> list[tuple[str, str]]:
    """What a name is here and what it means: once for each meaning, or in that of the system `names`."""
    also = "" if known.implies is None else f"; implies {known.implies.setting}={known.implies.value} if none is set"
    whose = f"; {' and '.join(known.systems)}" if known.others else ""
    meanings = [(_assignments(known.translate(value)), f"{known.meaning}{whose}{also}")]
    for other in known.others:
        one = (_in_other_words(other, value, together or {}), f"{other.meaning}; {' and '.join(other.systems)}")
        if names in other.systems and other.is_possible(("group_size", "num_envs"), together or {}):
            return [one]
        meanings.append(one)
    return meanings[:1] if names in known.systems else meanings


def _in_other_words(other: OtherMeaning, value: object, together: Mapping[str, object]) -> str:
    """The settings; where they depend on what is not said, their name alone."""
    try:
        return _assignments(other.translate(value, together, {})) if other.translate else f"({other.ours})"
    except ValueError:
        return f"({other.ours})"


def _explain_path(path: str, together: dict[str, SettingValue]) -> None:
    known = nested_paths.find_path(path)
    value = together.get(path, None if known is None else known.example)
    fields = load_recipe(_recipe_for(path, value)).config.model_fields
    _print_said(Said(path, value, nested_paths.mean(path, {**together, path: value}, fields)))


def _recipe_for(path: str, value: object) -> str:
    """A recipe that a path can be explained in."""
    of_agents = {**roll.PATHS, **roll.WITHOUT_EFFECT, **verl_agent.PATHS, **verl_agent.WITHOUT_EFFECT}
    if nested_paths.most_specific(path, of_agents) is not None:
        return "agent"
    return lightzero_names.recipe_for(path, value) or "grpo"


def _explain_file(words: list[str]) -> int:
    """Every name of a file (and of what else is said) that is not ours, line by line; then what is refused."""
    name = words[0] if not words[0].startswith("-") and "=" not in words[0] else ""
    options = read_options(words[bool(name) :])
    file = config_file(options)
    assert file is not None
    named, values = read_file(file)
    values = sb3.of_one_environment(values, options.get("env", options.get("env_id")))
    recipe = load_recipe(name or named or _recipe_of_file(values, options, file))
    _, said, problems = in_our_words(recipe.config, values, options)
    for one in said:
        _print_said(one)
    if not said and not problems:
        say("every name in it is ours")
    read_values(recipe.config, values, options)  # what cannot be is said here
    return 0


def _recipe_of_file(values: Mapping[str, SettingValue], options: Mapping[str, SettingValue], file: Path) -> str:
    """Where neither the words nor the file name a recipe: one that suits its names, and a line that says so."""
    system = str(options.get("names") or values.get("names") or "").lower()
    if roll.is_file(values):
        recipe, why = "agent", "its names are those of ROLL's pipeline for agents"
    elif system in RECIPE_OF:
        recipe, why = RECIPE_OF[system], f"its names are those of {SYSTEMS[system]}"
    elif OF_TRAINERS & {str(one).partition(".")[0] for one in values}:
        recipe, why = "grpo", "its groups are those of verl or prime-rl"
    else:
        raise UsageError(f"{file} names no recipe: headway explain RECIPE --config {file}")
    say(
        f"explained for the recipe {recipe}, as {why}; for another: headway explain RECIPE --config {file}", style="dim"
    )
    return recipe


OF_TRAINERS = {path.partition(".")[0] for path in verl.PATHS} | {"orchestrator"}


def _print_said(said: Said) -> None:
    has_effect = isinstance(said.meaning, dict)
    ours = _assignments(said.meaning) if isinstance(said.meaning, dict) else f"no effect: {said.meaning}"
    say(f"{said.shown}  ->  {ours}", style=None if has_effect else "dim")


def _assignments(values: dict[str, SettingValue]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "(the default)"
