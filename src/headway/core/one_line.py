"""What is long, or has several lines, said in one short line."""

from __future__ import annotations


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


_VISIBLE = {**{code: 0x2400 + code for code in range(32)}, 0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}
del _VISIBLE[ord("\n")], _VISIBLE[ord("\t")]


def printable(text: str) -> str:
    """Return the text with other signs in place of the control characters that a terminal obeys."""
    return text.translate(_VISIBLE)


def first_line(error: BaseException) -> str:
    """Of what an error says; the name of its class if it says nothing."""
    lines = said(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
