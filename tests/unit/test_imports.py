"""Who may import whom, which heavy packages are needed where, and which names are public."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import headway
from headway.moved_modules import MOVED

SOURCE = Path(headway.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

CORE = {"core"}
OBSERVE = CORE | {"observe"}
CHILDREN = OBSERVE | {"children"}
EXPERIENCE = CORE | {"experience"}
TOOLS = ("envs", "search", "llm")
STATIONS = ("collect", "buffer", "learn", "publish", "evaluate")
EVERYTHING = {path.name for path in SOURCE.iterdir() if path.is_dir()}
MAY_IMPORT: dict[str, set[str]] = {
    "core": CORE,
    "observe": OBSERVE,
    "children": CHILDREN,
    "experience": EXPERIENCE,
    **{tool: CHILDREN | EXPERIENCE | {tool} for tool in TOOLS},
    **{station: CHILDREN | EXPERIENCE | set(TOOLS) | {station} for station in STATIONS},
    "coordinate": CHILDREN | {"coordinate"},
    "runtime": CHILDREN | {"runtime"},
    "simulate": CHILDREN | {"coordinate", "runtime", "simulate"},
    "capacity": CHILDREN | {"coordinate", "runtime", "simulate", "capacity"},
    "launching": CHILDREN | {"coordinate", "runtime", "launching"},
    "names": {"core", "names"},
    "trained": CHILDREN | EXPERIENCE | set(TOOLS) | {"trained"},
    "moved_modules": set(),
    "__init__": OBSERVE
    | {"coordinate", "envs", "launching", "moved_modules", "recipes", "sweeping"},  # when first used
    "testing": EVERYTHING,
    "recipes": EVERYTHING - {"cli", "sweeping"},
    "sweeping": CHILDREN | {"recipes", "sweeping"},
    "cli": EVERYTHING,
    "__main__": {"cli"},
}
THIRD_PARTY = {  # what each part may need from outside; stations, tools and recipes choose for themselves
    "core": set[str](),
    "experience": {"numpy"},
    "coordinate": set[str](),
    "launching": set[str](),
    "capacity": {"torch"},  # to ask for GPUs
    "__init__": set[str](),
    "observe": {"orjson", "rich", "yaml", "torch", "tensorboard", "wandb"},
    "cli": {"rich", "yaml", "numpy", "pydantic"},
}


def part_of(path: Path) -> str:
    """The package of ours a file belongs to, or its own name at the top level."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> Iterator[str]:
    """Full names of everything a file imports, inside functions too."""
    package = ["headway", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            if base == "headway" or node.module is None:
                yield from (f"{base}.{alias.name}" for alias in node.names)


def ours(path: Path) -> set[str]:
    names = (name.split(".") for name in imports(path))
    return {parts[1] for parts in names if parts[0] == "headway" and len(parts) > 1}


def from_outside(path: Path) -> set[str]:
    first = {name.split(".")[0] for name in imports(path)}
    return first - set(sys.stdlib_module_names) - {"headway"}


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(SOURCE)) for path in paths]


# -- who may import whom ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_a_file_imports_only_what_its_part_may(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"say in this test what {part} may import"
    assert ours(path) <= MAY_IMPORT[part]


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_a_file_needs_only_the_packages_its_part_may(path: Path) -> None:
    allowed = THIRD_PARTY.get(part_of(path))
    assert allowed is None or from_outside(path) <= allowed


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_nothing_imports_recipes_testing_or_the_command_line_but_themselves(path: Path) -> None:
    if part_of(path) not in {"cli", "recipes", "testing", "__main__", "__init__"}:
        told = {"recipes"} if part_of(path) == "sweeping" else set()  # a sweep asks a recipe what it can be told
        assert not ours(path) & {"recipes", "testing", "cli"} - told


def test_no_station_may_import_another() -> None:
    for station in STATIONS:
        assert not (set(STATIONS) - {station}) & MAY_IMPORT[station]


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    """The checks above can fail: relative, nested and bare imports are all seen."""
    file = SOURCE / "core" / "imaginary.py"
    text = "import numpy.linalg\nfrom headway import cli\nfrom ..runtime import inline\nfrom . import types\n"
    text += "def f():\n    from headway.recipes.config import RunConfig\n    import headway.testing as t\n"
    real = tmp_path / "imaginary.py"
    real.write_text(text)

    class Elsewhere(type(file)):  # type: ignore[misc]
        def read_text(self, *args: object, **options: object) -> str:
            return text

    imaginary = Elsewhere(file)
    assert ours(imaginary) == {"cli", "runtime", "core", "recipes", "testing"}
    assert from_outside(imaginary) == {"numpy"}


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


def test_core_and_coordinate_import_with_every_heavy_package_absent() -> None:
    loaded = python(WITHOUT.format(absent=HEAVY, packages=("headway.core", "headway.coordinate"))).split()
    assert {"headway.core.ledger", "headway.coordinate.coordinator", "headway.coordinate.facade"} <= set(loaded)


def test_the_absent_packages_really_are_absent() -> None:
    code = WITHOUT.format(absent=HEAVY, packages=("headway.recipes",))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is made absent" in done.stderr


def test_importing_headway_pulls_in_nothing_heavy_and_nothing_of_ours() -> None:
    code = "import sys, headway; print(*(m for m in sys.modules if '.' not in m or m.startswith('headway.')))"
    loaded = set(python(code).split())
    assert "headway" in loaded
    assert not loaded & set(HEAVY)
    assert {name for name in loaded if name.startswith("headway.")} == {"headway.moved_modules"}


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
    "window",
]


def test_the_public_names_are_these() -> None:
    """A name that is added or goes is a decision: change this list with it."""
    assert headway.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    import_module("headway.launching")  # as any recipe does
    value = getattr(headway, name)
    assert getattr(value, "__name__", name) == name
    assert name in dir(headway)


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


# -- what has moved ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), sorted(MOVED.items()))
def test_a_module_that_has_moved_is_found_under_its_former_name_with_one_line(old: str, new: str) -> None:
    with pytest.warns(FutureWarning, match=rf"{old} is now {new}"):
        module = import_module(old)
    assert module is import_module(new)
    assert sys.modules.pop(old) is module


def test_a_module_that_was_never_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("headway.observe.stories")


BESIDE_THE_SOURCE = sorted(
    path
    for folder in ("bench", "examples")
    for path in (SOURCE.parents[1] / folder).rglob("*.py")
    if not {"peers", "results"}.intersection(path.parts)
)


@pytest.mark.parametrize("path", BESIDE_THE_SOURCE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_benchmarks_and_examples_import_what_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("headway"):
            module = import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or import_module(f"{node.module}.{name.name}"), name.name
