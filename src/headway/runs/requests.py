"""What another process asks of a run that goes on: files in a folder of the run that only its owner may open.

    headway scale RUN                        the run, in a thread of its own
    ask-<id>.json      -- appears whole -->  read, checked, removed; answered in the coordinator's thread
    answer-<id>.json  <-- appears whole ---  what came of it

The folder `requests/` is there as long as the run listens. Whatever is in it counts only if it is a plain small file of
the user who runs the run: who may write into a run's folder may not yet tell the run what to do. Everything is done
relative to the folder as it was opened, so that nothing can be put in its place meanwhile.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.scaling import CollectorChange, ScaleRefused
from headway.core.text_messages import to_stderr
from headway.core.types_opaque import JsonObject
from headway.runs.folder import RunFolder
from headway.runs.folder_environment import process_is_alive
from headway.runs.parsed_json import parsed

LOOK_S = 0.2
END_S = 10.0
"""How long the end of a run waits until the last answers are on the disk. The thread that puts them there may take
longer, or for ever: it keeps no process alive."""
MAX_BYTES = 4096
ASK, ANSWER = "ask-", "answer-"


class _Folder:
    """The folder of requests, held open."""

    def __init__(self, path: Path) -> None:
        """ValueError: it is not a folder of whoever this process belongs to."""
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(self._fd).st_uid != os.geteuid():
            self.close()
            raise ValueError(f"{path} belongs to somebody else")
        os.fchmod(self._fd, 0o700)

    def close(self) -> None:
        os.close(self._fd)

    def names(self, prefix: str) -> list[str]:
        return [name for name in os.listdir(self._fd) if name.startswith(prefix) and name.endswith(".json")]

    def put(self, name: str, content: JsonObject) -> None:
        """A file that appears whole."""
        beside = f".{secrets.token_hex(8)}"
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self._fd)
        with os.fdopen(file, "w") as writing:
            json.dump(content, writing)
        os.rename(beside, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def take(self, name: str) -> JsonObject | None:
        """The content of a file, which is removed; None if it is not there. ValueError: it is not to be trusted."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.remove(name)
            raise ValueError(f"it cannot be opened: {error.strerror}") from None
        with os.fdopen(file, "rb") as reading:
            self.remove(name)
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_size > MAX_BYTES:
                raise ValueError("it is not a small file of the user who runs this run")
            content = parsed(reading.read(MAX_BYTES))
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        return content

    def remove(self, name: str) -> bool:
        """Was it there?"""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._fd)
            return True
        return False


# -- the run ----------------------------------------------------------------------------------------


@contextmanager
def listening(run: RunFolder, coordinator: Coordinator) -> Iterator[None]:
    """Requests are answered in this block. A run that cannot listen goes on, and says so."""
    try:
        run.requests.mkdir(mode=0o700, exist_ok=True)
        folder = _Folder(run.requests)
    except (OSError, ValueError) as error:
        to_stderr(f"`headway scale` cannot reach this run: {error}")
        yield
        return
    for left in (*folder.names(ASK), *folder.names(ANSWER), *folder.names(".")):  # of a session that was killed
        folder.remove(left)
    listener = _Listener(run, folder, coordinator)
    thread = threading.Thread(target=listener.listen, name="headway requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.is_over.set()
        thread.join(END_S)
        if thread.is_alive():
            to_stderr(f"{run.requests} stays behind: the disk has not answered within {END_S:g} s")


class _Listener:
    """Looks for requests, and writes the answers; at the end it removes the folder. Nobody else asks its disk."""

    def __init__(self, run: RunFolder, folder: _Folder, coordinator: Coordinator) -> None:
        self.is_over = threading.Event()
        self._run = run
        self._folder = folder
        self._coordinator = coordinator
        self._asked: dict[str, Future[CollectorChange]] = {}

    def listen(self) -> None:
        while not self.is_over.wait(LOOK_S):
            if self._run.lost()[0]:
                self._coordinator.abort()
                break
            with suppress(OSError):  # a disk that refuses now may not do so the next time
                self._look()
        with suppress(OSError):
            self._look()
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(ScaleRefused("the run is over"))
            self._answer()
        self._folder.close()
        with suppress(OSError):  # an answer that nobody has read yet
            self._run.requests.rmdir()

    def _look(self) -> None:
        for name in self._folder.names(ASK):
            answer = self._asked[name.removeprefix(ASK)] = Future()
            try:
                request = self._folder.take(name) or {}
                self._ask(_number(request), answer)
            except ValueError as error:
                answer.set_exception(ScaleRefused(f"the request cannot be read: {error}"))
        self._answer()

    def _ask(self, collectors: int, answer: Future[CollectorChange]) -> None:
        self._coordinator.call_soon(lambda: self._coordinator.scale(collectors, answer))

    def _answer(self) -> None:
        for name, answer in [(name, answer) for name, answer in self._asked.items() if answer.done()]:
            del self._asked[name]
            error = answer.exception()
            said = {"done": answer.result().line()} if error is None else {"refused": str(error)}
            self._folder.put(f"{ANSWER}{name}", said)


def _number(request: JsonObject) -> int:
    number = request.get("collectors")
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"collectors must be a whole number, received {number!r}")
    return number


# -- whoever asks -----------------------------------------------------------------------------------


def ask_to_scale(run: RunFolder, collectors: int, within_s: float) -> str:
    """Ask a run that goes on to have so many collectors. Returns what came of it; ScaleRefused: nothing did, and why.
    Stalled: the run has not answered."""
    folder = _open_to_ask(run)
    name = f"{secrets.token_hex(8)}.json"
    try:
        folder.put(f"{ASK}{name}", {"collectors": collectors})
        gives_up_at = time.monotonic() + within_s
        while (answer := folder.take(f"{ANSWER}{name}")) is None:
            if time.monotonic() > gives_up_at:
                what = "has not looked at the request" if folder.remove(f"{ASK}{name}") else "is not done with it"
                raise Stalled(f"{run.path} {what} after {within_s:g} s; what it does: headway status {run.path}")
            if not _is_running(run):
                raise ScaleRefused(f"{run.path} ended before it answered")
            time.sleep(LOOK_S / 4)
    finally:
        folder.close()
    if "done" not in answer:
        raise ScaleRefused(str(answer.get("refused")))
    return str(answer["done"])


def _open_to_ask(run: RunFolder) -> _Folder:
    if not run.path.is_dir():
        raise ScaleRefused(f"no run folder at {run.path}")
    owner = run.path.stat().st_uid
    if owner != os.geteuid():
        raise ScaleRefused(f"{run.path} belongs to user {owner}: only its owner may change a run")
    if not run.events.is_file() and not run.config.is_file():
        raise ScaleRefused(f"{run.path} is not a run folder: it has no {run.events.name}")
    if not _is_running(run):
        raise ScaleRefused(f"{run.path} is not running")
    try:
        return _Folder(run.requests)
    except OSError:
        raise ScaleRefused(f"{run.path} is not running") from None


def _is_running(run: RunFolder) -> bool:
    """As far as can be seen from here: the run may be on another machine."""
    if not run.requests.exists():
        return False
    try:
        environment = parsed(run.environment.read_text())
    except (OSError, ValueError):
        return True
    return process_is_alive(environment) is not False
