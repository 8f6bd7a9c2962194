"""headway doctor RUN: which side is the bottleneck and what to change, each with its evidence."""

from __future__ import annotations

from pathlib import Path

from headway.cli.options_output import say
from headway.cli.options_words import UsageError
from headway.tools.report.advice import MIN_UPDATES, Finding, without_findings
from headway.tools.report.recorded_run_run_history import read_story
from headway.tools.report.report_page import look


def command(words: list[str]) -> int:
    """The command."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError("doctor needs the folder of one run: headway doctor RUN")
    say(examine(Path(words[0])))
    return 0


def examine(folder: Path) -> str:
    """What is wrong with a run, and what to do about it."""
    run = look(read_story(folder, whole=False), folder.resolve().name)
    last = run.story.sessions[-1] if run.story.sessions else None
    lines = [f"the run failed: {last.why}"] if last is not None and last.how == "fail" else []
    numbered = list(enumerate(run.findings, 1))
    for number, found in numbered:
        if found.stops_learning:
            lines += [*_in_lines(number, found), ""]
    lines.append(run.bottleneck)
    if run.simulated.recommendation:
        lines.append(f"simulated: {run.simulated.recommendation[0].lower()}{run.simulated.recommendation[1:]}")
    if not run.findings and len(run.story.updates) >= MIN_UPDATES:
        title = without_findings(run.story, run.accounts)[0]
        lines.append(f"{title[0].lower()}{title[1:]}")
    for number, found in numbered:
        if not found.stops_learning:
            lines += ["", *_in_lines(number, found)]
    return "\n".join(lines)


def _in_lines(number: int, found: Finding) -> list[str]:
    gain = found.gain_text()
    lines = [f"{number}. {found.title}{f' ({gain})' if gain else ''}", f"   {found.evidence}"]
    return [*lines, f"   try: {found.change}"] if found.change else lines
