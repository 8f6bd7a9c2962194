"""Who may import whom, which heavy packages are needed where, and which names are public."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import headway

SOURCE = Path(headway.__file__).parent

KERNEL = {"core", "coordinator", "runtimes", "runs", "ranks"}
BELOW_SYSTEMS = KERNEL | {"envs", "replay"}
EVERYTHING = {path.name for path in SOURCE.iterdir() if path.is_dir()}
MAY_IMPORT: dict[str, set[str]] = {  # besides itself
    "core": set(),
    "coordinator": {"core"},
    "runtimes": {"core"},
    "runs": {"core", "coordinator", "runtimes"},
    "ranks": {"core", "coordinator", "runtimes", "runs"},
    "envs": KERNEL,
    "replay": KERNEL,
    "ppo": BELOW_SYSTEMS,
    "zero": BELOW_SYSTEMS,
    "llm": BELOW_SYSTEMS,
    "agents": BELOW_SYSTEMS | {"llm"},
    "text_games": BELOW_SYSTEMS | {"zero", "llm"},
    "tools": EVERYTHING - {"cli"},
    "simulate": {"core", "coordinator", "runtimes", "tools"},
    "cli": EVERYTHING,
    "testing": EVERYTHING,
    "__init__": EVERYTHING,  # when a name is first used
    "__main__": {"cli", "core"},
}
"""The kernel knows no system and no tool; only `agents` stands on `llm`, only `text_games` on `zero` and `llm`."""
STILL = {
    "agents/run_player.py": {"cli"},
    "coordinator/coordinator.py": {"runs"},
    "coordinator/coordinator_parts.py": {"runs"},
    "coordinator/evaluating.py": {"runs"},
    "coordinator/journal.py": {"runs"},
    "coordinator/learning.py": {"runs"},
    "coordinator/saving.py": {"runs"},
    "core/protocols.py": {"coordinator"},
    "envs/gymnasium_vector.py": {"ppo"},
    "llm/sft.py": {"agents"},
    "llm/sft_episodes.py": {"agents"},
    "llm/sft_episodes_recorded_episodes.py": {"agents"},
    "runs/config.py": {"tools"},
    "runs/console.py": {"tools"},
    "runs/files_run_files.py": {"tools"},
    "runs/recipes_package.py": {"llm"},
    "text_games/config.py": {"agents"},
}
"""What breaks these rules today. Nothing joins this list, and what no longer breaks them has to leave it."""
THIRD_PARTY = {  # what each part may need from outside; the others choose for themselves
    "core": set[str](),
    "coordinator": set[str](),
    "simulate": set[str](),
    "__init__": set[str](),
    "__main__": set[str](),
    "cli": {"rich", "yaml", "numpy", "pydantic"},
}


class Import(NamedTuple):
    file: str  # below src/headway
    line: int
    name: str  # full, wherever the import stands

    @property
    def part(self) -> str:
        """The package of ours the file belongs to, or its own name at the top level."""
        return self.file.split("/")[0].removesuffix(".py")

    @property
    def ours(self) -> str:
        """The package of ours that is imported, or nothing."""
        first, _, rest = self.name.partition(".")
        return rest.split(".")[0] if first == "headway" else ""

    @property
    def from_outside(self) -> str:
        first = self.name.split(".")[0]
        return "" if first in sys.stdlib_module_names or first == "headway" else first


def imports(file: str, text: str) -> Iterator[Import]:
    """Yield everything a file imports, inside functions too."""
    package = ["headway", *file.split("/")[:-1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield Import(file, node.lineno, base)
            if base == "headway" or node.module is None:
                yield from (Import(file, node.lineno, f"{base}.{alias.name}") for alias in node.names)


@cache
def every_import() -> list[Import]:
    return [
        found
        for path in sorted(SOURCE.rglob("*.py"))
        for found in imports(path.relative_to(SOURCE).as_posix(), path.read_text())
    ]


def of_another_part(found: Import) -> bool:
    may = MAY_IMPORT[found.part] | {"", found.part} | STILL.get(found.file, set())
    return found.ours not in may


def of_a_package_not_allowed(found: Import) -> bool:
    allowed = THIRD_PARTY.get(found.part)
    return allowed is not None and found.from_outside not in {"", *allowed}


def of_what_only_uses_others(found: Import) -> bool:
    outer = found.part in {"cli", "testing", "__main__", "__init__"}
    return not outer and found.ours in {"testing", "cli"} - STILL.get(found.file, set())


def offending(rule: Callable[[Import], bool], found: Iterable[Import]) -> list[str]:
    return [f"{each.file}:{each.line} imports {each.name}" for each in found if rule(each)]


def none(offences: Iterable[str]) -> None:
    if lines := "\n".join(offences):
        pytest.fail(lines, pytrace=False)


# -- who may import whom ----------------------------------------------------------------------------


def test_the_table_says_of_every_part_what_it_may_import() -> None:
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    none(f"{part} is missing in MAY_IMPORT" for part in sorted(parts - set(MAY_IMPORT)))


def test_a_file_imports_only_what_its_part_may() -> None:
    none(offending(of_another_part, every_import()))


def test_a_file_needs_only_the_packages_its_part_may() -> None:
    none(offending(of_a_package_not_allowed, every_import()))


def test_nothing_imports_testing_or_the_command_line_but_themselves() -> None:
    none(offending(of_what_only_uses_others, every_import()))


def test_what_no_longer_breaks_the_rules_is_not_excused() -> None:
    breaks = {
        (found.file, found.ours)
        for found in every_import()
        if found.ours not in MAY_IMPORT[found.part] | {"", found.part}
    }
    none(f"{file} no longer imports {part}" for file in STILL for part in STILL[file] if (file, part) not in breaks)


def test_every_offending_import_is_named_with_its_line_wherever_it_stands() -> None:
    """The checks above can fail: relative, nested and bare imports are all seen."""
    text = "import numpy.linalg, os\nfrom headway import cli\nfrom ..runtimes import inline\nfrom . import types\n"
    text += "def f():\n    from headway.runs.config import RunConfig\n    import headway.testing as t\n"
    found = list(imports("core/imaginary.py", text))
    assert offending(of_another_part, found) == [
        "core/imaginary.py:2 imports headway.cli",
        "core/imaginary.py:3 imports headway.runtimes",
        "core/imaginary.py:6 imports headway.runs.config",
        "core/imaginary.py:7 imports headway.testing",
    ]
    assert offending(of_a_package_not_allowed, found) == ["core/imaginary.py:1 imports numpy.linalg"]
    assert offending(of_what_only_uses_others, found) == [
        "core/imaginary.py:2 imports headway.cli",
        "core/imaginary.py:7 imports headway.testing",
    ]


# -- what is needed where ---------------------------------------------------------------------------

HEAVY = ("torch", "numpy", "ray", "rich", "pydantic", "yaml", "gymnasium", "numba", "transformers", "vllm")

WITHOUT = """
import importlib, importlib.abc, pkgutil, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"{{name}} is made absent", name=name)

