"""A scene as one row of whole numbers: hashed words of the text, then those of each candidate.

    | text_words words of the text | action_words words of slot 0 | ... of slot 1 | ... | of slot K - 1 |

A word is `crc32(word) % buckets + 1`; 0 is padding. No vocabulary has to be shared between processes. Words are letters
and digits of any script; in scripts without spaces each character is a word. A text that has none of them, like "?", is
divided at its spaces, so a candidate never looks like an empty slot.
"""

from __future__ import annotations

import functools
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.text_games.story_interface import Scene

WordRow = npt.NDArray[np.int32]

_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
"""Thai, Lao, Burmese, Khmer, Chinese and Japanese."""
_WORD = re.compile(
    rf"(?!\W)[{_UNSPACED}]_*"
    rf"|[^\W_{_UNSPACED}][^\W{_UNSPACED}]*(?:'[^\W\d_{_UNSPACED}][^\W\d{_UNSPACED}]*)?"
)
"""Where `_` stands for a mark that belongs to the character before it."""


@dataclass(frozen=True)
class RowShape:
    """Says how long a row is and what stands where."""

    text_words: int = 64
    """Words of the text; what comes after them is not seen."""
    slots: int = 16
    """Candidates; what finds no slot cannot be chosen."""
    action_words: int = 6
    """Words of a candidate."""
    buckets: int = 4096
    """Different words; two words in one bucket look alike."""

    def __post_init__(self) -> None:
        for name in ("text_words", "slots", "action_words", "buckets"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, received {value!r}")

    @property
    def length(self) -> int:
        """Returns how many numbers a row has."""
        return self.text_words + self.slots * self.action_words

    def text_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the words of the texts of rows [..., length]: [..., text_words]."""
        return rows[..., : self.text_words]

    def actions_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the words of the slots of rows [..., length]: [..., slots, action_words]."""
        return rows[..., self.text_words :].reshape(*rows.shape[:-1], self.slots, self.action_words)


@functools.lru_cache(maxsize=65536)
def _word_number(word: str, buckets: int) -> int:
    return zlib.crc32(word.encode()) % buckets + 1


def _words(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_WORD.findall(text)
    text = unicodedata.normalize("NFC", text)
    marks = {ord(one): "_" for one in set(text) if unicodedata.category(one).startswith("M")}
    return [text[slice(*found.span())] for found in _WORD.finditer(text.translate({ord("_"): " ", **marks}))]


@functools.lru_cache(maxsize=16384)
def hashed_words(text: str, num: int, buckets: int) -> WordRow:
    """Returns the first `num` words of a text as numbers from 1 to `buckets`, padded with 0. It is not written to."""
    row = np.zeros(num, np.int32)
    words = (_words(text.lower()) or text.split())[:num]
    row[: len(words)] = [_word_number(word, buckets) for word in words]
    row.flags.writeable = False
    return row


def encode_scene(scene: Scene, shape: RowShape, candidates: Sequence[str]) -> WordRow:
    """Returns the row of a scene with these candidates in its slots, in this order: [shape.length]."""
    if len(candidates) > shape.slots:
        raise ValueError(f"a row has {shape.slots} slots, received {len(candidates)} candidates")
    row = np.zeros(shape.length, np.int32)
    row[: shape.text_words] = hashed_words(scene.text, shape.text_words, shape.buckets)
    slots = shape.actions_of(row)
    for slot, action in enumerate(candidates):
        slots[slot] = hashed_words(action, shape.action_words, shape.buckets)
    return row
