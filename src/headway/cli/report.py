"""What a run came to, for people: `headway report`, `headway report --serve` and `headway doctor`.

    run folder --read_story--> story --account--> accounts --advise--> findings
                                     --what_if--> the simulator, fitted to it
                                     all together --page--> report.html

The page appears whole or not at all. Whatever the run is doing meanwhile (or has stopped doing), it is valid up to the
last event in its log.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headway.core.refusals import refusal
from headway.observe.advice import MIN_UPDATES, Finding, advise, bottleneck
from headway.observe.environment import process_is_alive
from headway.observe.folder import RunFolder
from headway.observe.log_parts import log_size
from headway.observe.report import Seen, Setting, Simulated, document, page
from headway.observe.run_history import Story, StoryReader, read_story
from headway.observe.samples import EVAL, TRAIN, Sample, choose, read_samples
from headway.observe.time_report import Accounts, account
from headway.observe.whole_files import write_whole
from headway.recipes import RECIPES, load_recipe
from headway.recipes.config import RunConfig
from headway.simulate.fitting import LEFT_OUT, WhatIf, what_if
from headway.simulate.simulation import WORTH_A_VERSION

REPORT = "report.html"
REFRESH_S = 2.0
REST = 10.0  # how many times as long as it took to make a page is left to the run before it is made again
ENOUGH_UPDATES = 10
UP_TO_BYTES = 100_000_000  # of a log that is read at the end of a run
PORT = 8642
NAMES = ("localhost", "127.0.0.1", "[::1]")
HOST = re.compile(rf"({'|'.join(map(re.escape, NAMES))})(:\d+)?", re.IGNORECASE)
NUM_SAMPLES = 3
SHARED_THREADS = 0.5  # cores
SHARED_MACHINE = 0.8  # of all cores


def write_report(folders: Sequence[Path], output: Path | None = None) -> Path:
    """One page about these runs, side by side; in the folder of the first unless `output` says where."""
    path = output or folders[0] / REPORT
    text = page(document(see(folders)))
    try:
        write_whole(path, text)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    return path


def leave_report(folder: RunFolder) -> str:
    """The page at the end of a run, however it ended: a line that names it, or says why there is none."""
    if folder.events.is_file() and log_size(folder.events) > UP_TO_BYTES:
        return f"a long run; to write its report: headway report {folder.path}"
    try:
        return f"report: {write_report([folder.path])}"
    except ValueError as error:
        return f"no report: {error}"
    except (OSError, MemoryError) as error:
        return f"no report: {refusal(error)}; to write it: headway report {folder.path}"


def see(folders: Sequence[Path]) -> list[Seen]:
    """Everything about these runs."""
    return [look(read_story(folder), name) for folder, name in zip(folders, _names(folders), strict=True)]


def _names(folders: Sequence[Path]) -> list[str]:
    """Runs whose folders have the same name are told apart by their place."""
    names = [folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def look(story: Story, name: str) -> Seen:
    """One run with everything that follows from its story."""
    called = story.config.get("name")
    accounts = account(story)
    simulated, recommended = _simulate(story, accounts)
    return Seen(
        name=f"{called} ({name})" if called else name,
        story=story,
        accounts=accounts,
        findings=advise(story, accounts, recommended_lead=recommended),
        bottleneck=bottleneck(story, accounts),
        simulated=simulated,
        settings=_settings(story.recipe),
        is_alive=_is_alive(story),
        samples=_newest_samples(story),
    )


def _newest_samples(story: Story) -> list[Sample]:
    """Of evaluations and of updates, a few each."""
    if story.folder is None or not (path := RunFolder(story.folder).samples).is_file():
        return []
    found = list(read_samples(path))
    return [one for split in (EVAL, TRAIN) for one in choose(found, at_most=NUM_SAMPLES, split=split)]


def _is_alive(story: Story) -> bool | None:
    return None if story.is_over else process_is_alive(story.environment)


def _settings(recipe: str) -> dict[str, Setting]:
    """The defaults of a recipe. Of one that lacks a package here, or of your own (whose code is not run for this), what
    all recipes share."""
    fields = RunConfig.model_fields
    if recipe in RECIPES:
        try:
            fields = load_recipe(recipe).config.model_fields
        except ImportError:
            pass
    return {
        name: Setting(field.get_default(call_default_factory=True), field.description or "")
        for name, field in fields.items()
    }


# -- what if ----------------------------------------------------------------------------------------


def _simulate(story: Story, accounts: Accounts) -> tuple[Simulated, float | None]:
    if len(story.updates) < ENOUGH_UPDATES:
        return Simulated(note=f"{len(story.updates)} updates are too few to simulate anything from."), None
    try:
        found = what_if(story)
    except ValueError as error:
        return Simulated(note=f"There is nothing to simulate: {error}."), None
    serial = next((outcome.updates_per_s for lead, outcome in found.rows if lead == 0), None)
    recommended = found.best if isinstance(found.best, int | float) else None
    table = _as_table(found, serial, story)
    return replace(table, is_shared=_is_shared(story, accounts)), recommended


def _as_table(found: WhatIf, serial: float | None, story: Story) -> Simulated:
    base = serial or found.rows[0][1].updates_per_s
    rows = [
        {
            "lead": f"auto (ends at {outcome.lead:g})" if lead == "auto" else f"{lead:g}",
            "updates_per_s": outcome.updates_per_s,
            "speedup": outcome.updates_per_s / base,
            "staleness_mean": outcome.staleness_mean,
            "staleness_max": outcome.staleness_max,
            "learner_idle": outcome.learner_idle,
            "is_best": lead == found.best,
        }
        for lead, outcome in found.rows
    ]
    best = next(row for row in rows if row["is_best"])
    rates = {lead: outcome.updates_per_s for lead, outcome in found.rows}
    faster = rates.get("auto", 0.0) / rates[found.best]
    also = f" max_lead=auto would be {faster:.2f} times as fast as that." if faster > 1 + WORTH_A_VERSION else ""
    now = story.settings["max_lead"]
    is_now = now == found.best
    refused = "".join(f" Lead {lead} is refused: {why}." for lead, why in found.refused.items())
    return Simulated(
        rows=rows,
        serial_updates_per_s=serial,
        own_updates_per_s=found.repeated.simulated.updates_per_s,
        recommendation=f"Recommended: max_lead={best['lead']}{', as it is' if is_now else ''}: {found.reason}.{also}",
        caption="The coordinator on a virtual clock, with the durations of this run",
        fit=found.repeated.sentence(),
        note=LEFT_OUT + refused,
    )


def _is_shared(story: Story, accounts: Accounts) -> bool:
    """Did roles compute in each other's way? Threads do from half a core on, as one of them runs Python at a time;
    processes when the machine is nearly full. Where nobody looked at it they may have."""
    runtime, cpus, cores = story.settings.get("runtime"), story.environment.get("cpus"), accounts.cores
    if runtime == "threads":
        return cores is None or cores > SHARED_THREADS
    if cores is None or not cpus:
        return False
    return runtime in ("processes", "ray") and cores > SHARED_MACHINE * cpus


# -- doctor -----------------------------------------------------------------------------------------


def examine(folder: Path) -> str:
    """What is wrong with a run, and what to do about it."""
    run = look(read_story(folder), folder.resolve().name)
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
        lines.append("nothing to change")
    for number, found in numbered:
        if not found.stops_learning:
            lines += ["", *_in_lines(number, found)]
    return "\n".join(lines)


def _in_lines(number: int, found: Finding) -> list[str]:
    gain = found.gain_text()
    lines = [f"{number}. {found.title}{f' ({gain})' if gain else ''}", f"   {found.evidence}"]
    return [*lines, f"   try: {found.change}"] if found.change else lines


# -- serve ------------------------------------------------------------------------------------------


class Watch:
    """The newest document about runs that go on. It is made again when a log has grown or a process is gone, and not
    more often than leaves the machine to the run. Of a log only what is new is read."""

    def __init__(self, folders: Sequence[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = _names(folders)
        self._logs = [RunFolder(folder).events for folder in folders]
        self._readers = [StoryReader(folder) for folder in folders]
        self._stories: list[Story] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[list[int], list[bool | None]] = [], []
        """Of each run: the size of its log, and whether its process was alive."""
        self._good_until = 0.0
        self._document: dict[str, Any] = {}
        self._text = b""
        self._tag = ""

    def newest(self) -> tuple[dict[str, Any], bytes, str]:
        """The document, the same as JSON, and a tag that changes with it."""
        with self._lock:
            began = self._clock()
            sizes = [log_size(log) if log.is_file() else -1 for log in self._logs]  # before they are read
            if not self._document or ((sizes, self._lives()) != self._seen and began >= self._good_until):
                self._stories = [reader.read() for reader in self._readers]
                runs = [look(story, name) for story, name in zip(self._stories, self._names, strict=True)]
                self._seen = sizes, [run.is_alive for run in runs]
                is_live = any(run.may_go_on for run in runs)
                self._document = document(runs, is_live=is_live, refresh_s=REFRESH_S)
                self._text = json.dumps(self._document, separators=(",", ":"), allow_nan=False).encode()
                self._tag = f'"{blake2b(self._text, digest_size=8).hexdigest()}"'
                self._good_until = began + REST * (self._clock() - began)
            return self._document, self._text, self._tag

    def _lives(self) -> list[bool | None]:
        return [_is_alive(story) for story in self._stories]


class ReportServer(ThreadingHTTPServer):
    """The page and its data, on this machine only."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        self.watch = Watch(folders)
        self.watch.newest()  # what is no run is told now, not to the browser
        try:
            super().__init__(("127.0.0.1", port), _Answer)
        except OSError as error:
            why = error.strerror or str(error)
            raise ValueError(f"cannot serve on port {port}: {why}; choose another with --port") from None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


def is_of_this_machine(host: str) -> bool:
    """Does a Host header name this machine as those on it do, with any port (it may be forwarded)? A page elsewhere can
    have its own name lead here, and its script could then read the answer: but the browser says that name."""
    return HOST.fullmatch(host) is not None


class _Answer(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        if not is_of_this_machine(self.headers.get("Host", "")):
            self.send_error(421, explain=f"This page is for {', '.join(NAMES)} only.")
            return
        wanted = self.path.partition("?")[0]
        if wanted not in ("/", "/data.json"):
            self.send_error(404)
            return
        try:
            newest, text, tag = self.server.watch.newest()
        except ValueError as error:
            self.send_error(503, str(error))
            return
        if wanted == "/":
            self._send(page(newest).encode(), "text/html; charset=utf-8", tag)
        elif self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.end_headers()
        else:
            self._send(text, "application/json", tag)

    def _send(self, body: bytes, kind: str, tag: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A line a request would bury what the terminal is for."""