sys.meta_path.insert(0, Absent())
for package in {packages!r}:
    home = importlib.import_module(package)
    for module in pkgutil.walk_packages(home.__path__, package + "."):
        importlib.import_module(module.name)
print(*sorted(name for name in sys.modules if name.startswith("headway.")))
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_and_coordinator_import_with_every_heavy_package_absent() -> None:
    loaded = python(WITHOUT.format(absent=HEAVY, packages=("headway.core", "headway.coordinator"))).split()
    assert {"headway.core.ledger", "headway.coordinator.coordinator", "headway.coordinator.facade"} <= set(loaded)


def test_the_absent_packages_really_are_absent() -> None:
    code = WITHOUT.format(absent=HEAVY, packages=("headway.runs",))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is made absent" in done.stderr


def test_importing_headway_pulls_in_nothing_heavy_and_nothing_of_ours() -> None:
    code = "import sys, headway; print(*(m for m in sys.modules if '.' not in m or m.startswith('headway.')))"
    loaded = set(python(code).split())
    assert "headway" in loaded
    assert not loaded & set(HEAVY)
    assert {name for name in loaded if name.startswith("headway.")} == set()


# -- public names -----------------------------------------------------------------------------------

PUBLIC = [
    "OLDEST",
    "READY",
    "AsyncTrainingCoordinator",
    "Batch",
    "CannotGoOn",
    "Coordinator",
    "Deadlines",
    "DropReason",
    "LearnReport",
    "LineSettings",
    "LineStations",
    "OnStale",
    "Order",
    "Placement",
    "Plan",
    "ReplayRatio",
    "Retries",
    "Rollout",
    "Run",
    "RunFailed",
    "RunResult",
    "Score",
    "Settings",
    "Snapshot",
    "Span",
    "Stalled",
    "Stations",
    "Step",
    "SweepFailed",
    "Ticket",
    "build_runtime",
    "launch",
    "load",
    "run",
    "start",
    "stations_from_functions",
    "sweep",
    "train",
    "window",
]


