"""Small pictures in text."""

from __future__ import annotations

import pytest

from headway.tools.report.terminal_charts_chart import Canvas, beside, curve_chart

BLANK = chr(0x2800)


def dots(canvas: Canvas) -> set[tuple[int, int]]:
    """The dots that are set, read back from the braille by its own definition: dots 1 to 8 are bits 0 to 7."""
    places = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2), 6: (0, 3), 7: (1, 3)}
    found = set()
    for row, line in enumerate(canvas.rows()):
        for column, character in enumerate(line):
            for bit, (right, down) in places.items():
                if (ord(character) - ord(BLANK)) >> bit & 1:
                    found.add((2 * column + right, canvas.up - 1 - (4 * row + down)))
    return found


@pytest.mark.parametrize("place", [(x, y) for x in range(4) for y in range(8)])
def test_a_dot_is_where_it_was_put(place: tuple[int, int]) -> None:
    canvas = Canvas(2, 2)
    canvas.dot(*place)
    assert dots(canvas) == {place}


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (4, 0), (0, 8)])
def test_what_lies_outside_is_left_out(place: tuple[int, int]) -> None:
    canvas = Canvas(2, 2)
    canvas.dot(*place)
    assert not dots(canvas)


def test_a_line_has_no_gaps_and_ends_where_it_should() -> None:
    canvas = Canvas(4, 2)
    canvas.line((0, 0), (7, 3))
    assert {x for x, _ in dots(canvas)} == set(range(8))
    assert {(0, 0), (7, 3)} <= dots(canvas)


def test_a_chart_has_its_limits_at_the_sides_and_its_curve_between() -> None:
    lines = curve_chart([(0, 0), (5, 100), (10, 100)], right=10, top=100, unit=" s", width=8, height=4)
    assert [line[:6] for line in lines] == ["  100 ", "      ", "      ", "    0 ", "      "]
    assert lines[-1].split() == ["0", "10", "s"]
    assert {len(line) for line in lines} == {6 + 8}
    first, last = lines[0][6:], lines[3][6:]
    assert last[0] != BLANK and last[-1] == BLANK  # begins at the bottom left
    assert first[-1] != BLANK and first[0] == BLANK  # ends at the top right


def test_a_chart_of_nothing_or_of_one_point_is_still_a_chart() -> None:
    assert set("".join(line[6:] for line in curve_chart([], right=1, top=1, width=4, height=2)[:2])) == {BLANK}
    assert set("".join(line[6:] for line in curve_chart([(1, 1)], right=1, top=1, width=4, height=2)[:2])) != {BLANK}


def test_blocks_stand_beside_each_other_whatever_their_heights() -> None:
    assert beside([["a", "bcd"], ["1", "2", "3"]], gap=2) == ["a    1", "bcd  2", "     3"]
