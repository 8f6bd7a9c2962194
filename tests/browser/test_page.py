"""The report page in Chromium, from a file: what it shows are the numbers of the event log, and it can be used."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from virtual_runs import record
from waiting import patient

from headway.cli.report import ReportServer, write_report
from headway.tools.simulate.workloads import Exponential, Lognormal

pytestmark = pytest.mark.timeout(120)

PHONE = {"width": 390, "height": 844}
Events = list[dict[str, Any]]


def write_log(folder: Path, events: Events, last: int | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events[:last]))
    return folder


@pytest.fixture(scope="module")
def known() -> Events:
    """Collections and updates of a second, 40 updates, evaluations of three seconds after every tenth."""
    events, _ = record(1.0, 1.0, 3.0, updates=40, evaluate_every=10, max_lead=2, collectors=2, decay=0.1)
    return events


@pytest.fixture(scope="module")
def uneven() -> Events:
    events, _ = record(
        Lognormal(1.0, 1.0), Exponential(0.5), 3.0, updates=60, evaluate_every=7, max_lead=4, collectors=4, decay=0.05
    )
    return events


@dataclass(frozen=True)
class Pages:
    """Written once for all tests."""

    known: Path
    uneven: Path
    both: Path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, known: Events, uneven: Events) -> Pages:
    root = tmp_path_factory.mktemp("pages")
    long_name = "uneven-with-a-name-that-is-longer-than-a-phone-is-wide-20260401-101500"
    runs = [write_log(root / "known", known), write_log(root / long_name, uneven)]
    return Pages(write_report(runs[:1]), write_report(runs[1:]), write_report(runs, root / "both.html"))


# -- the numbers ------------------------------------------------------------------------------------


def test_every_section_and_chart_is_there(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    assert page.title() == "Headway report: known"
    headings = page.locator("section h2").all_inner_texts()
    assert headings == [
        "What happened",
        "What to change",
        "Learning",
        "Timeline",
        "Staleness",
        "Where the time went",
        "Throughput, queue and lead over time",
        "Tickets, drops and length bias",
        "Learner diagnostics",
        "What another lead would have given",
        "Configuration",
        "Environment",
    ]
    for chart in ("scores", "ages", "flow-updates_per_s", "flow-ready", "flow-lead", "learn-ess"):
        assert page.locator(f"svg#{chart} > *").count() > 3, chart
    assert (
        page.locator("figure.lines, figure.bars").count()
        == page.locator("figure.lines details, figure.bars details").count()
    )
    for label in page.locator("svg.chart, canvas").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label'))"
    ):
        assert label


def test_scores_and_ages_are_those_of_the_log(show: Callable[..., Any], pages: Pages, uneven: Events) -> None:
    page = show(pages.uneven)
    scores = [event for event in uneven if event["e"] == "score"]
    titles = page.locator("svg#scores circle title").evaluate_all("all => all.map(one => one.textContent)")
    shown = [float(re.search(r": ([\d.]+) at ", title)[1]) for title in titles]  # type: ignore[index]
    assert shown == [event["value"] for event in scores]
    born = {event["k"]: event["v"][0] for event in uneven if event["e"] == "land"}
    ages = Counter(event["v"] - born[k] for event in uneven if event["e"] == "learn" for k in event["k"])
    bars = page.locator("svg#ages rect").evaluate_all(
        "all => all.map(one => [one.dataset.name, Number(one.dataset.value)])"
    )
    assert {int(name): count for name, count in bars if count} == dict(ages)
    page.locator("figure:has(svg#ages) summary").click()
    page.locator("figure:has(svg#ages) tbody tr").first.wait_for()
    cells = page.locator("figure:has(svg#ages) tbody tr").all_inner_texts()
    assert [tuple(map(int, cell.split())) for cell in cells] == [(age, ages[age]) for age in range(max(ages) + 1)]


def test_the_timeline_says_what_the_log_says(show: Callable[..., Any], pages: Pages, known: Events) -> None:
    page = show(pages.known)
    page.locator("#tracks").scroll_into_view_if_needed()
    learned = [event for event in known if event["e"] == "learn"]
    landed = {event["k"]: event["t"] for event in known if event["e"] == "land"}
    started = {event["k"]: event for event in known if event["e"] == "start"}
    for event in learned[::7]:
        said = hover(page, "learner", event["t"] - 0.5, 53.0)
        assert f"learner: learns update {event['u']}, version {event['v']}" in said
        assert f"{words(event['t'] - 1)} to {words(event['t'])} (1.00 s)" in said
    for ticket in (4, 17, 38):
        start = started[ticket]
        said = hover(page, f"collector-{start['c']}", start["t"] + 0.5, 53.0)
        assert f"collects ticket {ticket}, version {start['v']}" in said
        assert f"{words(start['t'])} to {words(landed[ticket])}" in said
    evaluated = [event["t"] for event in known if event["e"] == "evaluate"]
    assert "waits for an evaluation" in hover(page, "learner", evaluated[0] + 1.5, 53.0)
    assert "evaluates version 10" in hover(page, "evaluator", evaluated[0] + 1.5, 53.0)


def words(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds >= 10
        else f"{seconds:.2f} s"
        if seconds >= 1
        else f"{1000 * seconds:g} ms"
        if seconds
        else "0 s"
    )


ROLES = ["learner", "collector-0", "collector-1", "evaluator"]


def hover(page: Any, role: str, at: float, end: float, begin: float = 0.0) -> str:
    """Point at a role's track at a moment, and read what it says."""
    box = page.locator("#tracks").bounding_box()
    left = min(120, max(72, box["width"] * 0.16))
    x = box["x"] + left + (at - begin) / (end - begin) * (box["width"] - left)
    page.mouse.move(x, box["y"] + 22 + 22 + 20 * ROLES.index(role) + 10)
    return str(page.locator("#slice").inner_text())


