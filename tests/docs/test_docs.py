"""What the documentation shows is run: every Python block, every `headway` command, every link and name.

A page is executed from top to bottom in one empty folder. Its Python blocks share one namespace. In a console block a
line that begins with `$ ` is a command and what follows is its output. Output is compared where it does not depend on
the clock: error lines, `headway explain`, `headway plan`, `headway simulate` without a recorded run; `...` stands for
lines left out.
`runs/functions-20261115-101500` stands for the newest run of that recipe. A block under `<!-- not run: reason -->`
is skipped.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import headway
from headway import cli
from headway.cli.demo import demo
from headway.cli.options_words import read_options
from headway.coordinator.facade import AsyncTrainingCoordinator
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.events_written_events import KINDS, WRITTEN
from headway.core.types import DropReason, Rollout
from headway.runs.config import RunConfig, read_values
from headway.runs.launch_of_functions import KEYWORDS
from headway.runs.recipes_package import RECIPES, load_recipe

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)$")
NOT_RUN = re.compile(r"^<!-- not run: \S.*-->$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CONTRACTS = [ROOT / "src/headway/testing", ROOT / "tests"]
STAMPED = re.compile(r"runs/((?:sweep-)?\w+)-\d{8}-\d{6}")


@dataclass
class Block:
    """One fenced block of a page."""

    language: str
    line: int
    is_run: bool
    text: list[str] = field(default_factory=list)


@dataclass
class Command:
    """A command of a console block and the output the page shows for it."""

    words: list[str]
    output: list[str] = field(default_factory=list)


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    inside: Block | None = None
    before = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if inside is not None and line == "```":
            inside = None
        elif inside is not None:
            inside.text.append(line)
        elif fence is not None:
            inside = Block(fence[1], number, NOT_RUN.match(before) is None)
            found.append(inside)
        if line.strip():
            before = line.strip()
    assert inside is None, f"{page.name}: the block of line {inside and inside.line} has no end"
    return found


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    lines = iter(block.text)
    for line in lines:
        if block.language == "bash" or line.startswith("$ "):
            while line.endswith("\\"):
                line = line[:-1] + next(lines)
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                found.append(Command(words))
        elif found:
            found[-1].output.append(line)
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 120 columns, and a demo of seconds."""
    monkeypatch.setattr("headway.cli.options_output.OUT", Console(highlight=False, soft_wrap=True, width=120))
    monkeypatch.setattr("headway.cli.demo.demo", partial(demo, updates=8))


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_shows_can_be_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page):
        if not block.is_run:
            continue
        if block.language == "python":
            source = "\n" * block.line + "\n".join(block.text)  # so that a traceback names the line of the page
            exec(compile(source, str(page), "exec"), namespace)
        elif block.language in ("bash", "console"):
            for command in commands(block):
                if command.words[0] == "headway":
                    run_command(command, tmp_path, capsys)


