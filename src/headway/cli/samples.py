"""headway samples RUN [--last N] [--split train|eval] [--best | --worst]: what was generated, as text.

The newest N (10), oldest first; or those with the highest, or the lowest, reward. Of a run that goes on too."""

from __future__ import annotations

from headway.cli import options_output as output
from headway.cli.options_words import UsageError, one_run, read_options, whole_numbers
from headway.cli.samples_sample_view import show
from headway.core.text_naming import unknown
from headway.runs.folder import RunFolder
from headway.runs.samples import EVAL, TRAIN, choose, read_samples


def command(words: list[str]) -> int:
    """The command."""
    folder, options = RunFolder.existing(one_run("samples", words[:1])), read_options(words[1:])
    split = options.pop("split", None)
    if split not in (None, TRAIN, EVAL):
        raise UsageError(unknown("split", str(split), [TRAIN, EVAL]))
    wanted = whole_numbers(options, last=10, best=False, worst=False)
    if wanted["best"] and wanted["worst"]:
        raise UsageError("--best and --worst exclude each other")
    if not folder.samples.is_file():
        raise UsageError(f"{folder.path} has no samples: {_why_not(folder)}")
    by = "best" if wanted["best"] else "worst" if wanted["worst"] else "newest"
    found = choose(read_samples(folder.samples), at_most=wanted["last"], split=split, by=by)
    show(found[::-1] if by == "newest" else found, output.OUT)
    return 0


def _why_not(folder: RunFolder) -> str:
    recipe, values = folder.read_config()
    if "log_samples" not in values:
        return f"its recipe, {recipe}, generates no text"
    return "no group of replies has been whole so far" if values["log_samples"] else "log_samples was 0"
