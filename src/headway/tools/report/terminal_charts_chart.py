"""Small pictures in text: dots in braille, eight to a character.

500 ⠀⠀⠀⠀⣀⡠⠔⠒⠉⠉
    ⠀⢀⡠⠊
  0 ⠔⠁
    0 s     12 s
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row, column] of a braille character
EMPTY = 0x2800
Point = tuple[float, float]


class Canvas:
    """`width` x `height` characters, twice as many dots across and four times as many down. (0, 0) is bottom left."""

    def __init__(self, width: int, height: int) -> None:
        self.across, self.up = 2 * width, 4 * height
        self._cells = [[EMPTY] * width for _ in range(height)]

    def dot(self, x: float, y: float) -> None:
        """What lies outside is left out."""
        column, row = round(x), self.up - 1 - round(y)
        if 0 <= column < self.across and 0 <= row < self.up:
            self._cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]

    def line(self, begin: Point, end: Point) -> None:
        (x0, y0), (x1, y1) = begin, end
        num = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(num + 1):
            self.dot(x0 + (x1 - x0) * step / num, y0 + (y1 - y0) * step / num)

    def rows(self) -> list[str]:
        return ["".join(map(chr, row)) for row in self._cells]


def curve_chart(
    points: Sequence[Point], *, right: float, top: float, unit: str = "", width: int = 32, height: int = 8
) -> list[str]:
    """Lines of one curve over 0..right, 0..top. Charts with the same limits can be compared side by side."""
    canvas = Canvas(width, height)
    placed = [(x / right * (canvas.across - 1), y / top * (canvas.up - 1)) for x, y in points]
    for begin, end in zip(placed, placed[1:] or placed, strict=False):
        canvas.line(begin, end)
    labels = [f"{top:g}", *[""] * (height - 2), "0"]
    rows = [f"{label:>5} {row}" for label, row in zip(labels, canvas.rows(), strict=True)]
    last = f"{right:.3g}{unit}"
    return [*rows, f"{'':5} 0{last:>{width - 1}}"]


def beside(columns: Iterable[Sequence[str]], gap: int = 3) -> list[str]:
    """Blocks of lines next to each other, each as wide as its widest line."""
    blocks = [(max((len(line) for line in block), default=0), block) for block in columns]
    rows = zip_longest(*(block for _, block in blocks), fillvalue="")
    return [(" " * gap).join(f"{line:{width}}" for (width, _), line in zip(blocks, row, strict=True)) for row in rows]
