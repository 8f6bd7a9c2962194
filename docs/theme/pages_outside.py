"""Brings into the site what lies outside `docs/`: the readme, the changelog, and source files that a page links to.

Pages are written for whoever reads them in the repository, where `../src/headway/core/rules.py` is a link that works.
In the site such a file becomes a page of its own, and the link leads there; if its words name a function of that file,
it leads to the line. `<!-- from the readme: HEADING -->` stands for that section of the readme.

    docs/tour.md --links to--> src/headway/core/rules.py      docs/index.md --asks for--> README.md, "Measured"
                                     |                                                        |
                        source/src/headway/core/rules.py.html                        its text, with mended links
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
NAMED = {
    "README.md": "project/the-readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "LICENSE": "project/licence.md",
}
"""Files of the repository that have a place in the navigation, and their pages."""

LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<target>[^)\s]+)\)")
SECTION = re.compile(r"^<!-- from the readme: (?P<heading>.+) -->$", re.MULTILINE)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash"}


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for every file outside `docs/` that a page links to."""
    pages = [ROOT / name for name in NAMED if name.endswith(".md")]
    pages += [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    wanted = set(NAMED)
    for page in pages:
        wanted |= {place for place in linked_files(page) if not place.startswith("docs/")}
    for place in sorted(wanted):
        is_named = place in NAMED
        level = InclusionLevel.UNDEFINED if is_named else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page_of(place), content=text_of(place), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Puts sections of the readme where they are asked for; links of the repository become links of the site."""
    here = page.file.src_uri
    markdown = SECTION.sub(lambda found: mended(section_of_readme(found["heading"]), "README.md", here), markdown)
    return markdown if here.startswith("source/") else mended(markdown, place_of(here), here)


def linked_files(page: Path) -> Iterator[str]:
    """The files of the repository, by their paths from its root, that a page links to."""
    for line in lines_of_prose(page.read_text()):
        for found in LINK.finditer(line):
            if (place := resolved(found["target"], str(page.relative_to(ROOT)))) is not None:
                yield place


def lines_of_prose(text: str) -> Iterator[str]:
    is_code = False
    for line in text.splitlines():
        is_fence = line.startswith("```")
        if not is_fence and not is_code:
            yield line
        is_code ^= is_fence


def resolved(target: str, place: str) -> str | None:
    """Where a link on the page at `place` leads, from the root of the repository; None if that is elsewhere."""
    path = target.partition("#")[0]
    if not path or target.startswith(("http://", "https://", "mailto:")):
        return None
    return os.path.normpath(PurePosixPath(place).parent / path)


def page_of(place: str) -> str:
    """The page that shows a file of the repository."""
    if place in NAMED:
        return NAMED[place]
    return place.removeprefix("docs/") if place.startswith("docs/") else f"source/{place}.md"


def place_of(page: str) -> str:
    """The file of the repository that a page shows."""
    return next((place for place, named in NAMED.items() if named == page), f"docs/{page}")


def text_of(place: str) -> str:
    path = ROOT / place
    if not path.is_file():
        raise PluginError(f"a page links to {place}, which is not a file")
    if path.suffix == ".md":
        return path.read_text()
    title = "Licence" if place == "LICENSE" else place
    head = f"---\ntitle: {title}\nsearch:\n  exclude: true\n---\n\n# {title}\n\n"
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}````\n"


def section_of_readme(heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text(), re.M | re.S)
    if found is None:
        raise PluginError(f"the readme has no section {heading!r}")
    return found[1].strip()


def mended(text: str, place: str, here: str) -> str:
    """The text of the file at `place`, to be read on the page `here`."""

    def mend(found: re.Match[str]) -> str:
        target = resolved(found["target"], place)
        if target is None or (target.startswith("docs/") and place == f"docs/{here}"):
            return found[0]
        anchor = found["target"].partition("#")[2] or line_of(found["words"], target)
        there = os.path.relpath(page_of(target), PurePosixPath(here).parent)
        return f"[{found['words']}]({there}{'#' + anchor if anchor else ''})"

    lines, is_code = [], False
    for line in text.split("\n"):
        is_fence = line.startswith("```")
        lines.append(line if is_code or is_fence else LINK.sub(mend, line))
        is_code ^= is_fence
    return "\n".join(lines)


def line_of(words: str, place: str) -> str:
    """The anchor of the line that defines what the words of a link name; nothing if they name nothing there."""
    name = re.fullmatch(r"`(\w+)`", words)
    if name is None or not place.endswith(".py"):
        return ""
    for number, line in enumerate((ROOT / place).read_text().splitlines(), 1):
        if re.match(rf"\s*(async def|def|class) {name[1]}\b", line):
            return f"line-0-{number}"
    return ""