def test_the_public_names_are_these() -> None:
    """A name that is added or goes is a decision: change this list with it."""
    assert headway.__all__ == PUBLIC


def test_every_public_name_resolves_and_is_listed() -> None:
    import_module("headway.runs.launch_session")  # as any recipe does
    resolved = {name: getattr(getattr(headway, name), "__name__", name) for name in PUBLIC}
    assert resolved == {name: name for name in PUBLIC}
    assert set(PUBLIC) <= set(dir(headway))


def test_every_public_name_resolves_in_a_fresh_interpreter_in_any_order() -> None:
    """No module may have a public function's name: the import system would put it in the function's place."""
    for names in (PUBLIC, PUBLIC[::-1]):
        code = f"import headway\nfor name in {names!r}:\n    print(name, type(getattr(headway, name)).__name__)"
        kinds = dict(line.split() for line in python(code).splitlines())
        assert (kinds["launch"], kinds["run"]) == ("function", "function")
        assert "module" not in kinds.values()


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'headway' has no attribute 'Trainer'"):
        headway.Trainer  # noqa: B018


def test_star_import_brings_the_public_names() -> None:
    space: dict[str, object] = {}
    exec("from headway import *", space)
    assert set(PUBLIC) <= set(space)


def test_a_module_that_was_never_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("headway.runs.stories")


def names_that_are_missing(file: str, text: str) -> list[str]:
    """Return what a file wants of ours that is not there: each name with its line."""
    missing = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("headway"):
            for name in node.names:
                try:
                    if not hasattr(import_module(node.module), name.name):
                        import_module(f"{node.module}.{name.name}")
                except ImportError as error:
                    missing.append(f"{file}:{node.lineno} imports {node.module}.{name.name}: {error}")
    return missing


def test_benchmarks_and_examples_import_what_is_there() -> None:
    home = SOURCE.parents[1]
    files = [path for folder in ("bench", "examples") for path in sorted((home / folder).rglob("*.py"))]
    beside = [path for path in files if not {"peers", "results"}.intersection(path.parts)]
    assert beside
    none(line for path in beside for line in names_that_are_missing(str(path.relative_to(home)), path.read_text()))


def test_every_name_that_is_not_there_is_listed_with_its_line() -> None:
    text = "from headway import run\n\nfrom headway.core.types import Ticket, Tocket\nfrom headway.nowhere import x\n"
    assert [line.partition(":")[2].partition(":")[0] for line in names_that_are_missing("a.py", text)] == [
        "3 imports headway.core.types.Tocket",
        "4 imports headway.nowhere.x",
    ]