PASSING = re.compile(r"`headway run ([^`]+)`")
"""A command in the middle of a sentence or a table."""
OF_THE_PAST = ("CHANGELOG.md", "lab.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OF_THE_PAST], ids=name_of)
def test_a_run_that_a_sentence_or_a_table_shows_can_be_begun(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # examples are named from here
    for text in PASSING.findall(page.read_text()):
        recipe, *words = shlex.split(text)
        if recipe in RECIPES and words and not {"--config", "--help"} & set(words):
            options = read_options(words)
            read_values(load_recipe(recipe).config, {name: value for name, value in options.items() if name != "quiet"})


@pytest.mark.parametrize("page", [page for page in PAGES if "```yaml" in page.read_text()], ids=name_of)
def test_a_file_that_a_page_shows_is_understood(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            values = yaml.safe_load("\n".join(block.text))
            read_values(load_recipe(values.pop("recipe")).config, values)


def run_command(command: Command, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [STAMPED.sub(lambda name: newest_run(folder, name[1]), word) for word in command.words[1:]]
    capsys.readouterr()
    code = cli.main(words)
    seen = capsys.readouterr()
    shown = [line.strip() for line in command.output if line.strip()]
    refused = [line for line in shown if line.startswith("headway: ")]
    assert (code != 0) == bool(refused), f"{command.words} ended with {code}: {seen.err}"
    is_repeatable = words[:1] in (["explain"], ["simulate"], ["plan"]) and "--run" not in words
    if refused:
        assert_shown(refused, seen.err)
    elif is_repeatable:
        assert_shown([line for line in shown if line != "..."], seen.out)


def assert_shown(lines: list[str], output: str) -> None:
    """Each line, in words, is a line of the output (a line that ends in `...` is its beginning)."""
    seen = [" ".join(line.split()) for line in output.splitlines()]
    for line in lines:
        wanted = " ".join(line.split())
        if wanted.endswith(" ..."):
            assert any(one.startswith(wanted.removesuffix("...")) for one in seen), f"{wanted!r} is not in {seen}"
        else:
            assert wanted in seen, f"{wanted!r} is not in {seen}"


def newest_run(folder: Path, recipe: str) -> str:
    """The run a page refers to, made first if the page only tells of it."""
    if not list(folder.glob(f"runs/{recipe}-*")):
        tiny = ["--updates", "8", "--collect_ms", "1", "--train_ms", "1", "--evaluate_ms", "1"]
        assert cli.main(["run", recipe, *tiny, "--quiet"]) == 0
    newest = max(folder.glob(f"runs/{recipe}-*"), key=lambda path: path.stat().st_mtime)
    return str(newest.relative_to(folder))


# -- rules for all pages: one test each, which names every place that breaks it ------------------------------------


def none(offences: Iterable[str]) -> None:
    if lines := "\n".join(offences):
        pytest.fail(lines, pytrace=False)


def test_a_make_command_names_a_target_that_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    none(
        f"{name_of(page)}:{block.line}: {shlex.join(command.words)}"
        for page in PAGES
        for block in blocks(page)
        for command in (commands(block) if block.language in ("bash", "console") else [])
        if command.words[0] == "make" and not set(command.words[1:]) <= targets
    )


def found_in_pages(pattern: re.Pattern[str]) -> Iterator[tuple[Path, str, re.Match[str]]]:
    """Yield each page that matches, where it does, and the match."""
    for page in PAGES:
        text = page.read_text()
        for match in pattern.finditer(text):
            yield page, f"{name_of(page)}:{1 + text[: match.start()].count(chr(10))}", match


def test_internal_links_lead_somewhere() -> None:
    none(
        f"{where}: {link[1]} {wrong}"
        for page, where, link in found_in_pages(LINK)
        if not link[1].startswith(("http://", "https://", "mailto:")) and (wrong := wrong_with(page, link[1]))
    )


def wrong_with(page: Path, target: str) -> str:
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return "does not exist"
    if ROOT not in there.parents:
        return "leaves the repository"
    return f"has no heading {anchor}" if anchor and anchor not in anchors(there) else ""


def test_a_test_that_a_page_links_to_is_there() -> None:
    suites = [path.read_text() for home in CONTRACTS for path in home.rglob("*contract*.py")]
    missing = []
    for page, where, link in found_in_pages(re.compile(r"\[`(test_\w+)`\]\(([^)\s]+)\)")):
        held = (page.parent / link[2]).resolve().read_text()
        sources = [held, *(suites if "_contract import" in held else [])]
        if not any(re.search(rf"\b{link[1]}\b", source) for source in sources):
            missing.append(f"{where}: {link[1]} is not in {link[2]}")
    none(missing)


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for target in LINK.findall(page.read_text()):
            if not target.startswith(("http", "mailto:", "#")):
                waiting.append((page.parent / target.partition("#")[0]).resolve())
    assert set(PAGES) <= reached


# -- the glossary -------------------------------------------------------------------------------------------------

NAMESPACES: tuple[Any, ...] = (headway, AsyncTrainingCoordinator, Settings, Plan, Deadlines, Retries, DropReason)


def glossary_names() -> list[str]:
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    return sorted({name for row in rows for name in re.findall(r"`([^`]+)`", row)})


def test_a_name_in_the_glossary_exists() -> None:
    names = glossary_names()
    assert names
    none(f"{name} is in the glossary and nowhere else" for name in names if not exists(name.removesuffix("()")))


def exists(bare: str) -> bool:
    kinds: list[Callable[[], bool]] = [
        lambda: bare in RunConfig.model_fields or bare in Rollout.__dataclass_fields__,
        lambda: bare in inspect.signature(headway.run).parameters or bare in KEYWORDS,
        lambda: any(hasattr(place, bare) for place in NAMESPACES),
        lambda: bare in KINDS,
        lambda: resolves(bare),
        lambda: (ROOT / "src/headway" / bare).exists(),
    ]
    return any(kind() for kind in kinds)


def test_a_word_stands_once_in_the_glossary() -> None:
    rows = re.findall(r"^\| ([^|`]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    words = [word for row in rows for word in row.split(", ")]
    assert sorted(words) == sorted(set(words))


def test_the_map_of_the_tour_shows_every_folder() -> None:
    rows = [line for line in (ROOT / "docs/tour.md").read_text().splitlines() if line.startswith("| `")]
    shown = {name for row in rows for name in re.findall(r"`(\w+)/`", row.split("|")[1])}
    folders = {path.parent.name for path in (ROOT / "src/headway").glob("*/__init__.py")}
    assert folders <= shown


def resolves(dotted: str) -> bool:
    """`headway.core.ledger.Ledger.settle`, in full or from `headway.` on."""
    parts = dotted.removeprefix("headway.").split(".")
    for split in range(len(parts), -1, -1):
        try:
            place: Any = importlib.import_module(".".join(["headway", *parts[:split]]))
        except ImportError:
            continue
        for part in parts[split:]:
            if not hasattr(place, part):
                return False
            place = getattr(place, part)
        return True
    return False


# -- the event log ------------------------------------------------------------------------------------------------


def test_the_page_on_events_lists_exactly_the_kinds_that_are_written() -> None:
    rows = [line for line in (ROOT / "docs/events.md").read_text().splitlines() if line.startswith("| `")]
    assert {re.findall(r"`([^`]+)`", row)[0] for row in rows} == set(KINDS)


def test_the_page_on_events_lists_exactly_the_fields_that_are_written() -> None:
    written = {kind: set(WRITTEN[event][1:]) for kind, event in KINDS.items()}
    written["run"] |= {"runtime", "config", *Settings(plan=Plan(updates=1)).describe()}
    for line in (ROOT / "docs/events.md").read_text().splitlines():
        if line.startswith("| `"):
            cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")]
            assert set(cells[2]) == written[cells[1][0]], cells[1][0]
