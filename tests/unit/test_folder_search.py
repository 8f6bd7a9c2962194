"""Search over a folder of texts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from headway.agents.included_tools_folder_search import FolderSearch, snippet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cities.txt").write_text(
        "Paris is the capital\nof France.\n\nRome is the capital of Italy.\n\n\nA city has streets.\n"
    )
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "food.md").write_text("France has cheese, cheese and cheese.\n")
    (tmp_path / "image.png").write_text("France France France")
    return tmp_path


def test_the_paragraph_with_the_rarest_words_comes_first(folder: Path) -> None:
    texts = FolderSearch(folder)
    assert len(texts) == 4
    found = texts.search("the CAPITAL of France?", top=2)
    assert [one.place for one in found] == ["cities.txt:1", "cities.txt:4"]
    assert found[0].text == "Paris is the capital\nof France." and found[0].score > found[1].score > 0
    assert texts.search("cheese")[0].place == "more/food.md:1"


def test_the_scores_are_those_of_bm25(folder: Path) -> None:
    (found,) = FolderSearch(folder).search("cheese")
    mean = (6 + 6 + 4 + 6) / 4
    rarity = math.log(1 + (4 - 1 + 0.5) / (1 + 0.5))
    assert found.score == pytest.approx(rarity * 3 * 2.2 / (3 + 1.2 * (0.25 + 0.75 * 6 / mean)))


def test_what_does_not_stand_there_is_not_found(folder: Path) -> None:
    assert FolderSearch(folder).search("zebra") == FolderSearch(folder).search("") == []


def test_a_snippet_stands_around_the_first_word_that_was_looked_for() -> None:
    text = "word " * 100 + "needle " + "word " * 100
    piece = snippet(text, "a Needle", 60)
    assert "needle" in piece and piece.startswith("...") and piece.endswith("...") and len(piece) == 66
    assert snippet("short\ntext", "x") == "short text"


def test_a_folder_without_texts_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no text in .*; files ending in \.txt, \.md, \.rst are read"):
        FolderSearch(tmp_path)
    with pytest.raises(ValueError, match=r"search needs a folder of texts, and .* is none"):
        FolderSearch(tmp_path / "missing")
    (tmp_path / "big.txt").write_text("x" * 100)
    with pytest.raises(ValueError, match="have 100 bytes; at most 10 can be searched"):
        FolderSearch(tmp_path, max_bytes=10)
