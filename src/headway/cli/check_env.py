"""headway check-env ENV [--env_options JSON] [--seeds N] [--deadline_s S]

Says of an environment for agents whether it can be collected from, a line for each check: texts and rewards, its end,
the same game for the same seed in threads and in processes, strange replies, how long a step takes. ENV is a game of
ours (lights), file.py:Class, module:Class or library:ID. Ends with 1 if a check fails.
"""

from __future__ import annotations

from headway.agents.loading import env_options, load_env
from headway.agents.stepping import StepDeadlines, env_facts
from headway.cli.options_output import say
from headway.cli.options_words import UsageError, read_options, whole_numbers
from headway.testing.agent_env_checks import DEADLINE_S, FAILED, SKIPPED, check_env

MARKS = {FAILED: "FAILED ", SKIPPED: "skipped"}


def command(words: list[str]) -> int:
    """The command."""
    if not words or words[0].startswith("-"):
        raise UsageError("check-env needs an environment: headway check-env ENV")
    spec, options = words[0], read_options(words[1:])
    factory = load_env(spec, env_options(options.pop("env_options", None)))
    numbers = whole_numbers(options, seeds=5, deadline_s=int(DEADLINE_S))
    if numbers["seeds"] < 1:
        raise UsageError("--seeds must be a whole number >= 1, received 0")
    env_facts("here", factory, StepDeadlines(begin_s=numbers["deadline_s"]))  # or one line that says why not
    num_failed = 0
    for result in check_env(factory, name=spec, **numbers):
        num_failed += result.outcome == FAILED
        detail = f": {result.detail}" if result.detail else ""
        say(f"{MARKS.get(result.outcome, 'passed ')}  {result.name}{detail}")
    say(f"{spec} can be collected from" if not num_failed else f"{spec} must be mended: {num_failed} failed")
    return 1 if num_failed else 0
