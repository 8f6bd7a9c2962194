"""The command line: `headway COMMAND ...`, a file a command.

A command is a module here with a function `command(words) -> exit code`; its docstring is its help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import headway
from headway.cli.options_output import print_table, say
from headway.cli.options_words import UsageError, asks_for_help
from headway.coordinator.activities_waits import Stalled
from headway.coordinator.checkpoint import CheckpointError
from headway.coordinator.rerun import ReplayError
from headway.coordinator.role_calls import RunFailed
from headway.core.os_errors import refusal
from headway.core.text_messages import to_stderr
from headway.core.text_naming import unknown
from headway.core.text_one_line import said

COMMANDS = {
    "demo": "trains CartPole without and with a lead, side by side",
    "run": "starts a run of a recipe, or repeats a recorded one",
    "resume": "goes on with a run from its last checkpoint",
    "sweep": "runs a recipe with several seeds and settings, and says what they come to together",
    "status": "says how far a run is and what each role does",
    "scale": "adds collectors to a run that goes on, or takes some away",
    "report": "writes what happened in a run as one page, or shows it while the run goes on",
    "doctor": "says which side of a run is the bottleneck, and what to change",
    "trace": "writes a run's timeline for Perfetto",
    "samples": "prints what a language model generated in a run",
    "evaluate": "scores a checkpoint again, without training",
    "export": "writes a trained model or policy as files that other programs load",
    "watch": "lets a trained policy play its environment, and films it",
    "play": "lets you, chance or an expert play a game for agents, or you Colour Lines",
    "check-env": "says whether an environment for agents can be collected from",
    "simulate": "says what each lead would give, without running anything",
    "plan": "says what a language model needs: memory of every role, GPUs, updates a second",
    "explain": "says what names from other systems are here",
}
EXAMPLES = """
headway demo
headway run functions --max_lead 2 --collectors 2
headway run --config runs/functions-20260401-101500/config.yaml --seed 1
headway run --replay runs/functions-20260401-101500
headway resume runs/functions-20260401-101500 --checkpoint 000001-v40
headway sweep ppo --seeds 5 --learning_rate 1e-3,3e-4
headway report runs/functions-20260401-101500
headway simulate --collect lognormal:1,0.5 --learn 0.8 --collectors 4
headway plan 7B --gpus 8 --gpu_memory_gb 80
headway explain off_policy_degree=-1
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The `headway` command. 0: done; 1: the run failed, or the operating system did; 2: the input is wrong; 130: ended
    by hand."""
    _open_standard_files()
    words = list(sys.argv[1:] if arguments is None else arguments)
    return told_in_one_line(lambda: _dispatch(words))


def _open_standard_files() -> None:
    """Give standard files that were closed (`>&-`) a place: else the next file that is opened would get their numbers,
    and what is printed."""
    while (file := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(file)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for as long as this process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def told_in_one_line(work: Callable[[], int]) -> int:
    """The exit code of a command's work. What ends it otherwise is said in a line on standard error."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except (UsageError, CheckpointError, ReplayError, ValueError) as error:
        to_stderr(said(error))
        return 2
    except (RunFailed, Stalled) as error:
        to_stderr(said(error))
        return 1
    except (OSError, MemoryError, RuntimeError) as error:
        what = refusal(error)
        if what is None:
            raise
        to_stderr(f"{'' if _is_heard() else 'standard output: '}{what}")
        return 1
    except KeyboardInterrupt:
        to_stderr("ended by hand; nothing was saved since the last checkpoint")
        return 130


def _no_command(name: str) -> str:
    from headway.runs.recipes_package import RECIPES  # here: only a mistake needs them

    if name in RECIPES:
        return f"{name} is a recipe, not a command: headway run {name}"
    return unknown("command", name, COMMANDS)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        return _help()
    if words[0] in ("-V", "--version"):
        say(f"headway {headway.__version__}")
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise UsageError(_no_command(name))
    module = import_module(f"headway.cli.{name.replace('-', '_')}")
    if name != "run" and asks_for_help(rest):  # the help of a run depends on its recipe
        say(module.__doc__)
        return 0
    return module.command(rest)


def _help() -> int:
    print_table(["headway COMMAND", "what it does"], [[name, what] for name, what in COMMANDS.items()])
    say(f"{EXAMPLES}\nheadway COMMAND --help says more, headway --version which one this is")
    return 0


def _is_heard() -> bool:
    """Can standard output be written? If not it is closed, so that nothing tries again at the end of the process."""
    try:
        sys.stdout.flush()
        return True
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
