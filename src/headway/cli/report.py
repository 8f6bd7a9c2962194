"""headway report RUN [RUN ...] [--output FILE] [--whole] [--serve] [--port N]: what happened, as one page.

Of a long run the page has the totals and curves of all of it, and tells the rest of its end; --whole reads all.
Without --output the page is report.html in the folder of the first run. With --serve it is shown on this machine
and follows a run that goes on, until Ctrl-C. Of a sweep (headway report SWEEP) its page and tables are written anew.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from headway.cli.doctor import examine as examine
from headway.cli.options_output import say
from headway.cli.options_words import UsageError, read_options
from headway.core.text_naming import unknown
from headway.tools.report.report_page import leave_report as leave_report
from headway.tools.report.report_page import write_report
from headway.tools.report.report_page_report_server import ReportServer
from headway.tools.sweep.grid_folder import SweepFolder
from headway.tools.sweep.results_page import results_of

PORT = 8642


def command(words: list[str]) -> int:
    """The command."""
    serve, whole = "--serve" in words, "--whole" in words  # they take no value: what follows may be a run
    words = [word for word in words if word not in ("--serve", "--whole")]
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    runs, options = [Path(word) for word in words[:first]], read_options(words[first:])
    for name in options:
        if name not in ("output", "port"):
            raise UsageError(unknown("option", name, ["output", "serve", "port", "whole"]))
    if not runs:
        raise UsageError("report needs the folder of a run: headway report RUN [RUN ...]")
    if any(map(SweepFolder.is_one, runs)):
        if len(runs) > 1 or options or serve or whole:
            raise UsageError("the report of a sweep is written into its folder: headway report SWEEP, and nothing else")
        results_of(runs[0])
        say(f"report: {SweepFolder(runs[0]).report}")
        return 0
    port = options.get("port", PORT)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise UsageError(f"--port must be a whole number from 0 to 65535, received {port!r}")
    if serve and whole:
        raise UsageError("--whole is for a page that is written; one that follows a run reads its end")
    if serve and "output" in options:
        raise UsageError("--output is for a page that is written; with --serve there is none")
    if serve:
        return _serve(runs, port)
    if "port" in options:
        raise UsageError("--port is for --serve")
    output = options.get("output")
    path = write_report(runs, None if output is None else Path(str(output)), whole=whole)
    say(f"report: {path}")
    return 0


def _serve(runs: Sequence[Path], port: int) -> int:
    """Ctrl-C is waited for, not raised: an exception in the middle of a line would have it printed twice."""
    ended: SimpleQueue[int] = SimpleQueue()  # a handler may put into it whatever the main thread holds
    with ReportServer(runs, port) as server:
        before = signal.signal(signal.SIGINT, lambda number, _: ended.put(number))
        try:
            serving = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
            serving.start()
            say(f"report: {server.address} (Ctrl-C ends it)")
            ended.get()
        finally:
            signal.signal(signal.SIGINT, before)
        say("ended")
        server.shutdown()
        serving.join()
    return 0
