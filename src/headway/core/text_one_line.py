"""What is long, or has several lines, said in one short line."""

from __future__ import annotations

import unicodedata


def in_a_line(error: BaseException, limit: int = 120) -> str:
    """`KeyError: 'x'`."""
    return f"{type(error).__name__}: {shortened(said(error), limit)}"


def said(error: BaseException) -> str:
    """Return `str(error)`, or Python's own stand-in for it where the exception's `__str__` raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - this second error must not hide the first
        return "<exception str() failed>"


def shortened(text: object, limit: int = 120) -> str:
    """On one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def visible(text: str, limit: int = 1_000_000) -> str:
    """Return the text with control characters, but for line ends and tabs, as their escapes, and cut if it is long."""
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def first_line(error: BaseException) -> str:
    """Of what an error says; the name of its class if it says nothing."""
    lines = said(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
