"""Times the search for what can be done in Z-machine files, and counts how much of a walkthrough it finds.

    python bench/valid_actions.py                 files nobody knows: a house and a kitchen that TextWorld makes, and a
                                                  manor (bench/stories), a story in the manner of Zork, twice: by the
                                                  Inform 7 that TextWorld brings, and by inform6 where it is installed
    python bench/valid_actions.py zork1.z5        a file of yours too

A step of the walkthrough is found if one of the valid actions changes the world as it does; steps that change nothing
(looking, speaking) are not counted. The walkthrough is Jericho's for files it knows, TextWorld's for those made here;
of other files the actions are taken by chance.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headway.text_games.textworld_games import COMMON, OPTIONS, made_world
from headway.text_games.valid_actions import find_valid_actions
from headway.text_games.z_machine import ZMachine

STORIES = Path(__file__).parent / "stories"
LIBRARY = Path("/usr/share/inform6/library")
"""Of Debian's inform6-library."""


@dataclass
class Found:
    """What was measured on one file."""

    ms: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    steps: int = 0
    covered: int = 0
    missed: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="story files: .z3, .z5, .z8")
    parser.add_argument("--steps", type=int, default=60, help="at most so many steps of each file")
    parser.add_argument("--missed", action="store_true", help="show the steps that were not found")
    parser.add_argument("--limit_s", type=float, default=300.0, help="give up after so long: a story file may hang")
    given = parser.parse_args()
    faulthandler.dump_traceback_later(given.limit_s, exit=True)
    table = Table("file", "version", "states", "ms average", "ms max", "valid actions", "walkthrough found")
    console = Console()
    with _made("quest") as house, _made("cooking") as kitchen, tempfile.TemporaryDirectory() as folder:
        manors = [(path, manor_script()) for path in compiled_manors(Path(folder))]
        for path, walkthrough in [(path, None) for path in given.files] + manors + [house, kitchen]:
            machine = ZMachine(path)
            found = measured(machine, walkthrough, given.steps)
            number = len(found.ms)
            table.add_row(
                f"{path.name}{' (known)' if machine.is_known else ''}",
                str(machine.version),
                str(number),
                f"{sum(found.ms) / number:.1f}",
                f"{max(found.ms):.1f}",
                f"{sum(found.counts) / number:.1f}",
                f"{found.covered} of {found.steps}" if found.steps else "none is known",
            )
            if given.missed and found.missed:
                console.print(f"{path.name}: not found: {', '.join(found.missed)}")
            machine.close()
    console.print(table)


@contextmanager
def _made(kind: str) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A file that TextWorld makes and a way to win it."""
    made = made_world(kind, {**OPTIONS[kind], **COMMON})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.z8"
        path.write_bytes(made.story)
        yield path, tuple(json.loads(made.logic)["metadata"]["walkthrough"])


def compiled_manors(folder: Path) -> Iterator[Path]:
    """Compiles the story of the manor by each compiler that is here."""
    from textworld.generator.inform7.world2inform7 import compile_inform7_game

    compile_inform7_game((STORIES / "manor.ni").read_text(), str(folder / "manor.z8"))
    yield folder / "manor.z8"
    if shutil.which("inform6") and LIBRARY.is_dir():
        words = ["inform6", "-v5", f"+include_path={LIBRARY}", str(STORIES / "manor.inf"), str(folder / "manor.z5")]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        yield folder / "manor.z5"


def manor_script() -> tuple[str, ...]:
    """A way to win it."""
    return tuple((STORIES / "manor.txt").read_text().splitlines())


def measured(machine: ZMachine, walkthrough: tuple[str, ...] | None, num_steps: int) -> Found:
    """Follows a walkthrough, or chance where there is none."""
    walkthrough = machine.walkthrough if walkthrough is None else walkthrough
    found = Found()
    rng = random.Random(0)
    moment = machine.moment(machine.restart(machine.walkthrough_seed))
    for step in range(min(len(walkthrough) or num_steps, num_steps)):
        began = time.process_time()
        valid = find_valid_actions(machine, moment.room, moment.carried, moment.said)
        found.ms.append(1e3 * (time.process_time() - began))
        found.counts.append(len(valid))
        if walkthrough:
            action = walkthrough[step]
            found.steps += changes(machine, action)
            if changes(machine, action):
                is_covered = machine.outcome(action)[1] in {machine.outcome(other)[1] for other in valid}
                found.covered += is_covered
                found.missed += [] if is_covered else [action]
        else:
            action = rng.choice(valid or ("wait",))
        moment = machine.moment(machine.act(action))
        if moment.is_over:
            break
    return found


def changes(machine: ZMachine, action: str) -> bool:
    """Does an action change more than waiting does?"""
    return machine.outcome(action)[1] not in (machine.objects(), machine.outcome("wait")[1])


if __name__ == "__main__":
    main()
