"""The page of a sweep of CartPole in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    words = ["--seeds", "2", "--learning_rate", "1e-3,1e-2", "--updates", "8", "--evaluate_every", "2"]
    assert main(["sweep", "cartpole", *words, "--workers", "2", "--quiet", "--runs", str(root)]) == 0
    (path,) = root.iterdir()
    return path


def paths(page: Any) -> list[str]:
    return list(page.locator("svg#curve path[data-series]").evaluate_all("all => all.map(one => one.dataset.series)"))


def test_the_page_draws_each_setting_with_its_band_on_every_axis(show: Callable[..., Any], sweep: Path) -> None:
    page = show(sweep / "report.html")
    assert page.locator("h1").inner_text().endswith("on CartPole-v1")
    assert "2 settings x 2 seeds, cartpole: 4 runs, 4 finished." in page.locator("#state").inner_text()
    labels = ["learning_rate=0.001", "learning_rate=0.01"]
    assert page.locator("#axis option:checked").inner_text() == "environment steps"
    told = json.loads((sweep / "results.json").read_text())
    for axis in ("steps", "updates", "seconds"):
        page.locator("#axis").select_option(axis)
        met = [one["label"] for one in told["settings"] if one["curves"]["score"][axis]["x"]]
        assert axis == "seconds" or met == labels, "runs as short as these may not meet in time"
        assert paths(page) == met
        assert page.locator("svg#curve path.band").count() == len(met)
    page.locator("#axis").select_option("updates")
    figure = page.locator("figure:has(svg#curve)")
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    curve = told["settings"][0]["curves"]["score"]["updates"]
    first = figure.locator("tbody tr").nth(0).inner_text().split("\t")
    assert first[:2] == [labels[0], "2"]
    assert float(first[2]) == pytest.approx(curve["mean"]["y"][0], rel=1e-3)
    page.locator("#statistic").select_option("each")
    assert paths(page) == [f"{label}, seed {seed}" for label in labels for seed in (0, 1)]
    page.locator("#measure").select_option("length")
    assert "Length of the episodes while training" in page.locator("#learning h3").inner_text()
    page.locator("#legend button").nth(0).click()
    assert {name.partition(",")[0] for name in paths(page)} <= {labels[1]}


def test_the_intervals_are_those_of_the_results(show: Callable[..., Any], sweep: Path) -> None:
    page = show(sweep / "report.html")
    told = json.loads((sweep / "results.json").read_text())
    dots = page.locator("svg#iqm circle").evaluate_all("all => all.map(one => Number(one.dataset.value))")
    assert dots == [one["iqm"][0] for one in told["aggregates"]]
    (chance,) = page.locator("svg#improvement circle").evaluate_all("all => all.map(one => Number(one.dataset.value))")
    assert chance == told["improvement"][0]["probability"][0]
    assert "With 2 seeds an interval is too narrow" in page.locator("#summary").inner_text()


def test_the_links_lead_to_the_reports_of_the_runs(show: Callable[..., Any], sweep: Path) -> None:
    page = show(sweep / "report.html")
    assert page.locator("#all-runs tbody tr").count() == 4
    page.locator("#all-runs a").nth(2).click()
    page.wait_for_url("**/learning_rate=0.01%2Cseed=0/report.html" if "%2C" in page.url else "**/report.html")
    page.locator("#learning").wait_for()
    assert page.locator("h1").inner_text() == "Headway report: learning_rate=0.01,seed=0 on CartPole-v1"


def test_the_page_fits_a_phone(show: Callable[..., Any], sweep: Path) -> None:
    page = show(sweep / "report.html", viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
