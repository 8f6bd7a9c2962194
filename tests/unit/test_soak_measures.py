"""What the soak says of numbers over time."""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from soak_measures import Series, is_bad, of_process, on_disk, shared_memory, table, verdict


def series(slope_an_hour: float, noise: float, *, swing: float = 0.0, seed: int = 0) -> Series:
    """An hour of samples around 100."""
    drawn, found = random.Random(seed), Series()
    for second in range(0, 3600, 5):
        value = 100 + slope_an_hour * second / 3600 + swing * math.sin(second / 200)
        found.add(second, value + drawn.gauss(0, noise))
    return found


def test_what_grows_is_found_in_noise_that_is_larger_than_a_sample_of_it() -> None:
    growing = series(2.0, 1.0)
    slope, half = growing.slope()
    assert 3600 * slope == pytest.approx(2.0, abs=3600 * half)
    assert verdict(growing) == "GROWS"


def test_what_stays_is_flat_also_when_it_swings() -> None:
    found = [verdict(series(0.0, 1.0, swing=swing, seed=seed)) for swing in (0.0, 3.0) for seed in range(20)]
    assert found.count("flat") >= 34, "one of twenty is said to move by chance"
    assert verdict(series(-20.0, 1.0)) == "falls"


def test_what_settles_in_its_first_quarter_is_flat() -> None:
    warming = series(0.0, 0.5)
    warming.values[:150] = [value - 40 + 40 * place / 150 for place, value in enumerate(warming.values[:150])]
    assert verdict(warming) == "flat"


def over_ten_minutes(value: Callable[[float], float], seed: int) -> Series:
    """Samples of it, from 0 to 1, with noise of a hundredth."""
    drawn, found = random.Random(seed), Series()
    for second in range(0, 600, 5):
        found.add(second, value(second / 600) + drawn.gauss(0, 0.01))
    return found


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (lambda t: 57.7 + 5.1 * (1 - math.exp(-t / 0.25)), "settles"),
        (lambda t: 57.7 + 5.1 * (1 - math.exp(-t / 0.4)), "settles"),
        (lambda t: 60 + (t > 0.4), "settles"),  # once, and long ago
        (lambda t: 60 + 5 * t, "GROWS"),
        (lambda t: 60 + 0.2 * t, "GROWS"),
        (lambda t: 60 + 5 * (1 - math.exp(-t / 0.2)) + 4 * t, "GROWS"),  # warms up and leaks
        (lambda t: 60 + 5 * t**2, "GROWS"),
        (lambda t: 60 + math.floor(8 * t), "GROWS"),  # with every session
        (lambda t: 60 + (t > 0.9), "GROWS"),  # the first of who knows how many
    ],
)
def test_what_flattens_is_told_from_what_grows_on(shape: Callable[[float], float], found: str) -> None:
    assert {verdict(over_ten_minutes(shape, seed)) for seed in range(20)} == {found}


def test_a_file_that_grows_by_some_bytes_is_flat() -> None:
    grown = Series([float(second) for second in range(600)], [0.0009 + 1e-7 * second for second in range(600)])
    assert grown.slope() == (pytest.approx(1e-7), pytest.approx(0.0, abs=1e-12))
    assert verdict(grown) == "flat"


def test_what_has_a_bound_may_grow_up_to_it() -> None:
    growing = series(10.0, 0.1)
    assert verdict(growing, bound=120.0) == "bounded: at most 120.0"
    assert is_bad(verdict(growing, bound=105.0))
    assert verdict(Series([0.0], [1.0])) == "too few samples"


def test_a_table_has_a_line_for_each_resource_with_its_verdict() -> None:
    head, one, two = table({"memory": series(50.0, 0.1), "files": series(0.0, 0.1)}, {"files": 200.0})
    assert head.split()[0] == "resource"
    assert one.startswith("memory") and one.endswith("GROWS")
    assert two.endswith("bounded: at most 200.0")


def test_a_process_and_a_folder_are_measured(tmp_path: Path) -> None:
    before = of_process(os.getpid())
    assert before["rss"] >= before["pss"] > 0
    with open(tmp_path / "events-0-10.jsonl.gz", "wb") as file:
        file.write(b"x" * 1000)
        file.flush()
        assert of_process(os.getpid())["descriptors"] == before["descriptors"] + 1
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "state.pkl").write_bytes(b"x" * 10)
    sizes = on_disk(tmp_path)
    assert (sizes["events"], sizes["checkpoints"], sizes["other files"]) == (1000, 10, 0)


def test_shared_memory_is_counted_once_for_all_who_have_it() -> None:
    before = shared_memory([os.getpid()])
    number = os.memfd_create("soak")
    try:
        os.write(number, bytes(1 << 20))
        other = os.dup(number)
        after = shared_memory([os.getpid(), os.getpid()])
        os.close(other)
    finally:
        os.close(number)
    assert after["memfd files"] == before["memfd files"] + 1
    assert after["memfd bytes"] == before["memfd bytes"] + (1 << 20)
