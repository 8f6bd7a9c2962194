"""Names of things: which words of a story's text may name something that is there.

    "a small brass lantern here" + the story's dictionary -> lantern, small brass lantern, small, brass

Words that stand side by side are a row, and its last word is what is asked about first: where a single row ends in
"lantern" and there is one, its other words mean nothing more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

DIRECTIONS = (
    *("north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest"),
    *("up", "down", "in", "out"),
)
_FILLING = frozenset(
    re.findall(
        r"\w+",
        "a an the and or of it its is are was were be you your yourself me my him her them they this that these those "
        "here there all both every each no not some any other another one two three to from with at by for as if then "
        "everything floor ceiling wall ground sky",
    )
)
_WORD = re.compile(r"[a-z0-9][a-z0-9'-]*|[.,;:!?()\n]")


class Vocabulary:
    """Reads texts by a story's dictionary: its words, cut to the length that it reads, and their parts of speech."""

    def __init__(self, words: Mapping[str, frozenset[str]]) -> None:
        self._words = words
        self._length = max(map(len, words), default=0)

    def names_in(self, text: str) -> dict[str, frozenset[str]]:
        """The names in a text, last words of rows first, and for each those that make it needless if all are there."""
        rows = list(dict.fromkeys(map(tuple, self._rows(_WORD.findall(text.lower())))))
        often = Counter(row[-1] for row in rows if len(row) > 1)
        heads: dict[str, set[str]] = {row[-1]: set() for row in rows}
        longer: dict[str, set[str]] = {}
        rest: dict[str, set[str]] = {}
        for row in (row for row in rows if len(row) > 1):
            longer.setdefault(" ".join(row[-3:]), set()).add(row[-1])
            for name in row[:-1]:
                rest.setdefault(name, set()).add(row[-1])
        instead = {**rest, **longer, **heads}
        return {
            name: frozenset(instead[name] if all(often[head] == 1 for head in instead[name]) else ())
            for name in {**heads, **longer, **rest}
        }

    def without_names(self, answer: str) -> tuple[str, ...]:
        """What a story answers, without the words that may name things: what it answers of others too."""
        return tuple(token for token in _WORD.findall(answer.lower()) if not self._may_name(token))

    def knows(self, command: str) -> bool:
        """Says whether a story knows every word of a command."""
        return all(word[: self._length] in self._words for word in command.split())

    def _rows(self, tokens: Iterable[str]) -> Iterator[list[str]]:
        """The longest rows of words that may name a thing."""
        row: list[str] = []
        for token in [*tokens, "."]:
            if self._may_name(token):
                row.append(token)
            elif row:
                yield row
                row = []

    def _may_name(self, token: str) -> bool:
        parts = self._words.get(token[: self._length])
        if parts is None or token in _FILLING or token in DIRECTIONS or not token[0].isalpha() or len(token) < 2:
            return False
        return not parts or bool(parts & {"noun", "adj", "plural"})