def test_the_time_of_each_role_adds_up_on_the_page(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    sums = page.locator(".stacks .whole").evaluate_all(
        "all => all.map(one => [...one.children].reduce((sum, part) => sum + Number(part.dataset.seconds), 0))"
    )
    assert len(sums) == 4
    assert sums == pytest.approx([53.0] * 4)
    widths = page.locator(".stacks .whole").evaluate_all(
        "all => all.map(one => [...one.children].reduce((sum, part) => sum + parseFloat(part.style.width), 0))"
    )
    assert widths == pytest.approx([100.0] * 4, abs=0.02)
    page.locator("#time summary").click()
    page.locator("#time tbody tr.sum").first.wait_for()  # the table is made when it is opened
    rows = page.locator("#time tbody tr.sum").all_inner_texts()
    assert [row.split("\t")[1:] for row in rows] == [["sum, of 53.0 s", "53.0 s", "100.0 %"]] * 4


def test_the_what_if_table_marks_what_it_recommends(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    rows = page.locator("#what-if tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows][:6] == ["0", "0.5", "1", "2", "4", "8"]
    assert rows[0].split("\t")[1:4] == ["0.4348", "1.00x", "0"]  # 40 updates in 40 * 2 + 4 * 3 s
    (best,) = page.locator("#what-if tr.best").all_inner_texts()
    assert best.split("\t")[0] in page.locator("#what-if .big").inner_text()


# -- episodes ---------------------------------------------------------------------------------------

OF_EPISODES = {
    **{"success": 0.25, "turns": 3.0, "turns_max": 5.0, "trained_tokens": 400.0, "read_tokens": 900.0},
    **{"end_done": 0.75, "end_turns": 0.25, "end_tokens": 0.0, "end_deadline": 0.0},
    **{"step_s": 0.5, "step_p95_s": 1.0, "step_max_s": 2.0, "env_share": 0.4, "engine_idle": 0.05},
}
GROUPS = [
    [{"episode": 0, "end": "done", "times": [[0.0, 1.0, 1.5], [1.5, 2.0, 4.0]]}],
    [
        {"episode": 0, "end": "done", "times": [[0.0, 2.0, 3.0]]},
        {"episode": 1, "end": "<img src=x onerror=alert(1)>", "times": [[0.0, 1.0, 10.0]]},
    ],
]


@pytest.fixture(scope="module")
def of_episodes(tmp_path_factory: pytest.TempPathFactory, known: Events) -> Path:
    """The page of a run whose learner reports episodes, with the turns of two groups."""
    events = [{**one, "m": {**one["m"], **OF_EPISODES}} if one["e"] == "learn" else one for one in known]
    run = write_log(tmp_path_factory.mktemp("episodes") / "run", events)
    samples = [
        {"split": "train", "update": number, "version": 1, "age": 0, "uid": f"game#{number}", "versions": [1, 1]}
        | {"prompt": "You stand.", "reply": "> go", "reward": 1.0, "group": tracks}
        for number, tracks in enumerate(GROUPS)
    ]
    (run / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    return write_report([run])


def test_episodes_are_shown_with_the_turns_of_a_group(show: Callable[..., Any], of_episodes: Path) -> None:
    page = show(of_episodes)
    facts = page.locator("#episodes .facts div").all_inner_texts()
    assert "Success, training\n25.0 %" in facts
    for chart in ("success", "turns", "tokens", "steps", "waiting", "ends"):
        assert page.locator(f"svg#agents-{chart}-0 > *").count() > 3, chart
    spent = "all => all.map(one => [one.dataset.part, Number(one.dataset.seconds)])"
    assert page.locator("svg#group-0 rect").evaluate_all(spent) == [
        *(["reply", 2], ["step", 1]),
        *(["reply", 1], ["step", 9]),
    ]  # the newest one
    widths = page.locator("svg#group-0 rect").evaluate_all("all => all.map(one => Number(one.getAttribute('width')))")
    assert widths[3] == pytest.approx(9 * widths[2], rel=0.01)
    page.locator("svg#group-0 rect").nth(3).hover()
    assert "turn 1: environment 9.00 s, from 1.00 s" in page.locator("figure:has(svg#group-0) output").inner_text()
    page.locator("#choose-group-0").select_option("game#0, update 0")
    assert page.locator("svg#group-0 rect").count() == 4
    page.locator("figure:has(svg#group-0) summary").click()
    rows = page.locator("figure:has(svg#group-0) tbody tr")
    rows.first.wait_for()
    assert rows.all_inner_texts()[1] == "0 done\t2\t1.50 s\t500 ms\t2.00 s"


def test_the_turns_of_a_group_fit_a_phone_in_the_dark_and_what_they_are_called_is_text(
    show: Callable[..., Any], of_episodes: Path
) -> None:
    page = show(of_episodes, viewport=PHONE, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("#episodes img").count() == 0
    assert "<img src=x" in page.locator("svg#group-0").inner_html().replace("&lt;", "<")
    inside = page.locator("svg#group-0 rect").evaluate_all(
        "all => all.every(one => one.getBoundingClientRect().right <= innerWidth)"
    )
    assert inside


# -- using it ---------------------------------------------------------------------------------------


def shown_stretch(page: Any) -> tuple[float, float]:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    found = re.fullmatch(r"([\d.]+) (m?)s to ([\d.]+) (m?)s", page.locator("#window").inner_text())
    assert found is not None
    return float(found[1]) / (1000 if found[2] else 1), float(found[3]) / (1000 if found[4] else 1)


def test_the_timeline_zooms_and_pans_by_buttons_keys_wheel_and_hand(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    canvas = page.locator("#tracks")
    canvas.scroll_into_view_if_needed()
    assert shown_stretch(page) == (0, 53.0)
    page.locator("#zoom-in").click()
    assert shown_stretch(page) == (13.3, 39.8)
    canvas.focus()
    page.keyboard.press("+")
    assert shown_stretch(page) == (19.9, 33.1)
    page.keyboard.press("ArrowRight")
    begin, end = shown_stretch(page)
    assert (begin, end) == (22.5, 35.8)
    said = hover(page, "learner", 30.5, end, begin)
    assert "learns update" in said
    page.keyboard.press("Home")
    assert shown_stretch(page) == (0, 53.0)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -500)
    page.keyboard.up("Control")
    begin, end = shown_stretch(page)
    assert end - begin == pytest.approx(53 * 2.718281828**-1, rel=0.02)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 200, box["y"] + 60, steps=4)
    page.mouse.up()
    after = shown_stretch(page)
    assert after[0] > begin + 2
    assert after[1] - after[0] == pytest.approx(end - begin, abs=0.2)
    page.locator("#whole").click()
    assert shown_stretch(page) == (0, 53.0)


DRAWN = """async (keys) => {
    const canvas = document.getElementById("tracks"), pen = CanvasRenderingContext2D.prototype, write = pen.fillText;
    const found = [];
    let texts = [];
    pen.fillText = function (text, x, y, ...rest) {
        if (y === 11) texts.push([text, x]);
        return write.call(this, text, x, y, ...rest);
    };
    for (const key of keys) {
        texts = [];
        canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
        await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        found.push(texts);
    }
    pen.fillText = write;
    return [canvas.clientWidth, found];
}"""


def test_the_marks_of_the_time_axis_stand_where_they_say(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    keys = ["Home"]
    for _ in range(12):
        keys += ["+", "ArrowRight"]
    width, drawn = page.evaluate(DRAWN, keys)
    left = min(120, max(72, width * 0.16))
    begin, end, steps = 0.0, 53.0, set()
    for key, texts in zip(keys, drawn, strict=True):
        span = end - begin
        if key == "+":
            begin, end = begin + span / 4, end - span / 4
        elif key == "ArrowRight":
            begin, end = begin + span / 5, end + span / 5
        said = [float(text.removesuffix(" s")) for text, _ in texts]
        assert len(said) >= 2
        steps.add(round(said[1] - said[0], 9))
        for at, (text, x) in zip(said, texts, strict=True):
            assert x == pytest.approx(left + (at - begin) / (end - begin) * (width - left), abs=1.01), text
    assert any(f"{step:g}".endswith("25") for step in steps), "a step of 2.5, which needs one more decimal"


def test_the_marks_of_a_chart_stand_where_they_say(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.uneven)
    for chart in page.locator("svg.chart").evaluate_all("all => all.map(one => one.id)"):
        marks = page.locator(f"svg#{chart} text[text-anchor=end][x='46']").evaluate_all(
            "all => all.map(one => [one.textContent, Number(one.getAttribute('y'))])"
        )
        values = [float(re.sub(r"[^\d.e+-]", "", text)) for text, _ in marks]
        heights = [y for _, y in marks]
        for value, y in zip(values[1:-1], heights[1:-1], strict=True):
            share = (value - values[0]) / (values[-1] - values[0])
            assert y == pytest.approx(heights[0] + share * (heights[-1] - heights[0]), abs=0.01), (chart, value)


def test_the_picture_changes_with_the_zoom(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    picture = "() => document.getElementById('tracks').toDataURL()"
    shown_stretch(page)
    before = page.evaluate(picture)
    page.locator("#zoom-in").click()
    shown_stretch(page)
    assert page.evaluate(picture) != before
    page.locator("#whole").click()
    shown_stretch(page)
    assert page.evaluate(picture) == before


def test_many_slices_cost_no_more_to_draw_than_there_are_pixels(show: Callable[..., Any], tmp_path: Path) -> None:
    events, _ = record(Lognormal(1.0, 0.5), Exponential(0.12), updates=3000, max_lead=16, collectors=8)
    page = show(write_report([write_log(tmp_path / "long", events)]))
    strokes = """async (keys) => {
        const canvas = document.getElementById("tracks"), counts = [], pen = CanvasRenderingContext2D.prototype;
        const fill = pen.fillRect;
        let count = 0;
        pen.fillRect = function (...box) { count += 1; return fill.apply(this, box); };
        for (const key of keys) {
            count = 0;
            canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
            await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame);
            counts.push(count);
        }
        pen.fillRect = fill;
        return counts;
    }"""
    whole, *closer = page.evaluate(strokes, ["Home", "+", "+", "+", "+", "+", "+", "+", "+", "+"])
    slices = sum(1 for event in events if event["e"] in ("start", "learn", "wait"))
    assert slices > 6000
    assert 1000 < whole < 3 * 9 * 1200  # nine tracks, one pixel a column
    assert closer[-1] < 400  # only what can be seen


def test_a_line_can_be_read_with_the_arrow_keys(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    chart = page.locator("svg#scores")
    chart.focus()
    page.keyboard.press("ArrowRight")
    readout = page.locator("figure:has(svg#scores) output")
    assert readout.inner_text() == "14.0 s: known 10"
    page.keyboard.press("ArrowRight")
    assert readout.inner_text() == "27.0 s: known 20"
    page.locator("#axis").select_option("update")
    page.locator("svg#scores").focus()
    page.keyboard.press("ArrowRight")
    assert readout.inner_text() == "10: known 10"


def test_runs_side_by_side_have_one_legend_that_hides_them(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.both)
    assert page.title() == "Headway report: 2 runs side by side"
    assert page.locator("#legend button").count() == 2
    assert page.locator("svg#scores path").count() == 2
    strokes = page.locator("svg#scores path").evaluate_all(
        "all => all.map(one => [getComputedStyle(one).stroke, one.getAttribute('stroke-dasharray')])"
    )
    assert strokes[0][0] != strokes[1][0]
    assert strokes[0][1] != strokes[1][1]
    page.locator("#legend button").nth(0).click()
    assert page.locator("svg#scores path").count() == 1
    assert page.locator("#legend button").nth(0).get_attribute("aria-pressed") == "false"
    page.locator("#legend button").nth(1).click()  # the last one stays
    assert page.locator("svg#scores path").count() == 1


def test_runs_side_by_side_are_compared_in_a_table_with_a_column_each(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.both)
    heads = page.locator("#comparison thead th").all_inner_texts()
    assert heads[1:] == page.locator("svg#scores path").evaluate_all("all => all.map(one => one.dataset.series)")
    assert heads[1].startswith("max_lead=2, ")
    assert heads[2].startswith("max_lead=4, ")
    rows = [row.split("\t") for row in page.locator("#comparison tbody tr").all_inner_texts()]
    assert ["State", "ended", "ended"] in rows
    assert ["Updates", "40", "60"] in rows
    page.locator("#legend button").nth(0).click()
    assert page.locator("#comparison").count() == 0, "one alone is compared with nothing"


def test_ages_side_by_side_are_shares(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.both)
    bars = page.locator("svg#ages rect").evaluate_all("all => all.map(one => Number(one.dataset.value))")
    assert sum(bars) == pytest.approx(2.0)
    page.locator("#legend button").nth(0).click()
    bars = page.locator("svg#ages rect").evaluate_all("all => all.map(one => Number(one.dataset.value))")
    assert sum(bars) == 60, "one alone is counted"


def test_runs_that_report_different_things_have_a_chart_for_each(
    show: Callable[..., Any], tmp_path: Path, known: Events
) -> None:
    runs = []
    for name in ("reward", "return"):
        events = [{**event, "m": {name: 1.5}} if event["e"] == "learn" else event for event in known]
        runs.append(write_log(tmp_path / name, events))
    page = show(write_report(runs, tmp_path / "both.html"))
    for name in ("reward", "return"):
        figure = page.locator(f"figure:has(svg#training-{name})")
        assert figure.locator("h3").inner_text() == f"While training: {name}"
        assert figure.locator("path").evaluate_all("all => all.map(one => one.dataset.series)") == [name]


def test_learning_is_drawn_against_environment_steps_with_lengths_and_failed_evaluations(
    show: Callable[..., Any], tmp_path: Path, known: Events
) -> None:
    events, failed = [], 0
    for event in known:
        if event["e"] == "learn":
            event = {**event, "m": {"return": 1.5, "length": 30.0 + event["u"]}}
        if event["e"] == "land":
            event = {**event, "n": 16}
        if event["e"] == "score" and event["v"] == 20:
            event, failed = {**event, "value": None, "error": "the simulator is gone"}, failed + 1
        elif event["e"] == "score":
            event = {**event, "m": {"length": 5.0 * event["v"]}}
        events.append(event)
    assert failed == 1
    page = show(write_report([write_log(tmp_path / "run", events)]))
    page.locator("#axis").select_option("step")
    assert page.locator("#axis option:checked").inner_text() == "steps", "of functions of your own nobody knows what"
    for chart, rows in {
        "scores": ["160\t10", "480\t30", "640\t40"],
        "score-lengths": ["160\t50", "480\t150", "640\t200"],
    }.items():
        figure = page.locator(f"figure:has(svg#{chart})")
        figure.locator("summary").click()
        figure.locator("tbody tr").first.wait_for()
        assert [row.partition("\t")[2] for row in figure.locator("tbody tr").all_inner_texts()] == rows
    figure = page.locator("figure:has(svg#training-lengths)")
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    assert figure.locator("tbody tr").nth(0).inner_text().split("\t")[1:] == ["16", "31"]
    crosses = page.locator("svg#scores path.cross title").evaluate_all("all => all.map(one => one.textContent)")
    assert crosses == ["the evaluation of version 20 gave no score: the simulator is gone"]
    assert "An evaluation gave no score" in page.locator("#learning .notice").inner_text()


LEVELS = """async () => {
    const canvas = document.getElementById("tracks"), pen = CanvasRenderingContext2D.prototype, line = pen.lineTo;
    const bottom = canvas.clientHeight, found = [];
    pen.lineTo = function (x, y) { if (y !== bottom) found.push(x); return line.call(this, x, y); };
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    pen.lineTo = line;
    return [canvas.clientWidth, Math.max(...found)];
}"""


def test_the_lead_of_a_run_ends_with_it(show: Callable[..., Any], tmp_path: Path, known: Events) -> None:
    auto, _ = record(1.0, 0.2, updates=40, max_lead="auto", lead_interval=2, collectors=2)
    end = auto[-1]["t"]
    assert end < 40 < known[-1]["t"]
    runs = [write_log(tmp_path / "auto", auto), write_log(tmp_path / "known", known)]
    page = show(write_report(runs, tmp_path / "both.html"))
    width, last = page.evaluate(LEVELS)
    left = min(120, max(72, width * 0.16))
    assert last == pytest.approx(left + end / known[-1]["t"] * (width - left), abs=1.0)


def test_alarms_and_failed_evaluations_can_be_seen(show: Callable[..., Any], tmp_path: Path, known: Events) -> None:
    failed = {"value": None, "error": "evaluate returned nan"}
    told = [{**event, **failed} if event["e"] == "score" else event for event in known]
    alarm = {"t": 20.0, "e": "alarm", "name": "idle_learner", "on": True, "value": 0.9, "threshold": 0.5}
    events = sorted([*told, alarm], key=lambda event: float(event["t"]))
    page = show(write_report([write_log(tmp_path / "run", events)]))
    said = page.locator("#summary .notice").all_inner_texts()
    assert said[0].startswith("ALARM: idle_learner is 0.9, above 0.5")
    assert said[1].startswith("4 of 4 evaluations gave no score.")
    assert said[1].endswith("evaluate returned nan.")
    assert page.locator("#mark-keys li").all_inner_texts() == ["alarm", "failed evaluation"]
    page.locator("#tracks").scroll_into_view_if_needed()
    box = page.locator("#tracks").bounding_box()
    left = min(120, max(72, box["width"] * 0.16))
    page.mouse.move(box["x"] + left + 20 / 53 * (box["width"] - left), box["y"] + 22 + 22 + 10)
    assert page.locator("#slice").inner_text().startswith("run, 20.0 s: ALARM: idle_learner is 0.9")
    page.locator("summary", has_text="The marks as a table").click()
    rows = page.locator("#timeline tbody tr")
    rows.first.wait_for()
    assert rows.count() == 5
    assert "evaluate returned nan" in rows.nth(4).inner_text()


# -- light, dark, small -----------------------------------------------------------------------------

CONTRAST = """() => {
    const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const luminance = (rgb) => rgb.slice(0, 3).map((v) => linear(v / 255))
        .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const paint = parse(getComputedStyle(node).backgroundColor);
            if (paint.length < 4 || paint[3] > 0) return paint;
        }
        return [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let worst = [99, ""];
    while (walker.nextNode()) {
        const node = walker.currentNode, parent = node.parentElement;
        const unseen = ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE", "title"].includes(parent.tagName);
        if (unseen || !node.textContent.trim()) continue;
        const style = getComputedStyle(parent);
        const ink = parse(parent instanceof SVGElement ? style.fill : style.color);
        const [a, b] = [luminance(ink), luminance(behind(parent))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < worst[0]) worst = [ratio, node.textContent.trim().slice(0, 40)];
    }
    return worst;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(show: Callable[..., Any], pages: Pages, scheme: str) -> None:
    page = show(pages.both, color_scheme=scheme)
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, where
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_theme_can_be_switched_by_hand(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known, color_scheme="light")
    paper = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.locator("#theme").select_option("dark")
    assert page.evaluate(paper) != light
    assert page.evaluate(CONTRAST)[0] >= 4.5
    page.locator("#theme").select_option("light")
    assert page.evaluate(paper) == light


def test_on_a_phone_nothing_is_wider_than_the_screen(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.both, viewport=PHONE, has_touch=True)
    for box in page.locator("details").all():
        box.evaluate("one => { one.open = true; }")
    page.wait_for_timeout(50)  # tables are built when they are opened
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.locator("#what-if tbody tr").count() >= 12


LINES = """() => {
    const broken = [];
    const lines = (node, first, last) => {
        const range = document.createRange();
        range.setStart(node, first);
        range.setEnd(node, last);
        return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
    };
    for (const cell of document.querySelectorAll("th, td")) {
        const node = cell.firstChild;
        if (!node || !cell.checkVisibility()) continue;
        const isNumber = cell.tagName === "TD" && !cell.classList.contains("text");
        if (isNumber && lines(node, 0, node.length) > 1) broken.push(node.data);
        const isHead = cell.closest("thead") !== null;
        for (const word of isHead ? node.data.matchAll(/[^\\s-]+/g) : []) {
            if (lines(node, word.index, word.index + word[0].length) > 1) broken.push(word[0]);
        }
    }
    return broken;
}"""


@pytest.mark.parametrize("which", ["known", "uneven", "both"])
def test_on_a_phone_numbers_and_heads_stay_whole_and_tables_scroll(
    show: Callable[..., Any], pages: Pages, which: str
) -> None:
    page = show(getattr(pages, which), viewport=PHONE, has_touch=True)
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    page.locator("#time tbody tr.sum").first.wait_for()  # tables are made when they are opened
    assert page.locator("td").count() > 100
    assert page.evaluate(LINES) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    wider = page.locator(".wide").evaluate_all("all => all.filter(one => one.scrollWidth > one.clientWidth).length")
    assert wider >= 1
    outside = page.locator("table").evaluate_all("all => all.filter(one => !one.closest('.wide')).length")
    assert outside == 0


def test_a_page_follows_a_change_of_width(show: Callable[..., Any], pages: Pages) -> None:
    page = show(pages.known)
    wide = page.locator("svg#scores").bounding_box()["width"]
    page.set_viewport_size(PHONE)
    page.wait_for_function("() => document.documentElement.scrollWidth <= 390")
    assert page.locator("svg#scores").bounding_box()["width"] < wide


# -- live, killed -----------------------------------------------------------------------------------


@contextmanager
def served(run: Path) -> Iterator[str]:
    with ReportServer([run], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.address
        finally:
            server.shutdown()
            thread.join()


def test_a_live_page_follows_the_run_to_its_end(
    show: Callable[..., Any], tmp_path: Path, known: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.tools.report.report_page_report_server.REFRESH_S", 0.1)
    monkeypatch.setattr("headway.tools.report.report_page_report_server.REST", 0.0)
    run = write_log(tmp_path / "live", known, len(known) // 2)
    with served(run) as address:
        page = show(address)
        before = page.locator("svg#scores circle").count()
        assert "no end in the log" in page.locator("#state").inner_text()
        page.locator("#zoom-in").click()
        zoomed = shown_stretch(page)
        write_log(run, known)
        page.wait_for_function(
            "() => document.getElementById('state').textContent.startsWith('ended')", timeout=1000 * patient(30)
        )
        assert page.locator("svg#scores circle").count() == 4 > before
        assert shown_stretch(page) == zoomed  # who looked closer still does


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_run_killed_in_the_middle_shows_what_there_is(
    show: Callable[..., Any], tmp_path: Path, known: Events, share: float
) -> None:
    page = show(write_report([write_log(tmp_path / "killed", known, int(share * len(known)))]))
    assert page.locator("section").count() == 12
    assert "no end in the log" in page.locator("#state").inner_text()


# -- samples ----------------------------------------------------------------------------------------


def test_samples_are_shown_as_they_were_written_where_there_are_any(
    pages: Pages, known: Events, tmp_path: Path, show: Callable[..., Any]
) -> None:
    assert show(pages.known).locator("#samples").count() == 0
    folder = write_log(tmp_path / "run", known)
    reply = "<b>bold</b>\n  </script><script>document.title = 'changed'</script>"
    sample = {"split": "eval", "version": 3, "uid": "q/1", "prompt": "Why?", "reply": reply, "reward": 0.5}
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    page = show(write_report([folder]))
    assert page.locator("#samples pre").all_text_contents() == ["Why?", reply]
    assert "reward 0.5" in page.locator("#samples h4").inner_text()
    assert page.title() == "Headway report: run"
