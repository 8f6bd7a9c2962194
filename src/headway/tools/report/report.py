"""The report of a run as one page: `page(document([run_data(...), ...]))`.

    story, accounts, findings, what-if ---> run_data ---> document ---> page: HTML with everything in it
                                                 (plain JSON)           (page/page.html, page.css, page.js)

The page needs no network and no library, and works from a file. Its size is bounded: lines and slices are thinned
(`series.py`, `timeline_slices.py`), so a run of a day makes a page no larger than one of an hour. Totals and curves are
of all of a run (`whole_run.py`); everything else is of the story, which may be that of its end.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files

from headway.core.types_opaque import JsonObject
from headway.runs.samples import Sample, in_words
from headway.tools.report import series
from headway.tools.report.advice import Finding, without_findings
from headway.tools.report.agent_report import agents
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.report_line_report import age_step_of, histogram, lines_of
from headway.tools.report.report_texts import Seen as Seen
from headway.tools.report.report_texts import Setting as Setting
from headway.tools.report.report_texts import Simulated as Simulated
from headway.tools.report.report_texts import as_text, comparison, env_name, facts, headline, labels, state
from headway.tools.report.series_notable_moments import notices
from headway.tools.report.timeline_slices import Palette, time_by_role, timeline

MAX_TEXT = 2000  # characters of a prompt or a reply
TICKETS = {
    "opened": "opened",
    "learned": "learned",
    "dropped": "dropped",
    "live": "not ended",
    "reissued": "flown again",
}


def page(document: Mapping[str, object]) -> str:
    """The whole page as text."""
    return filled("page.html", "page.js", document)


def filled(frame: str, script: str, document: Mapping[str, object]) -> str:
    """A page of the house: the frame with its style, the script that draws it, and what it draws."""
    parts = files("headway.tools.report") / "page"
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    whole = (parts / frame).read_text(encoding="utf-8")
    for mark, part in (
        ("/*STYLE*/", (parts / "page.css").read_text(encoding="utf-8")),
        ("/*CHARTS*/", (parts / "charts.js").read_text(encoding="utf-8")),
        ("/*SCRIPT*/", (parts / script).read_text(encoding="utf-8")),
        ("/*DATA*/", text),  # last: what a run says is not looked at again
    ):
        before, found, after = whole.partition(mark)
        assert found, f"{frame} has no {mark}"
        whole = before + part + after
    return whole


def document(runs: Sequence[Seen], *, is_live: bool = False, refresh_s: float = 2.0) -> JsonObject:
    """What the page draws: runs side by side, with one list of causes and one legend."""
    palette = Palette()
    step = max((age_step_of(run.story) for run in runs), default=1)  # bars that can stand side by side
    names = labels(runs)
    told = [run_data(run, palette, label, step) for run, label in zip(runs, names, strict=True)]
    title = f"Headway report: {runs[0].name}" if len(runs) == 1 else f"Headway report: {len(runs)} runs side by side"
    played = list(dict.fromkeys(name for run in runs if (name := env_name(run.story))))
    title += f" on {', '.join(played)}" if len(played) in (1, 2, 3) else ""
    return {
        "title": title,
        "state": "; ".join(run["state"] if len(runs) == 1 else f"{run['label']}: {run['state']}" for run in told),
        "made": f"Made by Headway, {time.strftime('%Y-%m-%d %H:%M')}. Times are seconds since the run began.",
        "is_live": is_live,
        "refresh_s": refresh_s,
        "runs": told,
        "causes": palette.causes(),
        "flows": series.titles([run["flow"] for run in told]),
        "meanings": series.DIAGNOSTICS,
        "tickets": list(TICKETS.items()),
    }


def run_data(run: Seen, palette: Palette, label: str, age_step: int = 1) -> JsonObject:
    """One run for the page."""
    story, accounts, whole = run.story, run.accounts, run.of_all
    curves = whole.outline
    lines, diagnostics = series.learner(curves.first, with_losses=bool(story.other_lines))
    return {
        "name": run.name,
        "label": label,
        "state": state(story, run.is_alive),
        "headline": headline(run),
        "notices": notices(story),
        "comparison": comparison(run),
        "facts": facts(run),
        "findings": [_finding(one) for one in run.findings],
        "without_findings": without_findings(story, accounts),
        "scores": series.scores(curves),
        "score_lengths": series.score_lengths(curves),
        "failures": series.failures(curves),
        "training": series.training(curves),
        "training_lengths": series.training_lengths(curves),
        "steps": series.step_word(story),
        "timeline": timeline(story, palette),
        "time": time_by_role(accounts.roles, palette),
        "flow": whole.flows(),
        "staleness": histogram(accounts.ages, age_step),
        "age": {
            "mean": series.finite(accounts.staleness.mean),
            "max": series.finite(accounts.staleness.max),
            "bound": story.settings.get("staleness_bound"),
            "in_flight": series.finite(accounts.stale_in_flight),
            "in_queue": series.finite(accounts.stale_in_queue),
        },
        **({"lines": lines_of(run, age_step)} if story.other_lines else {}),
        "drops": dict(whole.first.drops),
        "tickets": dict(whole.first.tickets),
        "length_bias": series.finite(accounts.length_bias),
        "learn": lines,
        "diagnostics": diagnostics,
        "config": configuration(story, run.settings),
        "environment": environment(story),
        "agents": agents(story, run.groups),
        "samples": [_sample(one) for one in run.samples],
        "what_if": {
            "rows": list(run.simulated.rows),
            "recommendation": run.simulated.recommendation,
            "caption": run.simulated.caption,
            "fit": run.simulated.fit,
            "note": run.simulated.note,
        },
    }


def _finding(found: Finding) -> JsonObject:
    return {"title": found.title, "evidence": found.evidence, "change": found.change, "gain": found.gain_text()}


def _sample(sample: Sample) -> dict[str, str]:
    words = in_words(sample)
    head = f"{words.where}: {words.reward}, {words.how}"
    return {"head": _cut(head), "prompt": _cut(words.prompt), "reply": _cut(words.reply)}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


# -- in tables --------------------------------------------------------------------------------------


def configuration(story: Story, settings: Mapping[str, Setting]) -> list[JsonObject]:
    """Every setting; what differs from its default is marked. Without a config.yaml: what the log says."""
    values = {"recipe": story.recipe, **story.config} if story.config else dict(story.settings)
    rows = []
    for name, value in values.items():
        known = settings.get(name)
        rows.append(
            {
                "name": name,
                "value": as_text(value),
                "standard": "" if known is None else as_text(known.standard),
                "what": "" if known is None else known.what,
                "is_changed": known is None or as_text(value) != as_text(known.standard),
            }
        )
    return rows


def environment(story: Story) -> dict[str, str]:
    """`environment.json`, flat."""
    told: dict[str, str] = {}
    for name, value in story.environment.items():
        if isinstance(value, Mapping):
            told |= {f"{inner}": as_text(one) for inner, one in value.items()}
        elif name == "gpus":
            told[name] = ", ".join(f"{count} x {gpu}" for gpu, count in Counter[str](value).items())
        elif name not in ("began_at", "sessions"):
            told[name.replace("_", " ")] = as_text(value)
    if story.began_at is not None:
        told["began"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(story.began_at))
    return told
