"""Search over a folder of texts: the paragraphs that fit a query best, by BM25.

    FolderSearch(folder).search("capital of France") -->  cities.txt:3  Paris is the capital ...

Okapi BM25 (Robertson and Zaragoza 2009): a word counts for more the rarer it is, for less the more often it has been
counted and the longer the paragraph is. Words are compared without case; there is no stemming.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".txt", ".md", ".rst")
K1, B = 1.2, 0.75
"""How soon a repeated word stops counting, and how much a long paragraph is held against it: the usual values."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Found:
    """A paragraph that fits a query."""

    place: str
    """`folder/file.txt:12`: the file below the folder searched, and the line where the paragraph begins."""
    text: str
    score: float


class FolderSearch:
    """Reads a folder once and keeps which words stand in which paragraph.

    :param suffixes: files with these endings are read
    :param max_bytes: a folder with more than this is refused instead of filling the memory
    """

    def __init__(self, folder: str | Path, *, suffixes: Sequence[str] = SUFFIXES, max_bytes: int = 256 << 20) -> None:
        self._paragraphs = _paragraphs(Path(folder), tuple(suffixes), max_bytes)
        self._lengths: list[int] = []
        self._counts: dict[str, dict[int, int]] = {}  # word -> paragraph -> how often
        for index, (_, text) in enumerate(self._paragraphs):
            words = words_of(text)
            self._lengths.append(len(words))
            for word, count in Counter(words).items():
                self._counts.setdefault(word, {})[index] = count
        self._mean_length = sum(self._lengths) / len(self._lengths)

    def __len__(self) -> int:
        """How many paragraphs there are."""
        return len(self._paragraphs)

    def search(self, query: str, top: int = 3) -> list[Found]:
        """The best paragraphs, the best first; equal ones in the order of their files."""
        scores: dict[int, float] = {}
        for word in set(words_of(query)):
            places = self._counts.get(word, {})
            rarity = math.log(1 + (len(self) - len(places) + 0.5) / (len(places) + 0.5))
            for index, count in places.items():
                long = 1 - B + B * self._lengths[index] / self._mean_length
                worth = rarity * count * (K1 + 1) / (count + K1 * long)
                scores[index] = scores.get(index, 0.0) + worth
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:top]
        return [Found(*self._paragraphs[index], score) for index, score in best]


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def snippet(text: str, query: str, length: int = 200) -> str:
    """A piece of the text, on one line, around the first word of the query that stands in it."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    wanted = set(words_of(query))
    first = next((match.start() for match in _WORD.finditer(line) if match[0].casefold() in wanted), 0)
    start = max(0, min(first - length // 4, len(line) - length))
    return ("..." if start else "") + line[start : start + length] + ("..." if start + length < len(line) else "")


def _paragraphs(folder: Path, suffixes: tuple[str, ...], max_bytes: int) -> list[tuple[str, str]]:
    """Place and text of each, in the order of the files' names."""
    if not folder.is_dir():
        raise ValueError(f"search needs a folder of texts, and {str(folder)!r} is none")
    files = sorted(path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file())
    size = sum(path.stat().st_size for path in files)
    if size > max_bytes:
        raise ValueError(f"the texts in {str(folder)!r} have {size} bytes; at most {max_bytes} can be searched")
    found: list[tuple[str, str]] = []
    for path in files:
        name = path.relative_to(folder).as_posix()
        line, lines = 1, list[str]()
        for number, text in enumerate([*path.read_text(encoding="utf-8", errors="replace").splitlines(), ""], 1):
            if text.strip():
                line = line if lines else number
                lines.append(text)
            elif lines:
                found.append((f"{name}:{line}", "\n".join(lines)))
                lines = []
    if not found:
        raise ValueError(f"there is no text in {str(folder)!r}; files ending in {', '.join(suffixes)} are read")
    return found
